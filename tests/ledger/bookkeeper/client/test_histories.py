"""Seeded histories of the BookKeeper client: no invariant breaks, and without a rule one does."""

from __future__ import annotations

import pytest

from pulsemark.ledger.bookkeeper.client.recovery import RecoveryRules
from tests.support.bookkeeper_history import run_history

#: These found faults once: a late ensemble change, and entries of an unfinished recovery.
FOUND_FAULTS = (50, 172, 242, 265, 414)

#: Histories of one writer and one recovery, in which an entry is lost if reads do not fence.
LOSING_DUELS = (109, 242, 521)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("seed", [*range(20), *FOUND_FAULTS])
def test_history(seed: int, together: bool) -> None:
    """Whatever happens, what was acknowledged stays, in order, and is closed once."""
    outcome = run_history(seed, together=together)
    assert outcome.broken == []
    assert outcome.steps > 10


def test_the_same_seed_gives_the_same_history() -> None:
    """A history can be looked at again."""
    assert run_history(7) == run_history(7)


def test_without_any_fence_entries_are_lost_again_and_again() -> None:
    """A control: of a writer and a recovery that fences nothing, many a pair loses entries."""
    rules = RecoveryRules(fence=False)
    broken = [len(run_history(seed, rules, is_duel=True).broken) for seed in range(60)]
    assert sum(count > 0 for count in broken) >= 5, broken
    assert sum(broken) >= 8, broken
    assert not any(run_history(seed, is_duel=True).broken for seed in range(60))


def test_without_the_fence_of_reads_an_entry_is_lost() -> None:
    """A control: recovery's reads that do not fence let the writer confirm a lost entry."""
    rules = RecoveryRules(fence_reads=False)
    for seed in LOSING_DUELS:
        assert run_history(seed, rules, is_duel=True).broken != []
        assert run_history(seed, is_duel=True).broken == []


def test_without_the_floor_confirmed_entries_are_written_again() -> None:
    """A control: recovery that begins below the last segment does what it must not."""
    rules = RecoveryRules(floor_of_segment=False)
    assert any(run_history(seed, rules).broken for seed in range(70, 90))

"""The conformance suite finds engines that break a promise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from pulsemark.ledger import Entry, LedgerError, ManagedLedger
from pulsemark.ledger.entry import RecordHead
from pulsemark.ledger.memory.folder import Content
from pulsemark.ledger.memory.store import MemoryLedgers, MemoryRun
from pulsemark.ledger.run import IoCount
from pulsemark.ledger.topic_store import TopicStore
from pulsemark.testing.conformance import LedgerStoreConformance
from pulsemark.testing.conformance.base import SMALL, TOPIC
from pulsemark.testing.conformance.model import play_histories
from tests.support.engines import MemoryEngine

SUITE = LedgerStoreConformance()


class Forgetful(MemoryEngine):
    """Loses the newest entry of each topic in a crash, though it was acknowledged."""

    def kill(self) -> None:
        """See the class."""
        super().kill()
        for contents in self.memory.ledgers.values():
            if contents and len(contents[-1]) > 1:
                contents[-1] = contents[-1].first(len(contents[-1]) - 1)


class Shared(MemoryEngine):
    """Lets two owners write at once."""

    def take_over(self) -> TopicStore | None:
        """See the class."""
        owner = self.memory._owner
        second = super().take_over()
        self.memory._owner = owner
        return second


class Repeating(MemoryEngine):
    """Gives ledger ids a second time after a crash."""

    def kill(self) -> None:
        """See the class."""
        super().kill()
        self.memory.next_ledger_id = 0


class MiscountingRun(MemoryRun):
    """Says of each entry that it holds one message."""

    def head(self, row: int, io: IoCount | None = None) -> RecordHead:
        """See the class."""
        return replace(super().head(row, io), message_count=1)


class WrongSizeRun(MemoryRun):
    """Says of each entry that its body has one byte."""

    def head(self, row: int, io: IoCount | None = None) -> RecordHead:
        """See the class."""
        return replace(super().head(row, io), body_size_bytes=1)


class StuckRun(MemoryRun):
    """Reads from the beginning, whatever is asked for."""

    def read(self, row: int, max_entries: int, max_bytes: int) -> list[Entry]:
        """See the class."""
        return super().read(0, max_entries, max_bytes)


class WithRuns(MemoryEngine):
    """An engine whose stores have runs of a kind of their own."""

    run: type[MemoryRun]

    def open(self, *, threaded: bool = True) -> TopicStore:
        """See the class."""
        store = super().open(threaded=threaded)
        ledgers = store.engine
        assert isinstance(ledgers, MemoryLedgers)
        replaced = ledgers._replace
        ledgers.create = lambda header: self.run(Content(header), replaced)  # type: ignore[method-assign]
        return store


class Miscounting(WithRuns):
    """See its run."""

    run = MiscountingRun


class WrongSize(WithRuns):
    """See its run."""

    run = WrongSizeRun


class Stuck(WithRuns):
    """See its run."""

    run = StuckRun


def ledger_of(engine: MemoryEngine) -> ManagedLedger:
    """What the fixture `ledger` gives."""
    return engine.open().open_topic(TOPIC)


BROKEN: list[tuple[type[MemoryEngine], Callable[[MemoryEngine], None]]] = [
    (Forgetful, lambda e: SUITE.test_another_life_has_it_all(e, "kill")),
    (Forgetful, lambda e: play_histories(type(e), shrinks=False)),
    (Shared, SUITE.test_only_one_owner_writes),
    (Miscounting, lambda e: SUITE.test_heads_say_what_the_entries_say(ledger_of(e), True)),
    (WrongSize, lambda e: SUITE.test_heads_say_what_the_entries_say(ledger_of(e), False)),
    (Stuck, lambda e: SUITE.test_positions_and_indexes_have_no_gaps(e, ledger_of(e))),
    (Repeating, SUITE.test_ledger_ids_are_never_given_twice),
]


@pytest.mark.parametrize("number", range(len(BROKEN)))
def test_a_broken_engine_is_noticed(number: int) -> None:
    """Its broken promise fails the claim about it."""
    make, claim = BROKEN[number]
    engine = make(SMALL)
    with pytest.raises((AssertionError, LedgerError, pytest.fail.Exception)):
        claim(engine)
    engine.memory.take_over(None)


def test_a_sound_engine_passes_the_same_claims() -> None:
    """It is not the claims that fail by themselves."""
    for _, claim in BROKEN:
        engine = MemoryEngine(SMALL)
        claim(engine)
        engine.end()

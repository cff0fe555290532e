"""Logs that are cleaned by Kafka's rules: when, what stays, and what is removed from the disk."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from pulsemark.compaction import cleaner
from pulsemark.compaction.cleaner import (
    CleanerRules,
    clean,
    delete_before,
    drop_if_over,
    freeable,
    is_due,
    limits_of,
)
from pulsemark.compaction.compaction import DEFAULT_LIMITS, compact
from pulsemark.compaction.current_view import (
    CleanerState,
    claim_kept,
    compacted_log,
    current_view,
    state_of,
)
from pulsemark.ledger import EARLIEST, LedgerError, LocalStore, ManagedLedger, StoreOptions
from pulsemark.ledger.store import CLEANER_PROPERTY_KIND
from pulsemark.maintenance.findings import Severity
from pulsemark.maintenance.verify import verify_folder
from pulsemark.metadata import BrokerTimeStamper, IndexStamper, StamperChain, payload_of
from pulsemark.testing.clock import SettableClock
from pulsemark.testing.faulty_files import FaultyFiles
from pulsemark.testing.raw_messages import unbatched_message
from tests.support.simulated_store import NEVER_MS, SimulatedStore

TOPIC = "persistent://public/default/prices"
NOW_MS = 1_000_000_000
HOUR_MS = 3_600_000
AT_ONCE = CleanerRules(free_after_ms=0)


@pytest.fixture
def clock() -> SettableClock:
    """The store's clock."""
    return SettableClock(NOW_MS)


@pytest.fixture
def topic(tmp_path: Path, clock: SettableClock) -> Iterator[ManagedLedger]:
    """An empty topic on files."""
    with LocalStore.open(tmp_path / "data", clock=clock) as store:
        yield opened(store)


def opened(store: LocalStore) -> ManagedLedger:
    """The topic, with stamps."""
    ledger = store.open_topic(TOPIC)
    ledger.stampers = StamperChain([BrokerTimeStamper(), IndexStamper()])
    return ledger


def put(topic: ManagedLedger, *keys: str, value: bytes | None = b"v") -> None:
    """A message for each key, durably."""
    for key in keys:
        topic.append(unbatched_message(value, publish_time_ms=1, key=key))
    topic.store.committer.flush()


def shown(topic: ManagedLedger) -> list[tuple[int, bytes]]:
    """Index and payload of all that is read."""
    entries = compacted_log(topic).read(EARLIEST, max_entries=10_000)
    return [(entry.index, bytes(payload_of(entry.body))) for entry in entries]


def indexes(topic: ManagedLedger) -> list[int]:
    """The indexes that are left."""
    return [index for index, _ in shown(topic)]


def free(topic: ManagedLedger, rules: CleanerRules, now_ms: int) -> int:
    """Free what may be freed; how many entries that were."""
    with claim_kept(topic) as claim:
        cut = freeable(topic, rules, now_ms, claim)
        return 0 if cut is None else topic.truncate_head(cut)


def test_a_log_is_due_when_it_is_dirty_enough(topic):
    """By the share of its new bytes; the newest entry does not count, since it cannot be taken."""
    rules = CleanerRules()
    assert not is_due(topic, rules, NOW_MS)
    put(topic, "a")
    assert not is_due(topic, rules, NOW_MS)
    put(topic, "b", "c", "d")
    assert is_due(topic, rules, NOW_MS)
    assert not is_due(topic, CleanerRules(dirty_ratio=1.0), NOW_MS)
    clean(topic, rules, NOW_MS)
    assert not is_due(topic, CleanerRules(dirty_ratio=0.0), NOW_MS)
    put(topic, "e")
    assert is_due(topic, CleanerRules(dirty_ratio=0.0), NOW_MS)
    assert not is_due(topic, rules, NOW_MS)
    put(topic, *["f"] * 20)
    assert is_due(topic, rules, NOW_MS)


def test_records_wait_for_the_least_lag_and_not_longer_than_the_most(topic, clock):
    """A younger record is not cleaned; an older one is, whatever the share."""
    put(topic, "a", "a", "b")
    clock.advance(by_ms=HOUR_MS)
    put(topic, "a", "c")
    rules = CleanerRules(min_lag_ms=HOUR_MS // 2)
    clean(topic, rules, clock.now_ms())
    assert indexes(topic) == [1, 2, 3, 4]
    view = current_view(topic)
    assert view is not None
    assert view.summary.next_index == 3
    lazy = CleanerRules(dirty_ratio=1.0, max_lag_ms=HOUR_MS)
    assert not is_due(topic, lazy, clock.now_ms())
    clock.advance(by_ms=HOUR_MS)
    assert is_due(topic, lazy, clock.now_ms())


def test_a_tombstone_stays_for_its_time_after_the_first_cleaning(topic, clock):
    """However old it is by then (KIP-534), and over a restart; with a time of 0 it goes at once."""
    put(topic, "a", "b")
    put(topic, "a", value=None)
    put(topic, "c")
    clock.advance(by_ms=10 * HOUR_MS)
    rules = CleanerRules(tombstone_ms=HOUR_MS)
    clean(topic, rules, clock.now_ms())
    assert shown(topic) == [(1, b"v"), (2, b""), (3, b"v")]
    clock.advance(by_ms=HOUR_MS // 2)
    put(topic, "d")
    clean(topic, rules, clock.now_ms())
    assert indexes(topic) == [1, 2, 3, 4]
    clock.advance(by_ms=HOUR_MS)
    put(topic, "e")
    clean(topic, rules, clock.now_ms())
    assert indexes(topic) == [1, 3, 4, 5]
    put(topic, "b", value=None)
    put(topic, "f")
    clean(topic, CleanerRules(tombstone_ms=0), clock.now_ms())
    assert indexes(topic) == [3, 4, 5, 7]


def test_the_times_of_many_cleanings_are_few(topic, clock):
    """Some are given up; then tombstones stay for longer, never shorter."""
    rules = CleanerRules(tombstone_ms=1000 * HOUR_MS)
    for _ in range(cleaner.MAX_RUNS * 2):
        clock.advance(by_ms=1)
        put(topic, "a")
        clean(topic, rules, clock.now_ms())
    state = state_of(topic).cleaner
    assert state is not None
    assert len(state.runs) <= cleaner.MAX_RUNS + 1
    view = current_view(topic)
    assert view is not None
    assert state.runs[-1][0] == view.horizon
    assert list(state.runs) == sorted(state.runs)


def test_retention_removes_from_the_view_too(topic, clock):
    """By time and by size; the topic then begins later."""
    put(topic, "a", "b")
    clock.advance(by_ms=HOUR_MS)
    put(topic, "c", "d")
    limited = CleanerRules(retention_ms=2 * HOUR_MS)
    clean(topic, limited, clock.now_ms())
    assert indexes(topic) == [0, 1, 2, 3]
    clock.advance(by_ms=HOUR_MS + HOUR_MS // 10)
    assert not is_due(topic, limited, clock.now_ms())
    clock.advance(by_ms=HOUR_MS // 5)
    assert is_due(topic, limited, clock.now_ms())
    clean(topic, limited, clock.now_ms())
    assert indexes(topic) == [2, 3]
    state = state_of(topic).cleaner
    assert state is not None
    assert state.first_index == 2
    put(topic, *(f"k{number}" for number in range(40)))
    clean(topic, AT_ONCE, clock.now_ms())
    free(topic, AT_ONCE, clock.now_ms())
    view = current_view(topic)
    assert view is not None
    small = CleanerRules(free_after_ms=0, retention_size_bytes=view.size_bytes // 2)
    assert is_due(topic, small, clock.now_ms())
    clean(topic, small, clock.now_ms())
    assert 0 < len(indexes(topic)) < 30
    assert indexes(topic)[-1] == 43
    assert not is_due(topic, small, clock.now_ms())


def test_what_was_deleted_is_left_out_of_the_next_view(topic):
    """A topic begins where it is told; the view is made again for that alone."""
    put(topic, "a", "b", "c", "d")
    clean(topic, AT_ONCE, NOW_MS)
    delete_before(topic, 2)
    assert is_due(topic, AT_ONCE, NOW_MS)
    delete_before(topic, 1)  # it never moves back
    clean(topic, AT_ONCE, NOW_MS)
    assert indexes(topic) == [2, 3]
    assert not is_due(topic, AT_ONCE, NOW_MS)


def test_what_the_view_has_is_freed_when_it_is_old_enough(topic, clock):
    """Not before, and never the newest entry; what is read does not change."""
    put(topic, *["a", "b"] * 10)
    rules = CleanerRules(free_after_ms=1000)
    assert free(topic, rules, clock.now_ms()) == 0
    clean(topic, rules, clock.now_ms())
    before = shown(topic)
    assert free(topic, rules, clock.now_ms()) == 0
    clock.advance(by_ms=2000)
    assert free(topic, rules, clock.now_ms()) == 19
    assert topic.first_index == 19
    assert shown(topic) == before
    assert indexes(topic) == [17, 18, 19]


def test_a_durable_subscription_holds_the_log_back(topic):
    """What it has not acknowledged stays; one that is not durable holds nothing."""
    put(topic, "a", "a", "a", "a")
    cursor = topic.open_cursor("s", initial=topic.first_position)
    topic.open_cursor("r", initial=topic.first_position, durable=False)
    clean(topic, AT_ONCE, NOW_MS)
    assert free(topic, AT_ONCE, NOW_MS) == 0
    cursor.ack_cumulative(topic.first_position)
    assert free(topic, AT_ONCE, NOW_MS) == 1
    cursor.ack_cumulative(topic.last_position)
    assert free(topic, AT_ONCE, NOW_MS) == 2


def test_a_topic_that_was_never_cleaned_frees_nothing(topic):
    """Pulsar's own compaction keeps the log."""
    put(topic, "a", "a", "a")
    compact(topic)
    assert free(topic, AT_ONCE, NOW_MS) == 0
    assert limits_of(topic, DEFAULT_LIMITS) == DEFAULT_LIMITS
    clean(topic, AT_ONCE, NOW_MS)
    assert free(topic, AT_ONCE, NOW_MS) == 3
    assert limits_of(topic, DEFAULT_LIMITS).tombstones_after == EARLIEST


def test_a_damaged_entry_holds_the_log_back(tmp_path, clock):
    """From it on nothing is removed: it may be repaired. What is before it goes."""
    folder = tmp_path / "data"
    with LocalStore.open(folder, clock=clock) as store:
        put(opened(store), "a", "b", value=b"sound")
        put(opened(store), "c", value=b"damaged-one")
        put(opened(store), "a", "d", value=b"sound")
    (path,) = (p for p in (folder / "ledgers").iterdir() if b"damaged-one" in p.read_bytes())
    path.write_bytes(path.read_bytes().replace(b"damaged-one", b"dAmaged-one"))
    with LocalStore.open(folder, clock=clock) as store:
        topic = opened(store)
        report = clean(topic, AT_ONCE, NOW_MS)
        assert len(report.damaged) == 1
        assert free(topic, AT_ONCE, NOW_MS) == 2
        put(topic, "e", "f")
        clean(topic, AT_ONCE, NOW_MS)
        assert free(topic, AT_ONCE, NOW_MS) == 0
        assert topic.first_position == report.damaged[0]


def test_a_view_that_is_needed_no_more_is_dropped(topic, clock):
    """Of a topic whose policy is now to delete, when all of it is older than the retention."""
    put(topic, "a", "b", "a", "c")
    clean(topic, AT_ONCE, clock.now_ms())
    free(topic, AT_ONCE, clock.now_ms())
    clock.advance(by_ms=HOUR_MS)
    drop_if_over(topic, 2 * HOUR_MS, None, clock.now_ms())
    assert indexes(topic) == [1, 2, 3]
    drop_if_over(topic, HOUR_MS // 2, None, clock.now_ms())
    assert indexes(topic) == [3]
    assert state_of(topic).cleaner is None
    assert current_view(topic) is None


def test_the_state_outlives_the_process_and_goes_with_the_topic(tmp_path, clock):
    """Start, times and what is held; a value that is none is no reason not to open the topic."""
    state = CleanerState(7, (((1 << 40, 3), 5),), (2, 1))  # type: ignore[arg-type]
    assert CleanerState.unpack(state.pack()) == state
    for wrong in (b"{}", b"[1]", b"x", b'{"firstIndex": "x", "runs": [], "held": null}'):
        with pytest.raises(ValueError):  # noqa: PT011 - each for a reason of its own
            CleanerState.unpack(wrong)
    folder = tmp_path / "data"
    with LocalStore.open(folder, clock=clock) as store:
        topic = opened(store)
        put(topic, "a", "b", "a")
        clean(topic, AT_ONCE, NOW_MS)
        kept = state_of(topic).cleaner
    with LocalStore.open(folder, clock=clock) as store:
        topic = opened(store)
        assert state_of(topic).cleaner == kept
        store.catalog.put(CLEANER_PROPERTY_KIND, str(topic.topic_id), b"{}")
    with LocalStore.open(folder, clock=clock) as store:
        topic = opened(store)
        assert state_of(topic).cleaner == CleanerState(0)
        key = str(topic.topic_id)
        store.delete_topic(TOPIC)
        assert store.catalog.get(CLEANER_PROPERTY_KIND, key) is None


OPTIONS = StoreOptions(
    segment_size_bytes=900,
    ledger_entries=9,
    checkpoint_interval_ms=NEVER_MS,
    journal_size_bytes=NEVER_MS,
)


def prepared(simulated: SimulatedStore, files: FaultyFiles) -> ManagedLedger:
    """A topic that was cleaned once and freed, with newer entries."""
    topic = opened(simulated.open(files))
    put(topic, *(f"k{number % 7}" for number in range(30)), value=b"old")
    clean(topic, AT_ONCE, NOW_MS)
    free(topic, AT_ONCE, NOW_MS)
    put(topic, *(f"k{number % 5}" for number in range(20)), value=b"new")
    return topic


@pytest.mark.parametrize("end", ["kill", "power_off", "EIO"])
def test_ended_at_any_call(tmp_path, end):
    """Whenever cleaning and freeing end, the latest of each key is there, and verify is content."""
    whole = SimulatedStore(tmp_path / "whole", options=OPTIONS)
    files = whole.files()
    topic = prepared(whole, files)
    before, first = shown(topic), files.total_calls
    clean(topic, AT_ONCE, NOW_MS)
    free(topic, AT_ONCE, NOW_MS)
    after, calls = shown(topic), files.total_calls - first
    freed = topic.first_index
    whole.close()
    seen = set()
    for number in sorted({1, calls, *range(calls, 0, -max(1, calls // 24))}):
        simulated = SimulatedStore(tmp_path / f"{end}{number}", seed=number, options=OPTIONS)
        files = simulated.files()
        topic = prepared(simulated, files)
        at = files.total_calls + number
        if end == "EIO":

            def fail() -> None:
                raise OSError(errno.EIO, "the disk failed")

            files.at_call(at, fail)
        else:
            files.at_call(at, getattr(simulated.disk, end))
        with suppress(OSError, LedgerError):
            clean(topic, AT_ONCE, NOW_MS)
            free(topic, AT_ONCE, NOW_MS)
        simulated.power_off() if end == "power_off" else simulated.kill()
        topic = opened(simulated.open())
        found = shown(topic)
        assert found in (before, after)
        seen.add((found == after, topic.first_index == freed))
        simulated.close()
        findings = verify_folder(simulated.folder, files=simulated.files())
        assert [finding for finding in findings if finding.severity >= Severity.DAMAGE] == []
        topic = opened(simulated.open())
        clean(topic, AT_ONCE, NOW_MS)
        free(topic, AT_ONCE, NOW_MS)
        assert shown(topic) == after
        assert topic.first_index == freed
        simulated.close()
    assert {(False, False), (True, True)} <= seen

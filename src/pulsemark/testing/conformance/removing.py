"""Removing entries: trim, truncation of the head, retention, deletion of topics."""

from __future__ import annotations

import pytest

from ...ledger import (
    EARLIEST,
    LATEST,
    ManagedLedger,
    Position,
    StoreClosedError,
    TopicNotFoundError,
)
from ...ledger.retention import apply_retention, expire_position
from .base import (
    OTHER,
    TOPIC,
    Engine,
    EngineTests,
    check_chain,
    entries_of,
    facts_of,
    filled,
    next_life,
    stamped,
)


class Removing(EngineTests):
    """Removed entries never come back, and the others keep their position and index."""

    @pytest.mark.parametrize("ending", ["close", "kill", "none"])
    def test_trim_removes_whole_runs(self, engine: Engine, ending: str) -> None:
        """Entries from the position on stay; the first index is that of the first entry left."""
        store = engine.open()
        ledger = store.open_topic(TOPIC)
        before = facts_of(filled(ledger, 40, messages=2))
        assert ledger.trim(before[25][0]) > 0
        store = next_life(engine, store, ending)
        ledger = store.open_topic(TOPIC)
        left = facts_of(entries_of(ledger))
        assert left == before[-len(left) :]
        assert 15 <= len(left) < 40
        assert ledger.first_index == left[0][3] - 1
        assert ledger.first_position == left[0][0]
        assert ledger.read(EARLIEST)[0].position == left[0][0]
        filled(ledger, 2)
        check_chain(ledger)

    def test_the_last_run_carries_the_index_on(self, engine: Engine) -> None:
        """Trimming everything keeps the newest run with entries, and the next index."""
        store = engine.open()
        ledger = store.open_topic(TOPIC)
        filled(ledger, 30)
        ledger.trim(LATEST)
        ledger.truncate_head(LATEST)
        assert entries_of(ledger) == []
        assert (ledger.first_index, ledger.next_index) == (30, 30)
        engine.kill()
        with engine.open() as store:
            ledger = store.open_topic(TOPIC)
            assert entries_of(ledger) == []
            filled(ledger, 1)
            assert [entry.index for entry in entries_of(ledger)] == [30]

    @pytest.mark.parametrize("ending", ["close", "kill", "none"])
    @pytest.mark.parametrize("removed", [1, 5, 12, 20, 29])
    def test_a_head_is_cut_off(self, engine: Engine, removed: int, ending: str) -> None:
        """Exactly the entries before the position are removed, also inside a run."""
        store = engine.open()
        ledger = stamped(store.open_topic(TOPIC))
        before = facts_of(filled(ledger, 30))
        assert ledger.truncate_head(before[removed][0]) == removed
        assert ledger.truncate_head(before[removed][0]) == 0
        store = next_life(engine, store, ending)
        ledger = stamped(store.open_topic(TOPIC))
        assert facts_of(entries_of(ledger)) == before[removed:]
        assert ledger.first_index == removed
        assert ledger.previous_position(before[removed][0]).entry_id == (
            before[removed][0].entry_id - 1
        )
        filled(ledger, 3)
        check_chain(ledger)

    def test_a_head_and_then_a_tail(self, engine: Engine) -> None:
        """Truncations of head and tail in one run both count, also for the next owner."""
        store = engine.open()
        ledger = store.open_topic(TOPIC)
        before = facts_of(filled(ledger, 8))
        ledger.truncate_head(before[3][0])
        ledger.truncate_tail(6, epoch=1)
        ledger.truncate_head(before[4][0])
        assert facts_of(entries_of(ledger))[:-1] == before[4:6]
        engine.kill()
        with engine.open() as store:
            ledger = store.open_topic(TOPIC)
            assert facts_of(entries_of(ledger))[:-1] == before[4:6]
            check_chain(ledger)

    def test_reading_goes_on_after_what_was_removed(self, ledger: ManagedLedger) -> None:
        """Reading from a removed position starts at the first entry left."""
        before = filled(ledger, 30)
        runs, snapshot = ledger.segments(), ledger.snapshot()
        ledger.trim(before[20].position)
        ledger.truncate_head(before[25].position)
        assert ledger.read(before[3].position)[0].position == before[25].position
        assert ledger.next_position(before[3].position) == before[25].position
        assert runs[0].is_gone(0)
        assert ledger.has_lost(snapshot)

    def test_retention(self, engine: Engine, ledger: ManagedLedger) -> None:
        """Retention by age and size keeps all entries that a subscription has not acknowledged."""
        old = filled(ledger, 10)
        engine.clock.advance(by_ms=10_000)
        new = filled(ledger, 10)
        cursor = ledger.open_cursor("billing", initial=EARLIEST)
        cursor.ack_cumulative(old[4].position)
        now_ms = engine.clock.now_ms()

        def clean(time_ms: int | None, size_bytes: int | None) -> int:
            return apply_retention(
                ledger,
                now_ms=now_ms,
                retention_time_ms=time_ms,
                retention_size_bytes=size_bytes,
                claim=None,
            )

        assert clean(None, None) == 0
        assert clean(5_000, None) == 5
        cursor.ack_cumulative(new[-1].position)
        assert clean(5_000, None) == 5
        assert entries_of(ledger)[0].position == new[0].position
        run = ledger.segments()[-1]
        last = run.row(run.entry_count - 1)
        assert clean(None, last.end_offset - last.offset) == 9
        assert clean(0, 0) == 1
        assert entries_of(ledger) == []

    def test_expiry(self, engine: Engine, ledger: ManagedLedger) -> None:
        """Messages older than their time to live are found, beginning at the head."""
        stamped(ledger)
        old = filled(ledger, 5)
        engine.clock.advance(by_ms=1000)
        filled(ledger, 5)
        now_ms = engine.clock.now_ms()
        assert expire_position(ledger, now_ms=now_ms, ttl_ms=500) == old[-1].position
        assert expire_position(ledger, now_ms=now_ms, ttl_ms=5000) is None

    @pytest.mark.parametrize("ending", ["close", "kill", "none"])
    def test_a_deleted_topic_is_gone(self, engine: Engine, ending: str) -> None:
        """Entries and cursors are deleted with their topic; a new one of the same name is empty."""
        store = engine.open()
        ledger = store.open_topic(TOPIC)
        filled(ledger, 30)
        ledger.open_cursor("billing", initial=EARLIEST).persist().wait(10)
        filled(store.open_topic(OTHER), 2)
        store.delete_topic(TOPIC)
        with pytest.raises(StoreClosedError):
            ledger.append(b"x")
        with pytest.raises(TopicNotFoundError):
            store.delete_topic(TOPIC)
        store = next_life(engine, store, ending)
        assert store.topic_names() == [OTHER]
        with pytest.raises(TopicNotFoundError):
            store.open_topic(TOPIC, create=False)
        again = store.open_topic(TOPIC)
        assert again.topic_id != ledger.topic_id
        assert again.cursors == {}
        assert (entries_of(again), again.next_index) == ([], 0)
        (entry,) = filled(again, 1)
        assert entry.position > Position(ledger.ledger_id, 10**6)
        assert len(entries_of(store.open_topic(OTHER))) == 2

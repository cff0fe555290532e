"""Cursors and searches."""

from __future__ import annotations

import random
from bisect import bisect_left

import pytest

from ...compaction.compaction import compact
from ...compaction.current_view import compacted_log
from ...finder import Finder, IndexOutOfRangeError, SearchMethod
from ...ledger import EARLIEST, LATEST, InvalidCursorError, ManagedLedger
from ..raw_messages import unbatched_message
from .base import TOPIC, Engine, EngineTests, entries_of, filled, next_life, stamped


class Subscribing(EngineTests):
    """A cursor survives its owner, and a search finds what a scan would find."""

    @pytest.mark.parametrize("ending", ["close", "kill"])
    def test_a_cursor_is_where_it_was_stored(self, engine: Engine, ending: str) -> None:
        """Mark delete, single entries, parts of batches and properties are restored."""
        store = engine.open()
        ledger = store.open_topic(TOPIC)
        entries = filled(ledger, 30, messages=4)
        cursor = ledger.open_cursor(
            "billing",
            initial=EARLIEST,
            properties={"offset": 7},
            subscription_properties={"team": "post"},
        )
        cursor.ack_cumulative(entries[3].position)
        for number in (6, 7, 20):
            cursor.ack(entries[number].position)
        cursor.ack_batch(entries[9].position, [0b1010])
        ledger.open_cursor("audit", initial=LATEST).persist().wait(10)
        ledger.open_cursor("reader", initial=EARLIEST, durable=False)
        cursor.persist().wait(10)
        with next_life(engine, store, ending) as store:
            ledger = store.open_topic(TOPIC)
            assert sorted(ledger.cursors) == ["audit", "billing"]
            again = ledger.cursors["billing"]
            assert again.mark_delete == entries[3].position
            acked = [n for n, e in enumerate(entries) if again.is_acked(e.position)]
            assert acked == [0, 1, 2, 3, 6, 7, 20]
            assert again.remaining_in_batch(entries[9].position) == [0b1010]
            assert again.backlog_messages == 23 * 4
            assert (again.properties, again.subscription_properties) == (
                {"offset": 7},
                {"team": "post"},
            )
            assert ledger.cursors["audit"].backlog_messages == 0
            assert again.first_unacked == entries[4].position

    def test_a_deleted_cursor_stays_deleted(self, engine: Engine) -> None:
        """A deleted cursor stays deleted, also after a crash."""
        store = engine.open()
        ledger = store.open_topic(TOPIC)
        ledger.open_cursor("billing", initial=EARLIEST).persist().wait(10)
        ledger.delete_cursor("billing").wait(10)
        engine.kill()
        with engine.open() as store:
            assert store.open_topic(TOPIC).cursors == {}

    def test_a_cursor_that_no_record_can_hold(self, ledger: ManagedLedger) -> None:
        """A cursor that is too large for a record is refused and not created."""
        with pytest.raises(InvalidCursorError):
            ledger.open_cursor("billing", initial=EARLIEST, properties={"x": 2**70})
        assert ledger.cursors == {}

    def test_a_place_that_moves_often(self, engine: Engine) -> None:
        """The cursor ledger is compacted sometimes, and no cursor state is lost by that."""
        acked = 0
        for _ in range(4):
            with engine.open(threaded=False) as store:
                ledger = store.open_topic(TOPIC)
                entries = filled(ledger, 300)
                cursor = ledger.open_cursor("billing", initial=EARLIEST)
                assert cursor.backlog_messages == ledger.next_index - acked == 301 - (acked == 0)
                for entry in entries[:-1]:
                    cursor.ack_cumulative(entry.position)
                    cursor.persist()
                cursor.persist().wait(10)
                acked = ledger.next_index - 1

    @pytest.mark.parametrize("method", list(SearchMethod))
    @pytest.mark.parametrize("with_stamps", [True, False])
    def test_searches_agree_with_a_look_at_all(
        self, engine: Engine, method: SearchMethod, with_stamps: bool
    ) -> None:
        """Searches by time and index agree with a scan: whole, trimmed, and for the next owner."""
        chance = random.Random(7)  # noqa: S311 - any order will do
        store = engine.open()
        ledger = store.open_topic(TOPIC)
        if with_stamps:
            stamped(ledger)
        start_ms = engine.clock.now_ms()
        for _ in range(60):
            engine.clock.advance(by_ms=chance.randrange(3) * 10)
            publish_ms = engine.clock.now_ms() - chance.randrange(100)
            body = unbatched_message(b"x", publish_time_ms=publish_ms)
            ledger.append(body, message_count=chance.randrange(3)).commit.wait(10)
        _check_searches(ledger, method, start_ms, with_stamps)
        ledger.truncate_head(entries_of(ledger)[17].position)
        _check_searches(ledger, method, start_ms, with_stamps)
        engine.kill()
        with engine.open() as store:
            _check_searches(store.open_topic(TOPIC), method, start_ms, with_stamps)

    def test_a_compacted_view(self, engine: Engine) -> None:
        """The next owner finds the newest entry of each key."""
        store = engine.open()
        ledger = stamped(store.open_topic(TOPIC))
        for number in range(30):
            body = unbatched_message(
                b"%d" % number, publish_time_ms=engine.clock.now_ms(), key=f"key-{number % 4}"
            )
            ledger.append(body).commit.wait(10)
        newest = [entry.position for entry in entries_of(ledger)[-4:]]
        compact(ledger)
        engine.kill()
        with engine.open() as store:
            log = compacted_log(store.open_topic(TOPIC))
            assert [entry.position for entry in log.read(EARLIEST, max_entries=10)] == newest


def _check_searches(
    ledger: ManagedLedger, method: SearchMethod, start_ms: int, with_stamps: bool
) -> None:
    finder, entries = Finder(ledger), entries_of(ledger)
    times = [
        entry.append_time_ms if with_stamps and entry.message_count else _publish_ms(entry.body)
        for entry in entries
    ]
    maxima = [max(times[: number + 1]) for number in range(len(times))]
    for time_ms in range(start_ms - 120, start_ms + 1500, 7):
        found = finder.by_time(time_ms, method=method)
        at = bisect_left(maxima, time_ms)
        assert found.end == (at == len(entries))
        if not found.end:
            entry = entries[at]
            assert (found.position, found.index) == (entry.position, entry.index)
    for index in range(ledger.first_index, ledger.next_index):
        place = finder.by_index(index, method=method)
        (entry,) = [e for e in entries if e.first_index <= index <= e.index]
        assert (place.position, place.batch_index) == (entry.position, index - entry.first_index)
    for outside in (ledger.first_index - 1, ledger.next_index):
        with pytest.raises(IndexOutOfRangeError):
            finder.by_index(outside, method=method)


def _publish_ms(body: memoryview) -> int:
    from ...metadata import MessageHeader

    return MessageHeader(body).publish_time_ms()

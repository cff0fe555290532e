"""Appending and reading."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise

import pytest

from ...ledger import (
    EARLIEST,
    LATEST,
    AlreadyStampedError,
    Entry,
    EntryKind,
    EntryTooLargeError,
    InvalidEntryError,
    ManagedLedger,
    Position,
    StoreClosedError,
    TopicNotFoundError,
)
from ...ledger.entry import RecordHead
from ...ledger.errors import ReservedTopicError
from ...metadata import ChecksumError, peek
from ...proto.broker_entry_pb2 import CONTROL_CHECKPOINT
from ..raw_messages import unbatched_message
from .base import (
    OTHER,
    SMALL,
    TOPIC,
    Engine,
    EngineTests,
    bodies_of,
    check_chain,
    entries_of,
    facts_of,
    filled,
    heads_of,
    stamped,
)


class Appending(EngineTests):
    """Appended entries are read back, in order, with all their facts."""

    def test_entries_come_back_byte_for_byte(self, ledger: ManagedLedger) -> None:
        """Entries of every size, count and kind, stamped or not, are read back unchanged."""
        sent = []
        for number, size in enumerate((0, 1, 5, 6, 7, 100, 999, 1000, 5000, 60_000)):
            if number == 5:
                stamped(ledger)
            kind = EntryKind.CONTROL if number % 3 == 2 else EntryKind.DATA
            body = bytes([65 + number]) * size
            appended = ledger.append(body, message_count=number, kind=kind)
            sent.append((appended.position, kind, number, appended.index, body))
        appended.commit.wait(10)
        found = entries_of(ledger)
        assert [
            (e.position, e.kind, e.message_count, e.index, bytes(e.body)) for e in found
        ] == sent
        assert [bool(e.prefix_size_bytes) for e in found] == [False] * 5 + [True] * 5
        check_chain(ledger)

    def test_a_producers_message_keeps_its_bytes(
        self, engine: Engine, ledger: ManagedLedger
    ) -> None:
        """Pulsar's headers-and-payload, which has its own checksum, is stored unchanged."""
        stamped(ledger)
        body = unbatched_message(b"hello", publish_time_ms=engine.clock.now_ms() - 5)
        ledger.append(body).commit.wait(10)
        (entry,) = entries_of(ledger)
        assert bytes(entry.body) == body
        stamp = peek(entry.prefix)
        assert stamp is not None
        assert (stamp.broker_timestamp, stamp.index) == (engine.clock.now_ms(), 0)

    @pytest.mark.parametrize("is_stamped", [True, False])
    def test_a_run_is_its_entries_one_by_one(self, engine: Engine, *, is_stamped: bool) -> None:
        """A run gives the entries that appends of one would, over run and ledger ends, too."""
        bodies = [unbatched_message(b"x" * (n % 50), publish_time_ms=n + 1) for n in range(60)]
        bodies[20] = b"without a checksum"
        counts = [n % 5 + 1 for n in range(60)]
        counts[40] = 0
        with engine.open() as store:
            ledger, other = store.open_topic(TOPIC), store.open_topic(OTHER)
            if is_stamped:
                stamped(ledger)
                stamped(other)
            done, steps = 0, 0
            while done < len(bodies):
                appended, added = ledger.append_run(bodies[done:], counts[done:])
                assert 1 <= added <= len(bodies) - done
                done, steps = done + added, steps + 1
                assert appended.index == sum(counts[:done]) - 1
            for body, count in zip(bodies, counts, strict=True):
                last = other.append(body, message_count=count)
            appended.commit.wait(10)
            last.commit.wait(10)
            assert steps < 60 if is_stamped else steps == 60
            facts = [
                [
                    (e.position.entry_id, e.message_count, e.index, bytes(e.prefix), bytes(e.body))
                    for e in entries_of(each)
                ]
                for each in (ledger, other)
            ]
            assert facts[0] == facts[1]
            assert [fact[-1] for fact in facts[0]] == bodies
            check_chain(ledger)

    def test_a_run_ends_before_what_is_refused(self, engine: Engine) -> None:
        """Bodies before a wrong checksum or a stamp are appended, the rest is refused."""
        good = unbatched_message(b"good", publish_time_ms=1)
        with engine.open() as store:
            ledger = stamped(store.open_topic(TOPIC))
            ledger.append(good)
            for bad, error in (
                (good[:-1] + b"!", ChecksumError),
                (b"\x0e\x02", AlreadyStampedError),
            ):
                appended, added = ledger.append_run([good, good, bad, good], [1, 1, 1, 1])
                assert (added, appended.position.entry_id % 2) == (2, 0)
                with pytest.raises(error):
                    ledger.append_run([bad, good], [1, 1])
            appended.commit.wait(10)
            assert bodies_of(ledger) == [good] * 5

    def test_positions_and_indexes_have_no_gaps(
        self, engine: Engine, ledger: ManagedLedger
    ) -> None:
        """Over many runs and ledgers, with a clock that is set back, time and index only grow."""
        stamped(ledger)
        for number in range(40):
            engine.clock.set(1_700_000_000_000 + (500 if number % 2 else number))
            ledger.append(b"x" * 90, message_count=number % 4)
        ledger.append(b"last").commit.wait(10)
        entries = entries_of(ledger)
        assert len(entries) == 41
        assert len({e.position.ledger_id for e in entries}) >= 4
        check_chain(ledger)
        for entry in entries:
            stamp = peek(entry.prefix)
            if entry.message_count:
                assert stamp is not None
                assert stamp.index == entry.index
                assert stamp.broker_timestamp == entry.append_time_ms

    def test_nothing_is_shown_before_it_is_durable(self, engine: Engine) -> None:
        """An entry is not readable before its commit, and readable by all methods after it."""
        with engine.open(threaded=False) as store:
            ledger = store.open_topic(TOPIC)
            appended = ledger.append(b"a", message_count=3)
            assert ledger.read(EARLIEST) == []
            assert (ledger.last_position, ledger.next_index) == (None, 0)
            assert ledger.end_position == appended.position
            assert not appended.commit.done
            appended.commit.wait(10)
            assert bodies_of(ledger) == [b"a"]
            assert (ledger.last_position, ledger.next_index) == (appended.position, 3)

    def test_a_body_may_change_after_its_commit(self, ledger: ManagedLedger) -> None:
        """The store keeps a copy of the body."""
        body = bytearray(b"before")
        ledger.append(body).commit.wait(10)
        body[:] = b"after!"
        assert bodies_of(ledger) == [b"before"]

    def test_reading_keeps_its_limits(self, ledger: ManagedLedger) -> None:
        """A read returns at most the given entries and bytes, across ledgers, and at least one."""
        entries = filled(ledger, 30, size=60)
        first = entries[0].position
        assert len(ledger.read(first, max_entries=5)) == 5
        assert len(ledger.read(first, max_entries=100, max_bytes=1)) == 1
        some = ledger.read(first, max_entries=100, max_bytes=400)
        assert 1 < len(some) <= 6
        assert facts_of(ledger.read(EARLIEST, max_entries=100)) == facts_of(entries)
        assert facts_of(ledger.read(entries[17].position, max_entries=100)) == facts_of(
            entries[17:]
        )
        assert ledger.read(ledger.end_position) == []
        assert ledger.read(LATEST) == []

    def test_the_fast_way_reads_the_same(self, ledger: ManagedLedger) -> None:
        """`read_stored` gives the stored bytes of the same entries, in order."""
        stamped(ledger)
        expected = [(e.position, bytes(e.stored)) for e in filled(ledger, 30)]
        found: list[tuple[Position, bytes]] = []
        position = EARLIEST
        while True:
            first, views = ledger.read_stored(position, max_entries=4)
            if not views:
                break
            found += [
                (Position(first.ledger_id, first.entry_id + at), bytes(view))
                for at, view in enumerate(views)
            ]
            position = Position(first.ledger_id, first.entry_id + len(views))
        assert found == expected

    @pytest.mark.parametrize("with_stamps", [True, False])
    def test_heads_say_what_the_entries_say(self, ledger: ManagedLedger, with_stamps: bool) -> None:
        """Place, kind, counts, times, prefix and size can be read without the body, and agree."""
        if with_stamps:
            stamped(ledger)
        entries = [*filled(ledger, 15, messages=3), *filled(ledger, 15, size=90)]
        heads = heads_of(ledger)

        def facts(one: Entry | RecordHead) -> tuple[object, ...]:
            counts = one.message_count, one.index, one.append_time_ms
            return one.position, one.kind, *counts, bytes(one.prefix)

        assert [facts(head) for head in heads] == [facts(entry) for entry in entries]
        assert [head.body_size_bytes for head in heads] == [len(entry.body) for entry in entries]

    def test_moving_along(self, ledger: ManagedLedger) -> None:
        """Each position leads to the next one, and counts of entries add up, across ledgers."""
        entries = filled(ledger, 30, messages=2)
        positions = [entry.position for entry in entries]
        for before, after in pairwise(positions):
            assert ledger.next_position(before) == after
            assert ledger.previous_position(after) == before
        assert ledger.first_position == positions[0]
        assert ledger.last_position == positions[-1]
        assert ledger.next_position(positions[-1]) == ledger.end_position
        assert ledger.count_entries(positions[3], positions[20]) == 17
        assert ledger.message_count(positions[3], positions[20]) == 34
        assert ledger.index_before(positions[20]) == 40
        assert ledger.entry_after(positions[3], 17) == positions[20]
        assert ledger.entry_message_count(positions[3]) == 2
        assert ledger.entry_message_count(ledger.end_position) is None

    def test_callbacks_come_once_in_order(self, engine: Engine) -> None:
        """Each commit of several topics calls its callbacks once, in order, without an error."""
        with engine.open() as store:
            ledgers = [store.open_topic(TOPIC), store.open_topic(OTHER)]
            results: list[tuple[int, BaseException | None]] = []
            all_called = threading.Event()
            count = 20

            def noted(number: int) -> Callable[[BaseException | None], None]:
                def done(error: BaseException | None) -> None:
                    results.append((number, error))
                    if len(results) == count:
                        all_called.set()

                return done

            for number in range(count):
                commit = ledgers[number % 2].append(b"x").commit
                commit.add_done_callback(noted(number))
            assert all_called.wait(10)
            assert sorted(results) == [(number, None) for number in range(count)]
            evens = [number for number, _ in results if number % 2 == 0]
            assert evens == sorted(evens)

    def test_bad_entries_are_refused(self, ledger: ManagedLedger) -> None:
        """Each bad entry raises its error, nothing is stored, and no index is used."""
        filled(ledger, 1)
        with pytest.raises(AlreadyStampedError):
            ledger.append(b"\x0e\x02\x00\x00\x00\x00")
        with pytest.raises(ChecksumError):
            ledger.append(b"\x0e\x01\x00\x00\x00\x00hello")
        with pytest.raises(EntryTooLargeError):
            ledger.append(bytes(SMALL.max_entry_size_bytes + 1))
        with pytest.raises(InvalidEntryError):
            ledger.append(b"x", message_count=2**20 + 1)
        with pytest.raises(InvalidEntryError):
            ledger.append("text")  # type: ignore[arg-type]
        with pytest.raises(InvalidEntryError):
            ledger.append(b"x", kind=7)  # type: ignore[arg-type]
        ledger.append(b"good").commit.wait(10)
        assert [entry.index for entry in entries_of(ledger)] == [0, 1]

    def test_topics_by_name(self, engine: Engine) -> None:
        """A topic is created when it is opened; a name that is not valid raises a typed error."""
        with engine.open() as store:
            with pytest.raises(TopicNotFoundError):
                store.open_topic(TOPIC, create=False)
            assert store.topic_names() == []
            assert store.open_topic(TOPIC) is store.open_topic(TOPIC, create=False)
            for name in ("", "x" * 5000):
                with pytest.raises(ValueError, match="bytes"):
                    store.open_topic(name)
            for name in ("cursors", "compacted/1/1"):
                with pytest.raises(ReservedTopicError):
                    store.open_topic(name)
            assert store.topic_names() == [TOPIC]

    def test_control_entries_and_tags(self, ledger: ManagedLedger) -> None:
        """The broker's control entries take an index and keep their content."""
        ledger.append_control(CONTROL_CHECKPOINT, "nightly").commit.wait(10)
        (entry,) = entries_of(ledger)
        assert (entry.kind, entry.index, bytes(entry.body)) == (EntryKind.CONTROL, 0, b"")
        stamp = peek(entry.prefix)
        assert stamp is not None
        assert stamp.control_type == CONTROL_CHECKPOINT

    def test_a_closed_store_says_so(self, engine: Engine) -> None:
        """Every method of store and ledger raises StoreClosedError; closing again does nothing."""
        store = engine.open()
        ledger = store.open_topic(TOPIC)
        filled(ledger, 1)
        store.close()
        for call in (
            lambda: store.open_topic(TOPIC),
            lambda: store.delete_topic(TOPIC),
            store.checkpoint,
            store.probe,
            lambda: ledger.append(b"x"),
            lambda: ledger.read(EARLIEST),
            ledger.roll,
            lambda: ledger.begin_epoch(9),
            lambda: ledger.trim(LATEST),
        ):
            with pytest.raises(StoreClosedError):
                call()
        store.close()

    def test_readers_beside_a_writer(self, ledger: ManagedLedger) -> None:
        """A thread that reads during appends sees complete entries from the log's beginning."""
        stamped(ledger)
        problems: list[BaseException] = []
        stop = threading.Event()

        def read() -> None:
            try:
                while not stop.is_set():
                    seen = entries_of(ledger, max_entries=50)
                    assert [e.index for e in seen] == list(range(len(seen)))
            except BaseException as error:  # noqa: BLE001 - the test checks it
                problems.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        try:
            for _ in range(300):
                appended = ledger.append(b"x" * 30)
            appended.commit.wait(10)
        finally:
            stop.set()
            reader.join()
        assert problems == []
        assert len(entries_of(ledger)) == 300

    def test_appends_of_many_threads(self, ledger: ManagedLedger) -> None:
        """The entries of each thread are in the order of its appends, and none is missing."""

        def append(name: bytes) -> None:
            with suppress(StoreClosedError):
                for number in range(50):
                    ledger.append(b"%s %d" % (name, number)).commit.wait(10)

        threads = [threading.Thread(target=append, args=(bytes([65 + n]),)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        bodies = bodies_of(ledger)
        for n in range(4):
            name = bytes([65 + n])
            mine = [body for body in bodies if body.startswith(name)]
            assert mine == [b"%s %d" % (name, number) for number in range(50)]
        check_chain(ledger)

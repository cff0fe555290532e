"""Compaction against a model: a dictionary of the latest message per key."""

from __future__ import annotations

import struct
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pulsemark.compaction import compaction
from pulsemark.compaction import view as compacted_view
from pulsemark.compaction.compacted_log import CompactedLog
from pulsemark.compaction.compaction import compact
from pulsemark.compaction.current_view import (
    claim_of,
    compacted_log,
    current_view,
    store_of,
    view_name,
)
from pulsemark.compaction.keys import INCOMPLETE_CHUNKS_AGE_MS
from pulsemark.compaction.view import Key
from pulsemark.ledger import (
    EARLIEST,
    Entry,
    EntryKind,
    LedgerError,
    LocalStore,
    ManagedLedger,
    Position,
    StoreClosedError,
    StoreOptions,
    TopicLog,
    UnsupportedVersionError,
)
from pulsemark.ledger.errors import CompactionFailedError, CompactionRunningError
from pulsemark.ledger.local.segment.segment import as_segment
from pulsemark.ledger.store import VIEW_PROPERTY_KIND
from pulsemark.metadata import (
    BrokerEntryMetadata,
    BrokerTimeStamper,
    IndexStamper,
    MessageMetadata,
    StamperChain,
    pack_stamp,
    payload_of,
    read_message_metadata,
    verify_checksum,
)
from pulsemark.metadata.compression import CompressionUnavailableError
from pulsemark.proto.broker_entry_pb2 import CONTROL_CHECKPOINT, SOURCE_KAFKA_MAGIC_1
from pulsemark.proto.pulsar_api_pb2 import CompressionType, EncryptionKeys, SingleMessageMetadata
from pulsemark.testing import SettableClock
from pulsemark.testing.raw_messages import BatchMember, batched_message, seal, unbatched_message
from tests.support.simulated_store import NEVER_MS, SimulatedStore

TOPIC = "persistent://public/default/prices"
STAMPS = StamperChain([BrokerTimeStamper(), IndexStamper()])
NO_STAMPS = StamperChain()
COMPRESS = {
    0: bytes,
    1: lambda data: pa.compress(data, codec="lz4_raw", asbytes=True),
    2: zlib.compress,
    3: lambda data: pa.compress(data, codec="zstd", asbytes=True),
    4: lambda data: pa.compress(data, codec="snappy", asbytes=True),
}
ARROW_NAMES = {1: "lz4_raw", 3: "zstd", 4: "snappy"}
WHOLE = "whole"


# What is appended


@dataclass
class Message:
    """One message of an unbatched entry or of a batch."""

    key: str | None
    value: bytes | None
    """None: the null value; empty: deletes as well."""


@dataclass
class Single:
    """An unbatched message."""

    message: Message
    compression: Any = CompressionType.NONE
    says_size: bool = True
    encrypted: bool = False
    flagged: bool = False
    """The prefix says tombstone."""
    stamped: bool = True

    def append(self, topic: ManagedLedger, clock_ms: int) -> None:
        """Append as a producer and a stamper would."""
        value = self.message.value
        fields: dict[str, Any] = {} if value is not None else {"null_value": True}
        payload = value or b""
        if self.compression:
            payload = COMPRESS[self.compression](payload)
            fields["compression"] = self.compression
        if self.says_size or self.compression:
            fields["uncompressed_size"] = len(value or b"")
        if self.encrypted:
            payload = b"secret" + payload
            fields["encryption_keys"] = [EncryptionKeys(key="k", value=b"v")]
        metadata = MessageMetadata(
            producer_name="p",
            sequence_id=0,
            publish_time=clock_ms,
            partition_key=self.message.key,
            **fields,
        )
        topic.append(seal(metadata.SerializeToString(), payload), base=_tombstone(self.flagged))

    def messages(self) -> list[tuple[str | None, bool]]:
        """Key, and whether it deletes, of each message."""
        return [(self.message.key, self.flagged or not self.message.value)]


@dataclass
class Several:
    """A batch."""

    members: list[Message]
    compression: Any = CompressionType.NONE
    encrypted: bool = False
    flagged: bool = False
    stamped: bool = True

    def append(self, topic: ManagedLedger, clock_ms: int) -> None:
        """Append as a producer and a stamper would."""
        plain = batched_message(
            [BatchMember(payload=m.value, key=m.key) for m in self.members],
            publish_time_ms=clock_ms,
        )
        metadata, payload = read_message_metadata(plain), bytes(payload_of(plain))
        metadata.uncompressed_size = len(payload)
        if self.compression:
            metadata.compression = self.compression
            payload = COMPRESS[self.compression](payload)
        if self.encrypted:
            metadata.encryption_keys.add(key="k", value=b"v")
            payload = b"secret" + payload
        topic.append(
            seal(metadata.SerializeToString(), payload),
            message_count=len(self.members),
            base=_tombstone(self.flagged),
        )

    def messages(self) -> list[tuple[str | None, bool]] | str:
        """Key, and whether it deletes, of each message; WHOLE where they are not known."""
        if self.encrypted:
            return WHOLE
        return [(m.key, self.flagged or not m.value) for m in self.members]


@dataclass
class Other:
    """What is not a message of a producer's, or does not open."""

    kind: str
    stamped: bool = True

    def append(self, topic: ManagedLedger, clock_ms: int) -> None:
        """Append it."""
        if self.kind == "control":
            topic.append_control(CONTROL_CHECKPOINT, "c")
        elif self.kind == "marker":
            topic.append(unbatched_message(b"m", publish_time_ms=1, key="a", marker_type=10))
        elif self.kind == "no message":
            topic.append(b"\0\0\0\xff what is this?")
        elif self.kind == "cut batch":
            metadata = MessageMetadata(
                producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=2
            )
            topic.append(seal(metadata.SerializeToString(), b"\0\0\0\2\x18\x05x"), message_count=2)
        else:
            assert self.kind == "wrong size"
            body = batched_message([BatchMember(payload=b"x", key="a")], publish_time_ms=1)
            metadata = read_message_metadata(body)
            metadata.compression, metadata.uncompressed_size = CompressionType.ZLIB, 1 << 30
            topic.append(seal(metadata.SerializeToString(), zlib.compress(payload_of(body))))

    def messages(self) -> list[tuple[str | None, bool]] | str:
        """Nothing, or WHOLE."""
        return [] if self.kind in {"control", "marker"} else WHOLE


def _tombstone(flagged: bool) -> BrokerEntryMetadata | None:
    return BrokerEntryMetadata(tombstone=True) if flagged else None


keys = st.sampled_from([None, "a", "b", "c", "d", "", "a much longer key than the others", "ü"])
values = st.sampled_from([b"1", b"22", b"x" * 150, b"", None])
messages = st.builds(Message, keys, values)
stamped = st.booleans()
compressions = st.sampled_from(sorted(COMPRESS))
rarely = st.sampled_from([False] * 7 + [True])
appends = st.one_of(
    # Only the header's size shows that an encrypted payload is empty.
    st.builds(Single, messages, compressions, st.booleans(), st.just(False), rarely, stamped),
    st.builds(Single, messages, compressions, st.just(True), st.just(True), rarely, stamped),
    st.builds(
        Several, st.lists(messages, min_size=1, max_size=6), compressions, rarely, rarely, stamped
    ),
    st.builds(
        Other,
        st.sampled_from(["control", "marker", "no message", "cut batch", "wrong size"]),
        stamped,
    ),
)
steps = st.lists(
    st.one_of(
        appends,
        appends,
        appends,
        appends,
        appends,
        st.tuples(st.just("compact"), st.floats(0, 1) | st.none()),
        st.just(("trim", None)),
        st.just(("reopen", None)),
    ),
    max_size=40,
)
store_options = st.sampled_from(
    [
        StoreOptions(),
        StoreOptions(ledger_entries=5),
        StoreOptions(segment_size_bytes=1500),
        StoreOptions(max_entry_size_bytes=1500, ledger_entries=7),
    ]
)


# The model


@dataclass
class Model:
    """Everything that was ever appended, and what compaction must make of it."""

    stored: list[Entry] = field(default_factory=list)
    appended: list[Single | Several | Other] = field(default_factory=list)
    horizon: Position | None = None

    def kept(self) -> dict[Position, set[int] | str]:
        """Places that are to be kept, of each entry up to the horizon that stays."""
        latest: dict[str, tuple[Position, int]] = {}
        kept: dict[Position, set[int] | str] = {}
        for entry, what in zip(self.stored, self.appended, strict=True):
            if self.horizon is None or entry.position > self.horizon:
                break
            said = what.messages()
            if isinstance(said, str):
                kept[entry.position] = WHOLE
                continue
            for place, (key, deletes) in enumerate(said):
                if key is not None and deletes:
                    latest.pop(key, None)
                elif key is not None:
                    latest[key] = entry.position, place
        for position, place in latest.values():
            places = kept.setdefault(position, set())
            assert isinstance(places, set)
            places.add(place)
        return dict(sorted(kept.items()))

    def survivors(self) -> list[Entry]:
        """The entries that stay, as they were, and all after the horizon."""
        kept = self.kept()
        return [
            entry
            for entry in self.stored
            if self.horizon is None or entry.position > self.horizon or entry.position in kept
        ]


@dataclass(slots=True)
class Opened:
    """A batch's member, read by a decoder of the test's own."""

    key: str | None
    payload: bytes
    removed: bool


def opened(body: memoryview) -> list[Opened]:
    """Take a batch apart."""
    metadata = read_message_metadata(body)
    payload = bytes(payload_of(body))
    if metadata.compression == 2:
        payload = zlib.decompress(payload)
    elif metadata.compression:
        payload = pa.decompress(
            payload,
            decompressed_size=metadata.uncompressed_size,
            codec=ARROW_NAMES[metadata.compression],
            asbytes=True,
        )
    assert len(payload) == metadata.uncompressed_size
    members = []
    at = 0
    for _ in range(metadata.num_messages_in_batch):
        (size,) = struct.unpack_from(">I", payload, at)
        single = SingleMessageMetadata.FromString(payload[at + 4 : at + 4 + size])
        at += 4 + size + single.payload_size
        key = single.partition_key if single.HasField("partition_key") else None
        members.append(Opened(key, payload[at - single.payload_size : at], single.compacted_out))
    assert at == len(payload)
    return members


def check_entry(entry: Entry, original: Entry, kept: set[int] | str) -> None:
    """An entry of the view is the original, or the original with holes."""
    assert entry.position == original.position
    assert (entry.index, entry.message_count) == (original.index, original.message_count)
    assert (entry.append_time_ms, entry.kind) == (original.append_time_ms, EntryKind.DATA)
    assert entry.prefix == original.prefix
    if entry.body == original.body:
        if kept != WHOLE and read_message_metadata(entry.body).HasField("num_messages_in_batch"):
            assert len(kept) == len(opened(entry.body))
        return
    assert verify_checksum(entry.body)
    before, after = read_message_metadata(original.body), read_message_metadata(entry.body)
    before.uncompressed_size = after.uncompressed_size
    assert before == after
    for place, (then, now) in enumerate(
        zip(opened(original.body), opened(entry.body), strict=True)
    ):
        assert now == (then if place in kept else Opened(None, b"", True))


def read_all(log: TopicLog | CompactedLog, max_entries: int = 7) -> list[Entry]:
    """Read from the beginning to the end, a few at a time."""
    found: list[Entry] = []
    position = EARLIEST
    while entries := log.read(position, max_entries=max_entries, max_bytes=2000):
        assert len(entries) <= max_entries
        found += entries
        position = Position(entries[-1].position.ledger_id, entries[-1].position.entry_id + 1)
    return found


def check_log(log: CompactedLog, model: Model) -> None:
    """The compacted log holds what the model says, wherever it is read from."""
    kept = model.kept()
    expected = model.survivors()
    found = read_all(log)
    assert [entry.position for entry in found] == [entry.position for entry in expected]
    for entry, original in zip(found, expected, strict=True):
        if log.horizon is not None and entry.position <= log.horizon:
            check_entry(entry, original, kept[entry.position])
        else:
            assert entry.stored == original.stored
    check_moves(log, model, expected)


def check_moves(log: CompactedLog, model: Model, expected: list[Entry]) -> None:
    """Every question about places is answered as by looking through the list."""
    positions = [entry.position for entry in expected]
    end = log.end_position
    assert log.first_position == (positions[0] if positions else None)
    assert log.last_position == (positions[-1] if positions else None)
    assert log.next_index == sum(entry.message_count for entry in model.stored)
    for position in [EARLIEST, *(entry.position for entry in model.stored), end]:
        after = [p for p in positions if p > position]
        assert log.next_position(position) == (after[0] if after else end)
        before = [p for p in positions if p < position]
        if before:
            assert log.previous_position(position) == before[-1]
        at_or_after = [entry for entry in expected if entry.position >= position]
        first = at_or_after[0].first_index if at_or_after else log.next_index
        assert log.index_before(position) == first
        assert log.count_entries(position, end) == len(at_or_after)
        assert log.message_count(position, end) == sum(e.message_count for e in at_or_after)
        assert log.count_entries(EARLIEST, position) == len(before)
        for count in (0, 1, 2, len(at_or_after) - 1):
            far = at_or_after[count].position if 0 <= count < len(at_or_after) else None
            assert count < 0 or log.entry_after(position, count) == far
        here = [entry.message_count for entry in expected if entry.position == position]
        assert log.entry_message_count(position) == (here[0] if here else None)
        read = log.read(position, max_entries=1)
        assert [entry.position for entry in read] == [e.position for e in at_or_after[:1]]


def small_parts() -> ExitStack:
    """Let few entries fill blocks, lots and reads, so that their borders are met."""
    stack = ExitStack()
    stack.enter_context(patch.object(compacted_view, "BLOCK_ROWS", 3))
    stack.enter_context(patch.object(compacted_view, "LOT_BYTES", 500))
    stack.enter_context(patch.object(compaction, "READ_ENTRIES", 4))
    return stack


@settings(max_examples=40)
@given(steps=steps, options=store_options)
# A batch that stays as it is: none of its messages has gone.
@example(
    steps=[Several([Message("a", b"1"), Message("b", b"2")]), ("compact", None)],
    options=StoreOptions(),
)
def test_model(steps, options):
    """Whatever is appended, compacted, trimmed and reopened: the view is what the model says."""
    model = Model()
    clock = SettableClock(1_000)
    with tempfile.TemporaryDirectory() as folder, small_parts() as parts:
        store = LocalStore.open(Path(folder), clock=clock, options=options)
        parts.callback(lambda: store.close())  # noqa: PLW0108 - the store of then, not of now
        topic = store.open_topic(TOPIC)
        for step in steps:
            if not isinstance(step, tuple):
                topic.stampers = STAMPS if step.stamped else NO_STAMPS
                clock.advance(by_ms=7)
                step.append(topic, clock.now_ms())
                store.committer.flush()
                model.appended.append(step)
                last = topic.last_position
                assert last is not None
                model.stored += topic.read(last)
                continue
            command, argument = step
            if command == "compact":
                compact_both(topic, model, argument)
                check_log(compacted_log(topic), model)
            elif command == "trim":
                # As far as everything has been compacted, the log can do without it.
                claim = claim_of(topic)
                if claim is not None:
                    topic.truncate_head(claim)
            else:
                store.close()
                store = LocalStore.open(Path(folder), clock=clock, options=options)
                topic = store.open_topic(TOPIC)
        check_log(compacted_log(topic), model)


def compact_both(topic: ManagedLedger, model: Model, part: float | None) -> None:
    """Compact the topic, and say so to the model."""
    until = None
    if part is not None and model.stored:
        until = model.stored[min(int(part * len(model.stored)), len(model.stored) - 1)].position
    last = model.stored[-1].position if model.stored else None
    horizon = until or last
    report = compact(topic, until=until)
    before = model.horizon
    if horizon is not None and (before is None or horizon > before):
        first = topic.first_position
        assert report.changed is (first is not None and first <= horizon)
        model.horizon = horizon
        assert report.entries_kept == len(model.kept())
    else:
        assert not report.changed
    assert report.horizon == model.horizon
    assert store_of(topic).topic_names() == [TOPIC]
    views = [name for name in topic.store.catalog.topics() if name.startswith("compacted/")]
    assert len(views) == (0 if model.horizon is None else 1)


# What the model leaves out


@pytest.fixture
def topic(open_store) -> Iterator[ManagedLedger]:
    """A topic with stamps."""
    ledger = open_store().open_topic(TOPIC)
    ledger.stampers = STAMPS
    with small_parts():
        yield ledger


def put(topic: ManagedLedger, key: str | None, value: bytes | None, **fields: Any) -> Position:
    """Append an unbatched message, durably."""
    body = unbatched_message(value, publish_time_ms=1, key=key, **fields)
    appended = topic.append(body)
    appended.commit.wait()
    return appended.position


def positions(log: TopicLog | CompactedLog) -> list[Position]:
    """Of all entries."""
    return [entry.position for entry in read_all(log)]


def test_empty_topic(topic):
    """A topic without entries has nothing to compact, and leaves no view."""
    report = compact(topic)
    assert (report.changed, report.horizon, report.generation) == (False, None, 0)
    assert set(topic.store.catalog.topics()) == {"cursors", TOPIC}
    assert positions(compacted_log(topic)) == []


def test_nothing_left(topic):
    """A view can be empty: every key was deleted, or nothing had one."""
    put(topic, "a", b"1")
    put(topic, None, b"2")
    last = put(topic, "a", None)
    report = compact(topic)
    assert (report.keys, report.entries_kept, report.horizon) == (0, 0, last)
    assert (report.tombstones, report.unkeyed, report.messages_read) == (1, 1, 3)
    log = compacted_log(topic)
    assert (log.first_position, log.last_position) == (None, None)
    assert (log.first_index, log.next_index) == (3, 3)
    after = put(topic, "a", b"3")
    assert positions(log) == [after]


def test_twice(topic):
    """Without new entries nothing is written; with them the old view is read, not the log."""
    for number in range(50):
        put(topic, f"k{number % 5}", b"v")
    first = compact(topic)
    again = compact(topic)
    assert (again.changed, again.generation, again.horizon) == (False, 1, first.horizon)
    assert again.entries_kept == 5
    put(topic, "k0", b"w")
    second = compact(topic)
    assert (second.generation, second.entries_read, second.entries_kept) == (2, 6, 5)
    assert [bytes(payload_of(e.body)) for e in read_all(compacted_log(topic))] == [b"v"] * 4 + [
        b"w"
    ]


def test_never_back(topic):
    """A horizon before the view's leaves the view as it is."""
    early = put(topic, "a", b"1")
    late = put(topic, "a", b"2")
    compact(topic)
    report = compact(topic, until=early)
    assert (report.changed, report.horizon) == (False, late)
    assert positions(compacted_log(topic)) == [late]


def test_one_read_crosses_the_horizon(topic):
    """Where there is room, one read gives the view's last entries and the log's first."""
    first = put(topic, "a", b"1")
    compact(topic)
    second = put(topic, "a", b"2")
    log = compacted_log(topic)
    assert [entry.position for entry in log.read(EARLIEST)] == [first, second]
    assert [entry.position for entry in log.read(EARLIEST, max_bytes=1)] == [first]
    assert [entry.position for entry in log.read(second)] == [second]


# Keys and tombstones


def test_the_null_of_the_python_client(topic):
    """A null without uncompressed size, batching and compression deletes: Pulsar 4.0.8 keeps it."""
    put(topic, "a", b"1")
    metadata = MessageMetadata(
        producer_name="p", sequence_id=1, publish_time=1, partition_key="a", null_value=True
    )
    topic.append(seal(metadata.SerializeToString(), b"")).commit.wait()
    assert compact(topic).entries_kept == 0


def test_long_keys(topic):
    """Keys that are kept as hashes are distinguished, and found again."""
    long = "x" * 300
    put(topic, long + "1", b"1")
    kept = put(topic, long + "2", b"2")
    last = put(topic, long + "1", b"3")
    compact(topic)
    assert positions(compacted_log(topic)) == [kept, last]


def test_entries_without_messages(topic):
    """An entry that counts no message takes no index, and keeps its place all the same."""
    put(topic, "a", b"1")
    body = unbatched_message(b"2", publish_time_ms=1, key="b")
    appended = topic.append(body, message_count=0)
    appended.commit.wait()
    compact(topic)
    log = compacted_log(topic)
    assert [(e.index, e.message_count) for e in read_all(log)] == [(0, 1), (0, 0)]
    assert log.message_count(EARLIEST, log.end_position) == 1


@pytest.mark.parametrize("body", [
    unbatched_message(b"looks like Pulsar's", publish_time_ms=1, key="a"),
    bytes(8) + b"\0\0\0\x05other",
])  # fmt: skip
def test_entries_in_another_format_are_kept_whole(topic, body):
    """Their keys are not known here, so none of them is taken for an older message of a key."""
    topic.stampers = StamperChain()
    foreign = BrokerEntryMetadata(source_format=SOURCE_KAFKA_MAGIC_1)
    kept = [topic.append(body, base=foreign).position for _ in range(2)]
    kept.append(put(topic, "a", b"the last"))
    assert compact(topic).unreadable == 2
    assert positions(compacted_log(topic)) == kept


# Chunks


def put_chunk(
    topic: ManagedLedger, number: int, of: int, *, uuid: str = "p-1", key: str | None = "a"
) -> Position:
    """Append one chunk of a message."""
    return put(topic, key, b"part", uuid=uuid, chunk_id=number, num_chunks_from_msg=of)


def test_chunks_stay_together(topic):
    """All chunks of the latest message stay, none of an older one."""
    for number in range(3):
        put_chunk(topic, number, 3, uuid="p-0")
    kept = [put_chunk(topic, number, 3) for number in range(3)]
    put_chunk(topic, 0, 2, uuid="p-2", key=None)
    put_chunk(topic, 1, 2, uuid="p-2", key=None)
    report = compact(topic)
    assert (report.keys, report.entries_kept, report.unkeyed) == (1, 3, 1)
    assert positions(compacted_log(topic)) == kept
    put(topic, "a", None)
    assert compact(topic).entries_kept == 0


def test_a_tombstone_in_chunks(topic):
    """A chunked message whose stamp says tombstone deletes its key as any other does."""
    put(topic, "a", b"1")
    put(topic, "b", b"2")
    for chunk in range(2):
        header = MessageMetadata(
            producer_name="p", sequence_id=1, publish_time=1, partition_key="a", uuid="u",
            chunk_id=chunk, num_chunks_from_msg=2,
        )  # fmt: skip
        body = seal(header.SerializeToString(), b"part")
        topic.append(body, base=_tombstone(True)).commit.wait()
    assert compact(topic).entries_kept == 1


def test_chunks_across_the_horizon(topic, clock):
    """Chunks of an incomplete message wait in the view for the rest, but only for a time."""
    old = put(topic, "a", b"old")
    first = put_chunk(topic, 0, 2)
    compact(topic)
    assert positions(compacted_log(topic)) == [old, first]
    topic.truncate_head(topic.end_position)
    second = put_chunk(topic, 1, 2)
    compact(topic)
    assert positions(compacted_log(topic)) == [first, second]
    late = put_chunk(topic, 0, 2, uuid="p-9")
    compact(topic)
    assert positions(compacted_log(topic)) == [first, second, late]
    clock.advance(by_ms=INCOMPLETE_CHUNKS_AGE_MS + 1)
    other = put(topic, "b", b"1")
    compact(topic)
    assert positions(compacted_log(topic)) == [first, second, other]


def test_chunks_that_no_consumer_would_take(topic):
    """A chunk sent twice counts once; one that is missing makes its message none."""
    first = put_chunk(topic, 0, 2)
    put_chunk(topic, 0, 2, uuid="p-2")
    put_chunk(topic, 2, 3, uuid="p-2")
    put_chunk(topic, 1, 3, uuid="p-3")
    second = put_chunk(topic, 1, 2)
    put_chunk(topic, 1, 2)
    compact(topic)
    assert positions(compacted_log(topic)) == [first, second]
    again = [put_chunk(topic, 0, 2, uuid="p-4"), put_chunk(topic, 0, 2, uuid="p-4")]
    last = put_chunk(topic, 1, 2, uuid="p-4")
    compact(topic)
    assert positions(compacted_log(topic)) == [again[1], last]


# What goes wrong


def views(topic: ManagedLedger) -> list[str]:
    """The names of all views in the store."""
    return [name for name in topic.store.catalog.topics() if name.startswith("compacted/")]


def test_one_at_a_time(topic):
    """While a compaction runs another one of the topic is refused, and the log is held."""
    put(topic, "a", b"1")
    seen = []

    def meanwhile():
        seen.append(claim_of(topic))
        with pytest.raises(CompactionRunningError) as caught:
            compact(topic)
        assert caught.value.topic == TOPIC

    assert claim_of(topic) is None
    report = compact(topic, check=meanwhile)
    assert seen == [EARLIEST, EARLIEST]
    assert claim_of(topic) == report.horizon


def test_stopped(topic):
    """What `check` raises ends the compaction; the old view counts on, and nothing lies about."""
    for number in range(20):
        put(topic, f"k{number}", b"v")
    compact(topic)
    before = positions(compacted_log(topic))
    put(topic, "k3", None)
    calls = []

    def stop():
        calls.append(1)
        if len(calls) == stop_at:
            raise KeyboardInterrupt

    stop_at = 1
    report = None
    while report is None:
        calls.clear()
        try:
            report = compact(topic, check=stop)
        except KeyboardInterrupt:
            assert len(views(topic)) == 1
            assert positions(compacted_log(topic))[: len(before)] == before
            stop_at += 1
    assert stop_at > 5
    assert report.entries_kept == 19


def test_entries_that_vanish(topic):
    """Where entries go between the passes, nothing comes of it; the old view stays."""
    put(topic, "a", b"1")
    calls = []

    def trim():
        calls.append(1)
        if len(calls) == 2:
            topic.truncate_head(topic.end_position)

    with pytest.raises(CompactionFailedError, match="is gone") as caught:
        compact(topic, check=trim)
    assert caught.value.topic == TOPIC
    assert views(topic) == []


def test_damaged_entry(topic):
    """An entry that cannot be read is named; an older message of its key counts as the latest."""
    first = put(topic, "a", b"1")
    damaged = put(topic, "a", b"2")
    last = put(topic, "b", b"3")
    topic.store.checkpoint()
    damage(topic, damaged)
    report = compact(topic)
    assert report.damaged == (damaged,)
    assert positions(compacted_log(topic)) == [first, last]


def damage(topic: ManagedLedger, position: Position) -> None:
    """Flip a bit in the last byte of an entry, on disk."""
    segment = next(s for s in topic.segments() if s.ledger_id == position.ledger_id)
    at = segment.row(position.entry_id - segment.first_entry_id).end_offset - 1
    content = bytearray(as_segment(segment).path.read_bytes())
    content[at] ^= 1
    as_segment(segment).path.write_bytes(content)


def test_missing_library(topic, monkeypatch):
    """Without the library for a batch's compression nothing is made of the topic."""
    Several([Message("a", b"1")], compression=1).append(topic, 1)
    topic.store.committer.flush()
    monkeypatch.setitem(sys.modules, "cramjam", None)
    with pytest.raises(CompressionUnavailableError):
        compact(topic)
    assert views(topic) == []


@pytest.mark.parametrize("limit_bytes", [300, 337, 374, 411, 448, 485])
def test_records_larger_than_an_entry_may_be(open_store, limit_bytes):
    """Entries, index blocks and footer that the store does not take whole are stored in pieces."""
    topic = open_store(max_entry_size_bytes=limit_bytes).open_topic(TOPIC)
    topic.stampers = STAMPS
    # Entries are as large as the store takes them, the stamp included.
    around = len(unbatched_message(b"", publish_time_ms=1, key="a")) + len(
        pack_stamp(topic.store.clock.now_ms(), 0)
    )
    stored = []
    with patch.object(compacted_view, "BLOCK_ROWS", 8):
        for number in range(20):
            key = f"{number:c}" if number else "a"
            stored += topic.read(put(topic, key, b"x" * (limit_bytes - around)))
        assert {len(entry.stored) for entry in stored} == {limit_bytes}
        compact(topic)
        log = compacted_log(topic)
        assert [e.stored for e in read_all(log)] == [e.stored for e in stored]
        for number in range(0, 20, 5):
            (entry,) = log.read(stored[number].position, max_entries=1)
            assert entry.stored == stored[number].stored
        view = log.view
        assert view is not None
        found = view.find(Key.POSITION, EARLIEST, by_records=True)
        assert found is not None
        assert found.position == stored[0].position


# Which view counts


def test_the_log_is_cut(topic, open_store):
    """Cleaning the log never trims the view, nor does a restart."""
    kept = put(topic, "a", b"1")
    last = put(topic, "b", b"2")
    compact(topic)
    topic.truncate_head(topic.end_position)
    assert topic.first_position is None
    assert positions(compacted_log(topic)) == [kept, last]
    topic.store.close()
    topic = open_store().open_topic(TOPIC)
    log = compacted_log(topic)
    assert positions(log) == [kept, last]
    assert (log.first_index, log.next_index) == (0, 2)
    after = put(topic, "a", b"3")
    assert positions(log) == [kept, last, after]
    compact(topic)
    assert positions(log) == [last, after]


def test_the_tail_is_cut(topic):
    """If a new leader cuts the log before the view's horizon, the log says what is there."""
    first = put(topic, "a", b"1")
    put(topic, "a", b"2")
    compact(topic)
    log = compacted_log(topic)
    topic.truncate_tail(1, epoch=1)
    assert log.view is not None
    assert log.view.summary.entry_count == 0
    claim = claim_of(topic)
    assert claim is not None
    assert claim < first  # until it is compacted again
    assert [e.position for e in read_all(log) if e.kind is EntryKind.DATA] == [first]
    other = put(topic, "b", b"3")
    report = compact(topic)
    assert positions(log) == [first, other]
    assert (report.generation, len(views(topic))) == (2, 1)


def test_replaced_while_it_is_read(topic):
    """A reader whose view is removed goes on in the one that took its place."""
    put(topic, "a", b"1")
    kept = put(topic, "b", b"1")
    compact(topic)
    old = current_view(topic)
    assert old is not None
    last = put(topic, "a", b"2")
    compact(topic)
    old._cache.clear()
    with pytest.raises(FileNotFoundError):
        old.find(Key.POSITION, EARLIEST)
    asked = iter([old, current_view(topic), current_view(topic)])
    assert [e.position for e in CompactedLog(topic, lambda: next(asked)).read(EARLIEST)] == [
        kept,
        last,
    ]
    with pytest.raises(FileNotFoundError):
        CompactedLog(topic, lambda: old).read(EARLIEST)


def test_deleted_topic_takes_its_views_along(topic, open_store):
    """Nothing is left of the view of a deleted topic, and none for one that gets its name."""
    put(topic, "a", b"1")
    compact(topic)
    store = topic.store
    store.delete_topic(TOPIC)
    again = store.open_topic(TOPIC)
    assert current_view(again) is None
    assert views(again) == []
    assert store.catalog.items(VIEW_PROPERTY_KIND) == []


def test_views_of_a_deleted_topic_go_at_the_next_opening(topic, open_store):
    """Where the process ended between deleting a topic and its views, the views go later."""
    put(topic, "a", b"1")
    compact(topic)
    store = topic.store
    store._delete_belongings = lambda topic_id: None
    store.delete_topic(TOPIC)
    store.close()
    store = open_store()
    assert set(store.catalog.topics()) == {"cursors"}
    assert store.catalog.items(VIEW_PROPERTY_KIND) == []


def test_view_outlives_the_loss_of_its_log(topic, open_store):
    """Where a topic's segments and the catalog are lost, the view is kept: it is all there is."""
    put(topic, "a", b"1")
    compact(topic)
    store = topic.store
    (segment,) = topic.segments()
    store.close()
    segment.path.unlink()
    (store.folder / "catalog.sqlite").unlink()
    for _ in range(2):
        store = open_store()
        assert view_name(topic.topic_id, 1) in store.catalog.topics()
        store.close()


def test_lost_property(topic, open_store):
    """Where the catalog's property is unreadable, the newest finished view counts."""
    kept = put(topic, "a", b"1")
    compact(topic)
    topic.truncate_head(topic.end_position)
    key = str(topic.topic_id)
    value = topic.store.catalog.get(VIEW_PROPERTY_KIND, key)
    for lost in (b"", b"\1", value + b"x", value[:4] + b"\x09" + value[5:]):
        topic.store.catalog.put(VIEW_PROPERTY_KIND, key, lost)
        topic.store.open_view(view_name(topic.topic_id, 7)).append(b"unfinished").commit.wait()
        topic.store.close()
        topic = open_store().open_topic(TOPIC)
        assert positions(compacted_log(topic)) == [kept]


def test_newer_version(topic, open_store):
    """A view that a newer version wrote is not read, nor taken for damage."""
    put(topic, "a", b"1")
    compact(topic)
    key = str(topic.topic_id)
    value = topic.store.catalog.get(VIEW_PROPERTY_KIND, key)
    topic.store.catalog.put(VIEW_PROPERTY_KIND, key, b"\x02" + value[1:] + b"more")
    topic.store.close()
    topic = open_store().open_topic(TOPIC)
    with pytest.raises(UnsupportedVersionError) as caught:
        compact(topic)
    assert (caught.value.found, caught.value.supported) == (2, 1)


def test_interval_mode(memory_folder, monkeypatch):
    """Where commits do not wait for the disk, a power cut takes no view that counts."""
    options = StoreOptions(
        checkpoint_interval_ms=NEVER_MS, journal_size_bytes=NEVER_MS, sync_interval_ms=60_000
    )
    simulated = SimulatedStore(
        memory_folder / "data", survival="none", options=options, threaded=True
    )
    store = simulated.open()
    topic = store.open_topic(TOPIC)
    for number in range(3):
        put(topic, f"k{number}", bytes(600_000))
    put_property = store.catalog.put

    def put_and_cut_the_power(*values):
        put_property(*values)
        simulated.disk.power_off()

    monkeypatch.setattr(store.catalog, "put", put_and_cut_the_power)
    with suppress(OSError, LedgerError):
        compact(topic)
    simulated.power_off()
    view = current_view(simulated.open().open_topic(TOPIC))
    assert view is not None
    first = view.find(Key.POSITION, EARLIEST)
    assert first is not None
    assert len(view.read(first, 10, 1 << 30)) == 3
    simulated.close()


def test_a_closed_store_is_named(tmp_path):
    """StoreClosedError, as for every other use of the topic; nothing is changed."""
    with LocalStore.open(tmp_path) as store:
        topic = store.open_topic(TOPIC)
    with pytest.raises(StoreClosedError):
        compact(topic)

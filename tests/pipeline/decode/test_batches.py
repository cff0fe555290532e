"""Rows out of entries: the same for every choice of columns, and what was sent."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsemark.ledger import Entry, EntryKind, Position, TopicLog
from pulsemark.metadata import payload_of, read_message_metadata
from pulsemark.pipeline.columns import COLUMNS
from pulsemark.pipeline.decode import batches, payloads, protoscan
from pulsemark.pipeline.decode.batches import BatchForm, record_batches
from pulsemark.pipeline.decode.entries import EntryTable, table_of_entries
from pulsemark.pipeline.options import EntryLimits
from pulsemark.proto.pulsar_api_pb2 import CompressionType, MessageMetadata
from pulsemark.testing.raw_messages import BatchMember, batched_message, seal, unbatched_message

ALL = tuple(COLUMNS)


def rows_of(
    tools: Any,
    log: TopicLog,
    names: tuple[str, ...] = ALL,
    first_index: int = 0,
    end_index: int = 2**62,
) -> list[dict[str, Any]]:
    """All rows of a log, through the ledger's own reader."""
    assert log.first_position is not None
    table = table_of_entries(log.read(log.first_position, max_entries=10**6, max_bytes=1 << 30))
    form = BatchForm(
        log.name, tools.arrow_schema(names), first_index, end_index, EntryLimits(1 << 24)
    )
    return [
        row for batch in record_batches(table, form, fail) for row in tools.plain(batch.to_pylist())
    ]


def fail(table: EntryTable, row: int, reason: str) -> None:
    """No entry of these tests is bad."""
    pytest.fail(f"entry {table.position(row)}: {reason}")


@pytest.fixture(params=[1, 10**9], ids=["side by side", "one by one"])
def both_walks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are taken apart on either method, however few there are."""
    monkeypatch.setattr(payloads, "FEW_BATCHES", request.param)


@pytest.mark.usefixtures("both_walks")
def test_every_kind_of_entry_becomes_the_rows_that_were_sent(folder: Any, tools: Any) -> None:
    """All compressions, batches, nulls, chunks, cipher texts and old clients, all columns."""
    topic = folder.topic("a", partition=3)
    tools.fill(topic, folder.clock, rounds=5)
    assert rows_of(tools, topic.ledger) == topic.rows


@pytest.mark.parametrize("name", ALL)
def test_each_column_alone_has_the_same_rows(folder: Any, tools: Any, name: str) -> None:
    """Neither the number of rows nor any value depends on what else was asked for."""
    topic = folder.topic("a")
    tools.fill(topic, folder.clock)
    assert rows_of(tools, topic.ledger, (name,)) == tools.only(topic.rows, [name])


def test_an_index_range_cuts_inside_batches(folder: Any, tools: Any) -> None:
    """Every range [a, b) has exactly its messages, at each depth of reading."""
    topic = folder.topic("a")
    tools.fill(topic, folder.clock)
    last = topic.ledger.next_index
    for first in range(0, last, 5):
        for end in (first, first + 1, first + 4, last):
            truth = [row for row in topic.rows if first <= row["__index"] < end]
            for names in (("__index",), ("__index", "__publishTime"), ("__index", "value")):
                found = rows_of(tools, topic.ledger, names, first, end)
                assert found == tools.only(truth, names)


def test_batches_are_cut_by_rows_and_bytes(
    folder: Any, tools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However small the batches, the rows are the same and none is larger than it may be."""
    topic = folder.topic("a")
    tools.fill(topic, folder.clock)
    table = table_of_entries(topic.ledger.read(Position(0, 0), max_entries=10**6))
    for limit in (1, 3, 10):
        monkeypatch.setattr(batches, "BATCH_ROWS", limit)
        monkeypatch.setattr(batches, "BATCH_BYTES", limit * 100)
        for names in (("__index",), ("__publishTime",), ("value", "__messageProperties")):
            form = BatchForm(topic.name, tools.arrow_schema(names), 0, 2**62, EntryLimits(1 << 24))
            made = list(record_batches(table, form, fail))
            assert max(batch.num_rows for batch in made) <= limit
            found = [row for batch in made for row in tools.plain(batch.to_pylist())]
            assert found == tools.only(topic.rows, names)


def entry(entry_id: int, body: bytes, count: int = 1) -> Entry:
    """A stored entry without stamp; its index is as if all before it had one message."""
    index = entry_id + count - 1
    return Entry(Position(1, entry_id), EntryKind.DATA, count, index, 5, 0, memoryview(body))


def made_of(
    tools: Any, entries: list[Entry], names: tuple[str, ...] = ALL, **limits: int
) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of these entries, and what was reported of those that do not open."""
    reported: list[str] = []
    form = BatchForm("t", tools.arrow_schema(names), 0, 2**62, EntryLimits(**limits))
    made = record_batches(
        table_of_entries(entries), form, lambda _table, _row, reason: reported.append(reason)
    )
    return [row for batch in made for row in tools.plain(batch.to_pylist())], reported


@pytest.mark.parametrize(
    "names", [("__index",), ("__publishTime",), ("value",), ("value", "__messageProperties")]
)
def test_a_claimed_count_has_a_limit(tools: Any, names: tuple[str, ...]) -> None:
    """An entry that claims two billion messages is no rows at any depth; the next one is read."""
    body = unbatched_message(b"x", publish_time_ms=1)
    entries = [entry(0, body, 2**31 - 1), entry(2**31 - 1, body)]
    rows, reported = made_of(tools, entries, names)
    assert len(rows) == 1
    assert reported == ["it states 2147483647 messages; the limit is 262144"]
    assert made_of(tools, [entry(0, body, 8)], ("__index",), max_messages_per_entry=8) != ([], [])
    assert made_of(tools, [entry(0, body, 9)], ("__index",), max_messages_per_entry=8)[0] == []


HEADER = MessageMetadata(producer_name="p", sequence_id=1, publish_time=2)
BATCH_HEADER = MessageMetadata(
    producer_name="p", sequence_id=1, publish_time=2, num_messages_in_batch=1
)


def of_header(header: MessageMetadata, payload: bytes, more: bytes = b"") -> bytes:
    """Headers-and-payload with these metadata; `more` is put after them."""
    return seal(header.SerializePartialToString() + more, payload)


def compress_as(body: bytes, compression: Any, *, size_bytes: int) -> bytes:
    """A message compressed by this method, its header with another size."""
    codec = {1: "lz4_raw", 3: "zstd"}[compression]
    header = read_message_metadata(body)
    header.compression, header.uncompressed_size = compression, size_bytes
    return of_header(header, pa.compress(bytes(payload_of(body)), codec=codec, asbytes=True))


def of_single(single: bytes, payload: bytes = b"") -> bytes:
    """A batch of one message with these metadata."""
    return of_header(BATCH_HEADER, len(single).to_bytes(4, "big") + single + payload)


BAD = {
    "nothing": (b"", "cut off after 0 of 4"),
    "no header": (b"\xff" * 40, "do not fit into"),
    "no protobuf": (seal(b"\xff\xff\xff", b"x"), "not a MessageMetadata"),
    "no publish time": (
        of_header(MessageMetadata(producer_name="p", sequence_id=1), b"x"),
        "required fields are missing: publish_time",
    ),
    "a group": (of_header(HEADER, b"x", b"\xc3\x02\xc4\x02"), "does not have"),
    "metadata of 2 MiB": (
        of_header(MessageMetadata(producer_name="p" * (2 << 20)), b"x"),
        "the limit is",
    ),
    "two messages for one": (
        batched_message([b"a", b"b"], publish_time_ms=1),
        "states 2 messages, the broker 1",
    ),
    "no message in a batch": (of_header(BATCH_HEADER, b""), "do not fit into 0 bytes"),
    "a batch of noise": (of_header(BATCH_HEADER, b"\x00" * 9), "cannot be split"),
    "a batch that goes on": (of_single(b"\x18\x01", b"ab"), "cannot be split"),
    "a batch that is cut": (of_single(b"\x18\x05", b"ab"), "cannot be split"),
    "a size in the payload": (of_single(b"\x18", b"\x01abcdef"), "cannot be split"),
    "no payload size": (of_single(b"\x40\x05", b"abcdef"), "cannot be split"),
    "a negative payload size": (of_single(b"\x18" + b"\xff" * 9 + b"\x01"), "cannot be split"),
    "noise after the size": (of_single(b"\x18\x01\x00", b"a"), "one of its messages"),
    "a property without key": (of_single(b"\x18\x01\x0a\x02\x12\x00", b"a"), "one of its"),
    "an unknown compression": (
        of_header(HEADER, b"xxxx", b"\x40\x09\x48\x04"),
        "compression 9: unknown",
    ),
    "a wrong size": (
        compress_as(of_header(HEADER, b"x" * 50), 3, size_bytes=51),
        "do not decompress to the stated 51",
    ),
    "a great size": (
        compress_as(of_header(HEADER, b"x" * 50), 1, size_bytes=1 << 25),
        "the limit is 16777216",
    ),
}


@pytest.mark.usefixtures("both_walks")
@pytest.mark.parametrize("bad", BAD)
def test_an_entry_that_does_not_open_is_reported_and_left_out(bad: str, tools: Any) -> None:
    """Every way an entry can be bad is reported once; the neighbours keep their rows."""
    body, reason = BAD[bad]
    good = [unbatched_message(b"v%d" % n, publish_time_ms=1, key=f"k{n}") for n in range(2)]
    table = table_of_entries([entry(0, good[0]), entry(1, body), entry(2, good[1])])
    reported: list[tuple[Position, str]] = []
    form = BatchForm("t", tools.arrow_schema(ALL), 0, 2**62, EntryLimits(1 << 24))
    made = record_batches(table, form, lambda t, row, why: reported.append((t.position(row), why)))
    found = [(row["__index"], row["value"], row["__key"]) for b in made for row in b.to_pylist()]
    assert found == [(0, b"v0", b"k0"), (2, b"v1", b"k1")]
    assert [position for position, _ in reported] == [Position(1, 1)]
    assert reason in reported[0][1]


@settings(max_examples=150, deadline=None)
@given(noise=st.binary(max_size=80), at=st.integers(0, 120), count=st.integers(1, 4))
def test_damage_behind_the_checksums_never_raises(
    noise: bytes, at: int, count: int, tools: Any
) -> None:
    """A producer may send anything under a right checksum: it is rows, or it is reported.

    Which of the two, and the rows, are the same on both methods.
    """
    members = [BatchMember(payload=b"abc", key="k", properties={"a": "b"})] * count
    body = bytearray(batched_message(members, publish_time_ms=1))
    body[at : at + len(noise)] = noise
    good = unbatched_message(b"good", publish_time_ms=1)
    form = BatchForm("t", tools.arrow_schema(ALL), 0, 2**62, EntryLimits(1 << 20))
    table = table_of_entries([entry(0, bytes(body), count), entry(count, good)])
    results = []
    for few in (1, 10**9):
        reported: list[int] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(payloads, "FEW_BATCHES", few)
            made = list(record_batches(table, form, lambda _, row, __: reported.append(row)))  # noqa: B023
        rows = [row for batch in made for row in batch.to_pylist()]
        results.append((reported, rows))
        assert reported in ([], [0])
        assert len(rows) == (1 if reported else count + 1)
        assert rows[-1]["value"] == b"good"
    assert results[0] == results[1]


def zstd(header: MessageMetadata, payload: bytes) -> bytes:
    """An entry of this payload, compressed."""
    packed = MessageMetadata()
    packed.CopyFrom(header)
    packed.compression, packed.uncompressed_size = CompressionType.ZSTD, len(payload)
    return of_header(packed, pa.compress(payload, codec="zstd", asbytes=True))


def with_properties(count: int, *, payload_size_first: bool = True) -> bytes:
    """A message of a batch with so many empty properties, 6 bytes each."""
    size, properties = b"\x18\x01", b"\x0a\x04\x0a\x00\x12\x00" * count
    single = size + properties if payload_size_first else properties + size
    return len(single).to_bytes(4, "big") + single + b"v"


@pytest.mark.usefixtures("both_walks")
@pytest.mark.parametrize("first", [True, False], ids=["size first", "size last"])
def test_a_bomb_of_properties_is_refused(tools: Any, first: bool) -> None:
    """A few hundred bytes that open to 4 MiB of properties are reported; memory is bounded."""
    bomb = zstd(BATCH_HEADER, with_properties(700_000, payload_size_first=first))
    assert len(bomb) < 1000
    good = unbatched_message(b"good", publish_time_ms=1)
    tracemalloc.start()
    try:
        rows, reported = made_of(tools, [entry(0, bomb), entry(1, good)])
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [row["value"] for row in rows] == [b"good"]
    assert reported == ["its batch cannot be split into its 1 messages"]
    assert peak_bytes < 48 << 20


@pytest.mark.usefixtures("both_walks")
def test_properties_of_an_entry_have_a_limit(tools: Any) -> None:
    """Of all its messages together, and of a message with an entry of its own."""
    batch = MessageMetadata()
    batch.CopyFrom(BATCH_HEADER)
    batch.num_messages_in_batch = 3
    body = of_header(batch, with_properties(20) * 3)
    single = unbatched_message(b"x", publish_time_ms=1, properties={str(n): "" for n in range(60)})
    for each, count in ((body, 3), (single, 1)):
        rows, reported = made_of(tools, [entry(0, each, count)], max_properties_per_entry=60)
        assert (len(rows), reported) == (count, [])
        rows, reported = made_of(tools, [entry(0, each, count)], max_properties_per_entry=59)
        assert (rows, reported) == ([], ["its messages have more than 59 properties"])
        rows, reported = made_of(
            tools, [entry(0, each, count)], ("value",), max_properties_per_entry=59
        )
        assert (len(rows), reported) == (count, [])


def test_one_message_of_many_fields_costs_no_step_for_all(
    tools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside 200 ordinary batches a message with 10,000 properties is read by itself."""
    steps = 0
    take_fields = protoscan.take_fields

    def counting(*arguments: Any) -> Any:
        nonlocal steps
        steps += 1
        return take_fields(*arguments)

    for module in (protoscan, payloads):
        monkeypatch.setattr(module, "take_fields", counting)
    bodies = [of_header(BATCH_HEADER, with_properties(3, payload_size_first=False))] * 200
    bodies[100] = of_header(BATCH_HEADER, with_properties(10_000, payload_size_first=False))
    rows, reported = made_of(tools, [entry(n, body) for n, body in enumerate(bodies)])
    assert (len(rows), reported) == (200, [])
    assert steps < 100


def test_numbers_of_2_to_the_63_are_there(tools: Any) -> None:
    """They are no times that Spark can show, but the entry is as good as any other."""
    for number in (2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1):
        header = MessageMetadata(producer_name="p", sequence_id=number, publish_time=number)
        header.event_time = number
        rows, reported = made_of(tools, [entry(0, of_header(header, b"x"))])
        assert reported == []
        assert [(row["value"], row["__publishTime"], row["__eventTime"]) for row in rows] == [
            (b"x", None, None)
        ]


def test_of_a_property_that_is_there_twice_the_last_counts(tools: Any) -> None:
    """As in Pulsar's clients, for few and for many properties, and only within a message."""
    bodies = []
    for more in (0, 20):
        header = MessageMetadata(producer_name="p", sequence_id=1, publish_time=2)
        for key, value in [("k", "1"), ("a", "x"), ("k", "2")] + [
            (str(n), "") for n in range(more)
        ]:
            header.properties.add(key=key, value=value)
        header.properties.add(key="k", value="3")
        header.properties.add(key="b", value="y")
        bodies.append(of_header(header, b"v"))
    table = table_of_entries([entry(n, body) for n, body in enumerate(bodies)])
    names = ("__messageProperties",)
    form = BatchForm("t", tools.arrow_schema(names), 0, 2**62, EntryLimits())
    (batch,) = record_batches(table, form, fail)
    pairs = batch.column(0).to_pylist()
    assert pairs[0] == [("a", "x"), ("k", "3"), ("b", "y")]
    assert pairs[1] == [("a", "x"), *((str(n), "") for n in range(20)), ("k", "3"), ("b", "y")]


def test_an_encrypted_batch_states_no_size_that_matters(tools: Any) -> None:
    """Its payload is handed out as it is, whatever compression and size its header states."""
    header = MessageMetadata(
        producer_name="p",
        sequence_id=1,
        publish_time=2,
        num_messages_in_batch=3,
        compression=CompressionType.LZ4,
        uncompressed_size=0,
    )
    header.encryption_keys.add(key="k", value=b"v")
    rows, reported = made_of(tools, [entry(0, of_header(header, b"cipher"), 3)])
    assert reported == []
    assert [row["value"] for row in rows] == [b"cipher", None, None]


def test_where_all_is_opened_no_column_changes_the_rows(tools: Any) -> None:
    """Entries that do not open are left out of every choice of columns, and reported."""
    good = unbatched_message(b"good", publish_time_ms=1)
    bodies = [body for body, _ in BAD.values()]
    stored = [entry(n, body) for n, body in enumerate([good, *bodies, good])]
    for names in (ALL, *((name,) for name in ALL)):
        reported: list[int] = []
        form = BatchForm(
            "t", tools.arrow_schema(names), 0, 2**62, EntryLimits(1 << 24), open_all=True
        )
        made = record_batches(
            table_of_entries(stored),
            form,
            lambda _, row, __: reported.append(row),  # noqa: B023
        )
        assert sum(batch.num_rows for batch in made) == 2
        assert len(reported) == len(BAD)

"""What is refused, with the error code of a real Kafka, and what is stored of the rest."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from pulsemark.kafka.records import (
    Codec,
    EntryRules,
    InvalidRecordSetError,
    Producer,
    Record,
    RecordSetError,
    RecordSetTooLargeError,
    RecordTimeError,
    SentBatch,
    Work,
    legacy,
    read,
    validate_produced,
)
from pulsemark.kafka.records.batch import BatchFields, build, read_header, sealed_header
from pulsemark.proto.broker_entry_pb2 import SourceFormat

from .conftest import (
    CELLS,
    GOLDEN,
    ROWS,
    TIME_MS,
    Row,
    build_set,
    produce_version,
    records_of,
    seen_by_clients,
    sent_on,
    stored,
)

REFUSALS: list[dict[str, Any]] = json.loads((GOLDEN.parent / "refusals.json").read_text())
UNKNOWN = -1

#: Where ours is another code than the newest Kafka's, and why.
DIFFERENT = {
    "wrapper with empty value": (87, "-1 is an accident of Kafka's"),
    "codec 5": (87, "-1 is an accident of Kafka's"),
    "undecompressible": (87, "-1 is an accident of Kafka's"),
    "size 20": (2, "2.8.2 says so; -1 is an accident of 3.9.2"),
    "wrapper of a cut set": (87, "Kafka acknowledges the cut message and loses it"),
    "LogAppendTime": (32, "2.8.2 says so; 3.9.2 shows consumers a time that is not the broker's"),
    "transactional": (0, "it is refused where it would be stored, if its transaction is not open"),
    "deltas 0, 2": (87, "Kafka's consumers see other offsets than it counts"),
    "deltas 5, 6": (87, "Kafka's consumers see other offsets than it counts"),
    "deltas 0, 2, gzip": (0, "KIP-31: reassigned, not refused"),
    "deltas 5, 6, gzip": (0, "KIP-31: reassigned, not refused"),
    "zstd in version 2": (76, "as in all versions below 7"),
}


def code_of(case: dict[str, Any]) -> int:
    """The code of our answer; 0 if it is stored."""
    sent = base64.b64decode(case["sent"]) + bytes(case["zeros"])
    rules = EntryRules(magic=case["magic"], compacted=case["compacted"])
    try:
        validate_produced(sent, case["version"], rules)
    except RecordSetError as error:
        assert str(error)
        return error.code
    return 0


@pytest.mark.parametrize("case", REFUSALS, ids=[case["name"] for case in REFUSALS])
def test_codes_are_kafkas(case: dict[str, Any]) -> None:
    """Each bad set gets the code of Kafka 3.9.2 (2.8.2 for old formats), but for a few."""
    magic, _, rest = case["name"].partition(": ")
    name = rest.rpartition(" to ")[0]
    theirs = case["codes"].get("3.9.2", case["codes"]["2.8.2"])
    if name == "LogAppendTime" and magic == "magic 0":
        assert code_of(case) == theirs == 0
    elif name in DIFFERENT:
        assert code_of(case) == DIFFERENT[name][0]
    else:
        assert code_of(case) == theirs


def test_each_difference_is_one() -> None:
    """Every row of the table of differences differs from some Kafka."""
    for name, (ours, _) in DIFFERENT.items():
        codes = {
            code
            for case in REFUSALS
            if case["name"].partition(": ")[2].rpartition(" to ")[0] == name
            for code in case["codes"].values()
        }
        assert codes - {ours}, name


@pytest.mark.parametrize("records", [None, b"", build_set(1)[:20]])
def test_nothing_to_store(records: bytes | None) -> None:
    """Below version 3 an empty set is not an error; from there on it is."""
    for version in (0, 1, 2):
        assert validate_produced(records, version, EntryRules()) is None
    if records is None or not records:
        with pytest.raises(InvalidRecordSetError, match="no whole batch"):
            validate_produced(records, 3, EntryRules())


@pytest.mark.parametrize(("magic", "topic"), [*product((0, 1, 2), repeat=2)])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_facts_of_the_entry(magic: int, topic: int, codec: Codec) -> None:
    """Count, latest time, keys, raw size and source format are those of the set."""
    produced = stored(build_set(magic, codec), topic)
    assert produced.message_count == len(ROWS)
    assert produced.max_time_ms == (TIME_MS + 70 if magic and topic else -1)
    assert produced.has_keys
    assert not produced.tombstone
    plain = build_set(magic)
    assert produced.raw_size_bytes == len(plain) - (61 if magic == 2 else 0)
    assert (
        produced.source_format
        == (
            SourceFormat.SOURCE_KAFKA_MAGIC_0,
            SourceFormat.SOURCE_KAFKA_MAGIC_1,
            SourceFormat.SOURCE_KAFKA_MAGIC_2,
        )[topic]
    )
    assert produced.body[:2] == b"\0\0"
    assert produced.sent is None


@pytest.mark.parametrize(("magic", "codec"), CELLS)
def test_no_keys(magic: int, codec: Codec) -> None:
    """Sets without any key say so, and are refused on a compacted topic."""
    sent = build_set(magic, codec, [Row(None, b"v")] * 3)
    assert not stored(sent, magic).has_keys
    with pytest.raises(InvalidRecordSetError, match="without key"):
        stored(sent, magic, compacted=True)


@pytest.mark.parametrize("offset", [0x0E02 << 48, 0x0E01 << 48, -1, 2**63 - 1])
@pytest.mark.parametrize(("magic", "codec"), [cell for cell in CELLS if cell[0] < 2])
def test_sent_offsets_are_never_stored(magic: int, codec: Codec, offset: int) -> None:
    """Whatever offset a producer writes, the body begins with zeros: no prefix, no checksum."""
    sent = bytearray(build_set(magic, codec))
    sent[:8] = (offset % 2**64).to_bytes(8, "big")
    assert stored(bytes(sent), magic).body[:2] == b"\0\0"


def test_idempotent_producer() -> None:
    """Producer id, epoch and sequence are handed on."""
    sent = build_set(2, 0, producer_id=9, producer_epoch=3, base_sequence=77)
    assert stored(sent, 2).sent == SentBatch(Producer(9, 3), 77, 5)


@pytest.mark.parametrize(("magic", "codec"), [(m, c) for m, c in CELLS if c])
@pytest.mark.parametrize("offsets", [[0, 2, 3, 7, 9], [5, 6, 7, 8, 9], [4, 3, 2, 1, 0], [0] * 5])
def test_holes_are_filled_when_produced(magic: int, codec: Codec, offsets: list[int]) -> None:
    """Inner offsets that are not 0, 1, 2 ... are reassigned, at the price of one compression."""
    fields = {"last_offset_delta": 4} if magic == 2 else {}
    produced = stored(build_set(magic, codec, ROWS, offsets, **fields), magic)
    assert not produced.in_place
    assert (produced.work.decompressions, produced.work.compressions) == (1, 1)
    assert produced.work.converted_records == len(ROWS)
    assert [record.offset for record in read(produced.body)] == [0, 1, 2, 3, 4]
    for seen in seen_by_clients(sent_on(produced.body, 50, 2), magic, codec):
        assert [row[0] for row in seen] == [50, 51, 52, 53, 54]
        assert [row[2:4] for row in seen] == [(row.key, row.value) for row in ROWS]


def test_holes_of_an_idempotent_producer() -> None:
    """A batch that is rebuilt keeps its producer's fields, so duplicates are still seen."""
    sent = build_set(2, Codec.GZIP, ROWS, [1, 2, 3, 4, 5], last_offset_delta=4, producer_id=9,
                     producer_epoch=0, base_sequence=4)  # fmt: skip
    assert stored(stored(sent, 2).body, 2).sent == SentBatch(Producer(9, 0), 4, 5)


@pytest.mark.parametrize(("magic", "codec"), [(1, Codec.GZIP), (2, Codec.NONE), (2, Codec.LZ4)])
def test_wrong_latest_time_is_corrected_in_place(magic: int, codec: Codec) -> None:
    """A wrapper or batch with a wrong latest time gets the right one and a new checksum."""
    sent = build_set(magic, codec)
    if magic == 1:
        value = legacy.read_message(sent, next(iter(_spans(sent)))).value
        sent = legacy.pack_message(0, 1, codec, 0, None, value)
        untouched = slice(26, None)
    else:
        sent = _with_latest_time(sent, 5)
        untouched = slice(61, None)
    produced = stored(sent, magic)
    assert produced.in_place
    assert produced.work.compressions == 0
    assert produced.body[untouched] == sent[untouched]
    assert produced.max_time_ms == TIME_MS + 70
    seen_by_clients(sent_on(produced.body, 0, 2), magic, codec)
    at = 18 if magic == 1 else 35
    assert int.from_bytes(produced.body[at : at + 8], "big") == TIME_MS + 70


def _spans(sent: bytes) -> Any:
    from pulsemark.kafka.records.layout import spans

    return spans(sent)


def _with_latest_time(sent: bytes, time_ms: int) -> bytes:
    from pulsemark.kafka.records import batch

    header = batch.read_header(sent)._replace(max_time_ms=time_ms)
    return batch.sealed_header(header, sent[61:]) + sent[61:]


@pytest.mark.parametrize(("magic", "codec"), [(1, 0), (1, 1), (2, 0), (2, 1)])
def test_a_topic_with_the_brokers_time_takes_its_bit(magic: int, codec: int) -> None:
    """The bit for the broker's time is refused from producers, but on a topic that has it."""
    bits = legacy.plain_message if magic == 1 and not codec else None
    records = records_of([Row(b"k", b"v")])
    if magic == 2:
        sent = build_set(2, codec, [Row(b"k", b"v")], attributes=0x08)
    elif bits is not None:
        sent = bits(records[0], 1, 0x08)
    else:
        sent = legacy.pack_wrapper(records, 1, codec, Work(), bits=0x08)
    with pytest.raises(RecordTimeError):
        stored(sent, magic)
    assert stored(sent, magic, log_append_time=True).message_count == 1


@pytest.mark.parametrize(("magic", "codec"), CELLS)
def test_max_message_bytes(magic: int, codec: Codec) -> None:
    """A batch, or a plain message of magic 0 and 1, may be as large as the limit, not larger."""
    sent = build_set(magic, codec, [Row(b"k", bytes(range(256)) * 8)])
    limit = len(sent)
    assert stored(sent, magic, max_batch_bytes=limit).message_count == 1
    with pytest.raises(RecordSetTooLargeError) as refused:
        stored(sent, magic, max_batch_bytes=limit - 1)
    assert refused.value.code == 10


def test_conversion_that_grows_above_the_limit() -> None:
    """A set that fits as sent is refused if it does not fit as stored."""
    sent = build_set(2, Codec.SNAPPY, [Row(b"%d" % n, b"") for n in range(500)])
    limit = len(sent)
    assert stored(sent, 2, max_batch_bytes=limit).in_place
    with pytest.raises(RecordSetTooLargeError, match=f"the limit is {limit}"):
        stored(sent, 0, max_batch_bytes=limit)


def test_size_limit_is_of_each_plain_message() -> None:
    """Plain messages count by themselves: a set of them may be larger than the limit."""
    sent = build_set(1, 0, [Row(b"k", b"v" * 100)] * 50)
    assert stored(sent, 1, max_batch_bytes=200).message_count == 50


def test_a_format_that_is_none() -> None:
    """Only 0, 1 and 2 are entry formats."""
    with pytest.raises(ValueError, match="no entry format has the magic 3"):
        EntryRules(magic=3)


def test_views_are_taken_and_not_kept() -> None:
    """A set may be a view on a buffer that is used again: nothing stored refers to it."""
    for magic, codec in CELLS:
        sent = build_set(magic, codec)
        buffer = bytearray(b"junk" + sent + b"junk")
        produced = validate_produced(
            memoryview(buffer)[4:-4], produce_version(magic), EntryRules(magic=magic)
        )
        assert produced is not None
        expected = stored(sent, magic).body
        buffer[:] = bytes(len(buffer))
        assert produced.body == expected
        assert type(produced.body) is bytes


@pytest.mark.parametrize("wrong_time", [False, True])
def test_a_set_that_is_given_away_is_stored_in_its_own_memory(wrong_time: bool) -> None:
    """The bytes are those of a copy, and are where they were received, beside other sets."""
    for magic, codec in CELLS:
        sent = bytearray(build_set(magic, codec))
        if magic == 2 and wrong_time:
            header = read_header(sent)
            sent[:61] = sealed_header(header._replace(max_time_ms=5), memoryview(sent)[61:])
        rules, version = EntryRules(magic=magic), produce_version(magic)
        expected = validate_produced(bytes(sent), version, rules)
        frame = bytearray(b"junk" + sent + b"junk")
        produced = validate_produced(memoryview(frame)[4:-4], version, rules, is_given=True)
        assert produced is not None
        assert expected is not None
        assert produced.stored == expected.stored
        assert replace(produced, stored=b"") == replace(expected, stored=b"")
        assert bytes(frame[:4] + frame[-4:]) == b"junkjunk"
        if magic == 2:
            assert isinstance(produced.stored, memoryview)
            assert produced.stored.obj is frame


@pytest.mark.parametrize("sizes", [[1024] * 300, [10, 700, 20] * 100, [5] * 9_000])
def test_a_check_in_place_finds_what_a_check_of_a_copy_finds(sizes: list[int]) -> None:
    """Records of one shape are checked in the request's memory; wrong counts are refused there."""
    records = [Record(n, 1_000 + n % 7, None, b"v" * size, ()) for n, size in enumerate(sizes)]
    sent = build(records, BatchFields(), Work())
    frame = bytearray(b"x" + sent)
    view = memoryview(frame)[1:]
    copied = validate_produced(sent, 7, EntryRules())
    assert copied is not None
    in_place = validate_produced(view, 7, EntryRules(), is_given=True)
    assert in_place is not None
    assert in_place.stored == copied.stored
    assert in_place.max_time_ms == copied.max_time_ms
    for number in (len(sizes) - 1, len(sizes) + 1):
        header = read_header(sent)._replace(record_count=number, last_offset_delta=number - 1)
        wrong = bytearray(sealed_header(header, sent[61:]) + sent[61:])
        with pytest.raises(InvalidRecordSetError):
            validate_produced(memoryview(wrong), 7, EntryRules(), is_given=True)


def test_records_are_the_same_in_every_cell() -> None:
    """Keys and values pass every cell of the matrix; times and headers as far as formats go."""
    for (magic, codec), topic in product(CELLS, (0, 1, 2)):
        if codec is Codec.ZSTD and topic < 2:
            continue
        records: list[Record] = list(read(stored(build_set(magic, codec), topic).body))
        assert [(r.key, r.value) for r in records] == [(r.key, r.value) for r in ROWS]
        timed = magic > 0 < topic
        assert [r.time_ms for r in records] == [r.time_ms if timed else -1 for r in ROWS]
        with_headers = magic == topic == 2
        assert [r.headers for r in records] == [r.headers if with_headers else () for r in ROWS]

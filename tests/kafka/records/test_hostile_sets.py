"""Sets changed by hostile hands: typed errors, or something that every client can read."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Iterator

import pytest

from pulsemark.kafka.records import (
    Codec,
    CodecError,
    EntryRules,
    InvalidRecordSetError,
    RecordSetError,
    RecordSetTooLargeError,
    StoredSet,
    Work,
    batch,
    fetch,
    keep,
    legacy,
    read,
    scan,
    to_pulsar,
    validate_produced,
)
from pulsemark.kafka.records.compression import compress
from pulsemark.kafka.records.layout import MAX_RECORDS, spans
from pulsemark.kafka.records.scan import scan_records
from pulsemark.metadata import crc32c

from .conftest import CELLS, TIME_MS, Row, build_set, golden, produce_version, records_of, stored

SETS = [case["sent"] for case in golden()["conversions"] if "mixed" in case["name"]]
RULES = EntryRules(max_raw_bytes=1 << 20)


def sealed(data: bytes) -> bytes:
    """The set with right checksums, so that the code after their check is reached."""
    fixed = bytearray(data)
    try:
        for start, end, magic in spans(data):
            if magic == 2 and end - start > 21:
                crc = crc32c(memoryview(fixed)[start + 21 : end])
                struct.pack_into(">I", fixed, start + 17, crc)
            elif magic < 2:
                crc = zlib.crc32(memoryview(fixed)[start + 16 : end])
                struct.pack_into(">I", fixed, start + 12, crc)
    except RecordSetError:
        return data
    return bytes(fixed)


def changed(data: bytes, rng: random.Random) -> bytes:
    """The bytes with something done to them."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at = rng.randrange(len(out)) if rng.random() < 0.5 else rng.randrange(min(80, len(out)))
        kind = rng.randrange(6)
        if kind == 0:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            out[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
        elif kind == 2:
            out[at : at + 4] = struct.pack(">i", rng.choice((-1, 0, 2**31 - 1, -(2**31), 14, 61)))
        elif kind == 3:
            del out[at : at + rng.randrange(1, 9)]
        elif kind == 4:
            out[at:at] = rng.randbytes(rng.randrange(1, 9))
        else:
            out[at:] = out[rng.randrange(len(out)) :]
        if not out:
            out = bytearray(data)
    return bytes(out)


def use(body: bytes, count: int) -> None:
    """Do with a stored set all that is ever done with one."""
    records = list(read(body, 100))
    assert [record.offset for record in records] == list(range(100, 100 + count))
    for client in range(3):
        try:
            out = b"".join(fetch(StoredSet(body, 100, broker_time_ms=TIME_MS), client).parts)
        except CodecError:
            assert client < 2
            continue
        base = 100 if out[16] == 2 else 0
        assert [r.offset for r in read(out, base)] == [r.offset for r in records]
    kept = keep(body, {0}, Work())
    assert [record.offset for record in read(kept)] == [0]
    to_pulsar(read(body), count, publish_time_ms=1, producer_name="p", max_bytes=1 << 22)


@pytest.mark.parametrize("seed", range(8))
def test_changed_sets(seed: int) -> None:
    """A changed set, checksums made right, is refused with a Kafka code, or works everywhere."""
    rng = random.Random(seed)
    taken = refused = 0
    for _ in range(400):
        data = sealed(changed(rng.choice(SETS), rng))
        rules = EntryRules(magic=rng.randrange(3), max_raw_bytes=1 << 20)
        try:
            produced = validate_produced(data, rng.choice((2, 7)), rules)
        except RecordSetError as error:
            assert error.code in (2, 10, 32, 43, 53, 76, 87)
            refused += 1
            continue
        if produced is not None:
            taken += 1
            use(produced.body, produced.message_count)
    assert taken
    assert refused


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_changed_records_in_good_batches(seed: int, codec: Codec) -> None:
    """Records changed under a good batch or wrapper: the same."""
    rng = random.Random(seed)
    for _ in range(150):
        magic = rng.randrange(3)
        raw = build_set(magic)[61:] if magic == 2 else build_set(magic)
        raw = changed(raw, rng)
        value = compress(codec, raw, magic, Work()) if codec else raw
        if magic == 2:
            header = batch.read_header(build_set(2))
            header = header._replace(size=49 + len(value), attributes=int(codec))
            data = batch.sealed_header(header, value) + value
        elif codec:
            inner = sealed(raw) if rng.random() < 0.8 else raw
            value = compress(codec, inner, magic, Work())
            data = legacy.pack_message(0, magic, codec, TIME_MS, None, value)
        else:
            data = sealed(raw)
        try:
            produced = validate_produced(data, produce_version(magic), RULES)
        except RecordSetError:
            continue
        if produced is not None:
            use(produced.body, produced.message_count)


@pytest.mark.parametrize("seed", range(4))
def test_changed_stored_bodies(seed: int) -> None:
    """Damaged stored bytes raise typed errors too, whatever is done with them."""
    rng = random.Random(seed)
    bodies = [stored(build_set(magic, codec), magic).body for magic, codec in CELLS]
    for _ in range(300):
        body = changed(rng.choice(bodies), rng)
        for step in (
            lambda b: list(read(b, max_raw_bytes=1 << 20)),
            lambda b: fetch(StoredSet(b, 5), rng.randrange(3), max_raw_bytes=1 << 20),
            lambda b: keep(b, {0, 2}, Work(), max_raw_bytes=1 << 20),
        ):
            try:
                step(body)
            except RecordSetError:
                continue


@pytest.mark.parametrize("seed", range(6))
def test_scan_and_reader_agree(seed: int) -> None:
    """The check of records accepts exactly the bytes that can be read, and sees what is read."""
    rng = random.Random(seed)
    rows = [
        Row(b"k" * n, b"v" * (n * 3), TIME_MS - n, ((b"h", None),) * (n % 3)) for n in range(70)
    ]
    sent = build_set(2, 0, rows)
    header, agreed = batch.read_header(sent), 0
    for _ in range(300):
        raw = changed(sent[61:], rng) if rng.random() < 0.95 else sent[61:]
        try:
            records = list(batch.read_records(header, raw))
        except InvalidRecordSetError:
            with pytest.raises(InvalidRecordSetError):
                scan_records(raw, header.record_count, header.base_time_ms)
            continue
        found = scan_records(raw, header.record_count, header.base_time_ms)
        agreed += 1
        assert found.count == len(records)
        assert found.numbered == ([r.offset for r in records] == list(range(len(records))))
        assert found.max_time_ms == max(r.time_ms for r in records)
        assert found.keys == sum(r.key is not None for r in records)
        assert found.flags == sum(r.flagged for r in records)
        assert found.nulls == sum(r.value is None and not r.flagged for r in records)
    assert agreed > 5


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("magic", [0, 1])
def test_scan_and_reader_of_messages_agree(seed: int, magic: int) -> None:
    """The check of plain messages accepts what can be read, and sees what is read."""
    rng = random.Random(seed)
    rows = [Row(b"k" * n if n % 3 else None, b"v" * n, TIME_MS - n) for n in range(1, 20)]
    sent, agreed = build_set(magic, 0, rows), 0
    for _ in range(300):
        data = sealed(changed(sent, rng))
        try:
            messages = list(legacy.inner_messages(data, magic))
        except RecordSetError:
            try:
                found = scan.scan_messages(data, magic)
            except RecordSetError:
                continue
            assert found.end != len(data) or not found.count
            continue
        found = scan.scan_messages(data, magic)
        agreed += 1
        assert (found.count, found.end) == (len(messages), len(data))
        assert found.numbered == ([m.offset for m in messages] == list(range(len(messages))))
        assert found.max_time_ms == max([-1, *(m.time_ms for m in messages)])
        assert found.keys == sum(m.key is not None for m in messages)
        assert found.nulls == sum(m.value is None for m in messages)
        assert found.states_broker_time == any(m.attributes & 8 for m in messages if magic)
    assert agreed > 5


def bombs() -> Iterator[tuple[str, bytes]]:
    """Small sets that claim, or decompress to, very much."""
    header = batch.read_header(build_set(2))
    zeros = bytes(30_000_000)
    for codec in (Codec.GZIP, Codec.LZ4, Codec.SNAPPY, Codec.ZSTD):
        packed = compress(codec, zeros, 2, Work())
        size = header._replace(
            size=49 + len(packed), attributes=int(codec), record_count=MAX_RECORDS,
            last_offset_delta=MAX_RECORDS - 1,
        )  # fmt: skip
        yield f"2 {codec.name}", batch.sealed_header(size, packed) + packed
        if codec is not Codec.ZSTD:
            for magic in (0, 1):
                value = compress(codec, zeros, magic, Work())
                message = legacy.Message(0, magic, codec, TIME_MS, None, value)
                yield f"{magic} {codec.name}", legacy.pack_message(*message)


@pytest.mark.parametrize(("name", "data"), list(bombs()), ids=lambda value: str(value)[:12])
def test_bombs(name: str, data: bytes) -> None:
    """A bomb is refused as too large before its records are looked at."""
    rules = EntryRules(max_raw_bytes=1 << 20, max_batch_bytes=1 << 22)
    with pytest.raises(RecordSetTooLargeError, match="decompress to more than 1048576"):
        validate_produced(data, 7 if name[0] == "2" else 2, rules)


@pytest.mark.parametrize("count", [-1, 0, 2**20 + 1, 2**31 - 1])
def test_counts_that_cannot_be(count: int) -> None:
    """A count beyond what an entry can have, or its bytes can hold, is refused at once."""
    sent = build_set(2)
    header = batch.read_header(sent)._replace(record_count=count, last_offset_delta=count - 1)
    with pytest.raises(InvalidRecordSetError):
        validate_produced(batch.sealed_header(header, sent[61:]) + sent[61:], 7, EntryRules())


def test_too_many_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrapper, or a plain set, with more messages than an entry can count is refused."""
    monkeypatch.setattr(scan, "MAX_RECORDS", 1000)
    one = legacy.plain_message(records_of([Row(None, None)])[0], 0)
    value = compress(Codec.GZIP, one * 1001, 0, Work())
    wrapper = legacy.pack_message(0, 0, Codec.GZIP, -1, None, value)
    with pytest.raises(InvalidRecordSetError, match="more than 1000 messages"):
        validate_produced(wrapper, 1, EntryRules())
    with pytest.raises(InvalidRecordSetError, match="more than 1000 messages"):
        validate_produced(one * 1001, 1, EntryRules())

"""What a consumer gets: views where its magic covers the stored one, else converted records."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from pulsemark.kafka.records import (
    Codec,
    CodecError,
    CorruptRecordSetError,
    StoredSet,
    fetch,
    max_magic_of,
    read,
)

from .conftest import (
    CELLS,
    ROWS,
    TIME_MS,
    Row,
    build_set,
    seen_by_clients,
    seen_by_kafka_python,
    sent_on,
    stored,
)


@pytest.mark.parametrize(
    ("version", "magic"), [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (11, 2), (12, 2)]
)
def test_magic_of_a_fetch_version(version: int, magic: int) -> None:
    """Fetch below 2 understands magic 0, below 4 magic 1, from there on magic 2."""
    assert max_magic_of(version) == magic


@pytest.mark.parametrize(("magic", "codec"), CELLS)
@pytest.mark.parametrize("client", [0, 1, 2])
def test_nothing_is_copied_if_the_client_understands_it(
    magic: int, codec: Codec, client: int
) -> None:
    """All but a few fields are views on the stored body, uncompressed and compressed alike."""
    body = stored(build_set(magic, codec), magic).body
    if codec is Codec.ZSTD and client < 2:
        return
    fetched = fetch(StoredSet(body, 5), client)
    views = [part for part in fetched.parts if isinstance(part, memoryview)]
    assert fetched.size_bytes == sum(len(part) for part in fetched.parts)
    if magic <= client and (magic, bool(codec)) != (0, True):
        assert fetched.work.decompressions == fetched.work.compressions == 0
        assert fetched.work.converted_records == 0
        assert all(view.obj is body for view in views)
        written = fetched.size_bytes - sum(len(view) for view in views)
        assert written == (16 if magic == 2 else 8 * (1 if codec else len(ROWS)))
    else:
        assert views == []
        assert fetched.work.converted_records == len(ROWS)


@pytest.mark.parametrize(("magic", "codec"), CELLS)
def test_only_the_patched_fields_differ_from_what_was_sent(magic: int, codec: Codec) -> None:
    """In place, the bytes that come out are the producer's outside offset and leader epoch."""
    sent = build_set(magic, codec)
    out = b"".join(fetch(StoredSet(stored(sent, magic).body, 77, 3), 2).parts)
    if (magic, bool(codec)) == (0, True):
        return
    assert len(out) == len(sent)
    different = {at for at in range(len(sent)) if sent[at] != out[at]}
    if magic == 2:
        assert different <= set(range(16))
    elif codec:
        assert different <= set(range(8))
    else:
        seen = seen_by_clients(out, magic, codec)[0]
        assert [row[0] for row in seen] == [77, 78, 79, 80, 81]
        assert len(different) == len(ROWS)


def test_leader_epoch_is_written() -> None:
    """A batch of magic 2 carries the leader epoch of its entry."""
    body = stored(build_set(2), 2).body
    out = b"".join(fetch(StoredSet(body, 0, 12), 2).parts)
    assert int.from_bytes(out[12:16], "big") == 12


@pytest.mark.parametrize(("magic", "codec"), CELLS)
def test_offsets_of_clients(magic: int, codec: Codec) -> None:
    """Clients see the offsets from the entry's base on, in every format."""
    body = stored(build_set(magic, codec), magic).body
    for client in range(3):
        if codec is Codec.ZSTD and client < 2:
            continue
        out = sent_on(body, 2**40, client)
        for seen in seen_by_clients(out, min(magic, client), codec):
            assert [row[0] for row in seen] == [2**40 + n for n in range(len(ROWS))]
            assert [row[2:4] for row in seen] == [(row.key, row.value) for row in ROWS]


@pytest.mark.parametrize(("magic", "client"), [(1, 0), (2, 0), (2, 1)])
def test_records_before_the_offset_are_left_out(magic: int, client: int) -> None:
    """Down-converted plain sets begin at the offset that was asked for; compressed ones do not."""
    body = stored(build_set(magic), magic).body
    offsets = [row[0] for row in seen_by_kafka_python(sent_on(body, 10, client, fetch_offset=12))]
    assert offsets == [12, 13, 14]
    body = stored(build_set(magic, Codec.GZIP), magic).body
    offsets = [row[0] for row in seen_by_kafka_python(sent_on(body, 10, client, fetch_offset=12))]
    assert offsets == [10, 11, 12, 13, 14]
    body = stored(build_set(magic), magic).body
    assert fetch(StoredSet(body, 10), client, fetch_offset=15).parts == ()


@pytest.mark.parametrize("client", [0, 1])
def test_zstd_for_old_clients(client: int) -> None:
    """A client of magic 0 or 1 cannot have zstd; the error says so."""
    body = stored(build_set(2, Codec.ZSTD), 2).body
    with pytest.raises(CodecError, match=f"zstd cannot be sent as magic {client}") as refused:
        fetch(StoredSet(body, 0), client)
    assert refused.value.code == 76


@pytest.mark.parametrize(("magic", "codec"), [cell for cell in CELLS if cell[0]])
def test_log_append_time(magic: int, codec: Codec) -> None:
    """With the broker's time, all records have it and say so; checksums hold; records stay."""
    body = stored(build_set(magic, codec), magic).body
    for client in range(1, 3):
        if codec is Codec.ZSTD and client < 2:
            continue
        entry = StoredSet(body, 3, broker_time_ms=TIME_MS + 1234)
        fetched = fetch(entry, client)
        out = b"".join(fetched.parts)
        for seen in seen_by_clients(out, min(magic, client), codec):
            assert [row[1] for row in seen] == [TIME_MS + 1234] * len(ROWS)
            assert [row[0] for row in seen] == [3, 4, 5, 6, 7]
        if magic <= client:
            assert fetched.work.compressions == 0


def test_log_append_time_is_nothing_for_magic_0() -> None:
    """Magic 0 has no time, and no bit for it."""
    body = stored(build_set(2), 2).body
    out = b"".join(fetch(StoredSet(body, 3, broker_time_ms=TIME_MS), 0).parts)
    assert [row[1] for row in seen_by_kafka_python(out)] == [None] * len(ROWS)
    assert out[17] == 0


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_a_stored_log_append_time_goes_down(codec: Codec) -> None:
    """A batch that was stored with the broker's time keeps it for clients of magic 1."""
    sent = build_set(2, codec, [Row(b"k", b"v", TIME_MS)] * 2, attributes=0x08)
    body = stored(sent, 2, log_append_time=True).body
    out = sent_on(body, 0, 1)
    assert [row[1] for row in seen_by_kafka_python(out)] == [TIME_MS, TIME_MS]
    assert out[17] & 0x08


@pytest.mark.parametrize("body", [b"", bytes(17), bytes(61), build_set(2)[:40], build_set(1)[:30]])
@pytest.mark.parametrize("client", [0, 1, 2])
def test_a_damaged_body_is_a_typed_error(body: bytes, client: int) -> None:
    """Stored bytes that are no whole record set raise the error for it."""
    with pytest.raises(CorruptRecordSetError) as damaged:
        fetch(StoredSet(body, 0), client)
    assert damaged.value.code == 2


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_offsets_that_no_field_holds(magic: int, codec: Codec) -> None:
    """A stored offset that is damaged beyond 64 bits raises the error for it, converted or not."""
    body = bytearray(stored(build_set(magic, codec), magic).body)
    body[0] = 0x7F
    body[1:8] = b"\xff" * 7
    for client in range(3):
        with pytest.raises(CorruptRecordSetError, match="impossible offset"):
            fetch(StoredSet(bytes(body), 5), client)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.LZ4])
@pytest.mark.parametrize("client", [0, 1])
def test_memory_of_down_conversion(codec: Codec, client: int) -> None:
    """Converting takes a few times the decompressed size, and entry after entry no more."""
    rows = [Row(b"key-%d" % n, b"value " * 30, TIME_MS + n) for n in range(4000)]
    produced = stored(build_set(2, codec, rows), 2)
    tracemalloc.start()
    try:
        sizes = [fetch(StoredSet(produced.body, n), client).size_bytes for n in range(3)]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert min(sizes) > 0
    assert produced.raw_size_bytes < peak < 5 * produced.raw_size_bytes


@pytest.mark.parametrize("client", [0, 1, 2])
def test_memory_without_conversion(client: int) -> None:
    """What is sent as stored takes no memory that grows with the records' bytes."""
    produced = stored(build_set(client, 0, [Row(b"k", bytes(1_000_000))]), client)
    tracemalloc.start()
    try:
        fetched = fetch(StoredSet(produced.body, 9), client)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert fetched.size_bytes > 1_000_000
    assert peak < 20_000


def test_mixed_log() -> None:
    """One log with sets of every magic and codec: each client reads all of it."""
    bodies = [stored(build_set(magic, codec), magic).body for magic, codec in CELLS[:-1]]
    options: dict[str, Any] = {}
    for client in range(3):
        offsets = []
        for number, body in enumerate(bodies):
            out = sent_on(body, number * len(ROWS), client, **options)
            magic, codec = CELLS[number]
            for seen in seen_by_clients(out, min(magic, client), codec)[:1]:
                offsets += [row[0] for row in seen]
        known = sum(1 for magic, codec in CELLS[:-1] if (min(magic, client), codec) != (0, 3))
        assert len(offsets) == known * len(ROWS)
        assert offsets == sorted(offsets)


def test_read_gives_absolute_offsets() -> None:
    """`read` counts from the base that it is given, in every format."""
    for magic, codec in CELLS:
        body = stored(build_set(magic, codec), magic).body
        assert [record.offset for record in read(body, 40)] == [40, 41, 42, 43, 44]

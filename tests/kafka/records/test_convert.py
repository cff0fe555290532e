"""Sets of which compaction keeps some records: offsets stay, holes are left."""

from __future__ import annotations

from itertools import product

import pytest

from pulsemark.kafka.records import (
    Codec,
    CorruptRecordSetError,
    StoredSet,
    Work,
    fetch,
    keep,
    read,
)
from pulsemark.kafka.records.batch import read_header

from .conftest import CELLS, ROWS, TIME_MS, Row, build_set, seen_by_clients, sent_on, stored

KEPT = [{1, 3}, {0}, {4}, {0, 1, 2, 3, 4}, {2, 4}]


@pytest.mark.parametrize(("magic", "codec"), CELLS)
@pytest.mark.parametrize("kept", KEPT, ids=str)
def test_survivors_keep_their_offsets(magic: int, codec: Codec, kept: set[int]) -> None:
    """Clients of every magic see the kept records at their old offsets, and nothing else."""
    body = keep(stored(build_set(magic, codec), magic).body, kept, Work())
    assert body[:2] == b"\0\0"
    expected = [(100 + n, ROWS[n].key, ROWS[n].value) for n in sorted(kept)]
    assert [(r.offset, r.key, r.value) for r in read(body, 100)] == expected
    for client in range(3):
        if codec is Codec.ZSTD and client < 2:
            continue
        out = sent_on(body, 100, client)
        for seen in seen_by_clients(out, min(magic, client), codec):
            assert [(row[0], row[2], row[3]) for row in seen] == expected


@pytest.mark.parametrize("kept", KEPT, ids=str)
def test_the_offsets_inside_a_wrapper_of_magic_0_stay_absolute(kept: set[int]) -> None:
    """So what compaction leaves is sent as it is stored, too; a copy at other offsets is not."""
    made = stored(build_set(0, Codec.GZIP), 0, base_offset=100)
    assert made.inner_base_offset == 100
    body = keep(made.body, kept, Work())
    expected = [(n, ROWS[n].value) for n in sorted(kept)]
    assert [(r.offset, r.value) for r in read(body)] == expected
    for base in (100, 0, 7):
        out = fetch(StoredSet(body, base, inner_base_offset=made.inner_base_offset), 0)
        assert out.work.compressions == (base != 100)
        for seen in seen_by_clients(b"".join(out.parts), 0, Codec.GZIP):
            assert [(row[0] - base, row[3]) for row in seen] == expected


@pytest.mark.parametrize(("magic", "codec"), CELLS)
def test_compacted_twice(magic: int, codec: Codec) -> None:
    """A set with holes is compacted like any other."""
    body = stored(build_set(magic, codec), magic).body
    once = keep(body, {0, 1, 3, 4}, Work())
    twice = keep(once, {1, 2, 3}, Work())
    assert [record.offset for record in read(twice)] == [1, 3]


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("kept", [{1}, set[int]()])
def test_a_batch_keeps_its_span_and_producer(codec: Codec, kept: set[int]) -> None:
    """In magic 2 last offset delta, producer, epoch and sequence stay, even without records."""
    sent = build_set(2, codec, producer_id=9, producer_epoch=2, base_sequence=40)
    body = keep(stored(sent, 2).body, kept, Work())
    header = read_header(body)
    assert header.record_count == len(kept)
    assert header.last_offset_delta == len(ROWS) - 1
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 2, 40)
    for seen in seen_by_clients(sent_on(body, 7, 2), 2, codec):
        assert [row[0] for row in seen] == [7 + n for n in sorted(kept)]


@pytest.mark.parametrize(("magic", "codec"), [cell for cell in CELLS if cell[0] < 2])
def test_nothing_is_kept_of_an_old_set(magic: int, codec: Codec) -> None:
    """Magic 0 and 1 have no set without messages: nothing is left."""
    assert keep(stored(build_set(magic, codec), magic).body, (), Work()) == b""


def test_kept_messages_are_not_touched() -> None:
    """Plain messages that stay are copied byte by byte; nothing is compressed."""
    work = Work()
    body = stored(build_set(1), 1).body
    kept = keep(body, {1, 2, 3}, work)
    assert kept in body
    assert work == Work()


@pytest.mark.parametrize(("magic", "codec"), [*product((1, 2), (Codec.NONE, Codec.GZIP))])
def test_the_brokers_time_stays(magic: int, codec: Codec) -> None:
    """A set that says the broker's time still says it, of all its records."""
    rows = [Row(b"k", b"v", TIME_MS)] * 3
    if magic == 1:
        body = stored(build_set(1, codec, rows), 1).body
    else:
        sent = build_set(2, codec, rows, attributes=0x08)
        body = stored(sent, 2, log_append_time=True).body
    assert [record.time_ms for record in read(keep(body, {0, 2}, Work()))] == [TIME_MS] * 2


@pytest.mark.parametrize("cut", [0, 10, 17, 30])
@pytest.mark.parametrize("magic", [0, 1, 2])
def test_a_damaged_body_is_not_compacted(magic: int, cut: int) -> None:
    """A body that is cut off raises; nothing shorter is made of it in silence."""
    body = stored(build_set(magic), magic).body
    with pytest.raises(CorruptRecordSetError):
        keep(body[:cut], {0}, Work())
    with pytest.raises(CorruptRecordSetError):
        keep(body[:-1], {0}, Work())

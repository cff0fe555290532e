"""The same sets to a real Kafka and to these functions: stored, converted and read as there."""

from __future__ import annotations

from typing import Any

import pytest

from pulsemark.kafka.records import CodecError, StoredSet, fetch, read
from pulsemark.kafka.records.layout import Codec

from .conftest import golden, produce_version, seen_by_clients, sent_on, stored

CASES = [case for case in golden()["conversions"] if not case["error"]]
REFUSED = [case for case in golden()["conversions"] if case["error"]]
ids = [case["name"] for case in CASES]


def test_every_cell_is_there() -> None:
    """The file has each magic with each of its codecs to each format."""
    cells = {(c["magic"], c["codec"], c["stored"]) for c in golden()["conversions"]}
    assert len(cells) == (4 + 4 + 5) * 3
    assert len(CASES) > 60


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_clients_see_what_they_see_of_kafka(case: dict[str, Any]) -> None:
    """Clients of each magic read the same offsets, times, keys, values, headers as from Kafka."""
    produced = stored(case["sent"], case["stored"], produce_version(case["magic"]))
    for client, theirs in case["fetched"].items():
        ours = sent_on(produced.body, case["base"], client)
        seen_magic = theirs[16]
        assert ours[16] == seen_magic
        expected = seen_by_clients(theirs, seen_magic, case["codec"])
        assert seen_by_clients(ours, seen_magic, case["codec"]) == expected
        assert [r._replace(attributes=0) for r in read(ours)] == [
            r._replace(attributes=0) for r in read(theirs)
        ]


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_bytes_are_kafkas_where_nothing_is_compressed_again(case: dict[str, Any]) -> None:
    """In place, and in plain sets but for the tombstone flag, all bytes are those of Kafka."""
    produced = stored(case["sent"], case["stored"], produce_version(case["magic"]))
    flagged = case["stored"] == 2 > case["magic"] and produced.tombstone is False
    for client, theirs in case["fetched"].items():
        fetched = fetch(StoredSet(produced.body, case["base"]), client)
        if produced.work.compressions or fetched.work.compressions:
            continue
        nulls = any(record.value is None for record in read(theirs))
        if flagged and nulls and client == 2:
            assert len(b"".join(fetched.parts)) == len(theirs)
        else:
            assert b"".join(fetched.parts) == theirs


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_in_place_cells_are_never_compressed(case: dict[str, Any]) -> None:
    """A set of the topic's own format is stored as sent: looked into once, never compressed."""
    produced = stored(case["sent"], case["stored"], produce_version(case["magic"]))
    assert produced.in_place == (case["magic"] == case["stored"])
    compressed = int(case["codec"] is not Codec.NONE)
    assert produced.work.decompressions == compressed
    assert produced.work.compressions == (0 if produced.in_place else compressed)


@pytest.mark.parametrize("case", REFUSED, ids=[case["name"] for case in REFUSED])
def test_what_kafka_cannot_convert(case: dict[str, Any]) -> None:
    """Kafka fails on headers and zstd for old formats; here headers are lost, zstd is refused."""
    assert case["error"] == -1
    assert case["stored"] < 2 == case["magic"]
    if case["codec"] is Codec.ZSTD:
        with pytest.raises(CodecError, match="zstd") as refused:
            stored(case["sent"], case["stored"])
        assert refused.value.code == 76
        return
    produced = stored(case["sent"], case["stored"])
    assert [(r.key, r.value) for r in read(produced.body)] == [
        (r.key, r.value) for r in read(case["sent"])
    ]
    assert all(record.headers == () for record in read(produced.body))


@pytest.mark.parametrize(
    "case", golden()["librdkafka"], ids=[case["name"] for case in golden()["librdkafka"]]
)
def test_sets_of_librdkafka(case: dict[str, Any]) -> None:
    """What librdkafka builds (raw snappy, lz4 of magic 0) is read as any other."""
    rows = golden()["rows"]["mixed"]
    base = 1 if case["magic"] == 2 else 0
    records = list(read(case["stored"], base))
    assert [record.offset for record in records] == [1, 2, 3, 4, 5]
    assert [record.value is None for record in records] == [row[2] is None for row in rows]
    if case["magic"]:
        assert [record.time_ms for record in records] == [row[0] for row in rows]
    assert [len(r.headers) for r in records] == [
        len(row[3]) if case["magic"] == 2 else 0 for row in rows
    ]

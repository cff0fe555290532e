"""KIP-87: a tombstone with a value, its stages, and what becomes of it between the formats."""

from __future__ import annotations

import pytest

from pulsemark.kafka.records import (
    TOMBSTONE_FLAG,
    Codec,
    InvalidRecordSetError,
    Record,
    TombstoneStage,
    deletes,
    read,
)

from .conftest import CELLS, Row, build_set, seen_by_kafka_python, sent_on, stored

BOTH = TombstoneStage.FLAG_OR_NULL
FLAG_ONLY = TombstoneStage.FLAG_ONLY
VALUE = Row(b"k", b"v")
NULL = Row(b"k", None)
FLAG = Row(b"k", b"why it is gone", attributes=TOMBSTONE_FLAG)
FLAG_NULL = Row(b"k", None, attributes=TOMBSTONE_FLAG)


@pytest.mark.parametrize(
    ("value", "attributes", "magic", "stage", "expected"),
    [
        (None, 0, 0, BOTH, True),
        (None, 0, 1, FLAG_ONLY, True),
        (b"v", 0, 1, BOTH, False),
        (b"v", TOMBSTONE_FLAG, 2, BOTH, True),
        (b"v", TOMBSTONE_FLAG, 2, FLAG_ONLY, True),
        (None, 0, 2, BOTH, True),
        (None, 0, 2, FLAG_ONLY, False),
        (b"v", 0, 2, BOTH, False),
        (b"", 0, 2, BOTH, False),
        (b"v", 0xFF ^ TOMBSTONE_FLAG, 2, BOTH, False),
    ],
)
def test_what_deletes_a_key(
    value: bytes | None, attributes: int, magic: int, stage: TombstoneStage, expected: bool
) -> None:
    """Null in magic 0 and 1; in magic 2 the flag, and in stage 1 null too."""
    record = Record(0, 0, b"k", value, (), attributes)
    assert deletes(record, magic, stage) is expected


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("topic", [0, 1, 2])
def test_stage_2_refuses_null_without_flag(codec: Codec, topic: int) -> None:
    """A null value without flag is refused from new producers, whatever the topic's format."""
    sent = build_set(2, codec, [FLAG, FLAG_NULL, NULL])
    with pytest.raises(InvalidRecordSetError, match="1 null values without tombstone flag"):
        stored(sent, topic, tombstone_stage=FLAG_ONLY)
    flagged = build_set(2, codec, [FLAG, FLAG_NULL])
    assert stored(flagged, topic, tombstone_stage=FLAG_ONLY).message_count == 2
    assert stored(sent, topic).message_count == 3


@pytest.mark.parametrize("magic", [0, 1])
def test_stage_2_takes_nulls_of_old_producers(magic: int) -> None:
    """Old producers know no flag: their nulls are stored, and get the flag in format 2."""
    produced = stored(build_set(magic, 0, [NULL, VALUE]), 2, tombstone_stage=FLAG_ONLY)
    assert [record.flagged for record in read(produced.body)] == [True, False]


@pytest.mark.parametrize(
    ("rows", "stage", "expected"),
    [
        ([FLAG], BOTH, True),
        ([NULL], BOTH, True),
        ([FLAG, NULL, FLAG_NULL], BOTH, True),
        ([FLAG, VALUE], BOTH, False),
        ([VALUE], BOTH, False),
        ([FLAG_NULL], FLAG_ONLY, True),
    ],
)
def test_tombstone_of_the_prefix(rows: list[Row], stage: TombstoneStage, expected: bool) -> None:
    """An entry is a tombstone if each of its records deletes its key."""
    assert stored(build_set(2, 0, rows), 2, tombstone_stage=stage).tombstone is expected


def test_tombstone_of_old_sets() -> None:
    """In magic 0 and 1 it is one if all values are null."""
    for magic, codec in CELLS:
        if magic < 2:
            assert stored(build_set(magic, codec, [NULL, NULL]), magic).tombstone
            assert not stored(build_set(magic, codec, [NULL, VALUE]), magic).tombstone


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("topic", [0, 1])
def test_produced_down(codec: Codec, topic: int) -> None:
    """On a topic of an old format the flag makes the value null."""
    body = stored(build_set(2, codec, [FLAG, VALUE, FLAG_NULL]), topic).body
    assert [record.value for record in read(body)] == [None, b"v", None]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_fetched_as_stored_or_down(codec: Codec) -> None:
    """New consumers get the flag and the value, as stored; old ones a null value."""
    produced = stored(build_set(2, codec, [FLAG, VALUE]), 2)
    assert produced.in_place
    for client in (0, 1):
        seen = seen_by_kafka_python(sent_on(produced.body, 9, client))
        assert [(row[0], row[3]) for row in seen] == [(9, None), (10, b"v")]
    seen = seen_by_kafka_python(sent_on(produced.body, 9, 2))
    assert [(row[0], row[3]) for row in seen] == [(9, FLAG.value), (10, b"v")]
    assert [record.flagged for record in read(sent_on(produced.body, 9, 2))] == [True, False]

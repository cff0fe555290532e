"""Any records, through every cell: what clients build is stored, converted, and read by clients."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pulsemark.kafka.records import Codec, Work, keep, read
from pulsemark.kafka.records.convert import to_legacy

from .conftest import (
    CELLS,
    Row,
    build_set,
    kafka_python_set,
    seen_by_aiokafka,
    seen_by_clients,
    seen_by_kafka_python,
    sent_on,
    stored,
)

BYTES = st.one_of(st.none(), st.binary(max_size=30), st.binary(min_size=60, max_size=200))
HEADERS = st.lists(st.tuples(st.text(max_size=5).map(str.encode), BYTES), max_size=3).map(tuple)
ROWS = st.lists(
    st.builds(Row, BYTES, BYTES, st.integers(0, 2**45), HEADERS), min_size=1, max_size=8
)
PLAIN = (Codec.NONE, Codec.GZIP)
FEW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def expected(rows: list[Row], base: int, *magics: int) -> list[Any]:
    """What a client sees of rows that went through sets of these magics."""
    return [
        (
            base + n,
            None if magics[-1] == 0 else r.time_ms if min(magics) else -1,
            r.key,
            r.value,
            [(name.decode(), value) for name, value in r.headers] if min(magics) == 2 else [],
        )
        for n, r in enumerate(rows)
    ]


@pytest.mark.parametrize(("magic", "codec"), CELLS)
@FEW
@given(rows=ROWS)
def test_clients_read_what_is_built_here(magic: int, codec: Codec, rows: list[Row]) -> None:
    """kafka-python and aiokafka read every set as it was meant."""
    sent = build_set(magic, codec, rows)
    for seen in seen_by_clients(sent, magic, codec):
        assert seen == expected(rows, 0, magic)


@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("codec", PLAIN)
@FEW
@given(rows=ROWS, topic=st.integers(0, 2), client=st.integers(0, 2))
def test_from_kafka_python_through_every_cell(
    magic: int, codec: Codec, rows: list[Row], topic: int, client: int
) -> None:
    """A set of kafka-python, on any topic, for any client: the records as far as formats go."""
    body = stored(kafka_python_set(magic, codec, rows), topic).body
    out = sent_on(body, 1000, client)
    last = min(topic, client)
    for see in (seen_by_kafka_python, seen_by_aiokafka):
        # aiokafka shows a time of -1 as none.
        seen = [(row[0], row[1] if last == 0 or row[1] is not None else -1, *row[2:])
                for row in see(out)]  # fmt: skip
        assert seen == expected(rows, 1000, magic, topic, last)


@pytest.mark.parametrize("codec", list(Codec))
@FEW
@given(rows=ROWS, topic=st.integers(0, 2))
def test_from_aiokafka(codec: Codec, rows: list[Row], topic: int) -> None:
    """A batch of aiokafka with any codec, on any topic that can hold it."""
    if codec is Codec.ZSTD:
        topic = 2
    builder = AiokafkaBuilder(2, int(codec), False, -1, -1, -1, 1 << 24)
    for n, r in enumerate(rows):
        headers = [(name.decode(), value) for name, value in r.headers]
        builder.append(offset=n, timestamp=r.time_ms, key=r.key, value=r.value, headers=headers)
    produced = stored(bytes(builder.build()), topic)
    assert produced.in_place is (topic == 2)
    out = sent_on(produced.body, 9, 2)
    for seen in seen_by_clients(out, topic, codec):
        assert seen == expected(rows, 9, 2, topic)


@pytest.mark.parametrize(("magic", "codec"), CELLS)
@FEW
@given(rows=ROWS, data=st.data())
def test_compacted_anyhow(magic: int, codec: Codec, rows: list[Row], data: st.DataObject) -> None:
    """Whatever is kept of a set, clients see exactly that."""
    kept = data.draw(st.sets(st.integers(0, len(rows) - 1)))
    body = keep(stored(build_set(magic, codec, rows), magic).body, kept, Work())
    wanted = [row for row in expected(rows, 50, magic) if row[0] - 50 in kept]
    if not body:
        assert not kept
        return
    for seen in seen_by_clients(sent_on(body, 50, 2), magic, codec):
        assert seen == wanted


@FEW
@given(rows=ROWS, magic=st.integers(0, 1))
def test_down_from_up(rows: list[Row], magic: int) -> None:
    """Up to magic 2 and down again gives the same bytes as never going there."""
    sent = build_set(magic, 0, rows)
    up = stored(sent, 2).body
    assert to_legacy(read(up), magic, Codec.NONE, Work()) == sent

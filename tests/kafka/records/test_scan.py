"""Runs of records of one shape: found where they are, and never where they are not."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsemark.kafka.records import InvalidRecordSetError
from pulsemark.kafka.records import batch as batches
from pulsemark.kafka.records.scan import LEAST_RECORDS, scan_records, uniform_run

from .conftest import TIME_MS, Row, build_set


def uniform(count: int, key: int | None, value: int | None, step_ms: int, flag: int = 0) -> bytes:
    """The records of a batch that are all alike."""
    rng = random.Random(count)
    rows = [
        Row(
            None if key is None else rng.randbytes(key),
            None if value is None else rng.randbytes(value),
            TIME_MS + n * step_ms,
            (),
            flag,
        )
        for n in range(count)
    ]
    return build_set(2, 0, rows)[61:]


@pytest.mark.parametrize("key", [None, 0, 8, 70])
@pytest.mark.parametrize("value", [None, 0, 9, 63, 64, 200, 9000])
@pytest.mark.parametrize("step_ms", [0, 1, 100])
def test_runs_are_found(key: int | None, value: int | None, step_ms: int) -> None:
    """A run reaches to where a number gets longer, and says what its records have."""
    raw = uniform(40, key, value, step_ms)
    # After record 0 all deltas of 100 ms have two bytes; those of 1 ms have one.
    start = len(uniform(1, key, value, 0))
    run = uniform_run(raw, start, 1, 40)
    assert run is not None
    assert (run.records, run.end) == (39, len(raw))
    assert run.latest == 39 * step_ms
    assert run.has_key is (key is not None)
    assert run.is_null is (value is None)
    assert not run.flagged


def test_flags_are_seen() -> None:
    """The tombstone flag of a run's records is reported."""
    run = uniform_run(uniform(20, 1, 1, 0, 0x20), 0, 0, 20)
    assert run is not None
    assert run.flagged


def test_offsets_end_a_run_where_they_get_longer() -> None:
    """Offset deltas have one byte up to 63, two up to 8191, then three; a run has 8,192 of them."""
    raw = uniform(17_000, None, 4, 0)
    first = uniform_run(raw, 0, 0, 17_000)
    assert first is not None
    assert first.records == 64
    second = uniform_run(raw, first.end, 64, 17_000)
    assert second is not None
    assert second.records == 8192 - 64
    third = uniform_run(raw, second.end, 8192, 17_000)
    assert third is not None
    assert third.records == 8192
    scan = scan_records(raw, 17_000, TIME_MS)
    assert (scan.count, scan.numbered, scan.max_time_ms) == (17_000, True, TIME_MS)


@pytest.mark.parametrize("place", [2, 3, 4])
def test_a_wrong_offset_of_three_bytes_is_seen(place: int) -> None:
    """Whichever of its bytes is wrong, the records are not numbered 0, 1, 2 ..."""
    raw = bytearray(uniform(17_000, None, 4, 0))
    raw[len(raw) - 500 * 13 + 1 + place] ^= 2
    assert not scan_records(bytes(raw), 17_000, TIME_MS).numbered


@pytest.mark.parametrize("seed", range(12))
def test_one_changed_byte(seed: int) -> None:
    """A change anywhere in a run is seen as it is by reading record by record."""
    rng = random.Random(seed)
    raw = uniform(60, rng.choice((None, 3)), rng.choice((None, 5, 80)), rng.choice((0, 1, 90)))
    header = batches.read_header(build_set(2))._replace(record_count=60, base_time_ms=TIME_MS)
    for _ in range(150):
        changed = bytearray(raw)
        changed[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
        data = bytes(changed)
        try:
            records = list(batches.read_records(header, data))
        except InvalidRecordSetError:
            with pytest.raises(InvalidRecordSetError):
                scan_records(data, 60, TIME_MS)
            continue
        scan = scan_records(data, 60, TIME_MS)
        assert scan.numbered == ([r.offset for r in records] == list(range(60)))
        assert scan.max_time_ms == max(r.time_ms for r in records)
        assert scan.keys == sum(r.key is not None for r in records)
        assert scan.flags == sum(r.flagged for r in records)
        assert scan.nulls == sum(r.value is None and not r.flagged for r in records)


PIECES = st.lists(
    st.tuples(
        st.integers(1, 30),
        st.sampled_from([None, 0, 5]),
        st.sampled_from([None, 0, 7, 100]),
        st.sampled_from([-70, -1, 0, 1, 40]),
        st.sampled_from([0, 0x20]),
        st.booleans(),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=100, deadline=None)
@given(PIECES)
def test_any_mixture_of_runs(
    pieces: list[tuple[int, int | None, int | None, int, int, bool]],
) -> None:
    """Runs one after another, with headers between them and times both ways, are all counted."""
    rows: list[Row] = []
    for count, key, value, step_ms, flag, with_headers in pieces:
        row = Row(
            None if key is None else b"k" * key, None if value is None else b"v" * value,
            TIME_MS, ((b"h", b"v"),) if with_headers else (), flag,
        )  # fmt: skip
        rows += [replace(row, time_ms=TIME_MS + n * step_ms) for n in range(count)]
    raw = build_set(2, 0, rows)[61:]
    scan = scan_records(raw, len(rows), TIME_MS)
    assert scan.numbered
    assert scan.max_time_ms == max(row.time_ms for row in rows)
    assert scan.keys == sum(row.key is not None for row in rows)
    assert scan.flags == sum(bool(row.attributes) for row in rows)
    assert scan.nulls == sum(row.value is None and not row.attributes for row in rows)


def test_short_runs_are_not_worth_it() -> None:
    """Fewer alike records than the least are read one by one."""
    assert uniform_run(uniform(LEAST_RECORDS - 1, None, 5, 0), 0, 0, LEAST_RECORDS - 1) is None
    assert uniform_run(uniform(LEAST_RECORDS, None, 5, 0), 0, 0, LEAST_RECORDS) is not None

"""Arrow arrays from spans and numbers."""

from __future__ import annotations

import base64

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsemark.pipeline.decode.gather import (
    gather,
    maps,
    small_integers,
    text,
    timestamps,
    without_base64,
)
from pulsemark.pipeline.decode.protoscan import ABSENT


@given(
    parts=st.lists(st.tuples(st.binary(max_size=5), st.none() | st.binary(max_size=5)), max_size=20)
)
def test_gathered_spans_are_the_bytes_they_span(parts: list[tuple[bytes, bytes | None]]) -> None:
    """Values with anything between them, empty ones and absent ones."""
    data, starts, ends = b"", [], []
    for between, value in parts:
        data += between
        starts.append(ABSENT if value is None else len(data))
        data += value or b""
        ends.append(ABSENT if value is None else len(data))
    made = gather(data, np.array(starts, np.int64), np.array(ends, np.int64))
    assert made.type == pa.binary()
    assert made.to_pylist() == [value for _, value in parts]


def test_gathering_beyond_arrow_s_offsets_is_refused() -> None:
    """More than 2 GiB in one buffer would wrap around; it is an error instead."""

    class Huge(bytes):
        def __len__(self) -> int:
            return 2**31

    with pytest.raises(ValueError, match="2147483648 bytes"):
        gather(Huge(b"x"), np.array([0]), np.array([1]))


def test_text_replaces_what_is_not_utf8() -> None:
    """A column with one bad value keeps all others."""
    values = pa.array([b"a", None, b"\xff", "ü".encode()], pa.binary())
    assert text(values).to_pylist() == ["a", None, "�", "ü"]


def test_base64_is_undone_only_where_it_is_said() -> None:
    """And what is not base64 stays."""
    packed = base64.b64encode(b"\x00\x01")
    values = pa.array([packed, packed, b"!", None], pa.binary())
    plain = without_base64(values, np.array([True, False, True, True]))
    assert plain.to_pylist() == [b"\x00\x01", packed, b"!", None]


def test_times_that_spark_cannot_show_are_null() -> None:
    """Absent, negative (beyond 2^63 on the wire), and after the year 9999."""
    times = np.array([0, 1, 253_402_300_799_999, 253_402_300_800_000, -1, ABSENT, 2**62])
    shown = timestamps(times)
    assert shown.cast(pa.int64()).to_pylist() == [0, 1000, 253_402_300_799_999_000, *[None] * 4]


def test_integers_beyond_32_bits_are_null() -> None:
    """As are absent ones."""
    made = small_integers(np.array([0, 2**31 - 1, 2**31, ABSENT, -5]))
    assert made.type == pa.int32()
    assert made.to_pylist() == [0, 2**31 - 1, None, None, None]


def test_pairs_become_the_maps_of_their_rows() -> None:
    """Rows without pairs have an empty map."""
    keys, values = pa.array([b"a", b"b", b"c"]), pa.array([b"1", b"", b"3"])
    type_ = pa.map_(pa.string(), pa.string())
    made = maps(np.array([1, 1, 3]), keys, values, 5, type_)
    assert made.to_pylist() == [[], [("a", "1"), ("b", "")], [], [("c", "3")], []]

"""Compressed payloads: the formats, the exact size, the hard limit."""

from __future__ import annotations

import pickle
import sys
import tracemalloc
import zlib

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsemark.metadata.compression import (
    CompressionUnavailableError,
    DecompressionError,
    compress,
    decompress,
)

LIMIT_BYTES = 1 << 20
NONE, LZ4, ZLIB, ZSTD, SNAPPY = range(5)
COMPRESSED = [LZ4, ZLIB, ZSTD, SNAPPY]
ALL = [NONE, *COMPRESSED]
BY_CRAMJAM = [LZ4, ZSTD, SNAPPY]
ORACLES = {
    LZ4: lambda data: pa.compress(data, codec="lz4_raw", asbytes=True),
    ZLIB: lambda data: zlib.compress(data, 9),
    ZSTD: lambda data: pa.compress(data, codec="zstd", asbytes=True),
    SNAPPY: lambda data: pa.compress(data, codec="snappy", asbytes=True),
}
ARROW_NAMES = {LZ4: "lz4_raw", ZSTD: "zstd", SNAPPY: "snappy"}

texts = st.one_of(
    st.binary(max_size=2000),
    st.builds(lambda part, times: part * times, st.binary(max_size=20), st.integers(0, 300)),
)


@pytest.mark.parametrize("compression", ALL)
@given(data=texts)
def test_both_ways(compression, data):
    """What is compressed opens to the same bytes, from any kind of buffer."""
    packed = compress(compression, data)
    for buffer in (packed, bytearray(packed), memoryview(packed)):
        assert decompress(compression, buffer, len(data), LIMIT_BYTES) == data


@pytest.mark.parametrize("compression", COMPRESSED)
@given(data=texts)
def test_another_library_agrees(compression, data):
    """Payloads made by another library open, and that library opens ours."""
    assert decompress(compression, ORACLES[compression](data), len(data), LIMIT_BYTES) == data
    if not data:
        return
    ours = compress(compression, data)
    if compression == ZLIB:
        assert zlib.decompress(ours) == data
        return
    name = ARROW_NAMES[compression]
    assert pa.decompress(ours, decompressed_size=len(data), codec=name, asbytes=True) == data


@pytest.mark.parametrize("compression", COMPRESSED)
@given(data=texts.filter(bool), off_by=st.integers(-3, 3).filter(bool))
def test_the_stated_size_must_be_exact(compression, data, off_by):
    """A payload that holds more or fewer bytes than its header states does not open."""
    stated = len(data) + off_by
    if stated <= 0:
        return
    with pytest.raises(DecompressionError, match=f"stated {stated}") as caught:
        decompress(compression, compress(compression, data), stated, LIMIT_BYTES)
    assert caught.value.compression == compression


@pytest.mark.parametrize("compression", COMPRESSED)
@given(damage=st.binary(max_size=60))
def test_any_bytes_open_or_are_refused(compression, damage):
    """Arbitrary bytes give a payload of the stated size or the one typed error."""
    try:
        opened = decompress(compression, damage, 40, LIMIT_BYTES)
    except DecompressionError:
        return
    assert len(opened) == 40


@pytest.mark.parametrize("compression", COMPRESSED)
def test_a_bomb_is_not_opened(compression):
    """However small the compressed bytes, no more memory is taken than the header states."""
    bomb = compress(compression, bytes(64 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(DecompressionError, match="the limit is 1048576"):
            decompress(compression, bomb, 64 << 20, LIMIT_BYTES)
        with pytest.raises(DecompressionError, match="do not open"):
            decompress(compression, bomb, 1000, LIMIT_BYTES)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("compression", COMPRESSED)
def test_no_size_means_empty(compression):
    """A stated size of 0 is an empty payload, whatever the compressed bytes are."""
    assert decompress(compression, b"", 0, LIMIT_BYTES) == b""
    assert decompress(compression, compress(compression, b""), 0, LIMIT_BYTES) == b""


def test_not_compressed():
    """Without compression the payload is as it is; the stated size means nothing, as in Pulsar."""
    assert decompress(NONE, b"abc", 99, 1) == b"abc"


def test_unknown_compression():
    """A number that Pulsar has not given out is refused both ways."""
    with pytest.raises(DecompressionError, match="compression 9: unknown") as caught:
        decompress(9, b"", 0, LIMIT_BYTES)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    with pytest.raises(ValueError, match="unknown compression 9"):
        compress(9, b"")


@pytest.mark.parametrize("compression", BY_CRAMJAM)
def test_missing_library(compression, monkeypatch):
    """Without the library the error says which extra brings it; ZLIB goes on working."""
    monkeypatch.setitem(sys.modules, "cramjam", None)
    for call in (
        lambda: decompress(compression, b"x", 1, LIMIT_BYTES),
        lambda: compress(compression, b"x"),
    ):
        with pytest.raises(
            CompressionUnavailableError, match=r"pulsemark\[compression\]"
        ) as caught:
            call()
        assert caught.value.compression == compression
        copy = pickle.loads(pickle.dumps(caught.value))
        assert (type(copy), str(copy)) == (type(caught.value), str(caught.value))
    assert decompress(ZLIB, compress(ZLIB, b"x"), 1, LIMIT_BYTES) == b"x"

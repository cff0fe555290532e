import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import crcmod.predefined
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsemark.metadata import crc, crc32c

# An implementation that shares nothing with the one in use.
oracle_crc32c = crcmod.predefined.mkPredefinedCrcFun("crc-32c")

# RFC 3720 (iSCSI), appendix B.4, and the check value that catalogues of CRCs give.
VECTORS = [
    (b"", 0x00000000),
    (b"123456789", 0xE3069283),
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
]
KINDS: list[Callable[[bytes], Any]] = [
    bytes,
    bytearray,
    memoryview,
    lambda data: memoryview(bytearray(b"<" + data))[1:],
]


def load_without_the_native_package(monkeypatch):
    """The module as it is on a machine that has no crc32c package, beside the real one."""
    monkeypatch.setitem(sys.modules, "crc32c", None)
    spec = importlib.util.spec_from_file_location("pulsemark.metadata.crc_by_crcmod", crc.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("data", "expected"), VECTORS)
@pytest.mark.parametrize("kind", KINDS)
def test_published_vectors(data, expected, kind):
    """The published check values come out for every kind of buffer."""
    assert crc32c(kind(data)) == expected


@settings(deadline=None)
@given(st.binary(max_size=300), st.integers(0, 300))
def test_equal_to_an_independent_implementation(data, cut):
    """Any bytes give crcmod's number, at once or continued from any place."""
    expected = oracle_crc32c(data)
    assert crc32c(data) == expected
    assert crc32c(data[cut:], crc32c(data[:cut])) == expected


def test_large_buffers():
    """Sizes at which the native package changes its ways give the same numbers."""
    data = bytes(range(256)) * 1024
    for size in (1023, 1024, 32 * 1024 - 1, 32 * 1024, 32 * 1024 + 1, len(data)):
        assert crc32c(memoryview(data)[:size]) == oracle_crc32c(data[:size])


def test_fallback_warns_and_agrees(monkeypatch):
    """Without the native package crcmod serves, after one warning, with the same numbers."""
    with pytest.warns(RuntimeWarning, match="crcmod"):
        fallback = load_without_the_native_package(monkeypatch)
    assert fallback.crc32c is not crc.crc32c
    for data, expected in VECTORS:
        for kind in KINDS:
            assert fallback.crc32c(kind(data)) == expected
    assert fallback.crc32c(b"6789", fallback.crc32c(b"12345")) == 0xE3069283


def test_no_implementation_at_all(monkeypatch):
    """With neither package the import fails, rather than some later checksum."""
    monkeypatch.setitem(sys.modules, "crcmod", None)
    with pytest.raises(ImportError, match="crcmod"):
        load_without_the_native_package(monkeypatch)

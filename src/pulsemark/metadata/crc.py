"""CRC32C (Castagnoli), the checksum of Pulsar's messages and of this store's records; `Buffer`.

The crc32c package computes it in hardware, at some 20 GB/s and on any buffer. On a platform without
a wheel of that package, crcmod is used instead. crcmod is correct but very slow, so a warning is
given once, when this module is first imported. `IMPLEMENTATION` says which one it is. Both can
continue a checksum from an earlier value, so parts in separate buffers need not be joined:
`crc32c(b, crc32c(a)) == crc32c(a + b)`.

`Buffer` is the type of the codecs' input: bytes in any of Python's three forms, contiguous and
one-dimensional. Parts of it are returned as memoryviews that share its memory. No function in this
package copies a payload.
"""

from __future__ import annotations

import warnings
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview


class Crc32c(Protocol):
    """The signature of both implementations."""

    def __call__(self, data: Buffer, value: int = 0, /) -> int:
        """The unsigned CRC32C of `data`, continued from `value`; no copy is made."""


def _native() -> Crc32c:
    """The implementation of the package crc32c. Raises ImportError.

    The package itself imports a command line and the metadata of all packages, which takes a
    tenth of a broker's start, so its module in C is loaded alone, where it is found.
    """
    package = find_spec("crc32c")
    if package is None:
        raise ImportError("there is no package crc32c", name="crc32c")
    found = PathFinder.find_spec("crc32c._crc32c", package.submodule_search_locations)
    if found is None or found.loader is None:
        from crc32c import crc32c as native
    else:
        module = module_from_spec(found)
        found.loader.exec_module(module)
        native = module.crc32c
    chosen: Crc32c = native
    return chosen


def _fallback() -> Crc32c:
    """The implementation of crcmod, after a warning that it is slow."""
    import crcmod.predefined

    warnings.warn(
        "the crc32c package is missing: checksums come from crcmod, which is more than 50 times "
        "slower, and 2,500 times where it lacks its C part",
        RuntimeWarning,
        stacklevel=2,
    )
    slow: Crc32c = crcmod.predefined.mkPredefinedCrcFun("crc-32c")
    return slow


IMPLEMENTATION: str
"""The package that computes the checksums: `crc32c`, or `crcmod`."""
# The implementation itself: a wrapper would cost as much as the checksum of a small record.
crc32c: Crc32c
try:
    IMPLEMENTATION, crc32c = "crc32c", _native()
except ImportError:
    IMPLEMENTATION, crc32c = "crcmod", _fallback()

r"""The ``.cut`` file beside a segment: how many of its first entries were removed.

Whole segments are removed by removing their files. Where a cut falls inside one, this file says
so, written as a whole and synced before the entries disappear, so that every reader of the folder
agrees; then the space is given back by punching a hole. All integers are little-endian::

     0  magic "PMKCUT\r\n"    8
     8  version              u16
    10  features             u16
    12  segment number       u32
    16  ledger id            u64
    24  removed entries      u32
    28  CRC32C of all before u32
"""

from __future__ import annotations

import logging
import struct
from pathlib import Path

from ..metadata.crc import crc32c
from .errors import UnsupportedVersionError
from .files import Files, read_file, write_file_durably

CUT_MAGIC = b"PMKCUT\r\n"
CUT_VERSION = 1
_CUT = struct.Struct("<8sHHIQI")
_U32 = struct.Struct("<I")
CUT_SIZE = _CUT.size + _U32.size
_log = logging.getLogger(__name__)


def cut_path(segment: Path) -> Path:
    """The cut file beside a segment."""
    return segment.with_suffix(".cut")


def write_cut(files: Files, segment: Path, ledger_id: int, segment_no: int, rows: int) -> None:
    """Make it durable that the first ``rows`` entries are removed."""
    body = _CUT.pack(CUT_MAGIC, CUT_VERSION, 0, segment_no, ledger_id, rows)
    write_file_durably(files, cut_path(segment), body + _U32.pack(crc32c(body)))


def read_cut(files: Files, segment: Path, ledger_id: int, segment_no: int) -> int:
    """How many entries are removed; 0 where there is no such file, or none that can be trusted.

    Raises UnsupportedVersionError.
    """
    rows, problem = examine_cut(files, segment, ledger_id, segment_no)
    if problem is not None:
        _log.warning("%s: %s: entries that were removed are back", cut_path(segment), problem)
    return rows


def examine_cut(
    files: Files, segment: Path, ledger_id: int, segment_no: int
) -> tuple[int, str | None]:
    """How many entries are removed, and what is wrong with the file; None: nothing.

    Raises UnsupportedVersionError.
    """
    path = cut_path(segment)
    try:
        data = read_file(files, path)
    except FileNotFoundError:
        return 0, None
    if len(data) != CUT_SIZE:
        return 0, f"it has {len(data)} bytes, not {CUT_SIZE}"
    magic, version, features, number, ledger, rows = _CUT.unpack_from(data)
    if crc32c(data[: _CUT.size]) != _U32.unpack_from(data, _CUT.size)[0] or magic != CUT_MAGIC:
        return 0, "it does not match its checksum"
    if version > CUT_VERSION or features:
        raise UnsupportedVersionError(path, "cut version", version, CUT_VERSION)
    if (ledger, number) != (ledger_id, segment_no):
        return 0, f"it is that of segment {ledger}-{number}"
    return int(rows), None

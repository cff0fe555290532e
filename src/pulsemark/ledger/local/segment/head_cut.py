r"""The ``.cut`` file of a segment: how many of its first entries were removed.

Whole segments are removed with their files. If a cut falls inside a segment, this file says so. It
is written as a whole and synced before the entries disappear, so that every reader of the folder
agrees; then the space is freed by punching a hole. All integers are little-endian::

     0  magic "PMKCUT\r\n"    8
     8  version              u16
    10  features             u16
    12  segment number       u32
    16  ledger id            u64
    24  largest entry time   u64  of the removed entries and all before them, ms
    32  largest append time  u64  of the segment's entries when it was cut, ms
    40  end of the last one  u64  byte of the segment where the entries that stay begin
    48  removed entries      u32
    52  removed messages     u32
    56  CRC32C of all before u32

So times, indexes and addresses of the entries that stay can be computed without the removed ones,
even if all were removed and the index file is lost.
"""

from __future__ import annotations

import logging
import struct
from dataclasses import dataclass
from pathlib import Path

from ....metadata.crc import crc32c
from ...errors import UnsupportedVersionError
from ..io.files import Files, read_file, write_file_durably

CUT_MAGIC = b"PMKCUT\r\n"
CUT_VERSION = 1
_CUT = struct.Struct("<8sHHIQQQQII")
_U32 = struct.Struct("<I")
CUT_SIZE = _CUT.size + _U32.size
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HeadCut:
    """The content of a cut file."""

    rows: int = 0
    """How many of the segment's first entries are removed."""
    message_count: int = 0
    """How many messages those hold."""
    end_offset: int = 0
    """Where in the segment the entries that stay begin."""
    entry_time_max_ms: int = 0
    """Largest entry time of the removed entries and of all before them."""
    append_time_max_ms: int = 0
    """Largest append time of the segment's entries when it was cut."""


NO_CUT = HeadCut()


def cut_path(segment: Path) -> Path:
    """The cut file of a segment."""
    return segment.with_suffix(".cut")


def pack_cut(ledger_id: int, segment_no: int, cut: HeadCut) -> bytes:
    """The file's bytes."""
    body = _CUT.pack(
        CUT_MAGIC,
        CUT_VERSION,
        0,
        segment_no,
        ledger_id,
        cut.entry_time_max_ms,
        cut.append_time_max_ms,
        cut.end_offset,
        cut.rows,
        cut.message_count,
    )
    return body + _U32.pack(crc32c(body))


def write_cut(files: Files, segment: Path, ledger_id: int, segment_no: int, cut: HeadCut) -> None:
    """Write the cut file, durably."""
    write_file_durably(files, cut_path(segment), pack_cut(ledger_id, segment_no, cut))


def read_cut(files: Files, segment: Path, ledger_id: int, segment_no: int) -> HeadCut:
    """What was removed; nothing if there is no cut file, or it is damaged.

    Raises UnsupportedVersionError.
    """
    cut, problem = examine_cut(files, segment, ledger_id, segment_no)
    if problem is not None:
        _log.warning(
            "%s: %s; the entries that it removed are in the topic again", cut_path(segment), problem
        )
    return cut


def examine_cut(
    files: Files, segment: Path, ledger_id: int, segment_no: int
) -> tuple[HeadCut, str | None]:
    """What was removed, and what is wrong with the file (None: nothing).

    Raises UnsupportedVersionError.
    """
    path = cut_path(segment)
    try:
        data = read_file(files, path)
    except FileNotFoundError:
        return NO_CUT, None
    if len(data) != CUT_SIZE:
        return NO_CUT, f"it has {len(data)} bytes, not {CUT_SIZE}"
    (magic, version, features, number, ledger,
     entry_time_ms, append_time_ms, end, rows, messages) = _CUT.unpack_from(data)  # fmt: skip
    if crc32c(data[: _CUT.size]) != _U32.unpack_from(data, _CUT.size)[0] or magic != CUT_MAGIC:
        return NO_CUT, "it does not match its checksum"
    if version > CUT_VERSION or features:
        raise UnsupportedVersionError(path, "cut version", version, CUT_VERSION)
    if (ledger, number) != (ledger_id, segment_no):
        return NO_CUT, f"it belongs to segment {ledger}-{number}"
    return HeadCut(rows, messages, end, entry_time_ms, append_time_ms), None

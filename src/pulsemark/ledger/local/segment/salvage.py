"""Reading segment headers: the one place that does, damaged ones included.

A header has one checksum: a single wrong bit makes it unusable, though the records after it are
whole. The index file has a second copy, which is used then. If that is damaged too, or missing as
in version 1, one flipped bit is found by trying: with the bit flipped back, the checksum matches
again. Both ways are exact, and nothing else is tried: records can only be found with the secret in
the header, and a guess could take what a client put into a body for a record.

Nothing is written: the damaged bytes stay, and every reader comes to the same header.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ...errors import CorruptFileError
from ..io.files import Files, read_up_to
from ..io.folder import SegmentId, segment_path
from .index_file import open_index
from .segment_format import (
    SEGMENT_HEADER_LIMIT,
    SEGMENT_MAGIC,
    SegmentHeader,
    header_size_field,
    stated_header_size,
    unpack_segment_header,
)

_log = logging.getLogger(__name__)


def read_beginning(files: Files, path: Path) -> bytes:
    """The first bytes of a segment's file, enough for any header. Raises OSError."""
    with files.opened(path) as fd:
        return read_up_to(files, fd, SEGMENT_HEADER_LIMIT, 0)


def read_segment_header(files: Files, path: Path) -> SegmentHeader:
    """The header at the beginning of a file. Raises CorruptFileError, UnsupportedVersionError."""
    return unpack_segment_header(read_beginning(files, path), path)


def read_named_header(files: Files, folder: Path, segment_id: SegmentId) -> SegmentHeader:
    """The header of a segment's file. Raises CorruptFileError, UnsupportedVersionError, OSError."""
    path = segment_path(folder, *segment_id)
    header = read_segment_header(files, path)
    if header.segment_id != segment_id:
        other = "{}-{}".format(*header.segment_id)
        raise CorruptFileError(path, f"its header belongs to segment {other}")
    return header


def restored_header(
    files: Files, path: Path, segment_id: SegmentId, beginning: bytes
) -> SegmentHeader | None:
    """The restored header; None: it is lost. Raises UnsupportedVersionError, OSError."""
    copies = [beginning]  # it may have been half written when it was read before
    with open_index(files, path, segment_id) as index:
        if index is not None:
            copies.append(index.second_header())
    for copy in copies:
        with suppress(CorruptFileError):
            header = unpack_segment_header(copy, path)
            if header.segment_id == segment_id:
                return header
    corrected = correct_header(beginning, path)
    return corrected if corrected is not None and corrected.segment_id == segment_id else None


def correct_header(data: bytes, path: Path) -> SegmentHeader | None:
    """The header with one bit flipped back; None if that does not make it whole."""
    work = bytearray(data)
    for bit in range(8 * stated_header_size(data)):
        work[bit >> 3] ^= 1 << (bit & 7)
        try:
            return unpack_segment_header(work, path)
        except CorruptFileError:
            work[bit >> 3] ^= 1 << (bit & 7)
    return None


def may_be_half_written(beginning: bytes) -> bool:
    """Whether these are the first bytes of a header that is not yet written completely."""
    if not any(beginning):
        return True
    if not beginning.startswith(SEGMENT_MAGIC[: len(beginning)]):
        return False
    size = header_size_field(beginning)
    return size is None or len(beginning) < size <= SEGMENT_HEADER_LIMIT


def read_headers(
    files: Files, folder: Path, segment_ids: Iterable[SegmentId]
) -> tuple[dict[SegmentId, SegmentHeader], dict[SegmentId, Exception]]:
    """Segments' headers, and why headers are lost. Raises OSError, UnsupportedVersionError."""
    headers: dict[SegmentId, SegmentHeader] = {}
    unread: dict[SegmentId, Exception] = {}
    for segment_id in segment_ids:
        try:
            headers[segment_id] = read_named_header(files, folder, segment_id)
        except (FileNotFoundError, CorruptFileError) as error:
            unread[segment_id] = error
    headers |= salvage_headers(files, folder, unread)
    return headers, {each: why for each, why in unread.items() if each not in headers}


def salvage_headers(
    files: Files, folder: Path, damaged: Iterable[SegmentId]
) -> dict[SegmentId, SegmentHeader]:
    """The headers of damaged segments that can be restored. Raises as `read_headers`."""
    salvaged = {}
    for segment_id in sorted(damaged):
        path = segment_path(folder, *segment_id)
        try:
            header = restored_header(files, path, segment_id, read_beginning(files, path))
        except FileNotFoundError:
            continue
        if header is not None:
            salvaged[segment_id] = header
            _log.error("%s: its header is damaged; it was restored in memory", path)
    return salvaged


def may_have_held_records(files: Files, folder: Path, segment_id: SegmentId) -> bool:
    """Whether a segment without a usable header can have held records. Raises OSError."""
    path = segment_path(folder, *segment_id)
    beginning = read_beginning(files, path)
    with suppress(CorruptFileError):
        unpack_segment_header(beginning, path)  # of another segment: the file was renamed
        return False
    return not may_be_half_written(beginning)

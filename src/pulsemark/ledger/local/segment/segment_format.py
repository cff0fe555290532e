"""Bytes of a segment file's header, and of its cut file; `record_format` has those of the records.

docs/formats.md has the tables of all fields; no other module computes their offsets. Magic,
version, features, header size and checksum keep their places in all later versions: so a newer
header is known to be whole before it is called unsupported.

With the secret, no client can forge a record: its first four bytes are the marker of this segment's
records, its last four are part of their headers' checksums. If a record is damaged, the next one is
looked for by that marker, and bytes that a producer put into a body do not match it. So no answer,
message or error may carry the secret out of the data folder. The index file has a second copy of
the whole header (see `index_file`). In version 1 the marker is the same in every segment and the
checksum has no secret part; such segments are read, and never written.

**The file of a cut**, ``.cut``, says how many of a segment's first entries were removed. Whole
segments are removed with their files. If a cut falls inside a segment, this file is written as a
whole and synced before the entries disappear, so that every reader of the folder agrees; then the
space is freed by punching a hole. With it times, indexes and addresses of the entries that stay can
be computed without the removed ones, even if all were removed and the index file is lost.
"""

from __future__ import annotations

import logging
import os
import struct
from dataclasses import astuple, field
from pathlib import Path

from ....metadata.crc import crc32c
from ....records import record
from ...errors import CorruptFileError, UnsupportedVersionError
from ...limits import MAX_TOPIC_NAME_BYTES
from ...run import RunHeader
from ..io.files import Buffer, Files, read_file, write_file_durably
from ..io.folder import SegmentId
from .record_format import RecordKey

_log = logging.getLogger(__name__)

SEGMENT_MAGIC = b"PMKSEGM\n"
SEGMENT_VERSION = 2
KNOWN_FEATURES = 0
SECRET_SIZE = 8

_FIXED = struct.Struct("<8sHHIQIIQQQQQqQI")
_U32 = struct.Struct("<I")
assert _FIXED.size == 92

VERSION_1_MARKER = b"\xf7PM\x1e"
"""The marker of every record in segments of version 1."""

_LEDGER_ID = struct.Struct("<Q")


def version_1_key(ledger_id: int) -> RecordKey:
    """The key of segments of version 1: anyone who has the ledger id can compute it."""
    return RecordKey(VERSION_1_MARKER, crc32c(_LEDGER_ID.pack(ledger_id)))


def new_secret() -> bytes:
    """A secret for a new file. Its marker has no zero byte, which never written space has."""
    while True:
        secret = os.urandom(SECRET_SIZE)
        if all(secret[:4]):
            return secret


@record(frozen=True)
class SegmentHeader(RunHeader):
    """The header of a segment; enough to rebuild a topic without the catalog."""

    secret: bytes = field(default=b"", repr=False)
    """What makes the segment's records its own (see `new_secret`); empty: a segment of version 1.
    Not to be shown to clients, nor written into messages."""

    @property
    def segment_id(self) -> SegmentId:
        """Ledger id and segment number."""
        return self.ledger_id, self.segment_no

    @property
    def version(self) -> int:
        """Version of the segment's format."""
        return 2 if self.secret else 1

    @property
    def record_key(self) -> RecordKey:
        """The key of the segment's records."""
        if not self.secret:
            return version_1_key(self.ledger_id)
        ledger_id = _LEDGER_ID.pack(self.ledger_id)
        return RecordKey(self.secret[:4], crc32c(ledger_id + self.secret[4:]))

    def pack(self) -> bytes:
        """The header's bytes, checksum included."""
        name = self.topic.encode()
        size = self.size_bytes
        fixed = _FIXED.pack(
            SEGMENT_MAGIC,
            self.version,
            0,
            size,
            self.ledger_id,
            self.segment_no,
            self.epoch,
            self.topic_id,
            self.first_entry_id,
            self.first_index,
            self.entry_time_floor_ms,
            self.stamp_floor_ms,
            self.previous_ledger_id,
            self.previous_entry_count,
            len(name),
        )
        body = (fixed + name).ljust(size - len(self.secret) - _U32.size, b"\0") + self.secret
        return body + _U32.pack(crc32c(body))

    @property
    def size_bytes(self) -> int:
        """The header's size: the offset of the first record."""
        return _padded(_FIXED.size + len(self.topic.encode()) + len(self.secret) + _U32.size)


SEGMENT_HEADER_LIMIT = 8192
"""Read this much to have any segment header whole."""
_SIZE_END = 16
"""Where the field with the header's size ends."""


def unpack_segment_header(data: Buffer, path: Path) -> SegmentHeader:
    """Parse the beginning of a segment file. Raises CorruptFileError, UnsupportedVersionError."""
    body = _checked_header(data, path)
    (_, version, _, size, ledger_id, segment_no, epoch, topic_id, first_entry_id,
     first_index, entry_time_floor, stamp_floor, previous_id, previous_count,
     name_size) = _FIXED.unpack_from(data)  # fmt: skip
    secret_size = SECRET_SIZE if version > 1 else 0
    fitting = _padded(_FIXED.size + name_size + secret_size + _U32.size)
    if name_size > MAX_TOPIC_NAME_BYTES or size != fitting:
        raise CorruptFileError(path, f"segment header of {size} bytes, name of {name_size}")
    try:
        topic = body[_FIXED.size : _FIXED.size + name_size].decode()
    except UnicodeDecodeError as error:
        raise CorruptFileError(path, "topic name is not UTF-8") from error
    return SegmentHeader(
        topic=topic,
        topic_id=topic_id,
        ledger_id=ledger_id,
        segment_no=segment_no,
        first_entry_id=first_entry_id,
        first_index=first_index,
        entry_time_floor_ms=entry_time_floor,
        stamp_floor_ms=stamp_floor,
        previous_ledger_id=previous_id,
        previous_entry_count=previous_count,
        epoch=epoch,
        secret=body[len(body) - secret_size :],
    )


def _checked_header(data: Buffer, path: Path) -> bytes:
    """The header's bytes up to its checksum, which matches, in a known version."""
    if len(data) < _FIXED.size or bytes(data[:8]) != SEGMENT_MAGIC:
        raise CorruptFileError(path, "it does not begin with a segment header")
    _, version, features, size, *_ = _FIXED.unpack_from(data)
    if not _FIXED.size < size <= SEGMENT_HEADER_LIMIT:
        raise CorruptFileError(path, f"segment header of {size} bytes")
    if len(data) < size:
        raise CorruptFileError(path, f"segment header cut at {len(data)} of {size} bytes")
    body = bytes(data[: size - 4])
    if crc32c(body) != _U32.unpack_from(data, size - 4)[0]:
        raise CorruptFileError(path, "segment header checksum does not match")
    # Only after the checksum: a flipped bit in the version must not look like a newer version.
    if version > SEGMENT_VERSION:
        raise UnsupportedVersionError(path, "segment version", version, SEGMENT_VERSION)
    if features & ~KNOWN_FEATURES:
        raise UnsupportedVersionError(path, "segment features", features, KNOWN_FEATURES)
    return body


def header_size_field(data: Buffer) -> int | None:
    """The header's size, from its field; None if the bytes end before it."""
    if len(data) < _SIZE_END:
        return None
    (size,) = _U32.unpack_from(data, _SIZE_END - _U32.size)
    return int(size)


def stated_header_size(data: Buffer) -> int:
    """The size that a header, maybe damaged, states; at least the size up to that field."""
    size = header_size_field(data)
    if size is None:
        return len(data)
    return size if _FIXED.size < size <= min(len(data), SEGMENT_HEADER_LIMIT) else _SIZE_END


def _padded(size: int) -> int:
    return (size + 7) & ~7


CUT_MAGIC = b"PMKCUT\r\n"
CUT_VERSION = 1
_CUT = struct.Struct("<8sHHIQQQQII")
CUT_SIZE = _CUT.size + _U32.size


@record(frozen=True)
class HeadCut:
    """The content of a cut file, with the fields in its order."""

    entry_time_max_ms: int = 0
    """Largest entry time of the removed entries and of all before them."""
    append_time_max_ms: int = 0
    """Largest append time of the segment's entries when it was cut."""
    end_offset: int = 0
    """The offset in the segment of the first entry that stays."""
    rows: int = 0
    """How many of the segment's first entries are removed."""
    message_count: int = 0
    """How many messages those hold."""


NO_CUT = HeadCut()


def cut_path(segment: Path) -> Path:
    """The cut file of a segment."""
    return segment.with_suffix(".cut")


def pack_cut(ledger_id: int, segment_no: int, cut: HeadCut) -> bytes:
    """The file's bytes."""
    body = _CUT.pack(CUT_MAGIC, CUT_VERSION, 0, segment_no, ledger_id, *astuple(cut))
    return body + _U32.pack(crc32c(body))


def write_cut(files: Files, segment: Path, ledger_id: int, segment_no: int, cut: HeadCut) -> None:
    """Write the cut file, durably."""
    write_file_durably(files, cut_path(segment), pack_cut(ledger_id, segment_no, cut))


def read_cut(files: Files, segment: Path, ledger_id: int, segment_no: int) -> HeadCut:
    """The head cut in the cut file, if the file is good. Raises UnsupportedVersionError."""
    cut, problem = examine_cut(files, segment, ledger_id, segment_no)
    if problem is not None:
        _log.warning(
            "%s: %s; the entries that it removed are in the topic again", cut_path(segment), problem
        )
    return cut


def examine_cut(
    files: Files, segment: Path, ledger_id: int, segment_no: int
) -> tuple[HeadCut, str | None]:
    """The head cut, and the fault of the file or None. Raises UnsupportedVersionError."""
    path = cut_path(segment)
    try:
        data = read_file(files, path)
    except FileNotFoundError:
        return NO_CUT, None
    if len(data) != CUT_SIZE:
        return NO_CUT, f"it has {len(data)} bytes, not {CUT_SIZE}"
    magic, version, features, number, ledger, *numbers = _CUT.unpack_from(data)
    if crc32c(data[: _CUT.size]) != _U32.unpack_from(data, _CUT.size)[0] or magic != CUT_MAGIC:
        return NO_CUT, "it does not match its checksum"
    if version > CUT_VERSION or features:
        raise UnsupportedVersionError(path, "cut version", version, CUT_VERSION)
    if (ledger, number) != (ledger_id, segment_no):
        return NO_CUT, f"it belongs to segment {ledger}-{number}"
    return HeadCut(*numbers), None

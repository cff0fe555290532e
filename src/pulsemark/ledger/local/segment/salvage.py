"""Segment headers made again where their bytes are damaged, so that the entries stay readable.

A header is under one checksum: a single wrong bit makes it unusable, though the records after it
are whole. The index file has a second copy of it, which then counts; where that is gone, too, one
flipped bit is found by trying: turned back, the checksum matches again. Both are exact. Without
either, nothing of the segment is readable: its records can only be told by the header's secret,
and to guess would be to believe what a client may have put into a body.

Segments of version 1 have no second copy, and their records carry the same marker everywhere. Of
those, what the header said is put together from what is left, the surest first:

1. One flipped bit, as above.
2. Ledger and segment number stand in the file's name.
3. The topic: what the owner's catalog says; else another segment of the same ledger, or a ledger
   that names this one as the one before it; else the name in the rotten bytes, if it is one and
   the first record stands where that name would put it.
4. First entry and first index: by a whole record and its row in the index file; without one, by a
   record that stands right behind the header.
5. The ledger before: what another segment of this ledger says; else the newest older ledger of
   the topic that begins below this one's first index (a ledger that was given up begins at the
   same). How many of its entries count is then not known; the first index tells.
6. Time floors and leader epoch: the index files, the first record, the segment before.

A damaged segment is taken for one of version 1 only where something says so (`_is_version_1`).
Nothing is written: the damaged bytes stay what they are, and every reader comes to the same header.
A segment of version 1 without a whole record is not salvaged: there is nothing in it to read.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ....metadata import PrefixError, peek
from ....proto.broker_entry_pb2 import CONTROL_LEADER_CHANGE
from ...errors import CorruptFileError
from ..io.files import Files, read_up_to
from ..io.folder import SegmentId, index_path, segment_path
from .index_format import (
    CHUNK_HEADER_SIZE,
    CHUNK_ROWS,
    INDEX_HEADER_SIZE,
    ROW_SIZE,
    TRAILER_SIZE,
    BadIndexError,
    Chunk,
    Trailer,
    index_seed,
    pack_index_header,
    unpack_chunk,
    unpack_index_version,
    unpack_trailer,
)
from .scan import ScannedRecord, scan_records
from .segment import read_segment_header
from .segment_format import (
    RECORD_HEADER_SIZE,
    SEGMENT_HEADER_LIMIT,
    SEGMENT_MAGIC,
    UNKNOWN_COUNT,
    SegmentHeader,
    header_size_field,
    told_header_size,
    told_topic,
    told_version,
    unpack_segment_header,
)

_log = logging.getLogger(__name__)

Identity = tuple[str, int]
"""Name and id of a topic."""
_CHUNK_BYTES = CHUNK_HEADER_SIZE + CHUNK_ROWS * ROW_SIZE


def read_named_header(files: Files, folder: Path, segment_id: SegmentId) -> SegmentHeader:
    """The header of a segment's file, which must be of that segment.

    Raises CorruptFileError, UnsupportedVersionError, OSError.
    """
    path = segment_path(folder, *segment_id)
    header = read_segment_header(files, path)
    if _id(header) != segment_id:
        raise CorruptFileError(path, "its header is that of segment {}-{}".format(*_id(header)))
    return header


def salvage_headers(
    files: Files,
    folder: Path,
    rotten: Iterable[SegmentId],
    good: Iterable[SegmentHeader],
    identity: Identity | None = None,
) -> dict[SegmentId, SegmentHeader]:
    """Headers for those of the ``rotten`` segments that can have one again.

    ``good`` are the headers that could be read: all of the folder, or of one topic, whose
    ``identity`` is then given. Raises OSError, UnsupportedVersionError.
    """
    known = {(header.ledger_id, header.segment_no): header for header in good}
    salvaged = {}
    for segment_id in sorted(rotten):
        try:
            header = _Salvage(files, folder, segment_id, known, identity).header()
        except FileNotFoundError:
            continue
        if header is not None:
            known[segment_id] = salvaged[segment_id] = header
            path = segment_path(folder, *segment_id)
            _log.error("%s has a damaged header; it was put together again", path)
    return salvaged


def has_records(files: Files, folder: Path, segment_id: SegmentId) -> bool:
    """Whether there is a record in a segment without a usable header. Raises OSError.

    Records of version 2 cannot be told without the secret in the header.
    """
    fd = files.open(segment_path(folder, *segment_id), os.O_RDONLY)
    try:
        return _first_record(files, fd, segment_id) is not None
    finally:
        files.close(fd)


def may_have_held_records(files: Files, folder: Path, segment_id: SegmentId) -> bool:
    """Whether a segment without a usable header can have held records. Raises OSError.

    Not where its header is a whole one, of another segment, or can be one whose first write is
    under way.
    """
    path = segment_path(folder, *segment_id)
    fd = files.open(path, os.O_RDONLY)
    try:
        beginning = read_up_to(files, fd, SEGMENT_HEADER_LIMIT, 0)
    finally:
        files.close(fd)
    with suppress(CorruptFileError):
        unpack_segment_header(beginning, path)
        return has_records(files, folder, segment_id)
    return not _may_be_under_way(beginning)


def _may_be_under_way(beginning: bytes) -> bool:
    """Whether these are the first bytes of a header, and not yet all of them."""
    if not any(beginning):
        return True
    if not beginning.startswith(SEGMENT_MAGIC[: len(beginning)]):
        return False
    size = header_size_field(beginning)
    return size is None or len(beginning) < size <= SEGMENT_HEADER_LIMIT


def correct_header(data: bytes, path: Path) -> SegmentHeader | None:
    """The header with one flipped bit turned back; None where that does not make it whole."""
    work = bytearray(data)
    for bit in range(8 * told_header_size(data)):
        work[bit >> 3] ^= 1 << (bit & 7)
        try:
            return unpack_segment_header(work, path)
        except CorruptFileError:
            work[bit >> 3] ^= 1 << (bit & 7)
    return None


@dataclass(frozen=True, slots=True)
class _Start:
    """Where a segment begins in its ledger and in the topic."""

    first_entry_id: int
    first_index: int


class _Salvage:
    """The work on one segment."""

    def __init__(
        self,
        files: Files,
        folder: Path,
        segment_id: SegmentId,
        known: Mapping[SegmentId, SegmentHeader],
        identity: Identity | None,
    ) -> None:
        self._files = files
        self._folder = folder
        self._id = segment_id
        self._path = segment_path(folder, *segment_id)
        self._known = known
        self._identity = identity

    def header(self) -> SegmentHeader | None:
        """The header, if the segment can have one again."""
        fd = self._files.open(self._path, os.O_RDONLY)
        try:
            data = read_up_to(self._files, fd, SEGMENT_HEADER_LIMIT, 0)
            for find in (self._as_it_is, self._second_copy, correct_header):
                header = find(data, self._path)
                if header is not None and _id(header) == self._id:
                    return header
            if not self._is_version_1(data):
                return None
            record = _first_record(self._files, fd, self._id)
        finally:
            self._files.close(fd)
        if record is None:
            return None
        identity = self._identity or self._identity_by_neighbours() or self._told(data, record)
        if identity is None:
            return None
        chunk = _first_chunk(self._files, self._path, self._id)
        return self._put_together(identity, record, chunk)

    @staticmethod
    def _as_it_is(data: bytes, path: Path) -> SegmentHeader | None:
        """The header, if it is whole: it may just have been under way."""
        with suppress(CorruptFileError):
            return unpack_segment_header(data, path)
        return None

    def _second_copy(self, _: bytes, path: Path) -> SegmentHeader | None:
        """The index file's copy of the header, if it is whole."""
        copy = _read_index(self._files, path, INDEX_HEADER_SIZE, SEGMENT_HEADER_LIMIT)
        with suppress(CorruptFileError):
            return unpack_segment_header(copy, path)
        return None

    def _is_version_1(self, data: bytes) -> bool:
        """Whether this is a segment of version 1: ledgers with higher ids are never older.

        Else what stands in its bodies might be taken for its records.
        """
        index = _read_index(self._files, self._path, 0, INDEX_HEADER_SIZE)
        version = unpack_index_version(index)
        if version is not None:
            return version == 1
        headers = self._known.values()
        if any(h.version == 1 and h.ledger_id >= self._id[0] for h in headers):
            return True
        if self._known:
            return all(h.version == 1 for h in headers)
        return told_version(data) == 1

    def _identity_by_neighbours(self) -> Identity | None:
        for header in self._known.values():
            if self._id[0] in (header.ledger_id, header.previous_ledger_id):
                return header.topic, header.topic_id
        return None

    def _told(self, data: bytes, record: ScannedRecord) -> Identity | None:
        """What the rotten bytes say, if it can be true."""
        told = told_topic(data)
        if told is None or _header_size(told[0]) != record.offset:
            return None
        ids = {h.topic_id for h in self._known.values() if h.topic == told[0]}
        return told if not ids or told[1] in ids else (told[0], max(ids))

    def _put_together(
        self, identity: Identity, record: ScannedRecord, chunk: Chunk | None
    ) -> SegmentHeader:
        ledger_id, segment_no = self._id
        mine = sorted(
            (h for h in self._known.values() if h.topic_id == identity[1]),
            key=lambda h: (h.ledger_id, h.segment_no),
        )
        start = self._start(identity[0], record, chunk)
        sibling = next((h for h in mine if h.ledger_id == ledger_id), None)
        before = _ledger_before(mine, ledger_id, start.first_index)
        if sibling is not None:
            previous = sibling.previous_ledger_id, sibling.previous_entry_count
            epoch = sibling.epoch
        else:
            previous = (before.ledger_id, UNKNOWN_COUNT) if before else (-1, 0)
            epoch = _epoch_of(record) or (before.epoch if before else 0)
        entry_floor, stamp_floor = self._floors(mine, previous[0])
        if chunk is not None:
            entry_floor = chunk.time_before_ms
        return SegmentHeader(
            topic=identity[0],
            topic_id=identity[1],
            ledger_id=ledger_id,
            segment_no=segment_no,
            first_entry_id=start.first_entry_id,
            first_index=start.first_index,
            entry_time_floor_ms=entry_floor,
            stamp_floor_ms=stamp_floor,
            previous_ledger_id=previous[0],
            previous_entry_count=previous[1],
            epoch=epoch,
        )

    def _start(self, topic: str, record: ScannedRecord, chunk: Chunk | None) -> _Start:
        fields = record.fields
        if chunk is not None:
            row = bisect_left(chunk.offsets, record.offset)
            if row < len(chunk.offsets) and chunk.offsets[row] == record.offset:
                first_index = fields.index + 1 - chunk.nexts[row]
                return _Start(max(0, fields.entry_id - row), max(0, first_index))
        first_index = max(0, fields.index + 1 - fields.message_count)
        if record.offset == _header_size(topic):
            return _Start(fields.entry_id, first_index)
        # The first records are rotten, too: at least one entry is lost.
        end = self._end_of_segment_before()
        return _Start(max(0, fields.entry_id - 1) if end is None else end, first_index)

    def _end_of_segment_before(self) -> int | None:
        """Where the segment before this one ends in the same ledger; None: not known."""
        ledger_id, segment_no = self._id
        if segment_no == 0:
            return 0
        before = self._known.get((ledger_id, segment_no - 1))
        if before is None:
            return None
        path = segment_path(self._folder, ledger_id, segment_no - 1)
        trailer = _trailer(self._files, path, (ledger_id, segment_no - 1))
        return before.first_entry_id + trailer.row_count if trailer else None

    def _floors(self, mine: Sequence[SegmentHeader], previous_ledger_id: int) -> tuple[int, int]:
        """Highest entry time and append time before this segment, as far as they are known."""
        ledgers = (previous_ledger_id, self._id[0])
        before = [h for h in mine if h.ledger_id in ledgers and _id(h) < self._id]
        if not before:
            return 0, 0
        path = segment_path(self._folder, *_id(before[-1]))
        trailer = _trailer(self._files, path, _id(before[-1]))
        if trailer is None:
            return before[-1].entry_time_floor_ms, before[-1].stamp_floor_ms
        return trailer.entry_time_max_ms, trailer.append_time_max_ms


def _first_record(files: Files, fd: int, segment_id: SegmentId) -> ScannedRecord | None:
    """The first record with a right header, wherever it stands."""
    bare = SegmentHeader("", 0, *segment_id, 0, 0, 0, 0, -1, 0)
    return next(scan_records(files, fd, bare, 0, 0, known_start=False), None)


def _ledger_before(
    mine: Sequence[SegmentHeader], ledger_id: int, first_index: int
) -> SegmentHeader | None:
    """Of the ledger before: its last header. ``mine`` are in order."""
    begins: dict[int, int] = {}
    for header in mine:
        begins.setdefault(header.ledger_id, header.first_index)
    return next(
        (
            header
            for header in reversed(mine)
            if header.ledger_id < ledger_id and begins[header.ledger_id] < first_index
        ),
        None,
    )


def _epoch_of(record: ScannedRecord) -> int:
    """The leader epoch that a ledger's first record begins; 0: it begins none."""
    if record.fields.entry_id:
        return 0
    try:
        metadata = peek(record.data[RECORD_HEADER_SIZE:])
    except PrefixError:
        return 0
    if metadata is None or metadata.control_type != CONTROL_LEADER_CHANGE:
        return 0
    return metadata.leader_epoch


def _first_chunk(files: Files, segment: Path, segment_id: SegmentId) -> Chunk | None:
    """The first chunk of a segment's index file, if it is good."""
    data = _read_index(files, segment, 0, INDEX_HEADER_SIZE + _CHUNK_BYTES)
    if data[:INDEX_HEADER_SIZE] != pack_index_header(*segment_id):
        return None
    try:
        return unpack_chunk(data[INDEX_HEADER_SIZE:], index_seed(*segment_id), 0)
    except BadIndexError:
        return None


def _trailer(files: Files, segment: Path, segment_id: SegmentId) -> Trailer | None:
    return unpack_trailer(_read_index(files, segment, -TRAILER_SIZE), index_seed(*segment_id))


def _read_index(files: Files, segment: Path, start: int, size: int = TRAILER_SIZE) -> bytes:
    """Bytes of a segment's index file from ``start`` (negative: from its end); b"" without one."""
    try:
        fd = files.open(index_path(segment), os.O_RDONLY)
    except FileNotFoundError:
        return b""
    try:
        return read_up_to(files, fd, size, start if start >= 0 else max(0, files.size(fd) + start))
    finally:
        files.close(fd)


def _header_size(topic: str) -> int:
    return SegmentHeader(topic, 0, 0, 0, 0, 0, 0, 0, -1, 0).size_bytes


def _id(header: SegmentHeader) -> SegmentId:
    return header.ledger_id, header.segment_no

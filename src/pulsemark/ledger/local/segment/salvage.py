"""Reading segment headers: the one place that does, damaged ones included.

A header has one checksum: a single wrong bit makes it unusable, though the records after it are
whole. In version 2 the index file has a second copy, which is used then. If that is damaged too,
one flipped bit is found by trying: with the bit flipped back, the checksum matches again. Both ways
are exact, and nothing else is tried: records of version 2 can only be found with the secret in the
header, and a guess could take what a client put into a body for a record. For segments of version
1, which have no second copy, there is `_Salvage`.

Nothing is written: the damaged bytes stay, and every reader comes to the same header.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ....metadata import PrefixError, peek
from ....proto.broker_entry_pb2 import CONTROL_LEADER_CHANGE
from ...errors import CorruptFileError
from ...run import UNKNOWN_COUNT
from ..io.files import Files, read_up_to
from ..io.folder import SegmentId, segment_path
from .index_file import BadIndexError, Chunk, Trailer, open_index, pack_index_header
from .record_format import RECORD_HEADER_SIZE
from .scan import ScannedRecord, scan_records
from .segment_format import (
    SEGMENT_HEADER_LIMIT,
    SEGMENT_MAGIC,
    SegmentHeader,
    header_size_field,
    stated_header_size,
    stated_topic,
    stated_version,
    unpack_segment_header,
)

_log = logging.getLogger(__name__)


def read_beginning(files: Files, path: Path) -> bytes:
    """The first bytes of a segment's file, enough for any header. Raises OSError."""
    fd = files.open(path, os.O_RDONLY)
    try:
        return read_up_to(files, fd, SEGMENT_HEADER_LIMIT, 0)
    finally:
        files.close(fd)


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


Identity = tuple[str, int]
"""Name and id of a topic."""


def read_headers(
    files: Files, folder: Path, segment_ids: Iterable[SegmentId], identity: Identity
) -> tuple[dict[SegmentId, SegmentHeader], dict[SegmentId, Exception]]:
    """One topic's headers, and why headers are lost. Raises OSError, UnsupportedVersionError."""
    headers: dict[SegmentId, SegmentHeader] = {}
    unread: dict[SegmentId, Exception] = {}
    for segment_id in segment_ids:
        try:
            headers[segment_id] = read_named_header(files, folder, segment_id)
        except (FileNotFoundError, CorruptFileError) as error:
            unread[segment_id] = error
    if unread:
        headers |= salvage_headers(files, folder, unread, headers.values(), identity)
    return headers, {each: why for each, why in unread.items() if each not in headers}


def salvage_headers(
    files: Files,
    folder: Path,
    damaged: Iterable[SegmentId],
    good: Iterable[SegmentHeader],
    identity: Identity | None = None,
) -> dict[SegmentId, SegmentHeader]:
    """New headers for ``damaged`` segments that can be salvaged; ``good`` are all others.

    If these are of one topic, its ``identity`` is given. Raises OSError, UnsupportedVersionError.
    """
    known = {header.segment_id: header for header in good}
    salvaged = {}
    for segment_id in sorted(damaged):
        try:
            header = _header(files, folder, segment_id, known, identity)
        except FileNotFoundError:
            continue
        if header is not None:
            known[segment_id] = salvaged[segment_id] = header
            path = segment_path(folder, *segment_id)
            _log.error(
                "%s: its header is damaged; it was made again from its copy and the records", path
            )
    return salvaged


def has_records(files: Files, folder: Path, segment_id: SegmentId) -> bool:
    """Whether there is a record of version 1 in a segment without a header. Raises OSError."""
    fd = files.open(segment_path(folder, *segment_id), os.O_RDONLY)
    try:
        return _first_record(files, fd, segment_id) is not None
    finally:
        files.close(fd)


def may_have_held_records(files: Files, folder: Path, segment_id: SegmentId) -> bool:
    """Whether a segment without a usable header can have held records. Raises OSError."""
    path = segment_path(folder, *segment_id)
    beginning = read_beginning(files, path)
    with suppress(CorruptFileError):
        unpack_segment_header(beginning, path)
        return has_records(files, folder, segment_id)
    return not may_be_half_written(beginning)


def _header(
    files: Files,
    folder: Path,
    segment_id: SegmentId,
    known: Mapping[SegmentId, SegmentHeader],
    identity: Identity | None,
) -> SegmentHeader | None:
    """The header of a damaged segment, if it can be salvaged."""
    path = segment_path(folder, *segment_id)
    beginning = read_beginning(files, path)
    header = restored_header(files, path, segment_id, beginning)
    if header is None and _is_version_1(files, path, segment_id, known, beginning):
        return _Salvage(files, folder, segment_id, known, identity).header(beginning)
    return header


def _is_version_1(
    files: Files,
    path: Path,
    segment_id: SegmentId,
    known: Mapping[SegmentId, SegmentHeader],
    beginning: bytes,
) -> bool:
    """Whether this is a segment of version 1: ledgers with higher ids are never older."""
    with open_index(files, path, segment_id) as index:
        version = index.version() if index is not None else None
    if version is not None:
        return version == 1
    headers = known.values()
    if any(h.version == 1 and h.ledger_id >= segment_id[0] for h in headers):
        return True
    if known:
        return all(h.version == 1 for h in headers)
    return stated_version(beginning) == 1


class _Salvage:
    """A segment of version 1 whose header is lost."""

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

    def header(self, beginning: bytes) -> SegmentHeader | None:
        """The rebuilt header; None if the segment has no record to read."""
        fd = self._files.open(self._path, os.O_RDONLY)
        try:
            record = _first_record(self._files, fd, self._id)
        finally:
            self._files.close(fd)
        if record is None:
            return None
        identity = self._identity or self._identity_by_neighbours()
        identity = identity or self._stated_identity(beginning, record)
        if identity is None:
            return None
        chunk = _first_chunk(self._files, self._path, self._id)
        return self._put_together(identity, record, chunk)

    def _identity_by_neighbours(self) -> Identity | None:
        for header in self._known.values():
            if self._id[0] in (header.ledger_id, header.previous_ledger_id):
                return header.topic, header.topic_id
        return None

    def _stated_identity(self, data: bytes, record: ScannedRecord) -> Identity | None:
        """The topic in the damaged bytes, if it can be true."""
        stated = stated_topic(data)
        if stated is None or _header_size(stated[0]) != record.offset:
            return None
        ids = {h.topic_id for h in self._known.values() if h.topic == stated[0]}
        return stated if not ids or stated[1] in ids else (stated[0], max(ids))

    def _put_together(
        self, identity: Identity, record: ScannedRecord, chunk: Chunk | None
    ) -> SegmentHeader:
        ledger_id, segment_no = self._id
        mine = sorted(
            (h for h in self._known.values() if h.topic_id == identity[1]),
            key=lambda h: (h.ledger_id, h.segment_no),
        )
        first_entry_id, first_index = self._start(identity[0], record, chunk)
        sibling = next((h for h in mine if h.ledger_id == ledger_id), None)
        before = _ledger_before(mine, ledger_id, first_index)
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
            first_entry_id=first_entry_id,
            first_index=first_index,
            entry_time_floor_ms=entry_floor,
            stamp_floor_ms=stamp_floor,
            previous_ledger_id=previous[0],
            previous_entry_count=previous[1],
            epoch=epoch,
        )

    def _start(self, topic: str, record: ScannedRecord, chunk: Chunk | None) -> tuple[int, int]:
        """The first entry id and first index of the segment."""
        fields = record.fields
        if chunk is not None:
            row = bisect_left(chunk.offsets, record.offset)
            if row < len(chunk.offsets) and chunk.offsets[row] == record.offset:
                first_index = fields.index + 1 - chunk.nexts[row]
                return max(0, fields.entry_id - row), max(0, first_index)
        first_index = max(0, fields.index + 1 - fields.message_count)
        if record.offset == _header_size(topic):
            return fields.entry_id, first_index
        # The first records are damaged, too: at least one entry is lost.
        end = self._end_of_segment_before()
        return (max(0, fields.entry_id - 1) if end is None else end), first_index

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
        """Highest entry time and append time before this segment, as far as known."""
        ledgers = (previous_ledger_id, self._id[0])
        before = [h for h in mine if h.ledger_id in ledgers and h.segment_id < self._id]
        if not before:
            return 0, 0
        path = segment_path(self._folder, *before[-1].segment_id)
        trailer = _trailer(self._files, path, before[-1].segment_id)
        if trailer is None:
            return before[-1].entry_time_floor_ms, before[-1].stamp_floor_ms
        return trailer.entry_time_max_ms, trailer.append_time_max_ms


def _first_record(files: Files, fd: int, segment_id: SegmentId) -> ScannedRecord | None:
    """The first record with a good header, at any offset."""
    bare = SegmentHeader("", 0, *segment_id, 0, 0, 0, 0, -1, 0)
    return next(scan_records(files, fd, bare, 0, 0, known_start=False), None)


def _ledger_before(
    mine: Sequence[SegmentHeader], ledger_id: int, first_index: int
) -> SegmentHeader | None:
    """The last header of the previous ledger. ``mine`` are in order."""
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
    """The leader epoch that a ledger's first record begins; 0: it does not begin an epoch."""
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
    """The first chunk of the index file of a segment of version 1, if it is not damaged."""
    head = pack_index_header(*segment_id)
    with open_index(files, segment, segment_id) as index, suppress(BadIndexError):
        if index is not None and index.begins_with(head):
            return index.chunk(0, len(head))
    return None


def _trailer(files: Files, segment: Path, segment_id: SegmentId) -> Trailer | None:
    with open_index(files, segment, segment_id) as index:
        return index.trailer() if index is not None else None


def _header_size(topic: str) -> int:
    return SegmentHeader(topic, 0, 0, 0, 0, 0, 0, 0, -1, 0).size_bytes

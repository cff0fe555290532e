"""Writes segments of a data folder that is being made: given headers, positions and indexes.

A store gives indexes and times by itself. A migration keeps those of its source, so it writes the
records, by the ledger's own functions. Index files are left out: the folder's first opening makes
them from the records. A segment is written under another name, synced and renamed.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from ...ledger.admission import body_check_of
from ...ledger.entry_time import time_of_entry
from ...ledger.limits import BODY_CRC_OURS, MAX_RUN_BYTES
from ...ledger.local.io.files import OsFiles
from ...ledger.local.io.folder import segment_path
from ...ledger.local.segment.head_cut import HeadCut, write_cut
from ...ledger.local.segment.record_format import pack_body_crc, pack_record_head
from ...ledger.local.segment.segment_format import SegmentHeader, new_secret
from ...metadata import Buffer, crc32c
from ..errors import MigrateError

__all__ = ["Digest", "NewRecord", "Written", "write_segment"]

_DIGEST = struct.Struct("<QQqI")


@dataclass(frozen=True, slots=True)
class NewRecord:
    """One record to write, at the next entry id."""

    kind: int
    message_count: int
    append_time_ms: int
    index: int
    prefix: bytes
    body: Buffer
    """The producer's bytes."""


@dataclass(frozen=True, slots=True)
class Digest:
    """Entries, messages, bytes of bodies, and a checksum of (position, index, body) of each."""

    entries: int = 0
    messages: int = 0
    body_bytes: int = 0
    checksum: int = 0

    def plus(self, position: tuple[int, int], count: int, index: int, body: Buffer) -> Digest:
        """The digest with one more entry."""
        facts = _DIGEST.pack(*position, index, crc32c(body))
        return Digest(
            self.entries + 1,
            self.messages + count,
            self.body_bytes + len(body),
            crc32c(facts, self.checksum),
        )


@dataclass(frozen=True, slots=True)
class Written:
    """One segment that is there as a whole, and the sums up to its end."""

    ledger_id: int
    segment_no: int
    end_entry_id: int
    next_index: int
    entry_time_max_ms: int
    """Of the topic, up to the segment's end."""
    append_time_max_ms: int
    digest: Digest
    """Of the topic, up to the segment's end."""
    added: int
    """Entries of the topic whose prefix is another one than in the source."""
    place: tuple[int, int] | None = None
    """Where the source is read on; None: by the plan."""

    def to_json(self) -> dict[str, Any]:
        """As a file has it."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Written:
        """From `to_json`."""
        place = content["place"]
        return cls(
            **{
                **content,
                "digest": Digest(**content["digest"]),
                "place": None if place is None else (place[0], place[1]),
            }
        )


def write_segment(
    folder: Path,
    header: SegmentHeader,
    records: Iterable[NewRecord],
    digest: Digest,
    *,
    cut: HeadCut | None = None,
) -> tuple[SegmentHeader, Digest, int, int, int, int]:
    """Write a segment with a secret of its own.

    ``cut`` is what was removed from the segment's head in the source; its records are not written,
    and keep their entry ids.

    Returns:
        The header, the digest with these entries, the entry id and the index after them, and the
        topic's highest entry time and append time.

    Raises:
        MigrateError: the segment would be larger than a segment can be.
        OSError: it could not be written.
    """
    header = replace(header, secret=new_secret())
    path = segment_path(folder, header.ledger_id, header.segment_no)
    temporary = path.with_name(f".{path.name}.new")
    temporary.touch(0o600)
    with temporary.open("wb", buffering=1 << 20) as file:
        state = _write_records(file, header, records, digest, cut)
        file.flush()
        os.fsync(file.fileno())
    if cut is not None and cut.rows:
        moved = replace(cut, end_offset=header.size_bytes)
        write_cut(OsFiles(), path, header.ledger_id, header.segment_no, moved)
    temporary.replace(path)
    return (header, *state)


def _write_records(
    file: BinaryIO,
    header: SegmentHeader,
    records: Iterable[NewRecord],
    digest: Digest,
    cut: HeadCut | None,
) -> tuple[Digest, int, int, int, int]:
    size_bytes = file.write(header.pack())
    entry_id = header.first_entry_id + (0 if cut is None else cut.rows)
    next_index = header.first_index + (0 if cut is None else cut.message_count)
    time_max_ms, append_max_ms = header.entry_time_floor_ms, header.stamp_floor_ms
    key = header.record_key
    for record in records:
        body_check = body_check_of(header.topic, record.body)
        head = pack_record_head(
            key,
            entry_id,
            record.kind,
            record.message_count,
            record.append_time_ms,
            record.index,
            record.prefix,
            record.body,
            body_check,
        )
        size_bytes += file.write(head) + file.write(record.body)
        if body_check == BODY_CRC_OURS:
            size_bytes += file.write(pack_body_crc(record.body))
        if size_bytes > MAX_RUN_BYTES:
            reason = f"segment {header.ledger_id}-{header.segment_no} would be above 4 GiB"
            raise MigrateError(header.topic, reason)
        digest = digest.plus(
            (header.ledger_id, entry_id), record.message_count, record.index, record.body
        )
        time_ms = time_of_entry(record.append_time_ms, record.prefix, record.body)
        time_max_ms = max(time_max_ms, time_ms)
        append_max_ms = max(append_max_ms, record.append_time_ms)
        next_index = record.index + 1
        entry_id += 1
    return digest, entry_id, next_index, time_max_ms, append_max_ms

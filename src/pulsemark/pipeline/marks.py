"""Marks: the last entry of a copy of a log, by which a later run checks that it is the same log.

Index and topic id alone do not suffice. If an older copy of the folder is restored, or the log's
tail is cut off, indexes are given again to other messages. So an offload, a stream or a replay
keeps a `Mark` of the last entry that it has: ledger, entry, epoch, and a checksum. Entries are only
added behind an entry. So if that one is the same, those before it are the same.

Marks are kept in manifests, checkpoints and offsets. Those of earlier versions have none; then only
the indexes are compared. A mark is compared while its entry is in the log; retention may have
removed it.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

from ..ledger import CorruptEntryError, Position, Run, TopicLog
from ..ledger.local.segment.segment_format import SegmentHeader
from ..maintenance.expected import Expected
from .errors import DataLossError
from .plan import indexes_of, row_of

_FACTS = struct.Struct("<QQQqQ")


@dataclass(frozen=True, slots=True)
class Mark:
    """The entry that has the last message of a copy."""

    epoch: int
    """The leader epoch of its ledger."""
    ledger_id: int
    entry_id: int
    checksum: str
    """A checksum of its bytes and its place; empty: it was damaged, or was not read."""

    def to_json(self) -> list[Any]:
        """A list for JSON."""
        return list(astuple(self))

    @classmethod
    def from_json(cls, values: Sequence[Any] | None) -> Mark | None:
        """The mark of such a list; None for None. Raises ValueError, TypeError."""
        if values is None:
            return None
        epoch, ledger_id, entry_id, checksum = values
        return cls(int(epoch), int(ledger_id), int(entry_id), str(checksum))


def mark_of(log: TopicLog, index: int) -> Mark | None:
    """The mark of a copy that has all messages before ``index``.

    None if the message before it is not there: the log begins at this index, or later.
    """
    place = row_of(log, index - 1) if log.first_index < index <= log.next_index else None
    if place is None:
        return None
    run, row = place
    if run.index_before(row) >= index:
        return None  # the message is lost; this entry comes after it
    position = run.position(row)
    return Mark(run.header.epoch, *position, _checksum(log, run, position))


def loss_since(log: TopicLog, index: int, mark: Mark | None, expected: Expected) -> str | None:
    """The reason why a copy that ends before ``index`` cannot go on in this log; None if it can.

    Messages removed by retention since, or lost after the copy, are no such reason.
    """
    if log.next_index < index:
        reason = "the topic ends before: its tail was cut off, or an older copy was restored"
        return expected.lost_after(log) or reason
    if mark is None or expected.may_have_held(mark.ledger_id):
        return None
    position = Position(mark.ledger_id, mark.entry_id)
    if log.first_position is None or position < log.first_position:
        return None if log.first_index >= index else why_other(mark)
    return _why_not_there(log, index, mark, position)


def why_other(mark: Mark) -> str:
    """The reason why a copy with this mark cannot go on in another log."""
    return (
        f"the topic's entry {mark.ledger_id}:{mark.entry_id} of epoch {mark.epoch}, with which"
        " the copy ended, is gone or is another one now: the log's tail was cut off, an older copy"
        " was restored, or the topic was created again, and it gives indexes again"
    )


def check_place(log: TopicLog, index: int, mark: Mark | None, expected: Expected) -> None:
    """Check that a copy that ends before ``index`` can go on in this log.

    Raises DataLossError: messages after it were trimmed or lost, or the log is another one.
    """
    reason = loss_since(log, index, mark, expected)
    if reason is not None and log.next_index < index:
        raise DataLossError(log.name, log.next_index, index, reason)
    if reason is not None:
        raise DataLossError(log.name, None, index, reason)
    if index < log.first_index:
        reason = expected.lost_before(log) or "the topic was trimmed before they were read"
        raise DataLossError(log.name, index, log.first_index, reason)


def _why_not_there(log: TopicLog, index: int, mark: Mark, position: Position) -> str | None:
    """Why the marked entry, which has the message before ``index``, is not there; None if it is.

    An entry that was readable and is not any more counts as gone: its file may have been shortened,
    though the index file beside it still names the entry.
    """
    indexes = indexes_of(log, position)
    if indexes is None or not indexes[0] < index <= indexes[1]:
        return why_other(mark)
    run = next(run for run, _, _ in log.stretches(position))
    if run.header.epoch != mark.epoch:
        return why_other(mark)
    if not mark.checksum or run.may_wait:
        return None
    checksum = _checksum(log, run, position)
    if not checksum:
        return (
            f"the topic's entry {mark.ledger_id}:{mark.entry_id}, with which the copy ended, can no"
            " longer be read: its file was shortened or damaged"
        )
    return None if checksum == mark.checksum else why_other(mark)


def _checksum(log: TopicLog, run: Run, position: Position) -> str:
    """A checksum of an entry and of its segment; empty if it cannot be read.

    A segment's secret goes into it, because a segment that is written again has another one. The
    hash does not give the secret away. A store that never gives a ledger's id again needs none.
    """
    if run.may_wait:
        return ""
    try:
        (entry,) = log.read(position, max_entries=1)
    except (CorruptEntryError, FileNotFoundError, ValueError):
        return ""
    if entry.position != position:
        return ""
    secret = run.header.secret if isinstance(run.header, SegmentHeader) else b""
    facts = _FACTS.pack(*entry.position, entry.message_count, entry.index, entry.append_time_ms)
    digest = hashlib.sha256(secret + facts)
    digest.update(entry.stored)
    return digest.hexdigest()[:16]

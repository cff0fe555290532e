"""The findings of `verify` in a data folder: one class for each kind, with facts for programs.

There are three severities. DAMAGE: durable data was changed, or contradicts other data; entries may
be lost or wrong. LEFTOVER: data that never counted, or no longer counts, and still takes space; a
crash leaves such data, and it does no harm. NOTE: worth knowing.

Positions are half-open: ``end`` is one past the last entry.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from enum import IntEnum
from pathlib import Path
from typing import Any, ClassVar, dataclass_transform

from ..ledger.position import Position


class Severity(IntEnum):
    """The severity of a finding."""

    NOTE = 0
    LEFTOVER = 1
    DAMAGE = 2


@dataclass_transform(kw_only_default=True, frozen_default=True)
class _Kind:
    """Makes each class a dataclass; ``text`` is what was found, with fields in braces."""

    _text: ClassVar[str]

    def __init_subclass__(cls, *, text: str = "") -> None:
        cls._text = text
        dataclass(frozen=True, kw_only=True)(cls)


class Finding(_Kind):
    """One finding. ``topic`` and ``path`` are None where they are not known or do not apply."""

    level: ClassVar[Severity]
    topic: str | None = None
    #: A file or folder, or the address of a store.
    path: str | os.PathLike[str] | None = None

    @property
    def severity(self) -> Severity:
        """The severity of the finding."""
        return self.level

    @property
    def place(self) -> str:
        """The entries or the entry; empty if the finding is about a file."""
        known = self._values()
        if "first" in known:
            return entry_range(known["first"], known["end"])
        return str(known.get("position", ""))

    @property
    def what(self) -> str:
        """What was found, as text, without topic, place and path."""
        return self._text.format(**self._values())

    def _values(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def facts(self) -> dict[str, object]:
        """All facts, for programs: kind, severity, the fields, the text."""
        return {
            "kind": type(self).__name__,
            "severity": self.severity.name.lower(),
            **{name: _plain(value) for name, value in self._values().items()},
            "what": self.what,
        }

    def __str__(self) -> str:
        where = [text for text in (self.topic, self.place) if text]
        file = f" ({self.path})" if self.path is not None else ""
        return f"{self.severity.name.lower()}: {' '.join([*where, self.what])}{file}"


def _plain(value: object) -> object:
    if isinstance(value, Position):
        return {"ledger_id": value.ledger_id, "entry_id": value.entry_id}
    return str(value) if isinstance(value, Path) else value


def entry_range(first: Position, end: Position) -> str:
    """Entries from ``first`` up to, and without, ``end``, as text."""
    if end == Position(first.ledger_id, first.entry_id + 1):
        return f"entry {first}"
    return f"entries {first} to {Position(end.ledger_id, end.entry_id - 1)}"


class Damage(Finding):
    """Durable data was changed, or contradicts other data."""

    level = Severity.DAMAGE


class DamagedEntries(Damage, text="damaged at byte {offset}: {reason}"):
    """Entries whose records are damaged; what follows them is readable."""

    first: Position
    end: Position
    offset: int
    """The place in the file."""
    reason: str


class LostEntries(Damage):
    """Entries that were durable, by a header or an index file, and whose records are missing."""

    first: Position
    end: Position
    message_count: int | None
    """None: not known."""
    reason: str

    @property
    def what(self) -> str:
        messages = "" if self.message_count is None else f" ({self.message_count} messages)"
        return f"lost{messages}: {self.reason}"


class IndexGap(Damage):
    """Indexes that no message has or, if the index found is lower, that several messages have."""

    position: Position
    """The entry after the gap."""
    expected_index: int
    found_index: int
    """The index of that entry's first message."""

    @property
    def what(self) -> str:
        missing = self.found_index - self.expected_index
        how = f"{missing} messages are missing" if missing > 0 else f"{-missing} indexes repeat"
        return f"has index {self.found_index} where {self.expected_index} was expected: {how}"


class WrongRecord(Damage, text="{reason}"):
    """A record that is whole and contradicts its neighbours, or its own stamp."""

    position: Position
    reason: str


class DamagedHeader(Damage):
    """A segment whose header is damaged."""

    reason: str
    salvaged: bool
    """Whether it could be salvaged: then its entries are readable."""

    @property
    def what(self) -> str:
        so = "its entries are readable" if self.salvaged else "its entries cannot be read"
        return f"segment header: {self.reason}; {so}"


class LostSegment(Damage, text="segment {segment_no} of ledger {ledger_id} is lost"):
    """A segment that the catalog lists, and whose file is gone or has no usable header."""

    ledger_id: int
    segment_no: int


class UnlistedSegment(Damage, text="the catalog does not list this segment"):
    """A segment that belongs to the log, and that the catalog does not list: the owner of the
    folder would not read it.
    """


class DamagedIndex(Finding, text="index file, row {row}: {reason}"):
    """An index file that is damaged or contradicts the records. No entry is lost by that."""

    row: int
    """The first row that is affected."""
    sealed: bool
    """False: the segment was not ended. Its index file was not synced then, so a power cut may
    leave it like this."""
    reason: str

    @property
    def severity(self) -> Severity:
        return Severity.DAMAGE if self.sealed else Severity.LEFTOVER


class DamagedCut(Damage, text="cut file: {reason}"):
    """A cut file that cannot be used: entries that were removed are back."""

    reason: str


class DamagedJournal(Damage, text="journal: no whole block from byte {offset} to {end_offset}"):
    """A block of the journal that was durable and is not whole. Its segments may have its bytes."""

    offset: int
    end_offset: int


class DamagedCatalog(Damage, text="catalog: {reason}"):
    """The catalog is missing, damaged, or older than the folder."""

    reason: str


class Leftover(Finding):
    """Data that does not count and takes space."""

    level = Severity.LEFTOVER


class TornTail(Leftover, text="{size_bytes} bytes at byte {offset} that were never acknowledged"):
    """Bytes after the last whole record: a write that did not finish, or is being made."""

    position: Position
    """The place of the next entry."""
    offset: int
    size_bytes: int


class VoidEntries(Leftover, text="from here on the ledger's entries do not count"):
    """Whole records after the last one that counts: refused, or cut off by a new leader."""

    position: Position
    """The first of them."""


class VoidSegment(Leftover, text="this segment is not part of the log: no later ledger names it"):
    """A segment that is not part of its topic's log: no later ledger names it."""


class LeftoverFile(Leftover, text="{reason}"):
    """A file that is no longer needed."""

    reason: str


class Note(Finding):
    """Something worth knowing."""

    level = Severity.NOTE


class MissingIndex(Note, text="index file: {reason}"):
    """No usable index file; it is made again from the records when the folder is next opened."""

    reason: str


class JournalInUse(
    Note,
    text="the journal has {blocks} blocks, {size_bytes} bytes: the folder is in use or was not "
    "closed properly",
):
    """The journal has blocks: the folder is open, or was not closed properly."""

    blocks: int
    size_bytes: int


class RestoredByJournal(
    Note, text="the journal has what this segment lacks, and the next opening restores it"
):
    """Entries that the journal has and a segment lacks; the next opening restores them."""


class UnsyncedEnd(
    Note,
    text="the next opening cuts off {entries} entries ({size_bytes} bytes from byte {offset} on) "
    "that were never acknowledged as durable",
):
    """What a power cut left of entries that were never durable, in a folder with a sync interval:
    the next opening cuts it off.
    """

    entries: int
    """The whole ones; beside them there may be parts of others."""
    offset: int
    size_bytes: int


class UnreadCatalog(Note, text="catalog not compared: {reason}"):
    """The catalog could not be opened for reading, so its content was not compared."""

    reason: str


class ForeignFile(Note, text="not a file of this folder"):
    """A file in the folder that does not belong there."""

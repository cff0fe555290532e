"""What `verify` finds in a data folder, one class for each kind.

There are three severities. DAMAGE: data that was durable is not as it was written, or contradicts
other data; entries may be lost or wrong. LEFTOVER: data that never counted, or no longer counts,
and still takes space; a crash leaves such data, and it does no harm. NOTE: worth knowing.

Positions are half-open: ``end`` is one past the last entry.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ledger.position import Position
from .finding import Finding, Severity, entry_range

# Damage


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedEntries(Finding):
    """Entries whose records are damaged; what follows them is readable."""

    level = Severity.DAMAGE
    first: Position
    end: Position
    offset: int
    """The place in the file."""
    reason: str

    @property
    def place(self) -> str:
        """The entries."""
        return entry_range(self.first, self.end)

    @property
    def what(self) -> str:
        """See Finding."""
        return f"damaged at byte {self.offset}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LostEntries(Finding):
    """Entries that were durable, by a header or an index file, and whose records are missing."""

    level = Severity.DAMAGE
    first: Position
    end: Position
    message_count: int | None
    """None: not known."""
    reason: str

    @property
    def place(self) -> str:
        """The entries."""
        return entry_range(self.first, self.end)

    @property
    def what(self) -> str:
        """See Finding."""
        messages = "" if self.message_count is None else f" ({self.message_count} messages)"
        return f"lost{messages}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexGap(Finding):
    """Indexes that no message has or, if the index found is lower, that several messages have."""

    level = Severity.DAMAGE
    position: Position
    """The entry after the gap."""
    expected_index: int
    found_index: int
    """The index of that entry's first message."""

    @property
    def place(self) -> str:
        """The entry after the gap."""
        return str(self.position)

    @property
    def what(self) -> str:
        """See Finding."""
        missing = self.found_index - self.expected_index
        how = f"{missing} messages are missing" if missing > 0 else f"{-missing} indexes repeat"
        return f"has index {self.found_index} where {self.expected_index} was expected: {how}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongRecord(Finding):
    """A record that is whole and contradicts its neighbours, or its own stamp."""

    level = Severity.DAMAGE
    position: Position
    reason: str

    @property
    def place(self) -> str:
        """The entry."""
        return str(self.position)

    @property
    def what(self) -> str:
        """See Finding."""
        return self.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedHeader(Finding):
    """A segment whose header is damaged."""

    level = Severity.DAMAGE
    reason: str
    salvaged: bool
    """Whether it could be salvaged: then its entries are readable."""

    @property
    def what(self) -> str:
        """See Finding."""
        so = "its entries are readable" if self.salvaged else "its entries cannot be read"
        return f"segment header: {self.reason}; {so}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LostSegment(Finding):
    """A segment that the catalog lists, and whose file is gone or has no usable header."""

    level = Severity.DAMAGE
    ledger_id: int
    segment_no: int

    @property
    def what(self) -> str:
        """See Finding."""
        return f"segment {self.segment_no} of ledger {self.ledger_id} is lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnlistedSegment(Finding):
    """A segment that belongs to the log, and that the catalog does not list: the owner of the
    folder would not read it.
    """

    level = Severity.DAMAGE

    @property
    def what(self) -> str:
        """See Finding."""
        return "the catalog does not list this segment"


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedIndex(Finding):
    """An index file that is damaged or contradicts the records. No entry is lost by that."""

    row: int
    """The first row that is affected."""
    sealed: bool
    """False: the segment was not ended. Its index file was not synced then, so a power cut may
    leave it like this."""
    reason: str

    @property
    def severity(self) -> Severity:
        """See Finding."""
        return Severity.DAMAGE if self.sealed else Severity.LEFTOVER

    @property
    def what(self) -> str:
        """See Finding."""
        return f"index file, row {self.row}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedCut(Finding):
    """A cut file that cannot be used: entries that were removed are back."""

    level = Severity.DAMAGE
    reason: str

    @property
    def what(self) -> str:
        """See Finding."""
        return f"cut file: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedJournal(Finding):
    """A block of the journal that was durable and is not whole. Its segments may have its bytes."""

    level = Severity.DAMAGE
    offset: int
    end_offset: int

    @property
    def what(self) -> str:
        """See Finding."""
        return f"journal: no whole block from byte {self.offset} to {self.end_offset}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedCatalog(Finding):
    """The catalog is missing, damaged, or older than the folder."""

    level = Severity.DAMAGE
    reason: str

    @property
    def what(self) -> str:
        """See Finding."""
        return f"catalog: {self.reason}"


# Leftovers


@dataclass(frozen=True, slots=True, kw_only=True)
class TornTail(Finding):
    """Bytes after the last whole record: a write that did not finish, or is being made."""

    level = Severity.LEFTOVER
    position: Position
    """The place of the next entry."""
    offset: int
    size_bytes: int

    @property
    def place(self) -> str:
        """The place of the next entry."""
        return str(self.position)

    @property
    def what(self) -> str:
        """See Finding."""
        return f"{self.size_bytes} bytes at byte {self.offset} that were never acknowledged"


@dataclass(frozen=True, slots=True, kw_only=True)
class VoidEntries(Finding):
    """Whole records after the last one that counts: refused, or cut off by a new leader."""

    level = Severity.LEFTOVER
    position: Position
    """The first of them."""

    @property
    def place(self) -> str:
        """The first of them."""
        return str(self.position)

    @property
    def what(self) -> str:
        """See Finding."""
        return "from here on the ledger's entries do not count"


@dataclass(frozen=True, slots=True, kw_only=True)
class VoidSegment(Finding):
    """A segment that is not part of its topic's log: no later ledger names it."""

    level = Severity.LEFTOVER

    @property
    def what(self) -> str:
        """See Finding."""
        return "this segment is not part of the log: no later ledger names it"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftoverFile(Finding):
    """A file that is no longer needed."""

    level = Severity.LEFTOVER
    reason: str

    @property
    def what(self) -> str:
        """See Finding."""
        return self.reason


# Notes


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingIndex(Finding):
    """No usable index file; it is made again from the records when the folder is next opened."""

    level = Severity.NOTE
    reason: str

    @property
    def what(self) -> str:
        """See Finding."""
        return f"index file: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalInUse(Finding):
    """The journal has blocks: the folder is open, or was not closed properly."""

    level = Severity.NOTE
    blocks: int
    size_bytes: int

    @property
    def what(self) -> str:
        """See Finding."""
        return (
            f"the journal has {self.blocks} blocks, {self.size_bytes} bytes: the folder is in "
            "use or was not closed properly"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredByJournal(Finding):
    """Entries that the journal has and a segment lacks; the next opening restores them."""

    level = Severity.NOTE

    @property
    def what(self) -> str:
        """See Finding."""
        return "the journal has what this segment lacks, and the next opening restores it"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadCatalog(Finding):
    """The catalog could not be opened for reading, so its content was not compared."""

    level = Severity.NOTE
    reason: str

    @property
    def what(self) -> str:
        """See Finding."""
        return f"catalog not compared: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignFile(Finding):
    """A file in the folder that does not belong there."""

    level = Severity.NOTE

    @property
    def what(self) -> str:
        """See Finding."""
        return "not a file of this folder"

"""What `verify` finds in a data folder, one class for each kind.

Three severities. DAMAGE: something that was durable is not as it was written, or contradicts
something else; entries may be lost or wrong. LEFTOVER: something that never counted, or counts no
more, and still takes space; a crash leaves such things, and they do no harm. NOTE: worth knowing.

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
    """Where in the file."""
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
    """Entries that were durable, as a header or an index file says, and whose records are gone."""

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
    """Messages whose indexes nobody has, or (the index found is lower) several have."""

    level = Severity.DAMAGE
    position: Position
    """The entry behind the gap."""
    expected_index: int
    found_index: int
    """Of that entry's first message."""

    @property
    def place(self) -> str:
        """The entry behind the gap."""
        return str(self.position)

    @property
    def what(self) -> str:
        """See Finding."""
        missing = self.found_index - self.expected_index
        how = f"{missing} messages are missing" if missing > 0 else f"{-missing} indexes repeat"
        return f"has index {self.found_index} where {self.expected_index} was due: {how}"


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
    """Whether it could be put together again: then its entries are readable."""

    @property
    def what(self) -> str:
        """See Finding."""
        so = "readable all the same" if self.salvaged else "nobody can tell whose entries these are"
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
    """A segment that belongs to the log, and that the catalog does not list: its owner would
    not read it.
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
    """False: the segment was never ended; index files are not synced before, so that a power cut
    may leave them like this."""
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
    """Bytes behind the last whole record: a write that never ended, or is under way."""

    level = Severity.LEFTOVER
    position: Position
    """Where the next entry would stand."""
    offset: int
    size_bytes: int

    @property
    def place(self) -> str:
        """Where the next entry would stand."""
        return str(self.position)

    @property
    def what(self) -> str:
        """See Finding."""
        return f"{self.size_bytes} bytes at byte {self.offset} that were never acknowledged"


@dataclass(frozen=True, slots=True, kw_only=True)
class VoidEntries(Finding):
    """Whole records behind the last one that counts: refused, or cut back by a new leader."""

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
    """A segment that is no part of its topic's log: no later ledger names it."""

    level = Severity.LEFTOVER

    @property
    def what(self) -> str:
        """See Finding."""
        return "this segment is no part of the log: no later ledger names it"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftoverFile(Finding):
    """A file that nobody needs any more."""

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
    """The journal holds blocks: the folder is open, or was not closed in order."""

    level = Severity.NOTE
    blocks: int
    size_bytes: int

    @property
    def what(self) -> str:
        """See Finding."""
        return (
            f"the journal holds {self.blocks} blocks, {self.size_bytes} bytes: the folder is in "
            "use or was not closed in order"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredByJournal(Finding):
    """What a segment lacks and the journal has: made good when the folder is next opened."""

    level = Severity.NOTE

    @property
    def what(self) -> str:
        """See Finding."""
        return "the journal has what this segment lacks, and restores it at the next opening"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadCatalog(Finding):
    """The catalog could not be opened for reading; what it says was not compared."""

    level = Severity.NOTE
    reason: str

    @property
    def what(self) -> str:
        """See Finding."""
        return f"catalog not compared: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignFile(Finding):
    """Something in the folder that is none of ours."""

    level = Severity.NOTE

    @property
    def what(self) -> str:
        """See Finding."""
        return "not a file of this folder"

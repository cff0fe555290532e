"""What is known of a ledger: its state, quorums, and which bookies hold which entries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum

from .digests import DigestType
from .entries import NO_ENTRY
from .errors import InvalidRequestError


class LedgerState(IntEnum):
    """A ledger's state, with BookKeeper's numbers."""

    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


@dataclass(frozen=True, slots=True)
class Segment:
    """From which entry on which bookies are the ensemble, in their order."""

    first_entry_id: int
    bookies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    """A ledger's metadata. It never changes: a change is a new value and a new node version.

    Raises InvalidRequestError where values contradict one another.
    """

    ledger_id: int
    ensemble_size: int
    write_quorum_size: int
    ack_quorum_size: int
    segments: tuple[Segment, ...]
    """In the order of their first entries; the first one's is 0."""
    state: LedgerState = LedgerState.OPEN
    length: int = 0
    """Bytes of payload of a closed ledger; 0 of another."""
    last_entry_id: int = NO_ENTRY
    """The last entry of a closed ledger; -1 if it is empty, or not closed."""
    digest_type: DigestType = DigestType.CRC32C
    password: bytes = field(default=b"", repr=False)
    created_ms: int | None = None
    custom_metadata: Mapping[str, bytes] = field(default_factory=dict)
    creation_token: int | None = None
    """A random number by which the creator knows its own node again."""
    format_version: int = 3
    """The version of the node's format, in which it is also written again."""

    def __post_init__(self) -> None:
        sizes = (self.ensemble_size, self.write_quorum_size, self.ack_quorum_size)
        if not sizes[0] >= sizes[1] >= sizes[2] >= 1:
            raise self._invalid(f"ensemble {sizes[0]}, write quorum {sizes[1]}, ack {sizes[2]}")
        if not self.segments or self.segments[0].first_entry_id != 0:
            raise self._invalid("no segment begins at entry 0")
        before = -1
        for segment in self.segments:
            if segment.first_entry_id <= before:
                raise self._invalid(f"segments {before}, {segment.first_entry_id} are out of order")
            if len(segment.bookies) != self.ensemble_size:
                raise self._invalid(f"{len(segment.bookies)} bookies, not {self.ensemble_size}")
            before = segment.first_entry_id
        if self.last_entry_id < NO_ENTRY or self.length < 0:
            raise self._invalid(f"last entry {self.last_entry_id}, length {self.length}")

    def _invalid(self, reason: str) -> InvalidRequestError:
        return InvalidRequestError(reason, ledger_id=self.ledger_id)

    @property
    def is_closed(self) -> bool:
        """Whether nothing will be added any more, and length and last entry are known."""
        return self.state is LedgerState.CLOSED

    @property
    def last_segment(self) -> Segment:
        """The segment of the entries to come."""
        return self.segments[-1]

    def segment_of(self, entry_id: int) -> Segment:
        """The segment of an entry."""
        for segment in reversed(self.segments):
            if segment.first_entry_id <= entry_id:
                return segment
        return self.segments[0]

    def write_set(self, entry_id: int) -> tuple[int, ...]:
        """The places in the ensemble of the bookies of an entry, the first one first."""
        size = self.ensemble_size
        return tuple((entry_id + i) % size for i in range(self.write_quorum_size))

    def bookies_of(self, entry_id: int) -> tuple[str, ...]:
        """The bookies that hold an entry, the first one first."""
        bookies = self.segment_of(entry_id).bookies
        return tuple(bookies[place] for place in self.write_set(entry_id))

    def with_ensemble(self, first_entry_id: int, bookies: tuple[str, ...]) -> LedgerMetadata:
        """Another ensemble from an entry on; it replaces a last segment that begins there.

        Raises InvalidRequestError before the last segment: those entries are where they are.
        """
        if first_entry_id < self.last_segment.first_entry_id:
            raise self._invalid(f"entry {first_entry_id} is before the last segment")
        kept = tuple(one for one in self.segments if one.first_entry_id < first_entry_id)
        return replace(self, segments=(*kept, Segment(first_entry_id, bookies)))

    def placed(self, ledger_id: int, bookies: tuple[str, ...]) -> LedgerMetadata:
        """The same for a ledger of this id, which begins on these bookies."""
        return replace(self, ledger_id=ledger_id, segments=(Segment(0, bookies),))

    def in_recovery(self) -> LedgerMetadata:
        """The same, while it is being recovered."""
        return replace(self, state=LedgerState.IN_RECOVERY)

    def closed(self, last_entry_id: int, length: int) -> LedgerMetadata:
        """The same, closed after an entry (-1: empty), with its bytes of payload."""
        return replace(self, state=LedgerState.CLOSED, last_entry_id=last_entry_id, length=length)

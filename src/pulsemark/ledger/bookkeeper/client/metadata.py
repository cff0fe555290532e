"""A ledger's metadata: its state, quorums, and the ensembles that hold its entries."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum

from google.protobuf import text_format
from google.protobuf.message import DecodeError

from ....metadata.protobuf_fields import read_varint, varint
from ....proto.bookkeeper_metadata_pb2 import LedgerMetadataFormat
from .entries import NO_ENTRY, DigestType
from .errors import BookKeeperError, InvalidRequestError, MetadataError


class LedgerState(IntEnum):
    """A ledger's state, with BookKeeper's numbers."""

    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


@dataclass(frozen=True, slots=True)
class Segment:
    """The ensemble, in order, of the entries from `first_entry_id` on."""

    first_entry_id: int
    bookies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    """A ledger's metadata. Raises InvalidRequestError for contradictory values."""

    ledger_id: int
    ensemble_size: int
    write_quorum_size: int
    ack_quorum_size: int
    segments: tuple[Segment, ...]
    """Ordered by first entry; the first segment begins at 0."""
    state: LedgerState = LedgerState.OPEN
    length: int = 0
    """Bytes of payload of a closed ledger, else 0."""
    last_entry_id: int = NO_ENTRY
    """The last entry of a closed ledger; -1 if it is empty, or not closed."""
    digest_type: DigestType = DigestType.CRC32C
    password: bytes = field(default=b"", repr=False)
    created_ms: int | None = None
    custom_metadata: Mapping[str, bytes] = field(default_factory=dict)
    creation_token: int | None = None
    """A random number by which the creator recognises its own node."""
    format_version: int = 3
    """The version of the node's format, kept when it is written again."""

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
        """Whether the ledger is closed: its length and last entry are final."""
        return self.state is LedgerState.CLOSED

    @property
    def last_segment(self) -> Segment:
        """The segment to which entries are added."""
        return self.segments[-1]

    def segment_of(self, entry_id: int) -> Segment:
        """The segment of an entry."""
        for segment in reversed(self.segments):
            if segment.first_entry_id <= entry_id:
                return segment
        return self.segments[0]

    def write_set(self, entry_id: int) -> tuple[int, ...]:
        """The indexes in the ensemble of an entry's bookies, in order."""
        size = self.ensemble_size
        return tuple((entry_id + i) % size for i in range(self.write_quorum_size))

    def bookies_of(self, entry_id: int) -> tuple[str, ...]:
        """The bookies of an entry, in the order of its write set."""
        bookies = self.segment_of(entry_id).bookies
        return tuple(bookies[place] for place in self.write_set(entry_id))

    def with_ensemble(self, first_entry_id: int, bookies: tuple[str, ...]) -> LedgerMetadata:
        """A copy with a new ensemble from an entry on. Raises InvalidRequestError."""
        if first_entry_id < self.last_segment.first_entry_id:
            raise self._invalid(f"entry {first_entry_id} is before the last segment")
        kept = tuple(one for one in self.segments if one.first_entry_id < first_entry_id)
        return replace(self, segments=(*kept, Segment(first_entry_id, bookies)))

    def placed(self, ledger_id: int, bookies: tuple[str, ...]) -> LedgerMetadata:
        """A copy for the ledger with this id, which begins on these bookies."""
        return replace(self, ledger_id=ledger_id, segments=(Segment(0, bookies),))

    def in_recovery(self) -> LedgerMetadata:
        """A copy in the state IN_RECOVERY."""
        return replace(self, state=LedgerState.IN_RECOVERY)

    def closed(self, last_entry_id: int, length: int) -> LedgerMetadata:
        """A copy in the state CLOSED, with its last entry (-1: empty) and bytes of payload."""
        return replace(self, state=LedgerState.CLOSED, last_entry_id=last_entry_id, length=length)


# A ledger's node as bytes: a line with the format's version, then the metadata.
#
# Version 3 is protobuf, 2 is protobuf as text. What was read in a version is written in it again,
# so that other clients still read it. Source: BookKeeper's LedgerMetadataSerDe. Version 1, of
# BookKeeper before 4.0, is refused.


_START = b"BookieMetadataFormatVersion\t"


def encode_metadata(metadata: LedgerMetadata) -> bytes:
    """Encode metadata in its own version of the format."""
    start = _START + str(metadata.format_version).encode() + b"\n"
    message = _message_of(metadata)
    if metadata.format_version == 2:
        message.ClearField("cToken")
        return start + text_format.MessageToString(message).encode()
    encoded = message.SerializeToString()
    return start + varint(len(encoded)) + encoded


def decode_metadata(ledger_id: int, data: bytes) -> LedgerMetadata:
    """Parse a node's bytes. Raises MetadataError."""
    try:
        return _decode(ledger_id, data)
    except MetadataError:
        raise
    except (BookKeeperError, DecodeError, text_format.ParseError, ValueError, IndexError) as error:
        reason = error.reason if isinstance(error, BookKeeperError) else str(error)
        raise MetadataError(reason, ledger_id=ledger_id) from error


def _decode(ledger_id: int, data: bytes) -> LedgerMetadata:
    line, newline, rest = data.partition(b"\n")
    version = line.removeprefix(_START)
    if not line.startswith(_START) or not newline or not version.isdigit() or len(version) > 9:
        raise MetadataError(f"it begins with {data[:40]!r}", ledger_id=ledger_id)
    message = LedgerMetadataFormat()
    if version == b"2":
        text_format.Parse(rest, message, allow_unknown_field=True)
        return _of_message(ledger_id, message, 2)
    if version == b"3":
        size, start = read_varint(rest, 0)
        if len(rest) - start < size:
            raise ValueError(f"{len(rest) - start} bytes instead of {size}")
        message.ParseFromString(rest[start : start + size])
        return _of_message(ledger_id, message, 3)
    raise MetadataError(f"version {version.decode()} of the format", ledger_id=ledger_id)


def _message_of(metadata: LedgerMetadata) -> LedgerMetadataFormat:
    message = LedgerMetadataFormat(
        quorumSize=metadata.write_quorum_size,
        ensembleSize=metadata.ensemble_size,
        ackQuorumSize=metadata.ack_quorum_size,
        length=metadata.length,
        lastEntryId=metadata.last_entry_id,
        state=LedgerMetadataFormat.State.Name(metadata.state),
        digestType=LedgerMetadataFormat.DigestType.Name(metadata.digest_type),
        password=metadata.password,
        ctime=metadata.created_ms,
        cToken=metadata.creation_token,
    )
    for segment in metadata.segments:
        message.segment.add(firstEntryId=segment.first_entry_id, ensembleMember=segment.bookies)
    for key, value in metadata.custom_metadata.items():
        message.customMetadata.add(key=key, value=value)
    return message


def _of_message(ledger_id: int, message: LedgerMetadataFormat, version: int) -> LedgerMetadata:
    closed = message.state == LedgerMetadataFormat.CLOSED
    if closed and not message.HasField("lastEntryId"):
        raise ValueError("it is closed, and has no last entry")
    has_ack = message.HasField("ackQuorumSize")
    digest = message.digestType if message.HasField("digestType") else DigestType.CRC32
    return LedgerMetadata(
        ledger_id=ledger_id,
        ensemble_size=message.ensembleSize,
        write_quorum_size=message.quorumSize,
        ack_quorum_size=message.ackQuorumSize if has_ack else message.quorumSize,
        segments=tuple(
            Segment(one.firstEntryId, tuple(one.ensembleMember)) for one in message.segment
        ),
        state=LedgerState(message.state),
        length=message.length if closed else 0,
        last_entry_id=message.lastEntryId if closed else NO_ENTRY,
        digest_type=DigestType(digest),
        password=message.password,
        created_ms=message.ctime if message.HasField("ctime") else None,
        custom_metadata={one.key: one.value for one in message.customMetadata},
        creation_token=message.cToken if message.HasField("cToken") else None,
        format_version=version,
    )


# When enough of an ensemble has answered.


def enough_answers(metadata: LedgerMetadata, answered: Collection[int]) -> bool:
    """Whether fewer bookies than the ack quorum have not answered, in every write set."""
    return all(
        sum(place not in answered for place in metadata.write_set(first)) < metadata.ack_quorum_size
        for first in range(metadata.ensemble_size)
    )

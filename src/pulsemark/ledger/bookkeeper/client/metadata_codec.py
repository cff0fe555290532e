"""A ledger's node as bytes: a line with the format's version, then the metadata.

Version 3 is protobuf, 2 is protobuf as text, 1 is lines of text. What was read in a version is
written in it again, so that other clients still read it. Source: BookKeeper's LedgerMetadataSerDe.
"""

from __future__ import annotations

from google.protobuf import text_format
from google.protobuf.message import DecodeError

from ....proto.bookkeeper_metadata_pb2 import LedgerMetadataFormat
from .digests import DigestType
from .entries import NO_ENTRY
from .errors import BookKeeperError, MetadataError
from .metadata import LedgerMetadata, LedgerState, Segment
from .varints import varint

_START = b"BookieMetadataFormatVersion\t"
_CLOSED = "CLOSED"
_IN_RECOVERY_ENTRY = -102


def encode_metadata(metadata: LedgerMetadata) -> bytes:
    """The node's bytes, in the metadata's own version of the format."""
    start = _START + str(metadata.format_version).encode() + b"\n"
    if metadata.format_version == 1:
        return start + _encode_lines(metadata).encode()
    message = _message_of(metadata)
    if metadata.format_version == 2:
        message.ClearField("cToken")
        return start + text_format.MessageToString(message).encode()
    encoded = message.SerializeToString()
    return start + varint(len(encoded)) + encoded


def decode_metadata(ledger_id: int, data: bytes) -> LedgerMetadata:
    """The metadata in a node's bytes. Raises MetadataError."""
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
    if version == b"1":
        return _decode_lines(ledger_id, rest.decode())
    message = LedgerMetadataFormat()
    if version == b"2":
        text_format.Parse(rest, message, allow_unknown_field=True)
        return _of_message(ledger_id, message, 2)
    if version == b"3":
        size, start = _read_varint(rest)
        if len(rest) - start < size:
            raise ValueError(f"{len(rest) - start} bytes instead of {size}")
        message.ParseFromString(rest[start : start + size])
        return _of_message(ledger_id, message, 3)
    raise MetadataError(f"version {version.decode()} of the format", ledger_id=ledger_id)


def _read_varint(data: bytes) -> tuple[int, int]:
    """A number at the beginning, and where it ends."""
    value = 0
    for index, byte in enumerate(data[:5]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, index + 1
    raise ValueError("the size is not a number")


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


def _encode_lines(metadata: LedgerMetadata) -> str:
    sizes = (metadata.write_quorum_size, metadata.ensemble_size, metadata.length)
    lines = [f"{size}\n" for size in sizes]
    lines += [
        "\t".join((str(one.first_entry_id), *one.bookies)) + "\n" for one in metadata.segments
    ]
    if metadata.state is LedgerState.IN_RECOVERY:
        lines.append(f"{_IN_RECOVERY_ENTRY}\t{_CLOSED}")
    elif metadata.is_closed:
        lines.append(f"{metadata.last_entry_id}\t{_CLOSED}")
    return "".join(lines)


def _decode_lines(ledger_id: int, text: str) -> LedgerMetadata:
    quorum, ensemble, length, *lines = text.splitlines()
    state, last, segments = LedgerState.OPEN, NO_ENTRY, []
    for line in lines:
        first, *rest = line.split("\t")
        if rest[0] == _CLOSED:
            last = int(first)
            state = LedgerState.IN_RECOVERY if last == _IN_RECOVERY_ENTRY else LedgerState.CLOSED
            break
        segments.append(Segment(int(first), tuple(rest)))
    closed = state is LedgerState.CLOSED
    return LedgerMetadata(
        ledger_id=ledger_id,
        ensemble_size=int(ensemble),
        write_quorum_size=int(quorum),
        ack_quorum_size=int(quorum),
        segments=tuple(segments),
        state=state,
        length=int(length) if closed else 0,
        last_entry_id=last if closed else NO_ENTRY,
        # Version 1 has neither: a client that opens such a ledger must know them.
        digest_type=DigestType.CRC32,
        format_version=1,
    )

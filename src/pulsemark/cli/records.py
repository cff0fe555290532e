"""Stored records as rows to print, from a topic's log or from a single segment file.

Both sources give a `Row` for a whole record and a `Damage` for a damaged one, in the order of the
log. A row has the data outside of the payload, which is decompressed for `dump --payload` only.
Control entries have a table of their own (`dump --control`, `control`).
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import ledger, metadata
from ..ledger.local.io.files import Files, read_up_to
from ..ledger.local.io.folder import list_segments, segment_path
from ..ledger.local.segment.record_format import RECORD_HEADER_SIZE
from ..ledger.local.segment.salvage import read_segment_header
from ..ledger.local.segment.scan import ScannedRecord, scan_records
from ..ledger.local.segment.segment_format import SegmentHeader
from ..metadata.compression import CompressionUnavailableError, DecompressionError
from .options import show_time
from .output import counted, escaped, tags_text

if TYPE_CHECKING:
    from ..compaction.compacted_log import CompactedLog

READ_ENTRIES = 1_000
READ_BYTES = 4 << 20


@dataclass(slots=True)
class Row:
    """One record. Times are unix ms, None if the entry does not have that time."""

    position: ledger.Position
    kind: ledger.EntryKind
    first_index: int
    index: int
    message_count: int
    append_time_ms: int
    prefix_size_bytes: int
    body_size_bytes: int
    broker_timestamp_ms: int | None = None
    publish_time_ms: int | None = None
    producer_name: str | None = None
    sequence_id: int | None = None
    #: The producer's own checksum: "ok", "bad", "none" if the body has none, "-" if not checked.
    crc: str = "none"
    #: All fields of the prefix by name; a third party's by number if its plugin is not installed.
    prefix: dict[str, object] = field(default_factory=dict)
    #: The content of a control entry; None for other entries, and if the prefix has none.
    control: metadata.Control | None = None
    #: The producer's bytes.
    body: bytes = field(default=b"", repr=False)
    #: The prefix's fields except time and index, and application tags by their own names.
    tags: dict[str, object] = field(default_factory=dict)


@dataclass(slots=True)
class Damage:
    """A damaged record: its position and where the log continues, None if they are not known."""

    position: ledger.Position | None
    next_position: ledger.Position | None
    reason: str


def log_rows(
    log: ledger.TopicLog | CompactedLog, start: ledger.Position | None, *, has_all: bool = False
) -> Iterator[Row | Damage]:
    """The records of a topic from `start` (None: its first) to its present end.

    Without `has_all` only what consumers may see, and control entries: nothing of transactions that
    are open or aborted.
    """
    position = log.first_position if start is None else start
    end = log.end_position
    while position is not None and position < end:
        try:
            entries = log.read(position, max_entries=READ_ENTRIES, max_bytes=READ_BYTES)
        except ledger.CorruptEntryError as error:
            yield Damage(error.position, error.next_position, error.reason)
            position = error.next_position
            continue
        if not entries:
            return
        following = entries[-1].position.following
        transactions = None if has_all else log.transactions_met(e.prefix for e in entries)
        if transactions is not None:
            end = min(end, log.stable_end)
            visible = transactions.visible((e.position for e in entries), end)
            entries = [entry for entry in entries if entry.position in visible]
        for entry in entries:
            if entry.position >= end:
                return
            yield _row(entry)
        position = following


def headless_segments(folder: Path) -> Iterator[Damage]:
    """The segment files of a data folder whose headers are damaged.

    A reader of the folder leaves these files out, because their topic is not known. A dump must
    show them. Empty files are skipped: they are being created.
    """
    files = Files()
    for ledger_id, segment_no in list_segments(files, folder):
        path = segment_path(folder, ledger_id, segment_no)
        try:
            if path.stat().st_size:
                read_segment_header(files, path)
        except FileNotFoundError:  # trimmed meanwhile
            continue
        except ledger.CorruptFileError as error:
            yield Damage(None, None, f"{path.name}: {error.reason}")


def segment_rows(path: Path) -> tuple[str, Iterator[Row | Damage]]:
    """The topic that a segment file belongs to, and its records.

    Raises:
        CorruptFileError: its header is damaged, or it is not a segment file.
        UnsupportedVersionError: a newer version wrote it.
        OSError: it cannot be read.
    """
    header = read_segment_header(Files(), path)
    return header.topic, _segment_rows(path, header)


def _segment_rows(path: Path, header: SegmentHeader) -> Iterator[Row | Damage]:
    files = Files()
    fd = files.open(path, os.O_RDONLY)
    try:
        offset, expected = header.size_bytes, header.first_entry_id
        for record in scan_records(files, fd, header, offset, expected):
            here = ledger.Position(header.ledger_id, record.fields.entry_id)
            if here.entry_id > expected:
                count = here.entry_id - expected
                reason = f"{count} without a whole record from byte {offset} on"
                yield Damage(ledger.Position(header.ledger_id, expected), here, reason)
            offset, expected = record.end_offset, here.entry_id + 1
            if record.damaged is not None:
                yield Damage(here, ledger.Position(header.ledger_id, expected), record.damaged)
            else:
                yield _row(_scanned_entry(files, fd, header.ledger_id, record))
        yield from _tail(files, fd, ledger.Position(header.ledger_id, expected), offset)
    finally:
        files.close(fd)


def _scanned_entry(files: Files, fd: int, ledger_id: int, record: ScannedRecord) -> ledger.Entry:
    fields = record.fields
    at = record.offset + RECORD_HEADER_SIZE
    return ledger.Entry(
        ledger.Position(ledger_id, fields.entry_id),
        ledger.EntryKind(fields.kind),
        fields.message_count,
        fields.index,
        fields.append_time_ms,
        fields.prefix_size_bytes,
        memoryview(read_up_to(files, fd, fields.entry_size_bytes, at)),
    )


def _tail(files: Files, fd: int, position: ledger.Position, offset: int) -> Iterator[Damage]:
    """The damage after the last record, if any. Zeros there are reserved space, not damage."""
    size = files.size(fd)
    for at in range(offset, size, READ_BYTES):
        if any(read_up_to(files, fd, min(READ_BYTES, size - at), at)):
            yield Damage(
                position, None, f"{counted(size - offset, 'byte')} after the last whole record"
            )
            return


def _row(entry: ledger.Entry) -> Row:
    row = Row(
        entry.position,
        entry.kind,
        entry.first_index,
        entry.index,
        entry.message_count,
        entry.append_time_ms,
        entry.prefix_size_bytes,
        len(entry.body),
        body=bytes(entry.body),
    )
    _add_prefix(row, entry.prefix)
    _add_message(row, entry.body)
    return row


def row_of_broker(entry: dict[str, Any]) -> Row | Damage:
    """An entry as the broker's HTTP interface lists it: without payload, its checksum unchecked."""
    position = ledger.Position(entry["ledgerId"], entry["entryId"])
    if "kind" not in entry:
        return Damage(position, None, str(entry.get("error")))
    prefix = bytes.fromhex(entry["prefixHex"])
    row = Row(
        position,
        ledger.EntryKind[entry["kind"].upper()],
        entry["firstIndex"],
        entry["index"],
        entry["messageCount"],
        entry["appendTime"],
        len(prefix),
        entry["sizeBytes"] - len(prefix),
        publish_time_ms=entry.get("publishTime"),
        producer_name=entry.get("producer"),
        sequence_id=entry.get("sequenceId"),
        crc="-",
    )
    _add_prefix(row, memoryview(prefix))
    return row


def _add_message(row: Row, body: memoryview) -> None:
    """Add the fields of the producer's header; a control entry may have none."""
    try:
        row.crc = "ok" if metadata.verify_checksum(body) else "none"
    except metadata.ChecksumError:
        row.crc = "bad"
    except metadata.MessageFormatError:
        return
    try:
        message = metadata.read_message_metadata(body)
    except metadata.MessageFormatError:
        return
    row.publish_time_ms = message.publish_time
    row.producer_name = message.producer_name
    row.sequence_id = message.sequence_id


def _add_prefix(row: Row, prefix: memoryview) -> None:
    """Add the fields of the stamp, and its tags."""
    try:
        fields, tags = metadata.prefix_fields(prefix), metadata.tags_of(prefix)
    except metadata.PrefixError as error:
        row.prefix = {"unreadable": str(error)}
        return
    for name, value in fields.items():
        if isinstance(value, dict):
            row.prefix[name] = {tag: metadata.printable(content) for tag, content in value.items()}
        else:
            row.prefix[name] = metadata.printable(value)
    row.control = metadata.control_of(prefix)
    row.tags = {name: metadata.printable(value) for name, value in tags.items()}
    time_ms = fields.get("broker_timestamp")
    row.broker_timestamp_ms = time_ms if isinstance(time_ms, int) else None


HEADINGS = (
    f"{'position':>12} {'index':>10} {'append time':<24} {'epoch':>6} {'type':<14} name  tags"
)


class ControlPrinter:
    """A table of control entries for people."""

    def topic(self, topic: str) -> None:
        """Print the head of a topic's rows."""
        print(f"{topic}\n{HEADINGS}")

    def row(self, topic: str, row: Row) -> None:
        """Print a control entry."""
        print(control_line(row.position, row.index, row.append_time_ms, row.control))

    def damage(self, topic: str | None, damage: Damage) -> None:
        """Print a damaged record."""
        place = "-" if damage.position is None else str(damage.position)
        continuation = f"; continues at {damage.next_position}" if damage.next_position else ""
        print(f"{place:>12} DAMAGED {damage.reason}{continuation}")


def control_line(
    position: ledger.Position, index: int, append_time_ms: int, control: metadata.Control | None
) -> str:
    """One line of the table."""
    start = f"{position!s:>12} {index:>10} {show_time(append_time_ms):<24}"
    if control is None:  # written without a prefix
        return f"{start} {'-':>6} unspecified"
    tags = tags_text(_tags(control))
    said = f"{control.leader_epoch:>6} {control.type_name:<14} {control.name or '-'}  {tags}"
    return f"{start} {said}".rstrip()


def control_fields(control: metadata.Control | None) -> dict[str, object] | None:
    """The content of a control entry, for JSON."""
    if control is None:
        return None
    return {
        "type": control.type_name,
        "name": control.name,
        "epoch": control.leader_epoch,
        "tags": _tags(control),
    }


def _tags(control: metadata.Control) -> dict[str, object]:
    """The tags; a value that is not UTF-8 as hexadecimal text."""
    tags: dict[str, object] = {}
    for name, value in sorted(control.tags.items()):
        try:
            tags[name] = value.decode()
        except UnicodeDecodeError:
            tags[name] = metadata.printable(value)
    return tags


#: Bytes of a value that a line shows.
SHOWN_BYTES = 200


def payload_fields(row: Row) -> list[dict[str, object]] | dict[str, str]:
    """An entry's messages for JSON; what is not UTF-8 is in base64. Or why it cannot be opened."""
    found = _opened(row)
    if isinstance(found, str):
        return {"unreadable": found}
    return [_message_fields(row, message) for message in found]


def payload_lines(row: Row) -> Iterator[str]:
    """A line for each message of an entry: index, key, value, properties."""
    found = _opened(row)
    if isinstance(found, str):
        yield f"cannot be opened: {found}"
        return
    for message in found:
        parts = [f"{row.first_index + max(message.batch_index, 0):>10}"]
        if message.key is not None:
            parts.append(f"key={escaped(message.key)}")
        parts += [escaped(f"{name}={value}") for name, value in message.properties.items()]
        if message.is_encrypted:
            parts.append(f"encrypted, {len(message.value or b'')} bytes")
        elif message.value is None:
            parts.append("null")
        else:
            parts.append(_value_text(message.value))
        yield "  ".join(parts)


def _opened(row: Row) -> list[metadata.Message] | str:
    if row.body[:4] == bytes(4):
        return "it is a record set of a Kafka client"
    try:
        return metadata.messages_of(row.body)
    except (metadata.MessageFormatError, DecompressionError, CompressionUnavailableError) as error:
        return str(error)


def _message_fields(row: Row, message: metadata.Message) -> dict[str, object]:
    shown: dict[str, object] = {"index": row.first_index + max(message.batch_index, 0)}
    for name, value in message._asdict().items():
        if isinstance(value, bytes):
            try:
                shown[name] = value.decode()
            except UnicodeDecodeError:
                shown[f"{name}_base64"] = base64.b64encode(value).decode()
        else:
            shown[name] = value
    return shown


def _value_text(value: bytes) -> str:
    cut = value[:SHOWN_BYTES]
    text = escaped(cut.decode(errors="backslashreplace"))
    return text + (f"... ({len(value):,} bytes)" if len(value) > len(cut) else "")

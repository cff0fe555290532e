"""The check of a set of magic 0 or 1, plain or a wrapper, and its stored form (see `produced`)."""

from __future__ import annotations

from collections.abc import Iterable

from . import layout
from .batch import BatchFields
from .convert import counted, renumbered, to_legacy, to_magic_2
from .errors import InvalidRecordSetError, RecordSetTooLargeError, RecordTimeError
from .legacy import (
    Message,
    open_wrapper,
    pack_wrapper,
    patch_message,
    read_message,
    read_records,
    wrapped_records,
)
from .record import CODEC_MASK, LOG_APPEND_TIME, Record, Work
from .rules import EntryRules, Produced
from .scan import Scan, scan_messages
from .sets import spans


def check_and_store(records: memoryview, rules: EntryRules) -> Produced:
    """Check a set whose first message is of magic 0 or 1; a cut message at its end is dropped.

    Raises RecordSetError.
    """
    first = next(spans(records))
    attributes = records[layout.MESSAGE_ATTRIBUTES_AT]
    if not attributes & CODEC_MASK:
        return _store_plain(records, first.magic, rules)
    _check_size(first.end, rules)
    wrapper = read_message(records, first)
    if next(spans(records[first.end :]), None) is not None:
        raise InvalidRecordSetError("a compressed message with another one after it")
    if wrapper.magic and attributes & LOG_APPEND_TIME and not rules.log_append_time:
        raise RecordTimeError("a wrapper that states the broker's time")
    return _store_wrapper(records[: first.end], wrapper, rules)


def check_stored(body: bytes, rules: EntryRules) -> bytes:
    """The body, if no batch in it grew above the limit when it was converted.

    Raises RecordSetTooLargeError.
    """
    for span in spans(body):
        _check_size(span.end - span.start, rules)
    return body


def _check_size(size_bytes: int, rules: EntryRules) -> None:
    if size_bytes > rules.max_batch_bytes:
        raise RecordSetTooLargeError(
            f"a batch of {size_bytes} bytes; the limit is {rules.max_batch_bytes}"
        )


def _check_keys(scan: Scan, rules: EntryRules) -> None:
    if rules.compacted and scan.keys < scan.count:
        raise InvalidRecordSetError(
            f"{scan.count - scan.keys} messages without key on a compacted topic"
        )


def _store_plain(records: memoryview, magic: int, rules: EntryRules) -> Produced:
    work = Work()
    scan = scan_messages(records, magic)
    _check_size(scan.largest_bytes, rules)
    _check_keys(scan, rules)
    if scan.states_broker_time and not rules.log_append_time:
        raise RecordTimeError("a message that states the broker's time")
    body = bytes(records[: scan.end]) if scan.numbered else _numbered(records[: scan.end])
    in_place = rules.magic == magic
    if not in_place:
        plain = read_records(body, rules.max_raw_bytes, work)
        body = _converted(plain, 0, rules, work)
    return _produced(body, scan, scan.end, in_place, rules, work)


def _numbered(records: memoryview) -> bytes:
    """The messages with the offsets 0, 1, 2 ..."""
    stored = bytearray(records)
    for number, span in enumerate(spans(records)):
        layout.OFFSET.pack_into(stored, span.start, number)
    return bytes(stored)


def _store_wrapper(records: memoryview, wrapper: Message, rules: EntryRules) -> Produced:
    work = Work()
    raw = open_wrapper(wrapper, rules.max_raw_bytes, work)
    scan = scan_messages(raw, wrapper.magic)
    if scan.end != len(raw) or not scan.count:
        raise InvalidRecordSetError(f"{len(raw) - scan.end} of {len(raw)} bytes are not a message")
    _check_keys(scan, rules)
    same = rules.magic == wrapper.magic
    if same and scan.numbered:
        stored = bytearray(records)
        own_time = wrapper.magic and not wrapper.attributes & LOG_APPEND_TIME
        late = own_time and wrapper.time_ms != scan.max_time_ms
        patch_message(stored, scan.count - 1, scan.max_time_ms if late else None)
        return _produced(bytes(stored), scan, len(raw), True, rules, work)
    inner = renumbered(wrapped_records(wrapper, raw))
    if same:
        bits = wrapper.attributes & LOG_APPEND_TIME
        body = check_stored(
            pack_wrapper(counted(inner, work), rules.magic, wrapper.codec, work, bits=bits), rules
        )
    else:
        body = _converted(inner, wrapper.codec, rules, work)
    return _produced(body, scan, len(raw), False, rules, work)


def _converted(records: Iterable[Record], codec: int, rules: EntryRules, work: Work) -> bytes:
    if rules.magic == 2:
        body = to_magic_2(records, BatchFields(codec=codec), work)
    else:
        body = to_legacy(records, rules.magic, codec, work)
    return check_stored(body, rules)


def _produced(
    body: bytes, scan: Scan, raw_size: int, in_place: bool, rules: EntryRules, work: Work
) -> Produced:
    return Produced(
        stored=body,
        magic=rules.magic,
        message_count=scan.count,
        max_time_ms=scan.max_time_ms if rules.magic else -1,
        has_keys=scan.keys > 0,
        raw_size_bytes=raw_size,
        tombstone=scan.nulls == scan.count,
        in_place=in_place,
        work=work,
    )

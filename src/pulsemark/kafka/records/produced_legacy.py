"""The check of a set of magic 0 or 1, plain or a wrapper, and its stored form (see `produced`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from . import layout
from .batch import BatchFields
from .convert import counted, renumbered, to_legacy, to_magic_2
from .errors import InvalidRecordSetError, RecordSetTooLargeError, RecordTimeError
from .legacy import (
    Message,
    inner_messages,
    open_wrapper,
    pack_wrapper,
    patch_message,
    read_message,
    wrapped_records,
)
from .record import LOG_APPEND_TIME, MAX_RECORDS, Record, Work
from .rules import EntryRules, Produced
from .scan import Scan
from .sets import Span, spans


def check_and_store(records: memoryview, rules: EntryRules) -> Produced:
    """Check a set whose first message is of magic 0 or 1; a cut message at its end is dropped.

    Raises RecordSetError.
    """
    first = next(spans(records))
    message = _checked(records, first, first.magic, rules)
    if message.codec:
        if next(spans(records[first.end :]), None) is not None:
            raise InvalidRecordSetError("a compressed message with another one after it")
        return _store_wrapper(records[: first.end], message, rules)
    return _store_plain(records, rules)


def check_stored(body: bytes, rules: EntryRules) -> bytes:
    """The body, if no batch in it grew above the limit when it was converted.

    Raises RecordSetTooLargeError.
    """
    for span in spans(body):
        _check_size(span, rules)
    return body


def _check_size(span: Span, rules: EntryRules) -> None:
    if span.end - span.start > rules.max_batch_bytes:
        raise RecordSetTooLargeError(
            f"a batch of {span.end - span.start} bytes; the limit is {rules.max_batch_bytes}"
        )


def _checked(records: memoryview, span: Span, magic: int, rules: EntryRules) -> Message:
    """A message of the set, checked by itself."""
    if span.magic != magic:
        raise InvalidRecordSetError(f"magic {span.magic} after magic {magic} in a set")
    _check_size(span, rules)
    message = read_message(records, span)
    if magic and message.attributes & LOG_APPEND_TIME and not rules.log_append_time:
        raise RecordTimeError("a message that states the broker's time")
    return message


def _plain_messages(records: memoryview, rules: EntryRules) -> Iterator[tuple[Span, Message]]:
    magic = None
    for span in spans(records):
        magic = span.magic if magic is None else magic
        message = _checked(records, span, magic, rules)
        if message.codec:
            raise InvalidRecordSetError("a compressed message after a plain one")
        yield span, message


def _scan(messages: Iterable[Message], rules: EntryRules) -> Scan:
    scan = Scan()
    for message in messages:
        if scan.count == MAX_RECORDS:
            raise InvalidRecordSetError(f"more than {MAX_RECORDS} messages in a set")
        if message.offset != scan.count:
            scan.numbered = False
        scan.count += 1
        scan.max_time_ms = max(scan.max_time_ms, message.time_ms)
        if message.key is not None:
            scan.keys += 1
        elif rules.compacted:
            raise InvalidRecordSetError("a message without key on a compacted topic")
        scan.nulls += message.value is None
    return scan


def _store_plain(records: memoryview, rules: EntryRules) -> Produced:
    work = Work()
    stored = bytearray(records)
    end = 0

    def numbered() -> Iterator[Message]:
        """Each message, its offset in the stored bytes written on the way."""
        nonlocal end
        for number, (span, message) in enumerate(_plain_messages(records, rules)):
            layout.OFFSET.pack_into(stored, span.start, number)
            end = span.end
            yield message

    scan = _scan(numbered(), rules)
    magic = records[layout.MAGIC_AT]
    if rules.magic == magic:
        body = bytes(stored[:end])
    else:
        converted = (
            Record(number, message.time_ms, message.key, message.value)
            for number, (_, message) in enumerate(_plain_messages(records, rules))
        )
        body = _converted(converted, 0, rules, work)
    return _produced(body, scan, end, rules.magic == magic, rules, work)


def _store_wrapper(records: memoryview, wrapper: Message, rules: EntryRules) -> Produced:
    work = Work()
    raw = open_wrapper(wrapper, rules.max_raw_bytes, work)
    scan = _scan(inner_messages(raw, wrapper.magic), rules)
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
        body=body,
        magic=rules.magic,
        message_count=scan.count,
        max_time_ms=scan.max_time_ms if rules.magic else -1,
        has_keys=scan.keys > 0,
        raw_size_bytes=raw_size,
        tombstone=scan.nulls == scan.count,
        in_place=in_place,
        work=work,
    )

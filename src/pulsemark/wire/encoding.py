"""Writing frames: the envelope of any command, and the most frequent commands without protobuf.

A BaseCommand is `08 type` followed by one length-delimited field whose number is the type. So a
command is written as its body alone with these bytes in front, byte-equal to what protobuf makes
of the whole. SEND_RECEIPT, MESSAGE and SEND, of which there is one per message, are put together
from varints without a protobuf object: about a third of the time. The tests hold every one of
them equal to protobuf's own bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any

from ..proto.pulsar_api_pb2 import BaseCommand, CommandPing, CommandPong
from .connection import Buffer
from .fields import BODY_FIELDS

_SIZES = struct.Struct(">II")
_TWO = struct.Struct("BB")
_THREE = struct.Struct("BBB")
_U64_MASK = 2**64 - 1
_ONE_BYTE = [bytes((value,)) for value in range(128)]
_MINUS_ONE = b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"
_NO_PARTITION = b"\x18" + _MINUS_ONE

_T = BaseCommand.Type


def varint(value: int) -> bytes:
    """`value` (0 to 2^64-1) as protobuf's base-128 varint."""
    if value < 0x80:
        return _ONE_BYTE[value]
    if value < 0x4000:
        return _TWO.pack(value & 0x7F | 0x80, value >> 7)
    if value < 0x20_0000:
        return _THREE.pack(value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14)
    if value == _U64_MASK:
        return _MINUS_ONE
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_PREFIXES = {kind: b"\x08" + varint(kind) + varint(kind << 3 | 2) for kind in BODY_FIELDS}


def frame(kind: int, body: Any) -> bytes:
    """The frame of a command without payload: its type and its body (the protobuf sub-message).

    Raises google.protobuf.message.EncodeError if `body` lacks a required field.
    """
    encoded: bytes = body.SerializeToString()
    command = b"".join((_PREFIXES[kind], varint(len(encoded)), encoded))
    size = len(command)
    return _SIZES.pack(size + 4, size) + command


# Everything before the first number of a SEND_RECEIPT, by the size of its body.
_RECEIPT_HEADS = [
    b"".join((_SIZES.pack(size + 8, size + 4), _PREFIXES[_T.SEND_RECEIPT], varint(size), b"\x08"))
    for size in range(128)
]
# The tag and size of a SEND_RECEIPT's message id and the id's first tag, by the id's size.
_RECEIPT_IDS = [b"\x1a" + varint(size) + b"\x08" for size in range(128)]
_NO_HIGHEST = b"\x20" + _MINUS_ONE


def send_receipt(
    producer_id: int,
    sequence_id: int,
    ledger_id: int,
    entry_id: int,
    highest_sequence_id: int = -1,
) -> bytes:
    """SEND_RECEIPT. Ids are signed; a duplicate's message id is (-1, -1).

    highest_sequence_id: that of the SEND; -1 if the SEND has none, as in Pulsar.
    """
    producer = varint(producer_id)
    sequence = varint(sequence_id)
    ledger = varint(ledger_id & _U64_MASK)
    entry = varint(entry_id & _U64_MASK)
    if highest_sequence_id == -1:
        highest = _NO_HIGHEST
    else:
        highest = b"\x20" + varint(highest_sequence_id & _U64_MASK)
    id_size = len(ledger) + len(entry) + 2
    # Five varints of at most 10 bytes and their tags: every length fits into one byte.
    size = len(producer) + len(sequence) + id_size + len(highest) + 4
    return b"".join(
        (
            _RECEIPT_HEADS[size],
            producer,
            b"\x10",
            sequence,
            _RECEIPT_IDS[id_size],
            ledger,
            b"\x10",
            entry,
            highest,
        )
    )


def send_receipts(
    producer_id: int, ledger_id: int, publishes: Iterable[tuple[int, int, int]]
) -> bytes:
    """The SEND_RECEIPTs of one producer's entries in one ledger, one frame after the other.

    publishes: sequence id, highest sequence id (see `send_receipt`) and entry id of each. The bytes
    between these numbers are built once for all frames in which the numbers take as many bytes.
    """
    producer = varint(producer_id)
    ledger = varint(ledger_id & _U64_MASK)
    parts: list[bytes] = []
    sizes = (0, 0, 0)
    head = middle = b""
    for sequence_id, highest_sequence_id, entry_id in publishes:
        sequence = varint(sequence_id)
        entry = varint(entry_id & _U64_MASK)
        if highest_sequence_id == -1:
            highest = _NO_HIGHEST
        else:
            highest = b"\x20" + varint(highest_sequence_id & _U64_MASK)
        if sizes != (sizes := (len(sequence), len(entry), len(highest))):
            id_size = len(ledger) + len(entry) + 2
            size = len(producer) + len(sequence) + id_size + len(highest) + 4
            head = _RECEIPT_HEADS[size] + producer + b"\x10"
            middle = _RECEIPT_IDS[id_size] + ledger + b"\x10"
        parts += (head, sequence, middle, entry, highest)
    return b"".join(parts)


def message_header(
    consumer_id: int,
    ledger_id: int,
    entry_id: int,
    redelivery_count: int,
    ack_set: Sequence[int],
    payload_size_bytes: int,
    *,
    partition: int = -1,
    consumer_epoch: int | None = None,
) -> bytes:
    """The part of a MESSAGE frame before the entry's bytes.

    Ids are signed. redelivery_count is left out if it is 0. partition is always there, as in
    Pulsar. ack_set holds signed words.
    """
    consumer = varint(consumer_id)
    ledger = varint(ledger_id & _U64_MASK)
    entry = varint(entry_id & _U64_MASK)
    place = _NO_PARTITION if partition == -1 else b"\x18" + varint(partition & _U64_MASK)
    rest = b""
    if redelivery_count:
        rest += b"\x18" + varint(redelivery_count)
    for word in ack_set:
        rest += b"\x20" + varint(word & _U64_MASK)
    if consumer_epoch is not None:
        rest += b"\x28" + varint(consumer_epoch)
    id_size = len(ledger) + len(entry) + 2 + len(place)
    size = len(consumer) + id_size + 3 + len(rest)
    body_size = varint(size)
    command_size = 3 + len(body_size) + size
    return b"".join(
        (
            _SIZES.pack(command_size + 4 + payload_size_bytes, command_size),
            b"\x08\x09\x4a",
            body_size,
            b"\x08",
            consumer,
            b"\x12",
            _ONE_BYTE[id_size],
            b"\x08",
            ledger,
            b"\x10",
            entry,
            place,
            rest,
        )
    )


def message_frame(
    consumer_id: int,
    ledger_id: int,
    entry_id: int,
    redelivery_count: int,
    ack_set: Sequence[int],
    parts: Sequence[Buffer],
    *,
    partition: int = -1,
    consumer_epoch: int | None = None,
) -> list[Buffer]:
    """A MESSAGE frame as a gather list: the header, then `parts` as they are, not copied.

    parts: the entry's bytes (headers-and-payload, after a prefix if the client asks for it). Each
    must be a buffer of single bytes, so that len() is its size.
    """
    header = message_header(
        consumer_id,
        ledger_id,
        entry_id,
        redelivery_count,
        ack_set,
        sum(map(len, parts)),
        partition=partition,
        consumer_epoch=consumer_epoch,
    )
    return [header, *parts]


#: The first byte of an entry id's varint, by its lowest seven bits, where more bytes follow.
_CONTINUED = [bytes((value | 0x80,)) for value in range(128)]
#: An entry of this size or more gets its frame's header in one piece: then nothing is joined.
_ONE_HEADER_BYTES = 2 * 1024


def message_frames(
    consumer_id: int,
    ledger_id: int,
    entries: Iterable[tuple[int, Buffer]],
    *,
    partition: int = -1,
    consumer_epoch: int | None = None,
) -> list[Buffer]:
    """The MESSAGE frames of entries of one ledger, as one gather list; as `message_frame` of each.

    entries: entry id (0 or more) and bytes of each. None of them was sent before, or is partly
    acknowledged. Of consecutive entries only the low bits of the id differ: what is around them is
    built once for 128 entries.
    """
    consumer = varint(consumer_id)
    ledger = varint(ledger_id & _U64_MASK)
    place = _NO_PARTITION if partition == -1 else b"\x18" + varint(partition & _U64_MASK)
    rest = b"" if consumer_epoch is None else b"\x28" + varint(consumer_epoch)
    parts: list[Buffer] = []
    high = size = -1
    head = tail = b""
    firsts = _ONE_BYTE
    for entry_id, payload in entries:
        if entry_id >> 7 != high or len(payload) != size:
            high, size = entry_id >> 7, len(payload)
            more = varint(high) if high else b""
            firsts = _CONTINUED if high else _ONE_BYTE
            id_size = len(ledger) + len(more) + 3 + len(place)
            body_size = len(consumer) + id_size + 3 + len(rest)
            body_size_field = varint(body_size)
            before_payload = 3 + len(body_size_field) + body_size
            head = b"".join((
                _SIZES.pack(before_payload + 4 + size, before_payload), b"\x08\x09\x4a",
                body_size_field, b"\x08", consumer, b"\x12", _ONE_BYTE[id_size], b"\x08", ledger,
                b"\x10",
            ))  # fmt: skip
            tail = b"".join((more, place, rest))
        if size < _ONE_HEADER_BYTES:
            parts += (head, firsts[entry_id & 127], tail, payload)
        else:
            parts += (b"".join((head, firsts[entry_id & 127], tail)), payload)
    return parts


def send_header(
    producer_id: int,
    sequence_id: int,
    payload_size_bytes: int,
    *,
    num_messages: int = 1,
    highest_sequence_id: int | None = None,
    is_chunk: bool = False,
    marker: bool = False,
) -> bytes:
    """The part of a SEND frame before headers-and-payload.

    num_messages is left out if it is 1 (its default), the other fields if they are not given. It
    may be negative, to test what a broker refuses.
    """
    producer = varint(producer_id)
    sequence = varint(sequence_id)
    rest = b""
    if num_messages != 1:
        rest += b"\x18" + varint(num_messages & _U64_MASK)
    if highest_sequence_id is not None:
        rest += b"\x30" + varint(highest_sequence_id & _U64_MASK)
    if is_chunk:
        rest += b"\x38\x01"
    if marker:
        rest += b"\x40\x01"
    size = len(producer) + len(sequence) + 2 + len(rest)
    return b"".join(
        (
            _SIZES.pack(size + 8 + payload_size_bytes, size + 4),
            b"\x08\x06\x32",
            _ONE_BYTE[size],
            b"\x08",
            producer,
            b"\x10",
            sequence,
            rest,
        )
    )


PING: bytes = frame(_T.PING, CommandPing())
PONG: bytes = frame(_T.PONG, CommandPong())

"""Frames of BookKeeper's protocol, version 3, as bytes: a length of four bytes, then the message.

No I/O is done here. Adds, of which there are many, are made by `adds`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from google.protobuf.message import DecodeError

from ....metadata.protobuf_fields import ONE_BYTE, varint
from ....proto.bookkeeper_wire_pb2 import ReadLacRequest, ReadRequest, Response, WriteLacRequest
from .errors import BookieProtocolError

# Protobuf's numbers and tags, for what is written by hand.


LEN = 2
"""Protobuf's wire type of bytes and messages."""

_LOW_MORE = [bytes((low | 0x80,)) for low in range(0x80)]


def varints(first: int, count: int) -> list[bytes]:
    """Encode consecutive numbers. Of 128 in a row only the first byte differs."""
    out: list[bytes] = []
    end = first + count
    while first < end:
        low = first & 0x7F
        until = min(0x80, low + end - first)
        if first < 0x80:
            out += ONE_BYTE[low:until]
        else:
            rest = varint(first >> 7)
            out += [byte + rest for byte in _LOW_MORE[low:until]]
        first += until - low
    return out


def tag(number: int, wire_type: int = 0) -> bytes:
    """The tag of a protobuf field."""
    return varint(number << 3 | wire_type)


READ_ENTRY = 1
ADD_ENTRY = 2
WRITE_LAC = 6
READ_LAC = 7
START_TLS = 9
HIGH_PRIORITY = 100

FENCE = 1

_LENGTH = struct.Struct(">I")


_READ, _WRITE_LAC, _READ_LAC, _START_TLS = (tag(number, LEN) for number in (100, 103, 104, 106))


class Outgoing(NamedTuple):
    """A request without its number: the same for every bookie that it goes to."""

    operation: int
    ledger_id: int
    entry_id: int
    body: bytes
    """The message after its header."""
    timeout_ms: int
    high_priority: bool = False

    @property
    def size_bytes(self) -> int:
        """The size of the body."""
        return len(self.body)


def read_request(
    ledger_id: int,
    entry_id: int,
    *,
    timeout_ms: int,
    master_key: bytes | None = None,
    fence: bool = False,
    high_priority: bool = False,
) -> Outgoing:
    """Make a READ of an entry (-1: the last one that the bookie holds).

    With `fence` the bookie refuses every later add of the ledger, except those of a recovery.
    """
    message = ReadRequest(ledgerId=ledger_id, entryId=entry_id)
    if master_key is not None:
        message.masterKey = master_key
    if fence:
        message.flag = FENCE
    body = _field(_READ, message.SerializeToString())
    return Outgoing(READ_ENTRY, ledger_id, entry_id, body, timeout_ms, high_priority)


def read_lac_request(ledger_id: int, *, timeout_ms: int) -> Outgoing:
    """Make a READ_LAC: asks for the ledger's last confirmed entry."""
    message = ReadLacRequest(ledgerId=ledger_id)
    body = _field(_READ_LAC, message.SerializeToString())
    return Outgoing(READ_LAC, ledger_id, -1, body, timeout_ms)


def write_lac_request(
    ledger_id: int, last_confirmed: int, master_key: bytes, body: bytes, *, timeout_ms: int
) -> Outgoing:
    """Make a WRITE_LAC: tells the bookie the last confirmed entry, without an entry."""
    message = WriteLacRequest(
        ledgerId=ledger_id, lac=last_confirmed, masterKey=master_key, body=body
    )
    sent = _field(_WRITE_LAC, message.SerializeToString())
    return Outgoing(WRITE_LAC, ledger_id, -1, sent, timeout_ms)


def start_tls_request() -> Outgoing:
    """Make a START_TLS; the handshake follows its answer."""
    return Outgoing(START_TLS, -1, -1, _field(_START_TLS, b""), timeout_ms=0)


def _field(tag_bytes: bytes, encoded: bytes) -> bytes:
    return tag_bytes + varint(len(encoded)) + encoded


def frame_start(request: Outgoing, number: int) -> bytes:
    """The bytes of a frame before the request's body: its length and the header."""
    header = b"\x08\x03\x10" + bytes((request.operation,)) + b"\x18" + varint(number)
    if request.high_priority:
        header += b"\x20" + bytes((HIGH_PRIORITY,))
    size = 2 + len(header) + request.size_bytes
    return _LENGTH.pack(size) + b"\x0a" + bytes((len(header),)) + header


class FrameReader:
    """Splits received bytes into frames. A too large frame is refused at its size field."""

    def __init__(self, max_frame_bytes: int) -> None:
        self._max = max_frame_bytes
        self._parts: list[bytes] = []
        self._held = 0

    def feed(
        self, data: bytes, past: Callable[[bytes, int], int] = lambda data, start: start
    ) -> Iterator[bytes]:
        """The frames that end in these bytes; `past` may skip some. Raises BookieProtocolError."""
        self._parts.append(data)
        self._held += len(data)
        if self._held < self._needed():
            return
        data = b"".join(self._parts)
        start, end = 0, len(data)
        while end - (start := past(data, start)) >= 4:
            size = self._checked(_LENGTH.unpack_from(data, start)[0])
            if end - start - 4 < size:
                break
            start += 4 + size
            yield data[start - size : start]
        rest = data[start:]
        self._parts, self._held = ([rest] if rest else []), len(rest)

    def _needed(self) -> int:
        """The size of the next frame with its length field, as far as it is known."""
        first = self._parts[0]
        if len(first) < 4:
            return 4
        return 4 + self._checked(int(_LENGTH.unpack_from(first)[0]))

    def _checked(self, size: int) -> int:
        if size > self._max:
            raise BookieProtocolError(f"a frame of {size} bytes is above {self._max}")
        return size


def parse_response(frame: bytes) -> Response:
    """Parse an answer. Raises BookieProtocolError."""
    try:
        response = Response.FromString(frame)
    except DecodeError as error:
        raise BookieProtocolError(f"a frame of {len(frame)} bytes is not an answer") from error
    if response.header.version != 3:
        raise BookieProtocolError(f"version {response.header.version} instead of 3")
    return response

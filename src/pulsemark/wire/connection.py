"""The state of one connection: bytes in, events out.

    conn = Connection(Role.SERVER)
    conn.receive_data(data)            # or get_buffer() / buffer_updated(n)
    for event in conn.events():        # Command | Send | Message | Unsupported
        ...

A broker reads `runs()` instead: there the SENDs of one producer that follow one another are one
event, so that what has to be done once for all of them is done once.

Rules (the order of commands is Pulsar's, as its brokers enforce it):

1. A server must receive CONNECT first, a client CONNECTED. Before that only PING and PONG are
   allowed, and for a client also AUTH_CHALLENGE and ERROR. A second CONNECT or CONNECTED is a
   violation.
2. A command must be one that the peer may send: a request to a server, a response to a client.
   PING, PONG, CLOSE_PRODUCER and CLOSE_CONSUMER are allowed in both directions.
3. A command type that Pulsar has never defined is a violation. A type that Pulsar has defined, but
   whose body this project does not implement, is the event Unsupported: the caller can answer it
   with an error.
4. protobuf's fast parser accepts missing required fields, unknown enum values and strings that
   are not UTF-8. Here required fields must be present (an unknown value of a required enum counts
   as missing) and strings must be UTF-8, in nested messages too. FLOW must grant at least one
   permit, and at most as many as a signed 32-bit number holds.
5. A violation raises a ProtocolError from events(), after all events before it. From then on the
   connection is dead and raises the same error again. The result does not depend on how the stream
   was cut into pieces.
6. headers-and-payload is not parsed: an entry is stamped without opening it.

Before the handshake, frames must be small (HANDSHAKE_FRAME_SIZE_BYTES), so that an unknown client
cannot make a server reserve memory.

**Frames**: a stream of bytes is split into whole commands, without I/O.

    [totalSize u32][commandSize u32][BaseCommand][headersAndPayload, only in SEND and MESSAGE]

All integers are big-endian; totalSize does not count itself (PulsarApi's simple and payload
commands). Bytes after a command that has no payload are tolerated and dropped, as Pulsar does.

Rules of frames:

1. Sizes are checked as soon as they are received: totalSize with its fourth byte, commandSize with
   the eighth. A frame that is refused is never buffered.
2. The views that next_frame() returns stay valid as long as the caller keeps them: the memory under
   them is never written again. Bytes are received into a block (a bytearray), and payloads are
   views into it. The block is freed when its last view is gone. A block without views is used again
   from its beginning.
3. A byte is copied at most once, and only if its frame does not fit into the rest of the block:
   then the part that was received is moved to the next block. A frame that is too large for a block
   gets its own memory, into which the rest is received directly.
4. The size of blocks follows the traffic: large reads double it, small reads halve it. So thousands
   of idle connections use little memory, and a busy connection needs few system calls.
5. A large size in a frame's header does not reserve memory by itself. A large frame's own memory
   starts as the largest of three sizes: about four times the bytes received so far, an ordinary
   block, the size of the connection's last large frame. It grows up to the frame's size while bytes
   arrive. So the bytes of the first large frame are moved a few more times; all moves together copy
   about the frame's size once.
6. `allocated_bytes` is the size of a connection's buffers now. Between two frames, `release()`
   frees them until the next byte is received.
"""

from __future__ import annotations

import enum
import re
import struct
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from re import Pattern
from typing import Any, TypeAlias

from google.protobuf.message import DecodeError
from google.protobuf.message import Message as ProtobufMessage

from ..proto.pulsar_api_pb2 import (
    BaseCommand,
    CommandAck,
    CommandConnected,
    CommandFlow,
    CommandMessage,
    CommandSend,
    CommandSendReceipt,
)
from .errors import ProtocolError
from .fields import (
    BODY_FIELDS,
    TYPE_NAMES,
    TYPES_WITH_TEXT_IN_BODY,
    find_invalid_text,
    find_long_list,
    read_unknown_type,
)

Buffer: TypeAlias = bytes | bytearray | memoryview
# Pulsar allows a frame to be this much larger than the largest message, for command and headers.
FRAME_PADDING_BYTES = 10 * 1024
_SIZES = struct.Struct(">II")
_TOTAL = struct.Struct(">I")
_BLOCK_MIN_BYTES = 16 * 1024
_BLOCK_MAX_BYTES = 256 * 1024
# With less free space than this, a read is not worth its system call: use a new block.
_READ_MIN_BYTES = 2 * 1024
# Memory for a large frame, as a multiple of what has arrived of it.
_GROWTH = 4
_NO_PAYLOAD = memoryview(b"")
DEFAULT_MAX_MESSAGE_SIZE_BYTES = 5 * 1024 * 1024
# An ACK of 1,000 ids takes some 20 KiB, and a PRODUCER may carry a schema: 1 MiB is enough for any
# request.
MAX_REQUEST_SIZE_BYTES = 1024 * 1024
# More properties than any request may have: 64 KiB of them are at most 16,384.
MAX_REQUEST_TEXTS = 16_384
# CONNECT carries a token or names of certificates, nothing larger.
HANDSHAKE_FRAME_SIZE_BYTES = 128 * 1024
_PERMITS_MAX = 2**31 - 1
_T = BaseCommand.Type
BOTH_WAYS = frozenset({_T.PING, _T.PONG, _T.CLOSE_PRODUCER, _T.CLOSE_CONSUMER})
# All answers but a client's to AUTH_CHALLENGE, and what a broker sends unasked.
TO_CLIENT = (
    BOTH_WAYS
    | {
        number
        for number, name in TYPE_NAMES.items()
        if name.endswith(("_RESPONSE", "_SUCCESS", "_UPDATE")) and number != _T.AUTH_RESPONSE
    }
    | {_T.CONNECTED, _T.AUTH_CHALLENGE, _T.SUCCESS, _T.ERROR, _T.SEND_RECEIPT, _T.SEND_ERROR}
    | {_T.MESSAGE, _T.ACTIVE_CONSUMER_CHANGE, _T.REACHED_END_OF_TOPIC, _T.TOPIC_MIGRATED}
)
TO_SERVER = (frozenset(TYPE_NAMES) - TO_CLIENT) | BOTH_WAYS


class FrameBuffer:
    """Receives bytes, yields frames.

    Call `receive_data(data)`, which copies, or, as asyncio.BufferedProtocol does, `get_buffer()`
    and `buffer_updated(size_bytes)`; then `next_frame()` until it returns None. The limits, of
    frames with their totalSize field and of commands, may be changed at any time, from the next
    frame on.
    """

    __slots__ = (
        "_block",
        "_capacity",
        "_end",
        "_has_views",
        "_largest_read",
        "_last_large_frame_bytes",
        "_ordinary_block",
        "_readable",
        "_start",
        "_writable",
        "max_command_size_bytes",
        "max_frame_size_bytes",
    )

    def __init__(self, max_frame_size_bytes: int, max_command_size_bytes: int) -> None:
        self.max_frame_size_bytes = max_frame_size_bytes
        self.max_command_size_bytes = max_command_size_bytes
        self._largest_read = 0
        # The size of the last large frame that was received whole; the next begins with this size.
        self._last_large_frame_bytes = 0
        # While a large frame has its own memory, the ordinary block: (block, next free byte).
        self._ordinary_block: tuple[bytearray, int] | None = None
        self._start = self._end = 0
        self._use(bytearray(_BLOCK_MIN_BYTES), 0, 0)

    @property
    def pending_bytes(self) -> int:
        """How many bytes were received but not yet returned as a frame."""
        return self._end - self._start

    @property
    def allocated_bytes(self) -> int:
        """The size of the memory that this buffer uses, without the views that were returned."""
        return self._capacity + (
            len(self._ordinary_block[0]) if self._ordinary_block is not None else 0
        )

    def release(self) -> None:
        """Free the memory, unless a frame has begun. The next get_buffer() uses a small block."""
        if self._start == self._end:
            self._ordinary_block = None
            self._largest_read = self._last_large_frame_bytes = 0
            self._use(bytearray(), 0, 0)

    def discard(self) -> None:
        """Drop received bytes that were not read, and free their memory: the connection ended."""
        self._start = self._end
        self.release()

    def receive_data(self, data: Buffer) -> None:
        """Copy `data` into the buffer."""
        source = memoryview(data).cast("B")
        at = 0
        while at < len(source):
            room = self.get_buffer()
            size = min(len(room), len(source) - at)
            room[:size] = source[at : at + size]
            self.buffer_updated(size)
            at += size

    def get_buffer(self) -> memoryview:
        """Free memory to receive into, never empty."""
        if self._start == self._end:
            if self._ordinary_block is not None:
                self._last_large_frame_bytes = self._capacity
                block, start = self._ordinary_block
                self._ordinary_block = None
                self._use(block, start, start)
                self._has_views = True
            elif not self._has_views:
                self._start = self._end = 0
        elif self._ordinary_block is not None and self._end < self._capacity:
            # The own memory of a large frame is filled before it grows.
            return self._writable[self._end :]
        need = self._room_needed()
        if self._capacity - self._start < need:
            self._move(need)
        return self._writable[self._end :]

    def buffer_updated(self, size_bytes: int) -> None:
        """Note that the first `size_bytes` of get_buffer()'s memory were filled."""
        self._end += size_bytes
        if size_bytes > self._largest_read:
            self._largest_read = size_bytes

    def next_frame(self) -> tuple[bytearray, memoryview] | None:
        """The next whole frame as (command, headers-and-payload), or None if more bytes are needed.

        The command is a copy. The rest is a read-only view without a copy; it may be empty.
        Raises ProtocolError.
        """
        start = self._start
        available = self._end - start
        if available < 8:
            if available >= 4:
                self._check_sizes(_TOTAL.unpack_from(self._block, start)[0], None)
            return None
        total, command_size = _SIZES.unpack_from(self._block, start)
        # One test for the ordinary case; _check_sizes then finds what is wrong, in a fixed order.
        if (
            total + 4 > self.max_frame_size_bytes
            or not 0 < command_size <= total - 4
            or command_size > self.max_command_size_bytes
        ):
            self._check_sizes(total, command_size)
        if available - 4 < total:
            return None
        command_at = start + 8
        payload_at = command_at + command_size
        self._start = end = start + 4 + total
        command = self._block[command_at:payload_at]
        if payload_at == end:
            return command, _NO_PAYLOAD
        self._has_views = True
        return command, self._readable[payload_at:end]

    def next_matching(
        self, pattern: Pattern[bytes], most: int
    ) -> tuple[list[tuple[bytes | Any, ...]], list[memoryview]]:
        """The next whole frames whose commands match, at most so many; there may be none.

        The commands are returned as the pattern's groups, the rest as views. Only commands in the
        usual encoding are looked at: their fourth byte says how many bytes follow it. What is not
        whole, does not match or is wrong is left to `next_frame`.
        """
        block, start, end = self._block, self._start, self._end
        match, sizes_at, readable = pattern.fullmatch, _SIZES.unpack_from, self._readable
        commands: list[tuple[bytes | Any, ...]] = []
        payloads: list[memoryview] = []
        while end - start >= 8 and len(commands) < most:
            total, command_size = sizes_at(block, start)
            command_at = start + 8
            payload_at = command_at + command_size
            start += 4 + total
            if (
                start > end
                or not 4 < command_size < 132
                or payload_at > start
                or total + 4 > self.max_frame_size_bytes
                or command_size > self.max_command_size_bytes
                or block[command_at + 3] != command_size - 4
                or (found := match(block, command_at, payload_at)) is None
            ):
                break
            commands.append(found.groups())
            payloads.append(readable[payload_at:start])
            self._start = start
        if commands:
            self._has_views = True
        return commands, payloads

    def _check_sizes(self, total: int, command_size: int | None) -> None:
        """Raise ProtocolError if the sizes are wrong."""
        limit, command_limit = self.max_frame_size_bytes, self.max_command_size_bytes
        if total + 4 > limit:
            raise ProtocolError(f"frame of {total + 4} bytes is above the limit of {limit}")
        if total < 5:
            raise ProtocolError(f"totalSize {total} cannot be a frame's sizes")
        if command_size is None:
            return
        if not 0 < command_size <= total - 4:
            raise ProtocolError(
                f"totalSize {total} and commandSize {command_size} cannot be a frame's sizes"
            )
        if command_size > command_limit:
            raise ProtocolError(
                f"command of {command_size} bytes is above the limit of {command_limit}"
            )

    def _room_needed(self) -> int:
        """How many bytes the block must be able to hold from _start on, before the next read."""
        pending = self._end - self._start
        if pending < 4:
            return _READ_MIN_BYTES
        frame_size: int = _TOTAL.unpack_from(self._block, self._start)[0] + 4
        if pending < frame_size <= self.max_frame_size_bytes:
            first_bytes = max(self._next_block_size(), self._last_large_frame_bytes)
            grown = max(first_bytes, _GROWTH * pending)
            # If little of the frame would still not fit, allocate all: it saves one more move.
            return frame_size if grown + grown // 3 >= frame_size else grown
        # Whole frames that the caller has not read yet, or one that next_frame() will refuse.
        return pending + _READ_MIN_BYTES

    def _use(self, block: bytearray, start: int, end: int) -> None:
        """Make `block` the current one, with unread bytes from `start` to `end`."""
        self._block = block
        self._writable = memoryview(block)
        self._readable = self._writable.toreadonly()
        self._capacity = len(block)
        self._start = start
        self._end = end
        self._has_views = False

    def _move(self, need: int) -> None:
        """Move the unread bytes to a new block that can hold `need` bytes."""
        old = self._readable[self._start : self._end]
        size = self._next_block_size()
        self._largest_read = 0
        if need > size // 2:
            if self._ordinary_block is None:
                self._ordinary_block = (self._block, self._start)
            size = need
        else:
            self._ordinary_block = None
        block = bytearray(size)
        block[: len(old)] = old
        self._use(block, 0, len(old))

    def _next_block_size(self) -> int:
        size = self._capacity if self._ordinary_block is None else len(self._ordinary_block[0])
        if self._largest_read >= size // 2:
            size *= 2
        elif self._largest_read < size // 8:
            size //= 2
        return min(max(size, _BLOCK_MIN_BYTES), _BLOCK_MAX_BYTES)


class Role(enum.Enum):
    """This program's side of the connection. The commands that it reads are the peer's."""

    SERVER = "server"
    CLIENT = "client"


@dataclass(slots=True)
class Command:
    """A command without payload: `type` (BaseCommand.Type) and its body, the sub-message."""

    type: int
    body: Any


@dataclass(slots=True)
class Send:
    """SEND: the producer's bytes are a read-only view that stays valid while it is held."""

    command: CommandSend
    headers_and_payload: memoryview


@dataclass(slots=True)
class Sends:
    """SENDs of one producer that followed one another, at least one, in columns."""

    producer_id: int
    sequence_ids: list[int]
    #: -1: the SEND has none.
    highest_sequence_ids: list[int]
    message_counts: list[int]
    #: Read-only views, as `Send.headers_and_payload`.
    bodies: list[memoryview]
    #: The only SEND's command, if it has other fields than these or is in an unusual encoding.
    whole: CommandSend | None = None

    def __len__(self) -> int:
        return len(self.bodies)

    def alone(self, number: int) -> Sends:
        """One SEND as a run of one."""
        return Sends(
            self.producer_id,
            [self.sequence_ids[number]],
            [self.highest_sequence_ids[number]],
            [self.message_counts[number]],
            [self.bodies[number]],
            self.whole,
        )

    def command(self, number: int) -> CommandSend:
        """The command of one SEND."""
        if self.whole is not None:
            return self.whole
        command = CommandSend(
            producer_id=self.producer_id,
            sequence_id=self.sequence_ids[number],
            num_messages=self.message_counts[number],
        )
        if self.highest_sequence_ids[number] >= 0:
            command.highest_sequence_id = self.highest_sequence_ids[number]
        return command


@dataclass(slots=True)
class Message:
    """MESSAGE: the entry's bytes, possibly with a broker entry metadata prefix (PIP-90)."""

    command: CommandMessage
    headers_and_payload: memoryview


@dataclass(slots=True)
class Unsupported:
    """A command type that Pulsar defines but this project does not implement."""

    type: int


Event: TypeAlias = Command | Send | Message | Unsupported
RunEvent: TypeAlias = Command | Sends | Unsupported
RUN_MAX = 32
"""The most SENDs in one `Sends`: between two events the caller decides whether to go on."""
_WITH_ENTRY: dict[int, type[Send | Message]] = {_T.SEND: Send, _T.MESSAGE: Message}
_ADMITTED = {Role.SERVER: TO_SERVER, Role.CLIENT: TO_CLIENT}
_HANDSHAKE = {Role.SERVER: _T.CONNECT, Role.CLIENT: _T.CONNECTED}
_BEFORE_HANDSHAKE = {
    Role.SERVER: frozenset({_T.CONNECT, _T.PING, _T.PONG}),
    Role.CLIENT: frozenset({_T.CONNECTED, _T.PING, _T.PONG, _T.AUTH_CHALLENGE, _T.ERROR}),
}


def _fast_parser(body_class: Any) -> Callable[[bytearray], Any]:
    """A fast parser of one body, for commands in the usual encoding.

    In the usual encoding, the type comes first and only the body follows it. If the body is shorter
    than 128 bytes, the command's fourth byte is the body's size. Then no BaseCommand object is
    needed. The parser returns None for any other encoding and for a bad command. The general
    parser (`_decode_any`) then reads the command and finds what is wrong.
    """
    from_string = body_class.FromString

    def parse(data: bytearray) -> Any:
        try:
            body = from_string(data)
        except (DecodeError, UnicodeDecodeError):
            return None
        return body if body.IsInitialized() else None

    return parse


# An ordinary SEND: producer, sequence id; number of messages and highest sequence id, if any.
_NUMBER = rb"([\x80-\xff]{0,8}[\x00-\x7f])"
_ORDINARY_SEND = re.compile(
    rb"\x08\x06\x32.\x08%b\x10%b(?:\x18([\x80-\xff]{0,3}[\x00-\x7f]))?(?:\x30%b)?"
    % (_NUMBER, _NUMBER, _NUMBER),
    re.DOTALL,
)
# The commands that come once per message, per acknowledgement or per some messages.
_FAST_PARSERS: dict[Role, dict[int, Callable[[bytearray], Any]]] = {
    Role.SERVER: {
        _T.SEND: _fast_parser(CommandSend),
        _T.ACK: _fast_parser(CommandAck),
        _T.FLOW: _fast_parser(CommandFlow),
    },
    Role.CLIENT: {
        _T.MESSAGE: _fast_parser(CommandMessage),
        _T.SEND_RECEIPT: _fast_parser(CommandSendReceipt),
    },
}


class Connection(FrameBuffer):
    """The reading side of a connection, which decodes frames. `commands` builds what is sent.

    max_message_size_bytes: the largest message; a frame may be 10 KiB larger (Pulsar's padding).
    A client takes over the limit in CONNECTED. A server takes commands of at most 1 MiB, a
    client of a whole frame: topic lists are long.
    """

    __slots__ = (
        "_ahead",
        "_fast_parsers",
        "_max_message_size_bytes",
        "error",
        "established",
        "last_command_size_bytes",
        "role",
    )

    def __init__(
        self,
        role: Role,
        *,
        max_message_size_bytes: int = DEFAULT_MAX_MESSAGE_SIZE_BYTES,
    ) -> None:
        super().__init__(0, 0)
        self.role = role
        #: The size of the latest command that `_decode_any` read, as it reads every request.
        self.last_command_size_bytes = 0
        #: Whether the handshake's command (CONNECT or CONNECTED) was received.
        self.established = False
        #: The error that ended this connection; None while it is alive.
        self.error: ProtocolError | None = None
        self._fast_parsers = _FAST_PARSERS[role]
        #: Runs that were read together with the one before them, and are still to be yielded.
        self._ahead: deque[Sends] = deque()
        self._set_limits(max_message_size_bytes)

    def discard(self) -> None:
        """Drop received bytes that were not read, and free their memory: the connection ended."""
        self._ahead.clear()
        super().discard()

    def withdraw_handshake(self) -> None:
        """Return to the state before the handshake, until `finish_handshake`."""
        self.established = False
        self._set_limits(self._max_message_size_bytes)

    def finish_handshake(self) -> None:
        """The handshake is done: from now on all commands are allowed, at full size."""
        self.established = True
        self._set_limits(self._max_message_size_bytes)

    def get_buffer(self, sizehint: int = -1) -> memoryview:
        """As `FrameBuffer.get_buffer`. Raises the connection's ProtocolError."""
        self._raise_if_dead()
        return super().get_buffer()

    def events(self) -> Iterator[Event]:
        """The events that are complete in the bytes so far, in order, each once.

        The caller may stop the iteration at any event, for example to stop reading at a limit. A
        later call continues with the next event. If the stream violates the protocol, a
        ProtocolError is raised, after the events before it, and again at every later call.
        """
        self._raise_if_dead()
        next_frame, decode = self.next_frame, self._decode
        try:
            while (frame := next_frame()) is not None:
                yield decode(*frame)
        except ProtocolError as error:
            self.error = error
            raise

    def runs(self) -> Iterator[RunEvent]:
        """As `events`, for a server: SENDs of one producer that follow one another are one event.

        An event has at most `RUN_MAX` SENDs; none of them is in another event. Raises ProtocolError
        as `events` does.
        """
        self._raise_if_dead()
        ahead, decode = self._ahead, self._decode
        try:
            while True:
                while ahead:
                    yield ahead.popleft()
                # Before the handshake, and for what is not an ordinary SEND, there is no run.
                if self.established:
                    matching = self.next_matching(_ORDINARY_SEND, RUN_MAX)
                    if matching[0]:
                        ahead.extend(_runs(*matching))
                        continue
                frame = self.next_frame()
                if frame is None:
                    return
                event = decode(*frame)
                yield _whole_send(event) if type(event) is Send else event  # type: ignore[misc]
        except ProtocolError as error:
            self.error = error
            raise

    def _raise_if_dead(self) -> None:
        if self.error is not None:
            raise self.error

    def _set_limits(self, max_message_size_bytes: int) -> None:
        """Apply the limits of the connection's present state."""
        self._max_message_size_bytes = max_message_size_bytes
        frame_size = max_message_size_bytes + FRAME_PADDING_BYTES
        if not self.established:
            frame_size = min(frame_size, HANDSHAKE_FRAME_SIZE_BYTES)
        is_server = self.role is Role.SERVER
        self.max_frame_size_bytes = frame_size
        self.max_command_size_bytes = MAX_REQUEST_SIZE_BYTES if is_server else frame_size

    def _decode(self, command: bytearray, payload: memoryview) -> Event:
        """One frame's event. The most frequent commands are parsed by a fast parser."""
        size = len(command)
        if 4 < size < 132 and command[3] == size - 4 and self.established:
            kind = command[1]
            parse = self._fast_parsers.get(kind)
            if parse is not None and command[0] == 0x08 and command[2] == kind << 3 | 2:
                body = parse(command[4:])
                if body is not None:
                    if kind in _WITH_ENTRY:  # it has neither text nor such values
                        return _WITH_ENTRY[kind](body, payload)
                    self._check_values(kind, body)
                    return Command(kind, body)
        return self._decode_any(command, payload)

    def _decode_any(self, command: bytearray, payload: memoryview) -> Event:
        """The event of any command in any encoding, or the error that names what is wrong."""
        self.last_command_size_bytes = len(command)
        try:
            base = BaseCommand.FromString(bytes(command))
        except (DecodeError, UnicodeDecodeError):
            raise ProtocolError(f"command of {len(command)} bytes cannot be parsed") from None
        if not base.HasField("type"):
            number = read_unknown_type(base)
            text = "command without type" if number is None else f"unknown command type {number}"
            raise ProtocolError(text)
        kind = int(base.type)
        self._check_allowed(kind)
        field = BODY_FIELDS.get(kind)
        if field is None:
            return Unsupported(kind)
        if not base.HasField(field):
            raise ProtocolError(f"{TYPE_NAMES[kind]} lacks {field}")
        if not base.IsInitialized():
            missing = base.FindInitializationErrors()  # type: ignore[attr-defined] # not in stubs
            raise ProtocolError(f"{TYPE_NAMES[kind]} lacks {', '.join(missing)}")
        body = getattr(base, field)
        self._check_values(kind, body)
        if kind == _HANDSHAKE[self.role]:
            self._take_over_limit(body)
            self.finish_handshake()
        return _WITH_ENTRY[kind](body, payload) if kind in _WITH_ENTRY else Command(kind, body)

    def _check_allowed(self, kind: int) -> None:
        """Refuse a command that is not allowed now, or that the peer may not send."""
        name = TYPE_NAMES[kind]
        if kind not in _ADMITTED[self.role]:
            raise ProtocolError(f"{name} must not be sent to a {self.role.value}")
        if not self.established:
            if kind not in _BEFORE_HANDSHAKE[self.role]:
                raise ProtocolError(f"{name} came before the handshake")
        elif kind == _HANDSHAKE[self.role]:
            raise ProtocolError(f"{name} came a second time")

    def _check_values(self, kind: int, body: ProtobufMessage) -> None:
        """Refuse long lists, text that is not UTF-8, and values that no command may have."""
        if kind in TYPES_WITH_TEXT_IN_BODY:
            if self.role is Role.SERVER:
                long_list = find_long_list(body, MAX_REQUEST_TEXTS)
                if long_list is not None:
                    field, count = long_list
                    raise ProtocolError(
                        f"{TYPE_NAMES[kind]}.{field} has {count} values; at most "
                        f"{MAX_REQUEST_TEXTS} are allowed"
                    )
            path = find_invalid_text(body)
            if path is not None:
                raise ProtocolError(f"{TYPE_NAMES[kind]}.{path} is not UTF-8")
        elif isinstance(body, CommandFlow) and not 0 < body.messagePermits <= _PERMITS_MAX:
            raise ProtocolError(f"FLOW.messagePermits must not be {body.messagePermits}")

    def _take_over_limit(self, body: ProtobufMessage) -> None:
        """A client takes over the broker's limit of a message."""
        if isinstance(body, CommandConnected) and body.max_message_size > 0:
            self._max_message_size_bytes = body.max_message_size


def _runs(commands: list[tuple[bytes | Any, ...]], bodies: list[memoryview]) -> Iterator[Sends]:
    """The events of SENDs whose fields were found by `_ORDINARY_SEND`."""
    first, total = 0, len(commands)
    while first < total:
        producer = commands[first][0]
        end = first + 1
        while end < total and commands[end][0] == producer:
            end += 1
        if end - first == 1:
            _, sequence, count, highest = commands[first]
            yield Sends(
                _number(producer),
                [_number(sequence)],
                [-1 if highest is None else _number(highest)],
                [1 if count is None else _number(count)],
                [bodies[first]],
            )
        else:
            _, sequences, counts, highest_ids = zip(*commands[first:end], strict=True)
            yield Sends(
                _number(producer),
                [*map(_number, sequences)],
                [-1 if number is None else _number(number) for number in highest_ids],
                [1 if number is None else _number(number) for number in counts],
                bodies[first:end],
            )
        first = end


def _whole_send(send: Send) -> Sends:
    """The same SEND as a run of one."""
    command = send.command
    highest = command.highest_sequence_id if command.HasField("highest_sequence_id") else -1
    return Sends(
        command.producer_id,
        [command.sequence_id],
        [highest],
        [command.num_messages],
        [send.headers_and_payload],
        command,
    )


def _number(varint: bytes) -> int:
    """The number that a varint stands for."""
    size = len(varint)
    if size == 1:
        return varint[0]
    if size == 2:
        return varint[0] & 0x7F | varint[1] << 7
    if size == 3:
        return varint[0] & 0x7F | (varint[1] & 0x7F) << 7 | varint[2] << 14
    number = 0
    for byte in reversed(varint):
        number = number << 7 | byte & 0x7F
    return number

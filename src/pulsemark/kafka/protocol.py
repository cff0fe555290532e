"""Kafka's protocol without I/O: the server's side of one connection, and the requests it serves.

The codecs are those of kafka-python's `kafka.protocol`. A decoded request takes up to a hundred
times its size in memory. So only Produce, which carries records, may be large (`APIS`).

Bytes come by `get_buffer` and `buffer_updated`, as in asyncio's BufferedProtocol, or by `receive`.
`take` cuts them into frames and decodes these. `answer` puts encoded answers into the order of
their requests, as Kafka's clients expect them: an answer is held back until all earlier ones are
there. A Produce with acks=0 has a place in that order, too, but no answer.

A frame is an i32 size and so many bytes. A wrong size, an unknown kind of request, a version that
is not served and a body that cannot be decoded end the connection, as in Kafka. Only an ApiVersions
request of another version is answered, so that the client can take one that is served.

**Receiving.** Small requests are received into memory that all connections of an event loop share,
and copied from there. A large request (`LARGE_BYTES`) gets a block of its own as soon as its size
is known (`LargeFrame`). What was received of it is moved there, and the rest is received in its
place. Its records are handed on as views of the block, up to the call that writes them to the disk.

Blocks are used again, because memory that was just mapped costs as much as a copy. A block is free
if it can be resized: a bytearray with a view cannot. Once `BLOCKS` are in use, or for a request
that is larger than a block, memory grows with what arrives, to four times as much: the size in a
request's head reserves nothing.

**Sending.** The codec would copy all records into its buffer. So a response is encoded with a mark
of 16 random bytes in place of each partition's records. `splice` puts the records there, and
replaces the size in front of each mark, an i32 in all versions that are served.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from io import BytesIO
from struct import Struct, error
from types import FunctionType
from typing import Any

from kafka.protocol import admin, consumer, metadata, producer, sasl
from kafka.protocol.api_header import RequestHeader

from ..metadata import Buffer
from . import messages
from .errors import ProtocolError

KIB = 1024
PRODUCE, LIST_OFFSETS, METADATA, OFFSET_COMMIT, OFFSET_FETCH = 0, 2, 3, 8, 9
API_VERSIONS = 18
SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36


@dataclass(frozen=True, slots=True)
class Api:
    """A kind of request that is served: codecs, versions and limits."""

    key: int
    lowest: int
    highest: int
    request: Any
    response: Any
    #: Bytes of a request of this kind. None: the connection's own limit.
    limit_bytes: int | None = 1024 * KIB

    @property
    def name(self) -> str:
        """Its name in Kafka's protocol, such as "Fetch"."""
        return str(self.request.name).removesuffix("Request")


def _api(key: int, highest: int, of: Any, name: str, **limits: int | None) -> Api:
    return Api(
        key, 0, highest, getattr(of, f"{name}Request"), getattr(of, f"{name}Response"), **limits
    )


APIS = {
    api.key: api
    for api in (
        _api(PRODUCE, 12, producer, "Produce", limit_bytes=None),
        _api(1, 11, consumer, "Fetch"),
        _api(LIST_OFFSETS, 11, consumer, "ListOffsets"),
        _api(METADATA, 12, metadata, "Metadata"),
        _api(OFFSET_COMMIT, 9, consumer, "OffsetCommit"),
        _api(OFFSET_FETCH, 9, consumer, "OffsetFetch", limit_bytes=256 * KIB),
        _api(10, 2, metadata, "FindCoordinator"),
        _api(11, 5, consumer, "JoinGroup"),
        _api(12, 3, consumer, "Heartbeat"),
        _api(13, 3, consumer, "LeaveGroup"),
        _api(14, 3, consumer, "SyncGroup"),
        _api(15, 4, admin, "DescribeGroups"),
        _api(16, 5, admin, "ListGroups"),
        _api(SASL_HANDSHAKE, 1, sasl, "SaslHandshake", limit_bytes=4 * KIB),
        _api(API_VERSIONS, 3, metadata, "ApiVersions", limit_bytes=4 * KIB),
        _api(19, 4, admin, "CreateTopics"),
        _api(20, 3, admin, "DeleteTopics"),
        _api(21, 1, admin, "DeleteRecords"),
        _api(22, 5, producer, "InitProducerId", limit_bytes=4 * KIB),
        _api(23, 3, consumer, "OffsetForLeaderEpoch"),
        _api(24, 3, producer, "AddPartitionsToTxn"),
        _api(25, 4, producer, "AddOffsetsToTxn", limit_bytes=64 * KIB),
        _api(26, 5, producer, "EndTxn", limit_bytes=8 * KIB),
        _api(28, 5, producer, "TxnOffsetCommit"),
        _api(29, 1, admin, "DescribeAcls"),
        _api(32, 3, admin, "DescribeConfigs"),
        _api(33, 1, admin, "AlterConfigs"),
        _api(34, 2, admin, "AlterReplicaLogDirs"),
        _api(35, 4, admin, "DescribeLogDirs"),
        _api(SASL_AUTHENTICATE, 1, sasl, "SaslAuthenticate", limit_bytes=64 * KIB),
        _api(37, 1, admin, "CreatePartitions"),
        _api(42, 1, admin, "DeleteGroups"),
        _api(43, 2, admin, "ElectLeaders"),
        _api(44, 0, admin, "IncrementalAlterConfigs"),
        _api(45, 0, admin, "AlterPartitionReassignments"),
        _api(46, 0, admin, "ListPartitionReassignments"),
        _api(47, 0, consumer, "OffsetDelete"),
        _api(60, 1, admin, "DescribeCluster"),
        _api(65, 0, admin, "DescribeTransactions", limit_bytes=256 * KIB),
        _api(66, 1, admin, "ListTransactions", limit_bytes=64 * KIB),
        _api(messages.CONSUMER_GROUP_HEARTBEAT, 1, messages, "ConsumerGroupHeartbeat"),
        _api(messages.CONSUMER_GROUP_DESCRIBE, 1, messages, "ConsumerGroupDescribe"),
    )
}
"""By key. The order is that of ApiVersions' answer."""

HIGHEST_FOR: dict[str, dict[int, int]] = {
    "kafka-python": {PRODUCE: 8, LIST_OFFSETS: 5, METADATA: 8, OFFSET_COMMIT: 7, OFFSET_FETCH: 5}
}
"""The highest versions that ApiVersions shows to clients of this software, by the request's key.

kafka-python concludes from the requests' versions which Kafka a broker is. It must conclude 2.4
(Produce 8): for a later one it would send, if it is configured as a client of 2.4 or later,
versions that are not served, such as Metadata 9. So for it ListOffsets ends at 5 (7: a Kafka 3.0);
requests about ACLs end at 1 (2: 2.5), and DescribeClientQuotas (2.6) is not served.
"""

RAW_SASL = Api(
    -1, 0, 0, sasl.SaslAuthenticateRequest, sasl.SaslAuthenticateResponse, limit_bytes=64 * KIB
)
"""A frame after a SaslHandshake of version 0: bytes of the mechanism, without a header."""

#: A larger request has a block of its own.
LARGE_BYTES = 64 * 1024
#: The most that one read takes into the shared memory; and after a large request, since of another
#: one that follows this much is copied.
SHARED_BYTES, SHARED_AFTER_LARGE_BYTES = 256 * 1024, 16 * 1024
#: A block's size, which Kafka's largest batch fits into, and how many blocks there may be.
BLOCK_BYTES, BLOCKS = 1024 * 1024 + LARGE_BYTES, 64
#: So many blocks, those that were given out first, are tried before another one is made.
TRIED = 3
#: The size of a request's memory that is no block, as a multiple of what has arrived.
GROWTH = 4
RECORDS_MARK = os.urandom(16)
"""Stands in a response for the records of one partition. No client can know it."""
#: A larger body can be thousands of small structs, which take long to decode.
DECODED_AT_ONCE_BYTES = LARGE_BYTES
#: A decoder may copy a body of more than so many bytes so many times.
COPIED_BYTES, COPIES = KIB, 16
#: A Produce with so few sets takes no time: its records are not decoded.
DECODED_AT_ONCE_SETS = 200
#: A Produce with more sets is refused: decoded they would take a hundred times its size.
MAX_SETS = 100_000
#: A topic without sets takes at least so many bytes.
LEAST_TOPIC_BYTES = 3
#: From this version on, sizes of a Produce are varints, and its structs have tagged fields.
FLEXIBLE_PRODUCE = 9
_SIZE = Struct(">i")
_KEY_VERSION = Struct(">hh")
_HEAD_BYTES = 8
_CLIENT_ID = Struct(">h")
_ACKS_AND_TIMEOUT_BYTES = 6
_TEXT_SIZE = Struct(">h")
_INDEX_BYTES = 4
BEFORE_AUTHENTICATION = frozenset({API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE})
MAX_RAW_SASL_BYTES = 64 * 1024
#: The errors of kafka-python's decoders for malformed bytes.
DECODE_ERRORS = (error, IndexError, ValueError, OverflowError, MemoryError, TypeError)


@dataclass(slots=True, eq=False)
class Request:
    """A decoded request, and its place in the order of answers."""

    api: Api
    version: int
    correlation_id: int
    client_id: str
    #: Decoded by kafka-python; None for ApiVersions in a version that is not served.
    body: Any
    size_bytes: int
    #: The bytes of a body that is not decoded yet, because it is large; see `decode_body`.
    undecoded: memoryview | None = field(default=None, repr=False)
    #: The answer's buffers; None until there is one.
    answer: Sequence[Buffer] | None = field(default=None, repr=False)


class Connection:
    """The server's side of a connection. `max_frame_bytes` limits requests with records."""

    def __init__(self, max_frame_bytes: int, memory: Memory | None = None) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._memory = memory or Memory()
        self._large: LargeFrame | None = None
        """The request that has a block of its own; the other input comes after it."""
        self._after_large = False
        self.takes_raw_sasl = False
        """The next frame has bytes of a SASL mechanism instead of a request."""
        self.is_admitted = True
        """Whether the client may send requests other than ApiVersions and SASL's."""
        self._input = bytearray()
        self._taken = 0
        """How many bytes of the input were taken."""
        self._unanswered: deque[Request] = deque()
        self.waiting_bytes = 0
        """Requests without an answer, in bytes as they came."""
        self.held_bytes = 0
        """Answers that wait for those of earlier requests."""

    @property
    def pending_bytes(self) -> int:
        """Bytes of requests that are incomplete, or not taken yet."""
        large_bytes = 0 if self._large is None else self._large.received_bytes
        return large_bytes + len(self._input) - self._taken

    @property
    def unanswered(self) -> int:
        """How many requests were taken and have no answer."""
        return len(self._unanswered)

    def receive(self, data: Buffer) -> None:
        """Take bytes from the client."""
        rest = memoryview(data)
        while rest:
            room = self.get_buffer()
            size_bytes = min(len(room), len(rest))
            room[:size_bytes] = rest[:size_bytes]
            self.buffer_updated(size_bytes)
            rest = rest[size_bytes:]

    def get_buffer(self) -> memoryview:
        """The buffer for the next bytes; never empty."""
        if self._large is None:
            self._begin_large()
        if self._large is not None and not self._large.is_complete:
            return self._large.room()
        shared = self._memory.shared
        return shared[:SHARED_AFTER_LARGE_BYTES] if self._after_large else shared

    def buffer_updated(self, size_bytes: int) -> None:
        """Take the first bytes of `get_buffer`'s memory, which were received."""
        if self._large is not None and not self._large.is_complete:
            self._large.received_bytes += size_bytes
            return
        if self._taken:
            del self._input[: self._taken]
            self._taken = 0
        self._input += self._memory.shared[:size_bytes]

    def _begin_large(self) -> None:
        """Give an arriving request a block of its own, if it is large."""
        at = self._taken
        received_bytes = len(self._input) - at
        if received_bytes < _HEAD_BYTES:
            return
        size_bytes = 4 + _SIZE.unpack_from(self._input, at)[0]
        if size_bytes <= max(LARGE_BYTES, received_bytes):
            return
        try:
            self._frame_end(at)
        except ProtocolError:
            return  # `take` raises it
        with memoryview(self._input) as view:
            self._large = LargeFrame(self._memory, size_bytes, view[at:])
        self._input.clear()
        self._taken = 0

    def take(self) -> Request | None:
        """The next complete request, or None.

        A large body is left undecoded, for another thread (`decode_body`).
        Raises ProtocolError, after which nothing can be taken any more.
        """
        large = self._large
        if large is not None:
            if not large.is_complete:
                return None
            frame = large.body()
            self._check_kind(frame, 0, len(frame))
            self._large, self._after_large = None, True
            return self._request(frame)
        end = self._frame_end(self._taken)
        if end is None:
            return None
        self._after_large = end - self._taken > LARGE_BYTES
        return self._request(self._cut(self._taken + 4, end))

    def _cut(self, at: int, end: int) -> memoryview:
        """Take a frame out of the input. A large one keeps its memory; a small one is copied."""
        whole = self._input
        if end - at > DECODED_AT_ONCE_BYTES > len(whole) - end:
            self._input, self._taken = whole[end:], 0
            return memoryview(whole)[at:end]
        with memoryview(whole) as view:
            frame = bytes(view[at:end])
        self._taken = end
        if end == len(whole):
            whole.clear()
            self._taken = 0
        return memoryview(frame)

    def _frame_end(self, at: int) -> int | None:
        """The end of the frame at `at`; None if it is incomplete. Checks size and kind."""
        received = len(self._input) - at
        if received < 4:
            return None
        (size,) = _SIZE.unpack_from(self._input, at)
        if self.takes_raw_sasl:
            if not 0 <= size <= MAX_RAW_SASL_BYTES:
                raise ProtocolError(f"{size} bytes of SASL: at most {MAX_RAW_SASL_BYTES}")
            return at + 4 + size if received >= 4 + size else None
        if not _HEAD_BYTES <= size <= self.max_frame_bytes:
            raise ProtocolError(
                f"a request of {size} bytes: at least {_HEAD_BYTES} and at most "
                f"{self.max_frame_bytes} are allowed"
            )
        if received >= 8:
            self._check_kind(self._input, at + 4, size)
        return at + 4 + size if received >= 4 + size else None

    def _check_kind(self, data: Buffer, at: int, size: int) -> None:
        """Raise ProtocolError if a request of this kind or size is not allowed now."""
        key, version = _KEY_VERSION.unpack_from(data, at)
        api = _served(key, version)
        if not self.is_admitted and key not in BEFORE_AUTHENTICATION:
            raise ProtocolError(f"{api.name} before the client was authenticated")
        if api.limit_bytes is not None and size > api.limit_bytes:
            raise ProtocolError(
                f"a {api.name} request of {size} bytes: at most {api.limit_bytes} are allowed"
            )

    def _request(self, frame: memoryview) -> Request:
        if self.takes_raw_sasl:
            return self._waiting(Request(RAW_SASL, 0, 0, "", bytes(frame), len(frame)))
        key, version = _KEY_VERSION.unpack_from(frame)
        api = APIS[key]
        is_served = api.lowest <= version <= api.highest
        # In a version that is not served, only the first fields of the header are certain.
        flexible = is_served and api.request.flexible_version_q(version)
        try:
            source = BytesIO(_header_bytes(frame, flexible=flexible))
            header = RequestHeader.decode(source, flexible=flexible)
        except DECODE_ERRORS as problem:
            raise _undecodable(api, version, problem) from problem
        client_id = header.client_id or ""
        request = Request(api, version, header.correlation_id, client_id, None, len(frame))
        if is_served:
            request.undecoded = body = frame[source.tell() :]
            most = DECODED_AT_ONCE_SETS
            if len(frame) <= DECODED_AT_ONCE_BYTES or (
                key == PRODUCE and _count_sets(version, body, most) <= most
            ):
                decode_body(request)
        return self._waiting(request)

    def _waiting(self, request: Request) -> Request:
        self._unanswered.append(request)
        self.waiting_bytes += request.size_bytes
        return request

    def answer(self, request: Request, buffers: Sequence[Buffer]) -> list[Buffer]:
        """Put an answer in its place, and return the buffers to send now. () means no answer."""
        assert request.answer is None, "a request has one answer"
        request.answer = buffers
        self.waiting_bytes -= request.size_bytes
        if self._unanswered[0] is not request:
            self.held_bytes += sum(map(len, buffers))
            return []
        ready = list(self._unanswered.popleft().answer or ())
        while self._unanswered and (held := self._unanswered[0].answer) is not None:
            self.held_bytes -= sum(map(len, held))
            ready.extend(held)
            self._unanswered.popleft()
        return ready


def _header_bytes(frame: memoryview, *, flexible: bool) -> memoryview:
    """The first bytes of a frame, enough for its header. Raises struct.error."""
    if flexible:  # with tagged fields, whose size is not known; a large request has a small header
        return frame[:LARGE_BYTES]
    (client_id_bytes,) = _CLIENT_ID.unpack_from(frame, _HEAD_BYTES)
    return frame[: _HEAD_BYTES + _CLIENT_ID.size + max(0, client_id_bytes)]


class _ProduceWalk:
    """Skips through a Produce request without decoding it. Raises struct.error, IndexError."""

    def __init__(self, version: int, body: memoryview) -> None:
        self._body = body
        self._is_flexible = version >= FLEXIBLE_PRODUCE
        self._at = 0
        if version >= 3:
            self.skip(self.size(_TEXT_SIZE))  # the transactional id
        self.skip(_ACKS_AND_TIMEOUT_BYTES)

    def skip(self, size_bytes: int) -> None:
        self._at += max(0, size_bytes)

    def size(self, field: Struct = _SIZE) -> int:
        """Read the size of a text, an array or bytes."""
        if not self._is_flexible:
            (size,) = field.unpack_from(self._body, self._at)
            self._at += field.size
            return int(size)
        size = shift = 0
        while shift < 35:
            byte = self._body[self._at]
            self._at += 1
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        return size - 1

    def end_struct(self) -> None:
        """Raise ProtocolError for tagged fields. No version has any, and each would cost the codec
        a copy of all that follows.
        """
        if self._is_flexible:
            if self._body[self._at]:
                raise ProtocolError("a Produce with tagged fields")
            self._at += 1


def _count_sets(version: int, body: memoryview, most: int) -> int:
    """The number of partitions with sets in a Produce; counting ends beyond `most`."""
    sets = 0
    try:
        walk = _ProduceWalk(version, body)
        for _ in range(walk.size()):
            walk.skip(walk.size(_TEXT_SIZE))
            partitions = walk.size()
            if partitions <= 0:
                sets += 1  # a topic without sets takes memory, too
            for _ in range(partitions):
                walk.skip(_INDEX_BYTES)
                walk.skip(walk.size())
                walk.end_struct()
                sets += 1
                if sets > most:
                    return sets
            walk.end_struct()
            if sets > most:
                return sets
        walk.end_struct()
    except (error, IndexError):
        pass  # the decoder says what is wrong with it
    return sets


def decode_body(request: Request) -> None:
    """Decode a body that `take` has left as bytes. Runs in any thread. Raises ProtocolError."""
    body, version = request.undecoded, request.version
    if body is None:
        return
    may_have_many = request.api.key == PRODUCE and (
        version >= FLEXIBLE_PRODUCE or len(body) > LEAST_TOPIC_BYTES * MAX_SETS
    )
    if may_have_many and _count_sets(version, body, MAX_SETS) > MAX_SETS:
        raise ProtocolError(f"a Produce with more than {MAX_SETS} sets")
    try:
        request.body = _decode(request.api, version, body)
    except DECODE_ERRORS as problem:
        raise _undecodable(request.api, version, problem) from problem
    request.undecoded = None


def _undecodable(api: Api, version: int, problem: Exception) -> ProtocolError:
    return ProtocolError(f"a {api.name} request, version {version}, cannot be decoded: {problem}")


def encode(request: Request, response: Any) -> bytes:
    """Encode a response in the request's version."""
    version = 0 if request.body is None else request.version
    response.API_VERSION = version
    response.with_header(request.correlation_id)
    frame: bytes = response.encode(header=True, framed=True)
    return frame


def _served(key: int, version: int) -> Api:
    api = APIS.get(key)
    if api is None:
        raise ProtocolError(f"requests of kind {key} are not served")
    if not api.lowest <= version <= api.highest and key != API_VERSIONS:
        raise ProtocolError(
            f"{api.name} is served in versions {api.lowest} to {api.highest}, not {version}"
        )
    return api


def _decode(api: Api, version: int, data: memoryview) -> Any:
    """Decode a body. Raises one of `DECODE_ERRORS`."""
    flexible = api.request.flexible_version_q(version)
    decode = api.request._struct.compiled_decode_from(
        version, compact=flexible, tagged=flexible, data_class=api.request
    )
    if api.key == PRODUCE and len(data) > LARGE_BYTES:
        decode = _without_copies(decode)
    elif flexible and len(data) > COPIED_BYTES:
        decode = _with_few_copies(decode, COPIES * len(data))
    body, end = decode(data, 0)
    if end > len(data):
        # Its strings and bytes are slices, which are cut short without an error.
        raise ValueError(f"it ends {end - len(data)} bytes too early")
    return body


@cache
def _without_copies(decode: Any) -> Any:
    """A decoder whose fields of bytes are views of the data; made once for each version.

    kafka-python's decoders copy such a field by `bytes(data[from:to])`, and use that name for
    nothing else.
    """
    return FunctionType(decode.__code__, {**decode.__globals__, "bytes": memoryview})


def _with_few_copies(decode: Any, most_bytes: int) -> Any:
    """A decoder that copies at most `most_bytes`; else it raises ValueError.

    kafka-python's decoders copy all that follows each struct with tagged fields.
    """
    left = most_bytes

    def copied(view: Buffer) -> bytes:
        nonlocal left
        left -= len(view)
        if left < 0:
            raise ValueError("it has tagged fields in too many places")
        return bytes(view)

    return FunctionType(decode.__code__, {**decode.__globals__, "bytes": copied})


class Memory:
    """Memory that the connections of one event loop share."""

    def __init__(self) -> None:
        self.shared = memoryview(bytearray(SHARED_BYTES))
        """Where small requests are received. Its content is lost at the next read."""
        self._blocks: deque[bytearray] = deque()
        """In the order in which they were given out."""
        self._taken = 0

    @property
    def block_bytes(self) -> int:
        """The size of all blocks."""
        return len(self._blocks) * BLOCK_BYTES

    def take(self, size_bytes: int, received_bytes: int) -> bytearray:
        """Get memory for a request of this size, of which `received_bytes` have arrived."""
        if size_bytes <= BLOCK_BYTES:
            block = self._block()
            if block is not None:
                return block
        grown = GROWTH * received_bytes
        return bytearray(size_bytes if grown + grown // 3 >= size_bytes else grown)

    def _block(self) -> bytearray | None:
        blocks = self._blocks
        for _ in range(min(TRIED, len(blocks))):
            blocks.rotate(-1)
            if _is_free(blocks[-1]):
                self._taken += 1
                return blocks[-1]
        if len(blocks) >= BLOCKS:
            return None
        self._taken += 1
        blocks.append(bytearray(BLOCK_BYTES))
        return blocks[-1]

    def trim(self) -> None:
        """Free half of the blocks that were not needed since the last call."""
        unneeded, self._taken = len(self._blocks) - self._taken, 0
        for _ in range((unneeded + 1) // 2):
            block = self._blocks.popleft()
            if not _is_free(block):
                self._blocks.append(block)


def _is_free(block: bytearray) -> bool:
    """Whether no view of a block exists."""
    try:
        block.append(block.pop())
    except BufferError:
        return False
    return True


class LargeFrame:
    """A request that is received into a block of its own, with its size field."""

    def __init__(self, memory: Memory, size_bytes: int, begin: Buffer) -> None:
        self._memory = memory
        self._size_bytes = size_bytes
        self._view = memoryview(memory.take(size_bytes, len(begin)))
        self._view[: len(begin)] = begin
        self.received_bytes = len(begin)

    @property
    def is_complete(self) -> bool:
        """Whether all of it was received."""
        return self.received_bytes == self._size_bytes

    def room(self) -> memoryview:
        """The memory for the next bytes."""
        at = self.received_bytes
        if at == len(self._view):
            grown = memoryview(self._memory.take(self._size_bytes, at))
            grown[:at] = self._view
            self._view = grown
        return self._view[at : self._size_bytes]

    def body(self) -> memoryview:
        """The complete request, without its size field."""
        return self._view[4 : self._size_bytes]


def splice(encoded: bytes, records: Sequence[Sequence[Buffer]]) -> list[Buffer]:
    """Insert each partition's records at their marks in an encoded frame. Raises ValueError."""
    pieces = encoded.split(RECORDS_MARK)
    if len(pieces) != len(records) + 1:
        raise ValueError(f"{len(pieces) - 1} marks for the records of {len(records)} partitions")
    sizes = [sum(map(len, parts)) for parts in records]
    total_bytes = len(encoded) - 4 + sum(sizes) - len(records) * len(RECORDS_MARK)
    pieces[0] = _SIZE.pack(total_bytes) + pieces[0][4:]
    spliced: list[Buffer] = []
    for piece, size_bytes, parts in zip(pieces, sizes, records, strict=False):
        spliced.append(piece[:-4] + _SIZE.pack(size_bytes))
        spliced.extend(parts)
    spliced.append(pieces[-1])
    return spliced

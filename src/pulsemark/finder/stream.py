"""ReadEntries' answer: a topic's entries packed into messages of at most about 1 MiB.

It is a generator that blocks on file reads. A worker thread advances it by one message at a time.
Between two steps the caller may stop, wait for a slow receiver or serve others. Each step reads at
most READ_BYTES (or one entry), so a stream uses a few MiB, however long the topic is.

- Small entries share a message: one message for each would cost more than the entries.
- An entry larger than PIECE_BYTES is sent in pieces, in order and not mixed with other entries. So
  entries of any size pass gRPC's default message limit of 4 MiB.
- If only prefixes are wanted, bodies are not read, except to get the publish time of an entry
  without a stamp.
- Entries that are appended while the stream runs are sent too; it ends when it has caught up.
- Entries that retention removes while the stream runs are left out; their indexes show the gap.
- A damaged entry ends the stream with CorruptEntryError, after all entries before it.

**Slots** (`StreamSlots`) limit the streams at a time. A stream whose receiver does not read uses
memory and a slot. It waits in a write, and after `stall_timeout_s` it is ended. If all slots are in
use when a new call arrives, the stream that has waited longest is ended, provided that it has
waited for at least YIELD_AFTER_S. The new call gets its slot. So receivers that do not read never
block those that do. Single calls have a limit of their own (`service`).

gRPC cannot take back a message that was passed to it. So an ended stream lingers in gRPC, with that
one message, until its client reads, cancels or disconnects. A connection with a lingering stream
cannot open another stream. If MAX_LINGERING streams linger, all new streams are refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import grpc

from ..ledger import CorruptEntryError, Entry, EntryKind, IoCount, Position, RecordHead, TopicLog
from ..ledger.run import DamagedRecordError
from ..proto import seek_pb2 as pb
from .errors import ServerFullError, StreamStalledError
from .messages import int64, tag_messages
from .rpc import position_message
from .search import own_time_ms

if TYPE_CHECKING:
    from ..compaction.compacted_log import CompactedLog

PIECE_BYTES = 1 << 20
READ_BYTES = 1 << 20
READ_ENTRIES = 256
_SLICE_ITEMS = 16
"""The number of entries after which a reader pauses for other work (see `TopicLog.give_way`)."""
_EMPTY = memoryview(b"")
YIELD_AFTER_S = 1.0
MAX_LINGERING = 32
MAX_STREAMS_PER_CONNECTION = 16
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The range `[start, end)` (None: to the topic's end), at most `max_entries`."""

    start: Position
    end: Position | None
    max_entries: int | None
    prefixes_only: bool
    control_only: bool = False
    """Only control entries; only they count for the maximum."""
    uncommitted: bool = False
    """Also entries of transactions that are open or aborted, and those after the first open one."""


@dataclass(frozen=True, slots=True)
class _Item:
    """An entry, or only its head (then `body` is empty), and its time."""

    head: Entry | RecordHead
    body: memoryview
    body_size_bytes: int
    time_ms: int


def entry_responses(
    log: TopicLog | CompactedLog, plan: ReadPlan
) -> Iterator[pb.ReadEntriesResponse]:
    """One ReadEntries answer; its last message says where to go on. Raises CorruptEntryError."""
    if isinstance(log, TopicLog) and plan.prefixes_only:
        read: Callable[[Position, int], list[_Item]] = partial(_read_heads, log)
    else:
        read = partial(_read_entries, log, has_bodies=not plan.prefixes_only)
    place = plan.start
    left = plan.max_entries
    while left is None or left > 0:
        limit = READ_ENTRIES if left is None or plan.control_only else min(left, READ_ENTRIES)
        items = read(place, limit)
        end, sent = plan.end, items
        if not plan.uncommitted:
            end, sent = _committed(log, items, end)
        wanted = [i for i in items if end is None or i.head.position < end]
        sent = [i for i in sent if end is None or i.head.position < end]
        if plan.control_only:
            sent = [i for i in sent if i.head.kind is EntryKind.CONTROL][:left]
            # Also without an entry to send: the caller may stop between two messages.
            yield pb.ReadEntriesResponse()
        yield from _pack(_with_pauses(log, sent))
        if left is not None:
            left -= len(sent)
        if wanted:
            place = (sent[-1] if left == 0 else wanted[-1]).head.position.following
        if not items or len(wanted) < len(items):
            break
    end = log.last_position
    yield pb.ReadEntriesResponse(
        next_position=position_message(place), end=end is None or end < place
    )


def _committed(
    log: TopicLog | CompactedLog, items: list[_Item], end: Position | None
) -> tuple[Position | None, list[_Item]]:
    """Up to where consumers may see entries, and which of these they may see."""
    transactions = log.transactions_met(item.head.prefix for item in items)
    if transactions is None:
        return end, items
    stable_end = log.stable_end
    visible = transactions.visible((item.head.position for item in items), stable_end)
    end = stable_end if end is None else min(end, stable_end)
    return end, [item for item in items if item.head.position in visible]


def _read_entries(
    log: TopicLog | CompactedLog, start: Position, limit: int, *, has_bodies: bool
) -> list[_Item]:
    entries = log.read(start, max_entries=limit, max_bytes=READ_BYTES)
    return [
        _Item(entry, entry.body if has_bodies else _EMPTY, len(entry.body), entry.time_ms)
        for entry in _with_pauses(log, entries)
    ]


def _with_pauses(log: TopicLog | CompactedLog, each: Iterable[Item]) -> Iterator[Item]:
    """The same items, with regular pauses for more urgent work."""
    for number, item in enumerate(each):
        if number % _SLICE_ITEMS == 0:
            log.give_way()
        yield item


def _read_heads(log: TopicLog, start: Position, limit: int) -> list[_Item]:
    """Like `log.read`, for heads: damage ends the list, or is raised if the list is empty."""
    items: list[_Item] = []
    io = IoCount()
    for segment, first, last in log.stretches(start):
        for row in range(first, last):
            if len(items) == limit:
                return items
            if row % _SLICE_ITEMS == 0:
                log.give_way()
            try:
                head = segment.head(row, io)
                time_ms = own_time_ms(segment, row, head, io)
            except (DamagedRecordError, FileNotFoundError) as error:
                if segment.is_gone(row):
                    if segment.removed:
                        break
                    continue
                if items:
                    return items
                if isinstance(error, FileNotFoundError):
                    raise
                position = Position(segment.ledger_id, segment.first_entry_id + row)
                following = log.next_position(position)
                raise CorruptEntryError(log.name, position, following, error.reason) from error
            items.append(_Item(head, memoryview(b""), head.body_size_bytes, time_ms))
    return items


def _pack(items: Iterable[_Item]) -> Iterator[pb.ReadEntriesResponse]:
    """Items as messages: small items together, a large item in pieces."""
    response, room_bytes = pb.ReadEntriesResponse(), PIECE_BYTES
    for item in items:
        size_bytes = len(item.body)
        if size_bytes > room_bytes and response.pieces:
            yield response
            response, room_bytes = pb.ReadEntriesResponse(), PIECE_BYTES
        if size_bytes > PIECE_BYTES:
            yield from _pieces(item)
            continue
        piece = response.pieces.add()
        _describe(piece, item)
        piece.body = bytes(item.body)
        room_bytes -= size_bytes
    if response.pieces:
        yield response


def _pieces(item: _Item) -> Iterator[pb.ReadEntriesResponse]:
    for offset in range(0, len(item.body), PIECE_BYTES):
        response = pb.ReadEntriesResponse()
        piece = response.pieces.add()
        if offset == 0:
            _describe(piece, item)
        else:
            piece.position.CopyFrom(position_message(item.head.position))
            piece.body_size_bytes = item.body_size_bytes
            piece.body_offset_bytes = offset
        piece.body = bytes(item.body[offset : offset + PIECE_BYTES])
        yield response


def _describe(piece: pb.EntryPiece, item: _Item) -> None:
    head = item.head
    piece.position.CopyFrom(position_message(head.position))
    piece.body_size_bytes = item.body_size_bytes
    piece.prefix = bytes(head.prefix)
    piece.first_index = head.first_index
    piece.index = head.index
    piece.message_count = head.message_count
    piece.time_ms = int64(item.time_ms)
    piece.append_time_ms = head.append_time_ms
    piece.tags.extend(tag_messages(piece.prefix))
    piece.kind = cast("pb.EntryKind", head.kind.value)


class StreamSlots:
    """The slots for streams; used on one event loop."""

    def __init__(self, limit: int, stall_timeout_s: float) -> None:
        self.limit = limit
        self.stall_timeout_s = stall_timeout_s
        self._open: set[_Slot] = set()
        #: The connection of each ended stream that gRPC still holds.
        self._lingering: list[str] = []
        #: Streams that wait in a write, the longest waiting first, and since when they wait.
        self.waiting: dict[_Slot, float] = {}

    def open(self, context: grpc.aio.ServicerContext) -> _Slot:
        """A slot, as a context manager. Raises ServerFullError."""
        peer = context.peer()
        if peer in self._lingering:
            raise ServerFullError(
                "this connection has an ended stream that it has not read: read or cancel it first"
            )
        if sum(slot.peer == peer for slot in self._open) >= MAX_STREAMS_PER_CONNECTION:
            raise ServerFullError(
                f"a connection has at most {MAX_STREAMS_PER_CONNECTION} streams at a time"
            )
        if len(self._lingering) >= MAX_LINGERING:
            raise ServerFullError("too many ended streams were not read by clients; try later")
        if len(self._open) >= self.limit and not self._free_one():
            raise ServerFullError(f"all {self.limit} streams are in use; try later")
        slot = _Slot(self, context)
        self._open.add(slot)
        return slot

    def close(self, slot: _Slot) -> None:
        """Note that the stream has ended."""
        self.waiting.pop(slot, None)
        self._open.discard(slot)

    def linger(self, slot: _Slot) -> None:
        """Note that gRPC still holds a message of an ended stream."""
        self._lingering.append(slot.peer)
        slot.context.add_done_callback(lambda _: self._lingering.remove(slot.peer))

    def _free_one(self) -> bool:
        if not self.waiting:
            return False
        slot, since_s = next(iter(self.waiting.items()))
        if asyncio.get_running_loop().time() - since_s < YIELD_AFTER_S:
            return False
        slot.end()
        self.close(slot)
        return True


class _Slot:
    """One stream's slot."""

    def __init__(self, slots: StreamSlots, context: grpc.aio.ServicerContext) -> None:
        self._slots = slots
        self.context = context
        #: Address and port of the client, which identify its connection.
        self.peer = context.peer()
        self._ended: asyncio.Event = asyncio.Event()

    def end(self) -> None:
        """End the stream: its running write raises StreamStalledError."""
        self._ended.set()

    async def write(self, message: Any) -> None:
        """Send one message. Raises StreamStalledError if the receiver does not read in time."""
        waiting = self._slots.waiting
        loop = asyncio.get_running_loop()
        since_s = waiting[self] = loop.time()
        writing = asyncio.ensure_future(self.context.write(message))
        ended = asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait(
                {writing, ended},
                timeout=self._slots.stall_timeout_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if not writing.done():
                raise StreamStalledError(loop.time() - since_s)
            writing.result()
        finally:
            # Also if the call is cancelled from outside, as one whose credentials expire.
            if not writing.done():
                self._slots.linger(self)
            waiting.pop(self, None)
            writing.cancel()
            ended.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._slots.close(self)

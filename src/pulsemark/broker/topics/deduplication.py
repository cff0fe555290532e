"""Deduplication: the highest sequence id that each producer of a topic has stored (PIP-6).

A producer's message whose sequence id is not above the highest one of its name is a duplicate. It
is answered with the position (-1, -1), takes no index and is not dispatched. A batch counts by the
sequence id in its SEND. A message in chunks counts when its last chunk is stored. From then on
each of its chunks is a duplicate; Pulsar stores all but the last one again, for which clients with
a C++ core may drop the message. Chunks of a message that is not stored whole are stored again, as
in Pulsar.

A message that repeats one that is not durable yet is refused (`UncertainError`): the client sends
it again later. An entry is stored only after the one before it of the same producer (``follows`` of
the ledger), and after one that was refused only once the producer was opened again
(`Producer.must_open_again`). So a failure leaves no gap that a higher sequence id would hide.

Sequence ids are signed numbers, as in Pulsar, although the protocol sends them unsigned: 2^64-1 is
-1. After an id of 2^63-1 there is no higher one, here and in Pulsar, until the topic's
deduplication is switched off and on.

Names count in bytes: those of one topic up to `TOPIC_MAX_BYTES`, of all topics up to
`ALL_MAX_BYTES`. Beyond that producers that are gone are forgotten first, those that published
longest ago before others.

The highest ids are in memory. A snapshot in the catalog has them as they were at a position of the
log, from time to time (more seldom if the names are large); a broker that opens the topic reads it
and the entries after that position. Before entries are removed from the log, a snapshot is stored
that includes them. So nothing is lost by a kill.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable
from json.encoder import encode_basestring_ascii
from typing import Any, NamedTuple

from ...ledger import Appended, Entry, EntryKind, ManagedLedger, Position
from ...ledger.topic_log import entries_of
from ...metadata import Buffer, MessageFormatError, PrefixError, peek, read_message_metadata
from ...metadata.source_stamp import source_stamp_of
from ...proto.pulsar_api_pb2 import CommandSend, ServerError
from ...wire import to_signed
from ..errors import RefusedError
from .producers import NAME_SIZE_MAX_BYTES, DuplicateMessageError

SNAPSHOT_KIND = "deduplication"
UNCERTAIN = "Cannot determine whether the message is a duplicate at this time"
NONE = -1
#: The bytes of a producer beside its name.
ROW_BYTES = 256
#: The names of one topic's producers: 10,000 of 160 characters each.
TOPIC_MAX_BYTES = 4 * 1024 * 1024
#: The bytes of all topics, without `SHARE_BYTES` that each topic may have in any case.
ALL_MAX_BYTES = 64 * 1024 * 1024
SHARE_BYTES = 64 * 1024
#: A snapshot has at most so many bytes for each entry that became durable since the one before.
SNAPSHOT_BYTES_PER_ENTRY = 1000


class UncertainError(RefusedError):
    """The message repeats one that is not durable yet, and so may still fail."""

    def __init__(self, topic: str, producer: str) -> None:
        super().__init__(ServerError.PersistenceError, f"[{topic}][{producer}]{UNCERTAIN}")


class Snapshot(NamedTuple):
    """The highest sequence ids at a position of the log."""

    position: Position
    producers: dict[str, tuple[int, int]]

    def stored(self, topic_id: int) -> bytes:
        """The snapshot as the catalog has it, with the topic's id: a name may be used again."""
        return json.dumps(
            {"topicId": topic_id, "position": self.position, "producers": self.producers}
        ).encode()

    @classmethod
    def parse(cls, value: bytes, topic_id: int) -> Snapshot | None:
        """Parse the snapshot of this topic; None if it is of an earlier topic of that name."""
        found = json.loads(value)
        if found["topicId"] != topic_id:
            return None
        # Earlier versions stored the ids unsigned.
        producers = {
            name: (to_signed(each[0]), each[1]) for name, each in found["producers"].items()
        }
        return cls(Position(*found["position"]), producers)


class _Pending(NamedTuple):
    name: str
    highest: int | None
    appended: Appended


class Deduplication:
    """The highest sequence ids of one open topic. On the event loop, except `snapshot`."""

    def __init__(
        self,
        snapshot: Snapshot,
        now_ms: Callable[[], int],
        topic: str = "",
        connected: Callable[[str], bool] = lambda name: False,
    ) -> None:
        """`connected` says whether a producer of a name is connected."""
        self._topic = topic
        self._connected = connected
        #: The highest durable id of each name, and when it was stored.
        self.durable: dict[str, tuple[int, int]] = snapshot.producers
        #: The size of its names in a snapshot, at least that in memory.
        self.size_bytes = sum(map(_row_bytes, self.durable))
        #: Entries that became durable since the last snapshot, and when that was stored.
        self.entries_since_snapshot = 0
        self.snapshot_at_ms = now_ms()
        self._now_ms = now_ms
        #: The highest id that was appended, of names with entries that are not durable yet.
        self._appended: dict[str, int] = {}
        self._last: dict[str, Appended] = {}
        self._pending: deque[_Pending] = deque()
        self._covered = snapshot.position
        self.trim(TOPIC_MAX_BYTES)

    def admit(self, name: str, command: CommandSend) -> Appended | None:
        """Admit a message. Return the entry after which it must be stored, if there is one.

        Raises `DuplicateMessageError`, `UncertainError`.
        """
        if self._pending:
            self._settle()
        # A message in chunks has its id here once its last chunk is stored: then all of it is.
        sequence_id = to_signed(command.sequence_id)
        durable, waiting = self.durable.get(name), self._appended.get(name)
        if durable is not None and sequence_id <= durable[0]:
            raise DuplicateMessageError
        if waiting is not None and sequence_id <= waiting:
            raise UncertainError(self._topic, name)
        return self._last.get(name)

    def appended(self, name: str, command: CommandSend, body: Buffer, appended: Appended) -> None:
        """An admitted entry is in the ledger."""
        self._last[name] = appended
        highest = None
        if not (command.is_chunk and not _is_last_chunk(body)):
            highest = _highest(command)
            self._appended[name] = highest
        self._pending.append(_Pending(name, highest, appended))

    def in_flight(self, name: str) -> Appended | None:
        """The name's last entry, if it is not durable yet."""
        self._settle()
        last = self._last.get(name)
        return None if last is None or last.commit.done else last

    def opened(self, name: str) -> int:
        """Note that a producer was opened: it may go on, even if its last entry had failed.

        Return its highest durable id, -1 if no message of it is durable.
        """
        self._settle()
        self._last.pop(name, None)
        self._appended.pop(name, None)
        # Clients count on from this number; the only negative one that they know is -1.
        return max(self.durable.get(name, (NONE, 0))[0], NONE)

    def new_entries(self) -> int:
        """How many entries became durable since the last snapshot."""
        self._settle()
        return self.entries_since_snapshot

    def is_large(self, entries: int) -> bool:
        """Whether a snapshot is due, after so many entries, or more if it is large."""
        return self.new_entries() >= max(entries, self.size_bytes // SNAPSHOT_BYTES_PER_ENTRY)

    def _settle(self) -> None:
        """Take over entries that became durable, which they do in their order."""
        pending, now_ms = self._pending, 0
        while pending and pending[0].appended.commit.done:
            name, highest, appended = pending.popleft()
            if appended.error is not None:
                continue
            now_ms = now_ms or self._now_ms()
            if highest is not None:
                self._keep(name, highest, now_ms)
            self._covered = Position(appended.ledger_id, appended.entry_id + 1)
            self.entries_since_snapshot += 1
            if self._last.get(name) is appended:
                del self._last[name]
                self._appended.pop(name, None)

    def _keep(self, name: str, highest: int, now_ms: int) -> None:
        before = self.durable.get(name)
        self.durable[name] = highest if before is None else max(before[0], highest), now_ms
        if before is None:
            self.size_bytes += _row_bytes(name)
            self.trim(TOPIC_MAX_BYTES)

    def trim(self, limit_bytes: int) -> None:
        """Forget producers above the limit, and some more, so that this is seldom due."""
        if self.size_bytes > limit_bytes:
            self._forget_beyond(len(self.durable), limit_bytes * 3 // 4)

    def _forget_beyond(self, most: int, limit_bytes: int) -> None:
        """Keep so many names and bytes: connected producers first, then recent ones."""
        kept: dict[str, tuple[int, int]] = {}
        size_bytes = 0
        rows = self.durable.items()
        ranked = sorted(rows, key=lambda row: (self._connected(row[0]), row[1][1]), reverse=True)
        for name, entry in ranked[:most]:
            size_bytes += _row_bytes(name)
            if size_bytes > limit_bytes:
                break
            kept[name] = entry
        self.durable = kept
        self.size_bytes = sum(map(_row_bytes, kept))

    # -- snapshots ------------------------------------------------------------------------------

    def snapshot(self, inactive_ms: int, max_producers: int) -> Snapshot:
        """The durable ids. Producers long gone, or too many, are forgotten."""
        self._settle()
        oldest_ms = self._now_ms() - inactive_ms
        for name, entry in tuple(self.durable.items()):
            if entry[1] < oldest_ms and not (self._connected(name) or name in self._last):
                del self.durable[name]
                self.size_bytes -= _row_bytes(name)
        if len(self.durable) > max_producers:
            self._forget_beyond(max_producers, TOPIC_MAX_BYTES)
        # What is left here of an entry that is over has failed; a producer that returns forgets it.
        for name in [name for name, entry in self._last.items() if entry.commit.done]:
            if not self._connected(name):
                del self._last[name]
                self._appended.pop(name, None)
        self.entries_since_snapshot = 0
        self.snapshot_at_ms = self._now_ms()
        return Snapshot(self._covered, dict(self.durable))


def trim_all(topics: Iterable[Deduplication]) -> None:
    """Forget producers of the topics with most names, if all topics exceed the limit."""
    total_bytes = 0
    large: list[Deduplication] = []
    for one in topics:
        total_bytes += one.size_bytes
        if one.size_bytes > SHARE_BYTES:
            large.append(one)
    if total_bytes <= ALL_MAX_BYTES:
        return
    for one in sorted(large, key=lambda each: each.size_bytes, reverse=True):
        total_bytes -= one.size_bytes
        one.trim(SHARE_BYTES)
        total_bytes += one.size_bytes
        if total_bytes <= ALL_MAX_BYTES:
            return


def _row_bytes(name: str) -> int:
    """The size of one producer in a snapshot, and at most in memory."""
    return ROW_BYTES + len(encode_basestring_ascii(name))


def _highest(ids: Any) -> int:
    """The highest sequence id of a SEND, or of a message's metadata."""
    sequence_id = to_signed(ids.sequence_id)
    if not ids.HasField("highest_sequence_id"):
        return sequence_id
    return max(sequence_id, to_signed(ids.highest_sequence_id))


def recovered(ledger: ManagedLedger, stored: bytes | None, now_ms: int) -> Snapshot:
    """Read the highest ids of a log's producers. Blocks. Raises LedgerError, OSError.

    Without a snapshot, deduplication begins at the end of the log, as in Pulsar.
    """
    found = None if stored is None else Snapshot.parse(stored, ledger.topic_id)
    if found is None:
        return Snapshot(ledger.end_position, {})
    producers, position = found.producers, found.position
    for entry in entries_of(ledger, position, skip_damaged=True):
        position = entry.position.following
        known = _producer_of(entry)
        if known is not None:
            name, highest = known
            before = producers.get(name, (highest, 0))[0]
            producers[name] = max(before, highest), now_ms
    return Snapshot(position, producers)


def _producer_of(entry: Entry) -> tuple[str, int] | None:
    """The producer's name and highest sequence id of an entry of Pulsar's."""
    if entry.kind is not EntryKind.DATA:
        return None
    try:
        if source_stamp_of(peek(entry.prefix)) is not None:
            return None  # brought by a mirror: the producer of that name is another cluster's
        metadata = read_message_metadata(entry.body)
    except (MessageFormatError, PrefixError):
        return None
    is_chunked = metadata.num_chunks_from_msg > 1
    if is_chunked and metadata.chunk_id != metadata.num_chunks_from_msg - 1:
        return None
    if len(metadata.producer_name.encode()) > NAME_SIZE_MAX_BYTES:
        return None  # a producer cannot have this name
    return metadata.producer_name, _highest(metadata)


def _is_last_chunk(body: Buffer) -> bool:
    try:
        metadata: Any = read_message_metadata(body)
    except MessageFormatError:
        return True
    return bool(metadata.chunk_id == metadata.num_chunks_from_msg - 1)

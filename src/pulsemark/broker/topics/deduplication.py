"""Deduplication: the highest sequence id that each producer of a topic has stored (PIP-6).

A producer's message whose sequence id is not above the highest one of its name is a duplicate. It
is answered with the position (-1, -1), takes no index and is not dispatched. A batch counts by the
sequence id in its SEND. A message in chunks counts when its last chunk is stored. From then on
each of its chunks is a duplicate. (Pulsar stores all but the last one again. Clients with a C++
core keep such a rest for a minute, also while they connect again, and drop the whole message for
it if that is delivered again meanwhile.) Chunks of a message that is not stored whole are stored
again, as in Pulsar: consumers acknowledge chunks without the others after a while.

It keeps the durable ids apart from those that wait for the disk. A message that repeats one that is
not durable yet is refused (`UncertainError`): the client sends it again later. An entry is stored
only after the one before it of the same producer (``follows`` of the ledger), and after one that
was refused only once the producer was opened again (`Producer.must_open_again`). So after a failure
there is no gap that a higher sequence id would hide.

The highest ids are in memory. A snapshot in the catalog has them as they were at a position of the
log, from time to time; a broker that opens the topic reads the snapshot and the entries after that
position. Before entries are removed from the log, a snapshot is stored that includes them. So
nothing is lost by a kill: what was acknowledged is in the log, and what is in the log is found.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from ...ledger import Appended, Entry, EntryKind, ManagedLedger, Position
from ...ledger.reading_on import entries_of
from ...metadata import Buffer, MessageFormatError, PrefixError, peek, read_message_metadata
from ...metadata.source_stamp import source_stamp_of
from ...proto.pulsar_api_pb2 import CommandSend, ServerError
from ..errors import RefusedError

__all__ = [
    "SNAPSHOT_KIND",
    "Deduplication",
    "DuplicateMessageError",
    "Snapshot",
    "UncertainError",
    "recovered",
]

SNAPSHOT_KIND = "deduplication"
UNCERTAIN = "Cannot determine whether the message is a duplicate at this time"
NONE = -1


class DuplicateMessageError(Exception):
    """The topic has this message of the producer already."""


class UncertainError(RefusedError):
    """The message repeats one that is not durable yet, and may still fail."""

    def __init__(self, topic: str, producer: str) -> None:
        super().__init__(ServerError.PersistenceError, f"[{topic}][{producer}]{UNCERTAIN}")


class Snapshot(NamedTuple):
    """The highest ids at a position, and how they are stored."""

    position: Position
    producers: dict[str, tuple[int, int]]

    def stored(self, topic_id: int) -> bytes:
        """The catalog's value. The topic's id tells a topic from an earlier one of its name."""
        return json.dumps(
            {"topicId": topic_id, "position": self.position, "producers": self.producers}
        ).encode()

    @classmethod
    def parse(cls, value: bytes, topic_id: int) -> Snapshot | None:
        """The snapshot of this topic; None if it is of an earlier one."""
        found = json.loads(value)
        if found["topicId"] != topic_id:
            return None
        producers = {name: (each[0], each[1]) for name, each in found["producers"].items()}
        return cls(Position(*found["position"]), producers)


class _Pending(NamedTuple):
    name: str
    highest: int
    appended: Appended


class Deduplication:
    """The producers of one open topic. On the event loop, except `snapshot`."""

    def __init__(self, snapshot: Snapshot, now_ms: Callable[[], int], topic: str = "") -> None:
        self._topic = topic
        #: The highest durable id of each name, and when it was stored.
        self.durable: dict[str, tuple[int, int]] = snapshot.producers
        #: Entries that became durable since the last snapshot, and when that was stored.
        self.entries_since_snapshot = 0
        self.snapshot_at_ms = now_ms()
        self._now_ms = now_ms
        #: The highest id that was appended, of names with entries that are not durable yet.
        self._appended: dict[str, int] = {}
        self._last: dict[str, Appended] = {}
        self._pending: deque[_Pending] = deque()
        self._covered = snapshot.position

    def admit(self, name: str, command: CommandSend) -> Appended | None:
        """The entry after which the next one must be stored, if there is one.

        Raises `DuplicateMessageError`, `UncertainError`.
        """
        if self._pending:
            self._settle()
        # A message in chunks has its id here once its last chunk is stored: then all of it is.
        sequence_id = command.sequence_id
        durable = self.durable.get(name)
        if durable is not None and sequence_id <= durable[0]:
            raise DuplicateMessageError
        if sequence_id <= self._appended.get(name, NONE):
            raise UncertainError(self._topic, name)
        return self._last.get(name)

    def appended(self, name: str, command: CommandSend, body: Buffer, appended: Appended) -> None:
        """An admitted entry is in the ledger."""
        self._last[name] = appended
        highest = NONE
        if not (command.is_chunk and not _is_last_chunk(body)):
            highest = max(command.sequence_id, command.highest_sequence_id)
            self._appended[name] = highest
        self._pending.append(_Pending(name, highest, appended))

    def in_flight(self, name: str) -> Appended | None:
        """The name's last entry, if it is not durable yet."""
        self._settle()
        last = self._last.get(name)
        return None if last is None or last.commit.done else last

    def opened(self, name: str) -> int:
        """A producer of this name was opened: its highest durable id, -1 if there is none.

        After this it may go on, also if its last entry had failed.
        """
        self._settle()
        self._last.pop(name, None)
        self._appended.pop(name, None)
        return self.durable.get(name, (NONE, 0))[0]

    def new_entries(self) -> int:
        """How many entries became durable since the last snapshot."""
        self._settle()
        return self.entries_since_snapshot

    def _settle(self) -> None:
        """Take over what became durable. Entries of one topic do so in their order."""
        pending, now_ms = self._pending, 0
        while pending and pending[0].appended.commit.done:
            name, highest, appended = pending.popleft()
            if appended.error is not None:
                continue
            now_ms = now_ms or self._now_ms()
            before = self.durable.get(name, (NONE, 0))[0]
            if highest != NONE:
                self.durable[name] = max(before, highest), now_ms
            self._covered = Position(appended.ledger_id, appended.entry_id + 1)
            self.entries_since_snapshot += 1
            if self._last.get(name) is appended:
                del self._last[name]
                self._appended.pop(name, None)

    # -- snapshots ------------------------------------------------------------------------------

    def snapshot(
        self, connected: Callable[[str], bool], inactive_ms: int, max_producers: int
    ) -> Snapshot:
        """What is durable now. Producers that are gone for long, or too many, are forgotten."""
        self._settle()
        oldest_ms = self._now_ms() - inactive_ms
        kept = {
            name: entry
            for name, entry in self.durable.items()
            if entry[1] >= oldest_ms or connected(name) or name in self._last
        }
        if len(kept) > max_producers:
            newest = sorted(kept, key=lambda name: kept[name][1], reverse=True)[:max_producers]
            kept = {name: kept[name] for name in newest}
        self.durable = kept
        self.entries_since_snapshot = 0
        self.snapshot_at_ms = self._now_ms()
        return Snapshot(self._covered, dict(kept))


def recovered(ledger: ManagedLedger, stored: bytes | None, now_ms: int) -> Snapshot:
    """The highest ids of a log's producers. Blocks. Raises LedgerError, OSError.

    Without a snapshot, deduplication begins at the end of the log, as in Pulsar.
    """
    found = None if stored is None else Snapshot.parse(stored, ledger.topic_id)
    if found is None:
        return Snapshot(ledger.end_position, {})
    producers, position = found.producers, found.position
    for entry in entries_of(ledger, position, skip_damaged=True):
        position = Position(entry.position.ledger_id, entry.position.entry_id + 1)
        known = _producer_of(entry)
        if known is not None:
            name, highest = known
            before = producers.get(name, (NONE, 0))[0]
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
    return metadata.producer_name, max(metadata.sequence_id, metadata.highest_sequence_id)


def _is_last_chunk(body: Buffer) -> bool:
    try:
        metadata: Any = read_message_metadata(body)
    except MessageFormatError:
        return True
    return bool(metadata.chunk_id == metadata.num_chunks_from_msg - 1)

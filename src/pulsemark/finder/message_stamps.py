"""The stamp of a message that an official client received: its index and the broker's time.

Official clients get the stamp only if they ask for it (PIP-90). The Python client does not ask for
it and cannot show it. But every client has the message's id, and the seek service returns the stamp
of the entry with this id:

    with SeekClient("127.0.0.1:6680") as seek:
        stamps = MessageStamps(seek)
        message = consumer.receive()
        print(stamps.of(message).index, stamps.of(message).broker_time_ms)

A consumer reads a topic in order. So each call also fetches the stamps of the entries that follow:
`ahead` entries at once. It reads no payload.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ..ledger import Position
from ..ledger.tail_cache import Lru
from ..metadata import FieldValue, message_index, peek
from .client import SeekClient
from .messages import RemoteEntry

if TYPE_CHECKING:
    from ..audit.consumer import MessageId

AHEAD_ENTRIES = 256
REMEMBERED_ENTRIES = 4096


class ReceivedMessage(Protocol):
    """A received message, such as a `pulsar.Message`."""

    def message_id(self) -> MessageId:
        """The message's id."""

    def topic_name(self) -> str:
        """The topic's full name; for a partitioned topic, the partition's name."""


class MessageNotStoredError(LookupError):
    """The entry at `position` was removed, or the id is of another topic than `topic`."""

    def __init__(self, topic: str, position: Position) -> None:
        super().__init__(topic, position)
        self.topic = topic
        self.position = position

    def __str__(self) -> str:
        return f"{self.topic} has no entry {self.position}: removed, or another topic's"


@dataclass(frozen=True, slots=True)
class MessageStamp:
    """The stamp of a message.

    ``index`` counts the topic's messages from 0, without gaps. ``broker_time_ms`` is None without a
    stamp; ``append_time_ms``, by the same clock, is always there. ``tags`` are named as by
    `metadata.tags_of`.
    """

    index: int
    broker_time_ms: int | None
    append_time_ms: int
    tags: dict[str, FieldValue]


class MessageStamps:
    """Looks up stamps of received messages at a seek server. Several threads may share it.

    Each call fetches ``ahead`` entries; ``remembered`` entries are kept in memory. Raises
    ValueError if one of them is below 1.
    """

    def __init__(
        self, seek: SeekClient, *, ahead: int = AHEAD_ENTRIES, remembered: int = REMEMBERED_ENTRIES
    ) -> None:
        if not 1 <= ahead <= remembered:
            raise ValueError(f"ahead must be from 1 to {remembered} (remembered), not {ahead}")
        self._seek = seek
        self._ahead = ahead
        self._entries: Lru[tuple[str, Position], RemoteEntry] = Lru(remembered)

    def of(self, message: ReceivedMessage) -> MessageStamp:
        """The stamp of a message that `pulsar.Consumer` or `pulsar.Reader` received.

        Raises MessageNotStoredError, and what `SeekClient.read_entries` raises.
        """
        return self.at(message.topic_name(), message.message_id())

    def at(self, topic: str, message_id: MessageId) -> MessageStamp:
        """The stamp of the message with this id; `topic` is its full name.

        Raises MessageNotStoredError, and what `SeekClient.read_entries` raises.
        """
        entry = self._entry(topic, Position(message_id.ledger_id(), message_id.entry_id()))
        metadata = peek(entry.prefix)
        stamped = metadata is not None and metadata.HasField("broker_timestamp")
        return MessageStamp(
            message_index(entry.index, entry.message_count, message_id.batch_index()),
            metadata.broker_timestamp if stamped and metadata is not None else None,
            entry.append_time_ms,
            entry.tags,
        )

    def _entry(self, topic: str, position: Position) -> RemoteEntry:
        entry = self._entries.get((topic, position))
        if entry is not None:
            return entry
        found = list(
            self._seek.read_entries(
                topic, start=position, max_entries=self._ahead, prefixes_only=True
            )
        )
        for ahead in found:
            self._entries.put((topic, ahead.position), ahead)
        if not found or found[0].position != position:
            raise MessageNotStoredError(topic, position)
        return found[0]

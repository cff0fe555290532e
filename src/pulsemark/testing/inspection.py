"""What all brokers of the kit have: questions about messages and backlogs, assertions, start and
stop.

`Inspection` asks for what is stored; its failing assertions show what is there. `BrokerLife` starts
a broker again, closes it, and removes its temporary folder.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Self

from ..client.errors import AdminError
from ..ledger import EARLIEST, Entry, EntryKind, Position, TopicLog
from ..metadata import Message, MessageFormatError, messages_of, peek
from ..metadata.compression import CompressionUnavailableError, DecompressionError
from ..metadata.partition_names import partition_name, partition_of
from ..wire import TopicName

if TYPE_CHECKING:
    from ..client.admin import AdminClient

ENTRIES_AT_ONCE = 1000
POLL_S = 0.02
#: The largest record set that is shown, decompressed.
MAX_SET_BYTES = 64 * 1024 * 1024
#: Messages that a failed assertion shows.
SHOWN_MESSAGES = 10
SHOWN_BYTES = 80
#: Topics that a failed assertion shows if its own does not exist.
SHOWN_TOPICS = 10


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """One message of a topic, as the broker stores it."""

    topic: str
    """The full name; of a partitioned topic that of the partition."""
    index: int
    """Its place among the topic's messages (PIP-70)."""
    position: Position
    broker_time_ms: int
    """When the broker appended it, in milliseconds since the epoch."""
    message: Message

    @property
    def value(self) -> bytes | None:
        """The payload; None for a null value."""
        return self.message.value

    @property
    def key(self) -> str | None:
        """The partition key; None without one."""
        return self.message.key

    @property
    def properties(self) -> dict[str, str]:
        """The properties."""
        return self.message.properties

    def __str__(self) -> str:
        moment = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=self.broker_time_ms)
        value = "null" if self.value is None else _shown(self.value)
        parts = [f"{self.index:>6}", moment.isoformat(timespec="milliseconds"), value]
        if self.key is not None:
            parts.append(f"key={self.key!r}")
        if self.properties:
            parts.append(f"properties={self.properties}")
        return "  ".join(parts)


def messages_in(log: TopicLog) -> Iterator[StoredMessage]:
    """The messages of a log that consumers get, in order. Raises as `messages_of`."""
    place = EARLIEST
    while entries := log.read_stable(place, max_entries=ENTRIES_AT_ONCE):
        for entry in entries:
            if entry.kind is EntryKind.DATA:
                yield from _of_entry(log.name, entry)
        place = entries[-1].position.following


def _of_entry(topic: str, entry: Entry) -> Iterator[StoredMessage]:
    try:
        found = messages_of(_for_pulsar(entry))
    except (MessageFormatError, DecompressionError, CompressionUnavailableError) as error:
        error.add_note(f"in entry {entry.position} of {topic}")
        raise
    for message in found:
        index = entry.first_index + max(message.batch_index, 0)
        yield StoredMessage(topic, index, entry.position, entry.append_time_ms, message)


def _for_pulsar(entry: Entry) -> bytes | memoryview:
    """The producer's bytes; a record set of a Kafka client's as the batch that consumers get."""
    if bytes(entry.body[:4]) != bytes(4):
        return entry.body
    from ..kafka.records import magic_of, read, to_pulsar

    prefix = peek(entry.prefix)
    if prefix is None or magic_of(prefix.source_format) is None:
        return entry.body
    return to_pulsar(
        read(entry.body),
        entry.message_count,
        publish_time_ms=entry.append_time_ms,
        producer_name=prefix.producer_name or "kafka",
        sequence_id=entry.first_index,
        max_bytes=MAX_SET_BYTES,
    )


def fitting(
    messages: Iterable[StoredMessage],
    value: bytes | str | None = None,
    key: str | None = None,
    properties: dict[str, str] | None = None,
    where: Callable[[StoredMessage], bool] | None = None,
) -> list[StoredMessage]:
    """The messages with these facts; None is any. See `Inspection.assert_published`."""
    wanted = value.encode() if isinstance(value, str) else value
    return [
        each
        for each in messages
        if (wanted is None or each.value == wanted)
        and (key is None or each.key == key)
        and (properties or {}).items() <= each.properties.items()
        and (where is None or where(each))
    ]


def shown_last(found: list[StoredMessage]) -> str:
    """The last messages of a topic, for a failed assertion."""
    if not found:
        return "the topic has no messages"
    shown: Iterable[StoredMessage] = found[-SHOWN_MESSAGES:]
    which = f"the last of its {len(found)} messages" if len(found) > 1 else "its one message"
    lines = [f"{which} (index, broker time, value):"]
    return "\n".join([*lines, *(f"  {each}" for each in shown)])


class Inspection(ABC):
    """Questions and assertions. The kit's brokers add the access to a broker."""

    @property
    @abstractmethod
    def admin(self) -> AdminClient:
        """A client of the broker's admin interface."""

    @abstractmethod
    def messages(self, topic: str) -> list[StoredMessage]:
        """All messages of a topic, in order, or of its partitions by broker time; [] without it."""

    @abstractmethod
    def _topic_names(self) -> Iterable[str]:
        """The full names of all topics."""

    def _logs_of(self, topic: str) -> list[str]:
        """The full names of a topic, or of its partitions; none if it does not exist."""
        name = str(TopicName.parse(topic))
        return [full for full in self._topic_names() if name in (full, partition_of(full)[0])]

    def backlog(self, topic: str, subscription: str) -> int:
        """How many messages a subscription has not acknowledged.

        Each message of a batch counts, while `msgBacklog` of the topic's stats counts entries.
        Raises AdminError if there is no such topic or subscription.
        """
        partitions = self.admin.partitions(topic)
        logs = [partition_name(topic, number) for number in range(partitions)] or [topic]
        return sum(self._backlog(log, subscription) for log in logs)

    def _backlog(self, log: str, subscription: str) -> int:
        cursors = self.admin.internal_stats(log, own_figures=True)["cursors"]
        if subscription not in cursors:
            raise AdminError(self.admin.url, 404, f"{log} has no subscription {subscription!r}")
        return int(cursors[subscription]["messagesBacklog"])

    def wait_for_backlog(
        self, topic: str, subscription: str, messages: int = 0, *, timeout_s: float = 10.0
    ) -> None:
        """Wait for exactly this backlog in messages. Raises AssertionError after the timeout."""
        seen = "it does not exist"

        def is_reached() -> bool:
            nonlocal seen
            try:
                found = self.backlog(topic, subscription)
            except AdminError as error:
                seen = error.reason
                return False
            seen = f"{found} messages"
            return found == messages

        if not _wait_until(is_reached, timeout_s):
            raise AssertionError(
                f"the backlog of {subscription!r} on {topic!r} is not {messages} after "
                f"{timeout_s:g} s: {seen}\n{self._last(topic)}"
            )

    def wait_for_messages(
        self, topic: str, count: int = 1, *, timeout_s: float = 10.0
    ) -> list[StoredMessage]:
        """Wait for at least so many messages; returns all. Raises AssertionError."""
        if not _wait_until(lambda: len(self.messages(topic)) >= count, timeout_s):
            raise AssertionError(
                f"{topic!r} does not have {count} messages after {timeout_s:g} s\n"
                f"{self._last(topic)}"
            )
        return self.messages(topic)

    def assert_published(
        self,
        topic: str,
        *,
        value: bytes | str | None = None,
        key: str | None = None,
        properties: dict[str, str] | None = None,
        where: Callable[[StoredMessage], bool] | None = None,
        count: int | None = None,
    ) -> list[StoredMessage]:
        """Check that a topic, or its partitions, has a message like this; returns those that fit.

        None fits any; text stands for its UTF-8 bytes; the message may have more `properties`.
        Exactly `count` must fit, or at least one. Raises AssertionError with the last messages.
        """
        found = fitting(self.messages(topic), value, key, properties, where)
        if (count is None and found) or len(found) == count:
            return found
        asked = {"value": value, "key": key, "properties": properties, "where": where}
        like = ", ".join(f"{name}={what!r}" for name, what in asked.items() if what is not None)
        expected = "no message" if count is None else f"{len(found)} messages, not {count},"
        raise AssertionError(
            f"{topic!r} has {expected} with {like or 'anything'}\n{self._last(topic)}"
        )

    def _last(self, topic: str) -> str:
        found = self.messages(topic)
        if not found and not self._logs_of(topic):
            others = ", ".join(sorted(self._topic_names())[:SHOWN_TOPICS]) or "no topics"
            return f"the topic does not exist; the broker has {others}"
        return shown_last(found)


def _wait_until(is_reached: Callable[[], bool], timeout_s: float) -> bool:
    ends_at_s = time.monotonic() + timeout_s
    while not is_reached():
        if time.monotonic() >= ends_at_s:
            return False
        time.sleep(POLL_S)
    return True


def _shown(value: bytes) -> str:
    cut = value[:SHOWN_BYTES]
    return repr(cut) + (f"... ({len(value)} bytes)" if len(value) > len(cut) else "")


class BrokerLife(ABC):
    """Start, stop and restart of a broker, and its temporary folder."""

    _temporary: TemporaryDirectory[str] | None = None

    @abstractmethod
    def start(self) -> None:
        """Start, and return when the broker serves."""

    @abstractmethod
    def stop(self) -> None:
        """Stop in order; the data is kept."""

    def restart(self) -> None:
        """Stop in order and start again, on the same ports and with the same data."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop in order, and remove a temporary data folder. A second call does nothing."""
        try:
            self.stop()
        finally:
            self._remove_folder()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _temporary_folder(self) -> Iterator[Path]:
        """The temporary folder, made by the first start and removed if that fails."""
        is_new = self._temporary is None
        if self._temporary is None:
            self._temporary = TemporaryDirectory(prefix="pulsemark-", ignore_cleanup_errors=True)
        try:
            yield Path(self._temporary.name)
        except BaseException:
            if is_new:
                self._remove_folder()
            raise

    def _remove_folder(self) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

"""Receipts: what a producer hears about each SEND, when it is durable, in the order it sent.

The ledger makes everything appended meanwhile durable with one sync (`Batch`), and tells for each
topic in it whether that worked (`Commit`). A session gathers its receipts by batch, over all topics
that it publishes to, and writes each group at once.

A SEND that is refused is answered in its turn, too: behind the receipts of those before it, for a
client takes an answer out of order as a broken connection.

Publishes in flight are counted, by session and in the whole broker. Above a limit sessions stop
reading until their share is durable.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeAlias

from ...ledger import Appended, Batch, Commit
from ...proto.pulsar_api_pb2 import CommandSend, ServerError
from ...wire import commands
from ..configuration.config import BrokerConfig
from ..statistics.counters import TopicCounters
from ..topics.producers import Producer

__all__ = ["PublishBudget", "PublishingSession", "ReceiptGroup", "Receipts"]

log = logging.getLogger(__name__)

#: What a receipt shows for a highest sequence id that the producer did not send.
NO_SEQUENCE_ID = (1 << 64) - 1

Answer: TypeAlias = Callable[[], None]
#: Producer, lowest and highest sequence id, ledger and entry id, what it waits for, its topic,
#: messages, bytes.
Publish: TypeAlias = tuple[Producer, int, int, int, int, Commit, TopicCounters, int, int]


class PublishingSession(Protocol):
    """A session, as its receipts see it."""

    def write(self, data: bytes) -> None:
        """Send finished frames."""
        ...

    def publishes_changed(self) -> None:
        """The number of publishes in flight changed: reading may have to stop, or may go on."""
        ...

    def storage_failed(self, error: BaseException) -> None:
        """Publishes could not be stored."""
        ...


class PublishBudget:
    """Bytes in flight between a SEND and its receipt, over all connections."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.bytes_in_flight = 0
        self._paused: set[PublishingSession] = set()

    def take(self, size_bytes: int) -> None:
        """Count a publish in."""
        self.bytes_in_flight += size_bytes

    def is_exhausted_for(self, session: PublishingSession) -> bool:
        """Whether a session must stop reading; it is told when it may go on."""
        if self.bytes_in_flight <= self.limit_bytes // 2:
            return False
        if self.bytes_in_flight > self.limit_bytes:
            self._paused.add(session)
        return session in self._paused

    def give_back(self, size_bytes: int) -> None:
        """Count publishes out; at half of the limit everybody goes on."""
        self.bytes_in_flight -= size_bytes
        if self._paused and self.bytes_in_flight <= self.limit_bytes // 2:
            paused, self._paused = self._paused, set()
            for session in paused:
                session.publishes_changed()

    def forget(self, session: PublishingSession) -> None:
        """The session is gone."""
        self._paused.discard(session)


class ReceiptGroup:
    """What one session sent into one batch."""

    __slots__ = ("batch", "entries", "is_open", "size_bytes", "taken_at_s")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        #: Publishes, and answers to refused ones in between.
        self.entries: list[Publish | Answer] = []
        self.size_bytes = 0
        self.taken_at_s = time.monotonic()
        self.is_open = True


class Receipts:
    """A session's publishes in flight."""

    __slots__ = (
        "_budget",
        "_group",
        "_is_lost",
        "_max_bytes",
        "_max_entries",
        "_session",
        "bytes_in_flight",
        "entries_in_flight",
    )

    def __init__(
        self, session: PublishingSession, budget: PublishBudget, config: BrokerConfig
    ) -> None:
        self.entries_in_flight = 0
        self.bytes_in_flight = 0
        self._session = session
        self._is_lost = False
        self._budget = budget
        self._group: ReceiptGroup | None = None
        """The latest; older ones are on their way."""
        self._max_entries = config.max_in_flight_publish_messages_per_connection
        self._max_bytes = config.max_in_flight_publish_bytes_per_connection

    def close(self) -> None:
        """The connection is lost: hold it in no circle of references (see `collector`)."""
        self._group = None
        self._is_lost = True
        self._let_go()

    def _let_go(self) -> None:
        if self._is_lost and not self.entries_in_flight:
            del self._session

    def is_full(self, *, was_full: bool) -> bool:
        """Whether no more publishes should be read; once full, until half of it is durable."""
        share = 2 if was_full else 1
        return (
            self.entries_in_flight * share > self._max_entries
            or self.bytes_in_flight * share > self._max_bytes
            or self._budget.is_exhausted_for(self._session)
        )

    def appended(
        self,
        producer: Producer,
        counters: TopicCounters,
        command: CommandSend,
        appended: Appended,
        size_bytes: int,
    ) -> None:
        """A SEND is in the ledger; its receipt goes out when its commit is done."""
        commit = appended.commit
        batch = commit.batch
        group = self._group
        is_new = group is None or group.batch is not batch or not group.is_open
        if group is None or is_new:
            group = self._group = ReceiptGroup(batch)
        sequence_id = command.sequence_id
        highest = (
            command.highest_sequence_id
            if command.HasField("highest_sequence_id")
            else NO_SEQUENCE_ID
        )
        group.entries.append(
            (
                producer,
                sequence_id,
                highest,
                appended.ledger_id,
                appended.entry_id,
                commit,
                counters,
                max(command.num_messages, 0),
                size_bytes,
            )
        )
        group.size_bytes += size_bytes
        producer.receipts = group
        self.entries_in_flight += 1
        self.bytes_in_flight += size_bytes
        self._budget.take(size_bytes)
        if is_new:
            batch.add_done_callback(partial(self._settled, group))

    def answer_in_turn(self, producer: Producer, answer: Answer) -> None:
        """Answer something behind the producer's receipts that are still to come."""
        group = producer.receipts
        if group is not None and group.is_open:
            group.entries.append(answer)
        else:
            answer()

    def _settled(self, group: ReceiptGroup) -> None:
        """A batch is durable, or parts of it failed: answer everything in it, in order."""
        group.is_open = False
        latency_ms = (time.monotonic() - group.taken_at_s) * 1000
        frames: list[bytes] = []
        count = 0
        stored: dict[TopicCounters, list[Publish]] = {}
        failure: BaseException | None = None
        for entry in group.entries:
            if not isinstance(entry, tuple):
                self._session.write(b"".join(frames))
                frames.clear()
                entry()
                continue
            count += 1
            error, counters = entry[5].error, entry[6]
            if error is None:
                frames.append(_receipt(entry))
                stored.setdefault(counters, []).append(entry)
            else:
                frames.append(_failure(entry, error))
                counters.failed_entries += 1
                failure = error
        # Topic by topic, since what one topic counts is not where the next one's is in memory.
        for counters, publishes in stored.items():
            counters.write_latency_ms.add(latency_ms, len(publishes))
            for publish in publishes:
                _count(publish)
        if frames:
            self._session.write(b"".join(frames))
        self.entries_in_flight -= count
        self.bytes_in_flight -= group.size_bytes
        self._budget.give_back(group.size_bytes)
        if failure is not None:
            log.error("publishes failed: %s", failure)
            self._session.storage_failed(failure)
        self._session.publishes_changed()
        # The producers name their group, and must not be named by it for ever.
        group.entries.clear()
        self._let_go()


def _receipt(publish: Publish) -> bytes:
    producer, sequence_id, highest_sequence_id, ledger_id, entry_id, _, _, _, _ = publish
    return commands.send_receipt(
        producer.producer_id, sequence_id, ledger_id, entry_id, highest_sequence_id
    )


def _count(publish: Publish) -> None:
    producer, _, _, _, _, _, counters, messages, size_bytes = publish
    producer.messages_in += messages
    producer.bytes_in += size_bytes
    counters.messages_in += messages
    counters.bytes_in += size_bytes
    counters.entry_size_bytes.add(size_bytes)


def _failure(publish: Publish, error: BaseException) -> bytes:
    return commands.send_error(
        publish[0].producer_id, publish[1], ServerError.PersistenceError, str(error)
    )

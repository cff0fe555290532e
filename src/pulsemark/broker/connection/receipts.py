"""Receipts: what a producer hears about each SEND, when it is durable, in the order it sent.

The ledger makes everything appended meanwhile durable with one sync (`Batch`), and says for each
topic in it whether that worked (`Commit`). A session gathers its receipts by batch, over all topics
that it publishes to, and writes those of a batch at once.

What one producer sent into one commit is a `Run`. A SEND that is refused is answered in its turn,
too, after the receipts of those before it: a client takes an answer out of order as a broken
connection. Such an answer ends the run.

Publishes in flight are counted, by session and in the whole broker. Above a limit sessions stop
reading until their share is durable.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from functools import partial
from typing import Protocol

from ...ledger import Appended, Batch, Commit
from ...proto.pulsar_api_pb2 import CommandSend, ServerError
from ...wire import commands
from ..configuration.config import BrokerConfig
from ..statistics.counters import TopicCounters
from ..topics.producers import Producer

__all__ = ["PublishBudget", "PublishingSession", "Receipts", "Run"]

log = logging.getLogger(__name__)


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


class Run:
    """What one producer sent into one commit, and what it is answered after those receipts."""

    __slots__ = (
        "answers",
        "commit",
        "counters",
        "ledger_id",
        "messages",
        "producer",
        "publishes",
        "size_bytes",
        "sizes_bytes",
    )

    def __init__(self, producer: Producer, counters: TopicCounters, appended: Appended) -> None:
        self.producer = producer
        self.counters = counters
        self.commit: Commit = appended.commit
        self.ledger_id = appended.ledger_id
        #: Of each: sequence id, highest sequence id (-1: the SEND named none), entry id.
        self.publishes: list[tuple[int, int, int]] = []
        self.sizes_bytes: list[int] = []
        #: All together.
        self.size_bytes = 0
        self.messages = 0
        #: Finished frames. A run that has some is over.
        self.answers = b""

    def frames(self) -> bytes:
        """All that the producer is to hear, once the commit is done."""
        producer_id, error = self.producer.producer_id, self.commit.error
        if error is None:
            receipts = commands.send_receipts(producer_id, self.ledger_id, self.publishes)
        else:
            code, text = ServerError.PersistenceError, str(error)
            receipts = b"".join(
                commands.send_error(producer_id, sequence_id, code, text)
                for sequence_id, _, _ in self.publishes
            )
        return receipts + self.answers if self.answers else receipts

    def count(self, latency_ms: float) -> None:
        """Count what has become durable."""
        producer, counters = self.producer, self.counters
        producer.messages_in += self.messages
        producer.bytes_in += self.size_bytes
        counters.messages_in += self.messages
        counters.bytes_in += self.size_bytes
        entries = len(self.publishes)
        counters.write_latency_ms.add(latency_ms, entries)
        if entries == 1:
            counters.entry_size_bytes.add(self.size_bytes)
        else:
            for size_bytes, times in Counter(self.sizes_bytes).items():
                counters.entry_size_bytes.add(size_bytes, times)


class SentBatch:
    """What one session sent into one batch of the ledger's."""

    __slots__ = ("batch", "runs", "taken_at_s")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.runs: list[Run] = []
        self.taken_at_s = time.monotonic()


class Receipts:
    """A session's publishes in flight."""

    __slots__ = (
        "_budget",
        "_is_lost",
        "_latest",
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
        self._latest: SentBatch | None = None
        """Older ones are on their way."""
        self._max_entries = config.max_in_flight_publish_messages_per_connection
        self._max_bytes = config.max_in_flight_publish_bytes_per_connection

    def close(self) -> None:
        """The connection is lost: hold it in no circle of references (see `collector`)."""
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
        run, begun = producer.run, None
        # Most publishes go where the one before them went.
        if run is None or run.commit is not appended.commit or run.answers:
            run, begun = self._begin_run(producer, counters, appended)
        highest = command.highest_sequence_id
        if not highest and not command.HasField("highest_sequence_id"):
            highest = -1
        run.publishes.append((command.sequence_id, highest, appended.entry_id))
        run.sizes_bytes.append(size_bytes)
        run.size_bytes += size_bytes
        messages = command.num_messages
        if messages > 0:
            run.messages += messages
        self.entries_in_flight += 1
        self.bytes_in_flight += size_bytes
        self._budget.bytes_in_flight += size_bytes
        if begun is not None:
            # Last: a batch that is done already is answered at once.
            begun.batch.add_done_callback(partial(self._settled, begun))

    def _begin_run(
        self, producer: Producer, counters: TopicCounters, appended: Appended
    ) -> tuple[Run, SentBatch | None]:
        """A run, and what this session sends into its batch, if it is the first one there."""
        run = producer.run = Run(producer, counters, appended)
        batch, latest, begun = appended.commit.batch, self._latest, None
        if latest is None or latest.batch is not batch:
            latest = begun = self._latest = SentBatch(batch)
        latest.runs.append(run)
        return run, begun

    def answer_in_turn(self, producer: Producer, answer: bytes) -> None:
        """Write `answer` after the producer's receipts that are still to come."""
        if producer.run is not None:
            producer.run.answers += answer
        else:
            self._session.write(answer)

    def _settled(self, sent: SentBatch) -> None:
        """A batch is durable, or parts of it failed: answer everything in it, in order."""
        latency_ms = (time.monotonic() - sent.taken_at_s) * 1000
        if self._latest is sent:
            self._latest = None
        self._session.write(b"".join([run.frames() for run in sent.runs]))
        failure: BaseException | None = None
        entries = size_bytes = 0
        for run in sent.runs:
            if run.producer.run is run:
                run.producer.run = None
            entries += len(run.publishes)
            size_bytes += run.size_bytes
            if run.commit.error is None:
                run.count(latency_ms)
            else:
                run.counters.failed_entries += len(run.publishes)
                failure = run.commit.error
        self.entries_in_flight -= entries
        self.bytes_in_flight -= size_bytes
        self._budget.give_back(size_bytes)
        if failure is not None:
            log.error("publishes failed: %s", failure)
            self._session.storage_failed(failure)
        self._session.publishes_changed()
        self._let_go()

"""Receipts: the answer to each SEND, written when the entry is durable, in the order of the SENDs.

The ledger makes many entries durable with one sync (`Batch`), and reports success or failure for
each topic in it (`Commit`). The first entries of a failed commit may be stored all the same. They
get their receipts: what has none is sent again, and would be stored twice. A session collects its
receipts by batch, over all topics that it publishes to, and writes all receipts of a batch at once.
Batches of one store end in their order. The topics of a cluster's broker are in several stores: so
a batch is answered only when it is done itself, whatever became of those that were begun later.

The entries of one producer in one commit are a `Run`. The answer to a refused SEND must also keep
the order: it follows the receipts of all earlier SENDs. A client that gets an answer out of order
closes its connection. Such an answer ends the run.

Publishes in flight are counted, by session and over the whole broker. Above a limit a session
stops reading until half of them are durable.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from ...connection_memory import PublishBudget
from ...ledger import Appended, Batch, Commit, FencedError
from ...proto.pulsar_api_pb2 import ServerError
from ...wire import commands
from ..configuration.config import BrokerConfig
from ..counters import TopicCounters
from ..topics.producers import Producer

if TYPE_CHECKING:
    from .session import Session

log = logging.getLogger(__name__)

#: From here on a 64-bit number of the protocol is negative in Java.
NEGATIVE = 1 << 63


class Run:
    """The entries of one producer in one commit, and answers that follow their receipts."""

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
        #: For each SEND: sequence id, highest sequence id (-1: the SEND had none), entry id.
        self.publishes: list[tuple[int, int, int]] = []
        self.sizes_bytes: list[int] = []
        #: The sum of `sizes_bytes`.
        self.size_bytes = 0
        #: For each SEND its count of messages; those below 0 stand for 0.
        self.messages: list[int] = []
        #: Frames to be written after the receipts. A run with answers takes no more publishes.
        self.answers: list[bytes] = []

    def frames(self) -> bytes:
        """All frames for the producer, after the commit is done."""
        producer_id, error = self.producer.producer_id, self.commit.error
        stored = self.publishes if error is None else self.publishes[: self.stored_count]
        receipts = commands.send_receipts(producer_id, self.ledger_id, stored)
        if error is not None:
            code, text = ServerError.PersistenceError, str(error)
            receipts += b"".join(
                commands.send_error(producer_id, sequence_id, code, text)
                for sequence_id, _, _ in self.publishes[len(stored) :]
            )
        return b"".join((receipts, *self.answers)) if self.answers else receipts

    @property
    def stored_count(self) -> int:
        """The number of stored publishes, once the commit is done: the first ones."""
        error = self.commit.error
        if error is None:
            return len(self.publishes)
        if not isinstance(error, FencedError):
            return 0
        return sum(entry_id < error.stored_end_id for _, _, entry_id in self.publishes)

    def count(self, latency_ms: float, entries: int) -> None:
        """Add the first ``entries`` publishes, which are stored, to the statistics."""
        producer, counters = self.producer, self.counters
        messages = sum([count for count in self.messages[:entries] if count > 0])
        sizes_bytes = self.sizes_bytes[:entries]
        size_bytes = sum(sizes_bytes)
        producer.messages_in += messages
        producer.bytes_in += size_bytes
        counters.messages_in += messages
        counters.bytes_in += size_bytes
        counters.write_latency_ms.add(latency_ms, entries)
        if sizes_bytes.count(sizes_bytes[0]) == entries:
            counters.entry_size_bytes.add(sizes_bytes[0], entries)
        else:
            for each_bytes, times in Counter(sizes_bytes).items():
                counters.entry_size_bytes.add(each_bytes, times)


class SentBatch:
    """The publishes of one session in one batch of the ledger."""

    __slots__ = ("batch", "is_answered", "runs", "taken_at_s")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.is_answered = False
        self.runs: list[Run] = []
        self.taken_at_s = time.monotonic()


class Receipts:
    """A session's publishes in flight."""

    __slots__ = (
        "_budget",
        "_is_lost",
        "_max_bytes",
        "_max_entries",
        "_session",
        "_unanswered",
        "bytes_in_flight",
        "entries_in_flight",
    )

    def __init__(self, session: Session, budget: PublishBudget, config: BrokerConfig) -> None:
        self.entries_in_flight = 0
        self.bytes_in_flight = 0
        self._session = session
        self._is_lost = False
        self._budget = budget
        #: Batches without receipts, oldest first. At most a few: gathering or being committed.
        self._unanswered: dict[Batch, SentBatch] = {}
        self._max_entries = config.max_in_flight_publish_messages_per_connection
        self._max_bytes = config.max_in_flight_publish_bytes_per_connection

    def close(self) -> None:
        """The connection is lost: leave no reference cycle with it (see `gc_tuning`)."""
        self._is_lost = True
        self._drop_session()

    def _drop_session(self) -> None:
        if self._is_lost and not self.entries_in_flight:
            del self._session

    def is_full(self, *, was_full: bool) -> bool:
        """Whether to read no more publishes. Once full, it stays full until half is durable."""
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
        sequence_ids: Sequence[int],
        highest_sequence_ids: Sequence[int],
        message_counts: Sequence[int],
        sizes_bytes: Sequence[int],
        appended: Appended,
    ) -> None:
        """Note SENDs that were appended together; their receipts follow the commit.

        `highest_sequence_ids` has -1 for a SEND without one. `appended` is the last of them.
        """
        run: Run | None = producer.run
        begun = None
        # Most publishes go into the same run as the one before them.
        if run is None or run.commit is not appended.commit or run.answers:
            run, begun = self._begin_run(producer, counters, appended)
        entries = len(sequence_ids)
        if max(highest_sequence_ids) >= 0:
            # Below the first sequence id: as in Pulsar the SEND then has none.
            highest_sequence_ids = [
                highest if sequence_id <= highest < NEGATIVE else -1
                for sequence_id, highest in zip(sequence_ids, highest_sequence_ids, strict=True)
            ]
        if entries == 1:
            (size_bytes,) = sizes_bytes
            run.publishes.append((sequence_ids[0], highest_sequence_ids[0], appended.entry_id))
        else:
            size_bytes, end = sum(sizes_bytes), appended.entry_id + 1
            run.publishes += zip(sequence_ids, highest_sequence_ids, range(end - entries, end))  # noqa: B905
        run.sizes_bytes += sizes_bytes
        run.size_bytes += size_bytes
        run.messages += message_counts
        self.entries_in_flight += entries
        self.bytes_in_flight += size_bytes
        self._budget.bytes_in_flight += size_bytes
        if begun is not None:
            # This must be last: a batch that is already done calls back at once.
            begun.batch.add_done_callback(partial(self._settled, begun))

    def _begin_run(
        self, producer: Producer, counters: TopicCounters, appended: Appended
    ) -> tuple[Run, SentBatch | None]:
        """A new run, and its `SentBatch` if this is the session's first run in the batch."""
        run = Run(producer, counters, appended)
        producer.run = run
        batch, begun = appended.commit.batch, None
        sent = self._unanswered.get(batch)
        if sent is None:
            sent = begun = self._unanswered[batch] = SentBatch(batch)
        sent.runs.append(run)
        return run, begun

    def answer_in_turn(self, producer: Producer, answer: bytes) -> None:
        """Write `answer` after the producer's outstanding receipts."""
        if producer.run is not None:
            producer.run.answers.append(answer)
        else:
            self._session.write(answer)

    def _settled(self, sent: SentBatch) -> None:
        """A batch is done, durable or failed: answer it, after the earlier ones of its store.

        The earlier ones are done, too, though the loop may not have been told yet. Batches of other
        stores may not be done.
        """
        for one in tuple(self._unanswered.values()):
            # An answer may resume reading, which may have answered other batches.
            if one.batch.done and not one.is_answered:
                self._answer(one)
            if one is sent:
                return

    def _answer(self, sent: SentBatch) -> None:
        latency_ms = (time.monotonic() - sent.taken_at_s) * 1000
        sent.is_answered = True
        del self._unanswered[sent.batch]
        self._session.write(b"".join([run.frames() for run in sent.runs]))
        failure: BaseException | None = None
        entries = failed_entries = size_bytes = 0
        for run in sent.runs:
            if run.producer.run is run:
                run.producer.run = None
            entries += len(run.publishes)
            size_bytes += run.size_bytes
            if stored := run.stored_count:
                run.count(latency_ms, stored)
            if failed := len(run.publishes) - stored:
                run.counters.failed_entries += failed
                failed_entries += failed
                failure = run.commit.error
        self.entries_in_flight -= entries
        self.bytes_in_flight -= size_bytes
        self._budget.give_back(size_bytes)
        if failure is not None:
            text = "%d entries could not be stored and were refused: %s"
            log.error(text, failed_entries, failure)
            self._session.storage_failed(failure)
            for run in sent.runs:
                if run.stored_count < len(run.publishes):
                    # Its later messages must not be stored before those that were refused.
                    self._session.close_producer(run.producer)
        self._session.publishes_changed()
        self._drop_session()

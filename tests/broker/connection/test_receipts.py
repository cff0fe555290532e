"""A session's receipts: by batch and producer, in the order of the SENDs, also after errors."""

from __future__ import annotations

from typing import Any, cast

import pytest

from pulsemark.broker import BrokerConfig
from pulsemark.broker.connection.receipts import Receipts
from pulsemark.broker.counters import TopicCounters
from pulsemark.broker.topics.producers import Producer
from pulsemark.connection_memory import PublishBudget
from pulsemark.ledger import Appended, FencedError
from pulsemark.proto.pulsar_api_pb2 import (
    BaseCommand,
    CommandProducer,
    ServerError,
)
from pulsemark.wire import Connection, Role, commands

NAMES = {BaseCommand.SEND_RECEIPT: "receipt", BaseCommand.SEND_ERROR: "error"}
SIZE_BYTES = 10


class Batch:
    """A batch of the ledger's that the test finishes."""

    def __init__(self) -> None:
        self.done = False
        self.callbacks: list[Any] = []

    def add_done_callback(self, callback: Any) -> None:
        """Keep it."""
        self.callbacks.append(callback)

    def finish(self) -> None:
        """All its commits are done."""
        self.done = True
        for callback in self.callbacks:
            callback()


class Commit:
    """What one topic adds to a batch."""

    def __init__(self, batch: Batch, error: Exception | None = None) -> None:
        self.batch = batch
        self.error = error


class Session:
    """What receipts need of a session; keeps each write's answers as (kind, producer, number)."""

    def __init__(self) -> None:
        self.writes: list[list[tuple[str, int, int]]] = []
        self.failures: list[BaseException] = []
        self.closed: list[Producer] = []
        self._client = Connection(Role.CLIENT)
        self._client.receive_data(commands.connected("broker", 19, 5 * 1024 * 1024))
        list(self._client.events())

    def write(self, data: bytes) -> None:
        """Read the frames as a client does."""
        self._client.receive_data(data)
        events: list[Any] = list(self._client.events())
        self.writes.append(
            [(NAMES[e.type], e.body.producer_id, e.body.sequence_id) for e in events]
        )

    def publishes_changed(self) -> None:
        """Nothing follows here."""

    def storage_failed(self, error: BaseException) -> None:
        """Remember it."""
        self.failures.append(error)

    def close_producer(self, producer: Producer) -> None:
        """Remember which one."""
        self.closed.append(producer)


class Publishing:
    """A session's receipts, and two producers on topics of their own."""

    def __init__(self) -> None:
        self.session = Session()
        self.budget = PublishBudget(1 << 20)
        connection: Any = self.session
        self.receipts = Receipts(connection, self.budget, BrokerConfig())
        self.producers = [
            Producer.from_command(connection, CommandProducer(producer_id=number), "p", 0)
            for number in range(2)
        ]
        self.counters = [TopicCounters(), TopicCounters()]

    def publish(self, number: int, sequence_id: int, commit: Commit) -> None:
        """A SEND of producer `number` was appended."""
        self.receipts.appended(
            self.producers[number],
            self.counters[number],
            [sequence_id],
            [-1],
            [1],
            [SIZE_BYTES],
            Appended(7, sequence_id, sequence_id, 0, cast("Any", commit)),
        )

    def refuse(self, number: int, sequence_id: int) -> None:
        """A SEND of producer `number` was refused."""
        answer = commands.send_error(number, sequence_id, ServerError.UnknownError, "refused")
        self.receipts.answer_in_turn(self.producers[number], answer)

    def answers_of(self, number: int) -> list[tuple[str, int]]:
        """The answers to one producer, in order."""
        return [
            (kind, sequence_id)
            for write in self.session.writes
            for kind, producer_id, sequence_id in write
            if producer_id == number
        ]


@pytest.fixture
def publishing() -> Publishing:
    """Nothing was sent yet."""
    return Publishing()


def test_all_receipts_of_a_batch_are_one_write(publishing):
    """Two producers that send alternately get all receipts of a batch with one write."""
    batch = Batch()
    commits = Commit(batch), Commit(batch)
    for sequence_id in range(100):
        publishing.publish(sequence_id % 2, sequence_id, commits[sequence_id % 2])
    batch.finish()

    assert [len(write) for write in publishing.session.writes] == [100]
    assert publishing.answers_of(1) == [("receipt", n) for n in range(1, 100, 2)]
    assert len(batch.callbacks) == 1


def test_a_refused_send_is_answered_between_the_receipts_around_it(publishing):
    """The refusal comes after the receipts of earlier SENDs and before later ones."""
    batch = Batch()
    commit = Commit(batch)
    publishing.publish(0, 0, commit)
    publishing.refuse(0, 1)
    publishing.refuse(0, 2)
    publishing.publish(0, 3, commit)
    assert publishing.session.writes == []
    batch.finish()

    kinds = ["receipt", "error", "error", "receipt"]
    assert publishing.answers_of(0) == list(zip(kinds, range(4), strict=True))


def test_a_refused_send_waits_for_the_latest_batch(publishing):
    """With publishes in two batches, the refusal comes after those of the second."""
    first, second = Batch(), Batch()
    publishing.publish(0, 0, Commit(first))
    publishing.publish(0, 1, Commit(second))
    publishing.refuse(0, 2)
    first.finish()
    assert publishing.answers_of(0) == [("receipt", 0)]
    second.finish()

    assert publishing.answers_of(0) == [("receipt", 0), ("receipt", 1), ("error", 2)]


def test_an_answer_with_nothing_before_it_is_written_at_once(publishing):
    """Nothing is under way: neither before the first publish nor after the last receipt."""
    publishing.refuse(0, 0)
    batch = Batch()
    publishing.publish(0, 1, Commit(batch))
    batch.finish()
    publishing.refuse(0, 2)

    assert publishing.answers_of(0) == [("error", 0), ("receipt", 1), ("error", 2)]


def test_a_topic_that_failed_is_answered_with_errors_and_the_others_with_receipts(publishing):
    """Each commit of a batch decides the answers to its own publishes."""
    batch = Batch()
    error = OSError("no space")
    commits = Commit(batch), Commit(batch, error)
    for sequence_id in range(4):
        publishing.publish(sequence_id % 2, sequence_id, commits[sequence_id % 2])
    batch.finish()

    assert publishing.answers_of(0) == [("receipt", 0), ("receipt", 2)]
    assert publishing.answers_of(1) == [("error", 1), ("error", 3)]
    assert publishing.session.failures == [error]
    assert publishing.session.closed == [publishing.producers[1]]
    assert [(c.messages_in, c.failed_entries) for c in publishing.counters] == [(2, 0), (0, 2)]


def test_of_a_commit_that_failed_half_way_what_is_stored_gets_its_receipts(publishing):
    """Each producer gets receipts up to the entry that is not stored, and errors from there on."""
    batch = Batch()
    error = FencedError("orders", "no space", 3)
    commit = Commit(batch, error)
    for sequence_id in range(6):
        publishing.publish(sequence_id % 2, sequence_id, commit)
    publishing.refuse(0, 6)
    batch.finish()

    assert publishing.answers_of(0) == [("receipt", 0), ("receipt", 2), ("error", 4), ("error", 6)]
    assert publishing.answers_of(1) == [("receipt", 1), ("error", 3), ("error", 5)]
    assert publishing.session.failures == [error]
    assert [(c.messages_in, c.failed_entries) for c in publishing.counters] == [(2, 1), (1, 2)]
    assert [c.bytes_in for c in publishing.counters] == [2 * SIZE_BYTES, SIZE_BYTES]
    assert publishing.receipts.entries_in_flight == publishing.budget.bytes_in_flight == 0


def test_counters_go_by_what_is_durable(publishing):
    """Messages, bytes and both histograms count each entry once, when its receipt goes out."""
    batch = Batch()
    commit = Commit(batch)
    for sequence_id in range(3):
        publishing.publish(0, sequence_id, commit)
    counters = publishing.counters[0]
    in_flight = publishing.receipts.entries_in_flight, publishing.budget.bytes_in_flight
    assert (counters.messages_in, *in_flight) == (0, 3, 3 * SIZE_BYTES)
    batch.finish()

    assert (counters.messages_in, counters.bytes_in) == (3, 3 * SIZE_BYTES)
    assert counters.entry_size_bytes.count == counters.write_latency_ms.count == 3
    assert counters.entry_size_bytes.total == 3 * SIZE_BYTES
    assert publishing.receipts.entries_in_flight == publishing.budget.bytes_in_flight == 0


class DoneBatch(Batch):
    """A batch that ended before it was asked to call back."""

    def __init__(self) -> None:
        super().__init__()
        self.done = True

    def add_done_callback(self, callback: Any) -> None:
        """Call at once."""
        callback()


def test_a_batch_that_was_done_already_is_answered_at_once(publishing):
    """Between an append and its receipt the batch may end; each publish is still answered."""
    commit = Commit(DoneBatch())
    publishing.publish(0, 0, commit)
    publishing.publish(0, 1, commit)

    assert publishing.answers_of(0) == [("receipt", 0), ("receipt", 1)]
    assert publishing.receipts.entries_in_flight == 0


def test_a_batch_that_was_done_already_does_not_overtake_the_one_before(publishing):
    """While the call for a first batch is on its way to the loop, a second is found done.

    Each publish is answered once, in the order of the SENDs.
    """
    first = Batch()
    publishing.publish(0, 0, Commit(first))
    publishing.publish(1, 0, Commit(first))
    first.done = True
    publishing.publish(0, 1, Commit(DoneBatch()))
    publishing.refuse(0, 2)
    first.finish()
    publishing.publish(0, 3, Commit(DoneBatch()))

    kinds = ["receipt", "receipt", "error", "receipt"]
    assert publishing.answers_of(0) == list(zip(kinds, range(4), strict=True))
    assert publishing.answers_of(1) == [("receipt", 0)]
    assert publishing.receipts.entries_in_flight == publishing.budget.bytes_in_flight == 0


def test_a_batch_of_another_store_is_not_answered_with_the_one_that_is_done(publishing):
    """The producers' topics are in two stores, whose batches end in any order: each publish is
    answered when its own batch is done, and not before.
    """
    slow, fast = Batch(), Batch()
    slow_commit, fast_commit = Commit(slow), Commit(fast)
    for sequence_id in range(3):
        publishing.publish(0, sequence_id, slow_commit)
        publishing.publish(1, sequence_id, fast_commit)
    fast.finish()
    assert publishing.answers_of(1) == [("receipt", n) for n in range(3)]
    assert publishing.answers_of(0) == []
    assert publishing.receipts.entries_in_flight == 3
    assert publishing.counters[0].messages_in == 0

    slow_commit.error = OSError("the store's owner is another one")
    slow.finish()
    assert publishing.answers_of(0) == [("error", n) for n in range(3)]
    assert publishing.receipts.entries_in_flight == publishing.budget.bytes_in_flight == 0
    assert len(publishing.session.writes) == 2


def test_a_batch_that_is_done_is_answered_once_when_its_own_call_comes_later(publishing):
    """A batch found done with a later one has its answers then; its own call adds nothing."""
    first, other, last = Batch(), Batch(), Batch()
    publishing.publish(0, 0, Commit(first))
    publishing.publish(1, 0, Commit(other))
    publishing.publish(0, 1, Commit(last))
    first.done = True
    last.finish()
    assert publishing.answers_of(0) == [("receipt", 0), ("receipt", 1)]
    assert publishing.answers_of(1) == []
    first.finish()
    other.finish()
    assert publishing.answers_of(0) == [("receipt", 0), ("receipt", 1)]
    assert publishing.answers_of(1) == [("receipt", 0)]

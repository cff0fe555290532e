"""What the official client received is found again by its id, with index and broker time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest

from pulsemark.broker import BrokerThread
from pulsemark.finder import MessageNotStoredError, MessageStamps, SeekClient
from pulsemark.testing import SettableClock, running_broker

START_MS = 1_700_000_000_000
numbers = itertools.count()


class CountingSeek(SeekClient):
    """Counts its calls."""

    calls = 0

    def read_entries(self, *args: Any, **kwargs: Any) -> Any:
        """Count, and ask."""
        self.calls += 1
        return super().read_entries(*args, **kwargs)


@pytest.fixture(scope="module")
def clock() -> SettableClock:
    """The broker's clock."""
    return SettableClock(START_MS)


@pytest.fixture(scope="module")
def broker(clock: SettableClock) -> Iterator[BrokerThread]:
    """A broker with a seek service."""
    with running_broker(grpc_port=0, clock=clock) as running:
        yield running


@pytest.fixture
def client(broker: BrokerThread) -> Iterator[pulsar.Client]:
    """An official client."""
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(broker.service_url, logger=quiet, operation_timeout_seconds=10)
    yield client
    client.close()


@pytest.fixture
def topic() -> str:
    """A topic that no other test uses."""
    return f"persistent://public/default/stamps{next(numbers)}"


@pytest.fixture
def seek(broker: BrokerThread) -> Iterator[CountingSeek]:
    """A client of the seek service that counts its calls."""
    with CountingSeek(broker.grpc_url) as seek:
        yield seek


def publish(client: pulsar.Client, topic: str, clock: SettableClock) -> list[tuple[bytes, int]]:
    """Three batches of three with a single message after each, a second apart; data and time."""
    batching = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=2000
    )
    single = client.create_producer(topic, batching_enabled=False)
    sent = []
    for batch in range(3):
        for number in range(3):
            data = b"batch %d, %d" % (batch, number)
            batching.send_async(data, None)
            sent.append((data, clock.now_ms()))
        batching.flush()
        clock.advance(by_ms=1000)
        single.send(b"single %d" % batch)
        sent.append((b"single %d" % batch, clock.now_ms()))
        clock.advance(by_ms=1000)
    return sent


def test_index_and_time_of_received_messages(
    client: pulsar.Client, topic: str, clock: SettableClock, seek: CountingSeek
) -> None:
    """Each message's index counts from 0 without a gap, its time is its entry's, in one call."""
    consumer = client.subscribe(topic, "s")
    sent = publish(client, topic, clock)
    stamps = MessageStamps(seek)
    received = [consumer.receive(5000) for _ in sent]
    assert [message.data() for message in received] == [data for data, _ in sent]
    assert [stamps.of(message).index for message in received] == list(range(12))
    assert [stamps.of(message).broker_time_ms for message in received] == [t for _, t in sent]
    assert seek.calls == 1


def test_a_reader_and_a_little_memory(
    client: pulsar.Client, topic: str, clock: SettableClock, seek: CountingSeek
) -> None:
    """With little memory the answers are the same, at the cost of more calls."""
    sent = publish(client, topic, clock)
    stamps = MessageStamps(seek, ahead=2, remembered=2)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    indexes = [stamps.of(reader.read_next(5000)).index for _ in sent]
    assert indexes == list(range(12))
    assert seek.calls == 3


def test_partitions(broker: BrokerThread, client: pulsar.Client, topic: str) -> None:
    """Messages of a partitioned topic are looked up in their own partitions."""

    async def make(running: Any) -> None:
        topics = running.services.topics
        await topics.create_partitioned(topics.parse(topic), 2)

    broker.call(make)
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(
        topic, batching_enabled=False,
        message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution,
    )  # fmt: skip
    for number in range(6):
        producer.send(b"%d" % number)
    with SeekClient(broker.grpc_url) as seek:
        stamps = MessageStamps(seek)
        found: dict[str, list[int]] = {}
        for _ in range(6):
            message = consumer.receive(5000)
            found.setdefault(message.topic_name(), []).append(stamps.of(message).index)
    assert found == {f"{topic}-partition-{n}": [0, 1, 2] for n in range(2)}


def test_an_entry_without_a_stamp(
    broker: BrokerThread, client: pulsar.Client, topic: str, clock: SettableClock
) -> None:
    """Without stamps there is still the index, and the time at which the broker appended."""
    consumer = client.subscribe(topic, "s")

    async def switch_off(running: Any) -> None:
        from pulsemark.metadata import StamperChain

        running.services.topics.open_topics[topic].ledger.stampers = StamperChain()

    broker.call(switch_off)
    client.create_producer(topic).send(b"bare")
    with SeekClient(broker.grpc_url) as seek:
        stamp = MessageStamps(seek).of(consumer.receive(5000))
    assert (stamp.index, stamp.broker_time_ms, stamp.tags) == (0, None, {})
    assert stamp.append_time_ms == clock.now_ms()


def test_what_is_not_stored(
    client: pulsar.Client, topic: str, clock: SettableClock, seek: CountingSeek
) -> None:
    """The id of an entry that is not there is a typed error that names it."""
    consumer = client.subscribe(topic, "s")
    publish(client, topic, clock)
    message = consumer.receive(5000)
    place = message.message_id()

    class Gone:
        ledger_id = staticmethod(lambda: place.ledger_id() + 1000)
        entry_id = staticmethod(lambda: 5)
        batch_index = staticmethod(lambda: -1)

    with pytest.raises(MessageNotStoredError) as caught:
        MessageStamps(seek).at(topic, Gone())
    assert (caught.value.topic, caught.value.position.entry_id) == (topic, 5)


@pytest.mark.parametrize(("ahead", "remembered"), [(0, 1), (2, 1), (-1, 5)])
def test_sizes_that_make_no_sense(seek: CountingSeek, ahead: int, remembered: int) -> None:
    """What is fetched must fit into what is kept."""
    with pytest.raises(ValueError, match="ahead"):
        MessageStamps(seek, ahead=ahead, remembered=remembered)

"""Transactions over topics of several brokers: their coordinator is one of them."""

from contextlib import ExitStack, suppress

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from pulsemark.testing.raw_kafka import RawKafka
from pulsemark.wire import TopicName

from ..kafka.handlers.test_transactions import Producer as KafkaProducer
from .test_kafka import create, metadata, thread_of

PARTITIONS = 8
SETTINGS = {
    "kafka_port": 0,
    "kafka_group_initial_rebalance_delay_ms": 0,
    "kafka_default_partitions": PARTITIONS,
}
JOURNAL = TopicName.parse("persistent://public/default/kafka-groups")
LIMIT_S = 60


def servers_of(brokers):
    """Where Kafka's clients begin."""
    return ",".join(one.kafka_url.rpartition("/")[2] for one in brokers.running)


class Worker:
    """A transactional producer that goes on after errors, as an application does."""

    def __init__(self, brokers, name="worker"):
        self._brokers, self._name = brokers, name
        self.begin()

    def begin(self):
        """Have a new producer, which fences the one before."""
        self.producer = Producer(
            {
                "bootstrap.servers": servers_of(self._brokers),
                "transactional.id": self._name,
                "topic.metadata.refresh.interval.ms": 500,
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.max.ms": 200,
            }
        )
        self._again(self.producer.init_transactions)

    def _again(self, step, *args):
        for _ in range(LIMIT_S):
            try:
                return step(*args, 5)
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
        pytest.fail(f"{step} not within {LIMIT_S} s")

    def run(self, values, *, commits=True, between=lambda: None, offsets=None):
        """One transaction, until it has ended as it should."""
        while True:
            try:
                self._run(values, commits, between, offsets)
            except KafkaException as error:
                if error.args[0].txn_requires_abort():
                    with suppress(KafkaException):
                        self._again(self.producer.abort_transaction)
                        continue
                self.begin()
            else:
                return

    def _run(self, values, commits, between, offsets):
        self.producer.begin_transaction()
        for number, value in enumerate(values):
            self.producer.produce("t", value, partition=number % PARTITIONS)
        self.producer.flush(LIMIT_S)
        between()
        if offsets is not None:
            consumer = Consumer({"bootstrap.servers": servers_of(self._brokers), "group.id": "g"})
            try:
                self.producer.send_offsets_to_transaction(
                    [TopicPartition("t", 0, offsets)], consumer.consumer_group_metadata(), LIMIT_S
                )
            finally:
                consumer.close()
        self._again(
            self.producer.commit_transaction if commits else self.producer.abort_transaction
        )


def committed(brokers, count):
    """The values that a committed reader gets of all partitions, and then the end of each."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers_of(brokers),
            "group.id": "reader",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "topic.metadata.refresh.interval.ms": 500,
            "reconnect.backoff.max.ms": 200,
        }
    )
    consumer.assign([TopicPartition("t", each, 0) for each in range(PARTITIONS)])
    found, ended = [], set()
    for _ in range(LIMIT_S * 10):
        message = consumer.poll(0.1)
        if message is None:
            continue
        if message.error() is None:
            found.append((message.value() or b"").decode())
            ended.discard(message.partition())
        else:
            ended.add(message.partition())
        if len(found) >= count and len(ended) == PARTITIONS:
            break
    consumer.close()
    return sorted(found)


def coordinator_of(brokers):
    """The broker that coordinates."""
    return next(one for one in brokers.running if one.member.owns(JOURNAL))


def test_a_transaction_over_partitions_of_two_brokers(brokers):
    """What is committed is seen in all partitions, with its offsets; what is aborted is not."""
    brokers.start(**SETTINGS), brokers.start(**SETTINGS)
    worker = Worker(brokers)
    for number in range(6):
        values = [f"{number}-{each}" for each in range(PARTITIONS)]
        worker.run(values, commits=number % 2 == 0, offsets=number)
    served = [len(one.broker.services.topics.open_topics) for one in brokers.running]
    assert all(served), served
    wanted = sorted(f"{number}-{each}" for number in (0, 2, 4) for each in range(PARTITIONS))
    assert committed(brokers, len(wanted)) == wanted
    consumer = Consumer({"bootstrap.servers": servers_of(brokers), "group.id": "g"})
    (place,) = consumer.committed([TopicPartition("t", 0)], 20)
    consumer.close()
    assert place.offset == 4


def test_a_set_adds_its_partition_at_whichever_broker(brokers, eventually):
    """A client of Kafka 4 (KIP-890) adds nothing before; nothing that comes late begins one."""
    threads = brokers.start(**SETTINGS), brokers.start(**SETTINGS)
    create(threads[0], "t")
    nodes, leaders, controller = metadata(threads[0], "t")
    with ExitStack() as clients:
        raws = {
            number: clients.enter_context(
                RawKafka.from_url(thread_of(brokers, nodes, number).kafka_url)
            )
            for number in nodes
        }
        producer = KafkaProducer(raws[controller], "worker")
        eventually(lambda: producer.init() == 0, "a coordinator")
        for number, commits in enumerate((True, False, True)):
            for index in range(PARTITIONS):
                producer.raw = raws[leaders[index]]
                value = f"{number}-{index}".encode()
                assert producer.send("t", value, version=12, index=index) == 0
            before, producer.raw = producer.epoch, raws[controller]
            assert producer.end(commits=commits, version=5) == 0
            assert producer.epoch == before + 1
            producer.epoch = before
            for index in range(PARTITIONS):
                producer.raw = raws[leaders[index]]
                assert producer.send("t", b"late", version=12, index=index) == 47
            producer.epoch = before + 1
        wanted = sorted(f"{number}-{each}" for number in (0, 2) for each in range(PARTITIONS))
        assert committed(brokers, len(wanted)) == wanted


def _unloads(bundle_of):
    def happens(brokers):
        for one in brokers.running:
            bundle = one.member.bundle_of(bundle_of(one))
            one.call(lambda _, one=one, bundle=bundle: one.member.ownership.give(bundle))

    return happens


def _expires(is_coordinator):
    def happens(brokers):
        for one in brokers.running:
            if one.member.owns(JOURNAL) is is_coordinator:
                one.call(lambda _, one=one: _expired(one))

    return happens


async def _expired(thread):
    thread.member.session.expire()


EVENTS = {
    "the coordinator's bundle is given away": _unloads(lambda _: JOURNAL),
    "a partition's bundle is given away": _unloads(
        lambda _: TopicName.parse("persistent://public/default/t-partition-0")
    ),
    "the coordinator loses its session": _expires(True),
    "the other broker loses its session": _expires(False),
}


@pytest.mark.parametrize("event", EVENTS)
def test_a_transaction_goes_on_after(brokers, event):
    """Whatever happens between its records and its end: each value of a committed transaction is
    read once, none of an aborted one.
    """
    brokers.start(**SETTINGS), brokers.start(**SETTINGS)
    worker = Worker(brokers)
    wanted = []
    for number in range(4):
        values = [f"{number}-{each}" for each in range(PARTITIONS)]
        commits = number % 2 == 0
        happened: list[None] = []

        def between(happened=happened):
            if not happened:
                happened.append(EVENTS[event](brokers))

        worker.run(values, commits=commits, between=between)
        wanted += values if commits else []
    assert committed(brokers, len(wanted)) == sorted(wanted)

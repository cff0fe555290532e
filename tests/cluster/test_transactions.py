"""Transactions over topics of several brokers: their coordinator is one of them."""

import asyncio
import hmac
import json
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, suppress

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from pulsemark.broker.ownership import CALLS_AT_ONCE, INNER_PATH, SIGNATURE_HEADER
from pulsemark.broker.topics import participants
from pulsemark.client import RequestRefusedError
from pulsemark.proto.pulsar_api_pb2 import ServerError
from pulsemark.testing import RawClient
from pulsemark.testing.raw_kafka import RawKafka
from pulsemark.wire import TopicName
from tests.support.transaction_client import COORDINATOR, TransactionClient, received

from ..broker.kafka.handlers.test_transactions import Producer as KafkaProducer
from .test_kafka import create, metadata, thread_of

PARTITIONS = 8
SETTINGS = {
    "kafka_port": 0,
    "kafka_group_initial_rebalance_delay_ms": 0,
    "kafka_default_partitions": PARTITIONS,
}
LIMIT_S = 60


def servers_of(brokers):
    """Where Kafka's clients begin."""
    return ",".join(one.kafka_url.rpartition("/")[2] for one in brokers.running)


class Worker:
    """A transactional producer that goes on after errors, as an application does."""

    def __init__(self, brokers, name="worker", timeout_ms=60_000):
        self._brokers, self._name, self._timeout_ms = brokers, name, timeout_ms
        self.begin()

    def begin(self):
        """Have a new producer, which fences the one before."""
        self.producer = Producer(
            {
                "bootstrap.servers": servers_of(self._brokers),
                "transactional.id": self._name,
                "transaction.timeout.ms": self._timeout_ms,
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


def unloads(topic):
    """A topic's bundle is given away by the broker that has it."""

    def happens(brokers):
        for one in brokers.running:
            bundle = one.member.bundle_of(TopicName.parse(topic))
            one.call(lambda _, one=one, bundle=bundle: one.member.ownership.give(bundle))

    return happens


def expires(topic, *, is_owner=True):
    """The broker that has a topic loses its session; or the other one does."""

    def happens(brokers):
        for one in brokers.running:
            if one.member.owns(TopicName.parse(topic)) is is_owner:
                one.call(lambda _, one=one: _expired(one))

    return happens


async def _expired(thread):
    thread.member.session.expire()


def events(coordinator, topic):
    """What happens to brokers, by its name."""
    return {
        "the coordinator's bundle is given away": unloads(coordinator),
        "a topic's bundle is given away": unloads(topic),
        "the coordinator loses its session": expires(coordinator),
        "the other broker loses its session": expires(coordinator, is_owner=False),
    }


JOURNAL = "persistent://public/default/kafka-groups"
EVENTS = events(JOURNAL, "persistent://public/default/t-partition-0")


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


# -- Pulsar's clients ------------------------------------------------------------------------------

ON = {"transaction_coordinator_enabled": True}
READY = (ServerError.ServiceNotReady, ServerError.TransactionCoordinatorNotFound)


class Sides:
    """Transactions of a client that asks each broker itself: it looks up before each command."""

    def __init__(self, brokers, closing):
        self._brokers, self._closing = brokers, closing

    def at(self, topic):
        """A client of the broker that serves a topic."""
        owner = self._brokers.owner(topic)
        raw = self._closing.enter_context(RawClient.from_url(owner.service_url))
        return TransactionClient(raw)

    def coordinated(self, ask):
        """What the coordinator answers, once it is ready."""
        for _ in range(LIMIT_S * 5):
            try:
                return ask(self.at(COORDINATOR))
            except RequestRefusedError as refusal:
                if refusal.error not in READY:
                    raise
            time.sleep(0.2)
        pytest.fail(f"no coordinator within {LIMIT_S} s")


@pytest.fixture
def sides(brokers):
    """Two brokers with transactions, and a client."""
    brokers.start(**ON), brokers.start(**ON)
    with ExitStack() as closing:
        yield Sides(brokers, closing)


def spread(brokers):
    """A topic of each broker, by whether it is the coordinator's."""
    found: dict[bool, str] = {}
    mine = brokers.owner(COORDINATOR)
    for number in range(50):
        topic = f"persistent://public/default/t{number}"
        found.setdefault(brokers.owner(topic) is mine, topic)
        if len(found) == 2:
            return found
    pytest.fail("all topics have one owner")


def begun(sides, topics):
    """A transaction that has sent to each topic and acknowledged a message of it."""
    for topic in topics:
        client = sides.at(topic)
        client.raw.subscribe(topic, "s", earliest=True)
        client.raw.create_producer(topic).send(b"input")
        client.raw.close()
    txn = sides.coordinated(lambda one: one.begin())
    sides.coordinated(lambda one: one.add(txn, *topics))
    for topic in topics:
        client = sides.at(topic)
        client.send(client.raw.create_producer(topic), b"output", txn)
        consumer = client.raw.subscribe(topic, "s", earliest=True)
        consumer.flow(10)
        client.ack(consumer, consumer.receive().message_id, txn)
        client.raw.close()
    return txn


def left(sides, topic):
    """What a consumer gets that comes now; its acknowledgements are not counted."""
    for _ in range(LIMIT_S):
        try:
            client = sides.at(topic)
            consumer = client.raw.subscribe(topic, "s", earliest=True)
        except RequestRefusedError:
            time.sleep(0.5)
            continue
        consumer.flow(10)
        found = received(consumer)
        client.raw.close()
        return found
    pytest.fail(f"{topic} is not served within {LIMIT_S} s")


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("event", [None, *EVENTS])
def test_pulsars_transactions_over_topics_of_two_brokers(
    brokers, sides, eventually, event, committed
):
    """Messages and acknowledgements of both brokers' topics count together, or not at all, though
    the coordinator or a topic moves to another broker before the end.
    """
    topics = spread(brokers)
    txn = begun(sides, topics.values())
    for topic in topics.values():
        assert left(sides, topic) == []
    if event is not None:
        events(COORDINATOR, topics[False])[event](brokers)
    sides.coordinated(lambda one: one.end(txn, committed=committed))
    wanted = [b"output"] if committed else [b"input"]
    for topic in topics.values():
        eventually(lambda topic=topic: left(sides, topic) == wanted, f"{topic} has {wanted}")
    assert sides.coordinated(lambda one: one.begin()) != txn


def test_every_broker_leads_to_a_transactions_metadata(brokers, sides, rest):
    """One that does not have the coordinator redirects to the one that has it."""
    txn = sides.coordinated(lambda one: one.begin())
    path = "/admin/v3/transactions/transactionMetadata/{txnid_most_bits}/{txnid_least_bits}"
    for one in brokers.running:
        status, found = rest(one, "GET", path.format(**txn))
        assert (status, found["status"]) == (200, "OPEN")


@pytest.mark.parametrize("kind", ["Pulsar's", "Kafka's"])
def test_nobody_has_to_ask_for_a_coordinator(brokers, eventually, monkeypatch, kind):
    """The coordinator's broker has gone, and so has the client. The brokers of topics with an open
    transaction ask for the next coordinator, which aborts it when its time is over.
    """
    monkeypatch.setattr(participants, "CHECK_INTERVAL_S", 0.5)
    for _ in range(2):
        brokers.start(**ON, **SETTINGS)
    coordinator = COORDINATOR if kind == "Pulsar's" else JOURNAL
    brokers.owner("persistent://public/default/t")
    if kind == "Pulsar's":
        with ExitStack() as closing:
            sides = Sides(brokers, closing)
            topic = spread(brokers)[False]
            client = sides.at(topic)
            producer = client.raw.create_producer(topic)
            txn = sides.coordinated(lambda one: one.begin(timeout_ms=3_000))
            sides.coordinated(lambda one: one.add(txn, topic))
            client.send(producer, b"output", txn)
    else:
        worker = Worker(brokers, timeout_ms=3_000)
        worker.producer.begin_transaction()
        for number in range(PARTITIONS):
            worker.producer.produce("t", b"v", partition=number)
        worker.producer.flush(LIMIT_S)
    owner = next(one for one in brokers.running if one.member.owns(TopicName.parse(coordinator)))
    other = next(one for one in brokers.running if one is not owner)
    opened = other.broker.services.topics.open_topics
    assert any(one.ledger.stable_end < one.ledger.end_position for one in opened.values())
    if kind == "Kafka's":
        del worker.producer
    owner.close()
    brokers.running.remove(owner)

    def aborted():
        known = [one.ledger.transactions for one in opened.values() if one.ledger.transactions]
        return not any(one.open for one in known) and any(one.aborted for one in known)

    eventually(aborted, "the transaction is aborted")


def test_a_topic_that_is_opened_asks_about_its_open_transactions(brokers, eventually, monkeypatch):
    """After both brokers' end nobody has the coordinator; it is not waited for until the next
    round, and asked again while it is being taken over.
    """
    monkeypatch.setattr(participants, "CHECK_INTERVAL_S", 3_600.0)
    for _ in range(2):
        brokers.start(**SETTINGS)
    worker = Worker(brokers, timeout_ms=6_000)
    worker.run([""] * PARTITIONS)  # the topic is there
    worker.producer.begin_transaction()
    for number in range(PARTITIONS):
        worker.producer.produce("t", b"v", partition=number)
    worker.producer.flush(LIMIT_S)
    del worker.producer
    coordinator = brokers.running[0].member.bundle_of(TopicName.parse(JOURNAL))
    topic = next(
        topic.name
        for one in brokers.running
        for topic in one.broker.services.topics.open_topics.values()
        if topic.ledger.transactions and topic.ledger.transactions.open
        if one.member.bundle_of(TopicName.parse(topic.name)) != coordinator
    )
    while brokers.running:
        brokers.running.pop().close()
    for _ in range(2):
        brokers.start(**SETTINGS)
    owner = brokers.owner(topic)
    found = owner.call(
        lambda broker: broker.services.topics.open(TopicName.parse(topic), create=False)
    )
    eventually(lambda: found.ledger.transactions.aborted, "the transaction is aborted")


def test_only_brokers_can_end_a_transaction_in_a_topic(brokers):
    """A call that is not signed with the brokers' secret is refused, whatever it says."""
    brokers.start(**ON)
    (only,) = brokers.running
    inner = only.broker.services.inner
    body = json.dumps(["persistent://public/default/t", participants.END, {}]).encode()
    signatures = "", "00", "\u00ff", hmac.digest(b"", body, "sha256").hex()
    for signature in signatures:
        asked = urllib.request.Request(
            f"{only.http_url}{INNER_PATH}public/default/t",
            method="POST",
            data=body,
            headers={"content-type": "application/json", SIGNATURE_HEADER: signature},
        )
        with pytest.raises(urllib.error.HTTPError) as refused, urllib.request.urlopen(asked):
            pass
        assert refused.value.code == 401
        refused.value.close()
    assert len(inner.secret) == 32


def test_few_calls_to_one_broker_at_a_time(sides, brokers):
    """A transaction may have a thousand topics, and a process has about as many sockets."""
    topic = TopicName.parse(spread(brokers)[True])
    owner = next(one for one in brokers.running if one.member.owns(topic))
    other = next(one for one in brokers.running if one is not owner)
    running, most = 0, 0

    async def answer(_name):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1

    async def ask(broker):
        await asyncio.gather(*(broker.services.inner.ask(topic, "how many") for _ in range(200)))

    owner.broker.services.inner.answering["how many"] = answer
    other.call(ask)
    assert 1 < most <= CALLS_AT_ONCE

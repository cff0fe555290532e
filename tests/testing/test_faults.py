"""What a test can let go wrong, as an official client and a raw one see it."""

from __future__ import annotations

import queue
import time
from contextlib import suppress

import pulsar
import pytest

from pulsemark.client import ConnectionLostError, SendRefusedError
from pulsemark.testing import BrokerProcess, RawClient, running_broker
from pulsemark.testing.raw_client import RawTimeoutError
from pulsemark.testing.raw_messages import unbatched_message

TOPIC = "persistent://public/default/orders"


@pytest.fixture(params=["memory", "files"])
def broker(request):
    """A broker on each engine."""
    with running_broker(storage=request.param) as running:
        yield running


@pytest.fixture
def client(broker):
    """An official client."""
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(broker.service_url, logger=logger)
    yield client
    with suppress(pulsar.AlreadyClosed):  # a producer that was fenced may be closed by itself
        client.close()


@pytest.fixture
def raw(broker):
    """A client that sees each answer."""
    with RawClient.from_url(broker.service_url, timeout_s=10) as raw:
        yield raw


def post(producer, number):
    """Send a message without waiting for its receipt."""
    message = unbatched_message(b"%d" % number, publish_time_ms=0, sequence_id=number)
    producer.post(message, sequence_id=number)


def values(broker):
    """The payloads of the topic."""
    return [each.value for each in broker.messages(TOPIC)]


def test_dropped_connections_are_made_again(broker, client):
    """The client's next send goes over a new connection."""
    producer = client.create_producer(TOPIC)
    assert broker.faults.drop_connections() > 0
    producer.send(b"again")
    assert values(broker) == [b"again"]


def test_refused_connections(broker):
    """No client gets in during the block, and every client after it."""
    with broker.faults.refusing_connections(), pytest.raises((ConnectionLostError, OSError)):
        RawClient.from_url(broker.service_url, timeout_s=5)
    RawClient.from_url(broker.service_url, timeout_s=5).close()


def test_a_fault_ends_with_its_broker():
    """The end of its block is no error then, which would hide the test's own."""
    with running_broker(storage="memory") as broker:
        with broker.faults.refusing_connections():
            broker.restart()
            RawClient.from_url(broker.service_url, timeout_s=5).close()

        def fails() -> None:
            with broker.faults.full_disk():
                broker.kill()
                raise KeyError("the test's own")

        with pytest.raises(KeyError, match="the test's own"):
            fails()
    with BrokerProcess(test_controls=True) as process, process.faults.full_disk():
        process.kill()


def test_failing_sends_are_refused_and_not_stored(broker, raw):
    """The error is the one that was asked for; another topic's messages are stored."""
    producer, other = raw.create_producer(TOPIC), raw.create_producer(TOPIC + "-2")
    with broker.faults.failing_sends("orders", error="TopicTerminatedError", times=1):
        with pytest.raises(SendRefusedError) as refusal:
            producer.send(b"refused")
        other.send(b"stored")
        producer.send(b"the second")
    assert refusal.value.error_name == "TopicTerminatedError"
    assert values(broker) == [b"the second"]
    with pytest.raises(ValueError, match="'Nonsense': must be one of"):
        broker.faults.failing_sends(error="Nonsense").__enter__()


FAILING_SENDS = [
    pytest.param("failing_sends", {}, pulsar.ChecksumError, id="refused"),
    pytest.param("failing_sends", {"times": 1}, pulsar.ChecksumError, id="refused-once"),
    pytest.param(
        "failing_sends", {"error": "TopicTerminatedError"}, pulsar.ChecksumError, id="terminated"
    ),
    pytest.param("full_disk", {}, pulsar.Timeout, id="full-disk"),
    pytest.param("failing_disk", {}, pulsar.Timeout, id="failing-disk"),
    pytest.param("refusing_connections", {}, pulsar.Timeout, id="refused-connections"),
]


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize(("fault", "arguments", "error"), FAILING_SENDS)
def test_a_send_fails_in_the_official_client(fault, arguments, error, batched):
    """`send` raises what docs/testing.md says, and the message is not stored."""
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    with running_broker(storage="memory") as broker:
        client = pulsar.Client(broker.service_url, logger=logger)
        producer = client.create_producer(TOPIC, batching_enabled=batched, send_timeout_millis=1000)
        with getattr(broker.faults, fault)(**arguments), pytest.raises(error):
            producer.send(b"never stored")
        if fault != "failing_disk":
            client.create_producer(TOPIC).send(b"after the fault")
            assert values(broker) == [b"after the fault"]
        client.close()


def test_a_delayed_send_times_out_and_is_stored(broker, client):
    """The official client gives up before the message is handled, which is then stored."""
    producer = client.create_producer(TOPIC, send_timeout_millis=500)
    with broker.faults.delaying_sends(), pytest.raises(pulsar.Timeout):
        producer.send(b"too late")
    broker.wait_for_messages(TOPIC, 1)
    assert values(broker) == [b"too late"]


def test_sends_fail_so_many_times(broker, client):
    """Of messages that are on their way together the first ones fail, and the others are stored."""
    producer = client.create_producer(TOPIC, batching_enabled=False)
    done: queue.Queue[object] = queue.Queue()
    with broker.faults.failing_sends(TOPIC, times=2):
        for number in range(5):
            producer.send_async(b"%d" % number, lambda result, _: done.put(result))
        results = [done.get(timeout=30) for _ in range(5)]
    assert results == [pulsar.Result.ChecksumError] * 2 + [pulsar.Result.Ok] * 3
    assert values(broker) == [b"2", b"3", b"4"]


@pytest.mark.parametrize(
    ("version", "asked", "answered", "sequence_id"),
    [
        ("Pulsar-Java-v4.0.8", "PersistenceError", "NotAllowedError", 9),
        ("Pulsar-Java-v4.0.8", "TopicTerminatedError", "TopicTerminatedError", 9),
        ("Pulsar Go 0.17.0", "PersistenceError", "PersistenceError", 5),
    ],
)
def test_a_refusal_is_one_that_the_client_passes_on(broker, version, asked, answered, sequence_id):
    """A Java client gets an error after which it gives up, with the batch's last sequence id."""
    with RawClient.from_url(broker.service_url, client_version=version) as raw:
        producer = raw.create_producer(TOPIC)
        with (
            broker.faults.failing_sends(TOPIC, error=asked),
            pytest.raises(SendRefusedError) as refusal,
        ):
            producer.send_batch([b"v"] * 5, sequence_id=5)
    assert (refusal.value.error_name, refusal.value.sequence_id) == (answered, sequence_id)


def test_every_receipt_is_lost_once(broker, client):
    """Without `times` each message loses its receipt once: the client's `send` returns."""
    producer = client.create_producer(TOPIC, batching_enabled=False)
    with broker.faults.losing_receipts(TOPIC):
        producer.send(b"a")
        producer.send(b"b")
    assert values(broker) == [b"a", b"a", b"b", b"b"]


def test_a_lost_receipt_doubles_a_message(broker, client):
    """The message is stored, its receipt never comes, and so the client sends it again."""
    producer = client.create_producer(TOPIC)
    with broker.faults.losing_receipts(TOPIC, times=1):
        producer.send(b"once")
    assert values(broker) == [b"once", b"once"]


def test_a_lost_receipt_doubles_nothing_with_deduplication(broker, client):
    """The broker knows the message when it comes again."""
    broker.admin.request("POST", "namespaces/public/default/deduplication", True)
    producer = client.create_producer(TOPIC, producer_name="p")
    with broker.faults.losing_receipts(TOPIC, times=1):
        producer.send(b"once")
    assert values(broker) == [b"once"]


def test_delayed_sends_wait_until_the_end(broker, raw):
    """Without a delay nothing is handled during the block; then all of it, in order."""
    producer = raw.create_producer(TOPIC)
    with broker.faults.delaying_sends():
        for number in range(3):
            post(producer, number)
        with pytest.raises(RawTimeoutError):
            producer.receipts(1, timeout_s=0.3)
        assert values(broker) == []
    producer.receipts(3)
    assert values(broker) == [b"0", b"1", b"2"]


def test_a_delayed_send_arrives_after_its_delay(broker, raw):
    """A delay is a least time."""
    producer = raw.create_producer(TOPIC)
    with broker.faults.delaying_sends(0.2):
        began_s = time.monotonic()
        producer.send(b"late")
        assert time.monotonic() - began_s >= 0.2


def test_a_connection_that_ends_while_it_is_delayed(broker, raw):
    """What it had sent is not stored, and the broker goes on."""
    with broker.faults.delaying_sends():
        producer = raw.create_producer(TOPIC)
        post(producer, 0)
        with pytest.raises(RawTimeoutError):
            producer.receipts(1, timeout_s=0.3)
        broker.faults.drop_connections()
    assert values(broker) == []
    with RawClient.from_url(broker.service_url) as other:
        other.create_producer(TOPIC).send(b"next")
    assert values(broker) == [b"next"]


def test_an_exclusive_producer_is_fenced(broker, client):
    """Its next send fails with ProducerFenced."""
    mode = pulsar.ProducerAccessMode.Exclusive
    producer = client.create_producer(TOPIC, access_mode=mode, send_timeout_millis=5_000)
    producer.send(b"mine")
    broker.faults.fence_producers("orders")
    with pytest.raises(pulsar.ProducerFenced):
        producer.send(b"not mine any more")
    assert values(broker) == [b"mine"]


@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "KeyShared", "Failover"])
def test_paused_delivery(broker, client, kind):
    """Nothing arrives during the block, and everything after it."""
    producer = client.create_producer(TOPIC)
    consumer = client.subscribe(TOPIC, "s", getattr(pulsar.ConsumerType, kind))
    with broker.faults.pausing_delivery("orders", "s"):
        producer.send(b"waits")
        with pytest.raises(pulsar.Timeout):
            consumer.receive(300)
    assert consumer.receive(10_000).data() == b"waits"


def test_of_two_faults_of_a_kind_one_may_end(broker, raw, client):
    """Delivery stays paused, and the disk full, until the last such fault has ended."""
    producer = raw.create_producer(TOPIC)
    consumer = client.subscribe(TOPIC, "s")
    with broker.faults.pausing_delivery("orders"):
        with broker.faults.pausing_delivery():
            producer.send(b"waits")
        with pytest.raises(pulsar.Timeout):
            consumer.receive(300)
    assert consumer.receive(10_000).data() == b"waits"
    with broker.faults.full_disk():
        with broker.faults.full_disk():
            pass
        with pytest.raises(SendRefusedError):
            producer.send(b"no room")
    assert values(broker) == [b"waits"]


def test_a_full_disk_refuses_and_goes_on(broker, raw):
    """Messages are refused while it is full, what was stored stays, and then it goes on."""
    producer = raw.create_producer(TOPIC)
    producer.send(b"before")
    with broker.faults.full_disk(), pytest.raises(SendRefusedError):
        producer.send(b"no room")
    broker.wait_for_messages("orders", 1)
    broker.restart()
    with RawClient.from_url(broker.service_url, timeout_s=10) as again:
        again.create_producer(TOPIC).send(b"after")
    assert values(broker) == [b"before", b"after"]


def test_a_broken_disk_loses_nothing_acknowledged(broker, raw):
    """A failed write is refused; after a restart the broker takes messages again."""
    producer = raw.create_producer(TOPIC)
    producer.send(b"before")
    with broker.faults.failing_disk(), pytest.raises(SendRefusedError):
        producer.send(b"fails")
    broker.restart()
    with RawClient.from_url(broker.service_url, timeout_s=10) as again:
        again.create_producer(TOPIC).send(b"after")
    assert [values(broker)[0], values(broker)[-1]] == [b"before", b"after"]


def test_nothing_is_stored_before_what_was_refused(broker, raw):
    """What a client has sent before it knows of a refusal is not stored; the producer is closed.

    Its client opens it again, and sends both again, in order.
    """
    producer = raw.create_producer(TOPIC)
    with broker.faults.full_disk():
        post(producer, 0)
        with pytest.raises(SendRefusedError):
            producer.receipts(1)
    post(producer, 1)
    again = raw.create_producer(TOPIC)
    for number in range(2):
        post(again, number)
    again.receipts(2)
    assert values(broker) == [b"0", b"1"]

"""The broker of fixtures: its life, its clock, and what an official client sees of it."""

from __future__ import annotations

import asyncio
import threading
import unittest
import warnings
from datetime import timedelta
from typing import ClassVar

import pulsar
import pytest

from pulsemark.broker import BrokerStateError, ConfigError
from pulsemark.testing import PulsarBroker, PulsarTestCase, RawClient, SettableClock, running_broker

TOPIC = "persistent://public/default/orders"
EARLIEST = pulsar.InitialPosition.Earliest


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
    client.close()


@pytest.mark.parametrize("end", ["restart", "kill"])
def test_data_and_addresses_outlive_the_broker(broker, client, end):
    """After a restart or a kill the same client goes on, with what was stored before."""
    producer = client.create_producer("orders")
    producer.send(b"before")
    before = (broker.service_url, broker.http_url)
    if end == "kill":
        broker.kill()
        assert not broker.is_running
        with pytest.raises(OSError, match="refused"):
            RawClient.from_url(before[0])
        broker.start()
    else:
        broker.restart()
    assert (broker.service_url, broker.http_url) == before
    producer.send(b"after")
    consumer = client.subscribe("orders", "s", initial_position=EARLIEST)
    assert [consumer.receive(10_000).data() for _ in range(2)] == [b"before", b"after"]


def test_ports_of_all_kinds_outlive_the_broker():
    """gRPC and Kafka are found at the same addresses after a restart."""
    with running_broker(storage="memory", grpc_port=0, kafka_port=0) as broker:
        before = (broker.grpc_url, broker.kafka_url)
        assert all(before)
        broker.restart()
        assert (broker.grpc_url, broker.kafka_url) == before


def test_a_temporary_folder_ends_with_the_block():
    """A restart keeps it, the end of the block removes it."""
    with running_broker() as broker:
        folder = broker.data_dir
        broker.restart()
        assert broker.data_dir == folder
        assert folder.is_dir()
    assert not folder.exists()


def test_a_folder_of_the_test_is_kept(tmp_path):
    """The data folder may be given as text, and stays."""
    with running_broker(data_dir=str(tmp_path / "data")) as broker:
        broker.admin.create_topic("orders")
    with running_broker(data_dir=tmp_path / "data") as broker:
        assert broker.admin.topics() == [TOPIC]


def test_calls_to_a_broker_that_does_not_run():
    """Each is a BrokerStateError, also after it was stopped; closing twice is not an error."""
    broker = PulsarBroker(storage="memory")
    with pytest.raises(BrokerStateError):
        broker.messages("orders")
    with broker:
        with pytest.raises(BrokerStateError):
            broker.start()
        broker.stop()
        with pytest.raises(BrokerStateError):
            broker.faults.drop_connections()
        broker.stop()
    broker.close()


def test_a_call_on_the_brokers_own_loop_is_refused(broker):
    """It would wait for itself."""

    async def inside(_):
        with pytest.raises(RuntimeError, match="own loop"):
            broker.messages("orders")
        return True

    assert broker.call(inside)


def test_a_moved_clock_delivers_delayed_messages(broker, client):
    """A message due in an hour is there when the clock was moved by an hour, and not before."""
    consumer = client.subscribe("orders", "s", pulsar.ConsumerType.Shared)
    producer = client.create_producer("orders")
    producer.send(b"later", deliver_after=timedelta(hours=1))
    broker.clock.advance(minutes=59)
    with pytest.raises(pulsar.Timeout):
        consumer.receive(200)
    broker.clock.advance(minutes=2)
    assert consumer.receive(10_000).data() == b"later"


def test_a_moved_clock_expires_trims_and_deletes(broker, client):
    """When `advance` returns, TTL, retention and deletion of inactive topics have been done."""
    admin = broker.admin
    admin.request("POST", "namespaces/public/default/messageTTL", 60)
    limits = {"retentionTimeInMinutes": 5, "retentionSizeInMB": -1}
    admin.request("POST", "namespaces/public/default/retention", limits)
    client.subscribe("orders", "s", initial_position=EARLIEST).close()
    producer = client.create_producer("orders")
    producer.send(b"old")
    assert broker.backlog("orders", "s") == 1
    broker.clock.advance(minutes=2)
    assert broker.backlog("orders", "s") == 0
    assert len(broker.messages("orders")) == 1
    broker.clock.advance(minutes=10)
    producer.send(b"new")
    assert [each.value for each in broker.messages("orders")] == [b"new"]

    policy = {"inactiveTopicDeleteMode": "delete_when_no_subscriptions",
              "maxInactiveDurationSeconds": 3600, "deleteWhileInactive": True}  # fmt: skip
    admin.request("POST", "namespaces/public/default/inactiveTopicPolicies", policy)
    admin.create_topic("unused")
    broker.clock.advance(hours=2)
    assert admin.topics() == [TOPIC]


def test_a_clock_of_the_test_moves_the_broker_too():
    """A clock that stands still can be given; one of another kind cannot be moved."""
    clock = SettableClock(1_000_000_000_000)
    with running_broker(storage="memory", clock=clock) as broker:
        assert broker.clock is clock
        with RawClient.from_url(broker.service_url) as client:
            producer = client.create_producer(TOPIC)
            producer.send(b"first")
            clock.advance(timedelta(days=1))
            producer.send(b"second")
        times = [each.broker_time_ms for each in broker.messages("orders")]
        assert times == [1_000_000_000_000, 1_000_086_400_000]
    assert clock.watchers == []
    clock.advance(by_ms=1)


def test_brokers_leave_nothing(recwarn):
    """A hundred brokers, one after another, leave no thread, no event loop and no warning."""
    warnings.simplefilter("always")
    threads = threading.active_count()
    for _ in range(100):
        with running_broker(storage="memory", http_port=None):
            pass
    assert threading.active_count() == threads
    assert [str(each.message) for each in recwarn] == []


async def test_from_an_asyncio_test():
    """The fixture's calls may be made in a coroutine of the test; the broker has its own loop."""
    with running_broker(storage="memory") as broker:
        await asyncio.to_thread(broker.admin.create_topic, "orders")
        assert broker.admin.topics() == [TOPIC]
        broker.clock.advance(hours=1)


def test_a_broker_says_where_it_is_and_ends_with_its_block():
    """Free ports, a temporary folder, and nothing listens afterwards."""
    with running_broker(grpc_port=0) as broker:
        assert broker.service_url.startswith("pulsar://127.0.0.1:")
        assert broker.http_url.startswith("http://127.0.0.1:")
        assert broker.grpc_url.startswith("127.0.0.1:")
        assert broker.data_dir.is_dir()
        url = broker.service_url
        RawClient.from_url(url).close()
    with pytest.raises(OSError, match="refused"):
        RawClient.from_url(url)


def test_many_brokers_live_side_by_side():
    """Each on its own ports and folder."""
    with running_broker() as one, running_broker() as two:
        assert len({one.service_url, two.service_url, one.http_url, two.http_url}) == 4
        assert one.data_dir != two.data_dir


def test_settings_are_the_brokers_own():
    """A wrong value is a ConfigError, an unknown name a TypeError."""
    with pytest.raises(ConfigError), running_broker(max_connections=0):
        pass
    with pytest.raises(TypeError, match="no_such_setting"), running_broker(no_such_setting=1):
        pass


def test_the_tests_of_a_class_share_a_broker():
    """It runs during the class, with the class' settings."""
    seen = []

    class Orders(PulsarTestCase):
        broker_settings: ClassVar = {"storage": "memory", "cluster": "mine"}

        def test_one(self):
            with RawClient.from_url(self.broker.service_url) as client:
                client.create_producer("persistent://public/default/orders").send(b"x")
            seen.append(self.broker)

        def test_two(self):
            self.broker.assert_published("orders", value=b"x")
            assert self.broker.admin.request("GET", "clusters") == ["mine"]
            seen.append(self.broker)

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Orders).run(result)
    assert (result.errors, result.failures, result.testsRun) == ([], [], 2)
    assert seen[0] is seen[1]
    assert not seen[0].is_running

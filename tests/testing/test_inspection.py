"""What a test asks of a broker and what failing assertions say; the life of its broker."""

from __future__ import annotations

import gc
import socket
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from pulsemark.broker.errors import BrokerStateError, PortInUseError
from pulsemark.client.errors import AdminError
from pulsemark.testing import BrokerProcess, BrokerProcessError, PulsarBroker, running_broker


@pytest.fixture(scope="module")
def broker():
    """One broker for all tests; each has its own topics."""
    with running_broker(storage="memory", kafka_port=0) as running:
        yield running


@pytest.fixture
def client(broker):
    """An official client."""
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(broker.service_url, logger=logger)
    yield client
    client.close()


@pytest.mark.parametrize("compression", ["NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"])
@pytest.mark.parametrize("batched", [True, False])
def test_messages_are_what_was_sent(broker, client, compression, batched):
    """Values, keys, properties, places and times, of batches and compressed ones too."""
    topic = f"sent-{compression}-{batched}"
    producer = client.create_producer(
        topic,
        producer_name=f"p-{topic}",
        batching_enabled=batched,
        batching_max_publish_delay_ms=1_000,
        compression_type=getattr(pulsar.CompressionType, compression),
    )
    for number in range(5):
        producer.send_async(
            b"v%d" % number * 50,
            None,
            partition_key=f"k{number}",
            properties={"n": str(number)},
            event_timestamp=1_000 + number,
            sequence_id=10 + number,
        )
    producer.flush()
    found = broker.messages(topic)
    assert [each.value for each in found] == [b"v%d" % number * 50 for number in range(5)]
    assert [each.key for each in found] == [f"k{number}" for number in range(5)]
    assert [each.properties for each in found] == [{"n": str(number)} for number in range(5)]
    assert [each.index for each in found] == list(range(5))
    assert [each.message.sequence_id for each in found] == list(range(10, 15))
    assert [each.message.event_time_ms for each in found] == list(range(1_000, 1_005))
    assert {each.message.producer_name for each in found} == {f"p-{topic}"}
    assert [each.message.batch_index for each in found] == (list(range(5)) if batched else [-1] * 5)
    assert len({each.position for each in found}) == (1 if batched else 5)


def test_messages_of_a_partitioned_topic_and_of_none(broker, client):
    """All partitions together; a topic that does not exist is empty, and is not created."""
    broker.admin.create_topic("divided", partitions=3)
    producer = client.create_producer("divided", batching_enabled=False)
    for number in range(6):
        producer.send(b"%d" % number)
    assert sorted(each.value for each in broker.messages("divided")) == [
        b"%d" % number for number in range(6)
    ]
    assert len({each.topic for each in broker.messages("divided")}) == 3
    assert broker.messages("absent") == []
    assert not any("absent" in name for name in broker.admin.topics())


def test_messages_of_kafkas_clients(broker):
    """They are shown as Pulsar's consumers get them."""
    kafka = pytest.importorskip("kafka")
    producer = kafka.KafkaProducer(bootstrap_servers=broker.kafka_url, compression_type="gzip")
    producer.send("from-kafka", b"value", key=b"key", headers=[("h", b"x")]).get(30)
    producer.close()
    (found,) = broker.messages("from-kafka")
    assert (found.value, found.key) == (b"value", "key")
    assert found.properties["h"] == "x"


def test_a_backlog_counts_messages(broker, client):
    """Those of a batch, over all partitions; waiting for it says what it was."""
    broker.admin.create_topic("counted", partitions=2)
    consumer = client.subscribe("counted", "s")
    producer = client.create_producer("counted", batching_enabled=True)
    for _ in range(10):
        producer.send_async(b"x", None)
    producer.flush()
    broker.wait_for_backlog("counted", "s", 10)
    for _ in range(10):
        consumer.acknowledge(consumer.receive(10_000))
    broker.wait_for_backlog("counted", "s")
    with pytest.raises(AssertionError, match=r"(?s)not 3 after 0.1 s: 0 messages.*last of its 10"):
        broker.wait_for_backlog("counted", "s", 3, timeout_s=0.1)
    with pytest.raises(AssertionError, match="has no subscription 'other'"):
        broker.wait_for_backlog("counted", "other", timeout_s=0.1)
    with pytest.raises(AdminError):
        broker.backlog("absent", "s")


def test_assert_published(broker, client):
    """It returns what fits, and otherwise shows the topic's last messages."""
    producer = client.create_producer("asserted")
    producer.send(b"one", partition_key="a", properties={"kind": "x", "more": "y"})
    producer.send(b"two", partition_key="b")
    (found,) = broker.assert_published("asserted", value="one", key="a", properties={"kind": "x"})
    assert found.value == b"one"
    broker.assert_published("asserted", where=lambda each: each.index == 1, count=1)
    broker.assert_published("asserted", key="z", count=0)
    with pytest.raises(AssertionError) as failure:
        broker.assert_published("asserted", key="z")
    text = str(failure.value)
    assert "'asserted' has no message with key='z'" in text
    assert "b'one'" in text
    assert "key='b'" in text
    with pytest.raises(AssertionError, match="has 2 messages, not 1, with anything"):
        broker.assert_published("asserted", count=1)
    client.create_producer("silent")
    with pytest.raises(AssertionError, match="the topic has no messages"):
        broker.assert_published("silent")
    with pytest.raises(AssertionError, match="does not have 3 messages"):
        broker.wait_for_messages("asserted", 3, timeout_s=0.1)


def test_an_absent_topic_is_named_as_such():
    """A typo in the name is told from a topic without messages, and the topics are listed."""
    with running_broker(storage="memory") as broker:
        with pytest.raises(AssertionError, match="does not exist; the broker has no topics"):
            broker.assert_published("ordres")
        broker.admin.create_topic("orders", partitions=2)
        with pytest.raises(AssertionError, match="has persistent://public/default/orders-partit"):
            broker.assert_published("ordres")
        with pytest.raises(AssertionError, match="the topic has no messages"):
            broker.assert_published("orders")


Maker = Callable[[], Any]


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which temporary folders are made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def busy_port() -> Iterator[int]:
    """A port that another one listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_broker_that_cannot_start_leaves_nothing(temporary: Path, busy_port: int) -> None:
    """Neither folder nor warning, with a `with` block and without, in a thread or a process."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        makers: list[tuple[Maker, type[Exception]]] = [
            (lambda: running_broker(port=busy_port), PortInUseError),
            (lambda: running_broker(http_port=busy_port), PortInUseError),
            (lambda: BrokerProcess("--frobnicate"), BrokerProcessError),
        ]
        for make, error in makers:
            made = make()
            with pytest.raises(error):
                made.start()
            assert list(temporary.iterdir()) == []
            with pytest.raises(error), make():
                pass
            assert list(temporary.iterdir()) == []
            del made
            gc.collect()


def test_a_broker_that_never_ran_has_no_folder(temporary: Path) -> None:
    """It need not even be closed."""
    for made in (running_broker(), BrokerProcess(), PulsarBroker(storage="files")):
        assert list(temporary.iterdir()) == []
        made.close()
    with pytest.raises(BrokerStateError):
        _ = BrokerProcess().data_dir


def test_a_restart_that_fails_keeps_the_data(temporary: Path) -> None:
    """The folder belongs to a broker that ran: the next start finds its data."""
    with running_broker() as broker:
        broker.admin.create_topic("persistent://public/default/kept")
        folder, port = broker.data_dir, int(broker.service_url.rpartition(":")[2])
        broker.stop()
        with socket.create_server(("127.0.0.1", port)), pytest.raises(PortInUseError):
            broker.start()
        assert folder.is_dir()
        broker.start()
        assert broker.data_dir == folder
        assert broker.admin.topics() == ["persistent://public/default/kept"]
    assert list(temporary.iterdir()) == []


def test_two_lives(temporary: Path) -> None:
    """A closed broker may be started again, with a new folder."""
    broker = running_broker()
    for _ in range(2):
        with broker:
            broker.restart()
            assert [broker.data_dir] == list(temporary.iterdir())
        assert list(temporary.iterdir()) == []

"""RawProducer: the caller's bytes, flow, order, refusals, reconnecting."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsemark.broker import Broker, BrokerThread
from pulsemark.client import (
    ConnectionLostError,
    EntryRefusedError,
    RawProducer,
    RequestRefusedError,
    SendRefusedError,
    Service,
    ServiceUrlError,
    UnreachableError,
)
from pulsemark.client.connection import BrokerConnection
from pulsemark.metadata import headers_parsed
from pulsemark.metadata.compression import compress, payloads_opened
from pulsemark.proto.pulsar_api_pb2 import ZLIB, MessageMetadata
from pulsemark.testing import RawClient, running_broker
from pulsemark.testing.raw_messages import (
    batched_message,
    seal,
    unbatched_message,
    with_wrong_checksum,
)
from pulsemark.wire import InvalidTopicNameError

TOPIC = "persistent://public/default/t"


@pytest.fixture
def broker() -> Iterator[BrokerThread]:
    """A broker of its own."""
    with running_broker() as running:
        yield running


def message(number: int) -> bytes:
    """One message with a number."""
    return unbatched_message(b"m%d" % number, publish_time_ms=number, sequence_id=number)


def stored(broker: BrokerThread) -> list[bytes]:
    """What consumers of the topic get."""
    with RawClient.from_url(broker.service_url) as raw:
        consumer = raw.subscribe(TOPIC, "look", durable=False, earliest=True, start_message_id=None)
        consumer.flow(10_000)
        found = consumer.drain()
        while len(more := consumer.drain()):
            found += more
        return [each.headers_and_payload for each in found]


def test_the_callers_bytes_are_published(broker: BrokerThread) -> None:
    """A compressed batch of the caller is stored as it is; neither side parses or opens it."""
    packed = compress(ZLIB, b"0" * 5000)
    header = MessageMetadata(
        producer_name="me", sequence_id=4, publish_time=5, compression=ZLIB,
        uncompressed_size=5000, num_messages_in_batch=3,
    )  # fmt: skip
    entry = seal(header.SerializeToString(), packed)
    before = headers_parsed(), payloads_opened()
    with RawProducer(broker.service_url, "t") as producer:
        assert producer.topic == TOPIC
        assert producer.publish(memoryview(entry), num_messages=3) == 0
        assert producer.publish(bytearray(message(1))) == 3
        receipts = producer.flush()
    assert [(receipt.sequence_id, receipt.entry_id) for receipt in receipts] == [(0, 0), (3, 1)]
    assert (headers_parsed(), payloads_opened()) == before
    assert stored(broker) == [entry, message(1)]


def test_the_end_of_the_block_waits_for_receipts(broker: BrokerThread) -> None:
    """Leaving the block flushes; leaving it with an exception does not wait."""
    with RawProducer(broker.service_url, TOPIC) as producer:
        for number in range(50):
            producer.publish(message(number))
    assert producer.unacknowledged == []
    assert stored(broker) == [message(number) for number in range(50)]
    with (
        pytest.raises(KeyError),
        RawProducer(broker.service_url, TOPIC) as failing,
    ):
        raise KeyError
    failing.close()


def test_the_window_bounds_what_has_no_receipt(broker: BrokerThread) -> None:
    """Neither more entries nor more bytes than allowed wait for receipts, except a single entry."""
    with RawProducer(broker.service_url, TOPIC, window=4) as producer:
        for number in range(30):
            producer.publish(message(number))
            assert len(producer.unacknowledged) <= 4
    size_bytes = len(message(0))
    with RawProducer(broker.service_url, TOPIC, window_bytes=size_bytes * 2) as producer:
        for number in range(9):
            producer.publish(message(number))
            assert len(producer.unacknowledged) <= 2
        producer.flush()
        producer.publish(message(100))
        assert producer.send(message(7)).entry_id > 0


@pytest.mark.parametrize("option", ["window", "window_bytes"])
def test_a_window_holds_something(broker: BrokerThread, option: str) -> None:
    """A window of nothing is an error."""
    with pytest.raises(ValueError, match=option):
        RawProducer(broker.service_url, TOPIC, **{option: 0})  # type: ignore[arg-type]


def test_what_cannot_be_published_is_not_sent(broker: BrokerThread) -> None:
    """A broker's stamp, too many bytes, bad numbers: an error, and the producer goes on."""
    with RawProducer(broker.service_url, TOPIC) as producer:
        with pytest.raises(EntryRefusedError, match="0x0e02"):
            producer.publish(b"\x0e\x02" + message(1))
        with pytest.raises(EntryRefusedError, match="no bytes"):
            producer.publish(b"")
        with pytest.raises(EntryRefusedError, match="the broker takes"):
            producer.publish(bytes(6 * 1024 * 1024))
        with pytest.raises(EntryRefusedError, match="contiguous"):
            producer.publish(memoryview(message(1))[::2])
        for count in (-1, 2**31):
            with pytest.raises(ValueError, match="num_messages"):
                producer.publish(message(1), num_messages=count)
        producer.publish(message(1), sequence_id=10)
        with pytest.raises(ValueError, match="at least 11"):
            producer.publish(message(1), sequence_id=10)
        producer.publish(message(2), sequence_id=12, highest_sequence_id=20)
        assert producer.publish(message(3)) == 21
        assert producer.unacknowledged == [10, 12, 21]
    assert len(stored(broker)) == 3


def test_refusals_are_typed(broker: BrokerThread) -> None:
    """A SEND_ERROR names its code and entry; the others are stored."""
    with RawProducer(broker.service_url, TOPIC) as producer:
        producer.publish(message(1))
        producer.publish(with_wrong_checksum(message(2)))
        producer.publish(message(3))
        with pytest.raises(SendRefusedError, match="ChecksumError") as refused:
            producer.flush()
        assert refused.value.sequence_id == 1
        assert [receipt.sequence_id for receipt in producer.flush()] == [0, 2]
    assert stored(broker) == [message(1), message(3)]


def test_it_goes_on_after_a_lost_connection(broker: BrokerThread) -> None:
    """Entries without a receipt are sent again, in order, before the new ones."""
    slept: list[float] = []
    service = Service(broker.service_url)
    with service, RawProducer(service, TOPIC, sleep=slept.append) as producer:
        name = producer.name
        producer.send(message(0))
        for connection in service.open_connections():
            connection.close()
        for number in range(1, 6):
            producer.publish(message(number))
        assert [receipt.sequence_id for receipt in producer.flush()] == [1, 2, 3, 4, 5]
        assert producer.name == name
    assert slept == [0.1]
    assert stored(broker) == [message(number) for number in range(6)]


def test_it_goes_on_when_the_broker_closes_it(broker: BrokerThread) -> None:
    """A producer that the broker closed is opened again, and sends what the broker dropped."""
    with RawProducer(broker.service_url, TOPIC, sleep=lambda _: None) as producer:
        producer.send(message(0))
        url = f"{broker.http_url}/admin/v2/persistent/public/default/t?force=true"
        with urllib.request.urlopen(urllib.request.Request(url, method="DELETE"), timeout=10):
            pass
        producer.publish(message(1))
        assert [receipt.sequence_id for receipt in producer.flush()] == [1]
    assert stored(broker) == [message(1)]


def test_without_attempts_the_loss_is_an_error(broker: BrokerThread) -> None:
    """The error names the entries whose outcome is open."""
    service = Service(broker.service_url)
    with service:
        producer = RawProducer(service, TOPIC, reconnect_attempts=0)
        producer.send(message(0))
        for connection in service.open_connections():
            connection.close()
        with pytest.raises(ConnectionLostError):
            producer.publish(message(1))
        assert producer.unacknowledged == [1]
        producer.close()
        producer.close()


def test_a_broker_that_is_gone_is_given_up(tmp_path: Path) -> None:
    """After so many attempts, each a little later, the loss is an error."""
    slept: list[float] = []
    with running_broker(data_dir=tmp_path / "d") as broker:
        producer = RawProducer(broker.service_url, TOPIC, reconnect_attempts=7, sleep=slept.append)
        producer.send(message(0))
    with pytest.raises(UnreachableError, match=broker.service_url):
        producer.send(message(1))
    assert slept == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0]
    producer.close()


def test_an_entry_that_ends_each_connection_is_given_up(broker: BrokerThread) -> None:
    """Each reconnection succeeds and the entry ends it: attempts count until a receipt comes."""
    slept: list[float] = []
    producer = RawProducer(broker.service_url, TOPIC, reconnect_attempts=3, sleep=slept.append)
    producer.send(message(0))
    # Too short to be a message: the broker closes the connection.
    producer.publish(b"\x0e\x01")
    with pytest.raises(ConnectionLostError):
        producer.flush()
    assert slept == [0.1, 0.2, 0.4]
    assert producer.unacknowledged == [1]
    producer.close()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://127.0.0.1:6650", "scheme"),
        ("127.0.0.1:6650", "scheme"),
        ("pulsar://", "HOST"),
        ("pulsar://h:99999", "Port|port"),
        ("pulsar://h:1/path", "HOST"),
    ],
)
def test_bad_urls(url: str, reason: str) -> None:
    """What is not a broker's URL is an error with the reason, before anything is connected."""
    with pytest.raises(ServiceUrlError, match=reason):
        RawProducer(url, TOPIC)


def test_other_errors_at_the_opening(broker: BrokerThread) -> None:
    """No broker, no namespace, no name: each has its own error."""
    with pytest.raises(UnreachableError, match=r"cannot connect to pulsar://127.0.0.1:1:"):
        RawProducer("pulsar://127.0.0.1:1", TOPIC)
    with pytest.raises(RequestRefusedError, match="Namespace not found"):
        RawProducer(broker.service_url, "no/where/t")
    with pytest.raises(InvalidTopicNameError):
        RawProducer(broker.service_url, "a/b")


def test_the_first_broker_that_answers_is_used(broker: BrokerThread) -> None:
    """A URL may name several brokers."""
    rest = broker.service_url.removeprefix("pulsar://")
    with RawProducer(f"pulsar://127.0.0.1:1,{rest}", TOPIC) as producer:
        producer.send(message(0))
    assert stored(broker) == [message(0)]


def test_batches_count_as_their_messages(broker: BrokerThread) -> None:
    """The number of messages goes to the broker, which counts the index by it."""
    entry = batched_message([b"a", b"b", b"c"], publish_time_ms=1)
    with RawProducer(broker.service_url, TOPIC) as producer:
        producer.send(entry, num_messages=3)

    async def next_index(running: Broker) -> int:
        return running.services.topics.open_topics[TOPIC].ledger.next_index

    assert broker.call(next_index) == 3


def test_a_broker_that_comes_back_is_found_again(tmp_path: Path) -> None:
    """After an orderly end of the broker the next entry goes to the one that comes back."""
    with running_broker(data_dir=tmp_path / "d") as first:
        port = first.broker.port
        producer = RawProducer(first.service_url, TOPIC, sleep=lambda _: None)
        producer.send(message(0))
    with running_broker(data_dir=tmp_path / "d", port=port) as second:
        assert producer.send(message(1)).sequence_id == 1
        assert stored(second) == [message(0), message(1)]
        producer.close()


@pytest.mark.parametrize("step", ["post", "flush", "wait", "pump"])
def test_an_interruption_leaves_it_usable(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A signal handler that raises anywhere in a call: all entries are stored, in their order."""
    with RawProducer(broker.service_url, TOPIC, timeout_s=20, sleep=lambda _: None) as producer:
        producer.send(message(0))

        def calls() -> None:
            producer.publish(message(1))
            producer.receipts()
            producer.flush()

        with monkeypatch.context() as patched:
            patched.setattr(BrokerConnection, step, interrupted)
            with pytest.raises(KeyboardInterrupt):
                calls()
        assert producer.unacknowledged == [1]
        producer.publish(message(2))
        assert [receipt.sequence_id for receipt in producer.flush()] == [1, 2]
    assert stored(broker) == [message(0), message(1), message(2)]


def interrupted(*_: object) -> None:
    """What a signal handler may do."""
    raise KeyboardInterrupt


def test_nothing_is_published_after_the_end(broker: BrokerThread) -> None:
    """A closed producer does not connect again: it refuses entries, and has no more receipts."""
    producer = RawProducer(broker.service_url, TOPIC)
    producer.publish(message(0))
    producer.close()
    producer.close()
    with pytest.raises(EntryRefusedError, match="the producer was closed"):
        producer.publish(message(1))
    with pytest.raises(ConnectionLostError, match="the producer was closed"):
        producer.flush()
    assert len(stored(broker)) <= 1

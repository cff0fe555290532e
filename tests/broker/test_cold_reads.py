"""Bookies that do not answer hold up those who read from them, and nobody else.

The entries of the topic `cold` were written before the broker was started again, and no bookie
answers reads of them. While a client waits for them, others use another topic.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any

import kafka
import pytest

from pulsemark.broker import BrokerThread
from pulsemark.client import RawMessage
from pulsemark.ledger import StoreOptions, TopicStore
from pulsemark.ledger.bookkeeper.loop_thread import LoopThread
from pulsemark.ledger.bookkeeper.store import BookKeeperStore
from pulsemark.ledger.store_core import StoreSetup
from pulsemark.metadata import SystemClock, payload_of
from pulsemark.proto.pulsar_api_pb2 import CommandSubscribe
from pulsemark.testing import RawClient, running_broker
from pulsemark.wire import MessageId
from tests.support.faulty_coordination import FaultyTree
from tests.support.memory_bookies import MemoryBookies

COLD = "persistent://public/default/cold"
WARM = "persistent://public/default/warm"
ADMIN = "/admin/v2/persistent/public/default/cold"
COUNT = 150
BODIES = [b"%d" % number for number in range(COUNT)]
TYPES = (
    CommandSubscribe.Exclusive,
    CommandSubscribe.Failover,
    CommandSubscribe.Shared,
    CommandSubscribe.Key_Shared,
)


class Bookies:
    """A store's bookies and its ZooKeeper; brokers are started on them one after another."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tree, self.memory = FaultyTree(), MemoryBookies()
        self.waits: list[str] = []
        """What the broker's event loop has waited for."""
        monkeypatch.setattr("pulsemark.broker.server.open_store", self._open)
        run = LoopThread.run

        def noting(thread: LoopThread, work: Any) -> Any:
            if threading.current_thread().name == "pulsemark-broker":
                self.waits.append(work.__qualname__)
            return run(thread, work)

        monkeypatch.setattr(LoopThread, "run", noting)

    def _open(self, _config: Any, _folder: Any, notify: Any, _files: Any) -> TopicStore:
        async def connecting() -> Any:
            return self.tree.session(), self.memory.client()

        options = StoreOptions(ledger_entries=40)
        return BookKeeperStore.open_with(
            connecting,
            ledgers_root="/ledgers",
            root="/one",
            ledger_options=None,
            setup=StoreSetup(SystemClock(), options, notify, threaded=True),
        )

    def stop(self) -> None:
        """No bookie answers reads of what was written until now."""
        self.memory.stopped = set(self.memory.ledgers)

    def go_on(self) -> None:
        """They answer again."""
        self.memory.stopped = set()


@pytest.fixture
def bookies(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bookies]:
    """Bookies that have the topic `cold`, with a subscription that has got some of it."""
    made = Bookies(monkeypatch)
    with running_broker() as broker, RawClient.from_url(broker.service_url) as client:
        consumer = client.subscribe(COLD, "slow", sub_type=CommandSubscribe.Shared)
        producer = client.create_producer(COLD)
        for body in BODIES:
            producer.send(body, key=body.decode())
        consumer.flow(COUNT)
        got = consumer.receive_many(COUNT)
        # Above the first entry, so that the cursor keeps them one by one.
        for message in (*got[2:9], *got[12:15]):
            consumer.ack(message.message_id, wait=True)
    yield made
    made.go_on()


@pytest.fixture
def broker(bookies: Bookies) -> Iterator[BrokerThread]:
    """A broker that was started after that."""
    with running_broker(kafka_port=0, grpc_port=0) as running:
        with RawClient.from_url(running.service_url) as client:
            # It is open, and the bookies with its entries answered meanwhile.
            client.create_producer(COLD).close()
        yield running


def meanwhile(broker: BrokerThread, bookies: Bookies, work: Callable[[], Any]) -> Any:
    """Do work that waits for bookies, use another topic while it waits, and return its result."""
    bookies.stop()
    with ThreadPoolExecutor(1) as pool:
        future: Future[Any] = pool.submit(work)
        try:
            until_s = time.monotonic() + 20
            while not bookies.memory.waiting_reads and not future.done():
                assert time.monotonic() < until_s
                time.sleep(0.001)
            assert bookies.memory.waiting_reads, f"nothing was read: {future.result()}"
            use_another_topic(broker)
            assert not future.done()
        finally:
            bookies.go_on()
        return future.result(20)


def data(message: RawMessage) -> bytes:
    """A message's payload."""
    return bytes(payload_of(message.headers_and_payload))


def use_another_topic(broker: BrokerThread) -> None:
    """Produce, consume, acknowledge and ask; everything is answered."""
    with RawClient.from_url(broker.service_url) as client:
        client.ping(10)
        consumer = client.subscribe(WARM, "fast")
        producer = client.create_producer(WARM)
        producer.send(b"warm")
        consumer.flow(10)
        message = consumer.receive(10)
        assert data(message) == b"warm"
        consumer.ack(message.message_id, wait=True)
        consumer.unsubscribe()
    path = "/admin/v2/persistent/public/default/warm/stats"
    assert rest(broker, "GET", path)["msgInCounter"] > 0


def rest(broker: BrokerThread, method: str, path: str, body: Any = None) -> Any:
    """The answer to a REST call; None without a body."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(broker.http_url + path, data, method=method)
    if data is not None:
        request.add_header("content-type", "application/json")
    with urllib.request.urlopen(request, timeout=30) as answer:
        found = answer.read()
    try:
        return json.loads(found) if found else None
    except ValueError:
        return found


@pytest.mark.parametrize("sub_type", TYPES)
def test_consumers_catch_up(broker, bookies, sub_type):
    """A consumer of any type that waits for bookies holds up nobody, and gets everything once."""

    def consume() -> list[bytes]:
        with RawClient.from_url(broker.service_url) as client:
            consumer = client.subscribe(COLD, "new", sub_type=sub_type, earliest=True)
            consumer.flow(COUNT)
            return [data(message) for message in consumer.receive_many(COUNT, 20)]

    assert meanwhile(broker, bookies, consume) == BODIES
    assert bookies.waits == []


def test_a_reader_and_its_last_message_id(broker, bookies):
    """GET_LAST_MESSAGE_ID waits for the last entry, a reader for its first one."""

    def read() -> tuple[int, bytes]:
        with RawClient.from_url(broker.service_url) as client:
            reader = client.subscribe(COLD, "reader", durable=False, earliest=True)
            last, _ = reader.get_last_message_id()
            reader.flow(1)
            return last.entry_id, data(reader.receive(20))

    assert meanwhile(broker, bookies, read) == ((COUNT - 1) % 40, b"0")
    assert bookies.waits == []


def test_seeks(broker, bookies):
    """A seek by time searches on bookies; one by id needs nothing of them."""
    found = rest(broker, "GET", f"{ADMIN}/entries?index=100")["entries"]
    at = next(one for one in found if one["index"] == 100)

    def seek(**place: Any) -> bytes:
        with RawClient.from_url(broker.service_url) as client:
            consumer = client.subscribe(COLD, "seeking")
            consumer.seek(**place)
            consumer.resubscribe()
            consumer.flow(1)
            return data(consumer.receive(20))

    assert meanwhile(broker, bookies, lambda: seek(publish_time_ms=1)) == b"0"
    place = MessageId(at["ledgerId"], at["entryId"])
    assert seek(message_id=place) == b"100"
    assert bookies.waits == []


def test_acknowledgements_read_nothing(broker, bookies):
    """Entries that no memory has any more are acknowledged, one by one, in part and up to one,
    while bookies do not answer; what is delivered afterwards, and counted, is right.
    """
    found = rest(broker, "GET", f"{ADMIN}/entries?index=0&after=50")["entries"]
    ids = [MessageId(one["ledgerId"], one["entryId"]) for one in found]
    bookies.stop()
    with RawClient.from_url(broker.service_url) as client:
        consumer = client.subscribe(COLD, "slow", sub_type=CommandSubscribe.Shared)
        consumer.ack(ids[0], ids[20], ids[22], ids[1])
        consumer.close()
        consumer = client.subscribe(COLD, "slow")
        consumer.ack(ids[24], cumulative=True)
        use_another_topic(broker)
        bookies.go_on()
        consumer.flow(COUNT)
        got = [data(one) for one in consumer.receive_many(COUNT - 25, 20)]
        assert got == BODIES[25:]
    stats = rest(broker, "GET", f"{ADMIN}/internalStats?ownFigures=true")
    assert stats["cursors"]["slow"]["messagesBacklog"] == COUNT - 25
    assert bookies.waits == []


REQUESTS: dict[str, tuple[str, str, Any]] = {
    "stats": ("GET", f"{ADMIN}/stats", None),
    "earliest times": ("GET", f"{ADMIN}/stats?getEarliestTimeInBacklog=true", None),
    "internal stats": ("GET", f"{ADMIN}/internalStats?ownFigures=true", None),
    "internal info": ("GET", f"{ADMIN}/internal-info", None),
    "peek": ("GET", f"{ADMIN}/subscription/slow/position/3", None),
    "examine": ("GET", f"{ADMIN}/examinemessage?initialPosition=earliest", None),
    "last message id": ("GET", f"{ADMIN}/lastMessageId", None),
    "by time": ("GET", f"{ADMIN}/messageid/1", None),
    "entries": ("GET", f"{ADMIN}/entries?index=77", None),
    "timeline": ("GET", f"{ADMIN}/timeline", None),
    "backlog size": ("PUT", f"{ADMIN}/backlogSize", {"ledgerId": 0, "entryId": 0}),
    "analyze": ("POST", f"{ADMIN}/subscription/slow/analyzeBacklog", None),
    "expire": ("POST", f"{ADMIN}/subscription/slow/expireMessages/0", None),
    "reset to a time": ("POST", f"{ADMIN}/subscription/slow/resetcursor/1", None),
    "metrics of brokers": ("GET", "/admin/v2/broker-stats/metrics", None),
    "destinations": ("GET", "/admin/v2/broker-stats/topics", None),
    "metrics": ("GET", "/metrics", None),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_rest(broker, bookies, name):
    """A REST call that needs what is on bookies waits alone, and answers as it does later."""
    method, path, body = REQUESTS[name]
    found = meanwhile(broker, bookies, lambda: rest(broker, method, path, body))
    if name in ("analyze", "timeline", "peek", "examine", "by time", "backlog size"):
        assert found == rest(broker, method, path, body)
    assert bookies.waits == []


def test_kafkas_clients(broker, bookies):
    """Fetches, and the search for their offset, wait alone; so does a search by time."""

    def fetch() -> tuple[int, list[bytes]]:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=broker.kafka_url, consumer_timeout_ms=20_000, api_version=(2, 0)
        )
        partition = kafka.TopicPartition("cold", 0)
        consumer.assign([partition])
        found = consumer.offsets_for_times({partition: 1})[partition]
        consumer.seek(partition, 77)
        got = [message.value for message in islice(consumer, COUNT - 77)]
        consumer.close()
        return found.offset, got

    assert meanwhile(broker, bookies, fetch) == (0, BODIES[77:])
    assert bookies.waits == []


def test_a_compacted_form(broker, bookies):
    """Its positions are on bookies, too: who subscribes, reads, acknowledges and seeks in it waits
    alone.
    """
    rest(broker, "PUT", f"{ADMIN}/compaction")
    until_s = time.monotonic() + 20
    while rest(broker, "GET", f"{ADMIN}/compaction")["status"] != "SUCCESS":
        assert time.monotonic() < until_s
        time.sleep(0.01)
    rest(broker, "PUT", f"{ADMIN}/unload")

    def consume() -> list[bytes]:
        with RawClient.from_url(broker.service_url) as client:
            consumer = client.subscribe(COLD, "view", read_compacted=True, earliest=True)
            consumer.flow(COUNT)
            got = consumer.receive_many(COUNT, 20)
            consumer.ack(got[9].message_id, cumulative=True)
            consumer.ack(got[12].message_id)
            consumer.seek(message_id=got[20].message_id)
            consumer.resubscribe()
            consumer.flow(1)
            return [data(one) for one in (*got, consumer.receive(20))]

    assert meanwhile(broker, bookies, consume) == [*BODIES, BODIES[20]]
    for method, path in (
        ("GET", f"{ADMIN}/stats"),
        ("GET", f"{ADMIN}/internalStats?ownFigures=true"),
        ("GET", f"{ADMIN}/subscription/view/position/2"),
        ("POST", f"{ADMIN}/subscription/view/skip/3"),
        ("POST", f"{ADMIN}/subscription/view/analyzeBacklog"),
        ("POST", f"{ADMIN}/subscription/view/skip_all"),
    ):
        rest(broker, method, path)
    assert bookies.waits == []


def test_a_topic_is_unloaded_while_entries_are_fetched(broker, bookies):
    """Unloading does not wait for them, and what comes afterwards goes to nobody."""
    bookies.stop()
    with RawClient.from_url(broker.service_url) as client:
        consumer = client.subscribe(COLD, "new", earliest=True)
        consumer.flow(COUNT)
        client.ping(10)
        rest(broker, "PUT", f"{ADMIN}/unload")
        use_another_topic(broker)
        bookies.go_on()
        use_another_topic(broker)
        assert consumer.drain() == []
        consumer.resubscribe()
        consumer.flow(COUNT)
        assert [data(one) for one in consumer.receive_many(COUNT, 20)] == BODIES
    assert bookies.waits == []


def test_the_broker_ends_while_entries_are_fetched(bookies):
    """Closing the broker does not wait for bookies that do not answer reads."""
    with running_broker() as broker, RawClient.from_url(broker.service_url) as client:
        client.create_producer(COLD).close()
        bookies.stop()
        consumer = client.subscribe(COLD, "new", earliest=True)
        consumer.flow(COUNT)
        client.ping(10)
    bookies.go_on()
    assert bookies.waits == []

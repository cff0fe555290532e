"""Non-persistent topics: who gets a message, who does not, and what is kept (nothing)."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import pytest

from pulsemark.client import RequestRefusedError
from pulsemark.proto.pulsar_api_pb2 import ZSTD, CommandAck
from pulsemark.proto.pulsar_api_pb2 import CommandSubscribe as Sub
from pulsemark.testing import RawClient
from pulsemark.testing.raw_messages import unbatched_message
from pulsemark.wire import MessageId, commands

NOWHERE = MessageId(0, 0)


@pytest.fixture
def name(topic):
    """A non-persistent topic that no other test uses."""
    return topic.replace("persistent://", "non-persistent://")


def rest(broker, method, path, body=None):
    """Status and JSON of a REST call."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{broker.http_url}/admin/v2/{path}", data, method=method)
    request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            status, raw = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        status, raw = error.code, error.read()
    return status, json.loads(raw) if raw.strip().startswith((b"{", b"[")) else raw


def path_of(name):
    """The topic's path below /admin/v2."""
    return name.replace("://", "/")


def payloads(consumer):
    """What a consumer got until now, without the header."""
    return [bytes(message.headers_and_payload)[-1:] for message in consumer.drain()]


def test_receipts_name_no_place_and_messages_go_to_who_has_permits(raw, name):
    """The receipt is (0, 0); without permits a message is dropped, and never sent later."""
    producer = raw.create_producer(name)
    consumer = raw.subscribe(name, "s", sub_type=Sub.Shared)
    receipt = producer.send(b"0")
    assert (receipt.ledger_id, receipt.entry_id) == (0, 0)
    consumer.flow(2)
    for payload in (b"1", b"2", b"3"):
        producer.send(payload)
    assert payloads(consumer) == [b"1", b"2"]
    consumer.flow(1)
    assert payloads(consumer) == []
    producer.send(b"4")
    assert payloads(consumer) == [b"4"]


@pytest.mark.parametrize("kind", [Sub.Exclusive, Sub.Failover, Sub.Shared, Sub.Key_Shared])
def test_every_type_of_subscription_gets_messages(raw, name, kind):
    """Each subscription gets its own copy, in order."""
    producer = raw.create_producer(name)
    consumers = [raw.subscribe(name, f"s{number}", sub_type=kind) for number in range(2)]
    for consumer in consumers:
        consumer.flow(10)
    for number in range(5):
        producer.send(b"%d" % number)
    for consumer in consumers:
        assert payloads(consumer) == [b"%d" % number for number in range(5)]


@pytest.mark.parametrize("kind", [Sub.Exclusive, Sub.Shared, Sub.Key_Shared])
def test_a_batch_that_cannot_be_opened_gives_its_permits_back(raw, name, kind):
    """Its client counts it as one message, so it would get nothing more, for good."""
    forged = unbatched_message(
        b"x" * 100,
        publish_time_ms=1,
        num_messages_in_batch=500_000,
        compression=ZSTD,
        uncompressed_size=5_000_000,
    )
    producer = raw.create_producer(name)
    consumer = raw.subscribe(name, "s", sub_type=kind)
    consumer.flow(1_000)
    for _ in range(3):
        producer.send_raw(forged, num_messages=500_000)
        broken = consumer.receive()
        consumer.ack(broken.message_id, validation_error=CommandAck.DecompressionError)
        producer.send(b"n")
        assert payloads(consumer) == [b"n"]


def test_shared_consumers_take_turns(raw, name):
    """Round robin among those that have permits; the others get nothing."""
    producer = raw.create_producer(name)
    one, two = (raw.subscribe(name, "s", sub_type=Sub.Shared) for _ in range(2))
    one.flow(1)
    two.flow(3)
    for number in range(6):
        producer.send(b"%d" % number)
    assert (payloads(one), payloads(two)) == ([b"0"], [b"1", b"2", b"3"])


def test_failover_goes_to_the_first_name(raw, name):
    """The active consumer gets all; when it leaves, the next one does."""
    producer = raw.create_producer(name)
    b = raw.subscribe(name, "s", sub_type=Sub.Failover, consumer_name="b")
    a = raw.subscribe(name, "s", sub_type=Sub.Failover, consumer_name="a")
    for consumer in (a, b):
        consumer.flow(10)
    producer.send(b"0")
    assert (payloads(a), payloads(b)) == ([b"0"], [])
    a.close()
    producer.send(b"1")
    assert payloads(b) == [b"1"]


def test_a_key_stays_with_one_consumer(raw, name):
    """Key_Shared: all messages of a key go to the same consumer."""
    producer = raw.create_producer(name)
    consumers = [raw.subscribe(name, "s", sub_type=Sub.Key_Shared) for _ in range(3)]
    for consumer in consumers:
        consumer.flow(100)
    for number in range(40):
        producer.send(b"%d" % (number % 8), key=f"k{number % 8}")
    got = [set(payloads(consumer)) for consumer in consumers]
    assert sum(len(one) for one in got) == 8
    assert set().union(*got) == {b"%d" % number for number in range(8)}


def test_exclusive_and_other_types_are_refused(raw, name):
    """A second Exclusive consumer, and one of another type, are ConsumerBusy."""
    raw.subscribe(name, "s")
    for kind in (Sub.Exclusive, Sub.Shared):
        with pytest.raises(RequestRefusedError, match="ConsumerBusy"):
            raw.subscribe(name, "s", sub_type=kind)


def test_commands_about_stored_messages(raw, name):
    """Seek, acknowledgement and readers succeed; there is no last message id."""
    producer = raw.create_producer(name)
    consumer = raw.subscribe(name, "s", sub_type=Sub.Shared)
    consumer.flow(5)
    producer.send(b"0")
    [message] = consumer.drain()
    consumer.ack(message.message_id)
    raw.request(lambda r: commands.seek(consumer.consumer_id, r, message_id=NOWHERE))
    with pytest.raises(RequestRefusedError, match="UnknownError"):
        consumer.get_last_message_id()
    reader = raw.subscribe(name, "r", durable=False, start_message_id=MessageId(-1, -1))
    reader.flow(1)
    producer.send(b"1")
    assert payloads(reader) == [b"1"]
    consumer.unsubscribe()
    with pytest.raises(RequestRefusedError, match="readCompacted"):
        raw.subscribe(name, "c", read_compacted=True)


def test_topics_of_a_namespace_by_mode(broker, raw):
    """GET_TOPICS and REST list persistent, non-persistent or all topics."""
    rest(broker, "PUT", "namespaces/public/modes")
    stored, memory = (f"{domain}://public/modes/t" for domain in ("persistent", "non-persistent"))
    for name in (stored, memory):
        raw.create_producer(name)
    for mode, names in {0: [stored], 1: [memory], 2: [stored, memory]}.items():
        found = raw.request(
            lambda r, mode=mode: commands.get_topics_of_namespace("public/modes", r, mode)
        )
        assert list(found.topics) == names
    assert rest(broker, "GET", "non-persistent/public/modes") == (200, [memory])
    assert rest(broker, "GET", "persistent/public/modes") == (200, [stored])


def test_partitioned_topics_in_memory(broker, raw, name):
    """Partitions are made when they are used; one beyond the number does not exist."""
    path = path_of(name)
    assert rest(broker, "PUT", f"{path}/partitions", 2)[0] == 204
    assert raw.partitions(name) == 2
    producer = raw.create_producer(f"{name}-partition-1")
    with pytest.raises(RequestRefusedError, match="TopicNotFound"):
        raw.create_producer(f"{name}-partition-2")
    consumer = raw.subscribe(f"{name}-partition-1", "s")
    consumer.flow(1)
    producer.send(b"0")
    [message] = consumer.drain()
    assert message.message_id.partition == 1
    status, stats = rest(broker, "GET", f"{path}/partitioned-stats")
    assert (status, stats["msgInCounter"]) == (200, 1)
    assert rest(broker, "DELETE", f"{path}/partitions")[0] == 412
    assert rest(broker, "DELETE", f"{path}/partitions?force=true")[0] == 204
    assert rest(broker, "GET", f"{path}/partitions")[0] == 404


def test_stats_count_what_was_dropped(broker, raw, name):
    """msgDropRate and the counter are there; statuses of routes are Pulsar's."""
    path = path_of(name)
    assert rest(broker, "GET", f"{path}/stats")[0] == 404
    assert rest(broker, "PUT", path)[0] == 204
    assert rest(broker, "PUT", path)[0] == 409
    producer = raw.create_producer(name)
    consumer = raw.subscribe(name, "s", sub_type=Sub.Shared)
    consumer.flow(1)
    for _ in range(3):
        producer.send(b"x")
    status, stats = rest(broker, "GET", f"{path}/stats?ownFigures=true")
    assert status == 200
    assert stats["subscriptions"]["s"]["msgDropCounter"] == 2
    assert "msgDropRate" in stats
    assert rest(broker, "GET", f"{path}/internalStats")[0] == 200
    assert rest(broker, "GET", f"{path}/subscriptions") == (200, ["s"])
    assert rest(broker, "GET", f"{path}/lastMessageId")[0] == 405
    assert rest(broker, "GET", f"{path}/subscription/s/position/1")[0] == 405
    assert rest(broker, "POST", f"{path}/terminate")[0] == 406
    assert rest(broker, "PUT", f"{path}/subscription/new")[0] == 400
    assert rest(broker, "DELETE", f"{path}/subscription/s")[0] == 412
    assert rest(broker, "DELETE", path)[0] == 412
    assert rest(broker, "PUT", f"{path}/unload")[0] == 204
    assert rest(broker, "GET", f"{path}/stats")[0] == 404


def test_nothing_is_stored(broker, raw, name):
    """A flood leaves no ledger, and a consumer that comes later gets none of it."""
    producer = raw.create_producer(name)
    slow = raw.subscribe(name, "slow", sub_type=Sub.Shared)
    for _ in range(50):
        producer.send(bytes(10_000))
    late = raw.subscribe(name, "late", sub_type=Sub.Shared, earliest=True)
    late.flow(100)
    slow.flow(100)
    assert (late.drain(), slow.drain()) == ([], [])
    assert name not in broker.broker.store.topic_names()


def test_a_client_that_does_not_read_costs_a_bounded_amount(broker, raw, name):
    """Where a consumer's connection takes no more data, messages are dropped, not kept."""
    producer = raw.create_producer(name)
    with RawClient.from_url(broker.service_url) as stalled:
        consumer = stalled.subscribe(name, "s", sub_type=Sub.Shared)
        consumer.flow(1_000_000)
        stalled.ping()
        for _ in range(400):
            producer.send(bytes(200_000))
        [session] = [s for s in broker.broker.services.sessions if s.consumers]
        limit_bytes = broker.broker.config.write_buffer_high_water_bytes
        assert session.unsent_bytes() <= limit_bytes + 10 * 200_000
        _, stats = rest(broker, "GET", f"{path_of(name)}/stats?ownFigures=true")
        assert stats["subscriptions"]["s"]["msgDropCounter"] > 0


def test_the_official_client(client, name):
    """Producer, Shared consumer and reader of the official client work on such a topic."""
    consumer = client.subscribe(name, "s")
    client.create_producer(name).send(b"hello")
    message = consumer.receive(timeout_millis=10_000)
    assert message.data() == b"hello"
    consumer.acknowledge(message)

"""Tags in the broker: from the producer, from the message, and delivered to consumers."""

from __future__ import annotations

import pulsar
import pytest

from pulsemark.ledger import EARLIEST
from pulsemark.metadata import StamperChain, headers_parsed, peek, split, tags_of
from pulsemark.proto.pulsar_api_pb2 import FeatureFlags
from pulsemark.testing import RawClient, running_broker
from pulsemark.testing.raw_messages import batched_message, unbatched_message

SYSTEM_TAGS = ["message-count", "has-keys", "raw-size", "producer", "send-time", "broker"]
EVERYTHING = ["broker-time", "index", *SYSTEM_TAGS, "property-tags:service,region"]
ASKS = FeatureFlags(supports_broker_entry_metadata=True)


def set_policy(http, topic, **value):
    """Set the topic's policy."""
    path = f"/admin/v2/{topic.replace('://', '/')}/brokerEntryMetadata"
    answer = http("POST", path, value)
    assert answer.status == 204, answer.body


def stored_tags(broker, topic):
    """The tags of each stored entry."""

    async def read(running):
        return running.services.topics.open_topics[topic].ledger.read(EARLIEST)

    return [tags_of(entry.prefix) for entry in broker.call(read)]


def test_official_client_with_every_stamper(broker, http, client, topic):
    """Batches and single messages of an official client are tagged, also from its properties."""
    make = {"properties": {"service": "shop", "region": "us"}, "producer_name": "till"}
    client.create_producer(topic).close()
    set_policy(http, topic, stampers=EVERYTHING)
    batching = client.create_producer(topic, **make, block_if_queue_full=True,
                                      batching_enabled=True, batching_max_publish_delay_ms=500,
                                      compression_type=pulsar.CompressionType.LZ4)  # fmt: skip
    for _ in range(3):
        batching.send_async(b"a" * 1000, None, properties={"region": "inside the payload"})
    batching.flush()
    batching.close()
    single = client.create_producer(topic, **make, batching_enabled=False)
    single.send(b"b" * 10, partition_key="k", properties={"region": "eu"})
    batch, one = stored_tags(broker, topic)
    name = broker.service_url.removeprefix("pulsar://")
    assert batch.pop("raw_size_bytes") > 3000
    assert batch.pop("send_time_ms") <= one.pop("send_time_ms")
    common = {"producer_name": "till", "broker_name": name, "service": "shop"}
    assert batch == {"message_count": 3, "region": "us", **common}
    assert one == {
        "message_count": 1, "raw_size_bytes": 10, "has_keys": True, "region": "eu", **common
    }  # fmt: skip


def test_a_batch_by_key_has_keys(broker, http, client, topic):
    """A client that gathers messages by key says so in the batch's header."""
    client.create_producer(topic).close()
    set_policy(http, topic, stampers=["has-keys"])
    producer = client.create_producer(topic, batching_enabled=True,
                                      batching_type=pulsar.BatchingType.KeyBased,
                                      batching_max_publish_delay_ms=500)  # fmt: skip
    for key in ("x", "y", "x"):
        producer.send_async(b"v", None, partition_key=key)
    producer.flush()
    assert stored_tags(broker, topic) == [{"has_keys": True}] * 2


def test_keys_inside_a_payload_are_not_seen(broker, http, client, topic):
    """A plain batch has keys if its first message has one: that is all its header says."""
    client.create_producer(topic).close()
    set_policy(http, topic, stampers=["has-keys", "message-count"])
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=500
    )
    for keys in (["x", None], [None, "x"]):
        for key in keys:
            producer.send_async(b"v", None, partition_key=key)
        producer.flush()
    with_key, without = stored_tags(broker, topic)
    assert with_key == {"message_count": 2, "has_keys": True}
    assert without == {"message_count": 2}


class Recording:
    """A plugin's stamper that records what it gets."""

    name = "recording"

    def __init__(self):
        self.contexts = []

    def stamp(self, context, metadata):
        """Keep the context."""
        self.contexts.append(context)


def test_what_a_plugin_gets_of_the_sender(broker, raw, topic):
    """A stamper gets the connection's names and properties, and cannot change them."""
    producer = raw.create_producer(topic, producer_name="till", properties={"region": "eu"})
    recording = Recording()

    async def use(running):
        ledger = running.services.topics.open_topics[topic].ledger
        ledger.stampers = StamperChain([recording]).at_broker("here:6650")

    broker.call(use)
    producer.send(b"x")
    (context,) = recording.contexts
    sender = context.sender
    assert (sender.producer_name, dict(sender.properties)) == ("till", {"region": "eu"})
    assert sender.client_version
    assert sender.address.startswith("/127.0.0.1:")
    assert (context.topic, context.broker_name, context.is_message) == (topic, "here:6650", True)
    with pytest.raises(TypeError):
        sender.properties["region"] = "us"


class TestDelivery:
    FIELDS = ("application_tags", "producer_name")

    @pytest.fixture
    def exposing(self):
        """A broker that hands entry metadata to clients that ask."""
        with running_broker(
            exposing_broker_entry_metadata_to_client_enabled=True, stampers=tuple(EVERYTHING)
        ) as broker:
            yield broker

    def deliver(self, broker, topic, flags):
        """The frames of one entry with tags."""
        with RawClient.from_url(broker.service_url, feature_flags=flags) as client:
            producer = client.create_producer(topic, properties={"service": "shop"})
            body = batched_message([b"1", b"2"], publish_time_ms=1)
            producer.send_raw(body, num_messages=2)
            consumer = client.subscribe(topic, f"s-{flags}", earliest=True)
            consumer.flow(10)
            frame = consumer.receive()
            assert bytes(split(frame.headers_and_payload)[1]) == body
            return frame.headers_and_payload

    def test_time_and_index_unless_a_policy_says_more(self, exposing, topic):
        """Whatever an entry carries, clients that ask get fields 1 and 2."""
        metadata = peek(self.deliver(exposing, topic, ASKS))
        assert metadata is not None
        assert [field.number for field, _ in metadata.ListFields()] == [1, 2]

    def test_what_the_policy_names(self, exposing, topic):
        """The policy's fields come along for clients that ask, at once; others get no prefix."""

        async def set_it(running):
            from pulsemark.broker.policies.own_policies import STAMPS

            topics = running.services.topics
            name = topics.parse(topic)
            await topics.open(name, create=True)
            value = {"stampers": EVERYTHING, "delivered": list(self.FIELDS)}
            await topics.policies[STAMPS].set(name, value)
            return topics.policies.applied(name, STAMPS) == value

        assert exposing.call(set_it)
        metadata = peek(self.deliver(exposing, topic, ASKS))
        assert metadata is not None
        assert [field.number for field, _ in metadata.ListFields()] == [1, 2, 109, 110]
        assert metadata.application_tags[0].value == b"shop"
        assert peek(self.deliver(exposing, topic, None)) is None


@pytest.mark.parametrize("stampers", [["broker-time", "index"], EVERYTHING])
def test_official_consumers_are_not_disturbed(make_client, topic, stampers):
    """An official consumer reads entries with all tags delivered as it reads any other."""
    with running_broker(
        exposing_broker_entry_metadata_to_client_enabled=True, stampers=tuple(stampers)
    ) as broker:
        client = make_client(broker.service_url)
        consumer = client.subscribe(topic, "s")

        async def deliver_all(running):
            fields = frozenset(range(1, 20_000))
            running.services.topics.open_topics[topic].delivered_fields = fields

        broker.call(deliver_all)
        producer = client.create_producer(topic, properties={"service": "shop"})
        for number in range(5):
            producer.send_async(b"%d" % number, None, properties={"region": "eu"})
        producer.flush()
        received = [consumer.receive(5000) for _ in range(5)]
        assert [message.data() for message in received] == [b"0", b"1", b"2", b"3", b"4"]
        assert received[0].properties() == {"region": "eu"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"delivered": "index"}, "list of fields"),
        ({"delivered": [1]}, "list of fields"),
        ({"delivered": ["room"]}, "'room'"),
        ({"delivered": ["0"]}, "'0'"),
        ({"delivered": ["application_tags"] * 65}, "65"),
        ({"deliver": []}, "object"),
    ],
)
def test_fields_that_cannot_be_delivered(http, raw, topic, change, reason):
    """A policy that names no field is refused with the reason, and nothing changes."""
    raw.create_producer(topic)
    path = f"/admin/v2/{topic.replace('://', '/')}/brokerEntryMetadata"
    answer = http("POST", path, {"stampers": ["index"], **change})
    assert (answer.status, reason in answer.json["reason"]) == (400, True), answer.body
    assert http("GET", path).body == b""


class TestWhatIsParsed:
    BODIES = (
        (unbatched_message(b"1", publish_time_ms=1), 1),
        (batched_message([b"1", b"2"], publish_time_ms=1), 2),
    )

    def publish(self, raw, topic):
        """Publish ten entries."""
        producer = raw.create_producer(topic)
        for _ in range(5):
            for body, count in self.BODIES:
                producer.send_raw(body, num_messages=count)

    @pytest.mark.parametrize(
        ("stampers", "parses"),
        [
            (["broker-time", "index"], 0),
            (["broker-time", "index", "message-count", "producer", "broker"], 0),
            (EVERYTHING, 10),
            # Without broker time an entry's time is its publish time (PIP-70), in the header.
            ([], 10),
            (["index", "send-time", "raw-size"], 10),
        ],
    )
    def test_a_publish(self, http, raw, topic, stampers, parses):
        """The header of a publish is parsed only if something needs it, and then once."""
        raw.create_producer(topic)
        set_policy(http, topic, stampers=stampers)
        before = headers_parsed()
        self.publish(raw, topic)
        assert headers_parsed() - before == parses

    @pytest.mark.parametrize("sub_type", ["Exclusive", "Failover"])
    def test_an_exclusive_delivery(self, raw, topic, sub_type):
        """Delivering an entry to the only consumer parses no header."""
        self.publish(raw, topic)
        before = headers_parsed()
        consumer = raw.subscribe(topic, "s", sub_type=sub_type, earliest=True)
        consumer.flow(100)
        assert len(consumer.receive_many(10)) == 10
        assert headers_parsed() == before


class TestStampOverRest:
    def path(self, topic, receipt):
        """The admin interface's path of an entry's stamp."""
        entry = f"ledger/{receipt.ledger_id}/entry/{receipt.entry_id}"
        return f"/admin/v2/{topic.replace('://', '/')}/{entry}/stamp"

    def test_a_stamp(self, http, raw, topic):
        """The answer has one entry's index, time and tags, without its payload."""
        producer = raw.create_producer(topic, properties={"region": "eu"})
        set_policy(http, topic, stampers=["broker-time", "index", "property-tags:region"])
        body = batched_message([b"1", b"2"], publish_time_ms=1)
        receipt = producer.send_raw(body, num_messages=2)
        shown = http("GET", self.path(topic, receipt)).json
        assert shown.pop("brokerTimestamp") == shown.pop("appendTime") > 0
        assert shown == {
            "ledgerId": receipt.ledger_id,
            "entryId": receipt.entry_id,
            "kind": "data",
            "firstIndex": 0,
            "index": 1,
            "messageCount": 2,
            "tags": {"region": "eu"},
        }

    def test_without_a_stamp(self, http, raw, topic):
        """An unstamped entry has an index, but no broker time."""
        producer = raw.create_producer(topic)
        set_policy(http, topic, stampers=[])
        shown = http("GET", self.path(topic, producer.send(b"x"))).json
        assert (shown["index"], shown["brokerTimestamp"], shown["tags"]) == (0, None, {})

    def test_what_is_not_there(self, http, raw, topic):
        """A missing entry or topic is 404, a number that is not valid too."""
        receipt = raw.create_producer(topic).send(b"x")
        path = self.path(topic, receipt)
        assert http("GET", path.replace("/entry/0", "/entry/1")).status == 404
        assert http("GET", path.replace("/entry/0", "/entry/x")).status == 404
        assert http("GET", path.replace(topic.rpartition("/")[2], "none")).status == 404

"""One topic with stamped and unstamped entries, seen by everything that reads it.

The broker's clock stands where the tests put it, producers' clocks are wrong in both directions,
and the policy is switched between messages. What an entry's time is follows PIP-70: broker time if
it was stamped with it, else the producer's publish time.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import pulsar
import pytest

from pulsemark.broker.policies.own_policies import STAMPS
from pulsemark.cli import main
from pulsemark.client import SendRefusedError
from pulsemark.finder import SearchMethod, SeekClient
from pulsemark.metadata import (
    BrokerEntryMetadata,
    add_application_tags,
    has_prefix,
    pack,
    peek,
    split,
)
from pulsemark.proto.pulsar_api_pb2 import FeatureFlags
from pulsemark.testing import RawClient, SettableClock, running_broker
from pulsemark.testing.raw_messages import BatchMember, batched_message, unbatched_message

START_MS = 1_700_000_000_000
MINUTE_MS = 60_000
ASKS = FeatureFlags(supports_broker_entry_metadata=True)
PLAIN, OFF, ONLY_INDEX = ("broker-time", "index"), (), ("index",)
TAGS, ONLY_TAGS = ("broker-time", "index", "property-tags:region"), ("property-tags:region",)

#: Stampers, and how far the producer's clock is off.
SCRIPT = [
    (PLAIN, 0),
    (OFF, +4 * MINUTE_MS),
    (OFF, -7 * MINUTE_MS),
    (PLAIN, +4 * MINUTE_MS),
    (ONLY_INDEX, -7 * MINUTE_MS),
    (TAGS, 0),
    (ONLY_TAGS, +5 * MINUTE_MS),
    (OFF, 0),
    (PLAIN, -7 * MINUTE_MS),
    (OFF, +1),
]


@dataclass(frozen=True)
class Sent:
    """A message, and the time by which it is to be found."""

    payload: bytes
    time_ms: int
    has_time: bool
    has_index: bool


@pytest.fixture(scope="module")
def clock():
    """The clock of this module's broker."""
    return SettableClock(START_MS)


@pytest.fixture(scope="module")
def broker(clock):
    """A broker with all its ports open, which delivers stamps to clients that ask for them."""
    with running_broker(
        clock=clock, grpc_port=0, exposing_broker_entry_metadata_to_client_enabled=True
    ) as running:
        yield running


def switch(broker, topic, stampers):
    """Set the topic's policy, as the admin interface does."""
    policy = {"stampers": list(stampers)}

    async def work(running):
        topics = running.services.topics
        await topics.policies[STAMPS].set(topics.parse(topic), policy)

    broker.call(work)


@pytest.fixture
def sent(broker, clock, raw, topic):
    """The script's messages, one second of the broker's apart."""
    producer = raw.create_producer(topic)
    messages = []
    for number, (stampers, skew_ms) in enumerate(SCRIPT):
        now_ms = clock.advance(by_ms=1000)
        switch(broker, topic, stampers)
        payload = b"%d" % number
        producer.send(payload, publish_time_ms=now_ms + skew_ms, properties={"region": "eu"})
        has_time = "broker-time" in stampers
        time_ms = now_ms if has_time else now_ms + skew_ms
        messages.append(Sent(payload, time_ms, has_time, "index" in stampers))
    return messages


def moments(sent):
    """Times around every entry's, before and after all."""
    times = {0, *(message.time_ms + d for message in sent for d in (-1, 0, 1))}
    return sorted(times)


def first_at(sent, time_ms):
    """The number of the first message at or after a time; how many there are, if none."""
    return next((n for n, m in enumerate(sent) if m.time_ms >= time_ms), len(sent))


def test_the_official_client_gets_every_message_once(client, topic, sent):
    """In order, as if stamps were all on or all off; the last message's id is right."""
    consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    got = [consumer.receive(5000) for _ in sent]
    assert [message.data() for message in got] == [message.payload for message in sent]
    assert consumer.get_last_message_id().entry_id() == got[-1].message_id().entry_id()
    with pytest.raises(pulsar.Timeout):
        consumer.receive(50)


def test_the_official_clients_seek_lands_on_the_first_entry_at_or_after(client, topic, sent):
    """By broker time where there is one, by publish time where not; after all on the end."""
    consumer = client.subscribe(topic, "s")
    behind = max(message.time_ms for message in sent) + 1
    for time_ms in (0, sent[2].time_ms, sent[4].time_ms + 1, sent[6].time_ms, sent[9].time_ms):
        consumer.seek(time_ms)
        expected = first_at(sent, time_ms)
        assert consumer.receive(5000).data() == sent[expected].payload
    consumer.seek(behind)
    with pytest.raises(pulsar.Timeout):
        consumer.receive(50)


def test_the_official_reader_knows_what_is_available(client, topic, sent):
    """After a seek by time to every kind of entry, and after the last one."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    for number in (1, 4, 9):
        reader.seek(sent[number].time_ms)
        found = first_at(sent, sent[number].time_ms)
        rest = [reader.read_next(5000).data() for _ in sent[found:]]
        assert rest == [message.payload for message in sent[found:]]
        assert not reader.has_message_available()


def test_every_road_answers_alike(broker, http, topic, sent):
    """gRPC by time index and by prefixes, by index, by range; HTTP by time."""
    path = f"/admin/v2/{topic.replace('://', '/')}/messageid"
    with SeekClient(broker.grpc_url) as seek:
        for time_ms in moments(sent):
            expected = first_at(sent, time_ms)
            for method in SearchMethod:
                found = seek.by_time(topic, time_ms, method=method)
                assert (found.first_index, found.end) == (expected, expected == len(sent))
            assert http("GET", f"{path}/{time_ms}").json["entryId"] == expected
        for number, message in enumerate(sent):
            place = seek.by_index(topic, number)
            assert (place.index, place.time_ms) == (number, message.time_ms)
        span = seek.range(topic, sent[2].time_ms, sent[5].time_ms)
        assert span.count == first_at(sent, sent[5].time_ms) - first_at(sent, sent[2].time_ms)


def test_what_is_stored_and_what_dump_shows(broker, topic, sent, capsys):
    """Every entry has its index and publish time, those that were stamped their broker time."""
    assert main(["dump", topic, "--data-dir", str(broker.data_dir), "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["index"] for row in rows] == list(range(len(sent)))
    assert [row["broker_timestamp_ms"] for row in rows] == [
        message.time_ms if message.has_time else None for message in sent
    ]
    assert [row["prefix"].get("index") for row in rows] == [
        number if message.has_index else None for number, message in enumerate(sent)
    ]
    assert [row["prefix"].get("application_tags") for row in rows] == [
        {"region": "eu"} if stampers in (TAGS, ONLY_TAGS) else None for stampers, _ in SCRIPT
    ]


def test_clients_are_shown_fields_1_and_2_and_nothing_else(broker, topic, sent):
    """Whatever is stamped, tags included; an entry without either arrives without a prefix."""
    with RawClient.from_url(broker.service_url, feature_flags=ASKS) as client:
        consumer = client.subscribe(topic, "s", earliest=True)
        consumer.flow(100)
        frames = [m.headers_and_payload for m in consumer.receive_many(len(sent))]
    for number, (message, frame) in enumerate(zip(sent, frames, strict=True)):
        expected = BrokerEntryMetadata()
        if message.has_time:
            expected.broker_timestamp = message.time_ms
        if message.has_index:
            expected.index = number
        shown = pack(expected) if expected.ByteSize() else b""
        assert bytes(frame).startswith(shown + b"\x0e\x01")
        assert has_prefix(frame) == bool(shown)
        assert bytes(split(frame)[1]).endswith(message.payload)


# -- forging --------------------------------------------------------------------------------------


def forged(*, tags):
    """A message after a stamp that the producer made itself."""
    stamp = BrokerEntryMetadata(broker_timestamp=1, index=999)
    if tags:
        add_application_tags(stamp, {"region": b"forged"})
    return pack(stamp) + unbatched_message(b"x", publish_time_ms=1, properties={"region": "eu"})


@pytest.mark.parametrize("stampers", [PLAIN, OFF, TAGS, ONLY_TAGS])
@pytest.mark.parametrize("tags", [False, True])
def test_a_producer_cannot_forge_a_stamp(broker, raw, topic, stampers, tags):
    """A SEND that begins with a prefix is refused, whatever the policy; nothing of it counts."""
    producer = raw.create_producer(topic)
    switch(broker, topic, stampers)
    producer.send(b"before")
    for body in (forged(tags=tags), b"\x0e\x02", b"\x0e\x02\x00\x00\x00\x00"):
        with pytest.raises(SendRefusedError, match="NotAllowedError"):
            producer.send_raw(body)
    producer.send(b"after")
    assert stamped_indexes(broker, topic) == ([0, 1] if "index" in stampers else [None, None])


def test_a_stamp_inside_a_message_stays_a_payload(broker, raw, topic):
    """Bytes like a prefix after the producer's own header are payload."""
    producer = raw.create_producer(topic)
    consumer = raw.subscribe(topic, "s", earliest=True)
    consumer.flow(1)
    producer.send(forged(tags=True))
    assert consumer.receive().headers_and_payload.endswith(forged(tags=True))
    assert stamped_indexes(broker, topic) == [0]


def test_tags_come_from_the_entrys_own_properties(broker, raw, topic):
    """Of a batch from those of the batch, not of its members; a property set twice counts last."""
    producer = raw.create_producer(topic)
    switch(broker, topic, TAGS)
    member = BatchMember(payload=b"1", properties={"region": "us"})
    producer.send_raw(batched_message([member, member], publish_time_ms=1), num_messages=2)
    producer.send(b"x", properties={"region": "eu", "Region": "no"})
    producer.send(b"x", properties={"other": "no"})
    producer.send(b"x", properties={"region": ""})

    async def tags(running):
        entries = running.services.topics.open_topics[topic].ledger.read((-1, -1))
        return [
            stamp and {tag.key: tag.value for tag in stamp.application_tags}
            for stamp in (peek(entry.prefix) for entry in entries)
        ]

    assert broker.call(tags) == [{}, {"region": b"eu"}, {}, {"region": b""}]


def stamped_indexes(broker, topic):
    """The index in each stored entry's prefix; None where it has none."""

    async def read(running):
        entries = running.services.topics.open_topics[topic].ledger.read((-1, -1))
        stamps = [peek(entry.prefix) for entry in entries]
        return [s.index if s is not None and s.HasField("index") else None for s in stamps]

    return broker.call(read)

"""Consumers get the producer's bytes unchanged, with the stamp before them only on request."""

from __future__ import annotations

import pytest

from pulsemark.metadata import has_prefix, peek, split
from pulsemark.proto.pulsar_api_pb2 import FeatureFlags
from pulsemark.testing import RawClient, SettableClock, running_broker
from pulsemark.testing.raw_messages import batched_message, unbatched_message

BODIES = [
    (unbatched_message(b"hello", publish_time_ms=1), 1),
    (unbatched_message(b"", publish_time_ms=1, key="k", properties={"a": "é"}), 1),
    (unbatched_message(None, publish_time_ms=1, key="k"), 1),
    (unbatched_message(b"old client", publish_time_ms=1, checksum=False), 1),
    (batched_message([b"1", b"22", b"333"], publish_time_ms=1), 3),
    (batched_message([b"1"], publish_time_ms=1), 1),
    (unbatched_message(b"x" * 300_000, publish_time_ms=1), 1),
    (unbatched_message(b"c", publish_time_ms=1, chunk_id=0, num_chunks_from_msg=2, uuid="u"), 1),
]

ASKS = FeatureFlags(supports_broker_entry_metadata=True)


def exchange(client, topic):
    """Publish BODIES and return the frames a consumer gets for them."""
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s", earliest=True)
    for body, count in BODIES:
        producer.send_raw(body, num_messages=count)
    consumer.flow(100)
    return consumer.receive_many(len(BODIES))


def test_consumers_get_exactly_the_producers_bytes(raw, topic):
    """All bytes that the producer sent after the SEND command are delivered unchanged."""
    frames = exchange(raw, topic)
    assert [body for body, _ in BODIES] == [frame.headers_and_payload for frame in frames]


@pytest.mark.parametrize("exposing", [False, True])
@pytest.mark.parametrize("protocol_version", [17, 18, 21])
@pytest.mark.parametrize("flags", [None, FeatureFlags(), ASKS])
def test_the_stamp_is_shown_to_who_asks_and_may(topic, exposing, protocol_version, flags):
    """The prefix goes out with protocol >= 18, the client's flag and the broker's setting alone."""
    with (
        running_broker(
            http_port=None, exposing_broker_entry_metadata_to_client_enabled=exposing
        ) as broker,
        RawClient.from_url(
            broker.service_url, protocol_version=protocol_version, feature_flags=flags
        ) as client,
    ):
        frames = exchange(client, topic)
    shown = exposing and protocol_version >= 18 and flags is ASKS
    assert [shown] * len(frames) == [has_prefix(frame.headers_and_payload) for frame in frames]
    assert [body for body, _ in BODIES] == [
        bytes(split(frame.headers_and_payload)[1]) for frame in frames
    ]


def test_the_shown_stamp_has_time_and_index_and_nothing_else(topic):
    """Fields 1 and 2 go out: the broker's clock, and the index of each entry's last message."""
    clock = SettableClock(1_700_000_000_000)
    with (
        running_broker(
            http_port=None,
            clock=clock,
            exposing_broker_entry_metadata_to_client_enabled=True,
            stampers=("broker-time", "index", "property-tags:a"),
        ) as broker,
        RawClient.from_url(broker.service_url, feature_flags=ASKS) as client,
    ):
        found = [peek(frame.headers_and_payload) for frame in exchange(client, topic)]
        stored = broker.call(read_tags(topic))
    stamps = [stamp for stamp in found if stamp is not None]
    counts = [count for _, count in BODIES]
    assert [sum(counts[: i + 1]) - 1 for i in range(len(counts))] == [s.index for s in stamps]
    assert {1_700_000_000_000} == {stamp.broker_timestamp for stamp in stamps}
    assert {("broker_timestamp", "index")} == {
        tuple(field.name for field, _ in stamp.ListFields()) for stamp in stamps
    }
    assert [len(tags) for tags in stored if tags] == [1]


def read_tags(topic):
    """A coroutine function for the broker's loop: each stored entry's application tags."""

    async def read(broker):
        entries = broker.services.topics.open_topics[topic].ledger.read((-1, -1))
        return [
            stamp and list(stamp.application_tags) for stamp in (peek(e.prefix) for e in entries)
        ]

    return read


def test_without_stampers_entries_are_stored_bare(topic):
    """With stamping off there is no prefix to show; the bytes are the same."""
    with (
        running_broker(
            http_port=None, stampers=(), exposing_broker_entry_metadata_to_client_enabled=True
        ) as broker,
        RawClient.from_url(broker.service_url, feature_flags=ASKS) as client,
    ):
        frames = exchange(client, topic)
    assert [body for body, _ in BODIES] == [frame.headers_and_payload for frame in frames]

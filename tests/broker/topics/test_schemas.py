"""Schemas are registered once, have versions, and are durable."""

from __future__ import annotations

import pytest

from pulsemark.proto.pulsar_api_pb2 import KeyValue, Schema
from pulsemark.testing import RawClient, running_broker
from pulsemark.testing.raw_client import RequestRefusedError
from pulsemark.wire import commands

JSON_1 = Schema(
    name="a",
    type=Schema.Json,
    schema_data=b'{"type":"record"}',
    properties=[KeyValue(key="k", value="v")],
)
JSON_2 = Schema(name="a", type=Schema.Json, schema_data=b'{"type":"record","name":"b"}')
STRING = Schema(name="s", type=Schema.String, schema_data=b"")


def version(number):
    """A version as it travels."""
    return number.to_bytes(8, "big")


def get(client, topic, schema_version=None):
    """GET_SCHEMA."""
    return client.request(lambda r: commands.get_schema(topic, r, schema_version))


def register(client, topic, schema):
    """GET_OR_CREATE_SCHEMA."""
    return client.request(lambda r: commands.get_or_create_schema(topic, r, schema)).schema_version


def test_versions_count_up_and_the_same_schema_keeps_its_own(raw, topic):
    """0, 1, and 0 again for the first one."""
    producers = [raw.create_producer(topic, schema=s) for s in (JSON_1, JSON_2, JSON_1)]
    assert [version(0), version(1), version(0)] == [p.schema_version for p in producers]
    assert raw.create_producer(topic).schema_version == b""


def test_a_schema_is_handed_out_by_version(raw, topic):
    """The latest or the given version, with its properties; missing ones are TopicNotFound."""
    raw.create_producer(topic)
    with pytest.raises(RequestRefusedError, match="TopicNotFound"):
        get(raw, topic)
    assert version(0) == register(raw, topic, JSON_1)
    assert version(1) == register(raw, topic, JSON_2)
    assert (JSON_2, version(1)) == (get(raw, topic).schema, get(raw, topic).schema_version)
    assert get(raw, topic, version(0)).schema == JSON_1
    for absent in (version(2), b"\xff" * 8, b"x"):
        with pytest.raises(RequestRefusedError, match="TopicNotFound"):
            get(raw, topic, absent)


def test_another_type_is_incompatible(raw, topic):
    """For producers, consumers and GET_OR_CREATE_SCHEMA alike."""
    raw.create_producer(topic, schema=JSON_1)
    with pytest.raises(RequestRefusedError, match="IncompatibleSchema"):
        raw.create_producer(topic, schema=STRING)
    with pytest.raises(RequestRefusedError, match="IncompatibleSchema"):
        raw.subscribe(topic, "s", schema=STRING)
    with pytest.raises(RequestRefusedError, match="IncompatibleSchema"):
        register(raw, topic, STRING)


def test_a_consumers_schema_becomes_an_untouched_topics(raw, topic):
    """On a topic with data and without schema it is refused; without schema anybody may read."""
    raw.subscribe(topic, "s", schema=STRING)
    assert get(raw, topic).schema == STRING
    other = topic + "-used"
    raw.create_producer(other).send(b"x")
    with pytest.raises(RequestRefusedError, match="IncompatibleSchema"):
        raw.subscribe(other, "s", schema=STRING)
    raw.subscribe(other, "s")


def test_auto_consume_takes_what_there_is(raw, topic):
    """AUTO_CONSUME is no schema of its own."""
    raw.create_producer(topic, schema=JSON_1)
    raw.subscribe(topic, "s", schema=Schema(name="", type=Schema.AutoConsume, schema_data=b""))
    assert get(raw, topic).schema == JSON_1


def test_a_schema_for_an_absent_topic_is_refused(raw, topic):
    """GET_OR_CREATE_SCHEMA makes no topics."""
    with pytest.raises(RequestRefusedError, match="TopicNotFound"):
        register(raw, topic, STRING)


def test_schemas_survive_a_restart_and_go_with_their_topic(tmp_path, topic):
    """They are in the catalog until the topic is deleted."""
    for generation in range(2):
        with (
            running_broker(data_dir=tmp_path / "data") as broker,
            RawClient.from_url(broker.service_url) as client,
        ):
            if generation:
                assert get(client, topic, version(0)).schema == JSON_1
                broker.call(delete(topic))
                with pytest.raises(RequestRefusedError, match="TopicNotFound"):
                    get(client, topic)
                assert version(0) == client.create_producer(topic, schema=STRING).schema_version
            else:
                client.create_producer(topic, schema=JSON_1)
                client.create_producer(topic, schema=JSON_2)


def delete(topic):
    """A coroutine function for the broker's loop."""

    async def work(broker):
        topics = broker.services.topics
        await topics.delete(topics.parse(topic), force=True)

    return work


def test_partitions_share_the_schemas_of_their_topic(raw, topic):
    """A schema registered through one partition is every partition's."""
    raw.create_producer(f"{topic}-partition-0", schema=JSON_1)
    assert get(raw, f"{topic}-partition-1").schema == JSON_1
    assert get(raw, topic).schema == JSON_1

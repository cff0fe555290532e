"""CreateTopics, DeleteTopics, CreatePartitions, and topics that Metadata creates."""

from __future__ import annotations

import pytest
from kafka.protocol.admin import CreatePartitionsRequest, DeleteTopicsRequest
from kafka.protocol.metadata import MetadataRequest

from pulsemark.testing import running_broker
from pulsemark.testing.raw_kafka import RawKafka

from ..conftest import create, record_set


def described(client, name, version=7, **fields):
    """Metadata of one topic: its code and number of partitions."""
    asked = [MetadataRequest.MetadataRequestTopic(name=name)]
    answer = client.call(MetadataRequest, version, topics=asked, **fields)
    found = answer.topics[0]
    return found.error_code, len(found.partitions)


@pytest.mark.parametrize("version", range(5))
def test_topics_are_created_in_every_version(raw, topic, version):
    """With their partitions; a second time they exist; a check alone creates nothing."""
    if version >= 1:
        assert create(raw, topic, 3, version, check=True) == 0
        assert described(raw, topic, allow_auto_topic_creation=False) == (3, 0)
    assert create(raw, topic, 3, version) == 0
    assert described(raw, topic) == (0, 3)
    assert create(raw, topic, 3, version) == 36


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"partitions": 0}, 37),
        ({"partitions": 10_001}, 37),
        ({"replicas": 3}, 38),
        ({"retention_ms": "soon"}, 40),
        ({"no_such_setting": "1"}, 40),
        ({"retention_ms": None}, 40),
        ({"partitions": 2, "assigned": [(0, [1])]}, 42),
        ({"partitions": -1, "replicas": -1, "assigned": [(0, [2])]}, 39),
        ({"partitions": -1, "replicas": -1, "assigned": [(1, [1])]}, 39),
    ],
)
def test_what_cannot_be_created(raw, topic, fields, code):
    """Nothing is left of it."""
    assert create(raw, topic, **fields) == code
    assert described(raw, topic, allow_auto_topic_creation=False) == (3, 0)


def test_assignments_and_defaults_say_how_many_partitions(raw, topic):
    """Two assignments to this broker; -1 is the broker's default, in every version."""
    assigned = [(0, [1]), (1, [1])]
    assert create(raw, topic, -1, replicas=-1, assigned=assigned) == 0
    assert described(raw, topic) == (0, 2)
    for version in range(5):
        assert create(raw, f"{topic}d{version}", -1, version=version, replicas=-1) == 0
        assert described(raw, f"{topic}d{version}") == (0, 1)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "ä", "x" * 250, "t-partition-0"])
def test_illegal_names(raw, name):
    """Refused by CreateTopics and Metadata alike."""
    assert create(raw, name) == 17
    assert described(raw, name) == (17, 0)


def test_the_longest_name_is_as_good_as_any(raw):
    """Kafka's limit is 249 characters; the list of all topics is still answered."""
    name = "x" * 249
    assert create(raw, name, 12) == 0
    assert described(raw, name) == (0, 12)
    assert raw.produce(name, record_set([b"v"]), partition=11).error_code == 0
    listed = raw.call(MetadataRequest, 7, topics=None, allow_auto_topic_creation=False)
    assert name in [each.name for each in listed.topics]


@pytest.mark.parametrize("version", range(4))
def test_deleted_topics_are_gone_with_their_data(raw, topic, version):
    """A topic of the same name begins at offset 0; deleting twice is refused."""
    create(raw, topic)
    raw.produce(topic, record_set([b"x"]))
    for code in (0, 3):
        answer = raw.call(DeleteTopicsRequest, version, topic_names=[topic], timeout_ms=1)
        assert answer.responses[0].error_code == code
    assert raw.fetch(topic, 0).error_code == 3
    create(raw, topic)
    assert raw.produce(topic, record_set([b"y"])).base_offset == 0


def grown(client, name, count, assignments=None, check=False):
    """The code of a CreatePartitions."""
    if assignments is not None:
        assignments = [
            CreatePartitionsRequest.CreatePartitionsTopic.CreatePartitionsAssignment(
                broker_ids=brokers
            )
            for brokers in assignments
        ]
    wanted = CreatePartitionsRequest.CreatePartitionsTopic(
        name=name, count=count, assignments=assignments
    )
    answer = client.call(
        CreatePartitionsRequest, 1, topics=[wanted], timeout_ms=1, validate_only=check
    )
    return answer.results[0].error_code


def test_partitions_are_added_and_never_taken_away(raw, topic):
    """More than there are; the settings of the topic stay."""
    create(raw, topic, 2, retention_ms="60000")
    assert grown(raw, topic, 2) == 37
    assert grown(raw, topic, 4, check=True) == 0
    assert described(raw, topic) == (0, 2)
    assert grown(raw, topic, 4, [[1]]) == 39
    assert grown(raw, topic, 4, [[1], [9]]) == 39
    assert grown(raw, topic, 4, [[1], [1]]) == 0
    assert described(raw, topic) == (0, 4)
    assert raw.produce(topic, record_set([b"x"]), partition=3).error_code == 0
    assert grown(raw, "none", 4) == 3


def test_metadata_creates_topics_only_where_that_is_allowed():
    """Neither if the client nor if the broker says no."""
    with (
        running_broker(
            kafka_port=0, http_port=None, storage="memory", kafka_default_partitions=3
        ) as broker,
        RawKafka.from_url(broker.kafka_url) as client,
    ):
        assert described(client, "a", 4, allow_auto_topic_creation=False) == (3, 0)
        assert described(client, "a", 4, allow_auto_topic_creation=True) == (0, 3)
        assert described(client, "b", 0) == (0, 3)
        listed = client.call(MetadataRequest, 0, topics=[])
        assert sorted(each.name for each in listed.topics) == ["a", "b"]
        assert client.call(MetadataRequest, 1, topics=[]).topics == []
        assert len(client.call(MetadataRequest, 1, topics=None).topics) == 2
    with (
        running_broker(
            kafka_port=0, http_port=None, storage="memory", allow_auto_topic_creation=False
        ) as broker,
        RawKafka.from_url(broker.kafka_url) as client,
    ):
        assert described(client, "a", 0) == (3, 0)

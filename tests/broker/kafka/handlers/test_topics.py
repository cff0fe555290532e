"""CreateTopics, DeleteTopics, CreatePartitions, and topics that Metadata creates."""

from __future__ import annotations

import pytest
from kafka.protocol.admin import (
    AlterConfigsRequest,
    CreatePartitionsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
)
from kafka.protocol.metadata import MetadataRequest

from pulsemark.testing import running_broker
from pulsemark.testing.raw_kafka import RawKafka
from pulsemark.wire import TopicName

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


# -- DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, and what settings mean to the brok


DELETE, APPEND, SUBTRACT = 1, 2, 3


def shown(client, name, kind=2, version=3, keys=None):
    """The code, and value and source of each setting."""
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=keys
    )
    answer = client.call(
        DescribeConfigsRequest,
        version,
        resources=[resource],
        include_synonyms=False,
        include_documentation=False,
    )
    result = answer.results[0]
    return result.error_code, {c.name: (c.value, c.config_source) for c in result.configs}


def altered(client, name, settings, kind=2, check=False):
    """The code of an AlterConfigs."""
    of = AlterConfigsRequest.AlterConfigsResource
    configs = [of.AlterableConfig(name=key, value=value) for key, value in settings.items()]
    resource = of(resource_type=kind, resource_name=name, configs=configs)
    answer = client.call(AlterConfigsRequest, 1, resources=[resource], validate_only=check)
    return answer.responses[0].error_code


def changed(client, name, *changes):
    """The code of an IncrementalAlterConfigs: name, operation, value."""
    of = IncrementalAlterConfigsRequest.AlterConfigsResource
    configs = [
        of.AlterableConfig(name=key, config_operation=operation, value=value)
        for key, operation, value in changes
    ]
    resource = of(resource_type=2, resource_name=name, configs=configs)
    answer = client.call(
        IncrementalAlterConfigsRequest, 0, resources=[resource], validate_only=False
    )
    return answer.responses[0].error_code


@pytest.mark.parametrize("version", range(4))
def test_settings_are_shown_with_their_source(raw, topic, version):
    """1 is the topic's own, 5 a default; version 0 has no sources."""
    create(raw, topic, max_message_bytes="5000")
    code, settings = shown(raw, topic, version=version)
    sources = (1, 5) if version >= 1 else (-1, -1)
    assert code == 0
    assert settings["max.message.bytes"] == ("5000", sources[0])
    assert settings["cleanup.policy"] == ("delete", sources[1])
    assert shown(raw, topic, keys=["retention.ms"])[1].keys() == {"retention.ms"}


def test_no_names_are_all_names(raw, topic):
    """An empty list shows what null shows, as in Kafka since 2.6."""
    create(raw, topic)
    assert shown(raw, topic, keys=[]) == shown(raw, topic)


def test_settings_of_kafkas_storage_are_kept_and_shown(raw, topic):
    """Clients that set them can create their topics; spaces around a value do not count."""
    create(raw, topic, segment_bytes="1048576", min_insync_replicas="2", preallocate=" true ")
    settings = shown(raw, topic)[1]
    assert settings["segment.bytes"] == ("1048576", 1)
    assert settings["min.insync.replicas"] == ("2", 1)
    assert settings["preallocate"] == ("true", 1)
    assert settings["segment.ms"] == ("604800000", 5)
    assert raw.produce(topic, record_set([b"x"])).error_code == 0


def test_a_changed_setting_holds_for_the_next_batch(raw, topic):
    """A smaller limit refuses what was taken before."""
    create(raw, topic)
    assert raw.produce(topic, record_set([b"x" * 3_000])).error_code == 0
    assert altered(raw, topic, {"max.message.bytes": "2000"}, check=True) == 0
    assert raw.produce(topic, record_set([b"x" * 3_000])).error_code == 0
    assert altered(raw, topic, {"max.message.bytes": "2000"}) == 0
    assert raw.produce(topic, record_set([b"x" * 3_000])).error_code == 10
    assert altered(raw, topic, {}) == 0
    assert raw.produce(topic, record_set([b"x" * 3_000])).error_code == 0


@pytest.mark.parametrize(
    ("name", "value", "shows"),
    [
        ("cleanup.policy", "compact, delete", "compact,delete"),
        ("cleanup.policy", "", ""),
        ("preallocate", "TRUE", "true"),
        ("min.cleanable.dirty.ratio", "1", "1.0"),
        ("max.message.bytes", "0", "0"),
        ("max.message.bytes", " 7 ", "7"),
        ("retention.bytes", "-2", "-2"),
        ("message.timestamp.before.max.ms", "5", "5"),
        ("remote.storage.enable", "false", "false"),
    ],
)
def test_values_are_shown_as_kafka_shows_them(raw, topic, name, value, shows):
    """Spaces, capitals and numbers have one form."""
    create(raw, topic)
    assert changed(raw, topic, (name, 0, value)) == 0
    assert shown(raw, topic)[1][name] == (shows, 1)


def test_single_settings_are_set_removed_and_extended(raw, topic):
    """The others stay."""
    create(raw, topic, retention_ms="1000")
    assert changed(raw, topic, ("cleanup.policy", APPEND, "compact")) == 0
    settings = shown(raw, topic)[1]
    assert settings["cleanup.policy"] == ("delete,compact", 1)
    assert settings["retention.ms"] == ("1000", 1)
    assert changed(raw, topic, ("cleanup.policy", SUBTRACT, "delete")) == 0
    assert changed(raw, topic, ("retention.ms", DELETE, None)) == 0
    settings = shown(raw, topic)[1]
    assert settings["cleanup.policy"] == ("compact", 1)
    assert settings["retention.ms"] == ("-1", 5)
    assert changed(raw, topic, ("retention.ms", APPEND, "1")) == 40
    assert changed(raw, topic, ("cleanup.policy", SUBTRACT, "compact")) == 0
    assert shown(raw, topic)[1]["cleanup.policy"] == ("", 1)
    assert changed(raw, topic, ("cleanup.policy", APPEND, "delete")) == 0
    assert shown(raw, topic)[1]["cleanup.policy"] == ("delete", 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.ms", "-2"),
        ("retention.bytes", "x"),
        ("cleanup.policy", "burn"),
        ("message.format.version", "0.7"),
        ("message.format.version", "new"),
        ("message.timestamp.type", "Never"),
        ("max.message.bytes", "-1"),
        ("pulsemark.tombstone.stage", "3"),
        ("unclean.leader.election.enable", "perhaps"),
        ("min.cleanable.dirty.ratio", "2"),
        ("min.cleanable.dirty.ratio", "x"),
        ("segment.bytes", "13"),
        ("no.such.setting", "1"),
    ],
)
def test_wrong_values_change_nothing(raw, topic, name, value):
    """INVALID_CONFIG, by each way to set it."""
    create(raw, topic, max_message_bytes="5000")
    before = shown(raw, topic)
    assert altered(raw, topic, {name: value}) == 40
    assert changed(raw, topic, (name, 0, value)) == 40
    assert shown(raw, topic) == before


def test_other_resources(raw):
    """Unknown topics, brokers that are shown and cannot be changed, and other kinds."""
    assert shown(raw, "none")[0] == 3
    assert altered(raw, "none", {"retention.ms": "1"}) == 3
    code, settings = shown(raw, "1", kind=4)
    assert (code, settings["num.partitions"][0]) == (0, "1")
    assert settings["advertised.listeners"][0].startswith("PLAINTEXT://")
    assert shown(raw, "2", kind=4)[0] == 42
    assert altered(raw, "1", {"num.partitions": "2"}, kind=4) == 42
    assert shown(raw, "x", kind=8)[0] == 42


def test_retention_is_the_brokers_policy_and_all_settings_survive_a_restart(tmp_path):
    """Milliseconds and bytes become whole minutes and megabytes, rounded up."""
    folder = tmp_path / "data"
    name = TopicName.parse("t")
    with (
        running_broker(data_dir=folder, kafka_port=0, http_port=None) as broker,
        RawKafka.from_url(broker.kafka_url) as client,
    ):
        assert create(client, "t", retention_ms="90000", message_format_version="0.10.0") == 0
        applied = broker.broker.services.cleaning.retention_of(name)
        assert (applied.time_minutes, applied.size_mb) == (2, -1)
        assert changed(client, "t", ("retention.bytes", 0, "1")) == 0
        applied = broker.broker.services.cleaning.retention_of(name)
        assert (applied.time_minutes, applied.size_mb) == (2, 1)
    with (
        running_broker(data_dir=folder, kafka_port=0, http_port=None) as broker,
        RawKafka.from_url(broker.kafka_url) as client,
    ):
        settings = shown(client, "t")[1]
        assert settings["message.format.version"] == ("0.10.0", 1)
        assert settings["retention.bytes"] == ("1", 1)
        assert client.produce("t", record_set([b"x"])).error_code == 0
        assert client.fetch("t", 0).records[16] == 1

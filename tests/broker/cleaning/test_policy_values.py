"""The cleaning policies: values, levels, REST as Pulsar answers, restart, deletion."""

from __future__ import annotations

import pytest

from pulsemark.broker import BrokerConfig
from pulsemark.broker.configuration.settings import parse_settings
from pulsemark.broker.errors import ConfigError
from pulsemark.broker.policies.policy import InvalidValueError, UnreadableValueError
from pulsemark.broker.policies.pulsar_policies import MESSAGE_TTL, SINGLE_ZERO, RetentionPolicy
from pulsemark.testing import running_broker

from .conftest import NAME, NAMESPACE, PATH, Place

TIME = "retentionTimeInMinutes"
SIZE = "retentionSizeInMB"


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ({TIME: 10, SIZE: 20}, (10, 20)),
        ({TIME: "10", SIZE: " 20 "}, (10, 20)),
        ({TIME: 1.7, SIZE: -1}, (1, -1)),
        ({}, (0, 0)),
        ({TIME: None, SIZE: 0, "more": 1}, (0, 0)),
        ({TIME: 2**31 - 1, SIZE: 2**63 - 1}, (2**31 - 1, 2**63 - 1)),
    ],
)
def test_values_are_read_as_pulsar_reads_them(value, stored):
    """Numbers as text, fractions, null and unknown fields."""
    policy = RetentionPolicy.from_json(value)
    assert (policy.time_minutes, policy.size_mb) == stored
    assert policy.to_json() == {TIME: stored[0], SIZE: stored[1]}


@pytest.mark.parametrize(
    "value", [[], "x", 5, {TIME: "a"}, {TIME: True}, {TIME: 2**31}, {SIZE: []}]
)
def test_unreadable_values(value):
    """What is not a number, or out of range, names the value."""
    with pytest.raises(UnreadableValueError) as caught:
        RetentionPolicy.from_json(value)
    assert caught.value.reason in str(caught.value)


@pytest.mark.parametrize("value", [(0, 20), (10, 0), (-1, 0), (-2, -1), (10, -5)])
def test_limits_that_do_not_fit(value):
    """A single 0 and what is below -1 are refused in Pulsar's words."""
    with pytest.raises(InvalidValueError):
        RetentionPolicy.from_json({TIME: value[0], SIZE: value[1]})


EMPTY = "The request entity cannot be empty."
PARTITION = {"reason": "Not allowed to set/get topic policy for a partition"}
GOOD = {TIME: 10, SIZE: 20}

#: Method, path, body, and what Apache Pulsar 4.0.8 answered.
ANSWERS = [
    ("GET", f"{NAMESPACE}/retention", None, 200, None),
    ("POST", f"{NAMESPACE}/retention", GOOD, 204, None),
    ("GET", f"{NAMESPACE}/retention", None, 200, GOOD),
    ("POST", f"{NAMESPACE}/retention", {TIME: 0, SIZE: 20}, 400, {"reason": SINGLE_ZERO}),
    ("POST", f"{NAMESPACE}/retention", {TIME: -2, SIZE: -1}, 400,
     {"reason": "Invalid retention policy: time limit must be >= -1"}),
    ("POST", f"{NAMESPACE}/retention", {TIME: 10, SIZE: -5}, 400,
     {"reason": "Invalid retention policy: size limit must be >= -1"}),
    ("PUT", f"{NAMESPACE}/retention", GOOD, 405, ...),
    ("PATCH", f"{NAMESPACE}/retention", GOOD, 405, ...),
    ("POST", f"{NAMESPACE}/retention", None, 204, None),
    ("GET", f"{NAMESPACE}/retention", None, 200, None),
    ("DELETE", f"{NAMESPACE}/retention", None, 204, None),
    ("GET", "/admin/v2/namespaces/public/absent/retention", None, 404,
     {"reason": "Namespace does not exist"}),
    ("POST", "/admin/v2/namespaces/public/absent/retention", GOOD, 404,
     {"reason": "Namespace does not exist"}),
    ("GET", f"{PATH}/retention", None, 200, None),
    ("GET", f"{PATH}/retention?applied=true", None, 200, {TIME: 0, SIZE: 0}),
    ("POST", f"{PATH}/retention", {TIME: -1, SIZE: -1}, 204, None),
    ("GET", f"{PATH}/retention?applied=true", None, 200, {TIME: -1, SIZE: -1}),
    ("DELETE", f"{PATH}/retention", None, 204, None),
    ("GET", f"{PATH}x/retention", None, 404, {"reason": f"Topic {NAME}x not found"}),
    ("GET", f"{PATH}-partition-0/retention", None, 412, PARTITION),
    ("GET", "/admin/v2/persistent/public/absent/t/retention", None, 404,
     {"reason": "Namespace not found"}),
    ("GET", f"{NAMESPACE}/messageTTL", None, 200, None),
    ("POST", f"{NAMESPACE}/messageTTL", "60", 204, None),
    ("GET", f"{NAMESPACE}/messageTTL", None, 200, 60),
    ("GET", f"{PATH}/messageTTL?applied=true", None, 200, 60),
    ("POST", f"{NAMESPACE}/messageTTL", -1, 412,
     {"reason": "messageTTL must be 0 or more"}),
    ("POST", f"{NAMESPACE}/messageTTL", None, 400, ...),
    ("POST", f"{NAMESPACE}/messageTTL", True, 400, ...),
    ("POST", f"{NAMESPACE}/messageTTL", {}, 400, ...),
    ("DELETE", f"{NAMESPACE}/messageTTL", None, 204, None),
    ("POST", f"{PATH}/messageTTL?messageTTL=60", None, 204, None),
    ("GET", f"{PATH}/messageTTL", None, 200, 60),
    ("POST", f"{PATH}/messageTTL?messageTTL=-1", None, 412,
     {"reason": "messageTTL must be 0 or more"}),
    ("POST", f"{PATH}/messageTTL?messageTTL=abc", None, 404, ...),
    ("POST", f"{PATH}/messageTTL?messageTTL=99999999999", None, 404, ...),
    ("POST", f"{PATH}/messageTTL", 60, 204, None),  # the body does not count: it is unset
    ("GET", f"{PATH}/messageTTL", None, 200, None),
    ("GET", f"{PATH}/messageTTL?applied=true", None, 200, 0),
    ("GET", f"{PATH}-partition-0/messageTTL", None, 412, PARTITION),
    ("GET", f"{NAMESPACE}/compactionThreshold", None, 200, None),
    ("POST", f"{NAMESPACE}/compactionThreshold", 1000, 405, ...),
    ("PUT", f"{NAMESPACE}/compactionThreshold", 1000, 204, None),
    ("GET", f"{PATH}/compactionThreshold?applied=true", None, 200, 1000),
    ("PUT", f"{NAMESPACE}/compactionThreshold", -1, 412,
     {"reason": "compactionThreshold must be 0 or more"}),
    ("PUT", f"{NAMESPACE}/compactionThreshold", None, 400, EMPTY),
    ("DELETE", f"{NAMESPACE}/compactionThreshold", None, 204, None),
    ("POST", f"{PATH}/compactionThreshold", 1.5, 204, None),
    ("GET", f"{PATH}/compactionThreshold", None, 200, 1),
    ("POST", f"{PATH}/compactionThreshold", -1, 412,
     {"reason": "compactionThreshold must be 0 or more"}),
    ("PUT", f"{PATH}/compactionThreshold", 1000, 405, ...),
    ("DELETE", f"{PATH}/compactionThreshold", None, 204, None),
    ("PUT", "/admin/v2/namespaces/public/bad", {"message_ttl_in_seconds": -3}, 412,
     {"reason": "messageTTL must be 0 or more"}),
    ("GET", "/admin/v2/namespaces/public/bad/messageTTL", None, 404, ...),
    ("PUT", "/admin/v2/namespaces/public/good",
     {"retention_policies": GOOD, "message_ttl_in_seconds": 3, "compaction_threshold": 5}, 204,
     None),
    ("GET", "/admin/v2/namespaces/public/good/retention", None, 200, GOOD),
    ("GET", "/admin/v2/namespaces/public/good/messageTTL", None, 200, 3),
    ("GET", "/admin/v2/namespaces/public/good/compactionThreshold", None, 200, 5),
]  # fmt: skip


def test_answers_are_pulsars(place):
    """Status and JSON body of each request, in this order, are what Pulsar answered."""
    for method, path, body, status, expected in ANSWERS:
        found = place.ask(method, path, body)
        assert found[0] == status, (method, path, body, found)
        if expected is not ...:
            assert found[1] == expected, (method, path, body)


def test_a_partitioned_topics_policy_holds_for_its_partitions(place):
    """It is set once, for the partitioned topic."""
    path = "/admin/v2/persistent/public/default/parts"
    place.change("PUT", f"{path}/partitions", 2)
    place.change("POST", f"{path}/messageTTL?messageTTL=30")

    async def applied(running):
        topics = running.services.topics
        name = topics.parse("persistent://public/default/parts-partition-1")
        return running.services.topics.policies.applied(name, MESSAGE_TTL)

    assert place.broker.call(applied) == 30


def test_over_a_restart_and_a_deletion(tmp_path, clock):
    """Policies are stored with their owners: they outlive the process, and go with the topic."""
    for number in range(2):
        with running_broker(clock=clock, data_dir=tmp_path) as broker:
            place = Place(broker, clock)
            if number == 0:
                place.retention(7, 8)
                place.change("POST", f"{NAMESPACE}/messageTTL", 9)
            assert place.get("retention") == {TIME: 7, SIZE: 8}
            assert place.get("messageTTL?applied=true") == 9
            if number == 1:
                place.change("DELETE", "/admin/v2/persistent/public/default/prices?force=true")
                place.change("PUT", PATH)
                assert place.get("retention") is None
            place.client.close()


def test_the_configuration_files_names():
    """Pulsar's settings are the defaults of the policies, in Pulsar's units."""
    found = parse_settings(
        {
            "defaultRetentionTimeInMinutes": "10",
            "defaultRetentionSizeInMB": "-1",
            "ttlDurationDefaultInSeconds": "20",
            "brokerServiceCompactionThresholdInBytes": "30",
            "brokerServiceCompactionMonitorIntervalInSeconds": "40",
            "messageExpiryCheckIntervalInMinutes": "5",
            "retentionCheckIntervalInSeconds": "60",
            "pulsemarkMaxCompactionBytesPerS": "70",
        }
    )
    assert found.ignored == ()
    config = found.config()
    assert (config.default_retention_time_minutes, config.default_retention_size_mb) == (10, -1)
    assert config.default_message_ttl_s == 20
    assert config.default_compaction_threshold_bytes == 30
    assert config.compaction_monitor_interval_ms == 40_000
    assert config.message_expiry_check_interval_ms == 300_000
    assert config.retention_check_interval_ms == 60_000
    assert config.max_compaction_bytes_per_s == 70
    with pytest.raises(ConfigError):
        BrokerConfig(default_message_ttl_s=-1)
    with pytest.raises(ConfigError):
        BrokerConfig(default_retention_size_mb=-2)

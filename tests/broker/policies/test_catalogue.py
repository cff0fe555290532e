"""Each policy over REST: set, read, applied, removed, over a restart, with wrong values."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from pulsemark.broker import BrokerThread
from pulsemark.broker.policies.policy import Place, Policy
from pulsemark.broker.policies.pulsar_policies import POLICIES
from pulsemark.cli import main
from pulsemark.testing import running_broker

NAMESPACE = "/admin/v2/namespaces/public/default"
TOPIC = "/admin/v2/persistent/public/default/t"
RATE = {
    "dispatchThrottlingRateInMsg": 10,
    "dispatchThrottlingRateInByte": 1000,
    "relativeToPublishRate": False,
    "ratePeriodInSecond": 2,
}
#: A value of each policy that is not a plain number or boolean.
VALUES: dict[str, Any] = {
    "brokerEntryMetadata": {"stampers": ["index"]},
    "mirrorSources": ["west"],
    "retention": {"retentionTimeInMinutes": 1, "retentionSizeInMB": -1},
    "publishRate": {"publishThrottlingRateInMsg": 5, "publishThrottlingRateInByte": 6},
    "dispatchRate": RATE,
    "subscriptionDispatchRate": RATE,
    "subscribeRate": {"subscribeThrottlingRatePerConsumer": 5, "ratePeriodInSecond": 6},
    "autoTopicCreation": {"allowAutoTopicCreation": True, "topicType": "non-partitioned"},
    "autoSubscriptionCreation": {"allowAutoSubscriptionCreation": False},
    "inactiveTopicPolicies": {
        "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up",
        "maxInactiveDurationSeconds": 5000,
        "deleteWhileInactive": True,
    },
    "subscriptionTypesEnabled": ["Exclusive", "Shared"],
    "delayedDelivery": {"tickTime": 5, "active": False, "maxDeliveryDelayInMillis": 7},
    "schemaCompatibilityStrategy": "BACKWARD",
    "schemaAutoUpdateCompatibilityStrategy": "Full",
    "subscriptionAuthMode": "Prefix",
    "replication": ["standalone"],
}
BOOLEANS = {
    "leaderEpochs",
    "deduplication",
    "encryptionRequired",
    "isAllowAutoUpdateSchema",
    "schemaValidationEnforced",
}


def ask(broker: BrokerThread, method: str, path: str, value: Any = None) -> tuple[int, Any]:
    """Status and JSON."""
    body = None if value is None else json.dumps(value).encode()
    request = urllib.request.Request(broker.http_url + path, body, method=method)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            text = answer.read()
            return answer.status, json.loads(text) if text else None
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def value_of(policy: Policy) -> Any:
    """A value that the policy can have."""
    return VALUES.get(policy.name, True if policy.name in BOOLEANS else 7)


def places() -> list[tuple[Policy, Place, str]]:
    """Every policy with its levels."""
    found = []
    for policy in POLICIES:
        for place, base in ((policy.namespace, NAMESPACE), (policy.topic, TOPIC)):
            if place is not None:
                found.append((policy, place, f"{base}/{place.path}"))
    return found


def names(case: object) -> str | None:
    """The name of a test's case."""
    return case.name if isinstance(case, Policy) else None


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A broker with a topic."""
    folder = tmp_path_factory.mktemp("policies")
    with running_broker(data_dir=folder) as running:
        assert ask(running, "PUT", TOPIC)[0] == 204
        yield running


def put(broker: BrokerThread, place: Place, path: str, value: Any) -> tuple[int, Any]:
    """Set a value as the policy wants it."""
    if place.query:
        return ask(broker, place.method, f"{path}?{place.query}={value}")
    return ask(broker, place.method, path, value)


@pytest.mark.parametrize(("policy", "place", "path"), places(), ids=names)
def test_set_get_unset(broker: BrokerThread, policy: Policy, place: Place, path: str) -> None:
    """The value that is set is shown; with DELETE it is as before."""
    before = ask(broker, "GET", path)
    value = value_of(policy)
    assert put(broker, place, path, value) == (place.set_status, None)
    assert ask(broker, "GET", path) == (200, value)
    if place.is_removable:
        assert ask(broker, "DELETE", path) == (204, None)
        assert ask(broker, "GET", path) == before
    elif policy.topic is not place:
        status, reason = ask(broker, "DELETE", path)
        assert (status, "Invalid bundle range" in reason) == (412, True)


ABSURD: tuple[Any, ...] = (["x", {}], {"x": [1]}, "x" * 100, 2**80, -(2**80))


@pytest.mark.parametrize(("policy", "place", "path"), places(), ids=names)
def test_absurd_values(broker: BrokerThread, policy: Policy, place: Place, path: str) -> None:
    """They are refused or have a meaning in Pulsar; the broker never answers 500."""
    for value in ABSURD if not place.query else ():
        before = ask(broker, "GET", path)
        status, _ = ask(broker, place.method, path, value)
        assert status in (200, 204, 400, 403, 404, 412), value
        if status >= 400:
            assert ask(broker, "GET", path) == before
        elif place.is_removable:
            ask(broker, "DELETE", path)


@pytest.mark.parametrize(("policy", "place", "path"), places(), ids=names)
def test_what_is_absent(broker: BrokerThread, policy: Policy, place: Place, path: str) -> None:
    """404 for a topic or namespace that does not exist; a partition has no policies (412)."""
    for method in ("GET", place.method, "DELETE"):
        if method == "DELETE" and not place.is_removable:
            continue
        if place is policy.namespace:
            absent = path.replace("/default/", "/absent/")
            assert ask(broker, method, absent, value_of(policy))[0] == 404
        else:
            assert ask(broker, method, path.replace("/t/", "/absent/"), value_of(policy))[0] == 404
            of_partition = path.replace("/t/", "/t-partition-0/")
            assert ask(broker, method, of_partition, value_of(policy))[0] == 412


def test_the_most_specific_level_applies(broker: BrokerThread) -> None:
    """The topic's, its global one, the namespace's, the broker's."""
    applied = f"{TOPIC}/maxProducers?applied=true"
    assert ask(broker, "GET", applied) == (200, 0)
    ask(broker, "POST", f"{NAMESPACE}/maxProducersPerTopic", 5)
    assert ask(broker, "GET", applied) == (200, 5)
    ask(broker, "POST", f"{TOPIC}/maxProducers?isGlobal=true", 6)
    assert ask(broker, "GET", applied) == (200, 6)
    assert ask(broker, "GET", f"{TOPIC}/maxProducers") == (200, None)
    ask(broker, "POST", f"{TOPIC}/maxProducers", 7)
    assert ask(broker, "GET", applied) == (200, 7)
    ask(broker, "DELETE", f"{TOPIC}/maxProducers")
    ask(broker, "DELETE", f"{TOPIC}/maxProducers?isGlobal=true")
    ask(broker, "DELETE", f"{NAMESPACE}/maxProducersPerTopic")
    assert ask(broker, "GET", applied) == (200, 0)


def test_topics_without_policies_of_their_own() -> None:
    """With topicLevelPoliciesEnabled=false they are refused, namespaces have theirs."""
    with running_broker(topic_level_policies_enabled=False) as broker:
        ask(broker, "PUT", TOPIC)
        assert ask(broker, "POST", f"{TOPIC}/maxProducers", 1)[0] == 405
        assert ask(broker, "POST", f"{NAMESPACE}/maxProducersPerTopic", 1)[0] == 204


def test_over_a_restart(tmp_path: Path) -> None:
    """Every value of a namespace and of a topic is there again, also in the namespace's JSON."""
    with running_broker(data_dir=tmp_path) as broker:
        ask(broker, "PUT", TOPIC)
        for policy, place, path in places():
            assert put(broker, place, path, value_of(policy))[0] < 300
        shown = ask(broker, "GET", NAMESPACE)
    with running_broker(data_dir=tmp_path) as broker:
        for policy, _, path in places():
            assert ask(broker, "GET", path) == (200, value_of(policy))
        assert ask(broker, "GET", NAMESPACE) == shown
        body = shown[1]
        assert body["topicDispatchRate"] == {"standalone": RATE}
        made = "/admin/v2/namespaces/public/copy"
        assert ask(broker, "PUT", made, body) == (204, None)
        assert ask(broker, "GET", made) == shown


def test_quotas(broker: BrokerThread) -> None:
    """One of each type; without a policy, or above retention, it is refused."""
    quota = {"limit": 10, "limitSize": 10, "limitTime": 0, "policy": "producer_exception"}
    for base in (NAMESPACE, TOPIC):
        path = f"{base}/backlogQuota"
        given = {"limitSize": 10, "policy": "producer_exception"}
        assert ask(broker, "POST", path, given) == (204, None)
        assert ask(broker, "POST", f"{path}?backlogQuotaType=message_age", given) == (204, None)
        both = {"destination_storage": quota, "message_age": quota}
        assert ask(broker, "GET", f"{path}Map") == (200, both)
        assert ask(broker, "POST", path, {"limitSize": 10})[0] == 400
        assert ask(broker, "POST", f"{path}?backlogQuotaType=x", given)[0] == 404
        assert ask(broker, "DELETE", path) == (204, None)
        assert ask(broker, "GET", f"{path}Map") == (200, {"message_age": quota})
        assert ask(broker, "DELETE", f"{path}?backlogQuotaType=message_age") == (204, None)
        assert ask(broker, "GET", f"{path}Map") == (200, {})
    retention = {"retentionTimeInMinutes": 1, "retentionSizeInMB": 1}
    ask(broker, "POST", f"{NAMESPACE}/retention", retention)
    large = {"limitSize": 1 << 30, "policy": "producer_exception"}
    assert ask(broker, "POST", f"{NAMESPACE}/backlogQuota", large)[0] == 412
    ask(broker, "DELETE", f"{NAMESPACE}/retention")
    assert ask(broker, "POST", f"{NAMESPACE}/backlogQuota", large) == (204, None)
    for base in (NAMESPACE, TOPIC):
        status, reason = ask(broker, "POST", f"{base}/retention", retention)
        assert (status, "Retention Quota must exceed" in reason) == (412, True)
    ask(broker, "DELETE", f"{NAMESPACE}/backlogQuota")


def test_properties(broker: BrokerThread) -> None:
    """They are added to those that are there."""
    assert ask(broker, "PUT", f"{NAMESPACE}/properties", {"a": "b"}) == (204, None)
    assert ask(broker, "PUT", f"{NAMESPACE}/property/c/d") == (204, None)
    assert ask(broker, "GET", f"{NAMESPACE}/properties") == (200, {"a": "b", "c": "d"})
    assert ask(broker, "DELETE", f"{NAMESPACE}/properties") == (204, None)
    assert ask(broker, "GET", f"{NAMESPACE}/properties") == (200, {})
    assert ask(broker, "PUT", f"{NAMESPACE}/properties", [1])[0] == 400


@pytest.mark.parametrize("target", ["public/default", "t"])
def test_the_command_sets_each(
    broker: BrokerThread, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`pulsemark policies set|get|unset` for every policy whose value is JSON."""
    url = ["--admin-url", broker.http_url]
    done = 0
    for policy, place, _ in places():
        ours = policy.is_ours or policy.name in ("retention", "messageTTL", "compactionThreshold")
        level = policy.namespace if "/" in target else policy.topic
        if ours or place is not level:
            continue
        value = value_of(policy)
        arguments = [target, policy.name]
        assert main(["policies", "set", *arguments, "--value", json.dumps(value), *url]) == 0
        capsys.readouterr()
        assert main(["policies", "get", *arguments, *url]) == 0
        assert json.loads(capsys.readouterr().out) == value
        if place.is_removable:
            assert main(["policies", "unset", *arguments, *url]) == 0
        done += 1
    assert done > 15
    quota = '{"limitTime": 5, "policy": "producer_request_hold"}'
    arguments = [target, "backlogQuota"]
    kind = ["--type", "message_age"]
    assert main(["policies", "set", *arguments, "--value", quota, *kind, *url]) == 0
    capsys.readouterr()
    assert main(["policies", "get", *arguments, *url]) == 0
    assert list(json.loads(capsys.readouterr().out)) == ["message_age"]
    assert main(["policies", "unset", *arguments, *kind, *url]) == 0


def test_the_command_refuses(broker: BrokerThread, capsys: pytest.CaptureFixture[str]) -> None:
    """What is not JSON, a level that a policy does not have, and options of others."""
    url = ["--admin-url", broker.http_url]
    for arguments in (
        ["set", "public/default", "maxProducersPerTopic", "--value", "{"],
        ["set", "public/default", "maxMessageSize", "--value", "1"],
        ["set", "t", "maxTopicsPerNamespace", "--value", "1"],
        ["set", "t", "maxProducersPerTopic", "--bytes", "1"],
        ["set", "t", "maxProducersPerTopic", "--value", "1", "--type", "message_age"],
        ["unset", "public/default", "encryptionRequired"],
    ):
        assert main(["policies", *arguments, *url]) == 2, arguments
    assert "not JSON" in capsys.readouterr().err

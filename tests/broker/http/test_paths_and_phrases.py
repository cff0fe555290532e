"""Which methods a path has, what an absent partition is answered with, and the status line."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from pulsemark.broker import BrokerConfig, BrokerThread
from pulsemark.broker.http.messages import Response

ADMIN = "/admin/v2"
NAMESPACE = f"{ADMIN}/namespaces/public/default"


class Asked:
    """An answer: status, phrase, Allow and body."""

    def __init__(self, broker: BrokerThread, method: str, path: str, body: str = "") -> None:
        parts = urlsplit(broker.http_url)
        connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=60)
        headers = {"Content-Type": "application/json"} if body else {}
        connection.request(method, path, body or None, headers)
        with connection.getresponse() as answer:
            self.status, self.phrase = answer.status, answer.reason
            self.allow = answer.headers.get("Allow", "")
            self.body = answer.read().decode()
        connection.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    """A broker with a partitioned topic, and topics in memory."""
    folder: Path = tmp_path_factory.mktemp("paths") / "data"
    with BrokerThread(BrokerConfig(data_dir=folder, port=0, http_port=0)) as started:
        topics = f"{ADMIN}/persistent/public/default"
        assert Asked(started, "PUT", f"{topics}/p/partitions", "2").status == 204
        in_memory = f"{ADMIN}/non-persistent/public/default"
        assert Asked(started, "PUT", f"{in_memory}/np/partitions", "2").status == 204
        assert Asked(started, "PUT", f"{in_memory}/n").status == 204
        yield started


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        (f"{NAMESPACE}/backlogQuotaMap", "GET,OPTIONS"),
        (f"{NAMESPACE}/clearBacklog", "POST,OPTIONS"),
        (f"{NAMESPACE}/replication", "POST,GET,OPTIONS"),
        (f"{NAMESPACE}/retention", "DELETE,POST,GET,OPTIONS"),
    ],
)
def test_only_the_most_specific_path_has_methods(
    broker: BrokerThread, path: str, allowed: str
) -> None:
    """The method that deletes a bundle does not belong to a policy, whose path would fit, too."""
    answer = Asked(broker, "PATCH", path)
    assert (answer.status, answer.allow) == (405, allowed)


def test_partitioned_topics_in_memory_are_listed_and_no_bundle(broker: BrokerThread) -> None:
    """`partitioned` goes before the name of a bundle."""
    answer = Asked(broker, "GET", f"{ADMIN}/non-persistent/public/default/partitioned")
    assert answer.body == '["non-persistent://public/default/np"]'


@pytest.mark.parametrize("topic", ["absent", "p-partition-7", "x-partition-0"])
def test_an_absent_topic_is_named(broker: BrokerThread, topic: str) -> None:
    """Also a partition, whether its partitioned topic is there or not."""
    answer = Asked(broker, "GET", f"{ADMIN}/persistent/public/default/{topic}/stats")
    reason = f"Topic persistent://public/default/{topic} not found"
    assert (answer.status, answer.phrase) == (404, reason)
    assert answer.body == f'{{"reason":"{reason}"}}'


#: The reason for what concerns stored messages.
NOT_STORED = "is not stored"


@pytest.mark.parametrize(
    ("method", "path", "status", "reason"),
    [
        ("GET", "np/examinemessage", 405, "Examine messages on a partitioned topic"),
        ("GET", "n/examinemessage", 405, NOT_STORED),
        ("GET", "n/ledger/1/entry/1", 405, NOT_STORED),
        ("POST", "n/subscription/s/skip/1", 405, NOT_STORED),
        ("DELETE", "np/subscription/s", 404, "Subscription not found"),
        ("POST", "n/subscription/s/resetcursor/0", 404, "Subscription s not found for topic"),
        ("POST", "n/terminate/partitions", 405, "Termination of a non-partitioned topic"),
        ("POST", "n/trim", 405, NOT_STORED),
        ("POST", "np/trim", 405, NOT_STORED),
        ("POST", "absent/trim", 404, "not found"),
        ("GET", "n/subscription/s/replicatedSubscriptionStatus", 405, NOT_STORED),
        ("POST", "n/subscription/s/analyzeBacklog", 405, NOT_STORED),
        ("POST", "n/terminate", 406, NOT_STORED),
        ("PUT", "n/properties", 406, NOT_STORED),
        ("GET", "absent/properties", 406, NOT_STORED),
        ("POST", "n/all_subscription/expireMessages/1", 405, NOT_STORED),
    ],
)
def test_operations_on_what_is_stored_are_refused_for_topics_in_memory(
    broker: BrokerThread, method: str, path: str, status: int, reason: str
) -> None:
    """Each with Pulsar's status and a reason, also for partitioned topics."""
    answer = Asked(broker, method, f"{ADMIN}/non-persistent/public/default/{path}")
    assert answer.status == status
    assert reason in answer.body


def test_missed_partitions_of_topics_in_memory_are_a_success(broker: BrokerThread) -> None:
    """There is nothing to create: they begin with their clients."""
    path = f"{ADMIN}/non-persistent/public/default/np/createMissedPartitions"
    assert Asked(broker, "POST", path).status == 204


def test_the_status_line_has_no_line_breaks_of_a_reason() -> None:
    """What a status line may not have becomes a question mark; the body keeps it."""
    answer = Response.of_error(500, "first\nsecond \u20ac")
    assert answer.status_phrase == b"first?second ?"
    assert json.loads(answer.body)["reason"] == "first\nsecond \u20ac"


def test_usual_phrases(broker: BrokerThread) -> None:
    """Other answers have the phrase of their status."""
    assert Asked(broker, "GET", f"{ADMIN}/clusters").phrase == "OK"
    assert Asked(broker, "GET", f"{ADMIN}/nothing").phrase == "Not Found"
    assert Asked(broker, "GET", f"{ADMIN}/clusters/a{{b").status == 400


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "text"),
    [
        ("PUT", f"{ADMIN}/tenants/x", "[", 400, "the body is not JSON"),
        ("PUT", f"{ADMIN}/tenants/x", "NaN", 400, "the body is not JSON: NaN is no"),
        ("POST", f"{NAMESPACE}/replication", '["global"]', 412, "Cannot specify global"),
    ],
)
def test_bodies_that_are_refused_for_another_reason_first(
    broker: BrokerThread, method: str, path: str, body: str, status: int, text: str
) -> None:
    """Pulsar's first reason is the answer."""
    answer = Asked(broker, method, path, body)
    assert answer.status == status
    assert text in answer.body


def test_unknown_fields_of_a_new_namespace_are_not_kept(broker: BrokerThread) -> None:
    """The namespace's policies have only what Pulsar's have."""
    path = f"{ADMIN}/namespaces/public/fields"
    assert Asked(broker, "PUT", path, '{"zzz":1,"max_producers_per_topic":3}').status == 204
    shown = json.loads(Asked(broker, "GET", path).body)
    assert shown["max_producers_per_topic"] == 3
    assert "zzz" not in shown

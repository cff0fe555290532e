"""Permissions over REST: as pulsar-admin grants, shows and revokes them, and what they change."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsemark.broker import BrokerThread
from pulsemark.client import RequestRefusedError
from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.testing import RawClient
from pulsemark.wire import commands
from tests.support.secured import rest, secured_broker, set_up, token_of

NAMESPACE = "/admin/v2/namespaces/acme/ns"
PERMISSIONS = f"{NAMESPACE}/permissions"
TOPIC = "persistent://acme/ns/orders"
ON_TOPIC = "/admin/v2/persistent/acme/ns/orders"
BOSS = token_of("boss")
_T = pb.BaseCommand.Type


@pytest.fixture
def secured() -> Iterator[BrokerThread]:
    """A broker with the tenants and permissions of `set_up`."""
    with secured_broker() as broker:
        set_up(broker)
        assert rest(broker, "PUT", ON_TOPIC, BOSS).status == 204
        yield broker


def connect(broker: BrokerThread, role: str) -> RawClient:
    """A connection with a role."""
    return RawClient.from_url(
        broker.service_url, auth_method_name="token", auth_data=token_of(role).encode()
    )


def test_namespaces(secured: BrokerThread) -> None:
    """A grant replaces the role's actions; a revocation of nothing succeeds, as in Pulsar."""
    assert rest(secured, "POST", f"{PERMISSIONS}/x", BOSS, ["consume"]).status == 204
    granted = rest(secured, "POST", f"{PERMISSIONS}/x", BOSS, ["functions", "produce", "produce"])
    assert granted.status == 204
    assert granted.body == b""
    shown = rest(secured, "GET", PERMISSIONS, BOSS).json
    assert shown["x"] == ["produce", "functions"]
    assert shown["reader"] == ["consume"]
    for _ in range(2):
        assert rest(secured, "DELETE", f"{PERMISSIONS}/x", BOSS).status == 204
    assert "x" not in rest(secured, "GET", PERMISSIONS, BOSS).json
    policies = rest(secured, "GET", NAMESPACE, BOSS).json["auth_policies"]
    assert policies["namespace_auth"]["writer"] == ["produce"]


def test_topics_are_shown_with_their_namespace(secured: BrokerThread) -> None:
    """A role's actions on a topic are those of the topic and of the namespace together."""
    assert rest(secured, "POST", f"{ON_TOPIC}/permissions/reader", BOSS, ["produce"]).status == 204
    assert rest(secured, "POST", f"{ON_TOPIC}/permissions/y", BOSS, ["consume"]).status == 204
    shown = rest(secured, "GET", f"{ON_TOPIC}/permissions", BOSS).json
    assert shown["reader"] == ["produce", "consume"]
    assert shown["y"] == ["consume"]
    assert rest(secured, "GET", f"{ON_TOPIC}/stats", token_of("y")).status == 200
    assert rest(secured, "DELETE", f"{ON_TOPIC}/permissions/y", BOSS).status == 204
    assert rest(secured, "GET", f"{ON_TOPIC}/stats", token_of("y")).status == 401
    absent = rest(secured, "POST", "/admin/v2/persistent/acme/ns/no/permissions/y", BOSS, [])
    assert absent.status == 404


def test_a_deleted_topic_takes_its_permissions_along(secured: BrokerThread) -> None:
    """A topic that is made again under the name does not inherit them."""
    assert rest(secured, "POST", f"{ON_TOPIC}/permissions/y", BOSS, ["consume"]).status == 204
    assert rest(secured, "DELETE", ON_TOPIC, BOSS).status == 204
    assert rest(secured, "PUT", ON_TOPIC, BOSS).status == 204
    assert "y" not in rest(secured, "GET", f"{ON_TOPIC}/permissions", BOSS).json


def test_subscriptions(secured: BrokerThread) -> None:
    """A subscription can be restricted to roles."""
    restricted = f"{PERMISSIONS}/subscription/s1"
    assert rest(secured, "POST", restricted, BOSS, ["both", "z"]).status == 204
    assert rest(secured, "GET", f"{PERMISSIONS}/subscription", BOSS).json == {"s1": ["both", "z"]}
    place = f"{ON_TOPIC}/subscription/s1"
    assert rest(secured, "PUT", place, token_of("reader")).status == 401
    assert rest(secured, "PUT", place, token_of("both")).status == 204
    expire_all = f"{ON_TOPIC}/all_subscription/expireMessages/1"
    assert rest(secured, "POST", expire_all, token_of("reader")).status == 401
    assert rest(secured, "DELETE", f"{PERMISSIONS}/s1/z", BOSS).status == 204
    assert rest(secured, "GET", f"{PERMISSIONS}/subscription", BOSS).json == {"s1": ["both"]}
    with connect(secured, "reader") as reader:
        with pytest.raises(RequestRefusedError, match="not authorized to subscribe"):
            reader.subscribe(TOPIC, "s1")
        reader.subscribe(TOPIC, "s2")


def test_names_of_subscriptions_must_begin_with_the_role_in_mode_prefix(
    secured: BrokerThread,
) -> None:
    """The mode is set, shown and in force."""
    mode = f"{NAMESPACE}/subscriptionAuthMode"
    assert rest(secured, "GET", mode, BOSS).json == "None"
    assert rest(secured, "POST", mode, BOSS, "Prefix").status == 204
    for unknown in ("Sometimes", "prefix", "", 5, ["None"]):
        assert rest(secured, "POST", mode, BOSS, unknown).status == 400
        assert rest(secured, "GET", mode, BOSS).json == "Prefix"
    with connect(secured, "reader") as reader:
        with pytest.raises(RequestRefusedError, match="not authorized to subscribe"):
            reader.subscribe(TOPIC, "s")
        reader.subscribe(TOPIC, "reader-s")
    assert rest(secured, "POST", mode, BOSS).status == 204
    assert rest(secured, "GET", mode, BOSS).json == "None"


def test_mode_prefix_closes_consumers_that_it_forbids(secured: BrokerThread) -> None:
    """Those whose subscription's name begins with their role stay."""
    with connect(secured, "reader") as reader:
        closed = reader.subscribe(TOPIC, "s")
        kept = reader.subscribe(TOPIC, "reader-s")
        mode = f"{NAMESPACE}/subscriptionAuthMode"
        assert rest(secured, "POST", mode, BOSS, "Prefix").status == 204
        assert reader.wait_unsolicited(_T.CLOSE_CONSUMER).consumer_id == closed.consumer_id
        reader.ping()
        assert not kept.is_closed


def test_a_namespaces_subscriptions_are_cleared_only_by_their_roles(secured: BrokerThread) -> None:
    """Whatever the path, a subscription of other roles keeps its backlog."""
    for name in ("own", "mine"):
        assert rest(secured, "PUT", f"{ON_TOPIC}/subscription/{name}", BOSS).status == 204
    restricted = f"{PERMISSIONS}/subscription/mine"
    assert rest(secured, "POST", restricted, BOSS, ["both"]).status == 204
    with connect(secured, "boss") as boss:
        boss.create_producer(TOPIC).send(b"x")

    def backlogs() -> dict[str, int]:
        found = rest(secured, "GET", f"{ON_TOPIC}/stats", BOSS).json["subscriptions"]
        return {name: found[name]["msgBacklog"] for name in sorted(found)}

    def statuses(role: str, path: str) -> set[int]:
        ends = rest(secured, "GET", f"{NAMESPACE}/bundles", token_of(role)).json["boundaries"]
        bundles = [f"{low}_{high}/" for low, high in itertools.pairwise(ends)]
        paths = [f"{NAMESPACE}/{bundle}{path}" for bundle in ("", *bundles)]
        return {rest(secured, "POST", each, token_of(role)).status for each in paths}

    for path in ("clearBacklog", "clearBacklog/", "clearBacklog/mine", "unsubscribe/mine"):
        assert statuses("reader", path) == {403}, path
    assert statuses("reader", "clearBacklog//") == {404}
    assert statuses("writer", "clearBacklog/own") == {403}
    assert backlogs() == {"mine": 1, "own": 1}
    assert statuses("reader", "clearBacklog/own") == {204}
    assert backlogs() == {"mine": 1, "own": 0}
    rest(secured, "POST", f"{NAMESPACE}/subscriptionAuthMode", BOSS, "Prefix")
    for path in ("clearBacklog", "clearBacklog/mine", "unsubscribe/own"):
        assert statuses("both", path) == {403}, path
    rest(secured, "POST", f"{NAMESPACE}/subscriptionAuthMode", BOSS, "None")
    assert backlogs() == {"mine": 1, "own": 0}
    assert statuses("both", "clearBacklog") == {204}
    assert backlogs() == {"mine": 0, "own": 0}
    assert statuses("both", "unsubscribe/mine") == {204}
    assert backlogs() == {"own": 0}


@pytest.mark.parametrize("body", [["fly"], {"a": 1}, "consume", 5, [5], None])
def test_bad_grants_change_nothing(secured: BrokerThread, body: object) -> None:
    """What is no list of actions is refused with 400, and the role keeps what it had."""
    assert rest(secured, "POST", f"{PERMISSIONS}/reader", BOSS, body).status == 400
    assert rest(secured, "GET", PERMISSIONS, BOSS).json["reader"] == ["consume"]


def test_bad_permissions_of_a_new_namespace_are_refused(secured: BrokerThread) -> None:
    """The policies with which a namespace is made are checked like a grant."""
    new = "/admin/v2/namespaces/acme/new"
    first: Any = {"namespace_auth": {"x": "consume"}}
    others: list[Any] = [{"other": {}}, [], {"destination_auth": 5}]
    for bad in (first, *others):
        assert rest(secured, "PUT", new, BOSS, {"auth_policies": bad}).status == 400
        assert rest(secured, "GET", new, BOSS).status == 404
    good = {"auth_policies": {"namespace_auth": {"q": ["consume"]}}}
    assert rest(secured, "PUT", new, BOSS, good).status == 204
    assert rest(secured, "GET", f"{new}/permissions", BOSS).json == {"q": ["consume"]}
    assert (
        rest(secured, "PUT", "/admin/v2/tenants/t", token_of("admin"), {"adminRoles": "x"}).status
        == 400
    )


def test_permissions_survive_a_restart(tmp_path: Path) -> None:
    """They are durable when a grant is answered."""
    with secured_broker(data_dir=tmp_path) as broker:
        set_up(broker)
        rest(broker, "PUT", ON_TOPIC, BOSS)
        rest(broker, "POST", f"{ON_TOPIC}/permissions/y", BOSS, ["produce"])
        rest(broker, "POST", f"{PERMISSIONS}/subscription/s1", BOSS, ["both"])
    with secured_broker(data_dir=tmp_path) as broker:
        assert rest(broker, "GET", f"{ON_TOPIC}/permissions", BOSS).json["y"] == ["produce"]
        assert rest(broker, "GET", f"{PERMISSIONS}/subscription", BOSS).json == {"s1": ["both"]}
        assert rest(broker, "GET", f"{ON_TOPIC}/stats", token_of("reader")).status == 200


def test_a_revocation_closes_producers_and_consumers(secured: BrokerThread) -> None:
    """Both are closed by the broker, their reopening is refused, and others stay."""
    with connect(secured, "both") as client, connect(secured, "writer") as other:
        producer = client.create_producer(TOPIC)
        consumer = client.subscribe(TOPIC, "s", earliest=True)
        consumer.flow(10)
        kept = other.create_producer(TOPIC)
        assert rest(secured, "DELETE", f"{PERMISSIONS}/both", BOSS).status == 204
        closed = client.wait_unsolicited(_T.CLOSE_PRODUCER)
        assert closed.producer_id == producer.producer_id
        assert client.wait_unsolicited(_T.CLOSE_CONSUMER).consumer_id == consumer.consumer_id
        kept.send(b"after")
        for open_again in (client.create_producer, lambda name: client.subscribe(name, "s")):
            with pytest.raises(RequestRefusedError) as refusal:
                open_again(TOPIC)
            assert refusal.value.error == pb.AuthorizationError
        client.ping()
        stats = rest(secured, "GET", f"{ON_TOPIC}/stats", BOSS).json
        assert len(stats["publishers"]) == 1
        assert stats["subscriptions"]["s"]["consumers"] == []
        assert stats["msgInCounter"] == 1


def test_an_administrator_who_is_dismissed_loses_the_tenant(secured: BrokerThread) -> None:
    """`adminRoles` hold from the next request on, and for what is open already."""
    with connect(secured, "boss") as client:
        client.create_producer(TOPIC)
        changed = rest(
            secured, "POST", "/admin/v2/tenants/acme", token_of("admin"), {"adminRoles": ["next"]}
        )
        assert changed.status == 204
        client.wait_unsolicited(_T.CLOSE_PRODUCER)
    assert rest(secured, "GET", PERMISSIONS, BOSS).status == 403
    assert rest(secured, "GET", PERMISSIONS, token_of("next")).status == 200


def test_a_revocation_while_a_producer_opens_is_seen(secured: BrokerThread) -> None:
    """Whatever the order of a revocation and an opening: afterwards nothing is open."""
    deadline_s = time.monotonic() + 60
    for number in range(20):
        path = f"/admin/v2/persistent/acme/ns/{number}/stats"
        assert time.monotonic() < deadline_s
        rest(secured, "POST", f"{PERMISSIONS}/both", BOSS, ["produce", "consume"])
        with connect(secured, "both") as client:
            name = f"persistent://acme/ns/{number}"
            client.write(commands.producer(name, 1, client.new_id()))
            rest(secured, "DELETE", f"{PERMISSIONS}/both", BOSS)
            client.ping()
            stats = rest(secured, "GET", path, BOSS)
            while stats.status == 200 and stats.json["publishers"]:
                assert time.monotonic() < deadline_s, "a producer stayed open"
                stats = rest(secured, "GET", path, BOSS)

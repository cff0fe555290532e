"""Names and paths in odd spellings never lead to what their writer may not use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from pulsemark.broker import BrokerThread
from pulsemark.client import RequestRefusedError
from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.testing import RawClient
from pulsemark.wire import commands
from tests.support.attackers import attacked_broker, signed, state_of
from tests.support.secured import rest, set_up

PATHS = (
    "/admin/v2/persistent/other/ns/secret/stats",
    "//admin//v2//persistent/other/ns/secret/stats",
    "/admin/v2/persistent/acme%2Fns/x/secret/stats",
    "/admin/v2/persistent/acme/..%2f..%2fother%2fns/secret/stats",
    "/admin/v2/persistent/acme/ns/../../other/ns/secret/stats",
    "/admin/v2/persistent/acme/ns/%2e%2e/stats",
    "/admin/v2/persistent/acme/ns/t%00/stats",
    "/admin/v2/persistent/Other/ns/secret/stats",
    "/admin/v2/persistent/other%20/ns/secret/stats",
    "/admin/v2/persistent/%6fther/ns/secret/stats",
    "/admin/v2/PERSISTENT/other/ns/secret/stats",
    "/admin/v2/non-persistent/other/ns/secret/stats",
    "/admin/v2/persistent/other/ns/secret-partition-0/stats",
    "/admin/v2/persistent/other/ns/secret/stats/",
    "/admin/v2/persistent/other/ns/secret/stats?x=1#y",
    "/admin/v2/persistent/other/ns/secret/stats;a=b",
    "/metrics/../admin/v2/tenants",
    "/metrics%2f..%2fadmin/v2/tenants",
    "/status.html/../admin/v2/tenants",
    "/./admin/v2/tenants",
    "/admin/v2/tenants//",
    "http://127.0.0.1/admin/v2/tenants",
    "/ws/v2/producer/persistent/acme/ns/t",
    "/lookup/v2/topic/persistent/other/ns/secret",
    "/admin/v2/schemas/other/ns/secret/schema",
    "/admin/v2/namespaces/other/ns/permissions/subscription",
    "/admin/persistent/other/standalone/ns/secret/stats",
    "/admin/persistent/acme/standalone/ns/t/stats",
    "/admin/persistent/acme/standalone/ns/t",
    "/admin/v2/persistent/acme/ns/a%2Fb",
    "/admin/v2/persistent/acme%2Fns/x/secret",
    "/admin/namespaces/acme/standalone/ns",
    "/admin/namespaces/other/standalone",
    "/admin/schemas/other/standalone/ns/secret/schema",
    "/lookup/v2/destination/persistent/other/standalone/ns/secret",
)
#: Names for a role that may consume from `persistent://acme/ns/p` and its partitions only.
NAMES = (
    "p",
    "secret",
    "other/ns/secret",
    "persistent://other/ns/secret",
    "persistent://acme/ns2/p",
    "persistent://acme/ns/p-partition-01",
    "persistent://acme/ns/p-partition--1",
    "persistent://acme/ns/p-partition-1-partition-0",
    "persistent://acme/ns/p-partition-99999999999",
    "non-persistent://acme/ns/p",
    "persistent://acme/ns/p ",
    "persistent://acme/ns/P",
    "persistent://acme/ns/\u0440",
    "Persistent://acme/ns/p",
    "persistent://acme/ns/../p",
    "persistent://acme/ns//p",
    "persistent:///acme/ns/p",
    "persistent://acme/standalone/ns/p",
    "persistent://acme/ns/p/x",
    "persistent://acme/ns/x/p",
    "persistent://acme/ns/p\x00",
    "",
)
MAKERS: dict[str, Callable[[str, int], bytes]] = {
    "lookup": commands.lookup,
    "partitions": commands.partitioned_metadata,
    "producer": lambda name, number: commands.producer(name, number, number),
    "consumer": lambda name, number: commands.subscribe(name, "s", number, number),
    "schema": commands.get_schema,
}


@pytest.fixture(scope="module")
def attacked() -> Iterator[BrokerThread]:
    """A broker with topics of two tenants, and a role with a right on one topic."""
    with attacked_broker() as broker:
        set_up(broker, signed("admin"))
        boss = signed("boss")
        for method, path, token, body in (
            ("PUT", "/admin/v2/persistent/acme/ns/p/partitions", boss, 2),
            ("PUT", "/admin/v2/persistent/other/ns/secret", signed("stranger"), None),
            ("POST", "/admin/v2/persistent/acme/ns/p/permissions/narrow", boss, ["consume"]),
        ):
            assert rest(broker, method, path, token, body).status == 204
        yield broker


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("role", ["reader", None])
def test_paths(attacked: BrokerThread, path: str, role: str | None) -> None:
    """No path shows another tenant's topic, or what is for super users."""
    for method in ("GET", "HEAD", "POST", "PUT", "DELETE"):
        answer = rest(attacked, method, path, None if role is None else signed(role))
        assert answer.status >= 400, (method, answer.body[:200])


@pytest.mark.parametrize("name", NAMES)
def test_names(attacked: BrokerThread, name: str) -> None:
    """No spelling of a name has the rights of another one, and none makes a topic."""
    before = state_of(attacked)
    auth = {"auth_method_name": "token", "auth_data": signed("narrow").encode()}
    for what, make in MAKERS.items():
        with (
            RawClient.from_url(attacked.service_url, **auth) as client,
            pytest.raises(RequestRefusedError) as refusal,
        ):
            client.request(partial(make, name))
        assert refusal.value.error in (pb.AuthorizationError, pb.InvalidTopicName), what
    assert state_of(attacked) == before


def test_the_names_of_partitions_have_their_topic_s_rights(attacked: BrokerThread) -> None:
    """A right on a partitioned topic is one on its partitions, and makes no others."""
    auth = {"auth_method_name": "token", "auth_data": signed("narrow").encode()}
    with RawClient.from_url(attacked.service_url, **auth) as client:
        client.subscribe("persistent://acme/ns/p-partition-1", "s")
        with pytest.raises(RequestRefusedError, match="TopicNotFound"):
            client.subscribe("persistent://acme/ns/p-partition-7", "s")


def test_a_proxy_s_header_cannot_be_used_by_others(attacked: BrokerThread) -> None:
    """`X-Original-Principal` gives no client the rights of the role that it names."""
    path = "/admin/v2/tenants"
    for role in ("reader", "proxy"):
        for original in ("admin", "reader", " ", "proxy"):
            headers = {"X-Original-Principal": original}
            assert rest(attacked, "GET", path, signed(role), headers=headers).status == 401

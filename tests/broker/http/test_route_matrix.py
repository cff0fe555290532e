"""Every REST route with every kind of credentials: nothing allowed that should not be.

The rows are the broker's own table of routes, so a new route is tried here too, and fails without a
value for the names in its path.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from pulsemark.broker import BrokerThread
from pulsemark.broker.http import brokers
from pulsemark.broker.http.route import Route
from pulsemark.broker.http.routing import OF_THE_BROKER, all_routes, part_of
from pulsemark.broker.security import needs
from pulsemark.broker.security.needs import Scope
from tests.support.attackers import (
    attacked_broker,
    forged,
    role_with,
    roles_without,
    signed,
    state_of,
)
from tests.support.secured import rest, set_up

#: A value for each name in a template.
VALUES = {
    "tenant": "acme",
    "namespace": "ns",
    "topic": "t",
    "domain": "persistent",
    "subscription": "s",
    "role": "x",
    "cluster": "standalone",
    "time": "1",
    "seconds": "1",
    "count": "1",
    "ledger": "0",
    "entry": "0",
    "version": "0",
    "bundle": "0x00000000_0x40000000",
    "number": "1",
    "shortest_ms": "1",
    "position": "1",
    "name": "x",
    "domain_name": "x",
    "key": "x",
    "value": "x",
    "group": "x",
    "broker": "x",
    "policy": "x",
    "bookie": "x",
    "allocator": "x",
    "instance": "0",
    "type": "function",
    "package": "x",
    "id": "0",
    "timeout": "1",
    "most": "0",
    "least": "0",
}
#: Bodies that the route takes, so that a request that is let through does something.
BODIES: dict[str, Any] = {
    "permissions/{role}": ["consume"],
    "permissions/subscription/{subscription}": ["x"],
    "subscriptionAuthMode": "Prefix",
    "partitions": 3,
}
REFUSED = (401, 403)


@pytest.fixture(scope="module")
def attacked() -> Iterator[BrokerThread]:
    """A broker whose tenant has a topic with a subscription."""
    with attacked_broker() as broker:
        prepare(broker)
        yield broker


def prepare(broker: BrokerThread) -> None:
    """Make what routes use, if it is not there (any more)."""
    admin, boss, topic = signed("admin"), signed("boss"), "/admin/v2/persistent/acme/ns/t"
    set_up(broker, admin)
    rest(broker, "POST", "/admin/v2/tenants/acme", admin, {"adminRoles": ["boss"]})
    rest(broker, "POST", "/admin/v2/namespaces/acme/ns/subscriptionAuthMode", boss, "None")
    rest(broker, "DELETE", "/admin/v2/namespaces/acme/ns/permissions/s/x", boss)
    rest(broker, "PUT", topic, boss)
    rest(broker, "PUT", f"{topic}/subscription/s", boss)


def path_of(route: Route) -> str:
    """A path of a route."""
    path = route.path
    for name in route.names:
        assert name in VALUES, f"VALUES needs a value for {{{name}}}, for {route.path}"
        path = path.replace(f"{{{name}}}", VALUES[name])
    return path


def body_of(route: Route) -> Any:
    """A body for a route."""
    for end, body in BODIES.items():
        if route.path.endswith(end) and route.method in ("PUT", "POST"):
            return body
    return None


def row_id(row: Any) -> str:
    """The name of a row in pytest's output."""
    return f"{row.method} {row.path}" if isinstance(row, Route) else str(row)


def test_few_routes_need_no_permission() -> None:
    """Only these show the same to every client, or what it may see; none changes anything."""
    admin = "/admin/v2"
    found = {
        scope: {
            (route.method, route.path) for route in all_routes() if route.permission.scope is scope
        }
        for scope in (Scope.OPEN, Scope.AUTHENTICATED, Scope.OWN)
    }
    assert found[Scope.OPEN] <= {("GET", path) for path in ("/", "/metrics", "/status.html")}
    paths = (f"{admin}/clusters", f"{admin}/brokers/ready", f"{admin}/brokers/version")
    transaction = "/admin/v3/transactions/transactionMetadata/{most}/{least}"
    assert found[Scope.AUTHENTICATED] == {("GET", path) for path in (*paths, transaction)}
    assert not found[Scope.OWN]


@pytest.mark.parametrize("route", all_routes(), ids=row_id)
def test_refused(attacked: BrokerThread, route: Route) -> None:
    """Forged credentials and valid ones without the permission are refused, and change nothing."""
    need = route.permission
    if need.scope is Scope.OPEN:
        assert rest(attacked, route.method, path_of(route)).status == 200
        return
    before = state_of(attacked)
    cells = [*forged().items(), *((role, signed(role)) for role in roles_without(need))]
    for kind, token in cells:
        answer = rest(attacked, route.method, path_of(route), token, body_of(route))
        assert answer.status in REFUSED, f"{kind}: {answer.status} {answer.body[:200]!r}"
        assert b"Traceback" not in answer.body
    assert state_of(attacked) == before


@pytest.mark.parametrize("route", all_routes(), ids=row_id)
def test_allowed(attacked: BrokerThread, route: Route) -> None:
    """The role with just the right that it takes is let through, and so is a super user."""
    need = route.permission
    if need.scope is Scope.PEER:
        return  # no role is: another broker signs
    for role in dict.fromkeys((role_with(need), "admin")):
        answer = rest(attacked, route.method, path_of(route), signed(role), body_of(route))
        if route.method != "GET":
            prepare(attacked)
        assert answer.status not in REFUSED, f"{role}: {answer.status} {answer.body[:200]!r}"


def test_a_refusal_names_what_is_needed(attacked: BrokerThread) -> None:
    """The scope, the operation, and the topic or namespace."""
    prepare(attacked)
    for path, status, needed in (
        ("persistent/acme/ns/t/stats", 401, "topic GET_STATS of persistent://acme/ns/t"),
        ("namespaces/acme/ns/retention", 403, "namespace policy RETENTION READ of acme/ns"),
        ("brokers/health", 401, "super user, of a broker HEALTH_CHECK"),
    ):
        answer = rest(attacked, "GET", f"/admin/v2/{path}", signed("nobody"))
        found = answer.status, json.loads(answer.body)["reason"]
        assert found == (status, f"not permitted: {needed}")


@pytest.mark.parametrize("method", ["HEAD", "PATCH", "get"])
def test_other_methods_change_and_show_nothing(attacked: BrokerThread, method: str) -> None:
    """HEAD needs what GET needs; other methods never come to a handler."""
    prepare(attacked)
    before = state_of(attacked)
    for route in all_routes():
        need = route.permission
        if need.scope is Scope.OPEN:
            continue
        for token in (None, signed("nobody"), forged()["alg none"]):
            answer = rest(attacked, method, path_of(route), token)
            open_to_all = need.scope is Scope.AUTHENTICATED and token == signed("nobody")
            assert open_to_all or answer.status >= 400, (method, route.path)
            assert not answer.body or method != "HEAD"
    assert state_of(attacked) == before


def test_options_name_methods_and_nothing_else(attacked: BrokerThread) -> None:
    """Every role gets the same answer, as in Pulsar; without credentials there is none."""
    before = state_of(attacked)
    methods = {route.method for route in all_routes()} | {"HEAD", "OPTIONS"}
    closed = [route for route in all_routes() if route.permission.scope is not Scope.OPEN]
    for path in sorted(set(map(path_of, closed))):
        for token in (None, forged()["alg none"]):
            assert rest(attacked, "OPTIONS", path, token).status == 401, path
        answer, other = (rest(attacked, "OPTIONS", path, signed(r)) for r in ("nobody", "admin"))
        found, expected = (
            (one.status, one.body, {**one.headers, "date": ""}) for one in (answer, other)
        )
        assert answer.status == 200, path
        assert found == expected, path
        assert set(answer.body.decode().split(", ")) <= methods, path
    assert state_of(attacked) == before


def test_no_name_has_an_empty_value() -> None:
    """A path with nothing in the place of a name is another path, as in Pulsar."""
    for route in all_routes():
        values = [VALUES.get(part[1:-1], part) for part in route.parts]
        assert route.match(tuple(values)) is not None, route.path
        for place, part in enumerate(route.parts):
            if part.startswith("{"):
                empty = (*values[:place], "", *values[place + 1 :])
                assert route.match(empty) is None, (route.path, part)


def test_a_route_whose_path_does_not_name_what_it_is_about_fails_at_import() -> None:
    """A permission on a topic needs the topic's names in the path, and so on."""

    async def handler(*_: Any) -> Any:
        raise AssertionError

    for path, permission in (
        ("/admin/v2/new/{tenant}/{namespace}", needs.topic("CONSUME")),
        ("/admin/v2/new/{tenant}", needs.namespace("GET_TOPICS")),
        ("/admin/v2/new", needs.tenant_admin()),
        ("/n/{tenant}/{namespace}/{topic}/subscription/{name}", needs.topic("CONSUME")),
    ):
        with pytest.raises(LookupError, match="must have the names"):
            Route("GET", path, permission, handler)


def test_every_route_says_what_it_does() -> None:
    """The purpose is a sentence of the handler's docstring."""
    assert [route.path for route in all_routes() if not route.purpose.endswith((".", '"'))] == []


def test_no_two_routes_are_the_same() -> None:
    """A second route with the same method and shape would never be reached."""
    shapes = [
        (route.method, *("{}" if part.startswith("{") else part for part in route.parts))
        for route in all_routes()
        if "{domain}" not in route.path
    ]
    assert sorted({shape for shape in shapes if shapes.count(shape) > 1}) == []


def test_the_broker_alone_has_its_paths() -> None:
    """A request to one of these paths needs the routes of one module, and that has all of them."""
    there = [route for route in all_routes() if part_of(route.parts) in OF_THE_BROKER]
    assert set(there) == set(brokers.routes)

"""Hostile requests on every route: numbers, names, queries and bodies that a client may invent.

The rows are the broker's own table of routes. Whatever a client sends, the answer is no error of
the server (500), and the broker still serves the next request.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from urllib.parse import quote, urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pulsemark.broker import BrokerThread
from pulsemark.broker.http.route import Route
from pulsemark.broker.http.routing import all_routes
from pulsemark.testing import RawClient, running_broker
from tests.broker.http.test_route_matrix import VALUES, path_of

#: In the place of any name of a path, and as the value of any query.
NAMES = (
    "0", "-1", "+1", "-0", "1.5", "1e400", "NaN", str(2**31 - 1), str(2**31), str(-(2**31) - 1),
    str(2**63 - 1), str(2**63), str(2**64), "9" * 400, "x", " ", "\x00", "\u0661", "\ud7ff", "%",
    "a/b", "..", "p-partition-0", "t-partition-99999999999999999999", "0x0_0x1",
    "0x00000000_0xffffffff", "x" * 300, "__compaction", "pulsar.repl.x", "{}", "earliest",
)  # fmt: skip
QUERIES = (
    "time", "index", "position", "before", "after", "points", "initialPosition", "messagePosition",
    "by", "tier", "startingTime", "endingTime", "backlogQuotaType", "bundle", "topics", "mode",
    "isGlobal", "applied", "force", "key", "perPartition", "getEarliestTimeInBacklog", "ttl",
    "messageTTL", "splitAlgorithmName", "authoritative", "checkAllowAutoCreation", "listenerName",
)  # fmt: skip
NUMBERS = ("0", "-1", str(2**31), str(2**63), str(2**64), "1e400", "-1e999", "1.5", "9" * 400)
BODIES = (
    *NUMBERS, "null", "true", '"x"', '""', '"\\ud800"', "[]", "{}", "{", "[[[]]]", "[null]",
    '["x"]', '[{"a":1}]', "[" * 5_000, "\xff", '{"a":null}',
)  # fmt: skip
#: Members of the objects that routes read.
MEMBERS = (
    "ledgerId", "entryId", "partitionIndex", "batchIndex", "limit", "limitSize", "limitTime",
    "policy", "retentionTimeInMinutes", "retentionSizeInMB", "publishThrottlingRateInMsg",
    "dispatchThrottlingRateInByte", "ratePeriodInSecond", "tickTime", "maxDeliveryDelayInMillis",
    "maxInactiveDurationSeconds", "topicType", "defaultNumPartitions", "partitions", "properties",
    "type", "schema", "bundles", "numBundles", "message_ttl_in_seconds", "retention_policies",
    "backlog_quota_map", "auth_policies", "adminRoles", "allowedClusters", "stampers", "deliver",
    "replication_clusters", "source", "rows", "message.format.version",
)  # fmt: skip
VALUES_OF_MEMBERS = (*NUMBERS, "null", "[]", "{}", '"x"', "[[]]", '{"a":[]}', "false")


class Asking:
    """Requests on one connection, which is made again when the broker closes it."""

    def __init__(self, broker: BrokerThread) -> None:
        self._parts = urlsplit(broker.http_url)
        self._link = http.client.HTTPConnection(self._parts.netloc, timeout=60)

    def status(self, method: str, path: str, body: str | None = None) -> int:
        """The status of the answer; the whole of it is read."""
        data = None if body is None else body.encode("utf-8", "surrogatepass")
        headers = {} if body is None else {"Content-Type": "application/json"}
        for _ in range(2):
            try:
                self._link.request(method, path, data, headers)
                answer = self._link.getresponse()
                answer.read()
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
                self._link.close()
                continue
            return answer.status
        raise AssertionError(f"{method} {path[:200]} {(body or '')[:200]} is not answered")


def prepare(asking: Asking, broker: BrokerThread) -> None:
    """A namespace with a topic of two messages, a subscription and a schema."""
    asking.status("PUT", "/admin/v2/tenants/acme", '{"allowedClusters":["standalone"]}')
    asking.status("PUT", "/admin/v2/namespaces/acme/ns")
    topic = "/admin/v2/persistent/acme/ns/t"
    asking.status("PUT", topic)
    asking.status("PUT", "/admin/v2/persistent/acme/ns/p/partitions", "2")
    asking.status("PUT", f"{topic}/subscription/s", '"earliest"')
    schema = json.dumps({"type": "STRING", "schema": "", "properties": {}})
    asking.status("POST", "/admin/v2/schemas/acme/ns/t/schema", schema)
    with RawClient.from_url(broker.service_url) as client:
        producer = client.create_producer("persistent://acme/ns/t")
        for _ in range(2):
            producer.send(b"x")


@pytest.fixture(scope="module")
def asked() -> Iterator[Asking]:
    """What asks a broker that has something of everything."""
    with running_broker(storage="memory") as broker:
        asking = Asking(broker)
        prepare(asking, broker)
        yield asking


def path_with(route: Route, **given: str) -> str:
    """A path of the route with some names as they are given."""
    path = route.path
    for name in route.names:
        path = path.replace(f"{{{name}}}", quote_any(given.get(name, VALUES[name])))
    return path


def quote_any(text: str) -> str:
    """Percent-encoded, also what is not UTF-8."""
    return quote(text, safe="", errors="surrogatepass")


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
def test_no_name_and_no_query_makes_an_error_of_the_server(asked: Asking, method: str) -> None:
    """Names and queries of each route with hostile values, a part of them at each route.

    Which values a route gets depends on its place in the table: all come to all kinds of routes.
    """
    failed = set()
    for place, route in enumerate(each for each in all_routes() if each.method == method):
        whole, first = path_of(route), place % 4
        last = route.names[-1:] or ()
        paths = [path_with(route, **{name: text}) for name in last for text in NAMES]
        paths += [
            path_with(route, **{name: text})
            for name in route.names[:-1]
            for text in NAMES[first::4]
        ]
        paths += [f"{whole}?{query}={NUMBERS[place % len(NUMBERS)]}" for query in QUERIES[first::4]]
        for path in paths:
            if asked.status(method, path) == 500:
                failed.add((route.path, path[-120:]))
    assert failed == set()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_no_body_makes_an_error_of_the_server(asked: Asking, method: str) -> None:
    """Each route with each hostile body, and with objects whose members are hostile."""
    objects = [f'{{"{name}":{value}}}' for name in MEMBERS for value in VALUES_OF_MEMBERS]
    failed = set()
    for place, route in enumerate(each for each in all_routes() if each.method == method):
        for body in (*BODIES, *(objects[place % 5 :: 5] if method != "DELETE" else ())):
            if asked.status(method, path_of(route), body) == 500:
                failed.add((route.path, body[:120]))
    assert failed == set()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(MEMBERS) | st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=10,
)


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    route=st.sampled_from(all_routes()),
    names=st.lists(st.sampled_from(NAMES) | st.text(max_size=30), min_size=8, max_size=8),
    kept=st.lists(st.booleans(), min_size=8, max_size=8),
    query=st.dictionaries(st.sampled_from(QUERIES), st.sampled_from(NAMES), max_size=3),
    body=st.none() | JSON,
)
def test_no_mixture_makes_an_error_of_the_server(
    asked: Asking,
    route: Route,
    names: list[str],
    kept: list[bool],
    query: dict[str, str],
    body: object,
) -> None:
    """Several hostile parts in one request."""
    rows = zip(route.names, names, kept, strict=False)
    given = {name: text for name, text, is_kept in rows if not is_kept}
    tail = "&".join(f"{name}={quote_any(text)}" for name, text in query.items())
    text = None if body is None else json.dumps(body)
    assert asked.status(route.method, f"{path_with(route, **given)}?{tail}", text) != 500

"""Requests that try to be read in two ways, or to be about another tenant than they seem."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from pulsemark.broker import BrokerThread
from pulsemark.testing import RawClient
from tests.support.attackers import attacked_broker, signed, state_of
from tests.support.secured import set_up

#: A name that no refusal may show; the attacker's role may see nothing of its tenant.
HIDDEN = "hidden-topic"
CHUNKED = "Transfer-Encoding: chunked\r\n"


@pytest.fixture(scope="module")
def attacked() -> Iterator[BrokerThread]:
    """A broker with a topic of the tenant acme; `stranger` administers another tenant."""
    with attacked_broker() as broker:
        set_up(broker, signed("admin"))
        auth = {"auth_method_name": "token", "auth_data": signed("boss").encode()}
        with RawClient.from_url(broker.service_url, **auth) as client:
            client.create_producer(f"persistent://acme/ns/{HIDDEN}").send(b"message")
        yield broker


def sent(broker: BrokerThread, text: str) -> tuple[list[int], bytes]:
    """The statuses and all bytes that come for what is sent on one connection."""
    parts = urlsplit(broker.http_url)
    with socket.create_connection((parts.hostname, parts.port), 30) as connection:
        connection.sendall(text.encode("latin-1"))
        connection.shutdown(socket.SHUT_WR)
        received = b""
        while data := connection.recv(65_536):
            received += data
    lines = received.replace(b"\r\n", b"\n").split(b"\n")
    return [int(line[9:12]) for line in lines if line.startswith(b"HTTP/1.1 ")], received


def host_of(broker: BrokerThread) -> str:
    """The header that names the broker."""
    return f"Host: {urlsplit(broker.http_url).netloc}\r\n"


def login(role: str) -> str:
    """The header with a role's good token."""
    return f"Authorization: Bearer {signed(role)}\r\n"


@pytest.mark.parametrize(
    "head",
    [
        f"Content-Length: 4\r\n{CHUNKED}\r\n0\r\n\r\n",
        "Content-Length: 0\r\nContent-Length: 5\r\n\r\n",
        "Content-Length: +5\r\n\r\n",
        "Content-Length: -1\r\n\r\n",
        "Content-Length : 5\r\n\r\n",
        "X: a\rContent-Length: 5\r\n\r\n",
        "X: a\x00b\r\n\r\n",
        "Transfer-Encoding: xchunked\r\n\r\n",
        "Transfer-Encoding: chunked, identity\r\n\r\n",
        "Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
        f"{CHUNKED}\r\n0x0\r\n\r\n",
        f"{CHUNKED}\r\n-1\r\n\r\n",
        f'{CHUNKED}\r\n0;a="\n"\r\n\r\n',
        "Host: other\r\n\r\n",
    ],
)
def test_a_length_that_can_be_read_in_two_ways(attacked: BrokerThread, head: str) -> None:
    """One refusal, and the end: what follows is never answered as a request of its own."""
    follow = f"GET /admin/v2/tenants HTTP/1.1\r\n{host_of(attacked)}{login('admin')}\r\n"
    text = f"POST /admin/v2/tenants HTTP/1.1\r\n{host_of(attacked)}{head}{follow}"
    statuses, received = sent(attacked, text)
    assert len(statuses) == 1
    assert statuses[0] in (400, 501)
    assert b"acme" not in received


@pytest.mark.parametrize(
    "headers",
    [
        "X-HTTP-Method-Override: DELETE\r\n",
        "X-HTTP-Method: DELETE\r\n",
        "X-Method-Override: DELETE\r\n",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_no_header_changes_the_method(attacked: BrokerThread, method: str, headers: str) -> None:
    """The method of the request line counts, also for a role that may delete."""
    before = state_of(attacked)
    target = f"/admin/v2/persistent/acme/ns/{HIDDEN}?_method=DELETE"
    head = f"{method} {target} HTTP/1.1\r\n{host_of(attacked)}{login('boss')}"
    statuses, _ = sent(attacked, f"{head}{headers}Content-Length: 0\r\n\r\n")
    assert statuses == [405]
    assert state_of(attacked) == before


@pytest.mark.parametrize(
    "headers",
    [
        "X-Original-Principal: boss\r\n",
        "X_Original_Principal: boss\r\n",
        "X-SSL-Client-Cert: boss\r\nX-Pulsar-Auth-Method-Name: tls\r\n",
        "X-Pulsar-Auth-Method-Name: none\r\n",
        "X-Forwarded-User: boss\r\nX-Remote-User: boss\r\n",
        "{boss}",
    ],
)
def test_no_header_lends_a_role(attacked: BrokerThread, headers: str) -> None:
    """Neither headers of proxies nor a second token after one's own."""
    head = f"GET /admin/v2/persistent/acme/ns HTTP/1.1\r\n{host_of(attacked)}{login('stranger')}"
    statuses, received = sent(attacked, f"{head}{headers.format(boss=login('boss'))}\r\n")
    assert statuses[0] in (401, 403)
    assert HIDDEN.encode() not in received


@pytest.mark.parametrize("original", [None, "", "proxy", "admin"])
def test_a_proxy_is_not_enough(attacked: BrokerThread, original: str | None) -> None:
    """It must name a role that is not a proxy's, and both must be allowed."""
    named = "" if original is None else f"X-Original-Principal: {original}\r\n"
    head = f"GET /admin/v2/persistent/acme/ns HTTP/1.1\r\n{host_of(attacked)}{login('proxy')}"
    statuses, received = sent(attacked, f"{head}{named}\r\n")
    assert statuses[0] in (401, 403)
    assert HIDDEN.encode() not in received


@pytest.mark.parametrize(
    "target",
    [
        "{url}/admin/v2/persistent/acme/ns",
        "//admin/v2/persistent/acme/ns",
        "/ADMIN/v2/persistent/acme/ns",
        "/admin/v2/./persistent/acme/ns",
        "/admin//v2/persistent/acme/ns",
        "/admin/v2/persistent/acme/ns/",
        "/admin/v2/%70ersistent/%61cme/ns",
        "/admin/v2/persistent/other%2fns/../acme/ns",
        "/admin/v2/persistent/other/..%2facme/ns/hidden-topic/stats",
        "/admin/v2/persistent/other%2f..%2facme/ns/hidden-topic/stats",
        "/admin/v2/persistent/other/ns%2f..%2f..%2facme%2fns/hidden-topic/stats",
        "/admin/v2/persistent/other/ns/..%2f..%2facme%2fns%2fhidden-topic/stats",
        "/admin/v2/persistent/other/ns/persistent:%2f%2facme%2fns%2fhidden-topic/stats",
        "/admin/v2/persistent/acme%2fns/hidden-topic/stats",
        "/admin/v2/persistent/other;/acme/ns/hidden-topic/stats",
        "/admin/v2/persistent/acme/ns/hidden-topic%2f/stats",
        "/admin/v2/persistent/acme/ns/hidden-topic%00/stats",
        "/admin/v2/namespaces/other/ns%2f..%2f..%2facme%2fns/topics",
        "/admin/v2/namespaces/acme/ns/topics?tenant=other",
        "/admin/v2/schemas/other/ns/..%2f..%2facme%2fns%2fhidden-topic/schema",
        "/status.html/../admin/v2/persistent/acme/ns",
        "/status.html;/admin/v2/persistent/acme/ns",
        "/metrics/..%2fadmin%2fv2%2fpersistent%2facme%2fns",
    ],
)
def test_no_spelling_reaches_another_tenant(attacked: BrokerThread, target: str) -> None:
    """Every way to write a path is refused or not served, and shows no statistics."""
    line = f"GET {target.format(url=attacked.http_url)} HTTP/1.1\r\n"
    statuses, received = sent(attacked, f"{line}{host_of(attacked)}{login('stranger')}\r\n")
    assert statuses[0] in (400, 401, 403, 404, 405, 412)
    assert b"msgInCounter" not in received
    body = received.rpartition(b"\r\n\r\n")[2]
    assert f'persistent://acme/ns/{HIDDEN}"'.encode() not in body


def test_another_tenants_name_inside_a_topics_is_part_of_that_topic(attacked: BrokerThread) -> None:
    """The lookup is for a name of Pulsar 1 in the own tenant, not for the other tenant's topic."""
    own, inner = "/lookup/v2/topic/persistent/other/ns", "persistent:%2f%2facme%2fns%2fhidden-topic"
    for role, status in (("stranger", 200), ("reader", 401)):
        line = f"GET {own}/{inner} HTTP/1.1\r\n"
        assert sent(attacked, f"{line}{host_of(attacked)}{login(role)}\r\n")[0] == [status]


def test_a_tunnel_is_not_opened(attacked: BrokerThread) -> None:
    """CONNECT is answered as a path that is not served."""
    head = f"CONNECT other:80 HTTP/1.1\r\n{host_of(attacked)}{login('admin')}\r\n"
    assert sent(attacked, head)[0] == [404]

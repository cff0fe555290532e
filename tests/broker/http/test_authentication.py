"""HTTP requests of a foreign web page are refused, those of programs are answered."""

from __future__ import annotations

import socket

import pytest

from pulsemark.broker.configuration.config import BrokerConfig
from pulsemark.broker.http.authentication import check_origin
from pulsemark.broker.http.messages import HttpError
from pulsemark.testing import RawClient

CURL = {"User-Agent": "curl/8.5.0", "Accept": "*/*"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
BROWSER = {"User-Agent": "Mozilla/5.0"}


def ask(broker, method, path, headers, body=b""):
    """The status of a request with exactly these headers."""
    host, port = broker.http_url.removeprefix("http://").split(":")
    head = [f"{method} {path} HTTP/1.1", *(f"{name}: {text}" for name, text in headers.items())]
    if body:
        head.append(f"Content-Length: {len(body)}")
    head += ["Connection: close", "", ""]
    with socket.create_connection((host, int(port)), timeout=10) as link:
        link.sendall("\r\n".join(head).encode() + body)
        answer = b""
        while part := link.recv(65536):
            answer += part
    return int(answer.split()[1])


def status_of(method, headers, **settings):
    """What the check says about a request, 200 if it lets it pass."""
    by_name = {name.lower(): text for name, text in headers.items()}
    try:
        check_origin(method, by_name, BrokerConfig(**settings))
    except HttpError as error:
        return error.status
    return 200


def test_a_foreign_pages_form_does_not_empty_a_backlog(broker, topic):
    """A form that another site's page posts is refused, and nothing is acknowledged."""
    skip = f"/admin/v2/{topic.replace('://', '/')}/subscription/s/skip_all"
    own = broker.http_url.removeprefix("http://")
    with RawClient.from_url(broker.service_url) as raw:
        consumer = raw.subscribe(topic, "s", earliest=True)
        raw.create_producer(topic).send(b"kept")
        foreign = {"Host": own, **BROWSER, **FORM, "Origin": "http://evil.example"}
        assert ask(broker, "POST", skip, foreign, b"a=b") == 403
        assert ask(broker, "POST", skip, {"Host": own, **BROWSER, **FORM}, b"a=b") == 415
        consumer.flow(1)
        assert consumer.receive() is not None
        assert ask(broker, "POST", skip, {"Host": own, **CURL}) == 204


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "127.0.0.1:8080", "Origin": "http://evil.example"},
        {"Host": "127.0.0.1:8080", "Origin": "null"},
        {"Host": "127.0.0.1:8080", "Origin": "http://127.0.0.1:3000"},
        {"Host": "127.0.0.1:8080", "Sec-Fetch-Site": "cross-site"},
        {"Host": "127.0.0.1:8080", "Sec-Fetch-Site": "same-site"},
        {"Host": "127.0.0.1:8080", "Referer": "http://evil.example/page"},
        {"Origin": "http://evil.example"},
    ],
)
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_another_origin_may_not_change_anything(method, headers):
    """Whatever a browser says about where a request comes from keeps it out."""
    assert status_of(method, {**BROWSER, **headers}) == 403


@pytest.mark.parametrize("kind", ["text/plain; charset=utf-8", "multipart/form-data; boundary=x"])
def test_what_a_form_can_send_is_not_taken_from_a_browser(kind):
    """An old browser that names no origin is known by its name."""
    assert status_of("POST", {"Host": "localhost", **BROWSER, "Content-Type": kind}) == 415


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_rebound_name_is_refused(method, host):
    """A page whose own host name points at the broker gets no answer, not even to a GET."""
    same = {"Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}
    assert status_of(method, {"Host": host, **same}) == 421


@pytest.mark.parametrize(
    ("host", "settings"),
    [
        ("127.0.0.1:8080", {}),
        ("[::1]:8080", {}),
        ("10.1.2.3", {}),
        ("localhost:8080", {}),
        ("LOCALHOST", {}),
        ("broker.localhost", {}),
        ("pulsar:8080", {}),
        (f"{socket.gethostname()}:8080", {}),
        ("a.example.org:8080", {"advertised_address": "a.example.org"}),
        ("b.example.org:8080", {"http_allowed_hosts": ("b.example.org",)}),
        ("any.example.org", {"http_allowed_hosts": ("*",)}),
    ],
)
def test_the_brokers_own_names_pass(host, settings):
    """Addresses, local names, the advertised name and those that are allowed are the broker's."""
    for method in ("GET", "POST"):
        assert status_of(method, {"Host": host, **CURL}, **settings) == 200


@pytest.mark.parametrize(
    "headers",
    [
        {**CURL, **FORM},
        {"User-Agent": "Pulsar-Java-v4.0.8", "Content-Type": "application/json"},
        {**BROWSER, "Origin": "http://localhost:8080", "Content-Type": "application/json"},
        {**BROWSER, "Sec-Fetch-Site": "same-origin", "Content-Type": "application/json"},
    ],
)
def test_programs_and_own_pages_pass(headers):
    """curl -d, pulsar-admin, and a page that came from this port go on working."""
    assert status_of("POST", {"Host": "localhost:8080", **headers}) == 200


def test_a_request_without_a_host_passes():
    """HTTP/1.0 health checks send none, and no browser does that."""
    assert status_of("GET", {}) == 200


def test_a_length_given_twice_is_refused(broker):
    """Content-Length with Transfer-Encoding, which proxies read in two ways, gets a 400."""
    headers = {"Host": "localhost", "Transfer-Encoding": "chunked"}
    assert ask(broker, "PUT", "/admin/v2/tenants/twice", headers, b"0\r\n\r\n") == 400

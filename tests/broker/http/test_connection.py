"""What every answer has in its head: Date, Server, Vary, and gzip for those who take it."""

from __future__ import annotations

import gzip
import json
import socket
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

import pytest

from pulsemark.broker.http.connection import SMALLEST_BYTES
from pulsemark.broker.http.messages import accepts_gzip

VARY = "Accept-Encoding, User-Agent"
LONG = "/admin/v2/namespaces/public/default"


def ask(broker, head, *headers):
    """Status line, headers and body of the answer to a request that is sent as it is."""
    parts = urlsplit(broker.http_url)
    request = "\r\n".join([f"{head} HTTP/1.1", f"Host: {parts.netloc}", *headers, "", ""])
    with socket.create_connection((parts.hostname, parts.port), 20) as link:
        link.sendall(request.encode())
        with link.makefile("rb") as answer:
            status = answer.readline().decode().strip()
            found = {}
            while line := answer.readline().decode().strip():
                name, _, value = line.partition(":")
                found[name.lower()] = value.strip()
            size = int(found.get("content-length", 0))
            return status, found, b"" if head.startswith("HEAD") else answer.read(size)


def test_each_answer_has_its_date_and_who_made_it(broker):
    """Good answers, errors and pages have Date and Server; the server is no Jetty."""
    for head in (f"GET {LONG}", "GET /admin/v2/tenants/absent", "PUT /absent", "HEAD /absent"):
        _, headers, _ = ask(broker, head)
        assert parsedate_to_datetime(headers["date"]).tzinfo is not None
        assert headers["server"].startswith("pulsemark(")


@pytest.mark.parametrize("accepted", ["gzip", "deflate, gzip;q=0.5", "GZIP"])
def test_a_body_is_compressed_for_those_who_take_it(broker, accepted):
    """The same JSON arrives compressed, and caches are told what it depends on."""
    _, plain, body = ask(broker, f"GET {LONG}")
    _, headers, packed = ask(broker, f"GET {LONG}", f"Accept-Encoding: {accepted}")
    assert headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed) == body
    assert headers["vary"] == plain["vary"] == VARY
    assert "content-encoding" not in plain


def test_who_takes_gzip_changes_no_other_clients_answer(broker):
    """The page, which the broker keeps, is plain for a client without gzip after one with it."""
    _, before, plain = ask(broker, "GET /")
    _, headers, packed = ask(broker, "GET /", "Accept-Encoding: gzip")
    assert headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed) == plain
    _, after, again = ask(broker, "GET /")
    assert again == plain
    assert {**after, "date": ""} == {**before, "date": ""}


@pytest.mark.parametrize(
    ("head", "accepted"),
    [
        ("GET /admin/v2/clusters", "gzip"),
        (f"GET {LONG}", "gzip;q=0"),
        (f"GET {LONG}", "*"),
        (f"GET {LONG}", "identity"),
        ("GET /admin/v2/tenants/absent-tenant-with-a-long-name", "gzip"),
        (f"HEAD {LONG}", "gzip"),
    ],
)
def test_small_bodies_errors_and_heads_are_not_compressed(broker, head, accepted):
    """Below 32 bytes, for other statuses than 200, and without gzip nothing is compressed."""
    status, headers, body = ask(broker, head, f"Accept-Encoding: {accepted}")
    assert "content-encoding" not in headers
    assert ("vary" in headers) == (status.endswith("200 OK") and head.startswith("GET"))
    assert head.startswith("HEAD") or json.loads(body) is not None


def test_a_long_body_is_compressed_whole(broker):
    """A body of several pieces, which is compressed in a thread, is what it is without gzip."""
    path = "/admin/v2/brokers/configuration/runtime"
    _, _, body = ask(broker, f"GET {path}")
    _, headers, packed = ask(broker, f"GET {path}", "Accept-Encoding: gzip")
    assert headers["content-encoding"] == "gzip"
    assert set(json.loads(gzip.decompress(packed))) == set(json.loads(body))


def test_a_target_may_be_a_whole_url(broker):
    """A client that speaks to a proxy names the host in the target, too; a fragment is dropped."""
    for target in ("http://localhost/admin/v2/clusters", "/admin/v2/clusters#part"):
        status, _, body = ask(broker, f"GET {target}")
        assert (status, body) == ("HTTP/1.1 200 OK", b'["standalone"]')


def test_a_content_type_without_a_slash_is_a_bad_request(broker):
    """A type that is none is 400; another type than JSON is 415."""
    parts = urlsplit(broker.http_url)
    for kind, status in (("x", b"400"), ("text/xml", b"415")):
        head = f"PUT /admin/v2/namespaces/public/typed HTTP/1.1\r\nHost: {parts.netloc}\r\n"
        head += f"Content-Type: {kind}\r\nContent-Length: 2\r\n\r\n{{}}"
        with socket.create_connection((parts.hostname, parts.port), 20) as link:
            link.sendall(head.encode())
            assert link.recv(4096).split()[1] == status


def test_quality_zero_excludes_gzip():
    """Only a coding that is named, and not with quality 0, is accepted."""
    assert accepts_gzip("br, gzip")
    assert not accepts_gzip("gzip;q=0.000")
    assert not accepts_gzip("")
    assert SMALLEST_BYTES == 32

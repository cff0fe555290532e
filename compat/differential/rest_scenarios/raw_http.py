"""Answers as bytes: the status line, every header, and the body as it was written.

What other scenarios parse is compared here as text, so that the order of JSON's fields counts, too.
"""

from __future__ import annotations

import gzip
import re
import socket
from typing import Any
from urllib.parse import urlsplit

from ..peers import Recorder
from .registry import ADMIN, scenario, unique
from .topics import prepare

#: Not compared: Pulsar's error pages have no Date, and it says nothing about the broker.
DATE = "date"
_SIZES = frozenset({"content-length"})
LIMIT_S = 10.0


def exchange(broker: Recorder, request: bytes) -> tuple[str, list[str], bytes]:
    """Send a request as it is; the status line, the headers and the body of the answer."""
    parts = urlsplit(broker.admin_url)
    link = socket.create_connection((parts.hostname, parts.port), LIMIT_S)
    with link, link.makefile("rb") as answer:
        link.sendall(request)
        first = answer.readline().decode("latin-1").rstrip("\r\n")
        while first.startswith("HTTP/1.1 1"):
            while answer.readline().strip():
                pass
            first = f"{first} | {answer.readline().decode('latin-1').rstrip()}"
        headers = []
        while line := answer.readline().strip():
            headers.append(line.decode("latin-1"))
        return first, headers, _body(answer, request, first, headers)


def _body(answer: Any, request: bytes, first: str, headers: list[str]) -> bytes:
    named = {name.lower(): value.strip() for name, _, value in (h.partition(":") for h in headers)}
    if request.startswith(b"HEAD") or " 204" in first or " 304" in first:
        return b""
    if "chunked" in named.get("transfer-encoding", ""):
        body = b""
        while size := int(answer.readline().split(b";")[0] or b"0", 16):
            body += answer.read(size)
            answer.readline()
        answer.readline()
    elif "content-length" in named:
        body = answer.read(int(named["content-length"]))
    else:
        body = answer.read()
    return gzip.decompress(body) if named.get("content-encoding") == "gzip" and body else body


def shown_headers(broker: Recorder, headers: list[str]) -> list[str]:
    """The headers in a form that can be compared."""
    found = []
    for line in headers:
        name, _, value = line.partition(":")
        value = value.strip()
        if name.lower() == DATE:
            continue
        if name.lower() == "server":
            value = "<server>"
        elif name.lower() in _SIZES:
            value = "0" if value == "0" else "<size>"
        found.append(f"{name.lower()}: {broker.normalizer.text(value)}")
    return sorted(found)


def raw(
    broker: Recorder,
    method: str,
    target: str,
    body: bytes | None = None,
    *headers: str,
    label: str | None = None,
    version: str = "HTTP/1.1",
) -> None:
    """Make a request, and record its answer as bytes."""
    host = urlsplit(broker.admin_url).netloc
    lines = [f"{method} {target} {version}"]
    if not any(line.lower().startswith("host:") for line in headers):
        lines.append(f"Host: {host}")
    lines += headers
    if body is not None and not any("chunked" in line for line in headers):
        lines.append(f"Content-Length: {len(body)}")
    request = "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")
    shown = label or " ".join([method, target, *headers])
    try:
        first, found, answer = exchange(broker, request)
    except (OSError, ValueError) as error:
        broker.record(shown, {"failed": type(error).__name__})
        return
    broker.record(
        shown,
        {
            "status": broker.normalizer.text(first),
            "headers": shown_headers(broker, found),
            "body": normalized(broker, answer),
        },
    )


def normalized(broker: Recorder, body: bytes) -> str:
    """A body's text without what differs from run to run."""
    text = broker.normalizer.text(body.decode(errors="backslashreplace"))
    text = re.sub(r"(?<=[:,\[])1[5-9]\d{11}(?=[,}\]])", "<ms>", text)
    text = re.sub(r'("ledgerId":)\d+', r"\1<ledger>", text)
    text = re.sub(r'"\d+:(-?\d+)"', r'"<ledger>:\1"', text)
    text = re.sub(r'"\d{4}-\d\d-\d\dT[^"]*"', '"<time>"', text)
    return re.sub(r"-?\d+\.\d+(E-?\d+)?", "<float>", text)


@scenario
def raw_answers(broker: Recorder, topic: str) -> None:
    tenant = prepare(broker, topic)
    name = unique(topic)
    json_type = "Content-Type: application/json"
    for method, target, body, *headers in (
        ("GET", f"{ADMIN}/clusters", None),
        ("HEAD", f"{ADMIN}/clusters", None),
        ("OPTIONS", f"{ADMIN}/clusters", None),
        ("GET", f"{ADMIN}/clusters/standalone", None),
        ("GET", f"{ADMIN}/clusters/absent", None),
        ("GET", f"{ADMIN}/tenants", None, "Accept-Encoding: gzip"),
        ("GET", f"{ADMIN}/tenants", None, "Accept-Encoding: identity"),
        ("GET", f"{ADMIN}/tenants", None, "Accept-Encoding: deflate, br"),
        ("GET", f"{ADMIN}/tenants/{tenant}", None),
        ("GET", f"{ADMIN}/tenants/{tenant}", None, "Accept-Encoding: gzip, deflate"),
        ("GET", f"{ADMIN}/tenants/{tenant}", None, "Accept-Encoding: gzip;q=0"),
        ("GET", f"{ADMIN}/tenants/{tenant}", None, "Accept-Encoding: *"),
        ("HEAD", f"{ADMIN}/tenants/{tenant}", None, "Accept-Encoding: gzip"),
        ("GET", f"{ADMIN}/tenants/absent", None),
        ("GET", f"{ADMIN}/tenants/absent", None, "Accept-Encoding: gzip"),
        ("HEAD", f"{ADMIN}/tenants/absent", None),
        ("PUT", f"{ADMIN}/tenants/{tenant}", b"{}", json_type),
        ("PUT", f"{ADMIN}/tenants/x{tenant}", b'{"allowedClusters":["standalone"]}', json_type),
        ("POST", f"{ADMIN}/tenants/x{tenant}", b"{", json_type),
        ("DELETE", f"{ADMIN}/tenants/x{tenant}", None),
        ("PATCH", f"{ADMIN}/tenants/x{tenant}", None),
        ("GET", f"{ADMIN}/namespaces/{tenant}", None),
        ("GET", f"{ADMIN}/namespaces/{tenant}/n2", None),
        ("GET", f"{ADMIN}/namespaces/{tenant}/n2", None, "Accept-Encoding: gzip"),
        ("GET", f"{ADMIN}/namespaces/{tenant}/n2/retention", None),
        ("GET", f"{ADMIN}/namespaces/{tenant}/n2/maxProducersPerTopic", None),
        ("POST", f"{ADMIN}/namespaces/{tenant}/n2/messageTTL", b"7", json_type),
        ("GET", f"{ADMIN}/namespaces/{tenant}/n2/messageTTL", None),
        ("GET", f"{ADMIN}/namespaces/{tenant}/n2/permissions", None),
        ("GET", f"{ADMIN}/namespaces/{tenant}/n2/bundles", None),
        ("GET", f"{ADMIN}/namespaces/{tenant}/n2/backlogQuotaMap", None),
        ("PUT", f"{ADMIN}/persistent/{tenant}/n2/t", None),
        ("PUT", f"{ADMIN}/persistent/{tenant}/n2/t", b"", json_type),
        ("PUT", f"{ADMIN}/persistent/{tenant}/n2/p/partitions", b"2", json_type),
        ("GET", f"{ADMIN}/persistent/{tenant}/n2/p/partitions", None),
        ("GET", f"{ADMIN}/persistent/{tenant}/n2/t/stats", None),
        ("GET", f"{ADMIN}/persistent/{tenant}/n2/t/internalStats", None),
        ("GET", f"{ADMIN}/persistent/{tenant}/n2/p/partitioned-stats", None),
        ("GET", f"{ADMIN}/persistent/{tenant}/n2/p/partitioned-internalStats", None),
        ("GET", f"{ADMIN}/persistent/{tenant}/n2/t/lastMessageId", None),
        ("GET", f"{ADMIN}/persistent/{tenant}/n2/t/permissions", None),
        ("GET", f"{ADMIN}/persistent/{tenant}/n2/t/compaction", None),
        ("GET", f"{ADMIN}/persistent/{tenant}/n2/t/offload", None),
        ("GET", f"{ADMIN}/persistent/{tenant}/n2/t/internal-info", None),
        ("GET", f"{ADMIN}/persistent/{tenant}/n2/t/retention", None),
        ("GET", f"{ADMIN}/persistent/{tenant}/n2/t/properties", None),
        ("PUT", f"{ADMIN}/persistent/{tenant}/n2/t/subscription/s", None),
        ("GET", f"{ADMIN}/persistent/{tenant}/n2/t/subscriptions", None),
        ("GET", f"{ADMIN}/persistent/{tenant}/n2/t/stats", None),
        ("GET", f"{ADMIN}/persistent/{tenant}/n2/t/subscription/s/position/1", None),
        ("POST", f"{ADMIN}/persistent/{tenant}/n2/t/subscription/s/resetcursor/0", None),
        ("POST", f"{ADMIN}/persistent/{tenant}/n2/t/subscription/s/skip_all", None),
        ("POST", f"{ADMIN}/persistent/{tenant}/n2/t/subscription/s/analyzeBacklog", None),
        ("POST", f"{ADMIN}/persistent/{tenant}/n2/t/terminate", None),
        ("DELETE", f"{ADMIN}/persistent/{tenant}/n2/t/subscription/s", None),
        ("DELETE", f"{ADMIN}/persistent/{tenant}/n2/t", None),
        ("DELETE", f"{ADMIN}/persistent/{tenant}/n2/t", None),
        ("GET", f"{ADMIN}/persistent/{tenant}/n2/absent/stats", None),
        ("GET", f"{ADMIN}/schemas/{tenant}/n2/t/schema", None),
        ("GET", f"/lookup/v2/topic/persistent/public/default/{name}", None),
        ("GET", f"/lookup/v2/topic/persistent/public/default/{name}/bundle", None),
        ("GET", f"/lookup/v2/topic/persistent/public/absent/{name}", None),
        ("GET", f"{ADMIN}/brokers/health", None),
        ("GET", f"{ADMIN}/brokers/ready", None),
        ("GET", f"{ADMIN}/brokers/leaderBroker", None),
        ("GET", f"{ADMIN}/brokers", None),
        ("GET", f"{ADMIN}/bookies/racks-info", None),
        ("GET", f"{ADMIN}/resource-quotas", None),
        ("GET", f"{ADMIN}/resourcegroups", None),
        ("GET", f"{ADMIN}/worker/cluster", None),
        ("GET", "/admin/v3/functions/public/default", None),
        ("GET", "/metrics", None),
        ("HEAD", "/metrics/", None),
        ("GET", "/admin", None),
        ("GET", "/admin/v2/absent", None),
        ("GET", "/absent", None),
        ("GET", "/absent", None, "Accept: application/json"),
        ("POST", "/absent", b"x"),
        ("PUT", "/absent", b"x"),
        ("DELETE", "/absent", None),
        ("OPTIONS", "/absent", None),
        ("GET", f"{ADMIN}/clusters", None, "Accept: text/html"),
        ("GET", f"{ADMIN}/clusters", None, "Connection: close"),
        ("GET", f"{ADMIN}/clusters", None, "Connection: keep-alive"),
        ("GET", f"{ADMIN}/clusters", None, "Origin: http://example.com"),
        ("GET", f"{ADMIN}/clusters", None, "If-Modified-Since: Sat, 01 Jan 2022 00:00:00 GMT"),
        ("GET", f"{ADMIN}/clusters", None, "Range: bytes=0-3"),
        ("POST", f"{ADMIN}/clusters", b"", json_type),
        ("PUT", f"{ADMIN}/namespaces/{tenant}/n3", b"{}", "Content-Type: text/plain"),
        ("PUT", f"{ADMIN}/namespaces/{tenant}/n3", b"{}", "Content-Type: x"),
        (
            "PUT",
            f"{ADMIN}/namespaces/{tenant}/n3",
            b"{}",
            "Content-Type: application/json;charset=utf-8",
        ),
        (
            "PUT",
            f"{ADMIN}/namespaces/{tenant}/n4",
            b"2\r\n{}\r\n0\r\n\r\n",
            json_type,
            "Transfer-Encoding: chunked",
        ),
        ("PUT", f"{ADMIN}/namespaces/{tenant}/n5", b"{}", json_type, "Expect: 100-continue"),
        ("PUT", f"{ADMIN}/namespaces/{tenant}/n6", b"{}", json_type, "Expect: zzz"),
    ):
        shown = " ".join([method, target.replace(name, "T"), *headers])
        raw(broker, method, target, body, *headers, label=shown)


@scenario
def raw_requests(broker: Recorder, topic: str) -> None:
    """Requests that the web server refuses, or that few clients send."""
    where = f"{ADMIN}/clusters"
    raw(broker, "GET", where, version="HTTP/1.0", label="1.0")
    raw(broker, "GET", where, None, "Connection: keep-alive", version="HTTP/1.0", label="1.0 kept")
    raw(broker, "GET", where, version="HTTP/1.2", label="1.2")
    raw(broker, "GET", where, version="HTTP/2.0", label="2.0")
    raw(broker, "GET", where, version="HTTP/9", label="9")
    raw(broker, "get", where, label="lower case")
    raw(broker, "FOO", where, label="unknown method")
    raw(broker, "TRACE", where, label="trace")
    raw(broker, "CONNECT", "x:1", label="connect")
    raw(broker, "OPTIONS", "*", label="options *")
    raw(broker, "GET", f"http://example.com{where}", label="absolute")
    raw(broker, "GET", where, None, "Host: ", label="empty host")
    raw(broker, "GET", where, None, "Host: example.com", label="other host")
    raw(broker, "GET", where, None, "Host: a b", label="bad host")
    raw(broker, "GET", where, None, "Host: a", "Host: b", label="two hosts")
    raw(broker, "GET", where, None, "X: " + "y" * 7000, label="long header")
    raw(broker, "GET", where, None, "X: " + "y" * 9000, label="too long header")
    raw(broker, "GET", f"{where}?{'y' * 9000}", label="too long target")
    raw(broker, "GET", where, None, "Content-Length: x", label="bad length")
    raw(broker, "GET", where, None, "Content-Length: -1", label="negative length")
    raw(broker, "GET", where, b"body", label="GET with a body")
    raw(broker, "GET", where, None, "Bad Header: x", label="bad name")
    raw(broker, "GET", where, None, "nocolon", label="no colon")
    raw(broker, "GET", f"{where}/ä", label="latin-1 in the target")
    raw(broker, "GET", f"{where}/%C3%A4", label="utf-8 in the target")
    raw(broker, "GET", f"{where}/%E4", label="no utf-8 in the target")
    raw(broker, "GET", f"{where}/a%00b", label="zero in the target")
    raw(broker, "GET", f"{where}/a%2Fb", label="slash in a name")
    raw(broker, "GET", f"{where}/a%5Cb", label="backslash in a name")
    raw(broker, "GET", f"{where}/..%2F", label="dots and an encoded slash")
    raw(broker, "GET", f"{where}/%2e", label="encoded dot")
    raw(broker, "GET", f"{where}#part", label="fragment")
    raw(broker, "GET", "clusters", label="no slash")
    raw(broker, "GET", f"{where}?a=%zz", label="bad query")
    raw(broker, "GET", f"{where}/a|b", label="a pipe")
    raw(broker, "GET", f"{where}/a{{b}}", label="braces")
    raw(broker, "GET", f'{where}/"a"', label="quotes")

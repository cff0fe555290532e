"""`pulsemark policies` against a running broker, and what it says when there is none."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from pulsemark.broker import BrokerThread
from pulsemark.testing import RawClient, running_broker

Command = Any
Policies = Callable[..., Any]
POLICY = "brokerEntryMetadata"
NAMESPACE = "public/default"


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    """A broker, and a topic with characters that a URL needs to have quoted."""
    with running_broker() as running, RawClient.from_url(running.service_url) as client:
        for name in ("orders", "a b?ü#%2F", "shared-partition-0"):
            client.create_producer(f"persistent://public/default/{name}")
        yield running


@pytest.fixture
def policies(pulsemark: Command, broker: BrokerThread) -> Iterator[Policies]:
    """`pulsemark policies ACTION TARGET brokerEntryMetadata ...` at the broker."""

    def run(action: str, target: str, *options: str) -> Any:
        return pulsemark(
            "policies", action, target, POLICY, "--admin-url", broker.http_url, *options
        )

    yield run
    for target in (NAMESPACE, "orders"):
        assert run("unset", target).status == 0


def said(ran: Any) -> str:
    """What a command that went well printed."""
    assert (ran.status, ran.err) == (0, "")
    return str(ran.out).rstrip("\n")


@pytest.mark.parametrize(
    "target",
    [NAMESPACE, "orders", "persistent://public/default/a b?ü#%2F", "public/default/orders"],
)
def test_get_set_unset(policies: Policies, target: str) -> None:
    """Namespaces and topics, in short and full form; changes print nothing."""
    assert said(policies("get", target)) == "not set"
    assert said(policies("set", target, "--stampers", "index,property-tags:region,app")) == ""
    assert said(policies("get", target)) == "index,property-tags:region,app"
    assert said(policies("set", target, "--off")) == ""
    assert said(policies("get", target)) == "off"
    assert said(policies("unset", target)) == ""
    assert said(policies("get", target)) == "not set"


def test_applied_and_json(policies: Policies) -> None:
    """--applied says what holds; --json tells not set (null) from off (empty)."""
    row = {"target": "persistent://public/default/orders", "policy": POLICY}
    assert policies("get", "orders", "--json").json() == [{**row, "stampers": None}]
    on = ["broker-time", "index"]
    assert policies("get", "orders", "--json", "--applied").json() == [{**row, "stampers": on}]
    assert said(policies("get", "orders", "--applied")) == "broker-time,index"
    said(policies("set", NAMESPACE, "--off"))
    assert policies("get", "orders", "--json", "--applied").json() == [{**row, "stampers": []}]
    assert policies("get", NAMESPACE, "--json").json() == [
        {"target": NAMESPACE, "policy": POLICY, "stampers": []}
    ]


def test_deliver(policies: Policies) -> None:
    """--deliver names what consumers get besides time and index, and is shown where it is set."""
    fields = "application_tags,producer_name"
    said(policies("set", "orders", "--stampers", "index,producer", "--deliver", fields))
    assert said(policies("get", "orders")) == f"index,producer\ndelivered: {fields}"
    (row,) = policies("get", "orders", "--json").json()
    assert row["delivered"] == fields.split(",")
    said(policies("set", "orders", "--stampers", "index"))
    assert said(policies("get", "orders")) == "index"
    refused = policies("set", "orders", "--stampers", "index", "--deliver", "room")
    assert refused.status == 2
    assert "unknown field 'room'" in refused.err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("get", "nobody/here"), "nobody/here"),
        (("get", "nothing"), "not found"),
        (("get", "shared-partition-0"), "partition"),
        (("get", "non-persistent://public/default/x"), "404"),
        (("get", "a/b/c/d"), "a/b/c/d"),
        (("get", "a b/c"), "a b/c"),
        (("get", ""), "topic is empty"),
        (("get", NAMESPACE, "--applied"), "--applied"),
        (("set", "orders", "--stampers", "index,sundial"), "sundial"),
        (("set", "orders", "--stampers", " , "), "--off"),
        (("set", "orders", "--stampers", "property-tags:"), "property-tags:"),
        (("set", "orders"), "--stampers"),
        (("set", "orders", "--off", "--stampers", "index"), "--off"),
        (("get", "orders", "--off"), "--off"),
    ],
)
def test_bad_input(policies: Policies, arguments: tuple[str, ...], named: str) -> None:
    """One line that names what is wrong, exit code 2."""
    assert named in policies(*arguments).error()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), "ACTION"),
        (("get",), "NAMESPACE|TOPIC"),
        (("get", "orders"), "POLICY"),
        (("get", "orders", POLICY, "--admin-url", "127.0.0.1:8080"), "127.0.0.1:8080"),
        (("get", "orders", POLICY, "--admin-url", "ftp://h"), "ftp://h"),
        (("get", "orders", POLICY, "--admin-url", "file:///etc/passwd"), "file:///etc/passwd"),
        (("get", "orders", POLICY, "--admin-url", "http://h:x"), "http://h:x"),
        (("get", "orders", POLICY, "--admin-url", "http://h/?a=b"), "http://h/?a=b"),
        (("get", "orders", POLICY, "--admin-url", "http://[::1"), "http://[::1"),
    ],
)
def test_wrong_arguments(pulsemark: Command, arguments: tuple[str, ...], named: str) -> None:
    """What can be seen without asking anybody."""
    assert named in pulsemark("policies", *arguments).error()


def test_no_broker_answers(pulsemark: Command) -> None:
    """The address is named."""
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unheard.getsockname()[1]}"
        assert url in pulsemark("policies", "get", "orders", POLICY, "--admin-url", url).error()


class _Other(BaseHTTPRequestHandler):
    """A server that is not a broker."""

    answer = b""

    def do_GET(self) -> None:
        """Send the answer as it is."""
        self.wfile.write(self.answer)

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        (b"HTTP/1.0 200 OK\r\n\r\n<html>", "does not answer like a broker"),
        (b"HTTP/1.0 200 OK\r\n\r\n[1]", "is this a pulsemark broker?"),
        (b'HTTP/1.0 200 OK\r\n\r\n{"stampers": [1]}', "is this a pulsemark broker?"),
        (b"HTTP/1.0 500 Oops\r\n\r\nbroken", "500 broken"),
        (b"HTTP/1.0 500 Oops\r\n\r\n[]", "500 []"),
        (b"220 mail ready\r\n", "does not answer like a broker"),
    ],
)
def test_another_server_answers(pulsemark: Command, answer: bytes, named: str) -> None:
    """Whatever another server says ends in one line."""
    handler = type("Handler", (_Other,), {"answer": answer})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        ran = pulsemark("policies", "get", "orders", POLICY, "--admin-url", url)
        thread.join(10)
    assert named in ran.error()


@pytest.mark.parametrize(
    ("policy", "options", "shown", "value"),
    [
        (
            "retention",
            ("--time", "2h", "--size", "3G"),
            "time: 120 minutes, size: 3072 MB",
            {"retentionTimeInMinutes": 120, "retentionSizeInMB": 3072},
        ),
        (
            "retention",
            ("--time", "10", "--size", "-1"),
            "time: 10 minutes, size: -1 MB",
            {"retentionTimeInMinutes": 10, "retentionSizeInMB": -1},
        ),
        ("messageTTL", ("--seconds", "90"), "90", 90),
        ("compactionThreshold", ("--bytes", "1000000"), "1000000", 1_000_000),
    ],
)
@pytest.mark.parametrize("target", [NAMESPACE, "orders"])
def test_cleaning_policies(
    pulsemark: Command,
    broker: BrokerThread,
    target: str,
    policy: str,
    options: tuple[str, ...],
    shown: str,
    value: Any,
) -> None:
    """Retention, TTL and threshold are set, shown and unset, of namespaces and topics."""

    def run(action: str, *more: str) -> Any:
        return pulsemark("policies", action, target, policy, "--admin-url", broker.http_url, *more)

    assert said(run("get")) == "not set"
    assert said(run("set", *options)) == ""
    assert said(run("get")) == shown
    found = run("get", "--json").json()[0]
    assert (found["policy"], found["value"]) == (policy, value)
    assert said(run("unset")) == ""
    assert run("get", "--json").json()[0]["value"] is None


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("retention", "--time", "5"), "retention needs --time and --size"),
        (("retention", "--time", "5", "--size", "0"), "Invalid retention policy"),
        (("messageTTL",), "messageTTL needs --seconds"),
        (("messageTTL", "--bytes", "5"), "--bytes is not an option of messageTTL"),
        (("messageTTL", "--seconds", "-1"), "messageTTL must be 0 or more"),
        (("compactionThreshold", "--off"), "--off is not an option of compactionThreshold"),
        (("brokerEntryMetadata",), "brokerEntryMetadata needs --stampers or --off"),
    ],
)
def test_wrong_cleaning_policies(
    pulsemark: Command, broker: BrokerThread, words: tuple[str, ...], reason: str
) -> None:
    """What is missing, or belongs to another policy, or Pulsar refuses, is named."""
    policy, *options = words
    ran = pulsemark("policies", "set", NAMESPACE, policy, "--admin-url", broker.http_url, *options)
    assert ran.status != 0
    assert reason in ran.err


def test_show_lists_what_is_set(pulsemark: Command) -> None:
    """Of a topic and of a namespace; with --applied also what others have set."""
    with running_broker(storage="memory") as broker:
        with RawClient.from_url(broker.service_url) as client:
            client.create_producer("persistent://public/default/orders")

        def run(*arguments: str) -> str:
            return said(pulsemark("policies", *arguments, "--url", broker.http_url))

        assert run("show", "orders").endswith(
            "default/orders is set; --applied shows what is in force"
        )
        run("set", "orders", "retention", "--time", "5", "--size", "-1")
        run("set", "orders", "publishRate", "--value", '{"publishThrottlingRateInMsg": 5}')
        run("set", NAMESPACE, "compactionThreshold", "--bytes", "7")
        shown = run("show", "orders").splitlines()
        assert [line.split()[0] for line in shown] == ["policy", "retention", "publishRate"]
        assert "time: 5 minutes, size: -1 MB" in shown[1]
        row = json.loads(run("show", "orders", "--json").splitlines()[0])
        assert row["value"] == {"retentionTimeInMinutes": 5, "retentionSizeInMB": -1}
        assert "compactionThreshold  7" in run("show", NAMESPACE)
        assert "compactionThreshold" in run("show", "orders", "--applied")

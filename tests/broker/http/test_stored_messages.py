"""Messages over HTTP: peek, examine, by id; what they say, and what they refuse."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
import zlib

import pytest

from pulsemark.proto.pulsar_api_pb2 import CompressionType


def ask(broker, topic, route):
    """Status, X-Pulsar headers by lower-case name, and body."""
    url = f"{broker.http_url}/admin/v2/{topic.replace('://', '/')}{route}"
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            status, headers, body = answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        status, headers, body = error.code, error.headers, error.read()
    found = {name.lower().removeprefix("x-pulsar-"): value for name, value in headers.items()}
    return status, found, body


@pytest.fixture
def filled(raw, topic):
    """A topic with a subscription, two messages and a batch."""
    raw.subscribe(topic, "s")
    producer = raw.create_producer(topic, producer_name="p")
    producer.send(b"first")
    producer.send(
        zlib.compress(b"second"),
        compression=CompressionType.ZLIB,
        uncompressed_size=6,
        properties={"color": "red\r\nX-Injected: 1"},
        key="k\r\nX-Injected: 1",
        event_time_ms=1_700_000_000_123,
    )
    producer.send_batch([b"a", b"b", b"c"])
    return topic


def test_peek_gives_the_nth_of_the_backlog(broker, filled):
    """From 1 on, without acknowledging; after the last one and on a bad number it is refused."""
    for _ in range(2):
        status, headers, body = ask(broker, filled, "/subscription/s/position/1")
        assert (status, body, headers["producer-name"]) == (200, b"first", "p")
    status, headers, body = ask(broker, filled, "/subscription/s/position/2")
    assert (status, body, headers["compression"]) == (200, b"second", "ZLIB")
    assert headers["event-time"] == "2023-11-14T22:13:20.123Z"
    status, headers, _ = ask(broker, filled, "/subscription/s/position/3")
    assert (status, headers["num-batch-message"]) == (200, "3")
    assert ask(broker, filled, "/subscription/s/position/4")[0] == 404
    assert ask(broker, filled, "/subscription/s/position/0")[0] == 412
    assert ask(broker, f"{filled}-absent", "/subscription/s/position/1")[0] == 404


def test_peek_creates_a_missing_subscription(broker, filled):
    """At the first message, as Pulsar does; a replicator and a wrong number create nothing."""
    assert ask(broker, filled, "/subscription/pulsar.repl.west/position/1")[0] == 404
    assert ask(broker, filled, "/subscription/new/position/x")[0] == 404
    assert json.loads(ask(broker, filled, "/subscriptions")[2]) == ["s"]
    assert ask(broker, filled, "/subscription/new/position/1")[2] == b"first"
    assert json.loads(ask(broker, filled, "/subscriptions")[2]) == ["new", "s"]


def test_what_a_producer_wrote_cannot_add_headers(broker, filled):
    """Line ends in properties and keys are data, not headers."""
    _, headers, _ = ask(broker, filled, "/subscription/s/position/2")
    assert "x-injected" not in headers
    assert json.loads(headers["property"]) == {"color": "red\r\nX-Injected: 1"}
    assert headers["partition-key"] == "k??X-Injected: 1"


@pytest.mark.parametrize(
    ("query", "status", "entry"),
    [
        ("", 200, 2),
        ("?initialPosition=earliest&messagePosition=1", 200, 0),
        ("?initialPosition=earliest&messagePosition=9", 200, 2),
        ("?initialPosition=latest&messagePosition=3", 200, 0),
        ("?initialPosition=latest&messagePosition=9", 404, None),
        ("?messagePosition=x", 404, None),
    ],
)
def test_examine_counts_from_either_end(broker, filled, query, status, entry):
    """From the first or the last entry; too far back is an error, too far on is the last one."""
    found, headers, _ = ask(broker, filled, f"/examinemessage{query}")
    assert found == status
    if entry is not None:
        assert headers["message-id"].endswith(f":{entry}")


def test_a_message_by_its_id(broker, filled):
    """An existing one, one after the end and one of no ledger (404)."""
    _, headers, _ = ask(broker, filled, "/examinemessage")
    ledger = headers["message-id"].partition(":")[0]
    assert ask(broker, filled, f"/ledger/{ledger}/entry/1")[2] == b"second"
    assert ask(broker, filled, f"/ledger/{ledger}/entry/9")[0] == 404
    assert ask(broker, filled, "/ledger/987654/entry/0")[0] == 404

"""The audit's routes: what they answer, and the statuses of bad input."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from pulsemark.broker import BrokerThread
from pulsemark.testing import RawClient, running_broker

NAME = "persistent://public/default/orders"
PATH = "/admin/v2/persistent/public/default/orders/audit"
ROW = {"tier": "shop", "bucket_start_ms": 60_000, "bucket_end_ms": 120_000, "count": 2}


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    """A broker with a topic of one message, and a partitioned topic."""
    settings: dict[str, Any] = {"audit_enabled": True, "storage": "memory"}
    with running_broker(**settings) as running, RawClient.from_url(running.service_url) as client:
        client.create_producer(NAME).send(b"x")
        url = f"{running.http_url}/admin/v2/persistent/public/default/parts/partitions"
        with urllib.request.urlopen(urllib.request.Request(url, b"2", method="PUT"), timeout=30):
            pass
        yield running


def ask(broker: BrokerThread, method: str, path: str, body: bytes | None = None) -> tuple[int, Any]:
    """Status and JSON of an answer."""
    request = urllib.request.Request(broker.http_url + path, body, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
            return answer.status, json.loads(text) if text else None
    except urllib.error.HTTPError as error:
        with error:
            text = error.read()
            is_json = error.headers.get("Content-Type") == "application/json"
            return error.code, json.loads(text)["reason"] if is_json else text.decode()


@pytest.mark.parametrize(
    ("query", "status", "named"),
    [
        ("?by=service", 400, "service"),
        ("?by=a,,b", 400, "tag"),
        ("?tier=", 400, "tier"),
        ("?startingTime=x", 400, "startingTime 'x'"),
        ("?endingTime=-1", 400, "endingTime '-1'"),
        ("?startingTime=999999999999999999999", 400, "startingTime"),
    ],
)
def test_bad_queries_are_refused(broker: BrokerThread, query: str, status: int, named: str) -> None:
    """The reason names the parameter and its value."""
    found = ask(broker, "GET", PATH + query)
    assert found[0] == status
    assert named in found[1]


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"{", "the body is not JSON"),
        (b"", "body"),
        (b"[]", "body"),
        (json.dumps({"source": "s", "rows": [ROW | {"count": -1}]}).encode(), "count '-1'"),
        (json.dumps({"source": "s", "rows": [ROW | {"tier": "broker"}]}).encode(), "broker"),
        (
            json.dumps(
                {"source": "s", "rows": [ROW | {"bucket_start_ms": 0, "bucket_end_ms": 1000}]}
            ).encode(),
            "1000 ms; this broker's have 60000 ms",
        ),
    ],
)
def test_bad_posts_change_nothing(broker: BrokerThread, body: bytes, named: str) -> None:
    """400 with the field; no row is taken."""
    status, reason = ask(broker, "POST", PATH, body)
    assert status == 400
    assert named in reason
    assert ask(broker, "GET", f"{PATH}?tier=nobody")[1]["rows"] == []


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_topics_that_have_no_audit(broker: BrokerThread, method: str) -> None:
    """404 for a topic that does not exist, 405 for one with several logs."""
    body = json.dumps({"source": "s", "rows": []}).encode() if method == "POST" else None
    assert ask(broker, method, PATH.replace("orders", "unknown"), body)[0] == 404
    assert ask(broker, method, PATH.replace("orders", "parts"), body)[0] == 405
    assert ask(broker, method, PATH.replace("orders", "parts-partition-1"), body)[0] in (200, 204)


def test_posted_rows_come_back_by_tier(broker: BrokerThread) -> None:
    """A repeated post counts once; `all` has the broker's rows, too; the time range holds."""
    post = json.dumps({"source": "s", "rows": [ROW]}).encode()
    for _ in range(2):
        assert ask(broker, "POST", PATH, post) == (204, None)
    rows = ask(broker, "GET", f"{PATH}?tier=shop")[1]["rows"]
    assert [(row["tier"], row["count"]) for row in rows] == [("shop", 2)]
    tiers = [row["tier"] for row in ask(broker, "GET", f"{PATH}?tier=all")[1]["rows"]]
    assert tiers == ["broker", "shop"]
    later = ask(broker, "GET", f"{PATH}?tier=all&startingTime=120000")[1]["rows"]
    assert [row["tier"] for row in later] == ["broker"]

"""A broker that keeps an audit, and a client of its HTTP port."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from pulsemark.broker import BrokerThread
from pulsemark.ledger import StoreOptions
from pulsemark.testing import RawClient

NAME = "persistent://public/default/orders"
PATH = "/admin/v2/persistent/public/default/orders"
SETTINGS: dict[str, Any] = {
    "audit_enabled": True,
    "stampers": ("broker-time", "index", "producer"),
    "store_options": StoreOptions(segment_size_bytes=2_000),
}


def ask(
    broker: BrokerThread, method: str = "GET", path: str = f"{PATH}/audit", body: Any = None
) -> tuple[int, Any]:
    """Status and JSON of an answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(broker.http_url + path, data, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
            return answer.status, json.loads(text) if text else None
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def publish(broker: BrokerThread, count: int, name: str = "till", topic: str = NAME) -> None:
    """Single messages of one producer."""
    with RawClient.from_url(broker.service_url) as client:
        producer = client.create_producer(topic, producer_name=name)
        for number in range(count):
            producer.send(b"message %d" % number)


def counted(broker: BrokerThread, query: str = "") -> dict[str | None, int]:
    """Messages by producer, over all buckets."""
    status, found = ask(broker, path=f"{PATH}/audit{query}")
    assert status == 200, found
    sums: dict[str | None, int] = {}
    for row in found["rows"]:
        name = row["tags"].get("producer_name")
        sums[name] = sums.get(name, 0) + row["count"]
    return sums

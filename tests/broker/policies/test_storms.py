"""Policies that change while clients publish and consume: nothing is lost or doubled."""

from __future__ import annotations

import itertools
import json
import random
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pulsemark.broker import BrokerThread
from pulsemark.testing import RawClient, running_broker
from pulsemark.testing.raw_client import RawClientError

NAMESPACE = "/admin/v2/namespaces/public/default"
TOPIC = "/admin/v2/persistent/public/default/storm"
NAME = "persistent://public/default/storm"
ROUNDS = 120
RATE = {"publishThrottlingRateInMsg": 100_000, "publishThrottlingRateInByte": -1}
DISPATCH = {"dispatchThrottlingRateInMsg": 100_000, "ratePeriodInSecond": 1}
QUOTA = {"limitSize": 1 << 40, "policy": "producer_exception"}
CHANGES: list[tuple[str, str, Any]] = [
    ("POST", f"{NAMESPACE}/deduplication", True),
    ("POST", f"{NAMESPACE}/publishRate", RATE),
    ("POST", f"{NAMESPACE}/dispatchRate", DISPATCH),
    ("POST", f"{NAMESPACE}/backlogQuota", QUOTA),
    ("POST", f"{NAMESPACE}/maxProducersPerTopic", 3),
    ("POST", f"{TOPIC}/publishRate", RATE),
    ("POST", f"{TOPIC}/subscriptionDispatchRate", DISPATCH),
    ("POST", f"{TOPIC}/maxMessageSize", 100_000),
    ("POST", f"{TOPIC}/deduplicationEnabled", False),
    ("POST", f"{TOPIC}/deduplicationEnabled", True),
    ("POST", f"{TOPIC}/maxUnackedMessagesOnConsumer", 100),
    ("DELETE", f"{NAMESPACE}/deduplication", None),
    ("DELETE", f"{NAMESPACE}/publishRate", None),
    ("DELETE", f"{NAMESPACE}/backlogQuota", None),
    ("DELETE", f"{TOPIC}/publishRate", None),
    ("DELETE", f"{TOPIC}/subscriptionDispatchRate", None),
    ("DELETE", f"{TOPIC}/deduplicationEnabled", None),
    ("POST", "/admin/v2/persistent/public/default/absent/publishRate", RATE),
]


def ask(broker: BrokerThread, method: str, path: str, value: Any) -> int:
    """The status of a request."""
    body = None if value is None else json.dumps(value).encode()
    request = urllib.request.Request(broker.http_url + path, body, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def storming(broker: BrokerThread, seed: int) -> Callable[[], list[int]]:
    """Begin to change policies in a thread; the function waits for its end."""
    statuses: list[int] = []

    def work() -> None:
        chance = random.Random(seed)
        statuses.extend(ask(broker, *chance.choice(CHANGES)) for _ in range(ROUNDS))

    thread = threading.Thread(target=work)
    thread.start()

    def end() -> list[int]:
        thread.join(90)
        assert not thread.is_alive(), "the changes did not end"
        return statuses

    return end


def test_a_storm_of_changes_under_load(tmp_path: Path) -> None:
    """Each message is stored and received once and in order; the broker never answers 500."""
    with running_broker(data_dir=tmp_path) as broker:
        with RawClient.from_url(broker.service_url) as client:
            producer = client.create_producer(NAME, producer_name="p")
            consumer = client.subscribe(NAME, "s", earliest=True)
            end = storming(broker, 5)
            sent, got = itertools.count(), 0
            consumer.flow(1_000_000)
            for _ in range(300):
                n = next(sent)
                assert producer.send(b"%d" % n, sequence_id=n).entry_id >= 0
            statuses = end()
            assert set(statuses) <= {204, 404, 412}
            while got < 300:
                message = consumer.receive()
                assert message.headers_and_payload.endswith(b"%d" % got)
                got += 1
        assert ask(broker, "POST", f"{TOPIC}/deduplicationEnabled", True) == 204
    with (
        running_broker(data_dir=tmp_path) as broker,
        RawClient.from_url(broker.service_url) as client,
    ):
        again = client.create_producer(NAME, producer_name="p")
        assert again.last_sequence_id <= 299
        assert again.send(b"300", sequence_id=300).entry_id >= 0


def test_deleted_and_made_again_while_policies_change() -> None:
    """A topic that goes away takes its policies with it."""
    with running_broker() as broker:
        end = storming(broker, 9)
        with RawClient.from_url(broker.service_url) as client:
            for n in range(20):
                try:
                    client.create_producer(NAME).send(b"%d" % n)
                except RawClientError:
                    continue  # refused while the topic is being deleted, or by a limit
                ask(broker, "DELETE", f"{TOPIC}?force=true", None)
        assert set(end()) <= {204, 404, 412, 503}
        ask(broker, "DELETE", f"{TOPIC}?force=true", None)

        async def left(running: Any) -> list[Any]:
            topics = running.services.topics
            await topics.policies.background.settled()
            catalog = topics.catalog
            kinds = ("topic-policy", "deduplication")
            return [item for kind in kinds for item in catalog.items(kind)]

        assert broker.call(left) == []

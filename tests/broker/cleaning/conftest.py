"""What the tests of cleaning share: a broker with a clock that the test moves, and waiting."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pulsemark.broker import BrokerThread
from pulsemark.ledger import EARLIEST, StoreOptions
from pulsemark.metadata import payload_of
from pulsemark.testing import RawClient, SettableClock, running_broker

NAME = "persistent://public/default/prices"
PATH = "/admin/v2/persistent/public/default/prices"
NAMESPACE = "/admin/v2/namespaces/public/default"
MINUTE_MS = 60_000
PATIENCE_S = 20.0


class Place:
    """A broker with one topic, and what a test does with it."""

    def __init__(self, broker: BrokerThread, clock: SettableClock) -> None:
        self.broker = broker
        self.clock = clock
        self.client = RawClient.from_url(broker.service_url)
        self.producer = self.client.create_producer(NAME)

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and JSON of an answer; a path that is not absolute is the topic's."""
        url = self.broker.http_url + (path if path.startswith("/") else f"{PATH}/{path}")
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                text = answer.read()
                return answer.status, json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            with error:
                text = error.read()
                # Pulsar labels a text without quotes as JSON, too.
                return error.code, json.loads(text) if text[:1] == b"{" else text.decode()

    def change(self, method: str, path: str, body: Any = None) -> None:
        """A request that is to be answered 204."""
        assert self.ask(method, path, body) == (204, None)

    def get(self, path: str) -> Any:
        """A request that is to be answered 200."""
        status, found = self.ask("GET", path)
        assert status == 200, found
        return found

    def send(self, *keys: str, **message: Any) -> None:
        """One message for each key; its payload is the key and the broker's time."""
        for key in keys:
            self.producer.send(f"{key}@{self.clock.now_ms()}".encode(), key=key, **message)

    def stored(self) -> list[bytes]:
        """The payloads of what the log has."""

        async def read(running: Any) -> list[bytes]:
            ledger = running.services.topics.open_topics[NAME].ledger
            entries = ledger.read(EARLIEST, max_entries=10_000, max_bytes=1 << 30)
            return [bytes(payload_of(entry.body)) for entry in entries]

        found: list[bytes] = self.broker.call(read)
        return found

    def backlog(self, name: str) -> int:
        """Messages that a subscription has not acknowledged."""
        return int(self.get("stats")["subscriptions"][name]["msgBacklog"])

    def compact(self) -> None:
        """Compact, and wait for the end."""
        self.change("PUT", "compaction")
        wait_until(lambda: self.get("compaction")["status"] != "RUNNING")
        assert self.get("compaction") == {"status": "SUCCESS", "lastError": ""}

    def retention(self, minutes: int, megabytes: int = -1) -> None:
        """Set the topic's retention."""
        value = {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}
        self.change("POST", "retention", value)


def wait_until(holds: Callable[[], object], what: str = "it") -> None:
    """Return when something holds."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline_s, f"{what} did not come to hold"
        time.sleep(0.01)


#: Segments of a few hundred bytes, so that some have ended.
SMALL = StoreOptions(segment_size_bytes=1_000)


@pytest.fixture
def clock() -> SettableClock:
    """The broker's clock."""
    return SettableClock()


@pytest.fixture
def place(clock: SettableClock) -> Iterator[Place]:
    """A broker that begins no round by itself while a test runs."""
    with running_broker(clock=clock) as broker:
        found = Place(broker, clock)
        yield found
        found.client.close()

"""Fixtures of the broker's tests: one broker per module, clients that are always closed."""

from __future__ import annotations

import asyncio
import itertools
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pulsar
import pytest

from pulsemark.broker import Broker, BrokerThread
from pulsemark.client import RawConsumer, RawMessage
from pulsemark.testing import RawClient, running_broker

_numbers = itertools.count()


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    """A broker with default settings, shared by the tests of one module."""
    with running_broker() as running:
        yield running


@pytest.fixture
def topic() -> str:
    """A topic that no other test uses."""
    return f"persistent://public/default/t{next(_numbers)}"


@pytest.fixture
def make_client() -> Iterator[Callable[..., pulsar.Client]]:
    """Official clients, closed when the test ends."""
    clients: list[pulsar.Client] = []

    def make(url: str, **options: Any) -> pulsar.Client:
        quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        client = pulsar.Client(url, logger=quiet, operation_timeout_seconds=10, **options)
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def client(broker: BrokerThread, make_client: Callable[..., pulsar.Client]) -> pulsar.Client:
    """An official client of the module's broker."""
    return make_client(broker.service_url)


@pytest.fixture
def raw(broker: BrokerThread) -> Iterator[RawClient]:
    """A raw connection to the module's broker."""
    with RawClient.from_url(broker.service_url) as connection:
        yield connection


#: Turns of the broker's loop in which what was begun for a few dozen entries ends.
SETTLING_TURNS = 100


def drained(broker: BrokerThread, consumer: RawConsumer) -> list[RawMessage]:
    """All that a consumer is sent for what its client asked so far, and what other clients got.

    No time passes in which silence would have to be taken for the end: the broker reads what the
    client wrote, gets turns of its loop, and whatever it sends in these comes before its PONG.
    """

    async def settle(_: Broker) -> None:
        for _turn in range(SETTLING_TURNS):
            await asyncio.sleep(0)

    found = consumer.drain()
    broker.call(settle)
    return found + consumer.drain()


@pytest.fixture
def drain(broker: BrokerThread) -> Callable[[RawConsumer], list[RawMessage]]:
    """Take all that a given consumer of the module's broker is sent."""
    return partial(drained, broker)


@pytest.fixture
def drain_of() -> Callable[[BrokerThread], Callable[[RawConsumer], list[RawMessage]]]:
    """The same for the broker that a test runs by itself."""
    return lambda broker: partial(drained, broker)


@dataclass(frozen=True)
class Answer:
    """An HTTP answer."""

    status: int
    body: bytes
    content_type: str

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


def http(
    broker: BrokerThread, method: str, path: str, body: Any = None, *, raw_body: bytes | None = None
) -> Answer:
    """One request to the broker's HTTP port; error statuses are answers like others."""
    data = raw_body if raw_body is not None else None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(broker.http_url + path, data=data, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return Answer(answer.status, answer.read(), answer.headers.get("content-type", ""))
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.read(), error.headers.get("content-type", ""))


@pytest.fixture(name="http")
def http_of_module(broker: BrokerThread) -> Callable[..., Answer]:
    """HTTP requests to the module's broker: http("GET", "/admin/v2/clusters")."""

    def ask(method: str, path: str, body: Any = None, **options: Any) -> Answer:
        return http(broker, method, path, body, **options)

    return ask


@pytest.fixture
def http_of() -> Callable[[BrokerThread], Callable[..., Answer]]:
    """The same for a broker that the test runs by itself."""
    return lambda broker: partial(http, broker)


@pytest.fixture
def ask_of() -> Callable[[BrokerThread], Callable[..., tuple[int, str]]]:
    """The same, answered with the status and the body's text alone."""

    def ask(broker: BrokerThread, method: str, path: str, body: Any = None) -> tuple[int, str]:
        answer = http(broker, method, path, body)
        return answer.status, answer.body.decode()

    return lambda broker: partial(ask, broker)

"""What one request may cost: a bounded amount of work in each turn of the event loop.

The rows are the broker's own tables of REST routes, commands and gRPC calls. So a new one is
measured here, too. Its topic has many partitions and subscriptions, and the request names many
things. The measure is the number of functions called in one turn of the loop. It does not depend
on the machine; work that waits for another turn when its time is over only gets smaller by it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass

from pulsemark.broker import BrokerThread
from pulsemark.broker.handlers import COMMANDS
from pulsemark.broker.http.routing import all_routes
from pulsemark.client.errors import ClientError
from pulsemark.finder import rpc
from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.testing import RawClient, running_broker
from pulsemark.wire.commands import frame
from tests.broker.handlers.test_command_matrix import body_of as command_of
from tests.broker.http.test_route_matrix import body_of, path_of
from tests.support.secured import rest

#: Calls in one turn. A long answer's slice of 5 ms has some 5,000.
MOST_CALLS = 20_000
PARTITIONS = SUBSCRIPTIONS = 200
#: How often a request repeats what it may repeat.
REPEATED = 2_500
TOPIC = "persistent://acme/ns/t"
METHODS = ("GET", "POST", "PUT", "DELETE")
LOOP_FILES = ("asyncio/runners.py", "asyncio/base_events.py", "asyncio/events.py")


class Calls:
    """Counts the calls in each turn of the loop on whose thread it was started."""

    def __init__(self) -> None:
        self.most = self._now = 0

    def start(self) -> None:
        """Begin to count."""
        self.most = self._now = 0
        sys.setprofile(self._count)

    def _count(self, frame: FrameType, event: str, _: Any) -> None:
        above = frame.f_back
        if event == "call" and (above is None or above.f_code.co_filename.endswith(LOOP_FILES)):
            self._now = 0  # the loop itself has called it
        elif event in ("call", "c_call"):
            self._now += 1
            self.most = max(self.most, self._now)


@pytest.fixture(scope="module")
def large() -> Iterator[BrokerThread]:
    """A broker that has a lot."""
    with running_broker(storage="memory", grpc_port=0) as broker:
        rest(broker, "PUT", "/admin/v2/tenants/acme", None, {"allowedClusters": ["standalone"]})
        rest(broker, "PUT", "/admin/v2/namespaces/acme/ns", None, {})
        rest(broker, "PUT", "/admin/v2/persistent/acme/ns/p/partitions", None, PARTITIONS)
        rest(broker, "PUT", "/admin/v2/persistent/acme/ns/t")

        async def fill(running: Any) -> None:
            topic = running.services.topics.open_topics[TOPIC]
            for number in range(SUBSCRIPTIONS):
                end = topic.ledger.end_position
                topic.create_subscription(f"s{number}", end, properties={"key": "value"})

        broker.call(fill)
        yield broker


def calls_of(broker: BrokerThread, request: Callable[[], Any]) -> int:
    """The most calls in one turn while a request is answered.

    One with many is made once more: the first may import modules.
    """
    most = 0
    for _ in range(2):
        most = counted(broker, request)
        if most <= MOST_CALLS:
            break
    return most


def counted(broker: BrokerThread, request: Callable[[], Any]) -> int:
    """The most calls in one turn while a request is answered, once."""
    calls = Calls()

    async def start(_: Any) -> None:
        calls.start()

    async def stop(_: Any) -> None:
        sys.setprofile(None)

    broker.call(start)
    try:
        request()
    finally:
        broker.call(stop)
    return calls.most


@pytest.mark.parametrize("method", METHODS)
def test_routes(large: BrokerThread, method: str) -> None:
    """Every REST route, of a topic with many subscriptions and of one with many partitions."""
    found: dict[str, int] = {}
    assert {route.method for route in all_routes()} <= set(METHODS)
    for route in (each for each in all_routes() if each.method == method):
        for topic in ("t", "p") if "{topic}" in route.path else ("",):
            path, body = path_of(route).replace("/ns/t", f"/ns/{topic}"), body_of(route)
            ask = partial(rest, large, method, path, None, body)
            found[f"{method} {path}"] = calls_of(large, ask)
    assert {path: most for path, most in found.items() if most > MOST_CALLS} == {}


def repeat(body: Any) -> None:
    """Fill the fields of a message that can be repeated."""
    for field in body.DESCRIPTOR.fields:
        if not field.is_repeated and field.message_type is not None and body.HasField(field.name):
            repeat(getattr(body, field.name))
        elif field.is_repeated and field.message_type is not None:
            first = GetMessageClass(field.message_type)()
            for each in (each for each in first.DESCRIPTOR.fields if each.is_required):
                text = each.cpp_type == each.CPPTYPE_STRING
                setattr(first, each.name, "x" if text else 1)
            getattr(body, field.name).extend([first] * REPEATED)
        elif field.is_repeated:
            text = field.cpp_type == field.CPPTYPE_STRING
            getattr(body, field.name).extend(["x" if text else 1] * REPEATED)


@pytest.mark.parametrize("kind", sorted(COMMANDS), ids=pb.BaseCommand.Type.Name)
def test_commands(large: BrokerThread, kind: int) -> None:
    """Every command, with many ids, properties and ranges, about a topic that has a lot."""
    with RawClient.from_url(large.service_url) as client:
        client.create_producer(TOPIC)
        consumer = client.subscribe(TOPIC, "mine")
        body = command_of(kind, TOPIC)
        repeat(body)
        if any(field.name == "consumer_id" for field in body.DESCRIPTOR.fields):
            body.consumer_id = consumer.consumer_id

        def ask() -> None:
            with suppress(ClientError):
                client.write(frame(body))
                client.ping()

        assert calls_of(large, ask) <= MOST_CALLS


@pytest.mark.parametrize("method", sorted(rpc.SERVICE.methods_by_name))
def test_grpc_calls(large: BrokerThread, method: str) -> None:
    """Every gRPC call."""
    request = GetMessageClass(rpc.SERVICE.methods_by_name[method].input_type)()
    with suppress(AttributeError, ValueError):
        setattr(request, "topic", TOPIC)  # noqa: B010 - the type of the message is not known
    codec = rpc.client_codec(method)
    with grpc.insecure_channel(large.grpc_url) as channel:

        def ask() -> None:
            with suppress(grpc.RpcError):
                if rpc.SERVICE.methods_by_name[method].server_streaming:
                    list(channel.unary_stream(rpc.path(method), **codec)(request, timeout=20))
                else:
                    channel.unary_unary(rpc.path(method), **codec)(request, timeout=20)

        assert calls_of(large, ask) <= MOST_CALLS

"""The client for asyncio code, and the errors that lead to it."""

from __future__ import annotations

import inspect
from datetime import UTC, datetime, timedelta

import pytest

from pulsemark.broker import Broker, BrokerConfig
from pulsemark.finder import (
    AsyncSeekClient,
    BlockingCallError,
    ClientClosedError,
    InvalidFieldError,
    SeekClient,
    ServerUnavailableError,
)
from pulsemark.ledger import TopicNotFoundError

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def test_both_clients_have_the_same_methods():
    """Names, arguments and defaults agree; only `async` differs."""

    def methods(client):
        found = inspect.getmembers(client, inspect.isfunction)
        return {name: inspect.signature(f).parameters for name, f in found if name[0] != "_"}

    assert methods(AsyncSeekClient) == methods(SeekClient)


async def test_on_the_loop_of_its_server():
    """It asks a broker that runs on the same loop."""
    config = BrokerConfig(storage="memory", port=0, http_port=None, grpc_port=0)
    async with Broker(config) as broker, AsyncSeekClient(broker.grpc_url) as seek:
        assert await seek.is_serving()
        with pytest.raises(TopicNotFoundError):
            await seek.by_time("orders", 0)


async def test_a_topic_is_searched_and_read(topics, serve):
    """Places and entries are those that the synchronous client gets."""
    topics.fill([b"a", b"b"])
    async with AsyncSeekClient(serve(topics).target) as seek:
        found = await seek.by_time(topics.ORDERS, EPOCH)
        assert not found.end
        assert (await seek.by_index(topics.ORDERS, 1)).index == 1
        entries = [each async for each in seek.read_entries(topics.ORDERS)]
        assert [each.body for each in entries] == [b"a", b"b"]
        assert found == await seek.by_time(topics.ORDERS, 0)


async def test_no_server():
    """It raises the errors of the synchronous client."""
    async with AsyncSeekClient("127.0.0.1:1") as seek:
        with pytest.raises(ServerUnavailableError):
            await seek.by_index("orders", 0)


async def test_the_synchronous_client_refuses_to_block_a_loop():
    """On a running loop's thread a call is an error that names the other client."""
    with SeekClient("127.0.0.1:1") as seek:
        with pytest.raises(BlockingCallError, match="AsyncSeekClient"):
            seek.by_time("orders", 0)
        with pytest.raises(BlockingCallError, match="AsyncSeekClient"):
            next(iter(seek.read_entries("orders")))


@pytest.mark.parametrize("client", [SeekClient, AsyncSeekClient])
@pytest.mark.parametrize("target", ["localhost", "", ":6680", "localhost:", "localhost:x", "::1:5"])
async def test_a_target_needs_host_and_port(client, target):
    """Another target is an error that shows the form, not a call to port 443."""
    with pytest.raises(InvalidFieldError, match=r"target: .*HOST:PORT"):
        client(target)


@pytest.mark.parametrize("time", [1.5, "12:00", None, True, timedelta(1)])
def test_other_types_are_no_times(time):
    """A TypeError names the field and the type."""
    with SeekClient("127.0.0.1:1") as seek:
        with pytest.raises(TypeError, match=f"time_ms must be .* not {type(time).__name__}"):
            seek.by_time("orders", time)
        with pytest.raises(TypeError, match="to_ms must be"):
            seek.range("orders", 0, time)
        with pytest.raises(TypeError, match="index must be"):
            seek.by_index("orders", 1.0)  # type: ignore[arg-type]


def test_a_datetime_needs_a_zone():
    """Without a zone it is refused: it could be any of 24 hours."""
    with (
        SeekClient("127.0.0.1:1") as seek,
        pytest.raises(InvalidFieldError, match=r"time_ms.*zone"),
    ):
        seek.by_time("orders", datetime(2026, 1, 1))  # noqa: DTZ001


def test_a_datetime_is_a_time(topics, serve):
    """A moment means its milliseconds, and one between two of them the later."""
    topics.fill([b"a", b"b", b"c"])
    with SeekClient(serve(topics).target) as seek:
        for index in range(3):
            time_ms = seek.by_time(topics.ORDERS, 0).time_ms + index
            moment = EPOCH + timedelta(milliseconds=time_ms)
            assert seek.by_time(topics.ORDERS, moment) == seek.by_time(topics.ORDERS, time_ms)
            later = moment + timedelta(microseconds=1)
            assert seek.by_time(topics.ORDERS, later) == seek.by_time(topics.ORDERS, time_ms + 1)


async def test_a_closed_client_calls_no_more(topics, serve):
    """ClientClosedError, whatever is called."""
    topics.fill([b"a"])
    async with AsyncSeekClient(serve(topics).target) as seek:
        assert await seek.is_serving()
    entries = seek.read_entries(topics.ORDERS)
    calls = (lambda: seek.by_index(topics.ORDERS, 0), lambda: anext(entries), seek.is_serving)
    for call in calls:
        with pytest.raises(ClientClosedError, match="the client was closed"):
            await call()

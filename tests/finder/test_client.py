"""The client's own duties: laziness, imports, life, and what it refuses."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from pulsemark.broker import Broker, BrokerConfig
from pulsemark.finder import (
    BlockingCallError,
    ClientClosedError,
    InvalidFieldError,
    SeekCallError,
    SeekClient,
)
from pulsemark.finder.service import TopicSource
from pulsemark.ledger import TopicNotFoundError

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def test_grpc_is_imported_only_by_those_who_use_it():
    """Searching beside the ledger must not pay for gRPC, nor must raising its errors."""
    program = (
        "import sys; import pulsemark.finder, pulsemark.finder.errors;"
        "assert 'grpc' not in sys.modules;"
        "from pulsemark.finder import SeekClient;"
        "assert 'grpc' in sys.modules and SeekClient.__name__ == 'SeekClient'"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_every_exported_name_is_there():
    """`__all__` and the lazy names agree; an unknown name is an AttributeError."""
    import pulsemark.finder as face

    assert {name for name in face.__all__ if getattr(face, name) is None} == set()
    assert set(face.__all__) <= set(dir(face))
    with pytest.raises(AttributeError, match="no attribute 'SeekClint'"):
        face.SeekClint  # noqa: B018


def test_an_entry_iterator_that_is_never_begun_makes_no_call(topics, serve):
    """read_entries is lazy: without a first entry asked for, there is no call to clean up."""
    asked = []

    class Source(TopicSource):
        def log(self, topic):
            asked.append(topic)
            return topics.log(topic)

    topics.fill([b"a"])
    with SeekClient(serve(Source()).target) as seek:
        entries = seek.read_entries(topics.ORDERS)
        seek.by_index(topics.ORDERS, 0)
        assert asked == [topics.ORDERS]
        assert [entry.body for entry in entries] == [b"a"]
        assert asked == [topics.ORDERS] * 2


def test_a_closed_client_calls_no_more(topics, serve):
    """After the `with` block the connection is gone."""
    topics.fill([b"a"])
    with SeekClient(serve(topics).target) as seek:
        assert seek.is_serving()
    for call in (
        lambda: seek.by_index(topics.ORDERS, 0),
        lambda: next(seek.read_entries(topics.ORDERS)),
        seek.is_serving,
    ):
        with pytest.raises(ClientClosedError, match="the client was closed"):
            call()
    assert issubclass(ClientClosedError, SeekCallError)


async def test_on_the_loop_of_its_server():
    """In a thread it asks a broker that runs on the caller's loop."""
    config = BrokerConfig(storage="memory", port=0, http_port=None, grpc_port=0)
    async with Broker(config) as broker:
        with SeekClient(broker.grpc_url) as seek:
            assert await asyncio.to_thread(seek.is_serving)
            with pytest.raises(TopicNotFoundError):
                await asyncio.to_thread(seek.by_time, "orders", 0)


async def test_it_refuses_to_block_a_loop():
    """On a running loop's thread a call is an error that says how to make it."""
    with SeekClient("127.0.0.1:1") as seek:
        with pytest.raises(BlockingCallError, match=r"asyncio\.to_thread"):
            seek.by_time("orders", 0)
        with pytest.raises(BlockingCallError, match=r"asyncio\.to_thread"):
            next(iter(seek.read_entries("orders")))


@pytest.mark.parametrize("target", ["localhost", "", ":6680", "localhost:", "localhost:x", "::1:5"])
def test_a_target_needs_host_and_port(target):
    """Another target is an error that shows the form, not a call to port 443."""
    with pytest.raises(InvalidFieldError, match=r"target: .*HOST:PORT"):
        SeekClient(target)


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

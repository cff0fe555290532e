"""A client that ends while the broker does not read from it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import time

import pytest

from pulsemark import tcp
from pulsemark.broker.connection.session import Pause
from pulsemark.broker.policies.pulsar_policies import PUBLISH_RATE
from pulsemark.client import RequestRefusedError
from pulsemark.proto.pulsar_api_pb2 import ProducerAccessMode
from pulsemark.testing import RawClient, running_broker
from pulsemark.testing.raw_messages import unbatched_message
from pulsemark.wire import commands

REASONS = [reason for reason in Pause if reason]
Exclusive = ProducerAccessMode.Exclusive


@pytest.fixture(scope="module")
def broker():
    """A broker that soon finds a client gone, if another asks for its place."""
    with running_broker(http_port=None, connection_liveness_check_timeout_ms=300) as running:
        yield running


def wait_until(condition):
    """Wait for a condition."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def sessions_of(broker, topic):
    """The sessions with a consumer on a topic."""

    async def find(running):
        found = running.services.topics.open_topics[topic].subscriptions["s"]
        return [consumer.connection for consumer in found.consumers]

    return broker.call(find)


def paused_client(broker, topic, reason):
    """A client with an exclusive producer and consumer, which the broker does not read.

    What it sends then stays in the socket, before its end.
    """
    client = RawClient.from_url(broker.service_url)
    producer = client.create_producer(topic, access_mode=Exclusive)
    client.subscribe(topic, "s")
    (session,) = sessions_of(broker, topic)

    async def pause(_):
        session._pauses.begin(reason)

    broker.call(pause)
    producer.post(unbatched_message(b"unread", publish_time_ms=1))
    client.write()
    return client, session


@pytest.mark.parametrize("reason", REASONS, ids=lambda reason: reason.name.lower())
def test_its_end_is_seen_whatever_the_pause_is_for(broker, topic, reason):
    """Nobody asks: the connection ends by itself, and leaves its topic."""
    client, session = paused_client(broker, topic, reason)
    client.close()
    wait_until(lambda: session.is_closed)
    assert sessions_of(broker, topic) == []


@pytest.mark.parametrize("is_reset", [False, True], ids=["closed", "reset"])
def test_its_places_are_free_for_who_asks(broker, raw, topic, is_reset):
    """An exclusive consumer's and producer's places are given to the next client at once."""
    client, _ = paused_client(broker, topic, Pause.RATE)
    if is_reset:
        with socket.socket(fileno=os.dup(client.fileno())) as link:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    raw.subscribe(topic, "s")
    raw.create_producer(topic, access_mode=Exclusive)


def end_without_room(client):
    """End a client so that its own system keeps the end: the broker's has no room before it."""
    with socket.socket(fileno=os.dup(client.fileno())) as link, contextlib.suppress(OSError):
        link.setblocking(False)
        while True:
            link.send(bytes(65_536))
    client.close()


def test_an_end_that_waits_for_room_is_found(broker, raw, topic):
    """A killed client's own system keeps its end while the broker's has no room before it."""
    client, _ = paused_client(broker, topic, Pause.RATE)
    end_without_room(client)
    raw.create_producer(topic, access_mode=Exclusive)


@pytest.fixture(scope="module")
def pinging_broker():
    """A broker that soon sends PINGs."""
    with running_broker(http_port=None, keep_alive_interval_ms=500) as running:
        yield running


@pytest.mark.parametrize("reason", [Pause.RATE, Pause.PUBLISHES, Pause.UNSENT])
def test_an_end_that_waits_for_room_is_found_though_nobody_asks(pinging_broker, topic, reason):
    """The broker sends a PING to who is paused, too, and the client's system answers: a reset."""
    client, session = paused_client(pinging_broker, topic, reason)
    end_without_room(client)
    wait_until(lambda: session.is_closed)
    assert sessions_of(pinging_broker, topic) == []


def test_a_host_that_vanished_is_given_up_though_nobody_asks(pinging_broker, topic, monkeypatch):
    """Its system confirms no PING within an interval, so the broker closes the connection."""
    monkeypatch.setattr("pulsemark.broker.connection.session.bytes_confirmed", lambda _: 7)
    client, session = paused_client(pinging_broker, topic, Pause.RATE)
    with client:
        wait_until(lambda: session.is_closed)


def test_who_is_only_paused_is_not_given_up(pinging_broker, topic):
    """However many intervals it is not read: its system confirms each PING."""
    client, session = paused_client(pinging_broker, topic, Pause.RATE)
    with client:
        wait_until(lambda: _arrived_bytes(client) >= 3 * len(commands.PING))
        assert not session.is_closed


def _arrived_bytes(client):
    with socket.socket(fileno=os.dup(client.fileno())) as link:
        try:
            return len(link.recv(65_536, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return 0


def test_what_was_unsent_in_an_earlier_pause_does_not_count(broker, topic):
    """A client that has read since may have as many bytes unsent again; its time begins anew."""
    with RawClient.from_url(broker.service_url) as client:
        client.subscribe(topic, "s")
        (session,) = sessions_of(broker, topic)

        async def pause_twice(running):
            now_s = asyncio.get_running_loop().time()
            session._pauses.begin(Pause.UNSENT)
            session.check_time(now_s)
            session.output_freed()
            session._pauses.begin(Pause.UNSENT)
            session.check_time(now_s + 3 * running.config.keep_alive_interval_ms / 1000)
            session.output_freed()

        broker.call(pause_twice)
        client.ping()


def test_who_is_only_paused_keeps_its_place(broker, raw, topic):
    """Its system takes the PING, though the broker does not read an answer."""
    client, _ = paused_client(broker, topic, Pause.RATE)
    with client:
        with pytest.raises(RequestRefusedError):
            raw.subscribe(topic, "s")
        with pytest.raises(RequestRefusedError):
            raw.create_producer(topic, access_mode=Exclusive)


def test_a_host_that_vanished_loses_its_place(broker, raw, topic, monkeypatch):
    """Its system confirms nothing, so after a while the next client gets the place."""
    client, _ = paused_client(broker, topic, Pause.RATE)
    monkeypatch.setattr("pulsemark.broker.connection.session.bytes_confirmed", lambda _: 7)
    with client:
        raw.subscribe(topic, "s")


def test_a_killed_client_that_had_published_too_fast(broker, raw, topic):
    """What one read brought is paid for many seconds; the next client does not wait for that."""
    client = RawClient.from_url(broker.service_url)
    producer = client.create_producer(topic, access_mode=Exclusive)
    limit = {"publishThrottlingRateInMsg": 1, "publishThrottlingRateInByte": -1}

    async def set_limit(running):
        topics = running.services.topics
        await topics.policies[PUBLISH_RATE].set(topics.parse(topic), limit)

    broker.call(set_limit)
    for _ in range(5_000):
        producer.post(unbatched_message(b"x", publish_time_ms=1))
    client.write()
    client.close()
    raw.create_producer(topic, access_mode=Exclusive)


async def test_what_a_system_does_not_tell_is_not_known(monkeypatch):
    """Without TCP_INFO, or without a socket, nothing ends and nothing is confirmed."""
    monkeypatch.delattr(socket, "TCP_INFO")
    assert not tcp.has_ended(None)
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        assert not tcp.has_ended(writer.transport)
        assert tcp.bytes_confirmed(writer.transport) is None
        writer.close()
        await writer.wait_closed()

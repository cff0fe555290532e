"""Publishes of clients that do not wait for receipts are gathered; others are not delayed."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from typing import cast

from hypothesis import given, settings
from hypothesis import strategies as st

from pulsemark.broker import Broker, BrokerThread
from pulsemark.broker.connection.session import (
    ENOUGH_BYTES,
    ENOUGH_ENTRIES,
    PACED_READS,
    Gathering,
)
from pulsemark.testing import RawClient, running_broker
from pulsemark.testing.raw_messages import unbatched_message
from pulsemark.wire import Connection, Role, commands

WAIT_S = 0.002
SMALL_BYTES = 100
GOOD = unbatched_message(b"x", publish_time_ms=1)
LONG_MS = 20_000


#: With numbers of one byte each.
RECEIPT = commands.send_receipt(1, 1, 1, 1)


def sends(first: int, end: int) -> bytes:
    """SENDs of producer 1."""
    return b"".join(b"".join(commands.send(1, number, GOOD)) for number in range(first, end))


def received(link: socket.socket) -> bytes:
    """All bytes until the end of the connection."""
    data = b""
    while part := link.recv(1 << 16):
        data += part
    return data


def publishing(broker: BrokerThread, topic: str) -> socket.socket:
    """A connection with two receipts: from its third SEND on publishes may wait."""
    host, _, port = broker.service_url.removeprefix("pulsar://").partition(":")
    link = socket.create_connection((host, int(port)), 10)
    reader = Connection(Role.CLIENT)
    for request in (
        commands.connect("t"),
        commands.producer(topic, 1, 1),
        sends(0, 1),
        sends(1, 2),
    ):
        link.sendall(request)
        while not list(reader.events()):
            reader.receive_data(link.recv(1 << 16))
    return link


def wait_until_held(broker: BrokerThread) -> None:
    """Return when the connection has received five SENDs more, and handled none."""

    async def held(running: Broker) -> bool:
        # What is not yet handled can be seen here only.
        (session,) = running.services.sessions
        return session.connection.pending_bytes == len(sends(2, 7))

    while not broker.call(held):
        pass


class Loop:
    """An event loop and a clock that stand until the test moves them."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.takes = self.waits = self.reads = 0
        self.is_reading = True
        self._due: list[tuple[float, Callable[[], None]]] = []
        loop = cast("asyncio.AbstractEventLoop", self)
        self.gathering = Gathering(
            WAIT_S, loop, self._take, self._set_low_water, clock=lambda: self.now_s
        )

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Loop:
        """The one timer there is."""
        self._due = [(self.now_s + delay_s, callback)]
        self.waits += 1
        return self

    @property
    def waits_now(self) -> bool:
        """Whether the timer runs."""
        return bool(self._due)

    def cancel(self) -> None:
        """As a timer's handle."""
        self._due.clear()

    def _set_low_water(self, size_bytes: int) -> None:
        assert size_bytes in (1, ENOUGH_BYTES)
        self.is_reading = size_bytes == 1

    def _take(self) -> None:
        self.takes += 1

    def run(self, seconds: float) -> None:
        """Let time pass."""
        until_s = self.now_s + seconds
        if self._due and self._due[0][0] <= until_s:
            self.now_s, callback = self._due.pop()
            callback()
        self.now_s = until_s

    def read(self, unhandled_bytes: int = SMALL_BYTES, entries_in_flight: int = 0) -> bool:
        """Bytes came, and are handled unless they wait; whether they wait."""
        assert self.is_reading or unhandled_bytes >= ENOUGH_BYTES
        self.reads += 1
        if self.gathering.waits(unhandled_bytes, entries_in_flight):
            return True
        self.takes += 1
        self.gathering.handled()
        return False


def test_a_client_that_waits_for_its_receipts_is_hardly_ever_made_to_wait():
    """Of 10,000 publishes that each follow a receipt, some twenty wait: ever fewer."""
    loop = Loop()
    for _ in range(10_000):
        if loop.read():
            loop.run(2 * WAIT_S)
        loop.run(WAIT_S / 8)

    assert 1 <= loop.waits <= 20


def test_several_senders_that_wait_are_hardly_ever_made_to_wait():
    """Four at once on one connection are all there soon; that nothing follows is noticed."""
    loop = Loop()
    for _ in range(2_500):
        answers = [loop.read() for _ in range(4)]
        if any(answers):
            loop.run(2 * WAIT_S)
        loop.run(WAIT_S / 8)

    assert 1 <= loop.waits <= 20


def test_a_stream_of_publishes_is_handled_a_few_at_a_time():
    """Of six messages in the time of one wait, one turn is made, and mostly one read, too."""
    loop = Loop()
    in_socket = 0
    for _ in range(6_000):
        in_socket += 1
        if loop.is_reading:
            loop.read(in_socket * SMALL_BYTES)
            in_socket = 0
        loop.run(WAIT_S / 6)

    assert 800 <= loop.takes <= 1_100
    assert loop.reads <= 1_300


def test_a_stream_that_begins_to_wait_for_receipts_is_soon_no_longer_made_to_wait():
    """What was found out about a client is found out again: some forty publishes wait in all."""
    loop = Loop()
    for _ in range(1_000):
        if loop.is_reading:
            loop.read()
        loop.run(WAIT_S / 6)
    loop.run(WAIT_S)
    pauses = 0
    for _ in range(10_000):
        pauses += loop.read()
        if not loop.is_reading or loop.waits_now:
            pauses += not loop.is_reading
            loop.run(2 * WAIT_S)
        loop.run(WAIT_S / 8)

    assert pauses <= PACED_READS + 20


def test_a_stream_that_becomes_fast_is_not_paused():
    """A pause in which much arrives ends at once, and is the last one."""
    loop = Loop()
    while loop.is_reading:
        loop.read()
        loop.run(WAIT_S / 6)

    assert not loop.read(ENOUGH_BYTES, ENOUGH_ENTRIES)
    assert loop.is_reading
    assert not loop.waits_now


def test_a_pause_ends_with_the_connection():
    """Its timer is cancelled, and reading goes on: a half-closed connection must be read."""
    loop = Loop()
    while loop.is_reading:
        loop.read()
        loop.run(WAIT_S / 6)
    loop.gathering.close()

    assert loop.is_reading
    assert not loop.waits_now


@given(st.integers(1, 3 * ENOUGH_BYTES), st.integers(0, 3 * ENOUGH_ENTRIES))
@settings(deadline=None)
def test_where_enough_is_there_nothing_waits(unhandled_bytes: int, entries_in_flight: int) -> None:
    """Large publishes and deep pipelines are handled at once, at every size."""
    loop = Loop()
    loop.read()
    loop.run(WAIT_S / 2)

    is_enough = unhandled_bytes >= ENOUGH_BYTES or entries_in_flight >= ENOUGH_ENTRIES
    assert loop.read(unhandled_bytes, entries_in_flight) is not is_enough


def test_a_wait_ends_once_enough_is_there():
    """What came while others wait is handled with them, at once, and the timer is gone."""
    loop = Loop()
    loop.read()
    loop.run(WAIT_S / 2)
    assert loop.read()
    loop.run(WAIT_S / 4)

    assert not loop.read(ENOUGH_BYTES)
    takes = loop.takes
    loop.run(2 * WAIT_S)
    assert loop.takes == takes


def test_publishes_far_apart_do_not_wait():
    """A wait would bring nothing where reads come further apart than it lasts."""
    loop = Loop()
    for _ in range(100):
        assert not loop.read()
        loop.run(1.5 * WAIT_S)


def test_publishes_that_wait_are_stored_when_their_client_goes(topic):
    """A client that sends and then closes loses nothing by the wait."""
    with running_broker(publish_gathering_ms=LONG_MS) as broker:
        with publishing(broker, topic) as link:
            link.sendall(sends(2, 7))
            wait_until_held(broker)
        with RawClient.from_url(broker.service_url) as client:
            consumer = client.subscribe(topic, "s", earliest=True)
            consumer.flow(100)
            assert len(consumer.receive_many(7)) == 7


def test_publishes_that_came_in_a_pause_are_stored_when_their_client_goes(topic):
    """What is still in the socket when the client closes is read, and stored in order."""

    async def is_paused(running: Broker) -> bool:
        (session,) = running.services.sessions
        return session._gathering.is_pausing

    with running_broker(publish_gathering_ms=300) as broker:
        with publishing(broker, topic) as link:
            end, deadline = 2, time.monotonic() + 60
            while not broker.call(is_paused):
                assert time.monotonic() < deadline, "a stream was never paused"
                link.sendall(sends(end, end + 1))
                end += 1
                time.sleep(0.005)
            link.sendall(sends(end, end + 5))
            # Closing with unread receipts would be a reset, which drops what is in the socket.
            link.shutdown(socket.SHUT_WR)
            received(link)
        with RawClient.from_url(broker.service_url) as client:
            consumer = client.subscribe(topic, "s", earliest=True)
            consumer.flow(10_000)
            entries = [m.command.message_id.entryId for m in consumer.receive_many(end + 5)]
    assert entries == list(range(end + 5))


def test_publishes_that_wait_have_their_receipts_when_the_broker_ends(topic):
    """A broker that stops handles what has come, and answers it."""
    with running_broker(publish_gathering_ms=LONG_MS) as broker:
        link = publishing(broker, topic)
        link.sendall(sends(2, 7))
        wait_until_held(broker)
    assert len(received(link)) == 5 * len(RECEIPT)
    link.close()


def test_without_gathering_each_publish_is_handled_at_once(topic):
    """The setting 0 turns it off: a receipt comes for a publish that nothing follows."""
    with (
        running_broker(publish_gathering_ms=0) as broker,
        RawClient.from_url(broker.service_url) as client,
    ):
        producer = client.create_producer(topic)
        for _ in range(50):
            producer.send_raw(GOOD)

"""Memory that clients take in the broker is counted, and refused above the limits."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import struct
import time
from functools import partial
from typing import Any

import pytest

from pulsemark.broker.errors import RefusedError
from pulsemark.broker.memory import Account, KeptMemory
from pulsemark.client import RequestRefusedError
from pulsemark.connection_memory import SHARE_BYTES, InputMemory, OutputMemory
from pulsemark.proto.pulsar_api_pb2 import CommandSubscribe, Schema, ServerError
from pulsemark.testing import RawClient, running_broker
from pulsemark.testing.raw_messages import unbatched_message
from pulsemark.wire import commands

MIB = 1024 * 1024
CONNECT = commands.connect("test")


class FakeHolder:
    """A connection that holds what a test says."""

    def __init__(self):
        self.unsent = 0
        self.closed = self.resumed = 0

    def give_up_input(self):
        """Count it."""
        self.closed += 1

    def give_up_output(self):
        """Count it; its data is gone."""
        self.closed += 1
        self.unsent = 0

    def unsent_bytes(self):
        """What the test set."""
        return self.unsent

    def held_output_bytes(self):
        """The same: nothing was taken in part."""
        return self.unsent

    def output_freed(self):
        """Count it."""
        self.resumed += 1


def dial(broker, url=None):
    """A bare TCP connection."""
    host, port = (url or broker.service_url).partition("://")[2].split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def wait_until(condition, timeout_s=20):
    """Wait for a condition that another thread brings about."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def sendall_until_closed(link, data):
    """Send as much as the other side takes before it closes."""
    with contextlib.suppress(OSError):
        link.sendall(data)


# -- input ----------------------------------------------------------------------------------------


def test_the_frame_that_began_first_goes():
    """At the limit the oldest unfinished frame's connection is closed, and no other."""
    memory = InputMemory(100)
    old, busy, new = FakeHolder(), FakeHolder(), FakeHolder()
    memory.hold(old, 40, begins=True)
    memory.hold(busy, 40, begins=True)
    memory.hold(old, 45, begins=False)
    memory.hold(new, 10, begins=True)
    assert (old.closed, memory.total_bytes) == (0, 95)

    memory.hold(new, 40, begins=False)

    assert (old.closed, busy.closed, new.closed) == (1, 0, 0)
    assert memory.total_bytes == 80
    memory.forget(busy)
    memory.forget(new)
    memory.forget(old)
    assert memory.total_bytes == 0


def test_announced_frames_take_no_memory():
    """400 connections that announce 5 MiB and send six bytes use no counted memory."""
    with running_broker() as broker:
        services = broker.broker.services
        links = [dial(broker) for _ in range(50)]
        for link in links:
            link.sendall(CONNECT + struct.pack(">IH", 5 * MIB, 0))
        wait_until(lambda: sum(s.connection.pending_bytes == 6 for s in services.sessions) == 50)
        assert services.input.total_bytes == 0
        assert all(s.connection.allocated_bytes <= 16 * 1024 for s in services.sessions)
        for link in links:
            link.close()


def test_unfinished_frames_are_bounded_over_all_connections():
    """Clients that stop near the end of large frames are closed beyond the limit; others go on."""
    with running_broker(max_input_buffer_bytes=8 * MIB) as broker:
        services = broker.broker.services
        body = struct.pack(">II", 2 * MIB, 100) + bytes(2 * MIB - 10)
        with RawClient.from_url(broker.service_url) as raw:
            producer = raw.create_producer("persistent://public/default/t")
            links = [dial(broker) for _ in range(12)]
            for link in links:
                sendall_until_closed(link, CONNECT + body)
                producer.send(unbatched_message(bytes(MIB), publish_time_ms=1))
                assert services.input.total_bytes <= 8 * MIB
            assert 1 <= len(services.sessions) <= 6
        for link in links:
            link.close()


def test_one_byte_at_a_time_does_not_keep_a_frame_open():
    """A frame has a total time, so a client that sends slowly is closed, too."""
    limits = {"stalled_frame_timeout_ms": 400, "keep_alive_interval_ms": 60_000}
    with running_broker(**limits) as broker, dial(broker) as link:
        link.sendall(CONNECT + struct.pack(">II", 1000, 900))
        link.settimeout(0.05)
        answered = b""
        deadline = time.monotonic() + 20
        closed = False
        while not closed:
            assert time.monotonic() < deadline, "the half frame is still open"
            try:
                link.sendall(b"x")
                part = link.recv(1000)
                answered += part
                closed = not part
            except TimeoutError:
                pass
            except OSError:
                closed = True


def test_a_slow_frame_that_keeps_the_rate_is_taken():
    """The time of a frame grows with what has arrived of it."""
    limits = {"stalled_frame_timeout_ms": 300, "min_frame_rate_bytes_per_s": 1000}
    with running_broker(**limits) as broker, dial(broker) as link:
        frame = commands.lookup("persistent://public/default/" + "t" * 200, 1)
        padded = frame[4:] + bytes(3000)
        data = struct.pack(">I", len(padded)) + padded
        link.sendall(CONNECT)
        link.recv(1000)
        for at in range(0, len(data), 250):
            link.sendall(data[at : at + 250])
            time.sleep(0.05)
        assert link.recv(1000)


def test_a_quiet_connection_holds_no_buffer():
    """After a second of silence the input buffer is freed."""
    with running_broker() as broker, RawClient.from_url(broker.service_url) as raw:
        producer = raw.create_producer("persistent://public/default/t")
        for _ in range(20):
            producer.send(unbatched_message(bytes(MIB), publish_time_ms=1))
        services = broker.broker.services
        wait_until(lambda: all(s.connection.allocated_bytes == 0 for s in services.sessions))
        assert services.input.total_bytes == 0
        producer.send(unbatched_message(b"x", publish_time_ms=1))


# -- output ---------------------------------------------------------------------------------------


def test_scarce_output_goes_to_those_who_read():
    """From half of the limit on, only connections with little unsent data are given more."""

    async def scenario():
        memory = OutputMemory(20 * SHARE_BYTES)
        full, reading = FakeHolder(), FakeHolder()
        full.unsent = 11 * SHARE_BYTES
        memory.wrote(full)
        assert memory.is_scarce
        assert not memory.has_room(full)
        assert memory.has_room(reading)
        full.unsent = SHARE_BYTES
        memory._measure()
        assert (memory.is_scarce, full.resumed) == (False, 1)
        memory.close()

    asyncio.run(scenario())


def test_those_that_read_nothing_for_longest_are_closed():
    """At the limit clients go that made no progress; one that reads stays."""

    async def scenario():
        memory = OutputMemory(10 * MIB)
        reading, stuck = FakeHolder(), FakeHolder()
        for holder in (reading, stuck):
            holder.unsent = 4 * MIB
            memory.wrote(holder)
        reading.unsent = 3 * MIB
        memory._measure()
        late = FakeHolder()
        late.unsent = 5 * MIB
        memory.wrote(late)
        assert (reading.closed, stuck.closed, late.closed) == (0, 1, 0)
        # What it held is free only when its connection is gone: nobody is given it before.
        other = FakeHolder()
        assert (memory.total_bytes, memory.has_room(other)) == (12 * MIB, False)
        memory.forget(stuck)
        assert (memory.total_bytes, memory.has_room(other)) == (8 * MIB, True)
        memory.close()

    asyncio.run(scenario())


def test_readers_that_come_at_once_reserve_no_more_than_the_limit():
    """What is read to be sent counts before it is written; those who wait go on one by one."""

    async def scenario():
        memory = OutputMemory(16 * MIB)
        assert memory.reserve(5 * MIB) == 5 * MIB
        assert memory.reserve(5 * MIB) == 3 * MIB
        granted = []
        while (size_bytes := memory.reserve(5 * MIB)) != 0:
            granted.append(size_bytes)
        assert granted == [MIB] * 8
        assert memory.reserved_bytes == 16 * MIB
        freed = [memory.room_freed() for _ in range(2)]
        memory.give_back(3 * MIB)
        await asyncio.gather(*freed)
        assert memory.reserve(5 * MIB) == MIB
        memory.close()

    asyncio.run(scenario())


def test_a_reader_goes_on_also_if_clients_hold_all_memory():
    """One at a time is let in: what it writes makes room, as the slowest connection is closed."""

    async def scenario():
        memory = OutputMemory(8 * MIB)
        stuck = FakeHolder()
        stuck.unsent = 8 * MIB
        memory.wrote(stuck)
        assert memory.reserve(4 * MIB) == MIB
        assert memory.reserve(4 * MIB) == 0
        late = FakeHolder()
        late.unsent = MIB
        memory.wrote(late)
        memory.give_back(MIB)
        assert stuck.closed
        memory.forget(stuck)
        assert memory.reserve(2 * MIB) == 2 * MIB
        memory.close()

    asyncio.run(scenario())


def test_consumers_that_do_not_read_share_one_limit():
    """Unsent data of such consumers stays below the limit, and one that reads gets all."""
    topic = "persistent://public/default/t"
    with running_broker(max_unsent_bytes=8 * MIB) as broker:
        services = broker.broker.services
        with RawClient.from_url(broker.service_url) as raw:
            producer = raw.create_producer(topic)
            for _ in range(40):
                producer.send(unbatched_message(bytes(MIB // 2), publish_time_ms=1))
            links = [dial(broker) for _ in range(12)]
            for number, link in enumerate(links):
                subscribe = commands.subscribe(
                    topic, f"s{number}", 1, 1, initial_position=CommandSubscribe.Earliest
                )
                link.sendall(CONNECT + subscribe)
                answer = b""
                while commands.success(1) not in answer:
                    answer += link.recv(4096)
                link.sendall(commands.flow(1, 1000))
            wait_until(lambda: services.output.is_scarce)
            reader = raw.subscribe(topic, "reader", earliest=True)
            reader.flow(1000)
            for _ in range(40):
                reader.receive()
                held = sum(session.unsent_bytes() for session in tuple(services.sessions))
                assert held <= 8 * MIB + MIB
        for link in links:
            link.close()


def test_pipelined_requests_wait_for_their_answers_to_be_read():
    """For a client that sends GETs and reads nothing the broker keeps one answer, not all."""
    with running_broker() as broker, RawClient.from_url(broker.service_url) as raw:
        for number in range(60):
            raw.create_producer(f"persistent://public/default/t{number}")
        services = broker.broker.services
        get = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with dial(broker, broker.http_url) as link:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            link.settimeout(0.5)
            sendall_until_closed(link, get * 100_000)
            wait_until(lambda: services.http_connections)

            async def unsent_after_many_turns(_):
                for _turn in range(1000):
                    await asyncio.sleep(0)
                connections: set[Any] = services.http_connections
                return [each.unsent_bytes() for each in connections]

            unsent = broker.call(unsent_after_many_turns)
            page = len(raw_page(broker))
            assert max(unsent) <= 64 * 1024 + page


def raw_page(broker):
    """The metrics page."""
    import urllib.request

    with urllib.request.urlopen(broker.http_url + "/metrics", timeout=20) as answer:
        return answer.read()


def test_an_unread_answer_is_dropped_in_time():
    """After the idle timeout without progress the connection is closed, data and all."""
    with running_broker(http_idle_timeout_ms=300) as broker:
        services = broker.broker.services
        get = b"GET /admin/v2/brokers/configuration/runtime HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with dial(broker, broker.http_url) as link:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            link.settimeout(0.2)
            sendall_until_closed(link, get * 20_000)
            wait_until(lambda: not services.http_connections)


# -- kept state -----------------------------------------------------------------------------------


def test_kept_memory_is_counted_while_it_lives():
    """A reservation counts until its object is freed, per connection and for all."""
    kept = KeptMemory(100, 60)
    first, second = Account(kept), Account(kept)
    reservation = first.reserve("thing", 50)
    with pytest.raises(RefusedError) as refusal:
        first.reserve("thing", 11)
    assert refusal.value.code == ServerError.NotAllowedError
    with pytest.raises(RefusedError) as refusal:
        second.reserve("thing", 51)
    assert refusal.value.code == ServerError.ServiceNotReady
    del reservation
    assert second.reserve("thing", 51) is not None
    gc.collect()
    assert (first.total_bytes, kept.total_bytes) == (0, 0)


def test_producers_with_many_properties_are_refused_beyond_the_limit():
    """64 KiB of tiny properties count with what they take in memory, and are given back."""
    tiny = {str(number): "" for number in range(6000)}
    with running_broker(max_kept_bytes_per_connection=8 * MIB) as broker:
        services = broker.broker.services
        with RawClient.from_url(broker.service_url) as raw:
            codes = []
            for number in range(20):
                try:
                    raw.create_producer(
                        "persistent://public/default/t",
                        producer_name=f"p{number}",
                        properties=tiny,
                    )
                except RequestRefusedError as refused:
                    codes.append(refused.error)
            assert set(codes) == {ServerError.NotAllowedError}
            assert 12 <= len(codes) <= 17
            assert services.kept.total_bytes <= 8 * MIB
            raw.ping()
        wait_until(lambda: services.kept.total_bytes == 0)


def test_large_requests_that_wait_are_counted():
    """Requests under way count with their size, and beyond the limit they are refused."""
    with running_broker(max_kept_bytes_per_connection=16 * MIB) as broker:
        schema = Schema(name="s", schema_data=bytes(900_000), type=Schema.Json)
        topic = "persistent://public/default/t"
        with RawClient.from_url(broker.service_url) as raw:
            raw.create_producer(topic)
            ids = [raw.new_id() for _ in range(40)]
            raw.write(*(commands.get_or_create_schema(topic, n, schema) for n in ids))
            codes = []
            for number in ids:
                try:
                    raw.wait_response(number)
                except RequestRefusedError as refused:
                    codes.append(refused.error)
            assert ServerError.NotAllowedError in codes
            raw.ping()


def test_names_have_a_limit_wherever_they_come_from(broker, http, topic, raw):
    """An initial subscription's name, and one in a URL, may have 1,024 bytes."""
    with pytest.raises(RequestRefusedError) as refused:
        raw.create_producer(topic, initial_subscription_name="x" * 900_000)
    assert refused.value.error == ServerError.NotAllowedError
    raw.create_producer(topic, initial_subscription_name="x" * 1024)
    path = f"/admin/v2/{topic.replace('://', '/')}/subscription/{'x' * 1025}"
    assert http("PUT", path).status == 405


def test_topics_and_subscriptions_have_a_number():
    """Beyond it new ones are refused as in Pulsar; those that are there go on."""
    with (
        running_broker(max_topics=2, max_subscriptions_per_topic=2) as broker,
        RawClient.from_url(broker.service_url) as raw,
    ):
        for number in range(2):
            raw.create_producer(f"persistent://public/default/t{number}")
            raw.subscribe("persistent://public/default/t0", f"s{number}")
        with pytest.raises(RequestRefusedError) as refused:
            raw.create_producer("persistent://public/default/t2")
        assert refused.value.error == ServerError.NotAllowedError
        with pytest.raises(RequestRefusedError) as refused:
            raw.subscribe("persistent://public/default/t0", "s2")
        assert refused.value.error == ServerError.NotAllowedError
        raw.subscribe("persistent://public/default/t1", "s2")


def test_schemas_of_unknown_topics_are_not_remembered(broker, raw):
    """Asking for the schemas of a thousand unknown topics keeps nothing in memory."""
    for number in range(1000):
        with pytest.raises(RequestRefusedError):
            raw.request(
                lambda request_id, n=number: commands.get_schema(
                    f"persistent://public/default/unknown{n}", request_id
                )
            )
    assert broker.broker.services.schemas._by_topic == {}


def test_the_schema_cache_has_a_size():
    """Definitions beyond it are read from the catalog again, and are the same."""
    with (
        running_broker(max_schema_cache_bytes=10_000, max_schema_bytes_per_topic=6000) as broker,
        RawClient.from_url(broker.service_url) as raw,
    ):
        schemas = {}
        for number in range(8):
            topic = f"persistent://public/default/t{number}"
            raw.create_producer(topic)
            schemas[topic] = Schema(
                name="s",
                type=Schema.Json,
                schema_data=b'{"type":"record","name":"r%d","doc":"%s","fields":[]}'
                % (number, b"x" * 3000),
            )
            raw.request(partial(commands.get_or_create_schema, topic, schema=schemas[topic]))
        assert len(broker.broker.services.schemas._by_topic) <= 3
        for topic, schema in schemas.items():
            found = raw.request(partial(commands.get_schema, topic))
            assert found.schema.schema_data == schema.schema_data
        large = b'{"type":"record","name":"o","doc":"%s","fields":[]}' % (b"x" * 6000)
        other = Schema(name="s", type=Schema.Json, schema_data=large)
        raw.create_producer(f"{topic}-other")
        with pytest.raises(RequestRefusedError) as refused:
            raw.request(lambda i: commands.get_or_create_schema(f"{topic}-other", i, other))
        assert refused.value.error == ServerError.NotAllowedError

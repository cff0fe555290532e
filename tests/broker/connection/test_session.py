"""A connection's rules: broken frames, silence, and memory limits."""

from __future__ import annotations

import random
import socket
import struct
import time
import urllib.request

import pytest

from pulsemark.client import RequestRefusedError
from pulsemark.proto.pulsar_api_pb2 import BaseCommand
from pulsemark.testing import RawClient, running_broker
from pulsemark.testing.raw_messages import unbatched_message
from pulsemark.wire import commands

GOOD = unbatched_message(b"x", publish_time_ms=1)


def dial(broker):
    """A bare TCP connection."""
    host, port = broker.service_url.removeprefix("pulsar://").split(":")
    return socket.create_connection((host, int(port)), timeout=10)


def closed_by_peer(link):
    """Whether the other side closes the connection, whatever it says before."""
    try:
        while link.recv(65536):
            pass
    except ConnectionError:
        pass
    return True


def wait_until(condition, timeout_s=10):
    """Wait for a condition that another thread brings about."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


# -- broken frames --------------------------------------------------------------------------------

CONNECT = commands.connect("test")
RANDOM = random.Random(7)

BROKEN = {
    "garbage": RANDOM.randbytes(1000),
    "garbage after connect": CONNECT + RANDOM.randbytes(1000),
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "frame of size 0": CONNECT + struct.pack(">II", 0, 0),
    "command larger than its frame": CONNECT + struct.pack(">II", 10, 100) + bytes(10),
    "frame above the limit": CONNECT + struct.pack(">II", 6 * 1024 * 1024, 10),
    "4 GiB frame": CONNECT + b"\xff" * 8,
    "large frame before connect": struct.pack(">II", 1024 * 1024, 10),
    "no command in it": CONNECT + struct.pack(">II", 8, 4) + b"\xff\xff\xff\xff",
    "required field missing": CONNECT + struct.pack(">II", 8, 4) + b"\x08\x04\x22\x00",
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_broken_bytes_close_their_connection_and_no_other(broker, raw, topic, data):
    """A client that violates the protocol is closed; another one can still publish."""
    producer = raw.create_producer(topic)
    with dial(broker) as link:
        link.sendall(data)
        assert closed_by_peer(link)
    assert producer.send_raw(GOOD).entry_id == 0


def test_a_cut_off_frame_does_no_harm(broker, raw, topic):
    """A connection that ends inside a SEND stores nothing of it."""
    with RawClient.from_url(broker.service_url) as client:
        producer = client.create_producer(topic)
        producer.send_raw(GOOD)
        header = commands.send_header(producer.producer_id, 1, 100_000)
        client.write(header, b"half of it")
    wait_until(lambda: not broker.call(producers_of(topic)))
    assert raw.create_producer(topic).send_raw(GOOD).entry_id == 1


def producers_of(topic):
    """A coroutine function for the broker's loop."""

    async def names(running):
        return list(running.services.topics.open_topics[topic].producers.by_name)

    return names


def test_frames_cut_anywhere_mean_the_same(broker, topic):
    """One byte at a time gives the answers that one write gives."""
    frames = (
        CONNECT
        + commands.lookup(topic, 1)
        + commands.partitioned_metadata(topic, 2)
        + commands.get_topics_of_namespace("public/nowhere", 3)
        + commands.PING
    )
    answers = []
    for size in (len(frames), 1):
        with dial(broker) as link:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for at in range(0, len(frames), size):
                link.sendall(frames[at : at + size])
            answer = b""
            while not answer.endswith(commands.PONG):
                answer += link.recv(65536)
            answers.append(answer)
    assert answers[0] == answers[1]


def test_requests_sent_without_waiting_are_all_answered(raw, topic):
    """A hundred requests in one write get a hundred answers."""
    ids = [raw.new_id() for _ in range(100)]
    raw.write(*(commands.lookup(topic, request_id) for request_id in ids))
    for request_id in ids:
        assert raw.wait_response(request_id).brokerServiceUrl


def test_a_producer_closed_while_it_opens_does_not_stay(raw, broker, topic):
    """CLOSE_PRODUCER directly after PRODUCER: the name is free afterwards."""
    raw.write(commands.producer(topic, 1, 901, producer_name="p"), commands.close_producer(1, 902))
    raw.request(lambda r: commands.close_producer(1, r))
    again = raw.create_producer(topic, producer_name="p")
    assert broker.call(producers_of(topic)) == ["p"]
    assert again.send_raw(GOOD).entry_id == 0


def test_a_consumer_closed_while_it_opens_does_not_stay(raw, topic):
    """CLOSE_CONSUMER directly after SUBSCRIBE: the subscription is free afterwards."""
    raw.write(commands.subscribe(topic, "s", 1, 901), commands.close_consumer(1, 902))
    raw.request(lambda r: commands.close_consumer(1, r))
    raw.subscribe(topic, "s")


def test_a_lost_connection_frees_its_producers_and_consumers(broker, raw, topic):
    """Names and places are free once the connection is gone."""
    with RawClient.from_url(broker.service_url) as client:
        client.create_producer(topic, producer_name="p")
        client.subscribe(topic, "s")
    wait_until(lambda: not broker.call(producers_of(topic)))
    raw.create_producer(topic, producer_name="p")
    raw.subscribe(topic, "s")


# -- silence --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def impatient():
    """A broker with short timeouts."""
    with running_broker(
        http_port=None,
        keep_alive_interval_ms=400,
        handshake_timeout_ms=300,
        stalled_frame_timeout_ms=300,
    ) as running:
        yield running


def test_who_never_connects_is_closed(impatient):
    """The handshake has a time limit, in silence or with PINGs."""
    with dial(impatient) as silent, dial(impatient) as pinging:
        pinging.sendall(commands.PING)
        assert closed_by_peer(silent)
        assert closed_by_peer(pinging)


def test_a_frame_that_stops_in_its_middle_closes_the_connection(impatient):
    """Half a frame, then nothing."""
    with RawClient.from_url(impatient.service_url) as client:
        client.write(struct.pack(">II", 1000, 900), b"half")
        client.wait_closed()


def test_a_silent_client_is_pinged_and_then_closed(impatient):
    """No PONG in another interval is the end."""
    with RawClient.from_url(impatient.service_url, answers_pings=False) as client:
        client.wait_unsolicited(BaseCommand.PING)
        client.wait_closed()


def test_a_client_that_answers_stays(impatient):
    """A client that answers PING with PONG stays connected: two PINGs are sent."""
    with RawClient.from_url(impatient.service_url, answers_pings=False) as client:
        for _ in range(2):
            client.wait_unsolicited(BaseCommand.PING)
            client.write(commands.PONG)
        client.ping()


# -- limits ---------------------------------------------------------------------------------------


def test_publishes_in_flight_are_limited(topic):
    """With room for 4 publishes at a time 500 still get through, in order."""
    with (
        running_broker(http_port=None, max_in_flight_publish_messages_per_connection=4) as broker,
        RawClient.from_url(broker.service_url) as client,
    ):
        receipts = client.create_producer(topic).send_many([GOOD] * 500, window=500)
    assert list(range(500)) == [receipt.entry_id for receipt in receipts]


@pytest.mark.parametrize(
    "limit", ["max_in_flight_publish_bytes_per_connection", "max_in_flight_publish_bytes"]
)
def test_publish_bytes_in_flight_are_limited(topic, limit):
    """With room for 64 KiB 20 MB get through, over two connections."""
    body = unbatched_message(bytes(100_000), publish_time_ms=1)
    with (
        running_broker(http_port=None, **{limit: 65_536}) as broker,
        RawClient.from_url(broker.service_url) as one,
        RawClient.from_url(broker.service_url) as two,
    ):
        producers = [client.create_producer(topic) for client in (one, two)]
        for producer in producers:
            for _ in range(50):
                producer.post(body)
        ids = [r.entry_id for producer in producers for r in producer.receipts(50)]
        assert broker.call(bytes_in_flight) == 0
    assert list(range(100)) == sorted(ids)


async def bytes_in_flight(broker):
    """A coroutine function for the broker's loop."""
    return broker.services.budget.bytes_in_flight


async def unsent_bytes(broker):
    """A coroutine function for the broker's loop: unsent data of each connection."""
    return [session.unsent_bytes() for session in broker.services.sessions]


def test_a_slow_consumer_costs_no_more_than_its_buffer(topic):
    """Of 40 MB for a consumer that does not read, the broker keeps at most the limits."""
    body = unbatched_message(bytes(200_000), publish_time_ms=1)
    high, round_bytes = 256 * 1024, 256 * 1024
    with (
        running_broker(
            http_port=None,
            write_buffer_high_water_bytes=high,
            dispatch_round_bytes=round_bytes,
        ) as broker,
        RawClient.from_url(broker.service_url) as slow,
        RawClient.from_url(broker.service_url) as quick,
    ):
        quick.create_producer(topic).send_many([body] * 200, window=20)
        sleeper = slow.subscribe(topic, "slow", earliest=True)
        slow.write(commands.flow(sleeper.consumer_id, 1000))
        reader = quick.subscribe(topic, "quick", earliest=True)
        most = 0
        for _ in range(200):
            reader.flow(1)
            reader.receive()
            most = max(broker.call(unsent_bytes))
        assert 0 < most <= high + round_bytes + 2 * len(body)
        assert len(sleeper.receive_many(200, timeout_s=20)) == 200


def test_a_client_that_asks_without_reading_is_not_read_on(topic):
    """Answers pile up to about twice the mark: then the broker stops reading requests."""
    high = 16 * 1024
    requests = memoryview(commands.lookup(topic, 1) * 500)
    with running_broker(http_port=None, write_buffer_high_water_bytes=high) as broker:
        host, port = broker.service_url.removeprefix("pulsar://").split(":")
        with socket.socket() as link:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            link.connect((host, int(port)))
            link.sendall(CONNECT)
            link.settimeout(0.2)
            rest, silence, most = requests, 0, 0
            deadline = time.monotonic() + 60
            # The broker has stopped reading once answers wait and nothing more can be sent.
            while (silence < 5 or most <= high) and time.monotonic() < deadline:
                try:
                    rest = rest[link.send(rest) :] or requests
                    silence = 0
                except TimeoutError:
                    silence += 1
                    most = max(broker.call(unsent_bytes))
    # One read's worth of requests (256 KiB) may be answered beyond the mark.
    assert high < most < 3 * 1024 * 1024


def test_a_connection_has_a_limited_number_of_producers_and_consumers(topic):
    """One more is refused by name."""
    with (
        running_broker(
            http_port=None, max_producers_per_connection=2, max_consumers_per_connection=2
        ) as broker,
        RawClient.from_url(broker.service_url) as client,
    ):
        for n in range(2):
            client.create_producer(topic)
            client.subscribe(topic, f"s{n}")
        with pytest.raises(RequestRefusedError, match="too many producers"):
            client.create_producer(topic)
        with pytest.raises(RequestRefusedError, match="too many consumers"):
            client.subscribe(topic, "s2")


def test_connections_are_limited(topic):
    """One above the limit is closed at once; the others stand, and room is given again."""
    with running_broker(http_port=None, max_connections=2) as broker:
        with (
            RawClient.from_url(broker.service_url) as first,
            RawClient.from_url(broker.service_url),
        ):
            with dial(broker) as third:
                assert closed_by_peer(third)
            first.ping()

        def is_let_in():
            try:
                RawClient.from_url(broker.service_url).close()
            except ConnectionError:
                return False
            return True

        wait_until(is_let_in)


def test_connections_of_one_address_are_limited():
    """Over Pulsar's and Kafka's ports together; other addresses and HTTP are let in."""
    with running_broker(kafka_port=0, max_connections_per_ip=2) as broker:
        kafka = int(broker.broker.kafka_url.rpartition(":")[2])
        with RawClient.from_url(broker.service_url) as first:
            with socket.create_connection(("127.0.0.1", kafka), timeout=10) as second:
                with dial(broker) as third:
                    assert closed_by_peer(third)
                with socket.create_connection(("127.0.0.1", kafka), timeout=10) as fourth:
                    assert closed_by_peer(fourth)
                port = int(broker.service_url.rpartition(":")[2])
                near = ("127.0.0.2", 0)
                with socket.create_connection(("127.0.0.1", port), 10, near) as other:
                    other.sendall(CONNECT)
                    assert other.recv(1)
                first.ping()
                with urllib.request.urlopen(f"{broker.http_url}/metrics", timeout=10) as page:
                    assert page.status == 200
                second.close()

            def is_let_in():
                try:
                    RawClient.from_url(broker.service_url).close()
                except ConnectionError:
                    return False
                return True

            wait_until(is_let_in)

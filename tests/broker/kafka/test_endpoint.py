"""A connection's limits: hostile frames, requests that wait, and the end of the broker."""

from __future__ import annotations

import logging
import socket
import struct
import threading
import time
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kafka.protocol.admin import DeleteRecordsResponse
from kafka.protocol.consumer import FetchRequest, HeartbeatRequest, JoinGroupRequest
from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest
from kafka.protocol.producer import ProduceRequest

from pulsemark.broker.kafka.endpoint import refusing
from pulsemark.kafka.errors import Code
from pulsemark.kafka.protocol import APIS
from pulsemark.ledger import LocalStore
from pulsemark.ledger.local.io.files import Files
from pulsemark.testing import running_broker
from pulsemark.testing.raw_kafka import RawKafka, fetch_fields, produce_fields

from .conftest import create, record_set

TCP_REPAIR = 19
"""Linux: a socket in this state is closed without a word to the other side."""


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (struct.pack(">i", 1 << 30), "at most 16777216 are allowed"),
        (struct.pack(">ihh", 20, 99, 0), "kind 99 are not served"),
        (struct.pack(">ihh", 20, 1, 12), "versions 0 to 11, not 12"),
        (struct.pack(">ihhih", 14, 3, 0, 1, -1) + b"\x7f\xff\xff\xff", "cannot be decoded"),
        (b"GET / HTTP/1.1\r\n\r\n", "a request of 1195725856 bytes"),
    ],
)
def test_hostile_frames_end_their_connection_with_a_line_in_the_log(
    kafka_broker, raw, data, says, caplog
):
    """The client is disconnected; other connections go on."""
    with caplog.at_level(logging.INFO), RawKafka.from_url(kafka_broker.kafka_url) as client:
        client.send_bytes(data)
        with pytest.raises(ConnectionError):
            client.receive_frame()
    assert says in caplog.text
    assert raw.call(ApiVersionsRequest, 0).error_code == 0


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.sampled_from([key for key in sorted(APIS) if key not in (19, 20)]),
    st.data(),
    st.binary(max_size=60),
)
def test_any_request_is_answered_or_ends_its_connection(kafka_broker, caplog, key, data, body):
    """Whatever its bytes say, no handler fails: nothing is logged as an error."""
    version = data.draw(st.integers(0, APIS[key].highest))
    head = struct.pack(">hhih", key, version, 5, -1)
    caplog.clear()
    with RawKafka.from_url(kafka_broker.kafka_url) as client:
        client.send_bytes(struct.pack(">i", len(head) + len(body)) + head + body)
        client.send(ApiVersionsRequest, 0)
        with suppress(ConnectionError):
            client.receive_frame()
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


def test_names_as_long_as_the_protocol_allows_are_answered(kafka_broker, caplog):
    """Answers repeat what clients sent; nothing is longer than a string may be."""
    long = "ü" * 16_000
    with RawKafka.from_url(kafka_broker.kafka_url) as client:
        asked = [MetadataRequest.MetadataRequestTopic(name=long)]
        assert client.call(MetadataRequest, 1, topics=asked).topics[0].error_code == 17
        assert create(client, long) == 17
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(name=long, metadata=b"")
        made = JoinGroupRequest(
            version=4,
            group_id=long,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            member_id="",
            protocol_type=long,
            protocols=[protocol],
        )
        made.with_header(7, "c" * 32_000)
        client.send_bytes(made.encode(header=True, framed=True))
        assert client.receive(JoinGroupRequest, 4)[1].error_code == 79
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


def test_requests_that_wait_hold_up_later_ones_of_their_connection_only(kafka_broker, raw, made):
    """As in Kafka: the answer to the later request comes after the fetch's."""
    with RawKafka.from_url(kafka_broker.kafka_url) as client:
        asked = (made, 0, 0, 1000, -1)
        first = client.send(FetchRequest, 11, **fetch_fields([asked], 60_000, 1, 1000))
        second = client.send(ApiVersionsRequest, 0)
        assert raw.produce(made, record_set([b"x"])).error_code == 0
        assert client.receive(FetchRequest, 11)[0] == first
        assert client.receive(ApiVersionsRequest, 0)[0] == second


class HeldFiles(Files):
    """A disk whose syncs wait until the test lets them go."""

    def __init__(self):
        super().__init__()
        self.free = threading.Event()
        self.free.set()

    def fdatasync(self, fd):
        """Wait, then sync."""
        assert self.free.wait(60), "the test did not let the disk go"
        super().fdatasync(fd)


def test_unanswered_requests_have_a_limit(tmp_path, monkeypatch):
    """Above it the connection is not read; all are answered in their order."""
    files, opened = HeldFiles(), LocalStore.open
    monkeypatch.setattr(
        LocalStore, "open", lambda folder, **options: opened(folder, **{**options, "files": files})
    )
    limit = {"max_kafka_pending_requests_per_connection": 3}
    with (
        running_broker(data_dir=tmp_path / "data", kafka_port=0, http_port=None, **limit) as broker,
        RawKafka.from_url(broker.kafka_url) as client,
    ):
        topic = MetadataRequest.MetadataRequestTopic(name="t")
        client.call(MetadataRequest, 1, topics=[topic])
        client.produce("t", record_set([b"open"]))
        kafka = broker.broker.kafka
        assert kafka is not None
        (session,) = kafka.sessions
        files.free.clear()
        try:
            fields = produce_fields([("t", 0, record_set([b"x"]))], -1)
            sent = [client.send(ProduceRequest, 7, **fields) for _ in range(10)]
            highest = 0
            for _ in range(200):
                highest = max(highest, session.connection.unanswered)
                broker.call(_turn)
        finally:
            files.free.set()
        answers = [client.receive(ProduceRequest, 7)[0] for _ in range(10)]
    assert highest == 3
    assert answers == sent


async def _turn(broker):
    """One turn of the broker's loop."""


def test_a_broker_that_closes_answers_publishes_and_lets_waiting_clients_go(tmp_path):
    """Acknowledged or not known: what was answered is there after the next start."""
    folder = tmp_path / "data"
    acknowledged = []
    with running_broker(data_dir=folder, kafka_port=0, http_port=None) as broker:
        client = RawKafka.from_url(broker.kafka_url)
        topic = MetadataRequest.MetadataRequestTopic(name="t")
        client.call(MetadataRequest, 1, topics=[topic])
        waiting = RawKafka.from_url(broker.kafka_url)
        asked = ("t", 0, 0, 1000, -1)
        waiting.send(FetchRequest, 11, **fetch_fields([asked], 2**31 - 1, 1 << 20, 1000))
        started = threading.Event()

        def publish():
            try:
                while True:
                    answer = client.produce("t", record_set([b"x"]))
                    if answer.error_code == 0:
                        acknowledged.append(answer.base_offset)
                    if len(acknowledged) >= 20:
                        started.set()
            except OSError:
                started.set()

        thread = threading.Thread(target=publish)
        thread.start()
        assert started.wait(60)
    thread.join(60)
    assert not thread.is_alive()
    client.close()
    waiting.close()
    with (
        running_broker(data_dir=folder, kafka_port=0, http_port=None) as broker,
        RawKafka.from_url(broker.kafka_url) as client,
    ):
        assert client.fetch("t", 0).high_watermark >= len(acknowledged)
    assert acknowledged == list(range(len(acknowledged)))


def test_a_group_that_waits_gets_an_answer_when_the_broker_closes():
    """Its JoinGroup is answered, or its connection ends; nothing hangs."""
    with running_broker(storage="memory", kafka_port=0, http_port=None) as broker:
        client = RawKafka.from_url(broker.kafka_url)
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
        client.send(
            JoinGroupRequest,
            0,
            group_id="g",
            session_timeout_ms=10_000,
            member_id="",
            protocol_type="consumer",
            protocols=[protocol],
        )
        until = RawKafka.from_url(broker.kafka_url)
        until.call(HeartbeatRequest, 0, group_id="g", generation_id=0, member_id="")
        until.close()
    try:
        _, answer = client.receive(JoinGroupRequest, 0)
        assert answer.error_code == 15
    except ConnectionError:
        pass
    client.close()


def silently_gone(client):
    """End a connection as a host does that loses its power: the broker gets no packet."""
    near = client.detach()
    try:
        near.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
    except PermissionError:
        pytest.skip("only root may end a connection without telling the other side")
    finally:
        near.close()


@pytest.mark.skipif(not hasattr(socket, "TCP_KEEPIDLE"), reason="the system has no such option")
def test_a_host_that_vanished_while_it_waited_is_noticed(tmp_path):
    """Its fetch, which would wait for weeks, is given up within two intervals of keep-alive."""
    with running_broker(
        data_dir=tmp_path, kafka_port=0, http_port=None, keep_alive_interval_ms=1_000
    ) as broker:
        kafka = broker.broker.kafka
        assert kafka is not None
        client = RawKafka.from_url(broker.kafka_url)
        client.call(MetadataRequest, 1, topics=[MetadataRequest.MetadataRequestTopic(name="t")])
        client.produce("t", record_set([b"x"]))
        asked = ("t", 0, 1, 1000, -1)
        client.send(FetchRequest, 11, **fetch_fields([asked], 2**31 - 1, 1, 1000))
        partition = kafka.partitions.get("t", 0)
        assert partition is not None
        assert until(lambda: partition.waiting), "the fetch does not wait"
        silently_gone(client)
        assert until(lambda: not kafka.sessions), "the connection is still there"
        assert not partition.waiting


def until(condition):
    """Wait, at most half a minute."""
    for _ in range(600):
        if condition():
            return True
        time.sleep(0.05)
    return False


# -- The end of a connection: the client gets its last answers, and does not hold up the broker


BAD_SIZE = struct.pack(">i", -1)
WAIT_S = 60


def ended(client):
    """Whether the broker ended the connection, not with a reset; the socket stays open."""
    try:
        client.receive_frame()
    except ConnectionResetError:
        return False
    except ConnectionError:
        return True
    return False


@pytest.mark.parametrize("more_bytes", [0, 1_000, 5_000_000])
def test_a_client_gets_its_answers_before_a_connection_ends(kafka_broker, topic, more_bytes):
    """Also if it has sent much after the bytes for which it is closed."""
    with RawKafka.from_url(kafka_broker.kafka_url) as client:
        create(client, topic)
        sets = [(topic, 0, record_set([b"v"]))]
        sent = client.send(ProduceRequest, 7, **produce_fields(sets, -1))
        answer = client.receive(ProduceRequest, 7)
        assert answer[0] == sent
        asked = client.send(MetadataRequest, 1, topics=[])
        client.send_bytes(BAD_SIZE + bytes(more_bytes))
        assert client.receive(MetadataRequest, 1)[0] == asked
        assert ended(client)


def test_a_client_that_goes_on_sending_is_cut_off(kafka_broker, raw):
    """After as many bytes as a request may have, or a second or two; it does not stay."""
    kafka = kafka_broker.broker.kafka
    raw.call(MetadataRequest, 1, topics=[])  # by then the broker has accepted it
    known = set(kafka.sessions)
    host, _, port = kafka_broker.kafka_url.rpartition(":")
    with socket.create_connection((host, int(port)), WAIT_S) as stubborn:
        stubborn.sendall(BAD_SIZE)
        assert not _takes_for_long(stubborn)
    until_s = time.monotonic() + WAIT_S
    while set(kafka.sessions) - known:
        assert time.monotonic() < until_s, "the connection is still there"
        time.sleep(0.01)


def _takes_for_long(client):
    """Whether the broker goes on reading, whatever a client sends."""
    until_s = time.monotonic() + WAIT_S
    try:
        while time.monotonic() < until_s:
            client.sendall(bytes(1 << 20))
    except OSError:
        return False
    return True


def test_a_client_that_never_closes_is_forgotten(kafka_broker, raw):
    """The broker closes after about a second, whatever the client does."""
    kafka = kafka_broker.broker.kafka
    raw.call(MetadataRequest, 1, topics=[])  # by then the broker has accepted it
    known = set(kafka.sessions)
    with RawKafka.from_url(kafka_broker.kafka_url) as silent:
        silent.send_bytes(BAD_SIZE)
        assert ended(silent)
        until_s = time.monotonic() + WAIT_S
        while set(kafka.sessions) - known:
            assert time.monotonic() < until_s, "the connection is still there"
            time.sleep(0.01)


def test_a_broker_that_closes_lets_its_clients_read_their_answers(tmp_path):
    """Requests that it does not take any more make no reset, which would throw answers away."""
    with running_broker(data_dir=tmp_path / "data", kafka_port=0, http_port=None) as broker:
        client = RawKafka.from_url(broker.kafka_url)
        create(client, "t")
        client.produce("t", record_set([b"v"]))
        kafka = broker.broker.kafka
        broker.call(_stop_reading)
        sets = [("t", 0, record_set([b"w"]))]
        for _ in range(50):
            client.send(ProduceRequest, 7, **produce_fields(sets, -1))
        assert kafka is not None
    assert ended(client)
    client.close()


async def _stop_reading(broker):
    broker.kafka.stop_reading()


def test_a_failure_of_the_storage_is_answered_and_logged(caplog):
    """The client gets a code only."""
    answer = DeleteRecordsResponse.DeleteRecordsTopicResult.DeleteRecordsPartitionResult()
    with refusing(answer):
        raise OSError("the disk is gone")
    assert answer.error_code == Code.KAFKA_STORAGE_ERROR
    assert "the disk is gone" in caplog.text

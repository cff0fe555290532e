"""The end of a connection: the client gets its last answers, and does not hold up the broker."""

from __future__ import annotations

import socket
import struct
import time

import pytest
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer import ProduceRequest

from pulsemark.testing import running_broker
from pulsemark.testing.raw_kafka import RawKafka, produce_fields

from .conftest import create, record_set

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
    kafka = kafka_broker.broker.services.kafka
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
    kafka = kafka_broker.broker.services.kafka
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
        kafka = broker.broker.services.kafka
        broker.call(_stop_reading)
        sets = [("t", 0, record_set([b"w"]))]
        for _ in range(50):
            client.send(ProduceRequest, 7, **produce_fields(sets, -1))
        assert kafka is not None
    assert ended(client)
    client.close()


async def _stop_reading(broker):
    broker.services.kafka.stop_reading()

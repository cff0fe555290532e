"""CONNECT, PING, and commands that the broker does not serve."""

from __future__ import annotations

import pytest

from pulsemark.client import ConnectionLostError, RequestRefusedError
from pulsemark.proto.pulsar_api_pb2 import (
    AuthData,
    BaseCommand,
    CommandAuthResponse,
    FeatureFlags,
)
from pulsemark.testing import RawClient
from pulsemark.wire import commands

NO_REQUEST_ID = 2**64 - 1


@pytest.mark.parametrize(("asked", "answered"), [(0, 0), (15, 15), (21, 21), (99, 21)])
def test_connected_answers_the_lower_version(broker, asked, answered):
    """CONNECTED has the lower protocol version and the largest message size."""
    with RawClient.from_url(broker.service_url, protocol_version=asked) as client:
        connected = client.connected
        assert connected is not None
        assert answered == connected.protocol_version
        assert connected.max_message_size == 5 * 1024 * 1024
        flags = FeatureFlags(
            supports_topic_watchers=True,
            supports_get_partitioned_metadata_without_auto_creation=True,
            supports_repl_dedup_by_lid_and_eid=True,
        )
        assert flags == connected.feature_flags


def test_ping_is_answered_before_and_after_connect(broker):
    """PING gets PONG at any time."""
    with RawClient.from_url(broker.service_url, handshake=False) as client:
        client.ping()
        client.connect()
        client.ping()


@pytest.mark.parametrize(
    "frame",
    [
        commands.lookup("t", 1),
        commands.flow(1, 1),
        commands.producer("t", 1, 1),
    ],
)
def test_other_commands_before_connect_close_the_connection(broker, frame):
    """Nothing is served to a stranger."""
    with RawClient.from_url(broker.service_url, handshake=False) as client:
        client.write(frame)
        client.wait_closed()


def test_a_second_connect_closes_the_connection(broker):
    """CONNECT comes once."""
    with RawClient.from_url(broker.service_url) as client:
        client.write(commands.connect("again"))
        client.wait_closed()


def test_an_unrequested_auth_response_is_refused_and_closes(broker):
    """ERROR AuthenticationError without a request's id, then the end."""
    with RawClient.from_url(broker.service_url) as client:
        body = CommandAuthResponse(response=AuthData(auth_method_name="token", auth_data=b"x"))
        client.write(commands.frame(body))
        with pytest.raises(RequestRefusedError, match="AuthenticationError"):
            client.wait_response(NO_REQUEST_ID)
        client.wait_closed()


def test_a_command_known_by_number_only_is_refused(raw):
    """Pulsar's types with unknown bodies get an ERROR without a request id."""
    command = BaseCommand(type=BaseCommand.SCALABLE_TOPIC_LOOKUP).SerializeToString()
    raw.write((len(command) + 4).to_bytes(4, "big"), len(command).to_bytes(4, "big"), command)
    with pytest.raises(RequestRefusedError, match="SCALABLE_TOPIC_LOOKUP"):
        raw.wait_response(NO_REQUEST_ID)
    raw.ping()


def test_a_command_of_no_type_closes_the_connection(broker):
    """A number Pulsar never gave out is a violation."""
    with RawClient.from_url(broker.service_url) as client:
        client.write(b"\x00\x00\x00\x07\x00\x00\x00\x03\x08\xe7\x07")
        with pytest.raises(ConnectionLostError):
            client.ping()

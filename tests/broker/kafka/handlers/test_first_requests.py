"""ApiVersions, FindCoordinator, and the place of SASL."""

from __future__ import annotations

import struct

import pytest
from kafka.protocol.broker_version_data import infer_broker_version_from_api_versions
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse, FindCoordinatorRequest
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from pulsemark.kafka.protocol import APIS, HIGHEST_FOR


@pytest.mark.parametrize("version", range(4))
def test_apiversions_lists_what_is_served(raw, version):
    """Every request with its versions, and nothing else."""
    fields = {"client_software_name": "t", "client_software_version": "1"} if version >= 3 else {}
    answer = raw.call(ApiVersionsRequest, version, **fields)
    assert answer.error_code == 0
    listed = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
    assert listed == {key: (api.lowest, api.highest) for key, api in APIS.items()}
    assert listed[0] == (0, 12)
    assert listed[1] == (0, 11)


def test_kafka_python_gets_no_version_that_means_a_newer_kafka(raw):
    """Configured as such a client, it would take versions of that Kafka as served."""
    asked = {"client_software_name": "kafka-python", "client_software_version": "3.0.12"}
    answer = raw.call(ApiVersionsRequest, 3, **asked)
    listed = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
    assert infer_broker_version_from_api_versions(listed) == (2, 4)
    less = HIGHEST_FOR["kafka-python"]
    assert listed == {key: (0, less.get(key, api.highest)) for key, api in APIS.items()}


def test_a_higher_version_is_answered_and_the_connection_stays(raw):
    """Code 35 in the form of version 0, so that the client can ask again."""
    raw.send_bytes(struct.pack(">ihhih", 12, 18, 4, 9, -1) + b"xy")
    answer = ApiVersionsResponse.decode(raw.receive_frame(), version=0, header=True)
    assert answer.error_code == 35
    assert [(each.api_key, each.max_version) for each in answer.api_keys] == [(18, 3)]
    assert raw.call(ApiVersionsRequest, 2).error_code == 0


def test_a_negative_version_is_answered_too(raw):
    """Code 35, as for a version that is too high."""
    raw.send_bytes(struct.pack(">ihhih", 10, 18, -1, 9, -1))
    answer = ApiVersionsResponse.decode(raw.receive_frame(), version=0, header=True)
    assert answer.error_code == 35
    assert raw.call(ApiVersionsRequest, 2).error_code == 0


@pytest.mark.parametrize("name", ["", "-x", "x-", "a b", "é", "x" * 20 + "/"])
def test_a_client_has_to_name_its_software(raw, name):
    """Code 42 for a name that KIP-511 does not allow; the connection stays."""
    for first, second in ((name, "1.0"), ("good-1", name)):
        asked = {"client_software_name": first, "client_software_version": second}
        raw.send(ApiVersionsRequest, 3, **asked)
        # kafka-python cannot decode an error in this version.
        assert struct.unpack_from(">h", raw.receive_frame(), 4) == (42,)
    asked = {"client_software_name": "good-1", "client_software_version": "v.2"}
    assert raw.call(ApiVersionsRequest, 3, **asked).error_code == 0


@pytest.mark.parametrize("version", range(3))
def test_this_broker_coordinates_every_group(kafka_broker, raw, version):
    """Its address, for groups and transactions; no other kinds."""
    host, _, port = kafka_broker.kafka_url.rpartition(":")
    answer = raw.call(FindCoordinatorRequest, version, key="g", key_type=0)
    assert (answer.error_code, answer.host, answer.port) == (0, host, int(port))
    if version >= 1:
        assert raw.call(FindCoordinatorRequest, version, key="x", key_type=9).error_code == 42
        assert raw.call(FindCoordinatorRequest, version, key="x", key_type=1).error_code == 0


def test_sasl_is_answered_and_not_served(raw):
    """No mechanism; an authentication without a handshake is refused. The connection stays."""
    handshake = raw.call(SaslHandshakeRequest, 1, mechanism="PLAIN")
    assert (handshake.error_code, handshake.mechanisms) == (33, [])
    assert raw.call(SaslAuthenticateRequest, 1, auth_bytes=b"x").error_code == 34
    assert raw.call(ApiVersionsRequest, 0).error_code == 0

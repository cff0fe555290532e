"""Every builder of a broker's command, read back by a client's Connection."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict

from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.wire import Command, Connection, MessageId, Role, commands

T = pb.BaseCommand.Type
SCHEMA = pb.Schema(name="s", schema_data=b"{}", type=pb.Schema.Json)
SCHEMA_DICT = {"name": "s", "schema_data": "e30=", "type": "Json"}
FAILED = {"error": "MetadataError", "message": "m"}
FAILED_CODE = {"error_code": "MetadataError", "error_message": "m"}

# (what the builder made, the command's type, its fields as protobuf's JSON has them)
TABLE: list[tuple[bytes, int, dict[str, Any]]] = [
    (commands.success(1), T.SUCCESS, {"request_id": "1"}),
    (commands.success(1, SCHEMA), T.SUCCESS, {"request_id": "1", "schema": SCHEMA_DICT}),
    (commands.error(1, pb.MetadataError, "m"), T.ERROR, {"request_id": "1", **FAILED}),
    (commands.lookup_response(1, "u"), T.LOOKUP_RESPONSE, {
        "brokerServiceUrl": "u", "response": "Connect", "request_id": "1", "authoritative": True,
        "proxy_through_service_url": False,
    }),
    (
        commands.lookup_response(
            1, "u", "v", redirect=True, authoritative=False, proxy_through_service_url=True
        ),
        T.LOOKUP_RESPONSE,
        {
            "brokerServiceUrl": "u", "brokerServiceUrlTls": "v", "response": "Redirect",
            "request_id": "1", "authoritative": False, "proxy_through_service_url": True,
        },
    ),
    (commands.error(1, pb.MetadataError, "m", pb.CommandLookupTopicResponse), T.LOOKUP_RESPONSE, {
        "response": "Failed", "request_id": "1", **FAILED,
    }),
    (commands.partitioned_metadata_response(1, 0), T.PARTITIONED_METADATA_RESPONSE, {
        "partitions": 0, "request_id": "1", "response": "Success",
    }),
    (
        commands.error(1, pb.MetadataError, "m", pb.CommandPartitionedTopicMetadataResponse),
        T.PARTITIONED_METADATA_RESPONSE,
        {"request_id": "1", "response": "Failed", **FAILED},
    ),
    (commands.producer_success(1, "p"), T.PRODUCER_SUCCESS, {
        "request_id": "1", "producer_name": "p", "last_sequence_id": "-1", "schema_version": "",
        "producer_ready": True,
    }),
    (
        commands.producer_success(
            1, "p", last_sequence_id=7, schema_version=bytes(8), topic_epoch=0,
            producer_ready=False,
        ),
        T.PRODUCER_SUCCESS,
        {
            "request_id": "1", "producer_name": "p", "last_sequence_id": "7",
            "schema_version": "AAAAAAAAAAA=", "topic_epoch": "0", "producer_ready": False,
        },
    ),
    (commands.send_error(1, 2, pb.MetadataError, "m"), T.SEND_ERROR, {
        "producer_id": "1", "sequence_id": "2", **FAILED,
    }),
    (commands.ack_response(1, 2), T.ACK_RESPONSE, {"consumer_id": "1", "request_id": "2"}),
    (
        commands.ack_response(1, 2, pb.MetadataError, "m"),
        T.ACK_RESPONSE,
        {
            "consumer_id": "1", "request_id": "2", **FAILED,
        },
    ),
    (commands.get_last_message_id_response(1, MessageId(-1, -1)), T.GET_LAST_MESSAGE_ID_RESPONSE, {
        "request_id": "1",
        "last_message_id": {
            "ledgerId": str(2**64 - 1), "entryId": str(2**64 - 1),
            "partition": -1, "batch_index": -1,
        },
    }),
    (
        commands.get_last_message_id_response(
            1, MessageId(2, 3, batch_index=4), MessageId(2, -1)
        ),
        T.GET_LAST_MESSAGE_ID_RESPONSE,
        {
            "request_id": "1",
            "last_message_id": {
                "ledgerId": "2", "entryId": "3", "partition": -1, "batch_index": 4
            },
            "consumer_mark_delete_position": {"ledgerId": "2", "entryId": str(2**64 - 1)},
        },
    ),
    (commands.error(1, pb.MetadataError, "m", pb.CommandGetSchemaResponse), T.GET_SCHEMA_RESPONSE, {
        "request_id": "1", **FAILED_CODE,
    }),
    (
        commands.error(1, pb.MetadataError, "m", pb.CommandGetOrCreateSchemaResponse),
        T.GET_OR_CREATE_SCHEMA_RESPONSE,
        {"request_id": "1", **FAILED_CODE},
    ),
    (commands.frame(pb.CommandNewTxnResponse(request_id=1)),
     T.NEW_TXN_RESPONSE, {"request_id": "1"}),
]  # fmt: skip


@pytest.mark.parametrize(("frame", "kind", "fields"), TABLE, ids=[T.Name(row[1]) for row in TABLE])
def test_a_client_reads_what_was_answered(frame: bytes, kind: int, fields: dict[str, Any]) -> None:
    """Each argument lands in its field, and what was not given is not sent."""
    client = Connection(Role.CLIENT)
    client.receive_data(commands.connected("s", 21, 5242880) + frame)

    _, event = client.events()

    assert isinstance(event, Command)
    assert event.type == kind
    assert MessageToDict(event.body, preserving_proto_field_name=True) == fields


def test_connected_names_version_limit_and_flags() -> None:
    """CONNECTED tells what the two sides have agreed on."""
    flags = pb.FeatureFlags(supports_topic_watchers=True)
    client = Connection(Role.CLIENT)
    client.receive_data(commands.connected("s", 18, 1024, flags))

    (event,) = client.events()

    assert isinstance(event, Command)
    assert MessageToDict(event.body, preserving_proto_field_name=True) == {
        "server_version": "s",
        "protocol_version": 18,
        "max_message_size": 1024,
        "feature_flags": {"supports_topic_watchers": True},
    }

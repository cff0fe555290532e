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
    (commands.auth_challenge("s", 21, "token", b"x"), T.AUTH_CHALLENGE, {
        "server_version": "s", "protocol_version": 21,
        "challenge": {"auth_method_name": "token", "auth_data": "eA=="},
    }),
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
    (commands.lookup_error(1, pb.MetadataError, "m"), T.LOOKUP_RESPONSE, {
        "response": "Failed", "request_id": "1", **FAILED,
    }),
    (commands.partitioned_metadata_response(1, 0), T.PARTITIONED_METADATA_RESPONSE, {
        "partitions": 0, "request_id": "1", "response": "Success",
    }),
    (
        commands.partitioned_metadata_error(1, pb.MetadataError, "m"),
        T.PARTITIONED_METADATA_RESPONSE,
        {"request_id": "1", "response": "Failed", **FAILED},
    ),
    (
        commands.get_topics_of_namespace_response(
            1, ["a", "b"], topics_hash="0a", filtered=True, changed=False
        ),
        T.GET_TOPICS_OF_NAMESPACE_RESPONSE,
        {
            "request_id": "1", "topics": ["a", "b"], "filtered": True, "topics_hash": "0a",
            "changed": False,
        },
    ),
    (commands.watch_topic_list_success(1, 2, ["a"], "0a"), T.WATCH_TOPIC_LIST_SUCCESS, {
        "request_id": "1", "watcher_id": "2", "topic": ["a"], "topics_hash": "0a",
    }),
    (commands.watch_topic_update(2, ["a"], ["b"], "0a"), T.WATCH_TOPIC_UPDATE, {
        "watcher_id": "2", "new_topics": ["a"], "deleted_topics": ["b"], "topics_hash": "0a",
    }),
    (commands.topic_migrated(1, pb.CommandTopicMigrated.Consumer, "u"), T.TOPIC_MIGRATED, {
        "resource_id": "1", "resource_type": "Consumer", "brokerServiceUrl": "u",
    }),
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
        commands.ack_response(
            1, 2, pb.MetadataError, "m", txnid_least_bits=3, txnid_most_bits=4
        ),
        T.ACK_RESPONSE,
        {
            "consumer_id": "1", "request_id": "2", "txnid_least_bits": "3",
            "txnid_most_bits": "4", **FAILED,
        },
    ),
    (commands.active_consumer_change(1, True), T.ACTIVE_CONSUMER_CHANGE, {
        "consumer_id": "1", "is_active": True,
    }),
    (commands.reached_end_of_topic(1), T.REACHED_END_OF_TOPIC, {"consumer_id": "1"}),
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
    (commands.consumer_stats_response(1, msgRateOut=1.5), T.CONSUMER_STATS_RESPONSE, {
        "request_id": "1", "msgRateOut": 1.5,
    }),
    (commands.get_schema_response(1, SCHEMA, bytes(8)), T.GET_SCHEMA_RESPONSE, {
        "request_id": "1", "schema": SCHEMA_DICT, "schema_version": "AAAAAAAAAAA=",
    }),
    (commands.get_schema_error(1, pb.MetadataError, "m"), T.GET_SCHEMA_RESPONSE, {
        "request_id": "1", **FAILED_CODE,
    }),
    (commands.get_or_create_schema_response(1, bytes(8)), T.GET_OR_CREATE_SCHEMA_RESPONSE, {
        "request_id": "1", "schema_version": "AAAAAAAAAAA=",
    }),
    (
        commands.get_or_create_schema_error(1, pb.MetadataError, "m"),
        T.GET_OR_CREATE_SCHEMA_RESPONSE,
        {"request_id": "1", **FAILED_CODE},
    ),
    (commands.frame(T.NEW_TXN_RESPONSE, pb.CommandNewTxnResponse(request_id=1)),
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

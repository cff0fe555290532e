"""Every builder of a client's command, read back by a server's Connection."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict

from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.wire import EARLIEST, Command, Connection, MessageId, Role, commands

T = pb.BaseCommand.Type
SCHEMA = pb.Schema(name="s", schema_data=b"{}", type=pb.Schema.Json)
SCHEMA_DICT = {"name": "s", "schema_data": "e30=", "type": "Json"}
FLAGS = pb.FeatureFlags(supports_broker_entry_metadata=True)
STICKY = pb.KeySharedMeta(
    keySharedMode=pb.STICKY, hashRanges=[pb.IntRange(start=0, end=9)], allowOutOfOrderDelivery=True
)

# (what the builder made, the command's type, its fields as protobuf's JSON has them)
PRODUCER_DEFAULTS = {
    "topic": "t",
    "producer_id": "1",
    "request_id": "2",
    "user_provided_producer_name": False,
    "producer_access_mode": "Shared",
}
SUBSCRIBE_DEFAULTS = {
    "topic": "t",
    "subscription": "s",
    "subType": "Exclusive",
    "consumer_id": "1",
    "request_id": "2",
    "initialPosition": "Latest",
}
TABLE: list[tuple[bytes, int, dict[str, Any]]] = [
    (commands.auth_response("c", 21, "token", b"x"), T.AUTH_RESPONSE, {
        "client_version": "c", "protocol_version": 21,
        "response": {"auth_method_name": "token", "auth_data": "eA=="},
    }),
    (commands.lookup("t", 1), T.LOOKUP, {"topic": "t", "request_id": "1"}),
    (commands.lookup("t", 1, authoritative=True, advertised_listener_name="l"), T.LOOKUP, {
        "topic": "t", "request_id": "1", "authoritative": True, "advertised_listener_name": "l",
    }),
    (commands.partitioned_metadata("t", 1), T.PARTITIONED_METADATA, {
        "topic": "t", "request_id": "1",
    }),
    (commands.get_topics_of_namespace("t/n", 1, topics_pattern="x.*"), T.GET_TOPICS_OF_NAMESPACE, {
        "request_id": "1", "namespace": "t/n", "mode": "PERSISTENT", "topics_pattern": "x.*",
    }),
    (commands.watch_topic_list("t/n", 1, 2, "x.*", "00"), T.WATCH_TOPIC_LIST, {
        "request_id": "1", "watcher_id": "2", "namespace": "t/n", "topics_pattern": "x.*",
        "topics_hash": "00",
    }),
    (commands.watch_topic_list_close(1, 2), T.WATCH_TOPIC_LIST_CLOSE, {
        "request_id": "1", "watcher_id": "2",
    }),
    (commands.producer("t", 1, 2), T.PRODUCER, PRODUCER_DEFAULTS),
    (
        commands.producer(
            "t", 1, 2, producer_name="p", properties={"a": "b"}, schema=SCHEMA, epoch=3,
            access_mode=pb.ExclusiveWithFencing, topic_epoch=4, initial_subscription_name="i",
            encrypted=True,
        ),
        T.PRODUCER,
        {
            **PRODUCER_DEFAULTS, "producer_name": "p", "metadata": [{"key": "a", "value": "b"}],
            "schema": SCHEMA_DICT, "epoch": "3", "user_provided_producer_name": True,
            "producer_access_mode": "ExclusiveWithFencing", "topic_epoch": "4",
            "initial_subscription_name": "i", "encrypted": True,
        },
    ),
    (commands.close_producer(1, 2), T.CLOSE_PRODUCER, {"producer_id": "1", "request_id": "2"}),
    (commands.close_producer(1, 2, assignedBrokerServiceUrl="u"), T.CLOSE_PRODUCER, {
        "producer_id": "1", "request_id": "2", "assignedBrokerServiceUrl": "u",
    }),
    (commands.subscribe("t", "s", 1, 2), T.SUBSCRIBE, SUBSCRIBE_DEFAULTS),
    (
        commands.subscribe(
            "t", "s", 1, 2, pb.CommandSubscribe.Key_Shared, consumer_name="c", priority_level=3,
            durable=False, start_message_id=EARLIEST, properties={"a": "b"}, read_compacted=True,
            schema=SCHEMA, initial_position=pb.CommandSubscribe.Earliest,
            start_message_rollback_duration_sec=5, keySharedMeta=STICKY,
            subscription_properties={"c": "d"}, consumer_epoch=6,
        ),
        T.SUBSCRIBE,
        {
            **SUBSCRIBE_DEFAULTS, "subType": "Key_Shared", "consumer_name": "c",
            "priority_level": 3, "durable": False,
            "start_message_id": {"ledgerId": str(2**64 - 1), "entryId": str(2**64 - 1)},
            "metadata": [{"key": "a", "value": "b"}], "read_compacted": True,
            "schema": SCHEMA_DICT, "initialPosition": "Earliest",
            "start_message_rollback_duration_sec": "5",
            "keySharedMeta": {
                "keySharedMode": "STICKY", "hashRanges": [{"start": 0, "end": 9}],
                "allowOutOfOrderDelivery": True,
            },
            "subscription_properties": [{"key": "c", "value": "d"}], "consumer_epoch": "6",
        },
    ),
    (commands.flow(1, 1000), T.FLOW, {"consumer_id": "1", "messagePermits": 1000}),
    (commands.ack(1, [MessageId(2, 3)]), T.ACK, {
        "consumer_id": "1", "ack_type": "Individual",
        "message_id": [{"ledgerId": "2", "entryId": "3"}],
    }),
    (
        commands.ack(
            1, [MessageId(2, -1, ack_set=(5,)), MessageId(2, 4)], pb.CommandAck.Cumulative,
            request_id=9, validation_error=pb.CommandAck.DecryptionError,
        ),
        T.ACK,
        {
            "consumer_id": "1", "ack_type": "Cumulative", "request_id": "9",
            "validation_error": "DecryptionError",
            "message_id": [
                {"ledgerId": "2", "entryId": str(2**64 - 1), "ack_set": ["5"]},
                {"ledgerId": "2", "entryId": "4"},
            ],
        },
    ),
    (commands.redeliver_unacknowledged_messages(1), T.REDELIVER_UNACKNOWLEDGED_MESSAGES, {
        "consumer_id": "1",
    }),
    (
        commands.redeliver_unacknowledged_messages(1, [MessageId(2, 3)], 4),
        T.REDELIVER_UNACKNOWLEDGED_MESSAGES,
        {
            "consumer_id": "1", "message_ids": [{"ledgerId": "2", "entryId": "3"}],
            "consumer_epoch": "4",
        },
    ),
    (commands.seek(1, 2, message_id=MessageId(3, 4)), T.SEEK, {
        "consumer_id": "1", "request_id": "2", "message_id": {"ledgerId": "3", "entryId": "4"},
    }),
    (commands.seek(1, 2, publish_time_ms=0), T.SEEK, {
        "consumer_id": "1", "request_id": "2", "message_publish_time": "0",
    }),
    (commands.get_last_message_id(1, 2), T.GET_LAST_MESSAGE_ID, {
        "consumer_id": "1", "request_id": "2",
    }),
    (commands.unsubscribe(1, 2, force=True), T.UNSUBSCRIBE, {
        "consumer_id": "1", "request_id": "2", "force": True,
    }),
    (commands.close_consumer(1, 2), T.CLOSE_CONSUMER, {"consumer_id": "1", "request_id": "2"}),
    (commands.close_consumer(1, commands.NO_REQUEST_ID), T.CLOSE_CONSUMER, {
        "consumer_id": "1", "request_id": str(2**64 - 1),
    }),
    (commands.consumer_stats(1, 2), T.CONSUMER_STATS, {"consumer_id": "1", "request_id": "2"}),
    (commands.get_schema("t", 1, bytes(8)), T.GET_SCHEMA, {
        "request_id": "1", "topic": "t", "schema_version": "AAAAAAAAAAA=",
    }),
    (commands.get_or_create_schema("t", 1, SCHEMA), T.GET_OR_CREATE_SCHEMA, {
        "request_id": "1", "topic": "t", "schema": SCHEMA_DICT,
    }),
    (commands.PING, T.PING, {}),
    (commands.PONG, T.PONG, {}),
]  # fmt: skip


@pytest.mark.parametrize(("frame", "kind", "fields"), TABLE, ids=[T.Name(row[1]) for row in TABLE])
def test_a_server_reads_what_was_asked(frame: bytes, kind: int, fields: dict[str, Any]) -> None:
    """Each argument lands in its field, and what was not given is not sent."""
    server = Connection(Role.SERVER)
    server.receive_data(commands.connect("c") + frame)

    _, event = server.events()

    assert isinstance(event, Command)
    assert event.type == kind
    assert MessageToDict(event.body, preserving_proto_field_name=True) == fields


def test_connect_says_everything_about_the_client() -> None:
    """CONNECT carries version, flags and credentials; by default none of the latter."""
    frame = commands.connect(
        "c",
        protocol_version=18,
        feature_flags=FLAGS,
        auth_method_name="token",
        auth_data=b"x",
        proxy_to_broker_url="u",
    )
    server = Connection(Role.SERVER)
    server.receive_data(frame)

    (event,) = server.events()

    assert isinstance(event, Command)
    assert MessageToDict(event.body, preserving_proto_field_name=True) == {
        "client_version": "c",
        "protocol_version": 18,
        "feature_flags": {"supports_broker_entry_metadata": True},
        "auth_method_name": "token",
        "auth_data": "eA==",
        "proxy_to_broker_url": "u",
    }
    plain = pb.BaseCommand.FromString(commands.connect("c")[8:]).connect
    assert MessageToDict(plain, preserving_proto_field_name=True) == {
        "client_version": "c",
        "protocol_version": 21,
    }

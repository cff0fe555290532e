"""Messages of Kafka's protocol that kafka-python lacks, for its codecs (KIP-848)."""

from __future__ import annotations

from typing import Any

from kafka.protocol.api_message import ApiMessage

CONSUMER_GROUP_HEARTBEAT, CONSUMER_GROUP_DESCRIBE = 68, 69
CONSUMER_PROTOCOL = frozenset({CONSUMER_GROUP_HEARTBEAT, CONSUMER_GROUP_DESCRIBE})


def _field(name: str, kind: str, fields: list[dict[str, Any]] | None = None, **more: Any) -> Any:
    """Describe a field of all versions; `nullable`: it may be null, which is its default then."""
    since = more.pop("since", 0)
    found: dict[str, Any] = {"name": name, "type": kind, "versions": f"{since}+", **more}
    if found.pop("nullable", False):
        found |= {"nullableVersions": f"{since}+", "default": "null"}
    if fields is not None:
        found["fields"] = fields
    return found


def _message(key: int, name: str, fields: list[Any]) -> Any:
    """Make the class of a message. kafka-python reads schemas from files, so one is patched."""
    kind = "Request" if name.endswith("Request") else "Response"
    schema = {
        "apiKey": key,
        "type": kind.lower(),
        "name": name,
        "validVersions": "0-1",
        "flexibleVersions": "0+",
        "fields": fields,
    }
    patch = staticmethod(lambda *_: schema)
    made = type(ApiMessage)(f"Heartbeat{kind}", (ApiMessage,), {"json_patch": patch})
    made.__name__ = made.__qualname__ = name
    return made


_PARTITIONS = [_field("TopicId", "uuid"), _field("Partitions", "[]int32")]
_NAMED = [_PARTITIONS[0], _field("TopicName", "string"), _PARTITIONS[1]]


def _assignment(name: str, partitions: list[Any], **more: Any) -> Any:
    return _field(name, name, [_field("TopicPartitions", "[]TopicPartitions", partitions)], **more)


ConsumerGroupHeartbeatRequest = _message(
    CONSUMER_GROUP_HEARTBEAT,
    "ConsumerGroupHeartbeatRequest",
    [
        _field("GroupId", "string"),
        _field("MemberId", "string"),
        _field("MemberEpoch", "int32"),
        _field("InstanceId", "string", nullable=True),
        _field("RackId", "string", nullable=True),
        _field("RebalanceTimeoutMs", "int32", default="-1"),
        _field("SubscribedTopicNames", "[]string", nullable=True),
        _field("SubscribedTopicRegex", "string", since=1, nullable=True),
        _field("ServerAssignor", "string", nullable=True),
        _field("TopicPartitions", "[]TopicPartitions", _PARTITIONS, nullable=True),
    ],
)
ConsumerGroupHeartbeatResponse = _message(
    CONSUMER_GROUP_HEARTBEAT,
    "ConsumerGroupHeartbeatResponse",
    [
        _field("ThrottleTimeMs", "int32"),
        _field("ErrorCode", "int16"),
        _field("ErrorMessage", "string", nullable=True),
        _field("MemberId", "string", nullable=True),
        _field("MemberEpoch", "int32"),
        _field("HeartbeatIntervalMs", "int32"),
        _assignment("Assignment", _PARTITIONS, nullable=True),
    ],
)
ConsumerGroupDescribeRequest = _message(
    CONSUMER_GROUP_DESCRIBE,
    "ConsumerGroupDescribeRequest",
    [_field("GroupIds", "[]string"), _field("IncludeAuthorizedOperations", "bool")],
)
_MEMBER = [
    _field("MemberId", "string"),
    _field("InstanceId", "string", nullable=True),
    _field("RackId", "string", nullable=True),
    _field("MemberEpoch", "int32"),
    _field("ClientId", "string"),
    _field("ClientHost", "string"),
    _field("SubscribedTopicNames", "[]string"),
    _field("SubscribedTopicRegex", "string", nullable=True),
    _assignment("Assignment", _NAMED),
    _assignment("TargetAssignment", _NAMED),
    _field("MemberType", "int8", since=1, default="-1"),
]
ConsumerGroupDescribeResponse = _message(
    CONSUMER_GROUP_DESCRIBE,
    "ConsumerGroupDescribeResponse",
    [
        _field("ThrottleTimeMs", "int32"),
        _field(
            "Groups",
            "[]DescribedGroup",
            [
                _field("ErrorCode", "int16"),
                _field("ErrorMessage", "string", nullable=True),
                _field("GroupId", "string"),
                _field("GroupState", "string"),
                _field("GroupEpoch", "int32"),
                _field("AssignmentEpoch", "int32"),
                _field("AssignorName", "string"),
                _field("Members", "[]Member", _MEMBER),
                _field("AuthorizedOperations", "int32", default="-2147483648"),
            ],
        ),
    ],
)

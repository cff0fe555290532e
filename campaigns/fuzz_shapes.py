"""Commands and HTTP requests of every kind, with random content, made from the broker's own tables.

`any_command` fills the body of any command that a client may send, field by field, from protobuf's
descriptors. `any_request` fills the template of any HTTP route. So what is added to the protocol or
to the table of routes is fuzzed without a change here.

Their topics are in a namespace of their own (`NAMESPACE`): policies set there must not refuse what
the campaign checks elsewhere.
"""

from __future__ import annotations

import json
import string
from random import Random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from pulsemark.broker.http.routing import all_routes
from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.wire import commands
from pulsemark.wire.connection import TO_SERVER
from pulsemark.wire.fields import BODY_FIELDS

TENANT, NAMESPACE = "fuzz", "fuzz/n"
TOPICS = [
    *(f"persistent://{NAMESPACE}/f{number}" for number in range(3)),
    f"persistent://{NAMESPACE}/parted",
    f"persistent://{NAMESPACE}/parted-partition-0",
    f"non-persistent://{NAMESPACE}/n0",
]
#: Requests that make the namespace; more come from `any_request`, which may also delete it.
MAKE_NAMESPACE = [
    ("PUT", f"/admin/v2/tenants/{TENANT}", b'{"allowedClusters":["standalone"]}'),
    ("PUT", f"/admin/v2/namespaces/{NAMESPACE}", b""),
    ("PUT", f"/admin/v2/persistent/{NAMESPACE}/parted/partitions", b"2"),
]
NUMBERS = [0, 1, 2, 3, 10, 127, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1, -1, -(2**31), -(2**63)]
#: Of these types MESSAGE frames and SENDs have their own code; CONNECT again closes.
BODIES = sorted(set(BODY_FIELDS) & set(TO_SERVER) - {pb.BaseCommand.SEND, pb.BaseCommand.CONNECT})
_TEXTS = [
    "",
    "s0",
    "s1",
    "p0",
    "a",
    "\0",
    "é",
    "x" * 300,
    "[",
    "(a+)+b",
    "public/default",
    NAMESPACE,
]
_F = FieldDescriptor
_INTEGERS = {
    _F.TYPE_INT32: (-(2**31), 2**31), _F.TYPE_UINT32: (0, 2**32), _F.TYPE_INT64: (-(2**63), 2**63),
    _F.TYPE_UINT64: (0, 2**64), _F.TYPE_SINT64: (-(2**63), 2**63), _F.TYPE_FIXED64: (0, 2**64),
}  # fmt: skip


def any_command(random: Random) -> bytes:
    """A frame of any type, whose fields have random values."""
    kind = random.choice(BODIES)
    body = getattr(pb.BaseCommand(), BODY_FIELDS[kind])
    _fill(body, random, 0)
    return commands.frame(body)


def _fill(message: Any, random: Random, depth: int) -> None:
    for field in message.DESCRIPTOR.fields:
        if not field.is_required and random.random() < 0.5:
            continue
        if field.message_type is not None:
            if depth < 3:
                for _ in range(random.choice([1, 2]) if field.is_repeated else 1):
                    part = getattr(message, field.name)
                    part = part.add() if field.is_repeated else part
                    part.SetInParent()
                    _fill(part, random, depth + 1)
        elif field.is_repeated:
            count = random.choice([0, 1, 3, 100])
            getattr(message, field.name).extend(_value(field, random) for _ in range(count))
        else:
            setattr(message, field.name, _value(field, random))


def _value(field: Any, random: Random) -> Any:
    if field.type in _INTEGERS:
        least, end = _INTEGERS[field.type]
        fitting = [number for number in NUMBERS if least <= number < end]
        few = random.randrange(4)
        return random.choice([few, few, few, random.choice(fitting)])
    if field.type == _F.TYPE_ENUM:
        return random.choice(field.enum_type.values).number
    if field.type == _F.TYPE_BOOL:
        return random.random() < 0.5
    if field.type == _F.TYPE_BYTES:
        return random.choice([b"", random.randbytes(20), _schema(random), random.randbytes(5_000)])
    if field.type == _F.TYPE_STRING:
        return random.choice(TOPICS) if "topic" in field.name else random.choice(_TEXTS)
    return random.choice([0.0, 1.0, -1.0, float("inf"), float("nan")])


def _schema(random: Random) -> bytes:
    """The text of a schema, nested to a random depth, sometimes broken."""
    value: Any = random.choice(["string", "long", "null", "nothing", 5, None])
    for _ in range(random.choice([0, 1, 3, 60])):
        value = random.choice(
            [
                {"type": "array", "items": value},
                {"type": "map", "values": value},
                {"type": "record", "name": "r", "fields": [{"name": "a", "type": value}]},
                ["null", value],
            ]
        )
    return json.dumps(value).encode()


def any_request(random: Random) -> tuple[str, str, bytes]:
    """A request to any route: method, path, body."""
    if random.random() < 0.1:
        return random.choice(MAKE_NAMESPACE)
    route = random.choice(all_routes())
    path = route.path
    for name in route.names:
        path = path.replace("{" + name + "}", _segment(name, random), 1)
    if random.random() < 0.2:
        options = "&".join(
            f"{random.choice(_OPTIONS)}={random.choice(['true', 'false', '1', '-1', 'x', ''])}"
            for _ in range(3)
        )
        path += "?" + options
    method = route.method if random.random() < 0.97 else random.choice(["PUT", "POST", "DELETE"])
    return method, path, _body(random) if method in {"PUT", "POST", "DELETE"} else b""


_OPTIONS = [
    "force", "authoritative", "deleteData", "applied", "checkAllowAutoCreation", "isGlobal",
    "initialPosition", "messagePosition", "getPreciseBacklog", "metadata", "backlogQuotaType",
]  # fmt: skip
_SEGMENTS = {
    "tenant": [TENANT],
    "namespace": ["n"],
    "cluster": ["standalone", "elsewhere"],
    "domain": ["persistent", "non-persistent"],
    "topic": ["f0", "f1", "f2", "parted", "parted-partition-0", "n0", "absent"],
    "subscription": ["s0", "s1", "s2", "absent"],
}


def _segment(name: str, random: Random) -> str:
    if random.random() < 0.03:
        return random.choice(["%00", "%2e%2e", "%ff", "x" * 300, "", "%", "a%2Fb", "é"])
    for key, values in _SEGMENTS.items():
        if name.startswith(key) or name == "sub":
            return random.choice(values)
    letters = "".join(random.choice(string.ascii_lowercase) for _ in range(3))
    return random.choice(["0", "1", "-1", str(2**40), str(2**64), "1:2", "0:-1", letters])


def _body(random: Random) -> bytes:
    chance = random.random()
    if chance < 0.05:
        return random.choice([b"[" * 50_000, b'{"a":' * 5_000, b"[" + b"1," * 20_000 + b"1]"])
    if chance < 0.1:
        return random.randbytes(50)
    return json.dumps(_json(random, 0)).encode()


_KEYS = [
    "ledgerId", "entryId", "partitionIndex", "batchIndex", "isExcluded", "type", "schema",
    "properties", "limit", "limitSize", "limitTime", "policy", "retentionTimeInMinutes",
    "retentionSizeInMB", "allowedClusters", "adminRoles", "active", "tickTime",
    "inactiveTopicDeleteMode",
    "maxInactiveDurationInSeconds", "deleteWhileInactive", "publishThrottlingRateInMsg",
    "publishThrottlingRateInByte", "dispatchThrottlingRateInMsg", "dispatchThrottlingRateInByte",
    "ratePeriodInSecond", "allowAutoTopicCreation", "topicType", "defaultNumPartitions",
    "subscribeThrottlingRatePerConsumer", "serviceUrl", "data", "version", "rate", "a",
]  # fmt: skip


def _json(random: Random, depth: int) -> Any:
    plain = [
        *random.choices(NUMBERS, k=3), True, False, None, "x", "produce", "STRING", "AVRO", "FULL",
        "producer_request_hold", "delete_when_no_subscriptions", 1.5, "1", "é" * 100, "",
        _schema(random).decode(),
    ]  # fmt: skip
    chance = random.random()
    if chance < 0.4 or depth == 3:
        return random.choice(plain)
    if chance < 0.55:
        return [_json(random, depth + 1) for _ in range(random.choice([0, 1, 3]))]
    return {random.choice(_KEYS): _json(random, depth + 1) for _ in range(random.choice([1, 2, 5]))}

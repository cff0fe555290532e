"""Schemas: registration, compatibility, and the REST routes below /admin/v2/schemas."""

from __future__ import annotations

import json
from typing import Any

from google.protobuf import descriptor_pb2

from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.wire import commands

from .peers import RawConnection, Recorder
from .rest_scenarios.registry import ADMIN, path_of, unique
from .wire_scenarios import SUB, Scenario, lookup, message, send

SCHEMA_SCENARIOS: dict[str, Scenario] = {}
STRATEGIES = (
    "UNDEFINED",
    "ALWAYS_INCOMPATIBLE",
    "ALWAYS_COMPATIBLE",
    "BACKWARD",
    "FORWARD",
    "FULL",
    "BACKWARD_TRANSITIVE",
    "FORWARD_TRANSITIVE",
    "FULL_TRANSITIVE",
)


def scenario(function: Scenario) -> Scenario:
    """Register a scenario under its name."""
    SCHEMA_SCENARIOS[function.__name__] = function
    return function


def record(*fields: dict[str, Any], name: str = "A", **more: Any) -> str:
    """The JSON of an Avro record."""
    return json.dumps({"type": "record", "name": name, "fields": list(fields), **more})


def field(name: str, kind: Any = "string", **more: Any) -> dict[str, Any]:
    """A field of an Avro record."""
    return {"name": name, "type": kind, **more}


ONE = record(field("a"))
TWO_OPTIONAL = record(field("a"), field("b", default="x"))
TWO_REQUIRED = record(field("a"), field("b"))
ONE_INT = record(field("a", "int"))
OTHER_NAME = record(field("a"), name="B")
VARIANTS = {
    "optional": TWO_OPTIONAL,
    "required": TWO_REQUIRED,
    "int": ONE_INT,
    "other name": OTHER_NAME,
    "empty": record(),
    "documented": record(field("a", doc="text"), doc="about"),
    "aliased": record(field("z", aliases=["a"]), aliases=["old"]),
    "nullable": record(field("a", ["null", "string"], default=None)),
    "bytes": record(field("a", "bytes")),
    "property": record(field("a", {"type": "string", "avro.java.string": "String"})),
}


def path(topic: str) -> str:
    """The schema routes of a topic."""
    return f"{ADMIN}/schemas/{topic.partition('://')[2]}"


def body(kind: str, data: str, **properties: str) -> dict[str, Any]:
    """What POST .../schema takes."""
    return {"type": kind, "schema": data, "properties": properties}


def wire(kind: int, data: str | bytes, name: str = "s", **properties: str) -> pb.Schema:
    """A schema as it travels."""
    return pb.Schema(
        name=name,
        type=pb.Schema.Type.Name(kind),
        schema_data=data.encode() if isinstance(data, str) else data,
        properties=[pb.KeyValue(key=k, value=v) for k, v in properties.items()],
    )


AVRO, JSON = pb.Schema.Avro, pb.Schema.Json


def produce(
    link: RawConnection, topic: str, label: str, producer_id: int, schema: pb.Schema | None
) -> None:
    """Open a producer with a schema."""
    frame = commands.producer(topic, producer_id, link.next_request(), schema=schema)
    link.say(f"producer {label}", frame)


def subscribe(
    link: RawConnection, topic: str, label: str, consumer_id: int, schema: pb.Schema | None
) -> None:
    """Open a consumer with a schema."""
    link.say(
        f"consumer {label}",
        commands.subscribe(
            topic, f"s{consumer_id}", consumer_id, link.next_request(), SUB.Shared, schema=schema
        ),
    )


def namespace_with(broker: Recorder, topic: str, strategy: str, number: int) -> tuple[str, str]:
    """A namespace of its own with a strategy, and a topic name in it."""
    name = f"public/{unique(topic)}-{number}"
    broker.rest("PUT", f"{ADMIN}/namespaces/{name}", quiet=True)
    broker.rest(
        "PUT",
        f"{ADMIN}/namespaces/{name}/schemaCompatibilityStrategy",
        strategy,
        quiet=True,
    )
    return name, f"persistent://{name}/t"


def _register(broker: Recorder, topic: str, label: str, kind: str, data: str, **more: str) -> None:
    broker.rest("POST", f"{path(topic)}/schema", body(kind, data, **more), label=label)


@scenario
def schema_rest(broker: Recorder, topic: str) -> None:
    p = path(topic)
    for route in ("schema", "schemas", "schema/0", "metadata", "schema/x", "schema/-1"):
        broker.rest("GET", f"{p}/{route}", label=f"GET {route} absent topic")
    broker.rest("DELETE", f"{p}/schema", label="DELETE absent")
    broker.rest("POST", f"{p}/version", body("AVRO", ONE), label="version absent")
    broker.rest("POST", f"{p}/compatibility", body("AVRO", ONE), label="compatibility absent")
    _register(broker, topic, "register on an absent topic", "AVRO", ONE)
    broker.rest("PUT", path_of(topic), quiet=True)
    broker.rest("GET", f"{p}/schema", label="GET without schema")
    _register(broker, topic, "register", "AVRO", ONE, k="v")
    _register(broker, topic, "register again", "AVRO", ONE, k="w")
    _register(broker, topic, "register second", "AVRO", TWO_OPTIONAL)
    _register(broker, topic, "register first again", "AVRO", ONE)
    _register(broker, topic, "incompatible", "AVRO", TWO_REQUIRED)
    _register(broker, topic, "other type", "JSON", ONE)
    _register(broker, topic, "string", "STRING", "")
    for route in ("schema", "schemas", "schema/0", "schema/1", "schema/2", "metadata", "schema/x"):
        broker.rest("GET", f"{p}/{route}", label=f"GET {route}")
    for name, data in VARIANTS.items():
        broker.rest("POST", f"{p}/version", body("AVRO", data), label=f"version {name}")
        broker.rest("POST", f"{p}/compatibility", body("AVRO", data), label=f"compatible {name}")
    broker.rest("POST", f"{p}/compatibility", body("JSON", ONE), label="compatible json")
    broker.rest("DELETE", f"{p}/schema", label="DELETE")
    for route in ("schema", "schemas", "schema/0", "schema/2", "metadata"):
        broker.rest("GET", f"{p}/{route}", label=f"GET {route} after delete")
    broker.rest("DELETE", f"{p}/schema", label="DELETE again")
    _register(broker, topic, "after delete", "STRING", "")
    for route in ("schema", "schemas", "schema/0", "schema/2", "schema/3"):
        broker.rest("GET", f"{p}/{route}", label=f"GET {route} after new one")
    broker.rest("DELETE", f"{p}/schema?force=true", label="DELETE force")
    for route in ("schema", "schemas", "schema/0"):
        broker.rest("GET", f"{p}/{route}", label=f"GET {route} after force")
    _register(broker, topic, "after force", "JSON", ONE)
    broker.rest("GET", f"{p}/schema", label="GET after all")
    broker.rest("DELETE", path_of(topic), label="delete the topic")
    broker.rest("PUT", path_of(topic), quiet=True)
    broker.rest("GET", f"{p}/schema", label="GET of the new topic")


@scenario
def schema_rest_bad(broker: Recorder, topic: str) -> None:
    p = f"{path(topic)}/schema"
    broker.rest("PUT", path_of(topic), quiet=True)
    bad: dict[str, Any] = {
        "no body": None,
        "no json": b"{no",
        "list": [1],
        "text": "x",
        "empty object": {},
        "no type": {"schema": ONE, "properties": {}},
        "unknown type": body("NOPE", ONE),
        "lower case type": body("avro", ONE),
        "no schema": {"type": "AVRO", "properties": {}},
        "null schema": {"type": "AVRO", "schema": None, "properties": {}},
        "number schema": {"type": "AVRO", "schema": 5, "properties": {}},
        "unknown field": {**body("STRING", ""), "more": 1},
        "no properties": {"type": "STRING", "schema": ""},
        "null properties": {"type": "STRING", "schema": "", "properties": None},
        "number property": {"type": "STRING", "schema": "", "properties": {"a": 1}},
        "avro no json": body("AVRO", "hello"),
        "avro empty": body("AVRO", ""),
        "avro unknown type": body("AVRO", '{"type":"nope"}'),
        "avro primitive": body("AVRO", '"string"'),
        "avro union": body("AVRO", '["null","string"]'),
        "avro same field twice": body("AVRO", record(field("a"), field("a"))),
        "avro bad name": body("AVRO", record(name="a b")),
        "json no json": body("JSON", "hello"),
        "json jackson": body("JSON", '{"type":"object","id":"urn:x","properties":{}}'),
        "protobuf no json": body("PROTOBUF", "hello"),
        "native no json": body("PROTOBUF_NATIVE", "hello"),
        "string with data": body("STRING", "data"),
        "int32 with data": body("INT32", "data"),
        "key value bad": body("KEY_VALUE", "data"),
        "auto": body("AUTO", ""),
        "auto consume": body("AUTO_CONSUME", ""),
        "auto publish": body("AUTO_PUBLISH", ""),
        "none": body("NONE", ""),
    }
    for label, value in bad.items():
        broker.rest("POST", p, value, label=label)
        broker.rest("DELETE", f"{p}?force=true", quiet=True)
    broker.rest("POST", p, body("BYTES", ""), label="bytes")
    broker.rest("GET", p, label="bytes stored")
    broker.rest("DELETE", f"{p}?force=true", quiet=True)
    for kind in ("BOOLEAN", "INT8", "INT64", "FLOAT", "DATE", "INSTANT", "LOCAL_DATE_TIME"):
        broker.rest("POST", p, body(kind, ""), label=kind)
        broker.rest("GET", p, label=f"GET {kind}")
        broker.rest("DELETE", f"{p}?force=true", quiet=True)
    broker.rest("PUT", p, body("STRING", ""), label="wrong method")
    broker.rest("GET", f"{ADMIN}/schemas/public/absent-ns/x/schema", label="absent namespace")
    broker.rest("GET", f"{ADMIN}/schemas/absent/absent-ns/x/schema", label="absent tenant")


def _strategy(broker: Recorder, topic: str, kind: str) -> None:
    for number, strategy in enumerate(STRATEGIES):
        _, named = namespace_with(broker, topic, strategy, number)
        broker.rest("PUT", path_of(named), quiet=True)
        for label, data in {"one": ONE, **VARIANTS}.items():
            _register(broker, named, f"{strategy} {label}", kind, data)
        broker.rest("GET", f"{path(named)}/schema", label=f"{strategy} latest")
        broker.rest("DELETE", path_of(named), quiet=True)


@scenario
def schema_strategies_avro(broker: Recorder, topic: str) -> None:
    _strategy(broker, topic, "AVRO")


@scenario
def schema_strategies_json(broker: Recorder, topic: str) -> None:
    _strategy(broker, topic, "JSON")


@scenario
def schema_strategies_protobuf(broker: Recorder, topic: str) -> None:
    _strategy(broker, topic, "PROTOBUF")


@scenario
def schema_strategies_history(broker: Recorder, topic: str) -> None:
    """Field b comes, goes and comes back with another type."""
    steps = {
        "one": ONE,
        "b": TWO_OPTIONAL,
        "no b": ONE + " ",
        "c": record(field("a"), field("c", default="x")),
        "b is int": record(field("a"), field("b", "int", default=1)),
        "nothing": record(),
        "d": record(field("d")),
    }
    for number, strategy in enumerate(STRATEGIES):
        _, named = namespace_with(broker, topic, strategy, number)
        broker.rest("PUT", path_of(named), quiet=True)
        for label, data in steps.items():
            _register(broker, named, f"{strategy} {label}", "AVRO", data)
        for label, data in steps.items():
            broker.rest(
                "POST",
                f"{path(named)}/compatibility",
                body("AVRO", data),
                label=f"{strategy} compatible {label}",
            )


@scenario
def schema_strategies_primitive(broker: Recorder, topic: str) -> None:
    for number, strategy in enumerate(STRATEGIES):
        _, named = namespace_with(broker, topic, strategy, number)
        broker.rest("PUT", path_of(named), quiet=True)
        for kind in ("STRING", "INT32", "BYTES", "AVRO"):
            data = ONE if kind == "AVRO" else ""
            _register(broker, named, f"{strategy} {kind}", kind, data)
        _register(broker, named, f"{strategy} STRING p", "STRING", "", k="v")


def _native(name: str, *fields: str, number: int = 1) -> str:
    file = descriptor_pb2.FileDescriptorProto(name="a.proto", package="p", syntax="proto3")
    kind = file.message_type.add(name=name)
    for at, one in enumerate(fields, start=number):
        kind.field.add(name=one, number=at, type=9, label=1, json_name=one)
    import base64

    packed = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    return json.dumps(
        {
            "fileDescriptorSet": base64.b64encode(packed).decode(),
            "rootMessageTypeName": f"p.{name}",
            "rootFileDescriptorName": "a.proto",
        }
    )


@scenario
def schema_strategies_native(broker: Recorder, topic: str) -> None:
    variants = {
        "one": _native("A", "a"),
        "two": _native("A", "a", "b"),
        "renumbered": _native("A", "a", number=5),
        "other": _native("B", "a"),
        "unknown root": _native("A", "a").replace("p.A", "p.Z"),
        "not base64": '{"fileDescriptorSet":"!!","rootMessageTypeName":"p.A","rootFileDescriptorName":"a.proto"}',
    }
    for number, strategy in enumerate(STRATEGIES):
        _, named = namespace_with(broker, topic, strategy, number)
        broker.rest("PUT", path_of(named), quiet=True)
        for label, data in variants.items():
            _register(broker, named, f"{strategy} {label}", "PROTOBUF_NATIVE", data)


def _key_value(key: str, value: str) -> bytes:
    parts = (key.encode(), value.encode())
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def _key_value_schema(
    key: str, value: str, encoding: str = "INLINE", kinds: tuple[str, str] = ("AVRO", "AVRO")
) -> pb.Schema:
    return wire(
        pb.Schema.KeyValue,
        _key_value(key, value),
        **{
            "key.schema.name": "k",
            "key.schema.type": kinds[0],
            "key.schema.properties": "{}",
            "value.schema.name": "v",
            "value.schema.type": kinds[1],
            "value.schema.properties": "{}",
            "kv.encoding.type": encoding,
        },
    )


@scenario
def schema_strategies_key_value(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    variants = {
        "first": _key_value_schema(ONE, ONE),
        "again": _key_value_schema(ONE, ONE),
        "value grows": _key_value_schema(ONE, TWO_OPTIONAL),
        "key required": _key_value_schema(TWO_REQUIRED, TWO_OPTIONAL),
        "separated": _key_value_schema(ONE, ONE, "SEPARATED"),
        "json value": _key_value_schema(ONE, ONE, kinds=("AVRO", "JSON")),
        "string value": _key_value_schema(ONE, "", kinds=("AVRO", "STRING")),
        "no properties": wire(pb.Schema.KeyValue, _key_value(ONE, ONE)),
        "broken": wire(pb.Schema.KeyValue, b"\x00\x00\xff\xffabc"),
    }
    for number, strategy in enumerate(STRATEGIES):
        _, named = namespace_with(broker, topic, strategy, number)
        lookup(link, named)
        for at, (label, schema) in enumerate(variants.items()):
            produce(link, named, f"{strategy} {label}", 100 * number + at, schema)
        broker.rest("GET", f"{path(named)}/schemas", label=f"{strategy} all")


@scenario
def schema_wire(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    lookup(link, topic)
    link.say("get absent", commands.get_schema(topic, link.next_request()))
    link.say(
        "register absent",
        commands.get_or_create_schema(topic, link.next_request(), wire(AVRO, ONE)),
    )
    produce(link, topic, "without", 1, None)
    link.say("get without", commands.get_schema(topic, link.next_request()))
    produce(link, topic, "avro", 2, wire(AVRO, ONE, k="v"))
    produce(link, topic, "avro again", 3, wire(AVRO, ONE))
    produce(link, topic, "avro more", 4, wire(AVRO, TWO_OPTIONAL))
    produce(link, topic, "avro incompatible", 5, wire(AVRO, TWO_REQUIRED))
    produce(link, topic, "json", 6, wire(JSON, ONE))
    produce(link, topic, "string", 7, wire(pb.Schema.String, b""))
    produce(link, topic, "bytes", 8, wire(pb.Schema.Type.Value("None"), b""))
    produce(link, topic, "auto consume", 9, wire(pb.Schema.AutoConsume, b""))
    produce(link, topic, "avro broken", 10, wire(AVRO, b"hello"))
    produce(link, topic, "avro non-utf-8", 11, wire(AVRO, b"\xff\xfe"))
    produce(link, topic, "avro empty", 12, wire(AVRO, b""))
    subscribe(link, topic, "without", 20, None)
    subscribe(link, topic, "avro", 21, wire(AVRO, ONE))
    subscribe(link, topic, "avro incompatible", 22, wire(AVRO, TWO_REQUIRED))
    subscribe(link, topic, "avro int", 23, wire(AVRO, ONE_INT))
    subscribe(link, topic, "string", 24, wire(pb.Schema.String, b""))
    subscribe(link, topic, "auto", 25, wire(pb.Schema.AutoConsume, b""))
    subscribe(link, topic, "bytes", 26, wire(pb.Schema.Type.Value("None"), b""))
    subscribe(link, topic, "avro broken", 27, wire(AVRO, b"hello"))
    for label, version in {
        "latest": None,
        "0": bytes(8),
        "1": (1).to_bytes(8, "big"),
        "2": (2).to_bytes(8, "big"),
        "empty": b"",
    }.items():
        link.say(f"get {label}", commands.get_schema(topic, link.next_request(), version))
    for label, schema in {
        "first": wire(AVRO, ONE),
        "new": wire(AVRO, record(field("a"), field("n", default=""))),
        "incompatible": wire(AVRO, TWO_REQUIRED),
        "string": wire(pb.Schema.String, b""),
    }.items():
        link.say(
            f"get or create {label}",
            commands.get_or_create_schema(topic, link.next_request(), schema),
        )
    broker.rest("DELETE", f"{path(topic)}/schema", label="delete")
    link.say("get after delete", commands.get_schema(topic, link.next_request()))
    link.say("get 0 after delete", commands.get_schema(topic, link.next_request(), bytes(8)))
    subscribe(link, topic, "avro after delete", 30, wire(AVRO, ONE))
    produce(link, topic, "string after delete", 31, wire(pb.Schema.String, b""))


@scenario
def schema_wire_types(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    for number, kind in enumerate(pb.Schema.Type.values()):
        named = f"{topic}-{number}"
        lookup(link, named)
        data = ONE if kind in (AVRO, JSON, pb.Schema.Protobuf) else b""
        produce(link, named, pb.Schema.Type.Name(kind), number, wire(kind, data))
        link.say("get", commands.get_schema(named, link.next_request()))
        broker.rest("GET", f"{path(named)}/schema", label=f"REST {pb.Schema.Type.Name(kind)}")
        subscribe(link, f"{named}-c", pb.Schema.Type.Name(kind), 100 + number, wire(kind, data))


@scenario
def schema_consumers(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    text = wire(pb.Schema.String, b"")
    cases = {
        "untouched": (),
        "with data": ("data",),
        "with a producer": ("producer",),
        "with a consumer": ("consumer",),
        "with an auto consumer": ("auto",),
    }
    for number, (label, before) in enumerate(cases.items()):
        named = f"{topic}-{number}"
        lookup(link, named)
        at = 10 * number
        if "data" in before:
            produce(link, named, "none", at, None)
            link.say("send", send(at, 0, message(0)))
            link.say("close", commands.close_producer(at, link.next_request()))
        if "producer" in before:
            produce(link, named, "none", at, None)
        if "consumer" in before:
            subscribe(link, named, "none", at + 1, None)
        if "auto" in before:
            subscribe(link, named, "auto", at + 1, wire(pb.Schema.AutoConsume, b""))
        subscribe(link, named, label, at + 2, text)
        link.say("get", commands.get_schema(named, link.next_request()))
        produce(link, named, f"{label} string", at + 3, text)
        subscribe(link, named, f"{label} again", at + 4, text)


@scenario
def schema_enforced(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    name, named = namespace_with(broker, topic, "FULL", 0)
    route = f"{ADMIN}/namespaces/{name}"
    broker.rest("GET", f"{route}/schemaValidationEnforced", label="enforced by default")
    broker.rest("GET", f"{route}/isAllowAutoUpdateSchema", label="update by default")
    broker.rest("POST", f"{route}/schemaValidationEnforced", True, label="enforce")
    lookup(link, named)
    produce(link, named, "without, no schema yet", 1, None)
    produce(link, named, "avro", 2, wire(AVRO, ONE))
    produce(link, named, "without", 3, None)
    produce(link, named, "bytes", 4, wire(pb.Schema.Type.Value("None"), b""))
    produce(link, named, "auto", 5, wire(pb.Schema.AutoConsume, b""))
    subscribe(link, named, "without", 6, None)
    broker.rest("POST", f"{route}/schemaValidationEnforced", False, label="no more")
    produce(link, named, "without again", 7, None)
    broker.rest("POST", f"{route}/isAllowAutoUpdateSchema", False, label="no update")
    produce(link, named, "known", 8, wire(AVRO, ONE))
    produce(link, named, "new", 9, wire(AVRO, TWO_OPTIONAL))
    subscribe(link, named, "new", 10, wire(AVRO, TWO_OPTIONAL))
    link.say(
        "get or create",
        commands.get_or_create_schema(named, link.next_request(), wire(AVRO, TWO_OPTIONAL)),
    )
    broker.rest("POST", f"{path(named)}/schema", body("AVRO", TWO_OPTIONAL), label="REST new")
    other = f"{named}-other"
    lookup(link, other)
    produce(link, other, "first of a topic", 11, wire(AVRO, ONE))
    subscribe(link, other, "first of a topic", 12, wire(AVRO, ONE))
    broker.rest("POST", f"{route}/isAllowAutoUpdateSchema", True, label="update")
    produce(link, named, "new again", 13, wire(AVRO, TWO_OPTIONAL))


@scenario
def schema_topic_policies(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    broker.rest("PUT", path_of(topic), quiet=True)
    route = path_of(topic)
    broker.rest("GET", f"{route}/schemaCompatibilityStrategy", label="strategy by default")
    broker.rest("GET", f"{route}/schemaCompatibilityStrategy?applied=true", label="applied")
    broker.rest("PUT", f"{route}/schemaCompatibilityStrategy", "BACKWARD", label="set")
    broker.rest("PUT", f"{route}/schemaCompatibilityStrategy", "NOPE", label="set unknown")
    import time

    time.sleep(1)
    broker.rest("GET", f"{route}/schemaCompatibilityStrategy", label="strategy set")
    lookup(link, topic)
    produce(link, topic, "one", 1, wire(AVRO, TWO_OPTIONAL))
    produce(link, topic, "fewer", 2, wire(AVRO, ONE))
    produce(link, topic, "required", 3, wire(AVRO, TWO_REQUIRED))
    broker.rest("DELETE", f"{route}/schemaCompatibilityStrategy", label="remove")


@scenario
def schema_partitions(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    broker.rest("PUT", f"{path_of(topic)}/partitions", 2, quiet=True)
    part = f"{topic}-partition-1"
    lookup(link, part)
    produce(link, part, "partition", 1, wire(AVRO, ONE))
    for name in (topic, part, f"{topic}-partition-0"):
        link.say("get", commands.get_schema(name, link.next_request()))
    broker.rest("GET", f"{path(topic)}/schema", label="of the topic")
    broker.rest("GET", f"{path(part)}/schema", label="of the partition")
    broker.rest("DELETE", f"{path(part)}/schema", label="delete of the partition")
    broker.rest("GET", f"{path(topic)}/schema", label="of the topic afterwards")
    memory = topic.replace("persistent", "non-persistent") + "-memory"
    lookup(link, memory)
    produce(link, memory, "non-persistent", 2, wire(AVRO, ONE))
    link.say("get", commands.get_schema(memory, link.next_request()))
    link.say(
        "get the persistent one",
        commands.get_schema(f"{topic}-memory", link.next_request()),
    )

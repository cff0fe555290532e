"""Schemas are registered once, have versions, and are durable."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from contextlib import suppress

import pulsar
import pytest
from pulsar.schema import AvroSchema, Integer, JsonSchema, Record, String, StringSchema

from pulsemark.client import RequestRefusedError
from pulsemark.proto.pulsar_api_pb2 import CommandSubscribe, KeyValue, Schema
from pulsemark.testing import RawClient, running_broker
from pulsemark.wire import commands

JSON_1 = Schema(
    name="a",
    type=Schema.Json,
    schema_data=b'{"type":"record","name":"a","fields":[]}',
    properties=[KeyValue(key="k", value="v")],
)
JSON_2 = Schema(
    name="a",
    type=Schema.Json,
    schema_data=b'{"type":"record","name":"b","fields":[{"name":"x","type":"int","default":1}]}',
)
STRING = Schema(name="s", type=Schema.String, schema_data=b"")


def version(number):
    """A version as it travels."""
    return number.to_bytes(8, "big")


def named(schema, topic):
    """The schema as the broker hands it out: with the topic's name."""
    shown = Schema()
    shown.CopyFrom(schema)
    shown.name = topic.partition("://")[2]
    return shown


def get(client, topic, schema_version=None):
    """GET_SCHEMA."""
    return client.request(lambda r: commands.get_schema(topic, r, schema_version))


def register(client, topic, schema):
    """GET_OR_CREATE_SCHEMA."""
    return client.request(lambda r: commands.get_or_create_schema(topic, r, schema)).schema_version


def test_versions_count_up_and_the_same_schema_keeps_its_own(raw, topic):
    """0, 1, and 0 again for the first one."""
    producers = [raw.create_producer(topic, schema=s) for s in (JSON_1, JSON_2, JSON_1)]
    assert [version(0), version(1), version(0)] == [p.schema_version for p in producers]
    assert raw.create_producer(topic).schema_version == b""


def test_a_schema_is_handed_out_by_version(raw, topic):
    """The latest or the given version, with its properties; missing ones are TopicNotFound."""
    raw.create_producer(topic)
    with pytest.raises(RequestRefusedError, match="TopicNotFound"):
        get(raw, topic)
    assert version(0) == register(raw, topic, JSON_1)
    assert version(1) == register(raw, topic, JSON_2)
    assert named(JSON_2, topic) == get(raw, topic).schema
    assert version(1) == get(raw, topic).schema_version
    assert get(raw, topic, version(0)).schema == named(JSON_1, topic)
    for absent in (version(2), b"\xff" * 8, b"\xff" * 9):
        with pytest.raises(RequestRefusedError, match="TopicNotFound"):
            get(raw, topic, absent)


def test_a_version_that_is_cut_closes_the_connection(raw, topic):
    """As in Pulsar: it has fewer than eight bytes."""
    raw.create_producer(topic, schema=JSON_1)
    raw.write(commands.get_schema(topic, 1, b"x"))
    raw.wait_closed()


def test_the_type_none_asks_for_no_schema(raw, topic):
    """GET_OR_CREATE_SCHEMA answers an empty version, and registers nothing."""
    raw.create_producer(topic)
    none = Schema(name="", schema_data=b"")
    none.type = Schema.Type.Value("None")  # type: ignore[assignment]
    assert register(raw, topic, none) == b""
    with pytest.raises(RequestRefusedError, match="TopicNotFound"):
        get(raw, topic)


def test_a_consumers_schema_is_checked_before_its_subscription(raw, topic):
    """Of two mistakes in SUBSCRIBE the schema is answered, as in Pulsar."""
    raw.create_producer(topic, schema=JSON_1)
    for name, options in (("", {}), ("s", {"read_compacted": True})):
        shared = CommandSubscribe.Shared
        with pytest.raises(RequestRefusedError, match="IncompatibleSchema"):
            raw.subscribe(topic, name, sub_type=shared, schema=STRING, **options)
        with pytest.raises(RequestRefusedError, match=r"Empty|readCompacted"):
            raw.subscribe(topic, name, sub_type=shared, **options)


def test_another_type_is_incompatible(raw, topic):
    """For producers, consumers and GET_OR_CREATE_SCHEMA alike."""
    raw.create_producer(topic, schema=JSON_1)
    with pytest.raises(RequestRefusedError, match="IncompatibleSchema"):
        raw.create_producer(topic, schema=STRING)
    with pytest.raises(RequestRefusedError, match="IncompatibleSchema"):
        raw.subscribe(topic, "s", schema=STRING)
    with pytest.raises(RequestRefusedError, match="IncompatibleSchema"):
        register(raw, topic, STRING)


def test_a_consumers_schema_becomes_an_untouched_topics(raw, topic):
    """On a topic with data and without schema it is refused; without schema anybody may read."""
    raw.subscribe(topic, "s", schema=STRING)
    assert get(raw, topic).schema == named(STRING, topic)
    other = topic + "-used"
    raw.create_producer(other).send(b"x")
    with pytest.raises(RequestRefusedError, match="IncompatibleSchema"):
        raw.subscribe(other, "s", schema=STRING)
    raw.subscribe(other, "s")


def test_auto_consume_takes_what_there_is(raw, topic):
    """AUTO_CONSUME is no schema of its own."""
    raw.create_producer(topic, schema=JSON_1)
    raw.subscribe(topic, "s", schema=Schema(name="", type=Schema.AutoConsume, schema_data=b""))
    assert get(raw, topic).schema == named(JSON_1, topic)


def test_a_schema_for_an_absent_topic_is_refused(raw, topic):
    """GET_OR_CREATE_SCHEMA makes no topics."""
    with pytest.raises(RequestRefusedError, match="TopicNotFound"):
        register(raw, topic, STRING)


def test_schemas_survive_a_restart_and_go_with_their_topic(tmp_path, topic):
    """They are in the catalog until the topic is deleted."""
    for generation in range(2):
        with (
            running_broker(data_dir=tmp_path / "data") as broker,
            RawClient.from_url(broker.service_url) as client,
        ):
            if generation:
                assert get(client, topic, version(0)).schema == named(JSON_1, topic)
                broker.call(delete(topic))
                with pytest.raises(RequestRefusedError, match="TopicNotFound"):
                    get(client, topic)
                assert version(0) == client.create_producer(topic, schema=STRING).schema_version
            else:
                client.create_producer(topic, schema=JSON_1)
                client.create_producer(topic, schema=JSON_2)


def delete(topic):
    """A coroutine function for the broker's loop."""

    async def work(broker):
        topics = broker.services.topics
        await topics.delete(topics.parse(topic), force=True)

    return work


def test_partitions_share_the_schemas_of_their_topic(raw, topic):
    """A schema registered through one partition is every partition's."""
    raw.create_producer(f"{topic}-partition-0", schema=JSON_1)
    assert get(raw, f"{topic}-partition-1").schema == named(JSON_1, topic)
    assert get(raw, topic).schema == named(JSON_1, topic)


def avro(*fields, name="A"):
    """An Avro record of (name, type) or (name, type, default)."""
    rows = [dict(zip(("name", "type", "default"), one, strict=False)) for one in fields]
    data = json.dumps({"type": "record", "name": name, "fields": rows}).encode()
    return Schema(name="s", type=Schema.Avro, schema_data=data)


def rest(broker, method, path, body=None):
    """Status and JSON of a REST call; the text if it is not JSON."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(broker.http_url + path, data=data, method=method)
    request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            status, raw = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        status, raw = error.code, error.read()
    try:
        return status, json.loads(raw)
    except ValueError:
        return status, raw.decode()


def path_of(topic):
    """The topic's schema routes."""
    return f"/admin/v2/schemas/{topic.partition('://')[2]}"


def test_a_field_without_default_is_refused_and_named(raw, topic):
    """The default strategy is FULL; the message names both schemas, as Pulsar's does."""
    raw.create_producer(topic, schema=avro(("a", "string")))
    raw.create_producer(topic, schema=avro(("a", "string"), ("b", "int", 1)))
    with pytest.raises(RequestRefusedError, match="IncompatibleSchema") as caught:
        raw.create_producer(topic, schema=avro(("a", "string"), ("c", "int")))
    message = str(caught.value)
    assert "with strategy FULL: org.apache.avro.SchemaValidationException" in message
    assert '"name": "c"' in message
    with pytest.raises(RequestRefusedError, match="IncompatibleSchema"):
        raw.subscribe(topic, "s", schema=avro(("a", "string"), ("c", "int")))


@pytest.mark.parametrize(
    ("strategy", "taken"),
    [
        ("ALWAYS_INCOMPATIBLE", ""),
        ("ALWAYS_COMPATIBLE", "string fewer required other"),
        ("BACKWARD", "fewer"),
        ("FORWARD", "required"),
        ("FULL", ""),
    ],
)
def test_the_namespaces_strategy_decides(broker, raw, topic, strategy, taken):
    """Each strategy takes its own schemas after one with a field of type string."""
    namespace = f"public/{strategy.lower()}"
    rest(broker, "PUT", f"/admin/v2/namespaces/{namespace}")
    status, _ = rest(
        broker, "PUT", f"/admin/v2/namespaces/{namespace}/schemaCompatibilityStrategy", strategy
    )
    assert status == 204
    first = avro(("a", "string"))
    candidates = {
        "string": STRING,
        "fewer": avro(),
        "required": avro(("a", "string"), ("b", "int")),
        "other": avro(("a", "int")),
    }
    found = []
    for label, schema in candidates.items():
        name = f"persistent://{namespace}/{label}"
        raw.create_producer(name, schema=first)
        with suppress(RequestRefusedError):
            raw.create_producer(name, schema=schema)
            found.append(label)
        assert version(0) == raw.create_producer(name, schema=first).schema_version
    assert found == taken.split()


def test_validation_enforced_and_updates_forbidden(broker, raw):
    """Without a schema no producer enters a topic with one; new schemas are refused."""
    route = "/admin/v2/namespaces/public/strict"
    rest(broker, "PUT", route)
    topic = "persistent://public/strict/t"
    rest(broker, "POST", f"{route}/schemaValidationEnforced", True)
    raw.create_producer(topic)
    raw.create_producer(topic, schema=avro(("a", "string")))
    with pytest.raises(RequestRefusedError, match="SchemaValidationEnforced"):
        raw.create_producer(topic)
    raw.subscribe(topic, "bytes")
    rest(broker, "POST", f"{route}/isAllowAutoUpdateSchema", False)
    with pytest.raises(RequestRefusedError, match="auto updating is disabled"):
        raw.create_producer(topic, schema=avro(("a", "string"), ("b", "int", 1)))
    raw.create_producer(topic, schema=avro(("a", "string")))
    status, answer = rest(broker, "GET", f"{path_of(topic)}/schema")
    assert (status, answer["version"]) == (200, 0)


def test_schemas_over_rest(broker, raw, topic):
    """Register, find, compare, delete and count on, with Pulsar's statuses and bodies."""
    path = path_of(topic)
    one = {"type": "AVRO", "schema": avro(("a", "string")).schema_data.decode(), "properties": {}}
    two = {**one, "schema": avro(("a", "string"), ("b", "int", 1)).schema_data.decode()}
    bad = {**one, "schema": avro(("a", "int")).schema_data.decode()}
    assert rest(broker, "GET", f"{path}/schema")[0] == 404
    assert rest(broker, "POST", f"{path}/schema", one) == (200, {"version": {"version": 0}})
    assert rest(broker, "POST", f"{path}/schema", two) == (200, {"version": {"version": 1}})
    assert rest(broker, "POST", f"{path}/schema", one) == (200, {"version": {"version": 0}})
    status, refused = rest(broker, "POST", f"{path}/schema", bad)
    assert (status, list(refused)) == (409, ["reason"])
    refused = rest(broker, "POST", f"{path}/schema", {**one, "schema": "no json"})
    assert refused == (422, {"reason": "Invalid schema definition data for AVRO schema"})
    status, answer = rest(broker, "GET", f"{path}/schemas")
    assert [each["version"] for each in answer["getSchemaResponses"]] == [0, 1]
    status, answer = rest(broker, "POST", f"{path}/compatibility", two)
    assert (status, answer) == (202, {"compatibility": True, "schemaCompatibilityStrategy": "FULL"})
    assert rest(broker, "POST", f"{path}/compatibility", bad)[0] == 409
    assert rest(broker, "POST", f"{path}/version", two) == (200, {"version": 1})
    assert rest(broker, "POST", f"{path}/version", bad) == (200, {"version": -1})
    assert rest(broker, "DELETE", f"{path}/schema") == (200, {"version": 2})
    assert rest(broker, "GET", f"{path}/schema")[0] == 404
    assert rest(broker, "GET", f"{path}/schema/1")[0] == 404
    assert rest(broker, "POST", f"{path}/schema", bad) == (200, {"version": {"version": 3}})
    assert rest(broker, "DELETE", f"{path}/schema?force=true") == (200, {"version": -1})
    assert rest(broker, "POST", f"{path}/schema", bad) == (200, {"version": {"version": 0}})


def test_deletions_and_times_survive_a_restart(tmp_path, topic):
    """A broker that is started again knows what was deleted, and when schemas were registered."""
    path = path_of(topic)
    before = []
    for generation in range(2):
        with (
            running_broker(data_dir=tmp_path / "data") as broker,
            RawClient.from_url(broker.service_url) as client,
        ):
            if not generation:
                client.create_producer(topic, schema=JSON_1)
                assert rest(broker, "DELETE", f"{path}/schema") == (200, {"version": 1})
                client.create_producer(topic, schema=STRING)
                before.append(rest(broker, "GET", f"{path}/schemas"))
            else:
                assert rest(broker, "GET", f"{path}/schemas") == before[0]
                assert rest(broker, "GET", f"{path}/schema/0")[0] == 404
    assert before[0][1]["getSchemaResponses"][0]["version"] == 2


def test_two_registrations_at_once_get_versions_of_their_own(broker, topic):
    """Of many schemas registered at once each has one version, and no version is given twice."""

    def work(at):
        async def register(running):
            schemas, name = running.services.schemas, running.services.topics.parse(topic)
            fields = [avro(("a", "string"), (f"f{n % 5}", "int", n % 5)) for n in range(20)]
            return await asyncio.gather(*(schemas.register(name, one) for one in fields))

        return register

    given = broker.call(work(0))
    assert sorted(set(given)) == list(range(5))
    assert given == given[:5] * 4


HOSTILE = {
    "deep": b'{"type":"array","items":' * 5_000 + b'"int"' + b"}" * 5_000,
    "less deep": b'{"type":"array","items":' * 300 + b'"int"' + b"}" * 300,
    "open brackets": b"[" * 100_000,
    "cyclic": b'{"type":"record","name":"A","fields":[{"name":"a","type":"B"}]}',
    "many": json.dumps(
        {
            "type": "record",
            "name": "A",
            "fields": [{"name": f"f{n}", "type": "int"} for n in range(20_000)],
        }
    ).encode(),
    "not utf-8": b"\xff\xfe{}",
    "name twice": b'{"type":"record","name":"A","fields":[{"name":"a","type":'
    b'{"type":"record","name":"A","fields":[]}}]}',
    "number": b"1" * 5_000,
    "null": b"null",
}


@pytest.mark.parametrize("label", HOSTILE)
def test_a_hostile_definition_is_refused_by_its_own_error(raw, topic, label):
    """Definitions that nest deep, are huge, or are none, are refused; the connection goes on."""
    hostile = Schema(name="s", type=Schema.Avro, schema_data=HOSTILE[label])
    with pytest.raises(RequestRefusedError, match="IncompatibleSchema"):
        raw.create_producer(topic, schema=hostile)
    assert version(0) == raw.create_producer(topic, schema=avro(("a", "string"))).schema_version


def test_the_official_clients_schemas(client, topic):
    """The official client's Avro, JSON and String producers and consumers understand each other."""
    kinds = {
        "avro": (AvroSchema(Person), Person(name="a", age=1)),
        "json": (JsonSchema(Person), Person(name="a", age=1)),
        "string": (StringSchema(), "text"),
    }
    for label, (schema, value) in kinds.items():
        name = f"{topic}-{label}"
        consumer = client.subscribe(name, "s", schema=schema)
        client.create_producer(name, schema=schema).send(value)
        assert consumer.receive(timeout_millis=10_000).value() == value
        auto = client.subscribe(name, "auto", schema=pulsar.schema.BytesSchema())
        assert auto.topic() == name
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(f"{topic}-avro", schema=AvroSchema(Stranger))


class Person(Record):  # type: ignore[misc]
    name = String()
    age = Integer()


class Stranger(Record):  # type: ignore[misc]
    name = Integer(required=True)


@pytest.mark.parametrize(
    ("strategy", "taken"),
    [
        ("ALWAYS_INCOMPATIBLE", ""),
        ("ALWAYS_COMPATIBLE", "fewer required same"),
        ("BACKWARD", "fewer same"),
        ("FORWARD", "fewer same"),
        ("FULL", "fewer same"),
        ("BACKWARD_TRANSITIVE", "fewer same"),
        ("FORWARD_TRANSITIVE", "fewer same"),
        ("FULL_TRANSITIVE", "same"),
    ],
)
def test_a_consumer_is_checked_by_few_strategies(broker, raw, topic, strategy, taken):
    """The others count as BACKWARD: what the consumer cannot read is refused."""
    namespace = f"public/read-{strategy.lower()}"
    rest(broker, "PUT", f"/admin/v2/namespaces/{namespace}")
    path = f"/admin/v2/namespaces/{namespace}/schemaCompatibilityStrategy"
    assert rest(broker, "PUT", path, strategy)[0] == 204
    name = f"persistent://{namespace}/t"
    raw.create_producer(name, schema=avro(("a", "string")))
    candidates = {
        "fewer": avro(),
        "required": avro(("a", "string"), ("b", "int")),
        "same": avro(("a", "string")),
    }
    found = []
    for label, schema in candidates.items():
        try:
            raw.subscribe(name, label, schema=schema)
        except RequestRefusedError as refused:
            assert refused.error_name == "IncompatibleSchema"
        else:
            found.append(label)
    assert " ".join(found) == taken

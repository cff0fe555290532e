"""Confluent's serializers with the schema registry, and Pulsar's clients on the same topics."""

# ruff: noqa: E402 - the imports need packages that may be missing

from __future__ import annotations

import json
from typing import Any

import confluent_kafka
import pulsar
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from pulsar.schema import AvroSchema, Integer, Record, String

from pulsemark.testing import running_broker

for _module in ("httpx2", "authlib", "attrs", "jsonschema", "google.type"):
    pytest.importorskip(_module, reason="the extras of confluent-kafka are missing (extra `test`)")

from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

USER = {"type": "record", "name": "User", "fields": [{"name": "name", "type": "string"}]}
AGE = {"name": "age", "type": "int", "default": 7}
OLDER = {**USER, "fields": [*USER["fields"], AGE]}


class User(Record):  # type: ignore[misc]
    """What both protocols' clients write."""

    name = String(required=True)
    age = Integer(required=True, default=7, required_default=True)


@pytest.fixture(scope="module")
def broker():
    """A broker with a registry."""
    with running_broker(
        kafka_port=0, schema_registry_port=0, kafka_group_initial_rebalance_delay_ms=0
    ) as running:
        yield running


@pytest.fixture
def registry(broker):
    """A client of the registry."""
    return SchemaRegistryClient({"url": broker.schema_registry_url})


def in_value(topic):
    """Where a serializer's bytes go."""
    return SerializationContext(topic, MessageField.VALUE)


def produce(broker, topic, *values):
    """Produce in one batch, and wait."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.kafka_url, "linger.ms": 50, "batch.num.messages": 1_000}
    )
    for value in values:
        producer.produce(topic, value, key=b"k")
    assert producer.flush(30) == 0


def consume(broker, topic, count):
    """The values of so many messages."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.kafka_url,
            "group.id": f"of-{topic}",
            "auto.offset.reset": "earliest",
        }
    )
    try:
        consumer.subscribe([topic])
        found: list[Any] = []
        while len(found) < count:
            message = consumer.poll(30)
            assert message is not None
            assert message.error() is None
            found.append(message.value())
        return found
    finally:
        consumer.close()


def test_avro_goes_through_the_registry(broker, registry, topic):
    """The serializer registers its schema, the deserializer finds it by the id in the message."""
    values = [{"name": "a"}, {"name": "b"}]
    serialize = AvroSerializer(registry, json.dumps(USER))
    produce(broker, topic, *(serialize(each, in_value(topic)) for each in values))
    stored = consume(broker, topic, 2)
    fresh = SchemaRegistryClient({"url": broker.schema_registry_url})
    deserialize = AvroDeserializer(fresh)
    assert [deserialize(each, in_value(topic)) for each in stored] == values
    assert f"{topic}-value" in registry.get_subjects()
    found = registry.get_latest_version(f"{topic}-value")
    assert (found.version, json.loads(found.schema.schema_str)) == (1, USER)


def test_json_goes_through_the_registry(broker, registry, topic):
    """So does JSON Schema; Pulsar's clients get the bytes as they are."""
    text = json.dumps(
        {"title": "User", "type": "object", "properties": {"name": {"type": "string"}}}
    )
    serialize = JSONSerializer(text, registry)
    value = serialize({"name": "a"}, in_value(topic))
    produce(broker, topic, value)
    assert consume(broker, topic, 1) == [value]
    deserialize = JSONDeserializer(None, schema_registry_client=registry)
    assert deserialize(value, in_value(topic)) == {"name": "a"}
    assert [each for each, _ in read_as_pulsar(broker, topic, 1)] == [value]


def test_protobuf_goes_through_the_registry(registry, topic):
    """So does Protobuf, with a reference to the file that it imports."""
    pool = descriptor_pool.DescriptorPool()
    field = descriptor_pb2.FieldDescriptorProto
    part = descriptor_pb2.FileDescriptorProto(name=f"{topic}-part.proto", package=topic)
    part.message_type.add(name="Part").field.add(
        name="text", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL
    )
    whole = descriptor_pb2.FileDescriptorProto(
        name=f"{topic}-whole.proto", package=topic, dependency=[part.name]
    )
    whole.message_type.add(name="Whole").field.add(
        name="part", number=1, type=field.TYPE_MESSAGE, type_name=f".{topic}.Part",
        label=field.LABEL_OPTIONAL,
    )  # fmt: skip
    for each in (part, whole):
        pool.Add(each)
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{topic}.Whole"))
    message: Any = kind()
    message.part.text = "x"
    serialize = ProtobufSerializer(kind, registry, {"use.deprecated.format": False})
    value = serialize(message, in_value(topic))
    deserialize = ProtobufDeserializer(kind, {"use.deprecated.format": False}, registry)
    assert deserialize(value, in_value(topic)) == message
    latest = registry.get_latest_version(f"{topic}-value")
    assert [each.name for each in latest.schema.references] == [part.name]
    assert latest.schema.schema_type == "PROTOBUF"


def test_the_subjects_compatibility_decides(registry, topic):
    """A schema that does not fit is refused with 409, and taken once the level is NONE."""
    subject = f"{topic}-key"
    first = registry.register_schema(subject, Schema(json.dumps(USER), "AVRO"))
    other = Schema(json.dumps({**USER, "fields": [{"name": "x", "type": "int"}]}), "AVRO")
    assert not registry.test_compatibility(subject, other)
    with pytest.raises(SchemaRegistryError) as refused:
        registry.register_schema(subject, other)
    assert (refused.value.http_status_code, refused.value.error_code) == (409, 409)
    assert registry.set_compatibility(subject, "NONE") == {"compatibility": "NONE"}
    assert registry.get_compatibility(subject) == "NONE"
    assert registry.register_schema(subject, other) > first
    assert registry.get_versions(subject) == [1, 2]


def test_avro_references_are_resolved_for_comparisons_and_shown_as_sent(broker, registry, topic):
    """The referenced type is known to the checker; the text stays that of its author."""
    part = {"type": "record", "name": "Part", "namespace": topic, "fields": []}
    registry.register_schema(f"{topic}.Part", Schema(json.dumps(part), "AVRO"))
    uses = {**USER, "fields": [{"name": "p", "type": f"{topic}.Part"}]}
    reference = SchemaReference(f"{topic}.Part", f"{topic}.Part", 1)
    schema = Schema(json.dumps(uses), "AVRO", [reference])
    number = registry.register_schema(f"{topic}-value", schema)
    assert registry.lookup_schema(f"{topic}-value", schema).schema_id == number
    shown = SchemaRegistryClient({"url": broker.schema_registry_url}).get_schema(number)
    assert shown.schema_str == json.dumps(uses)
    assert shown.references == [reference]
    with pytest.raises(SchemaRegistryError, match="references exist"):
        registry.delete_subject(f"{topic}.Part")
    with pytest.raises(SchemaRegistryError, match="Invalid schema"):
        registry.register_schema(f"{topic}.Other", Schema(json.dumps(uses), "AVRO"))


def read_as_pulsar(broker, topic, count):
    """Payload and schema version of so many messages of the first partition."""
    name = f"persistent://public/default/{topic}-partition-0"
    client = pulsar.Client(broker.service_url)
    try:
        reader = client.create_reader(name, pulsar.MessageId.earliest)
        found = [reader.read_next(30_000) for _ in range(count)]
        return [(each.data(), each.schema_version()) for each in found]
    finally:
        client.close()


def test_a_pulsar_consumer_reads_what_a_kafka_producer_wrote(broker, registry, topic):
    """Each message has its schema's version, and a payload that is Avro alone."""
    registry.register_schema(f"{topic}-value", Schema(json.dumps(USER), "AVRO"))
    for schema, value in ((USER, {"name": "a"}), (OLDER, {"name": "b", "age": 3})):
        serialize = AvroSerializer(registry, json.dumps(schema))
        produce(broker, topic, *[serialize(value, in_value(topic))] * 2)
    versions = [version for _, version in read_as_pulsar(broker, topic, 4)]
    assert [each.encode()[-1] for each in versions] == [0, 0, 1, 1]
    client = pulsar.Client(broker.service_url)
    try:
        consumer = client.subscribe(
            f"persistent://public/default/{topic}",
            "s",
            schema=AvroSchema(User),
            initial_position=pulsar.InitialPosition.Earliest,
        )
        found = [consumer.receive(30_000).value() for _ in range(4)]
        assert [(each.name, each.age) for each in found] == [("a", 7)] * 2 + [("b", 3)] * 2
    finally:
        client.close()


def test_a_kafka_consumer_reads_what_a_pulsar_producer_wrote(broker, registry, topic):
    """Its values have the id in front by which the deserializer finds the topic's schema."""
    client = pulsar.Client(broker.service_url)
    try:
        producer = client.create_producer(
            f"persistent://public/default/{topic}", schema=AvroSchema(User)
        )
        for name in ("a", "b"):
            producer.send(User(name=name, age=1))
    finally:
        client.close()
    stored = consume(broker, topic, 2)
    deserialize = AvroDeserializer(registry)
    read = [deserialize(each, in_value(topic)) for each in stored]
    assert read == [{"name": "a", "age": 1}, {"name": "b", "age": 1}]
    assert registry.get_versions(f"{topic}-value") == [1]

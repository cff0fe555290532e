"""Avro definitions: what can read what, and what a comparison may cost."""

from __future__ import annotations

import json

import pytest

from pulsemark.broker.errors import IncompatibleSchemaError, InvalidSchemaError
from pulsemark.broker.topics import schema_definitions
from pulsemark.broker.topics.schema_definitions import (
    AvroDefinition,
    Steps,
    check_compatible,
    check_consumer,
    check_reads,
)
from pulsemark.proto.pulsar_api_pb2 import Schema


def definition(value):
    """The definition of a JSON value."""
    return AvroDefinition(json.dumps(value).encode(), "AVRO")


def enum(*symbols, name="E"):
    """An enum."""
    return {"type": "enum", "name": name, "symbols": list(symbols)}


def record(kind, name="A", **more):
    """A record with one field."""
    return {"type": "record", "name": name, "fields": [{"name": "a", "type": kind, **more}]}


@pytest.mark.parametrize(
    ("reader", "writer", "reads"),
    [
        (record("long"), record("int"), True),
        (record("int"), record("long"), False),
        (record("bytes"), record("string"), True),
        (record("int", name="B"), record("int"), True),
        (record(enum("x")), record(enum("x", "y")), True),
        (record(enum("x")), record(enum("x", name="F")), False),
        (record(["null", "int"]), record("int"), True),
        (record("int"), record(["null", "int"]), False),
        (record("int", default=1), {"type": "record", "name": "A", "fields": []}, True),
        (record("int"), {"type": "record", "name": "A", "fields": []}, False),
        (
            record({"type": "fixed", "name": "F", "size": 2}),
            record({"type": "fixed", "name": "F", "size": 3}),
            False,
        ),
    ],
)
def test_what_pulsars_validator_takes(reader, writer, reads):
    """Each pair as Apache Pulsar 4.0.8 decides: names of records and symbols do not count."""
    if reads:
        check_reads(definition(reader), definition(writer), "BACKWARD")
    else:
        with pytest.raises(IncompatibleSchemaError, match="strategy BACKWARD"):
            check_reads(definition(reader), definition(writer), "BACKWARD")


def test_texts_and_aliases_make_no_other_schema():
    """Two definitions that differ in documentation only are equal."""
    plain, documented = record("int"), {**record("int", doc="d"), "doc": "x", "aliases": ["z"]}
    assert definition(plain).compared == definition(documented).compared
    assert definition(plain).compared != definition(record("long")).compared


def test_a_recursive_schema_reads_itself():
    """A list that names itself is compared in a few steps."""
    node = {
        "type": "record",
        "name": "Node",
        "fields": [{"name": "next", "type": ["null", "Node"], "default": None}],
    }
    check_reads(definition(node), definition(node), "FULL")


def test_a_comparison_stops_after_its_steps(monkeypatch):
    """Two large unions cost the limit of steps, and not the product of their branches."""
    monkeypatch.setattr(schema_definitions, "MAX_STEPS", 1_000)
    union = [record("int", name=f"R{n}") for n in range(60)]
    other = [record("string", name=f"R{n}") for n in range(60)]
    with pytest.raises(IncompatibleSchemaError, match="more than 1000 steps"):
        check_reads(definition(record(union)), definition(record(other)), "BACKWARD")


@pytest.mark.parametrize("kind", ["Avro", "KeyValue"])
def test_the_versions_of_a_topic_share_the_steps_of_a_request(monkeypatch, kind):
    """A new schema that fits each of them is refused if comparing it with all takes too much."""
    fields = [{"name": f"f{number}", "type": "int"} for number in range(20)]
    wide = json.dumps({"type": "record", "name": "A", "fields": fields}).encode()
    schema = Schema(name="", schema_data=wide, type=Schema.Avro)
    if kind == "KeyValue":
        sized = len(wide).to_bytes(4, "big") + wide
        schema = Schema(name="", schema_data=sized + sized, type=Schema.KeyValue)
        for part in ("key", "value"):
            schema.properties.add(key=f"{part}.schema.type", value="AVRO")
    monkeypatch.setattr(schema_definitions, "MAX_STEPS", 2_000)
    made: list[bytes] = []
    parse = schema_definitions._parse

    def counted(value, what):
        made.append(b"")
        return parse(value, what)

    monkeypatch.setattr(schema_definitions, "_parse", counted)
    steps = Steps()
    check_compatible([schema], schema, "FULL_TRANSITIVE", steps)
    check_compatible([schema] * 3, schema, "FULL_TRANSITIVE", steps)
    parts = 2 if kind == "KeyValue" else 1
    assert len(made) == 1 + parts * 4  # the new definition once, and each part of a version
    with pytest.raises(IncompatibleSchemaError, match="more than 2000 steps"):
        check_compatible([schema] * 40, schema, "FULL_TRANSITIVE")
    with pytest.raises(IncompatibleSchemaError, match="more than 2000 steps"):
        check_consumer([schema] * 40, schema, "FULL_TRANSITIVE")


def test_a_request_pauses_while_it_compares(monkeypatch):
    """Other threads get the interpreter: it pauses in proportion to its steps."""
    pauses: list[float] = []
    monkeypatch.setattr("pulsemark.broker.topics.schema_definitions.time.sleep", pauses.append)
    steps = Steps()
    for _ in range(10 * schema_definitions.STEPS_AT_ONCE):
        steps.spend(1)
    steps.spend(10_000)
    assert len(pauses) == 11
    assert sum(pauses) == pytest.approx(
        (schema_definitions.MAX_STEPS - steps.left) * schema_definitions.PAUSE_S
    )


@pytest.mark.parametrize("value", [["null", "int"], 5, {"type": "record"}, {"type": "nope"}])
def test_what_is_no_schema_of_a_topic(value):
    """Unions, numbers and incomplete definitions are refused."""
    with pytest.raises(InvalidSchemaError):
        definition(value)


def test_a_comparison_looks_at_the_writers_fields_once(monkeypatch) -> None:
    """Not once for each of the reader's fields: large records would take seconds."""
    from avro.schema import RecordSchema

    fields_dict = vars(RecordSchema)["fields_dict"]
    looks: list[RecordSchema] = []

    def counted(schema: RecordSchema):
        looks.append(schema)
        return fields_dict.fget(schema)

    fields = [{"name": f"f{number}", "type": "int"} for number in range(50)]
    wide = definition({"type": "record", "name": "A", "fields": fields})
    monkeypatch.setattr(RecordSchema, "fields_dict", property(counted))
    check_reads(wide, wide, "FULL")
    assert len(looks) == 1

"""Decoding values: Avro and JSON into Arrow, each version by its schema, bad values alone."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from pulsemark.pipeline.values.decoding import AvroDecoder, JsonDecoder, avro_type

ITEM = {"type": "record", "name": "Item", "fields": [{"name": "n", "type": "long"}]}
ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "who", "type": ["null", "string"], "default": None},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "raw", "type": "bytes"},
        {"name": "mark", "type": {"type": "fixed", "name": "Mark", "size": 2}},
        {"name": "items", "type": {"type": "array", "items": ITEM}},
        {"name": "last", "type": ["null", "Item"], "default": None},
        {"name": "tags", "type": {"type": "map", "values": "double"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "exact", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "size", "type": ["null", "int", "long"], "default": None},
        {"name": "ok", "type": "boolean"},
        {"name": "share", "type": "float"},
    ],
}
AT = datetime(2026, 3, 1, 12, 30, 15, 250_000, tzinfo=UTC)
VALUE: dict[str, Any] = {
    "id": 2**40,
    "who": "é",
    "kind": "B",
    "raw": b"\x00\xff",
    "mark": b"ab",
    "items": [{"n": 1}, {"n": 2}],
    "last": {"n": 3},
    "tags": {"x": 1.5},
    "day": date(2026, 3, 1),
    "at": AT,
    "exact": AT,
    "price": Decimal("12.34"),
    "size": 5,
    "ok": True,
    "share": 0.5,
}


def final_type(definition: Any) -> pa.DataType:
    """The type that Spark asks for."""
    schema = StructType([StructField("value", avro_type(definition).spark_type())])
    return to_arrow_schema(schema, timezone="UTC").field(0).type


def avro(definition: Any, value: Any) -> bytes:
    """A value as a producer's Avro schema writes it."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(definition), value)
    return out.getvalue()


def plain(value: Any) -> Any:
    """Arrow's pairs of a map as a dictionary."""
    return {**value, "tags": dict(value["tags"])} if value and "tags" in value else value


def test_every_avro_type_has_its_value_in_spark_s_type() -> None:
    """All types at once, in Spark's own type of the schema."""
    decoder = AvroDecoder({0: json.dumps(ORDER)}, ORDER, final_type(ORDER))
    data = pa.array([avro(ORDER, VALUE), None, avro(ORDER, {**VALUE, "who": None})], pa.binary())
    found, reasons = decoder.decode(data, [0, 0, None])
    assert reasons == {}
    assert found.type == final_type(ORDER)
    assert [plain(row) for row in found.to_pylist()] == [VALUE, None, {**VALUE, "who": None}]


def test_each_version_is_resolved_against_the_reader_s_schema() -> None:
    """Missing fields get the reader's defaults, removed ones vanish, numbers are widened."""
    old = {
        "type": "record", "name": "R",
        "fields": [{"name": "a", "type": "int"}, {"name": "gone", "type": "string"}],
    }  # fmt: skip
    new = {
        "type": "record", "name": "R",
        "fields": [
            {"name": "b", "type": "string", "default": "none"},
            {"name": "a", "type": "long"},
        ],
    }  # fmt: skip
    decoder = AvroDecoder({0: json.dumps(old), 2: json.dumps(new)}, new, final_type(new))
    values = [avro(old, {"a": 1, "gone": "x"}), avro(new, {"a": 2, "b": "y"}), b"", b""]
    found, reasons = decoder.decode(pa.array(values), [0, 2, 1, 9])
    assert found.to_pylist() == [{"b": "none", "a": 1}, {"b": "y", "a": 2}, None, None]
    assert "version 1 is not an Avro schema" in reasons[2]
    assert "version 9 is not an Avro schema" in reasons[3]


@settings(deadline=None, max_examples=100)
@given(st.lists(st.binary(max_size=30) | st.just(None), max_size=8), st.integers(0, 40))
def test_any_bytes_are_a_value_or_a_reason(values: list[bytes | None], cut: int) -> None:
    """Foreign and cut bytes never raise, and never disturb the good values beside them."""
    good = avro(ORDER, VALUE)
    data = [good, *values, good[:cut], good]
    found, reasons = AvroDecoder({0: json.dumps(ORDER)}, ORDER, final_type(ORDER)).decode(
        pa.array(data, pa.binary()), [0] * len(data)
    )
    rows = found.to_pylist()
    assert (plain(rows[0]), plain(rows[-1])) == (VALUE, VALUE)
    assert all((row is None) == (n in reasons or data[n] is None) for n, row in enumerate(rows))
    assert len(data) - 2 in reasons


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        (["null", "string", "int"], "a union of 2 types"),
        ({"type": "array", "items": {"type": "record", "name": "E", "fields": []}}, "no bytes"),
        ({"type": "record", "name": "L", "fields": [{"name": "l", "type": "L"}]}, "itself"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 40}, "decimal"),
        ("nothing", "is not a type"),
        ({"type": "array"}, "is not an Avro schema"),
        (7, "is not an Avro schema"),
    ],
)  # fmt: skip
def test_what_spark_has_no_type_for_is_refused(definition: Any, reason: str) -> None:
    """With the reason; nothing is decoded by half."""
    with pytest.raises(ValueError, match=reason):
        avro_type(definition).spark_type()


def test_a_schema_of_doubling_records_is_refused() -> None:
    """A kilobyte of definition may not be a billion fields."""
    inner: Any = "long"
    for level in range(30):
        fields = [{"name": "a", "type": inner}, {"name": "b", "type": f"R{level - 1}"}]
        inner = {"type": "record", "name": f"R{level}", "fields": fields[: 1 + (level > 0)]}
    with pytest.raises(ValueError, match="more than 10000 types"):
        avro_type(inner)


FLAT = {
    "type": "record", "name": "F",
    "fields": [
        {"name": "a", "type": ["null", "string"], "default": None},
        {"name": "b", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "inner", "type": ["null", ITEM], "default": None},
    ],
}  # fmt: skip


def json_rows(definition: Any, values: list[bytes | None]) -> tuple[list[Any], dict[int, str]]:
    """What the decoder makes of these values."""
    decoder = JsonDecoder(definition, final_type(definition))
    found, reasons = decoder.decode(pa.array(values, pa.binary()), [None] * len(values))
    assert found.type == final_type(definition)
    return found.to_pylist(), reasons


def test_json_of_the_schema_is_read_at_once_and_one_by_one_alike() -> None:
    """A bad value makes the batch be read one by one; the good ones are the same both ways."""
    good: list[bytes | None] = [
        b'{"a":"x","b":1,"at":1000,"inner":{"n":5},"unknown":[1,{}]}',
        None,
        b'{ "b" : -9223372036854775808,\n "at":null }',
    ]
    expected = [
        {"a": "x", "b": 1, "at": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), "inner": {"n": 5}},
        None,
        {"a": None, "b": -(2**63), "at": None, "inner": None},
    ]
    assert json_rows(FLAT, good) == (expected, {})
    rows, reasons = json_rows(FLAT, [*good, b"not json"])
    assert rows == [*expected, None]
    assert list(reasons) == [3]


@pytest.mark.parametrize(
    "bad",
    [
        b"", b"[]", b"1", b'{"b":"1"}', b'{"b":1.5}', b'{"b":true}', b'{"a":1}', b'{"b":1}{"b":2}',
        b'{"b":1', b'{"a":"x}', b'{"b":9223372036854775808}', b'{"a":"\xff"}', b'{"inner":[]}',
        b'{"b":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b"\x00", b"{}}", b"{{}",
    ],
)  # fmt: skip
def test_a_bad_json_value_is_bad_alone(bad: bytes) -> None:
    """Each has a reason, whatever stands beside it."""
    rows, reasons = json_rows(FLAT, [b'{"b":1}', bad, b'{"b":2}'])
    assert [row and row["b"] for row in rows] == [1, None, 2]
    assert list(reasons) == [1]


@settings(deadline=None, max_examples=200)
@given(st.lists(st.sampled_from([b"{", b"}", b"{}", b'"', b'{"b":1}', b",", b"\n"]), max_size=4))
def test_values_are_never_shifted(pieces: list[bytes]) -> None:
    """Two objects in one value and none in the next must not pass for one in each."""
    values: list[bytes | None] = [b'{"b":7}', b"".join(pieces), *pieces, b'{"b":8}']
    rows, reasons = json_rows(FLAT, values)
    for number, value in enumerate(values):
        try:
            parsed = json.loads(value or b"")
        except ValueError:
            parsed = None
        parsed = parsed if isinstance(parsed, dict) else None
        assert (rows[number] is None) == (number in reasons) == (parsed is None)
        assert parsed is None or rows[number]["b"] == parsed.get("b")


def test_json_with_maps_bytes_and_decimals() -> None:
    """Bytes are base64, as Jackson writes them; decimals are numbers."""
    text = json.dumps(
        {**VALUE, "raw": "AP8=", "mark": "YWI=", "day": 20513, "at": 1772368215250,
         "exact": 1772368215250000, "price": 12.34}
    ).encode()  # fmt: skip
    rows, reasons = json_rows(ORDER, [text])
    assert reasons == {}
    assert plain(rows[0]) == VALUE

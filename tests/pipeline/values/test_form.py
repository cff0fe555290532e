"""The options `valueSchema` and `mode`: typed values by the schemas that a broker stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import _pulsar
import pulsar
import pytest

from pulsemark.pipeline.errors import DecodeError, OptionError
from pulsemark.proto.pulsar_api_pb2 import KeyValue
from pulsemark.testing import running_broker


def record(**fields: str) -> dict[str, Any]:
    """A version of one record: a number, and text fields with these defaults."""
    texts = [{"name": n, "type": "string", "default": d} for n, d in fields.items()]
    number = {"name": "id", "type": "int"}
    return {"type": "record", "name": "Order", "namespace": "shop", "fields": [number, *texts]}


class JsonText(pulsar.schema.Schema):  # type: ignore[misc]
    """A JSON schema of any definition; the client's own takes only its record classes."""

    def __init__(self, definition: dict[str, Any]) -> None:
        super().__init__(dict, _pulsar.SchemaType.JSON, definition, "JSON")

    def encode(self, obj: Any) -> bytes:
        """As text."""
        return json.dumps(obj).encode()


def avro_schema(definition: dict[str, Any]) -> Any:
    """An Avro schema of any definition."""
    return pulsar.schema.AvroSchema(None, schema_definition=definition)


FIRST, SECOND = record(gone=""), record(note="none")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Topics of the official client: two Avro versions and raw bytes, JSON, and no schema."""
    path = tmp_path_factory.mktemp("schemas")
    with running_broker(data_dir=path, http_port=None) as broker:
        client = pulsar.Client(broker.service_url)
        schemas = {"avro": avro_schema, "json": JsonText}
        for kind, schema in schemas.items():
            for number, definition in enumerate((FIRST, SECOND)):
                own = schema(definition)
                producer = client.create_producer(kind, schema=own, batching_enabled=True)
                text = ("gone", "note")[number]
                for place in range(3):
                    producer.send_async({"id": 10 * number + place, text: "x"}, None)
                producer.flush()
                producer.close()
        native = pulsar.schema.ProtobufNativeSchema(KeyValue)
        producer = client.create_producer("protobuf", schema=native)
        producer.send(KeyValue(key="k", value="é"))
        raw = client.create_producer("plain")
        raw.send(b"no schema")
        client.close()
    return path


def test_both_versions_are_decoded_by_the_newest(folder: Path, tools: Any) -> None:
    """Avro's defaults fill what an old version does not have; the other columns are as ever."""
    rows = tools.rows_of(folder, topic="avro", valueSchema="latest", columns="value,__index")
    ids = [0, 1, 2, 10, 11, 12]
    assert [row["value"]["id"] for row in rows] == ids
    assert {frozenset(row["value"]) for row in rows} == {frozenset({"id", "note"})}
    assert [row["value"]["note"] for row in rows][:3] == ["none"] * 3
    assert [row["__index"] for row in rows] == list(range(6))
    rows = tools.rows_of(folder, topic="json", valueSchema="latest", columns="value")
    assert [row["value"]["id"] for row in rows] == ids


def test_protobuf_of_the_official_client(folder: Path, tools: Any) -> None:
    """By the descriptor that the client registered."""
    rows = tools.rows_of(folder, topic="protobuf", valueSchema="latest", columns="value")
    assert [row["value"] for row in rows] == [{"key": "k", "value": "é"}]


def test_a_named_version(folder: Path, tools: Any) -> None:
    """The first version shows its own fields."""
    rows = tools.rows_of(folder, topic="avro", valueSchema="0", columns="value")
    assert set(rows[0]["value"]) == {"id", "gone"}


def test_several_topics_need_one_type(folder: Path, tools: Any) -> None:
    """Here the JSON and the Avro topic have the same; a topic without a schema has none."""
    rows = tools.rows_of(folder, topics="avro,json", valueSchema="latest", columns="value")
    assert len(rows) == 12
    with pytest.raises(OptionError, match="plain has no AVRO, JSON or PROTOBUF"):
        tools.rows_of(folder, topics="avro,plain", valueSchema="latest")
    with pytest.raises(OptionError, match="schema with this number"):
        tools.rows_of(folder, topic="avro", valueSchema="2")


@pytest.fixture
def with_bad_values(folder: Path, tmp_path: Path) -> Path:
    """Another folder with a value that is not of its schema, and one that is encrypted."""
    with running_broker(data_dir=tmp_path, http_port=None) as broker:
        client = pulsar.Client(broker.service_url)
        own = JsonText(FIRST)
        with_schema = client.create_producer("bad", schema=own)
        raw = client.create_producer("bad")
        with_schema.send({"id": 1, "gone": ""})
        raw.send(b"{not json")
        with_schema.send({"id": 2, "gone": ""})
        client.close()
    return tmp_path


def test_a_bad_value_fails_or_is_null(with_bad_values: Path, tools: Any) -> None:
    """FAILFAST names the entry; PERMISSIVE keeps the row, without its value, with the reason."""
    asked = {"topic": "bad", "valueSchema": "latest", "columns": "value,__index,__error"}
    with pytest.raises(DecodeError, match="its value: JSONDecodeError"):
        tools.rows_of(with_bad_values, **asked)
    for more in ({"mode": "PERMISSIVE"}, {"failOnDataLoss": "false"}):
        rows = tools.rows_of(with_bad_values, **asked, **more)
        assert [row["value"] and row["value"]["id"] for row in rows] == [1, None, 2]
        assert [row["__index"] for row in rows] == [0, 1, 2]
        assert [row["__error"] is None for row in rows] == [True, False, True]
    rows = tools.rows_of(with_bad_values, topic="bad", columns="__index,__error")
    assert [row["__error"] for row in rows] == [None] * 3


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"mode": "PERMISSIVE"}, "mode"),
        ({"valueSchema": "newest"}, "valueSchema"),
        ({"valueSchema": "{"}, "valueSchema"),
        ({"valueSchema": "latest", "mode": "DROPMALFORMED"}, "mode"),
        ({"rows": "lines"}, "rows"),
        ({"valueSchema": '{"type":"record","fields":[]}'}, "valueSchema"),
    ],
)  # fmt: skip
def test_nonsense_is_refused(
    folder: Path, tools: Any, options: dict[str, str], option: str
) -> None:
    """With the option's name."""
    with pytest.raises(OptionError) as refused:
        tools.rows_of(folder, topic="avro", **options)
    assert refused.value.option == option

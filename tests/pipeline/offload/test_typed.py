"""Typed offloads: columns of the topics' schemas, which grow with them."""

from __future__ import annotations

import base64
import io
import json
import urllib.request
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import (
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from pulsemark.metadata.schema_list import pack_schemas
from pulsemark.pipeline.errors import DecodeError, OptionError, SchemaConflictError
from pulsemark.pipeline.offload import verify_offload
from pulsemark.proto.pulsar_api_pb2 import Schema
from pulsemark.testing import running_broker

Fields = dict[str, Any]


def record(**fields: Any) -> Fields:
    """An Avro record; a field's default follows its type."""
    listed = [
        {"name": name, "type": type_[0], "default": type_[1]}
        if isinstance(type_, tuple)
        else {"name": name, "type": type_}
        for name, type_ in fields.items()
    ]
    return {"type": "record", "name": "Order", "fields": listed}


def avro(definition: Fields, value: Fields) -> bytes:
    """A value as its producer writes it."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(definition), value)
    return out.getvalue()


class Typed:
    """A topic whose producers have schemas."""

    def __init__(self, folder: Any, name: str = "orders") -> None:
        self.folder = folder
        self.topic = folder.topic(name)
        self.schemas: list[Schema] = []

    def version(self, kind: int, definition: Any) -> int:
        """A new schema; its number."""
        data = definition if isinstance(definition, bytes) else json.dumps(definition).encode()
        self.schemas.append(Schema(name="s", schema_data=data, type=kind))  # type: ignore[arg-type]
        store = self.folder.store
        store.catalog.put("schema", self.topic.name, pack_schemas(self.schemas))
        return len(self.schemas) - 1

    def send(self, version: int, value: bytes | None, **more: Any) -> None:
        """A message of a version."""
        self.topic.single(value, schema_version=version.to_bytes(8, "big"), **more)

    def send_avro(self, version: int, **value: Any) -> None:
        """The same of a record."""
        self.send(version, avro(json.loads(self.schemas[version].schema_data), value))


def rows_of(run: Any, table: Any, *columns: str) -> list[tuple[Any, ...]]:
    """Some columns of all rows, by index."""
    rows = run.table_rows(table).sort_by("__index").select(columns).to_pylist()
    return [tuple(row.values()) for row in rows]


def test_values_are_columns(folder: Any, run: Any, make_table: Any) -> None:
    """Beside those of the source; a name that is taken gets another one; null is a row of nulls."""
    typed = Typed(folder)
    inner = {"type": "record", "name": "I", "fields": [{"name": "n", "type": "double"}]}
    definition = record(
        id="long",
        topic=["null", "string"],
        items={"type": "array", "items": inner},
        at={"type": "long", "logicalType": "timestamp-millis"},
    )
    first = typed.version(Schema.Avro, definition)
    typed.send_avro(first, id=7, topic="x", items=[{"n": 1.5}], at=1000)
    typed.send(first, None)
    run.copy(folder, make_table(), value_schema="latest")
    found = run.table_rows(make_table()).sort_by("__index")
    assert "value" not in found.column_names
    assert found["id"].to_pylist() == [7, None]
    assert found["value_topic"].to_pylist() == ["x", None]
    items = found["items"].to_pylist()
    assert items[0] == [{"n": 1.5}]
    assert not items[1]  # pyiceberg reads a null list as an empty one
    assert found["at"].type == pa.timestamp("us", "UTC")
    assert found["__index"].to_pylist() == [0, 1]
    assert all(check.good for check in verify_offload(folder.path, make_table()))


def test_the_table_grows_with_the_schema(folder: Any, run: Any, make_table: Any) -> None:
    """New fields are null before, removed ones after, also inside of records; with a kill."""
    typed = Typed(folder)
    inner = record(a="int") | {"name": "Inner"}
    first = typed.version(Schema.Avro, record(id="int", gone="string", inner=inner))
    typed.send_avro(first, id=1, gone="x", inner={"a": 1})
    run.copy(folder, make_table(), value_schema="latest")
    inner = record(a="int", b=("string", "")) | {"name": "Inner"}
    second = typed.version(Schema.Avro, record(id="int", note=("string", "none"), inner=inner))
    typed.send_avro(second, id=2, note="y", inner={"a": 2, "b": "z"})
    typed.send_avro(first, id=3, gone="late", inner={"a": 3})
    with pytest.raises(KeyboardInterrupt):
        run.copy(folder, make_table(), value_schema="latest", files_before_kill=0)
    run.copy(folder, make_table(), value_schema="latest")
    assert rows_of(run, make_table(), "id", "gone", "note") == [
        (1, "x", None),
        (2, None, "y"),
        (3, None, "none"),
    ]
    inners = [row[0] for row in rows_of(run, make_table(), "inner")]
    assert [each.get("b") for each in inners] == [None, "z", ""]
    assert all(check.good for check in verify_offload(folder.path, make_table()))


def test_a_wider_type_where_the_format_has_it(folder: Any, run: Any, make_table: Any) -> None:
    """Iceberg's columns become wider; the others say what differs, and have written nothing."""
    typed = Typed(folder)
    typed.send_avro(typed.version(Schema.Avro, record(id="int", x="float")), id=1, x=0.5)
    run.copy(folder, make_table(), value_schema="latest")
    typed.send_avro(typed.version(Schema.Avro, record(id="long", x="double")), id=2**40, x=0.1)
    if make_table().format == "iceberg":
        run.copy(folder, make_table(), value_schema="latest")
        assert rows_of(run, make_table(), "id", "x") == [(1, 0.5), (2**40, 0.1)]
        return
    with pytest.raises(SchemaConflictError, match="id is int32, and would be int64; x is float"):
        run.copy(folder, make_table(), value_schema="latest")
    assert rows_of(run, make_table(), "id") == [(1,)]
    assert make_table().load().runs == 1


def test_what_does_not_fit_is_in_a_table_of_its_own(folder: Any, run: Any, make_table: Any) -> None:
    """With its bytes and the reason: another type, bytes that are none, an encrypted message."""
    typed = Typed(folder)
    first = typed.version(Schema.Avro, record(id="int"))
    typed.send_avro(first, id=1)
    run.copy(folder, make_table(), value_schema="latest", mode="PERMISSIVE")
    second = typed.version(Schema.Avro, record(id="string"))
    typed.send_avro(second, id="two")
    typed.send(first, b"\xff" * 12)
    typed.send_avro(first, id=4)
    typed.topic.encrypted(b"secret", 1)
    with pytest.raises(SchemaConflictError, match="id is int32, and would be string"):
        run.copy(folder, make_table(), value_schema="latest")
    done = run.copy(folder, make_table(), value_schema="latest", mode="PERMISSIVE")
    assert (done.rows, sum(file.rejected for file in done.files)) == (1, 3)
    assert rows_of(run, make_table(), "__index", "id") == [(0, 1), (3, 4)]
    rejected = rows_of(run, make_table().rejected(), "__index", "value", "__error")
    assert [row[:2] for row in rejected] == [(1, b"\x06two"), (2, b"\xff" * 12), (4, b"secret")]
    assert "encrypted" in rejected[2][2]
    assert all(row[2] for row in rejected)
    assert all(check.good for check in verify_offload(folder.path, make_table()))


def test_a_kill_between_the_two_tables_changes_nothing(
    folder: Any, run: Any, make_table: Any
) -> None:
    """The main table counts; the next run brings the other one up to it, each row once."""
    typed = Typed(folder)
    first = typed.version(Schema.Avro, record(id="int"))
    asked = {"value_schema": "latest", "mode": "PERMISSIVE"}
    typed.send(first, b"")
    typed.send_avro(first, id=1)
    table = make_table()
    commit = table.commit

    def killed(added: Any) -> None:
        commit(added)
        raise KeyboardInterrupt

    table.commit = killed
    with pytest.raises(KeyboardInterrupt):
        run.copy(folder, table, **asked)
    for _ in range(2):
        run.copy(folder, make_table(), **asked)
        assert rows_of(run, make_table(), "__index") == [(1,)]
        assert rows_of(run, make_table().rejected(), "__index") == [(0,)]


def test_a_bad_value_ends_a_strict_run(folder: Any, run: Any, make_table: Any) -> None:
    """With its topic and position; nothing of the run is in the table."""
    typed = Typed(folder)
    first = typed.version(Schema.Json, record(id="int"))
    typed.send(first, b'{"id": 1}')
    typed.send(first, b"{")
    with pytest.raises(DecodeError, match=r"orders: entry \(\d+, 1\).*its value"):
        run.copy(folder, make_table(), value_schema="latest")
    assert run.table_rows(make_table()).num_rows == 0


PROTO = FileDescriptorProto(
    name="o.proto", package="shop", syntax="proto3",
    dependency=["google/protobuf/timestamp.proto"],
)  # fmt: skip


def _proto() -> FileDescriptorProto:
    """A message with a field of every shape."""
    file = FileDescriptorProto()
    file.CopyFrom(PROTO)
    item = file.message_type.add(name="Item")
    item.field.add(name="n", number=1, type=4, label=1)
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=3, label=1)
    order.field.add(name="items", number=2, type=11, label=3, type_name=".shop.Item")
    order.field.add(name="at", number=3, type=11, label=1, type_name=".google.protobuf.Timestamp")
    order.field.add(name="kind", number=4, type=14, label=1, type_name=".shop.Kind")
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="NONE", number=0)
    kind.value.add(name="SOME", number=1)
    return file


def _native(file: FileDescriptorProto, root: str) -> dict[str, str]:
    from google.protobuf import timestamp_pb2

    known = FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(known)
    files = FileDescriptorSet(file=[file, known]).SerializeToString()
    packed = base64.b64encode(files).decode()
    names = {"rootMessageTypeName": root, "rootFileDescriptorName": file.name}
    return {"fileDescriptorSet": packed, **names}


def _message(file: FileDescriptorProto, root: str) -> Any:
    from google.protobuf import timestamp_pb2

    known = FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(known)
    pool = DescriptorPool()
    pool.Add(known)
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(root))


def test_protobuf_is_read_by_its_schema(folder: Any, run: Any, make_table: Any) -> None:
    """Fields, messages in lists, times, names of enums; another type of a field is refused."""
    typed = Typed(folder)
    file = _proto()
    first = typed.version(Schema.ProtobufNative, _native(file, "shop.Order"))
    order = _message(file, "shop.Order")(id=5, items=[{"n": 2**63}], kind=1)
    order.at.seconds = 3
    typed.send(first, order.SerializeToString())
    other = _proto()
    other.message_type[1].field[0].type = FieldDescriptorProto.TYPE_STRING
    second = typed.version(Schema.ProtobufNative, _native(other, "shop.Order"))
    typed.send(second, _message(other, "shop.Order")(id="text").SerializeToString())
    asked = {"value_schema": "0", "mode": "PERMISSIVE"}
    run.copy(folder, make_table(), **asked)
    (row,) = run.table_rows(make_table()).to_pylist()
    assert (row["id"], row["items"], row["kind"]) == (5, [{"n": 2**63}], "SOME")
    assert row["at"].timestamp() == 3
    (bad,) = rows_of(run, make_table().rejected(), "__error")
    assert "version 1 does not fit: id is int64, and would be string" in bad[0]


def asked(url: str, method: str, body: Any = None) -> Any:
    """What a registry answers."""
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, method=method)) as answer:
        return json.loads(answer.read())


def registered(place: Path, kind: str, *definitions: Any) -> list[int]:
    """Register versions of `orders-value` with a broker, and keep its answer to GET /schemas."""
    with running_broker(storage="memory", schema_registry_port=0) as broker:
        url = broker.schema_registry_url
        asked(f"{url}/config", "PUT", {"compatibility": "NONE"})
        asked(f"{url}/subjects/a/versions", "POST", {"schema": '"int"'})
        ids = [
            asked(
                f"{url}/subjects/orders-value/versions",
                "POST",
                {
                    "schemaType": kind,
                    "schema": each if isinstance(each, str) else json.dumps(each),
                },
            )["id"]
            for each in definitions
        ]
        place.write_text(json.dumps(asked(f"{url}/schemas?format=serialized", "GET")))
    return ids


@pytest.mark.parametrize("kind", ["AVRO", "JSON", "PROTOBUF"])
def test_a_registry_s_ids_are_kept_and_its_schemas_used(
    folder: Any, run: Any, tmp_path: Path, kind: str
) -> None:
    """Values with an id in front, of two versions; one of no known id is rejected."""
    topic = folder.topic("orders", partition=0)
    old: Any
    new: Any
    if kind == "AVRO":
        old, new = record(id="int"), record(id="long", note=("string", "none"))
        bodies = [avro(old, {"id": 1}), avro(new, {"id": 2, "note": "n"})]
    elif kind == "JSON":
        old = {"type": "object", "properties": {"id": {"type": "integer"}}}
        new = {"type": "object", "properties": {**old["properties"], "note": {"type": "string"}}}
        bodies = [b'{"id": 1}', b'{"id": 2, "note": "n"}']
    else:
        file = FileDescriptorProto(name="r.proto", package="r", syntax="proto3")
        message = file.message_type.add(name="Order")
        message.field.add(name="id", number=1, type=3, label=1)
        old = base64.b64encode(file.SerializeToString()).decode()
        message.field.add(name="note", number=2, type=9, label=1)
        new = base64.b64encode(file.SerializeToString()).decode()
        made = _message(file, "r.Order")
        bodies = [b"\0" + made(id=1).SerializeToString()]
        bodies += [b"\0" + made(id=2, note="n").SerializeToString()]
    ids = registered(tmp_path / "schemas.json", kind, old, new)
    for number, body in zip(ids, bodies, strict=True):
        topic.single(b"\0" + number.to_bytes(4, "big") + body)
    topic.single(b"plain")
    topic.single(None)
    run.copy(
        folder, tmp_path / "out", columns=["value", "__topic", "__index", "__schemaId"],
        value_schema="latest", registry_schemas=tmp_path / "schemas.json", mode="PERMISSIVE",
    )  # fmt: skip
    from pulsemark.pipeline.offload.table import ParquetFolder

    table = ParquetFolder(tmp_path / "out")
    missing = {"AVRO": "none", "JSON": None, "PROTOBUF": ""}[kind]
    assert rows_of(run, table, "__index", "__schemaId", "id", "note") == [
        (0, ids[0], 1, missing),
        (1, ids[1], 2, "n"),
        (3, None, None, None),
    ]
    (bad,) = rows_of(run, table.rejected(), "__index", "__error")
    assert bad[0] == 2
    assert "a zero byte, a schema's id" in bad[1]


def test_nonsense_is_refused_by_name(folder: Any, run: Any, tmp_path: Path) -> None:
    """Each option with its value, and what it should be; a target keeps its layout."""
    typed = Typed(folder)
    typed.send_avro(typed.version(Schema.Avro, record(id="int")), id=1)
    (tmp_path / "bad.json").write_text("{}")
    typed_asked = {"value_schema": "latest"}
    for arguments, message in (
        ({"mode": "PERMISSIVE"}, "mode = 'PERMISSIVE': needs the option valueSchema"),
        ({**typed_asked, "mode": "DROP"}, "mode = 'DROP': is not one of PERMISSIVE, FAILFAST"),
        ({**typed_asked, "registry_schemas": "/nope"}, "registrySchemas = '/nope': cannot be read"),
        ({**typed_asked, "registry_schemas": tmp_path / "bad.json"}, "registrySchemas.*GET /sch"),
        ({**typed_asked, "columns": ["__index"]}, "columns = '__index': has no value"),
        ({"value_schema": "3"}, "valueSchema = '3': .*orders has no AVRO"),
        ({"partition_by": "week"}, "partitionBy = 'week': is not one of hour, day"),
    ):
        with pytest.raises(OptionError, match=message):
            run.copy(folder, tmp_path / "out", **arguments)
    run.copy(folder, tmp_path / "out", **typed_asked)
    with pytest.raises(OptionError, match="valueSchema = 'False': the target has True"):
        run.copy(folder, tmp_path / "out")
    with pytest.raises(OptionError, match="partitionBy = 'day': the target has hour"):
        run.copy(folder, tmp_path / "out", partition_by="day", **typed_asked)


def test_days_are_partitions(folder: Any, run: Any, make_table: Any) -> None:
    """A file has a day of broker time."""
    topic = folder.topic("a")
    run.fill(topic, folder, hours=30, each=1)
    done = run.copy(folder, make_table(), partition_by="day")
    assert len(done.files) in (2, 3)
    assert run.rows_in(make_table()) == run.truth(topic)
    assert all(check.good for check in verify_offload(folder.path, make_table()))

"""Offloaded tables, read by DuckDB: a reader that shares no code with what wrote them.

Its extensions are signed; the packages that bring them are loaded from where they are installed.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import duckdb
import pytest

from pulsemark.metadata.schema_list import pack_schemas
from pulsemark.pipeline.offload import DeltaTarget, IcebergTarget
from pulsemark.proto.pulsar_api_pb2 import Schema
from pulsemark.testing.raw_messages import BatchMember

EXTENSIONS = {"delta": ("delta",), "iceberg": ("avro", "iceberg"), "parquet": ()}


def rows_of(table: Any, *columns: str) -> list[tuple[Any, ...]]:
    """Columns, or what SQL makes of them, of all rows, by topic and index."""
    with duckdb.connect() as connection:
        for name in EXTENSIONS[table.format]:
            spec = find_spec(f"duckdb_extension_{name}")
            assert spec is not None
            assert spec.origin is not None
            (file,) = Path(spec.origin).parent.rglob("*.duckdb_extension")
            connection.execute(f"LOAD '{file}'")
        if isinstance(table, DeltaTarget):
            source = f"delta_scan('{table.name}')"
        elif isinstance(table, IcebergTarget):
            metadata = table.catalog.load_table(table.name).metadata_location
            source = f"iceberg_scan('{metadata.removeprefix('file://')}')"
        else:
            places = f"{table.name}/topic=*/*/*.parquet"
            source = f"read_parquet('{places}', union_by_name = true, hive_partitioning = true)"
        query = f'SELECT {", ".join(columns)} FROM {source} ORDER BY "__topic", "__index"'
        return connection.execute(query).fetchall()


def test_appended_rows(folder: Any, run: Any, make_table: Any) -> None:
    """Of two runs: every message once, with its key, time and properties, under its hour."""
    topics = [folder.topic("a"), folder.topic("b")]
    for _ in range(2):
        for topic in topics:
            topic.batch([BatchMember(payload=b"m%d" % n, key=f"k{n}") for n in range(5)])
            topic.single(None, key="gone", properties={"p": "q"})
            folder.clock.advance(by_ms=3_600_000)
        run.copy(folder, make_table())
    columns = ("__topic", "__index", "__key", "value")
    expected = [
        (*(row[name] for name in columns), round(row["__brokerPublishTime"].timestamp() * 1000))
        for topic in topics
        for row in topic.rows
    ]
    assert rows_of(make_table(), *columns, "epoch_ms(__brokerPublishTime)") == expected
    hours = {row[0] for row in rows_of(make_table(), "hour::VARCHAR")}
    assert len(hours) == 4


def test_upserted_rows(folder: Any, run: Any, make_lake_table: Any) -> None:
    """After a merge that replaced, added and deleted keys: the latest message of each."""
    topic = folder.topic("a")
    for round_ in range(3):
        for number in range(6):
            deletes = round_ == 2 and number == 5
            topic.single(None if deletes else b"%d-%d" % (round_, number), key=f"k{number}")
        topic.single(b"new", key=f"round {round_}")
        run.copy(folder, make_lake_table(), write_mode="upsert", partition_by="bucket(2)")
    latest = {row["__key"]: row for row in topic.rows}
    kept = sorted(
        (row["__index"], row["__key"], row["value"])
        for row in latest.values()
        if row["value"] is not None
    )
    assert rows_of(make_lake_table(), "__index", "__key", "value") == kept


@pytest.mark.parametrize("evolved", [False, True])
def test_typed_rows(folder: Any, run: Any, make_table: Any, evolved: bool) -> None:
    """Columns of the topic's schema, and those that a later version adds or leaves out."""
    topic = folder.topic("orders")
    versions = [
        [{"name": "id", "type": "long"}, {"name": "old", "type": "string"}],
        [{"name": "id", "type": "long"}, {"name": "price", "type": "double"}],
    ]
    schemas: list[Schema] = []
    for fields in versions[: 1 + evolved]:
        text = json.dumps({"type": "record", "name": "Order", "fields": fields})
        schemas.append(Schema(name="s", schema_data=text.encode(), type=Schema.Json))
        folder.store.catalog.put("schema", topic.name, pack_schemas(schemas))
        number = len(schemas) - 1
        for order in range(3):
            value = {"id": order, "old": "x", "price": 1.5}
            kept = {field["name"]: value[field["name"]] for field in fields}
            version = number.to_bytes(8, "big")
            topic.single(json.dumps(kept).encode(), schema_version=version)
        run.copy(folder, make_table(), value_schema="latest")
    expected: list[tuple[Any, ...]] = [(n, n, "x") for n in range(3)]
    if evolved:
        expected = [(*row, None) for row in expected]
        expected += [(3 + n, n, None, 1.5) for n in range(3)]
    more = ("price",) if evolved else ()
    assert rows_of(make_table(), "__index", "id", "old", *more) == expected

"""What the offload's tests share: tasks without a JVM, topics over hours, and tables to compare."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pulsemark.pipeline.offload import DeltaTarget, IcebergTarget, OffloadResult, offload
from pulsemark.pipeline.offload.parquet_folder import ParquetFolder
from pulsemark.pipeline.offload.table import OffloadTable
from pulsemark.testing.raw_messages import BatchMember

HOUR_MS = 3_600_000
_FACTS = ("__topic", "__index", "value")


def copy(folder: Any, target: Any, **arguments: Any) -> OffloadResult:
    """An offload of the folder as it is now."""
    spark: Any = arguments.pop("spark", None) or folder.in_process(
        arguments.pop("files_before_kill", None)
    )
    return offload(spark, folder.path, target, **arguments)


def fill(topic: Any, folder: Any, hours: int, each: int = 6) -> None:
    """In each hour a few batches, singles and a control entry."""
    for _ in range(hours):
        for number in range(each):
            topic.batch([BatchMember(payload=b"b%d" % place) for place in range(4)])
            topic.single(b"s%d" % number, key="k")
            folder.clock.advance(HOUR_MS // each)
        topic.control()


def table_rows(table: OffloadTable) -> pa.Table:
    """All rows of a table, as the format's own library reads them."""
    if isinstance(table, DeltaTarget):
        from deltalake import DeltaTable

        return pa.table(DeltaTable(table.name).to_pyarrow_table())
    if isinstance(table, IcebergTarget):
        from pyiceberg.catalog import load_catalog

        catalog = load_catalog("tests", **table.properties)
        return catalog.load_table(table.name).scan().to_arrow()
    paths = sorted(Path(table.name).glob("topic=*/hour=*/*.parquet"))
    tables = [pq.read_table(path, partitioning=None) for path in paths]
    return pa.concat_tables(tables) if tables else pa.table({name: [] for name in _FACTS})


def rows_in(table: OffloadTable) -> list[tuple[Any, ...]]:
    """(topic, index, value) of all rows, sorted."""
    rows = table_rows(table).select(_FACTS).to_pylist()
    return sorted(tuple(row[name] for name in _FACTS) for row in rows)


def truth(*topics: Any) -> list[tuple[Any, ...]]:
    """What the table must have."""
    return sorted(tuple(row[name] for name in _FACTS) for topic in topics for row in topic.rows)


_TOOLS = ("copy", "fill", "rows_in", "table_rows", "truth")


@pytest.fixture(scope="session")
def run() -> Any:
    """The functions above, for the test modules, which cannot import this one."""
    return type("Run", (), {name: staticmethod(globals()[name]) for name in _TOOLS})


MakeTable = Callable[..., OffloadTable]


def _made(kind: str, folder: Path, name: str) -> OffloadTable:
    if kind == "parquet":
        return ParquetFolder(folder / name)
    if kind == "delta":
        return DeltaTarget(folder / name)
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{folder / 'catalog.db'}",
        "warehouse": f"file://{folder / 'warehouse'}",
    }
    return IcebergTarget(f"archive.{name}", "tests", properties)


@pytest.fixture(params=["parquet", "delta", "iceberg"])
def make_table(request: pytest.FixtureRequest, tmp_path: Path) -> MakeTable:
    """Opens a table by name; each call is as another process would open it."""
    return lambda name="out": _made(request.param, tmp_path, name)


@pytest.fixture(params=["delta", "iceberg"])
def make_lake_table(request: pytest.FixtureRequest, tmp_path: Path) -> MakeTable:
    """The same for tables with transactions."""
    return lambda name="out": _made(request.param, tmp_path, name)

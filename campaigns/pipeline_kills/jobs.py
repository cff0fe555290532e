"""The writing jobs with their tasks in one process: how each runs, and what its table shows."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Iterable, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pyiceberg.io.pyarrow
import sqlalchemy
from pyiceberg.catalog.sql import SqlCatalog

from pulsemark.compaction.current_view import compacted_log
from pulsemark.ledger import EARLIEST, LocalStore
from pulsemark.metadata import StamperChain
from pulsemark.metadata.schema_list import pack_schemas
from pulsemark.pipeline import (
    DeltaTarget,
    IcebergTarget,
    OffloadFollower,
    compact_folder,
    offload,
    verify_offload,
    workers,
)
from pulsemark.pipeline.offload import writer
from pulsemark.pipeline.offload.table import ParquetFolder
from pulsemark.proto.pulsar_api_pb2 import Schema
from pulsemark.testing import SettableClock
from pulsemark.testing.raw_messages import BatchMember, batched_message, unbatched_message

# All is imported before the first fork, so that a run costs little.
_PRELOADED = (deltalake, pyiceberg.io.pyarrow, sqlalchemy, SqlCatalog)
_SOURCES = (workers, writer)

HOUR_MS = 3_600_000
Fact: TypeAlias = tuple[str, int, Any]


ORDER = {"type": "record", "name": "Order", "fields": [{"name": "n", "type": "long"}]}


def fill(data: Path, hours: int = 4) -> None:
    """Two topics over some hours, with keys and tombstones; some values are not of the schema."""
    clock = SettableClock()
    with LocalStore.open(data, clock=clock) as store:
        for name in ("a", "b"):
            topic = store.open_topic(f"persistent://public/default/{name}")
            topic.stampers = StamperChain.from_names(["broker-time", "index"])
            for number in range(hours * 10):
                clock.advance(by_ms=HOUR_MS // 10)
                body = batched_message(
                    [
                        BatchMember(payload=b"v%d" % place if place else None, key=f"k{number % 7}")
                        for place in range(4)
                    ],
                    publish_time_ms=clock.now_ms(),
                )
                topic.append(body, message_count=4)
                value = b'{"n": %d}' % number if number % 3 else b"s%d" % number
                single = unbatched_message(value, publish_time_ms=1, key=f"s{number % 5}")
                topic.append(single).commit.wait(30)
            topic.roll()
            schema = Schema(name="o", type=Schema.Json, schema_data=json.dumps(ORDER).encode())
            store.catalog.put("schema", topic.name, pack_schemas([schema]))


class Tasks:
    """The calls of a SparkSession that a job makes; its tasks run here, one after another."""

    def __init__(self) -> None:
        self._source: Any = None
        self._options: dict[str, str] = {}
        self.read = self.dataSource = self

    def register(self, source: Any) -> None:
        """Keep the source."""
        self._source = source

    def format(self, _: str) -> Tasks:
        """The registered source."""
        return self

    def option(self, name: str, value: str) -> Tasks:
        """The work."""
        self._options = {name.lower(): value}
        return self

    def load(self) -> Tasks:
        """Nothing runs yet."""
        return self

    def collect(self) -> list[Any]:
        """Run the tasks through pickle, as Spark does."""
        reader = self._source(self._options).reader(None)
        rows: list[Any] = []
        for partition in reader.partitions():
            sent = pickle.loads(pickle.dumps((reader, partition)))
            rows += sent[0].read(sent[1])
        return rows


class Job(Protocol):
    """One job in a folder of its own."""

    def __call__(self, data: Path, folder: Path) -> Run:
        """Open it."""


class Run(Protocol):
    """A job that can be run again and again."""

    def prepare(self) -> None:
        """What it needs beside the data folder."""

    def run(self) -> object:
        """Run it once."""

    def problems_after_kill(self) -> list[str]:
        """What the table should not show after a kill."""

    def problems_at_end(self) -> list[str]:
        """What differs from an undisturbed run."""


def facts(tables: Iterable[pa.Table], value: str = "value") -> list[Fact]:
    """(topic, index, value) of all rows, sorted."""
    names = ("__topic", "__index", value)
    rows = [row for table in tables for row in table.select(names).to_pylist()]
    return sorted((tuple(row[name] for name in names) for row in rows), key=repr)


class Offload:
    """An offload into one of the formats; a typed one rejects some of the values."""

    def __init__(self, kind: str, data: Path, folder: Path, **options: Any) -> None:
        self._kind = kind
        self._options = options
        self._data = data
        self._folder = folder
        self._spark: Any = Tasks()

    def prepare(self) -> None:
        """Nothing."""

    def _target(self) -> Any:
        folder = self._folder
        if self._kind == "parquet":
            return ParquetFolder(folder / "out")
        if self._kind == "delta":
            return DeltaTarget(folder / "out")
        uri, warehouse = f"sqlite:///{folder}/catalog.db", f"file://{folder}/warehouse"
        return IcebergTarget("a.b", "x", {"type": "sql", "uri": uri, "warehouse": warehouse})

    def run(self) -> None:
        """Copy what is new."""
        offload(self._spark, self._data, self._target(), rows_per_file=40, **self._options)

    def _shown(self) -> list[Fact]:
        return facts(self._rows_of(self._target()))

    def _rows_of(self, table: Any) -> list[pa.Table]:
        """What a reader of the table sees; nothing if it does not exist."""
        if self._kind == "parquet":
            found = Path(table.name).glob("topic=*/hour=*/[!.]*")
            return [pq.read_table(path, partitioning=None) for path in found]
        if self._kind == "delta":
            if not deltalake.DeltaTable.is_deltatable(table.name):
                return []
            return [pa.table(deltalake.DeltaTable(table.name).to_pyarrow_table())]
        if not (self._folder / "catalog.db").exists():
            return []
        if not table.catalog.table_exists(table.name):
            return []
        return [table.catalog.load_table(table.name).scan().to_arrow()]

    def _wanted(self) -> list[Fact]:
        return sorted(self._messages("value"), key=repr)

    def _messages(self, *columns: str) -> list[Any]:
        """Topic, index and these columns of all messages."""
        from pulsemark.pipeline.columns import arrow_schema_of
        from pulsemark.pipeline.followed import followed
        from pulsemark.pipeline.options import ReadOptions
        from pulsemark.pipeline.tasks import TaskReader

        options = ReadOptions.parse({"path": str(self._data), "topicsPattern": ".*"})
        schema = arrow_schema_of(("__topic", "__index", *columns))
        return [
            tuple(row.values())
            for task in followed(options).read()
            for batch in TaskReader(options, schema).read(task)
            for row in batch.to_pylist()
        ]

    def problems_after_kill(self) -> list[str]:
        """Rows are whole and there once: in a folder some of them, else all or none."""
        shown, wanted = self._shown(), self._wanted()
        if self._kind != "parquet" and shown not in ([], wanted):
            return [f"{len(shown)} of {len(wanted)} rows are shown"]
        if len(set(shown)) != len(shown) or not set(shown) <= set(wanted):
            return ["rows are shown twice, or were never there"]
        return []

    def problems_at_end(self) -> list[str]:
        """The rows, the check's own findings, and what is left over."""
        problems = [] if self._shown() == self._wanted() else ["the rows differ"]
        target = self._target()
        for check in verify_offload(self._data, target):
            problems += check.problems
        place = target.place.folder
        listed = {file.path for file in target.load().files}
        patterns = ("topic=*/hour=*/*", "_pulsemark/unfinished*", "_pulsemark/changes/*")
        left = {
            path.relative_to(place).as_posix()
            for pattern in patterns
            for path in place.glob(pattern)
        }
        return problems + [f"left over: {path}" for path in sorted(left - listed)]


class CompactViews:
    """A compaction of a folder's own views."""

    def __init__(self, data: Path, folder: Path) -> None:
        self._source = data
        self._data = folder / "data"
        self._other = folder / "undisturbed"

    def prepare(self) -> None:
        """Copies of the data folder, since it is changed."""
        for copy in (self._data, self._other):
            shutil.copytree(self._source, copy)

    def run(self) -> None:
        """Compact all topics."""
        compact_folder(self._data)

    def _shown(self, data: Path) -> dict[str, list[tuple[Any, bytes]]]:
        with LocalStore.open(data) as store:
            names = [name for name in store.catalog.topics() if "://" in name]
            logs = {name: compacted_log(store.open_topic(name, create=False)) for name in names}
            return {
                name: [(e.position, bytes(e.body)) for e in log.read(EARLIEST, max_entries=10_000)]
                for name, log in logs.items()
            }

    def problems_after_kill(self) -> list[str]:
        """The folder opens, and each topic can be read."""
        shown = self._shown(self._data)
        return [] if len(shown) == 2 else [f"{len(shown)} topics"]

    def problems_at_end(self) -> list[str]:
        """The views of a run that nobody killed."""
        compact_folder(self._other)
        same = self._shown(self._data) == self._shown(self._other)
        return [] if same else ["the views differ"]


class FollowOffload(Offload):
    """A continuous offload of a folder that grows between its runs."""

    def __init__(self, kind: str, data: Path, folder: Path) -> None:
        super().__init__(kind, folder / "data", folder)
        self._source = data

    def prepare(self) -> None:
        """A copy of the data folder, since it is changed."""
        shutil.copytree(self._source, self._data)

    def run(self) -> None:
        """Three runs, with messages between them."""
        follower = OffloadFollower(self._spark, self._data, self._target(), every_s=0.01)
        follower.more = {"rows_per_file": 40}

        def grow(_: object) -> None:
            with LocalStore.open(self._data) as store:
                topic = store.open_topic("persistent://public/default/a")
                for number in range(7):
                    topic.append(unbatched_message(b"g%d" % number, publish_time_ms=1))
                topic.append(unbatched_message(b"end", publish_time_ms=1)).commit.wait(30)
            if follower.runs >= 3:
                follower.stop()

        follower.on_run = grow
        follower.run()

    def problems_after_kill(self) -> list[str]:
        """Rows are whole and there once."""
        shown, wanted = self._shown(), self._wanted()
        good = len(set(shown)) == len(shown) and set(shown) <= set(wanted)
        return [] if good else ["rows are shown twice, or were never there"]

    def problems_at_end(self) -> list[str]:
        """After a last run without growth, all rows."""
        Offload.run(self)
        return super().problems_at_end()


class TypedOffload(Offload):
    """An offload of typed values; those that are none are rejected."""

    def __init__(self, kind: str, data: Path, folder: Path) -> None:
        super().__init__(kind, data, folder, value_schema="latest", mode="PERMISSIVE")

    def _shown(self) -> list[Fact]:
        found: list[Fact] = []
        for table, column in ((self._target(), "n"), (self._target().rejected(), "value")):
            rows = self._rows_of(table)
            found += facts(rows, column)
        return sorted(found, key=repr)

    def _wanted(self) -> list[Fact]:
        rows = super()._wanted()
        typed = [v if v is None or not v.startswith(b"{") else json.loads(v)["n"] for *_, v in rows]
        return sorted(((*row[:2], v) for row, v in zip(rows, typed, strict=True)), key=repr)

    def problems_after_kill(self) -> list[str]:
        """Rows are there once; those that were rejected may come with the next run."""
        shown, wanted = self._shown(), self._wanted()
        if len(set(shown)) != len(shown) or not set(shown) <= set(wanted):
            return ["rows are shown twice, or were never there"]
        return []


class Upsert(Offload):
    """An offload of each key's latest message."""

    def __init__(self, kind: str, data: Path, folder: Path) -> None:
        super().__init__(kind, data, folder, write_mode="upsert", partition_by="bucket(3)")

    def _wanted(self) -> list[Fact]:
        latest: dict[Any, Fact] = {}
        for topic, index, key, value in sorted(self._messages("__key", "value"), key=itemgetter(1)):
            latest[topic, key] = (topic, index, value)
        return sorted((fact for fact in latest.values() if fact[2]), key=repr)


JOBS: Mapping[str, Job] = {
    "upsert-delta": lambda data, folder: Upsert("delta", data, folder),
    "upsert-iceberg": lambda data, folder: Upsert("iceberg", data, folder),
    "typed-parquet": lambda data, folder: TypedOffload("parquet", data, folder),
    "typed-delta": lambda data, folder: TypedOffload("delta", data, folder),
    "typed-iceberg": lambda data, folder: TypedOffload("iceberg", data, folder),
    "offload-parquet": lambda data, folder: Offload("parquet", data, folder),
    "offload-delta": lambda data, folder: Offload("delta", data, folder),
    "offload-iceberg": lambda data, folder: Offload("iceberg", data, folder),
    "follow-parquet": lambda data, folder: FollowOffload("parquet", data, folder),
    "follow-delta": lambda data, folder: FollowOffload("delta", data, folder),
    "follow-iceberg": lambda data, folder: FollowOffload("iceberg", data, folder),
    "compact-views": CompactViews,
}

"""Rows published by the sink's tasks, in this process, to a broker in a thread."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types

from pulsemark.broker import BrokerConfig, BrokerThread
from pulsemark.client import UnreachableError
from pulsemark.ledger import FolderReader
from pulsemark.pipeline.errors import JobFailedError, OptionError
from pulsemark.pipeline.sink import SinkOptions, places_of, publish
from pulsemark.pipeline.source import LedgerSource

SCHEMA = types.StructType(
    [
        types.StructField("value", types.BinaryType()),
        types.StructField("key", types.StringType()),
        types.StructField("properties", types.MapType(types.StringType(), types.StringType())),
        types.StructField("eventTime", types.TimestampType()),
        types.StructField("topic", types.StringType()),
    ]
)
MOMENT = datetime(2026, 3, 1, 12, 0, 0, 5_000, UTC)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerThread]:
    """A broker with an empty data folder."""
    config = BrokerConfig(data_dir=tmp_path / "data", port=0, http_port=0)
    with BrokerThread(config) as running:
        yield running


def batches(rows: list[dict[str, Any]], size: int = 100) -> Iterator[pa.RecordBatch]:
    """The rows as Spark hands them to a task."""
    names = [field.name for field in SCHEMA.fields]
    kinds = [
        *(pa.binary(), pa.string(), pa.map_(pa.string(), pa.string())),
        *(pa.timestamp("us", "UTC"), pa.string()),
    ]
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        columns = [
            pa.array([row.get(name) for row in part], kind)
            for name, kind in zip(names, kinds, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(columns, names)


def write(broker: BrokerThread, rows: list[dict[str, Any]], **options: object) -> int:
    """One task's rows; returns how many it has published."""
    texts = {"serviceUrl": broker.service_url, **{k: str(v) for k, v in options.items()}}
    parsed = SinkOptions.parse(texts)
    places = places_of(SCHEMA, topic_needed=parsed.topic is None)
    return publish(batches(rows), parsed, places, "q", 0, 0).rows


def stored(tools: Any, folder: Path, topic: str) -> list[dict[str, Any]]:
    """What the source reads of a topic."""
    columns = "value,__key,__messageProperties,__eventTime,__sequenceId,__producerName,__batchIndex"
    rows: list[dict[str, Any]] = tools.rows_of(folder, topic=topic, columns=columns)
    return rows


def test_a_row_is_a_message(broker: BrokerThread, tools: Any, tmp_path: Path) -> None:
    """Value, key, properties and event time arrive; a null value is a null message."""
    rows: list[dict[str, Any]] = [
        {"value": b"one", "key": "k", "properties": [("a", "1")], "eventTime": MOMENT},
        {"value": None, "key": "k"},
        {"value": b""},
    ]
    assert write(broker, rows, topic="t") == 3
    broker.close()
    found = stored(tools, tmp_path / "data", "t")
    assert [row["value"] for row in found] == [b"one", None, b""]
    assert [row["__key"] for row in found] == [b"k", b"k", None]
    assert found[0]["__messageProperties"] == {"a": "1"}
    assert [row["__eventTime"] for row in found] == [MOMENT, None, None]
    assert {row["__producerName"] for row in found} == {"spark-q-0"}


def test_rows_go_where_their_column_says(broker: BrokerThread, tools: Any, tmp_path: Path) -> None:
    """Each topic has its rows in their order; the option would send all to one."""
    rows = [{"value": b"%d" % number, "topic": f"t{number % 3}"} for number in range(30)]
    write(broker, rows)
    write(broker, rows, topic="all")
    broker.close()
    for place in range(3):
        found = stored(tools, tmp_path / "data", f"t{place}")
        assert [row["value"] for row in found] == [b"%d" % n for n in range(place, 30, 3)]
    assert len(stored(tools, tmp_path / "data", "all")) == 30


def test_a_repeated_task_stores_nothing_twice(tools: Any, tmp_path: Path) -> None:
    """In a topic that deduplicates: a whole repetition, one after a part, and the next epoch."""
    config = BrokerConfig(
        data_dir=tmp_path / "data", port=0, http_port=0, broker_deduplication_enabled=True
    )
    rows = [{"value": b"%d" % number} for number in range(25)]
    with BrokerThread(config) as broker:
        options = SinkOptions.parse(
            {"serviceUrl": broker.service_url, "topic": "t", "batchingMaxMessages": "10"}
        )
        places = places_of(SCHEMA, topic_needed=False)
        for epoch, part in ((0, rows[:20]), (0, rows), (0, rows), (1, rows), (1, rows)):
            publish(batches(part), options, places, "q", epoch, 0)
        publish(batches(rows), options, places, "another", 0, 0)
    found = [row["value"] for row in stored(tools, tmp_path / "data", "t")]
    assert found == [row["value"] for row in [*rows, *rows, *rows]]


def test_a_batch_write_with_a_name_can_be_repeated(
    tools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same name stores nothing twice, another one all rows again; a stream takes no name."""
    config = BrokerConfig(
        data_dir=tmp_path / "data", port=0, http_port=0, broker_deduplication_enabled=True
    )
    rows = [{"value": b"%d" % number} for number in range(25)]
    task = type("Task", (), {"partitionId": lambda self: 0})()
    monkeypatch.setattr("pyspark.TaskContext.get", lambda: task)
    with BrokerThread(config) as broker:
        for name, part in (("one", rows[:7]), ("one", rows), ("one", rows), ("two", rows)):
            options = {"serviceUrl": broker.service_url, "topic": "t", "writeId": name}
            source = LedgerSource(options | {"batchingMaxMessages": "3"})
            source.writer(SCHEMA, overwrite=False).write(batches(part))
        with pytest.raises(OptionError, match="writeId = 'two': a stream has an id of its own"):
            source.streamWriter(SCHEMA, overwrite=False)
    found = [row["value"] for row in stored(tools, tmp_path / "data", "t")]
    assert found == [row["value"] for row in [*rows, *rows]]


@pytest.mark.parametrize(
    ("options", "entries"),
    [({}, 1), ({"batchingMaxMessages": 10}, 25), ({"batchingMaxBytes": 1}, 250)],
)
def test_batches_have_limits(
    broker: BrokerThread, tmp_path: Path, options: dict[str, int], entries: int
) -> None:
    """An entry has at most so many messages, and at most so many bytes if it has more than one."""
    write(broker, [{"value": b"x" * 50} for _ in range(250)], topic="t", **options)
    broker.close()
    with FolderReader(tmp_path / "data") as reader:
        log = reader.log("persistent://public/default/t")
        assert sum(segment.entry_count for segment in log.segments()) == entries
        assert log.next_index == 250


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "serviceUrl: is required"),
        ({"serviceUrl": "http://x:1"}, "serviceUrl = 'http://x:1'"),
        ({"serviceUrl": "pulsar://x:1", "topic": "a/b"}, "topic = 'a/b'"),
        ({"serviceUrl": "pulsar://x:1", "batchingMaxMessages": "0"}, "batchingMaxMessages = '0'"),
        ({"serviceUrl": "pulsar://x:1", "producerName": " "}, "producerName = ' ': is empty"),
        ({"serviceUrl": "pulsar://x:1", "topik": "a"}, "did you mean topic"),
    ],
)
def test_nonsense_is_refused_by_name(options: dict[str, str], message: str) -> None:
    """Each error names the option and the value."""
    with pytest.raises(OptionError, match=message):
        SinkOptions.parse(options)


def column(name: str, kind: types.DataType) -> types.StructType:
    """A schema of value and one more column."""
    value = types.StructField("value", types.StringType())
    return types.StructType([value, types.StructField(name, kind)])


def test_columns_that_no_message_has_are_refused() -> None:
    """Unknown, doubled and mistyped columns are errors; those of a read of ours are ignored."""
    assert places_of(column("__index", types.LongType()), topic_needed=False) == {"value": 0}
    for schema, message in (
        (column("colour", types.StringType()), "schema = 'colour': the sink's columns are"),
        (column("key", types.IntegerType()), "schema = 'key': must be string or binary"),
        (
            column("key", types.StringType()).add("__key", types.StringType()),
            "schema = '__key': another column is the key too",
        ),
        (types.StructType().add("key", types.StringType()), "the column value is missing"),
    ):
        with pytest.raises(OptionError, match=message):
            places_of(schema, topic_needed=False)
    with pytest.raises(OptionError, match="topic: is required, or a column topic"):
        places_of(column("key", types.StringType()), topic_needed=True)


def test_a_null_topic_is_an_error(broker: BrokerThread) -> None:
    """A row that goes nowhere fails its task."""
    with pytest.raises(OptionError, match="a row's topic is null"):
        write(broker, [{"value": b"x"}])


def test_a_missing_broker_is_an_error() -> None:
    """The address is in it."""
    parsed = SinkOptions.parse({"serviceUrl": "pulsar://127.0.0.1:1", "topic": "t"})
    places = places_of(SCHEMA, topic_needed=False)
    with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1"):
        publish(batches([{"value": b"x"}]), parsed, places, "q", 0, 0)


def test_text_that_is_not_utf8(broker: BrokerThread, tools: Any, tmp_path: Path) -> None:
    """Spark allows it: a value is sent as it is, a key or a property is refused by its column."""
    odd = pa.array([b"\xff\xfeA"]).view(pa.string())
    schema = types.StructType([types.StructField(n, types.StringType()) for n in ("value", "key")])
    places = places_of(schema, topic_needed=False)
    parsed = SinkOptions.parse({"serviceUrl": broker.service_url, "topic": "odd"})
    good = pa.RecordBatch.from_arrays([odd, pa.array(["k"])], ["value", "key"])
    assert publish(iter([good]), parsed, places, "q", 0, 0).rows == 1
    bad = pa.RecordBatch.from_arrays([pa.array(["v"]), odd], ["value", "key"])
    with pytest.raises(JobFailedError, match=r"column key has text that is not UTF-8: b'\\xff"):
        publish(iter([bad]), parsed, places, "q", 1, 0)
    broker.close()
    assert [row["value"] for row in stored(tools, tmp_path / "data", "odd")] == [b"\xff\xfeA"]

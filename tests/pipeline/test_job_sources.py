"""The rows of control entries, without Spark. In Spark they are in test_spark.py."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from pulsemark.ledger import Entry, EntryKind, Position
from pulsemark.metadata import control_metadata, pack
from pulsemark.pipeline.decode.entries import table_of_entries
from pulsemark.pipeline.job_sources import control_batch
from pulsemark.proto.broker_entry_pb2 import CONTROL_USER

SCHEMA = pa.schema(
    [
        ("index", pa.int64()),
        ("append_time", pa.timestamp("us", tz="UTC")),
        ("type", pa.string()),
        ("name", pa.string()),
        ("epoch", pa.int64()),
        ("tags", pa.map_(pa.string(), pa.binary())),
    ]
)


def entry(number: int, prefix: bytes, append_ms: int) -> Entry:
    """A control entry."""
    stored = memoryview(prefix)
    return Entry(Position(1, number), EntryKind.CONTROL, 1, number, append_ms, len(prefix), stored)


def test_what_cannot_be_read_is_null() -> None:
    """A prefix that is damaged or says nothing, and times after the year 9999."""
    good = pack(control_metadata(CONTROL_USER, "x", {"b": b"2", "a": b"1"}, leader_epoch=3))
    broken = good[:6] + b"\xff" * (len(good) - 6)
    entries = [entry(0, good, 1_000), entry(1, broken, 2**62), entry(2, b"", 2)]
    rows: list[dict[str, Any]] = control_batch("t", table_of_entries(entries), SCHEMA).to_pylist()
    assert [(r["index"], r["type"], r["name"], r["epoch"]) for r in rows] == [
        (0, "user", "x", 3), (1, None, None, None), (2, None, None, None)
    ]  # fmt: skip
    assert rows[0]["tags"] == [("a", b"1"), ("b", b"2")]
    assert rows[0]["append_time"].timestamp() == 1
    assert rows[1]["append_time"] is None

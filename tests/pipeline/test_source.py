"""The source's reader in this process, without Spark's JVM: rows, and what is left out of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType

from pulsemark.ledger import FolderReader
from pulsemark.ledger.local.segment.segment import as_segment
from pulsemark.pipeline.columns import COLUMNS
from pulsemark.pipeline.errors import DataLossError, DecodeError, OptionError
from pulsemark.pipeline.source import LedgerSource
from pulsemark.testing.raw_messages import BatchMember

SURE_COLUMNS = tuple(name for name in COLUMNS if name != "__error")


@pytest.fixture
def damaged(tmp_path: Path, tools: Any) -> Path:
    """Nine messages of which five can be read: a head, a body and two entries are bad."""
    folder = tools.Folder(tmp_path)
    topic = folder.topic("a")
    topic.single(b"good 0")
    topic.single(b"head is damaged")
    topic.single(b"body is damaged")
    topic.single(b"no batch", num_messages_in_batch=1)
    topic.raw(b"no message")
    for number in range(5, 9):
        topic.batch([BatchMember(payload=b"good %d" % number, properties={"n": "1"})])
    folder.store.close()
    with FolderReader(tmp_path) as reader:
        segment = as_segment(reader.log(topic.name).segments()[0])
        head, body = segment.row(1).offset, segment.row(2).end_offset
    data = bytearray(segment.path.read_bytes())
    data[head + 20] ^= 1
    data[body - 3] ^= 1
    segment.path.write_bytes(data)
    return tmp_path


@pytest.mark.parametrize("name", SURE_COLUMNS)
def test_what_is_left_out_does_not_depend_on_the_columns(
    damaged: Path, tools: Any, name: str
) -> None:
    """With failOnDataLoss=false each column has the rows of all columns."""
    everything = tools.rows_of(
        damaged, topic="a", columns=",".join(SURE_COLUMNS), failOnDataLoss="false"
    )
    assert [row["value"] for row in everything] == [b"good %d" % n for n in (0, 5, 6, 7, 8)]
    alone = tools.rows_of(damaged, topic="a", columns=name, failOnDataLoss="false")
    assert alone == tools.only(everything, [name])


def test_what_is_bad_is_an_error_by_default(damaged: Path, tools: Any) -> None:
    """The loss first, then one of those that do not open, each with its place."""
    with pytest.raises(DataLossError) as lost:
        tools.rows_of(damaged, topic="a")
    assert (lost.value.first_index, lost.value.end_index) == (1, 3)
    with pytest.raises(DecodeError) as closed:
        tools.rows_of(damaged, topic="a", startingOffsets=3)
    assert closed.value.position.entry_id in (3, 4)


def test_the_limits_are_options(tmp_path: Path, tools: Any) -> None:
    """Each is named in the reason, and a higher one lets the entry through."""
    folder = tools.Folder(tmp_path)
    members = [BatchMember(payload=bytes(100), properties={"a": "", "b": ""})] * 10
    folder.topic("a").batch(members, compression=3)
    for option, limit, reason in (
        ("maxUncompressedBytes", 1000, "limit is 1000"),
        ("maxMessagesPerEntry", 9, "limit is 9"),
        ("maxPropertiesPerEntry", 19, "more than 19 properties"),
    ):
        with pytest.raises(DecodeError, match=reason):
            tools.rows_of(tmp_path, topic="a", **{option: limit})
        assert len(tools.rows_of(tmp_path, topic="a", **{option: limit * 2})) == 10
    folder.store.close()


@pytest.mark.parametrize("name", ["a,b", " a ", "[a]", "(?i)a", "ü b"])
def test_a_topic_of_any_name_can_be_read(tmp_path: Path, tools: Any, name: str) -> None:
    """By the option `topic`, just as it is called."""
    folder = tools.Folder(tmp_path)
    folder.topic(name).single(b"x")
    folder.topic("a").single(b"y") if name != "a" else None
    assert [row["value"] for row in tools.rows_of(tmp_path, topic=name)] == [b"x"]
    folder.store.close()


def test_a_schema_without_columns_is_refused() -> None:
    """It would count no row."""
    source = LedgerSource({"path": "/x", "topic": "a"})
    with pytest.raises(OptionError, match="option schema = '': has no column"):
        source.reader(StructType([]))


def test_each_topic_has_its_own_range(folder: Any, tools: Any) -> None:
    """By index and by timestamp, of partitions too; over gRPC as from the folder."""
    one, parts = folder.topic("a"), [folder.topic("b", partition=number) for number in range(2)]
    for number in range(10):
        folder.clock.advance(by_ms=1000)
        for topic in (one, *parts):
            topic.single(b"%d" % number)
    first_ms = folder.clock.now_ms() - 9_000
    options = {
        "topics": "a,b",
        "columns": "__topic,__index",
        "startingOffsets": '{"a": 8, "b": {"0": -2, "1": -1}}',
        "endingOffsetsByTimestamp": f'{{"a": {first_ms + 9_000}, "b": {first_ms + 2_000}}}',
    }
    wanted = [(one.name, 8), (parts[0].name, 0), (parts[0].name, 1)]
    with tools.serving(folder.path) as target:
        for path, place in ((folder.path, {}), (None, {"grpcUrl": f"grpc://{target}"})):
            rows = tools.rows_of(path, **place, **options)
            assert [tuple(row.values()) for row in rows] == wanted
            late = {"startingTimestamp": first_ms + 9_001, "topic": "a", "columns": "__index"}
            reason = r"startingTimestamp = '\d+': no entry of .*/a is at or after it; starting"
            with pytest.raises(OptionError, match=reason):
                tools.rows_of(path, **place, **late)
            late["startingOffsetsByTimestampStrategy"] = "latest"
            assert tools.rows_of(path, **place, **late) == []
            lone = {**options, "startingOffsets": '{"a": 1}'}
            with pytest.raises(OptionError, match=r"startingOffsets: does not name .*b-partition"):
                tools.rows_of(path, **place, **lone)

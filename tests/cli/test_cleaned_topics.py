"""A topic with Kafka's cleanup policy "compact", read from its folder: every reader sees the one
compacted form, view and log, with its holes, as clients of a broker do.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import pyarrow.parquet
import pytest
from kafka.protocol.metadata import MetadataRequest
from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

from pulsemark.compaction.cleaner import CleanerRules, clean, freeable
from pulsemark.compaction.current_view import claim_kept, log_of_folder
from pulsemark.finder import SeekClient
from pulsemark.finder.server import FolderSource, folder_server
from pulsemark.kafka.records import EntryRules, validate_produced
from pulsemark.ledger import EARLIEST, FolderReader, LocalStore
from pulsemark.ledger.local.io.folder import segment_path
from pulsemark.metadata import BrokerTimeStamper, IndexStamper, StamperChain
from pulsemark.metadata.source_stamp import RecordSetTags
from pulsemark.pipeline import offload, verify_offload
from pulsemark.pipeline.audit_source import audit_tasks
from pulsemark.pipeline.errors import DataLossError
from pulsemark.pipeline.options import ReadOptions
from pulsemark.pipeline.source import LedgerSource
from pulsemark.proto.broker_entry_pb2 import BrokerEntryMetadata
from pulsemark.testing import running_broker
from pulsemark.testing.raw_kafka import RawKafka
from pulsemark.testing.raw_messages import BatchMember, batched_message, unbatched_message
from tests.pipeline.conftest import InProcess, rows_of, spark_schema

TOPIC = "persistent://public/default/prices"
Command = Any


def pulsar_entry(*keys: str) -> tuple[bytes, int, int]:
    """A message, or a batch, whose values are its keys."""
    if len(keys) == 1:
        return unbatched_message(keys[0].encode(), publish_time_ms=1, key=keys[0]), 1, 0
    members = [BatchMember(payload=key.encode(), key=key) for key in keys]
    return batched_message(members, publish_time_ms=1), len(keys), 0


def kafka_entry(*keys: str) -> tuple[bytes, int, int]:
    """A compressed record set whose values are its keys."""
    builder = MemoryRecordsBuilder(magic=2, compression_type=1, batch_size=1 << 20)
    for key in keys:
        builder.append(timestamp=1_000, key=key.encode(), value=key.encode())
    builder.close()
    made = validate_produced(bytes(builder.buffer()), 7, EntryRules())
    assert made is not None
    return bytes(made.stored), len(keys), made.source_format


ENTRIES = {"pulsar": pulsar_entry, "kafka": kafka_entry}


def add(folder: Path, kind: str, *sets: str, cleans: bool = False) -> None:
    """Append an entry for each word, a message for each of its letters; then clean the topic."""
    with LocalStore.open(folder) as store:
        topic = store.open_topic(TOPIC)
        topic.stampers = StamperChain([BrokerTimeStamper(), IndexStamper()])
        for keys in sets:
            body, count, source_format = ENTRIES[kind](*keys)
            base = BrokerEntryMetadata()
            if kind == "kafka":
                RecordSetTags(count, source_format).write(base)
            topic.append(body, message_count=count, base=base).commit.wait()
        if cleans:
            rules = CleanerRules(free_after_ms=0)
            clean(topic, rules, 1 << 41)
            with claim_kept(topic) as claim:
                cut = freeable(topic, rules, 1 << 41, claim)
                assert cut is not None
                topic.truncate_head(cut)
            policy = b'{"kafka": {"cleanup.policy": "compact"}}'
            store.catalog.put("topic-policy", TOPIC, policy)


@pytest.fixture(params=["pulsar", "kafka"])
def kind(request: pytest.FixtureRequest) -> str:
    """Whose entries they are."""
    return str(request.param)


@pytest.fixture
def folder(tmp_path: Path, kind: str) -> Path:
    """`a` at 0, 2 and 5, `b` at 1, `c` at 3, `d` at 4 ...: what is left is in view and log."""
    made = tmp_path / "data"
    add(made, kind, "ab", "acd", "a", "e", cleans=True)
    add(made, kind, "bf", "g")
    return made


LEFT = [(1, "b"), (3, "c"), (4, "d"), (5, "a"), (6, "e"), (7, "b"), (8, "f"), (9, "g")]
"""Index and key of what readers see: only what the next compaction has not looked at is double."""
ENDS = [1, 4, 5, 6, 8, 9]
"""The last index of each entry that is left."""


def spark_rows(folder: Path | None, **options: object) -> list[tuple[int, str]]:
    """Index and value, as Spark's source reads them."""
    columns = "__index,value"
    found = rows_of(folder, topic=TOPIC, columns=columns, **options)
    return [(row["__index"], row["value"].decode()) for row in found]


async def test_dump_seek_and_finder_see_what_a_broker_shows(
    pulsemark: Command, folder: Path, kind: str
):
    """View and log are one, with the log's positions and indexes; Kafka's clients see the same."""
    assert [row["index"] for row in pulsemark("dump", folder, "--json").json()] == ENDS
    sought = ("seek", TOPIC, "--data-dir", folder, "--json", "--index")
    found = [pulsemark(*sought, str(index)).json()[0] for index in range(10)]
    assert [row["index"] for row in found] == [1, 1, 4, 4, 4, 5, 6, 8, 8, 9]
    from_hole = pulsemark("dump", TOPIC, "--data-dir", folder, "--from-index", "2", "--json")
    assert [row["index"] for row in from_hole.json()] == ENDS[1:]
    async with folder_server(folder, log_of=log_of_folder) as server:
        by_grpc = await asyncio.to_thread(read_by_grpc, server.target)
    assert by_grpc == ENDS
    if kind == "kafka":
        assert broker_rows(folder)[: len(LEFT)] == LEFT


def read_by_grpc(target: str) -> list[int]:
    """The indexes of the entries that a finder's server shows, found in its three ways."""
    with SeekClient(target) as client:
        assert client.by_index(TOPIC, 0).index == 1
        assert client.by_time(TOPIC, 0).first_index == 0
        return [entry.index for entry in client.read_entries(TOPIC)]


def broker_rows(folder: Path) -> list[tuple[int, str]]:
    """Offset and key of what a client of Kafka gets."""
    with (
        running_broker(data_dir=folder, kafka_port=0) as broker,
        RawKafka.from_url(broker.kafka_url) as raw,
    ):
        wanted = MetadataRequest.MetadataRequestTopic(name="prices")
        raw.call(MetadataRequest, 1, topics=[wanted])
        fetched = bytes(raw.fetch("prices", 0).records)
    records = MemoryRecords(fetched)
    found = []
    while (batch := records.next_batch()) is not None:
        found += [(each.offset, each.key.decode()) for each in batch if each.key]
    return found


async def test_a_server_notices_that_a_topic_is_cleaned(tmp_path: Path):
    """A topic that it has open loses its head to a view, and to the next one."""
    folder = tmp_path / "data"
    add(folder, "pulsar", "a", "b", "a", "c")
    source = FolderSource(folder, log_of_folder)
    try:
        for sets, left in (("", [0, 1, 2, 3]), ("d", [1, 2, 3, 4]), ("be", [2, 3, 4, 5, 6])):
            if sets:
                add(folder, "pulsar", *sets, cleans=True)
            entries = source.log(TOPIC).read(EARLIEST)
            assert [entry.index for entry in entries] == left
    finally:
        source.close()


def test_spark_reads_what_is_left(folder: Path):
    """All of it, any part of it, and in any number of tasks; a hole is no loss."""
    assert spark_rows(folder) == LEFT
    assert spark_rows(folder, minPartitions=5) == LEFT
    for first in range(10):
        for end in range(first, 11):
            wanted = [row for row in LEFT if first <= row[0] < end]
            bounds = [json.dumps({TOPIC: index}) for index in (first, end)]
            found = spark_rows(folder, startingOffsets=bounds[0], endingOffsets=bounds[1])
            assert found == wanted
    assert spark_rows(folder, where="__index > 4") == [row for row in LEFT if row[0] > 4]


async def test_spark_reads_it_from_services(folder: Path):
    """A finder's server and a broker say that holes are no loss."""

    def read(target: str) -> list[tuple[int, str]]:
        return spark_rows(None, grpcUrl=f"grpc://{target}")

    async with folder_server(folder, log_of=log_of_folder) as server:
        assert await asyncio.to_thread(read, server.target) == LEFT
    with running_broker(data_dir=folder, grpc_port=0, kafka_port=0) as broker:
        assert (await asyncio.to_thread(read, broker.grpc_url)) == LEFT


def test_an_audit_counts_the_log_that_is_left(folder: Path):
    """What the view replaced is none of its losses."""
    options = ReadOptions.parse({"path": str(folder), "topic": TOPIC})
    (task,) = audit_tasks(options)
    assert [(part.first_index, part.end_index) for part in task.partition.slices] == [(6, 10)]
    assert not task.losses


def test_spark_reports_damage_in_view_and_log(folder: Path):
    """An entry that cannot be read is a loss, or left out."""
    with FolderReader(folder) as reader:
        headers = reader.headers()
    (view,) = (each for each in headers if each.topic.startswith("compacted/"))
    path = segment_path(folder, *view.segment_id)
    data = bytearray(path.read_bytes())
    data[data.index(b"d") if b"d" in data else len(data) // 2] ^= 1
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataLossError):
        spark_rows(folder)
    rest = spark_rows(folder, failOnDataLoss="false")
    assert rest[-4:] == LEFT[-4:]
    assert len(rest) < len(LEFT)


def stream_rows(reader: Any, start: Any, end: Any) -> list[tuple[int, str]]:
    """Index and value of a micro-batch."""
    batches = [b for part in reader.partitions(start, end) for b in reader.read(part)]
    rows = [row for batch in batches for row in batch.to_pylist()]
    return [(row["__index"], row["value"].decode()) for row in rows]


def stream_of(folder: Path, **options: str) -> Any:
    """A stream from the earliest message on."""
    columns = ["__index", "value"]
    given = {"path": str(folder), "topic": TOPIC, "columns": ",".join(columns)}
    given |= {"startingOffsets": "earliest", **options}
    return LedgerSource(given).streamReader(spark_schema(columns))


def latest_of(reader: Any, start: Any) -> Any:
    """How far the next micro-batch goes."""
    return reader.latestOffset(start, reader.getDefaultReadLimit())


def test_a_stream_begins_with_the_view(folder: Path, kind: str):
    """A new query gets each key, as Kafka's consumers do; also in small micro-batches."""
    for options in ({}, {"maxOffsetsPerTrigger": "3"}):
        reader = stream_of(folder, **options)
        start, rows = reader.initialOffset(), []
        while (end := latest_of(reader, start)) != start:
            rows += stream_rows(reader, start, end)
            start = end
        assert rows == LEFT
        reader.stop()


def test_a_stream_that_cleaning_overtakes(folder: Path, kind: str):
    """It goes on with what is left, without a loss, in this process and after a restart."""
    first = stream_of(folder, maxOffsetsPerTrigger="3")
    begin = first.initialOffset()
    reached = latest_of(first, begin)
    assert stream_rows(first, begin, reached) == LEFT[:1]
    add(folder, kind, "ab", "h", cleans=True)
    expected = [row for row in spark_rows(folder) if row[0] >= 3]
    assert expected != LEFT[1:]
    for reader in (first, stream_of(folder)):
        found, start = [], reached
        while (end := latest_of(reader, start)) != start:
            found += stream_rows(reader, start, end)
            start = end
        assert found == expected
        reader.stop()


def offloaded(folder: Path, table: Path) -> list[tuple[int, str]]:
    """Copy what is new; what the table has then. The copy is verified."""
    offload(cast("Any", InProcess()), folder, table, columns=["__index", "value"], rows_per_file=4)
    assert [each.problems for each in verify_offload(folder, table)] == [()]
    rows = pyarrow.parquet.read_table(table, columns=["__index", "value"]).to_pylist()
    return sorted((row["__index"], row["value"].decode()) for row in rows)


def test_an_offload_begins_with_the_view(folder: Path, kind: str, tmp_path: Path):
    """A table has each key; runs that cleaning overtakes go on with what is left."""
    assert offloaded(folder, tmp_path / "table") == LEFT
    add(folder, kind, "ab", "i", "j")
    add(folder, kind, "a", "h", cleans=True)
    left = [row for row in spark_rows(folder) if row[0] > LEFT[-1][0]]
    assert offloaded(folder, tmp_path / "table") == LEFT + left
    assert offloaded(folder, tmp_path / "table") == LEFT + left

"""The source over BookKeeper, without Spark's JVM: rows, streams, audits, and what is refused."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from pulsemark.ledger import EARLIEST, StoreOptions, TopicNotFoundError
from pulsemark.ledger.bookkeeper.address import StoreAddress
from pulsemark.ledger.bookkeeper.reader import BookKeeperReader
from pulsemark.ledger.bookkeeper.store import BookKeeperStore
from pulsemark.ledger.store_core import StoreSetup
from pulsemark.metadata import BrokerEntryMetadata
from pulsemark.pipeline.errors import OptionError
from pulsemark.pipeline.options import ReadOptions, StreamOptions
from pulsemark.pipeline.source import LedgerSource
from pulsemark.proto.broker_entry_pb2 import CONTROL_TXN_ABORT
from pulsemark.testing import SettableClock
from pulsemark.testing.clock import A_TIME_MS
from pulsemark.testing.raw_messages import unbatched_message
from tests.support.faulty_coordination import FaultyTree
from tests.support.memory_bookies import MemoryBookies

ADDRESS = "zk://zookeeper:2181/ledgers"
GOLDEN = json.loads(
    (
        Path(__file__).parent.parent / "ledger" / "bookkeeper" / "golden" / "pulsar_4_0_8.json"
    ).read_text()
)


class Cluster:
    """ZooKeeper and bookies in memory, and a store that is being written."""

    def __init__(self) -> None:
        self.path = ADDRESS
        self.tree, self.bookies = FaultyTree(), MemoryBookies()
        self.clock = SettableClock(A_TIME_MS)
        self.store = BookKeeperStore.open_with(
            self.connecting,
            ledgers_root="/ledgers",
            root="/pulsemark/bundles/public/default/0x0",
            ledger_options=None,
            setup=StoreSetup(self.clock, StoreOptions(ledger_entries=20), None, threaded=True),
        )

    async def connecting(self) -> Any:
        """Sessions with both."""
        return self.tree.session(), self.bookies.client()

    def reader(self, address: StoreAddress | None = None) -> BookKeeperReader:
        """A reader of it, whatever the address."""
        return BookKeeperReader(self.connecting, name=ADDRESS)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster that every reader of a store reads."""
    cluster = Cluster()
    for module in ("followed", "options", "tasks"):
        imported = import_module(f"pulsemark.pipeline.{module}")
        monkeypatch.setattr(imported, "opened_store", cluster.reader)
    yield cluster
    cluster.store.close()


def test_rows_of_a_store(tools: Any, cluster: Cluster) -> None:
    """All kinds of entries have the rows that they have in a folder; nothing is fenced."""
    topics = [
        tools.TopicWriter(cluster.store, cluster.clock, f"persistent://public/default/{name}", -1)
        for name in "ab"
    ]
    for topic in topics:
        tools.fill(topic, cluster.clock)
    read = tools.rows_of(ADDRESS, topicsPattern=".*", minPartitions=7)
    names = ReadOptions.parse({"path": ADDRESS, "topic": "a"}).columns
    expected = [{name: row[name] for name in names} for topic in topics for row in topic.rows]
    assert read == tools.plain(expected)
    topics[0].single(b"the owner goes on")
    assert tools.rows_of(ADDRESS, topic="a")[-1]["value"] == b"the owner goes on"
    with pytest.raises(TopicNotFoundError):
        tools.rows_of(ADDRESS, topic="c")


def test_the_documented_example(tools: Any, cluster: Cluster) -> None:
    """What docs/spark.md shows, with its options as they stand there."""
    text = (Path(__file__).parents[2] / "docs" / "spark.md").read_text(encoding="utf-8")
    section = text[text.index("## From BookKeeper, without brokers") :]
    block = section[section.index("```py\n") + 6 : section.index("\n```\n")]
    given: dict[str, Any] = {}
    for call in ast.walk(ast.parse(block)):
        if isinstance(call, ast.Call):
            given |= {each.arg: ast.literal_eval(each.value) for each in call.keywords if each.arg}
            values = [ast.literal_eval(each) for each in call.args]
            given |= {values[0]: values[1]} if len(values) == 2 else {}
    name = "persistent://public/default/orders"
    topic = tools.TopicWriter(cluster.store, cluster.clock, name, -1)
    topic.single(b"x")
    assert given["path"] == ADDRESS
    (row,) = tools.rows_of(given.pop("path"), **given)
    assert (row["value"], row["__index"]) == (b"x", 0)
    assert list(row) == given["columns"].split(",")


async def test_rows_of_a_real_pulsars_topic(tools: Any, cluster: Cluster) -> None:
    """They have the positions and indexes that a client of the ledgers sees."""
    session, client = await cluster.connecting()
    for path, data in GOLDEN["nodes"].items():
        await session.create(path, bytes.fromhex(data), make_parents=True)
    for ledger_id, entries in GOLDEN["ledgers"].items():
        writer = await client.create_ledger(ledger_id=int(ledger_id))
        for _, payload in entries:
            await writer.append(bytes.fromhex(payload))
    with cluster.reader() as reader:
        seen = [
            (entry.position.ledger_id, entry.position.entry_id, index)
            for entry in reader.log(GOLDEN["topic"]).read(EARLIEST, max_entries=1_000)
            for index in range(entry.first_index, entry.index + 1)
        ]
    columns = "__ledgerId,__entryId,__index"
    rows = tools.rows_of(ADDRESS, topic=GOLDEN["topic"], columns=columns)
    assert [tuple(row.values()) for row in rows] == seen
    assert len(seen) > 10


def test_a_stream_follows_a_store(tools: Any, cluster: Cluster) -> None:
    """Each micro-batch has what was appended since the one before, also in new topics."""
    options = {"path": ADDRESS, "topicsPattern": ".*", "columns": "__topic,__index"}
    source = LedgerSource({**options, "startingOffsets": "earliest"})
    names = StreamOptions.parse(source.options).read.columns
    stream: Any = source.streamReader(tools.spark_schema(names))
    seen: list[int] = []
    offset: Any = {}
    for turn in range(3):
        topic = tools.TopicWriter(
            cluster.store, cluster.clock, f"persistent://public/default/t{turn // 2}", -1
        )
        for _ in range(30):
            topic.single(b"x")
        end = stream.latestOffset(dict(offset), stream.getDefaultReadLimit())
        rows = [
            row["__index"]
            for part in stream.partitions(offset, end)
            for batch in stream.read(part)
            for row in batch.to_pylist()
        ]
        assert len(rows) == 30
        seen += rows
        offset = json.loads(json.dumps(end))
    assert seen == [*range(60), *range(30)]
    stream.stop()


def test_transactions_of_a_store(tools: Any, cluster: Cluster) -> None:
    """By its note in ZooKeeper: aborted messages are left out, and open ones with what follows."""
    topic = tools.TopicWriter(cluster.store, cluster.clock, "persistent://public/default/a", -1)
    for value, name in ((b"no", "t"), (b"yes", None), (b"open", "u"), (b"after", None)):
        base = None if name is None else BrokerEntryMetadata(transaction=name)
        body = unbatched_message(value, publish_time_ms=1)
        topic.ledger.append(body, base=base).commit.wait(10)
        if name == "t":
            topic.ledger.append_control(CONTROL_TXN_ABORT, name).commit.wait(10)
    read = {"topic": "a", "columns": "value"}
    assert [row["value"] for row in tools.rows_of(ADDRESS, **read)] == [b"yes"]
    assert len(tools.rows_of(ADDRESS, **read, uncommitted="true")) == 4


def test_an_audit_of_a_store(tools: Any, cluster: Cluster) -> None:
    """It counts the messages that are there, and misses none."""
    from pulsemark.pipeline.arguments import checked_options, option_texts
    from pulsemark.pipeline.audit_source import audit_tasks, counted

    topic = tools.TopicWriter(cluster.store, cluster.clock, "persistent://public/default/a", -1)
    tools.fill(topic, cluster.clock)
    parsed = checked_options(option_texts(ADDRESS))
    rows = [
        row
        for task in audit_tasks(parsed)
        for batch in counted(parsed, 60_000, (), False, task)
        for row in batch.to_pylist()
    ]
    with cluster.reader() as stored:
        log = stored.log(topic.name)
        assert sum(row["count"] + row["control_count"] for row in rows) == log.next_index
        assert max(row["expected_end"] or 0 for row in rows) == log.next_index


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"store": ADDRESS, "path": "/data"}, "store"),
        ({"path": "zk://nowhere/ledgers"}, "path"),
        ({"path": "zk://:1/ledgers"}, "path"),
        ({"path": ADDRESS, "grpcUrl": "grpc://h:1"}, "path"),
        ({"path": ADDRESS, "valueSchema": "latest"}, "valueSchema"),
        ({}, "path"),
    ],
)
def test_options_that_are_refused(options: dict[str, str], named: str) -> None:
    """What cannot be read from a store, or is no address, raises OptionError with the option."""
    with pytest.raises(OptionError) as caught:
        ReadOptions.parse({**options, "topic": "a"})
    assert named in str(caught.value)


def test_limits_by_bytes_are_refused() -> None:
    """A stream of a store can be limited by messages only."""
    given = {"path": ADDRESS, "topic": "a", "maxBytesPerTrigger": "1000"}
    with pytest.raises(OptionError, match="maxBytesPerTrigger"):
        StreamOptions.parse(given)

"""Messages of open and aborted transactions: no reader and no job has them, unless asked to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer

from pulsemark.audit.rows import parse_bucket_ms
from pulsemark.broker import BrokerConfig, BrokerThread
from pulsemark.metadata import BrokerEntryMetadata
from pulsemark.pipeline import estimate_compaction, offload, verify_offload
from pulsemark.pipeline.arguments import checked_options, option_texts
from pulsemark.pipeline.audit_source import audit_tasks, counted
from pulsemark.pipeline.plan import slice_of
from pulsemark.pipeline.replay.stream import untouched_entries
from pulsemark.pipeline.source import LedgerSource
from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.proto.broker_entry_pb2 import CONTROL_TXN_ABORT, CONTROL_TXN_COMMIT
from pulsemark.testing import RawClient
from pulsemark.testing.raw_messages import BatchMember, batched_message, unbatched_message
from pulsemark.wire import commands

TOPIC = "persistent://public/default/a"
PULSAR, KAFKA, OPEN = "(0,17)", "4711:0", "(0,18)"


class Transactional:
    """A topic with messages inside and outside of transactions, and what consumers may see."""

    def __init__(self, folder: Any) -> None:
        self.folder, self.topic = folder, folder.topic("a")
        self.shown: list[bytes] = []
        self.hidden: list[bytes] = []

    def say(self, value: bytes, transaction: str | None = None, *, shown: bool = True) -> None:
        """A message, and one in a batch with another."""
        base = None if transaction is None else BrokerEntryMetadata(transaction=transaction)
        self.folder.clock.advance(by_ms=60_000)
        members = [BatchMember(payload=value + b"%d" % n, key=f"k{n}") for n in range(2)]
        ledger = self.topic.ledger
        ledger.append(unbatched_message(value, publish_time_ms=1, key="s"), base=base)
        batch = batched_message(members, publish_time_ms=1)
        ledger.append(batch, message_count=2, base=base).commit.wait(10)
        values = [value, *(each.payload or b"" for each in members)]
        (self.shown if shown else self.hidden).extend(values)

    def end(self, transaction: str, *, committed: bool) -> None:
        """The control entry that ends it."""
        kind = CONTROL_TXN_COMMIT if committed else CONTROL_TXN_ABORT
        self.topic.ledger.append_control(kind, transaction).commit.wait(10)


@pytest.fixture
def case(folder: Any) -> Transactional:
    """A committed and two aborted transactions, in two ledgers, and an open one at the end."""
    case = Transactional(folder)
    case.say(b"plain")
    case.say(b"aborted", KAFKA, shown=False)
    case.say(b"committed", PULSAR)
    case.topic.ledger.roll()
    case.end(KAFKA, committed=False)
    case.say(b"again", KAFKA, shown=False)
    case.end(PULSAR, committed=True)
    case.end(KAFKA, committed=False)
    case.say(b"last")
    case.say(b"open", OPEN, shown=False)
    case.say(b"after", shown=False)
    return case


def values(rows: list[dict[str, Any]]) -> list[bytes]:
    """The column."""
    return [row["value"] for row in rows]


@pytest.mark.parametrize("parts", [1, 4])
def test_a_read_has_what_is_committed(case: Transactional, tools: Any, parts: int) -> None:
    """Whatever columns, tasks and rows are asked for; no gap is a loss; `uncommitted` has all."""
    path = case.folder.path
    read = {"topic": "a", "minPartitions": parts}
    assert values(tools.rows_of(path, **read)) == case.shown
    assert len(tools.rows_of(path, **read, columns="__index,__brokerPublishTime")) == len(
        case.shown
    )
    everything = values(tools.rows_of(path, **read, uncommitted="true"))
    assert sorted(everything) == sorted(case.shown + case.hidden)


def test_a_service_gives_the_same(case: Transactional, tools: Any) -> None:
    """What it keeps back is no loss: the client asks which entries those are."""
    with tools.serving(case.folder.path) as target:
        remote = {"grpcUrl": f"grpc://{target}", "topic": "a"}
        assert values(tools.rows_of(None, **remote)) == case.shown
        assert len(tools.rows_of(None, **remote, columns="__index")) == len(case.shown)
        everything = values(tools.rows_of(None, **remote, uncommitted="true"))
        assert sorted(everything) == sorted(case.shown + case.hidden)


def test_a_stream_waits_at_the_first_open_transaction(case: Transactional, tools: Any) -> None:
    """Its offsets never pass the last stable position; what ends comes in the log's order."""
    options = {"path": str(case.folder.path), "topic": "a", "startingOffsets": "earliest"}
    reader: Any = LedgerSource({**options, "columns": "value"}).streamReader(
        tools.spark_schema(("value",))
    )
    seen: list[bytes] = []
    start = reader.initialOffset()

    def advance() -> None:
        nonlocal start
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        for part in reader.partitions(start, end):
            for batch in reader.read(part):
                seen.extend(batch.column(0).to_pylist())
        start = json.loads(json.dumps(end))

    advance()
    assert seen == case.shown
    advance()
    assert seen == case.shown
    case.end(OPEN, committed=False)
    case.say(b"new")
    advance()
    after = [value for value in case.hidden if value.startswith(b"after")]
    assert seen == case.shown[:-3] + after + case.shown[-3:]
    reader.stop()


def test_the_audit_counts_aborted_messages_apart(case: Transactional) -> None:
    """They are control entries to it, up to the last stable position; nothing is missing."""
    read = checked_options(option_texts(case.folder.path, "a"))
    rows = [
        row
        for task in audit_tasks(read)
        for batch in counted(read, parse_bucket_ms("1 minute"), (), False, task)
        for row in batch.to_pylist()
    ]
    assert sum(row["count"] for row in rows) == len(case.shown)
    assert sum(row["control_count"] for row in rows) == 6 + 3
    ends = [row["expected_end"] for row in rows if row["expected_end"] is not None]
    assert ends == [len(case.shown) + 6 + 3]


def test_an_offload_copies_what_is_committed(case: Transactional, tmp_path: Path) -> None:
    """And goes on when the open transaction has ended; the check counts the same messages."""
    spark, target = case.folder.in_process(), tmp_path / "out"

    def copied() -> list[bytes]:
        files = sorted(target.glob("topic=*/*/*.parquet"), key=lambda path: path.name)
        return [v for f in files for v in pq.read_table(f, partitioning=None)["value"].to_pylist()]

    offload(spark, case.folder.path, target)
    assert copied() == case.shown
    assert all(check.good for check in verify_offload(case.folder.path, target))
    case.end(OPEN, committed=True)
    offload(spark, case.folder.path, target)
    assert sorted(copied()) == sorted(
        case.shown + [v for v in case.hidden if v.startswith((b"open", b"after"))]
    )
    assert all(check.good for check in verify_offload(case.folder.path, target))


def test_a_replay_and_a_compaction_have_the_same(case: Transactional) -> None:
    """Entries that are published again, and the messages that a compaction would read."""
    from pulsemark.ledger import FolderReader
    from pulsemark.pipeline.plan import selected

    read = checked_options(option_texts(case.folder.path, "a"))
    with FolderReader(case.folder.path) as reader:
        found = selected(reader, read)
        log = found.logs[TOPIC]
        entries = list(untouched_entries(log, slice_of(log, read, found.expected)))
    assert sum(entry.message_count for entry in entries) == len(case.shown)
    (figures,) = estimate_compaction(case.folder.in_process(), case.folder.path)
    assert figures.messages_read == len(case.shown)


def begun(raw: RawClient, body: Any, **fields: Any) -> Any:
    """A command of a transaction's client, and its answer."""
    return raw.request(lambda number: commands.frame(body(request_id=number, **fields)))


def test_transactions_of_real_clients(tools: Any, tmp_path: Path) -> None:
    """A Kafka producer's and a Pulsar client's, committed and aborted, read beside their broker."""
    config = BrokerConfig(
        data_dir=tmp_path / "data", port=0, http_port=0, kafka_port=0,
        transaction_coordinator_enabled=True,
    )  # fmt: skip
    kinds = pb.BaseCommand
    with BrokerThread(config) as broker, RawClient.from_url(broker.service_url) as raw:
        settings = {"bootstrap.servers": broker.kafka_url, "transactional.id": "t"}
        producer = Producer(settings)
        producer.init_transactions(30)
        for ends in (producer.commit_transaction, producer.abort_transaction):
            producer.begin_transaction()
            producer.produce("k", ends.__name__.encode())
            producer.flush(30)
            ends(30)
        sender = raw.create_producer(TOPIC)
        for action in (pb.ABORT, pb.COMMIT):
            answer = begun(raw, pb.CommandNewTxn, txn_ttl_millis=60_000, tc_id=0)
            txn = {
                "txnid_most_bits": answer.txnid_most_bits,
                "txnid_least_bits": answer.txnid_least_bits,
            }
            adding = pb.CommandAddPartitionToTxn
            begun(raw, adding, partitions=[TOPIC], **txn)
            body = unbatched_message(b"%d" % action, publish_time_ms=1)
            sent = pb.CommandSend(producer_id=sender.producer_id, sequence_id=action, **txn)
            base = kinds(type=kinds.SEND, send=sent).SerializeToString()
            size = len(base) + 4 + len(body)
            raw.write(size.to_bytes(4, "big"), len(base).to_bytes(4, "big"), base, body)
            sender.receipts(1)
            begun(raw, pb.CommandEndTxn, txn_action=action, **txn)
        data = tmp_path / "data"
        assert values(tools.rows_of(data, topicsPattern=".*/k.*")) == [b"commit_transaction"]
        assert values(tools.rows_of(data, topic="a")) == [b"%d" % pb.COMMIT]
        assert len(tools.rows_of(data, topic="a", uncommitted="true")) == 2

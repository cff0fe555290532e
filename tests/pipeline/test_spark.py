"""The source and the audit in a real Spark session, against what was sent.

All tests that need the session are in this module (see `spark` in conftest).
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pulsar
import pytest
from kafka.record.memory_records import MemoryRecordsBuilder
from pyspark.errors import AnalysisException, PythonException

from pulsemark.finder import Finder
from pulsemark.ledger import CorruptEntryError, EntryKind, FolderReader, TopicNotFoundError
from pulsemark.ledger.local.segment.segment import as_segment
from pulsemark.metadata import BrokerEntryMetadata, Sender, StamperChain
from pulsemark.pipeline import (
    AuditLabels,
    OptionError,
    audit,
    local_session,
    run_job,
)
from pulsemark.pipeline.audit import AUDIT_COLUMNS, CLOCK_COLUMNS
from pulsemark.pipeline.columns import COLUMNS, DEFAULT_COLUMNS
from pulsemark.proto.broker_entry_pb2 import SourceFormat
from pulsemark.testing import running_broker
from pulsemark.testing.raw_messages import BatchMember, unbatched_message

pytestmark = pytest.mark.timeout(300)

ALL = ",".join(COLUMNS)
Row = dict[str, Any]


def rows_of(tools: Any, frame: Any) -> list[Row]:
    """All rows of a DataFrame, in its order."""
    found: list[Row] = tools.plain(frame.toArrow().to_pylist())
    return found


def read(spark: Any, folder: Any, topic: Any, **options: object) -> Any:
    """A DataFrame of one topic."""
    return (
        spark.read.format("pulsar-ledger")
        .options(topic=topic.name, **options)
        .load(str(folder.path))
    )


def test_all_columns_of_several_topics(spark: Any, folder: Any, tools: Any) -> None:
    """Every kind of entry of two partitions and one more topic, by names, pattern and parent."""
    topics = [folder.topic("p", partition=0), folder.topic("p", partition=1), folder.topic("q")]
    for rounds, topic in enumerate(topics):
        tools.fill(topic, folder.clock, rounds=rounds + 1)
        topic.ledger.roll()
        tools.fill(topic, folder.clock)
    truth = [row for topic in topics for row in topic.rows]
    by_pattern = spark.read.format("pulsar-ledger").options(topicsPattern="p.*|q", columns=ALL)
    assert rows_of(tools, by_pattern.load(str(folder.path))) == truth
    by_names = spark.read.format("pulsemark").options(topics="q,p", columns=ALL, minPartitions=7)
    frame = by_names.option("path", str(folder.path)).load()
    assert frame.rdd.getNumPartitions() == 7
    assert rows_of(tools, frame) == truth


def test_tags_are_found_and_grouped_by(spark: Any, folder: Any) -> None:
    """A query can group by a tag, over entries with it and without it."""
    topic = folder.topic("a")
    for region in ("eu", "us", "eu", ""):
        topic.ledger.stampers = StamperChain.from_names(["index", "property-tags:region"])
        properties = {"region": region} if region else {}
        topic.ledger.append(unbatched_message(b"x", publish_time_ms=1, properties=properties))
    topic.ledger.append(b"", message_count=0).commit.wait(10)
    frame = read(spark, folder, topic, columns="__tags")
    counts = frame.groupBy(frame["__tags"]["region"]).count().collect()
    assert sorted((row[0] or "", row[1]) for row in counts) == [("", 1), ("eu", 2), ("us", 1)]


def test_a_plain_read_has_the_usual_columns(spark: Any, folder: Any) -> None:
    """Names and types are those that pulsar-spark's users know, and ours after the same fashion."""
    topic = folder.topic("a")
    topic.single(b"x")
    frame = read(spark, folder, topic)
    assert frame.columns == list(DEFAULT_COLUMNS)
    assert {field.name: field.dataType.simpleString() for field in frame.schema} == {
        name: COLUMNS[name].ddl for name in DEFAULT_COLUMNS
    }


def test_a_user_s_own_schema_narrows_the_read(spark: Any, folder: Any) -> None:
    """Fields are columns of ours, in any order; another type or name is an error that names it."""
    topic = folder.topic("a")
    topic.single(b"x", key="k")
    reader = spark.read.format("pulsemark").option("topic", topic.name)
    chosen = reader.schema("__index bigint, value binary").load(str(folder.path))
    assert chosen.collect() == [(0, b"x")]
    for wrong in ("value string", "offset bigint"):
        with pytest.raises(AnalysisException, match=f"OptionError.*schema = '{wrong.split()[0]}'"):
            reader.schema(wrong).load(str(folder.path)).collect()


def test_ranges_by_index_and_by_time(spark: Any, folder: Any, tools: Any) -> None:
    """Half-open; a time means the first entry at or after it, as a seek does."""
    topic = folder.topic("a")
    tools.fill(topic, folder.clock, rounds=2)
    first_ms, last_ms = 1_700_000_000_000, folder.clock.now_ms()
    middle_ms = (first_ms + last_ms) // 2
    finder = Finder(topic.ledger)

    def index_at(time_ms: int) -> int:
        found = finder.by_time(time_ms)
        return int(found.first_index)

    moment = datetime.fromtimestamp(middle_ms / 1000, UTC).isoformat()
    for options, first, end in (
        ({"startingOffsets": 17, "endingOffsets": 60}, 17, 60),
        ({"startingOffsets": 17, "endingOffsets": "latest", "minPartitions": 3}, 17, 10**9),
        ({"startingTime": middle_ms}, index_at(middle_ms), 10**9),
        ({"endingTime": moment}, 0, index_at(middle_ms)),
        ({"startingTime": last_ms + 1}, 10**9, 10**9),
        ({"startingOffsets": "latest"}, 10**9, 10**9),
        ({"startingTime": middle_ms, "endingOffsets": "earliest"}, 0, 0),
    ):
        frame = read(spark, folder, topic, columns="__index,value", **options)
        truth = [row for row in topic.rows if first <= row["__index"] < end]
        assert rows_of(tools, frame) == tools.only(truth, ["__index", "value"])


def test_a_frame_is_a_snapshot_of_a_live_folder(spark: Any, folder: Any, tools: Any) -> None:
    """Growth is seen by the next load, never by a frame that is there already."""
    topic = folder.topic("a")
    tools.fill(topic, folder.clock)
    before = list(topic.rows)
    early = read(spark, folder, topic)
    assert early.count() == len(before)
    tools.fill(topic, folder.clock)
    topic.ledger.roll()
    tools.fill(topic, folder.clock)
    late = read(spark, folder, topic)
    assert rows_of(tools, late) == tools.only(topic.rows, DEFAULT_COLUMNS)
    assert rows_of(tools, early) == tools.only(before, DEFAULT_COLUMNS)
    folder.store.close()
    assert early.count() == len(before)


def test_a_filter_leaves_the_frame_as_it_was(spark: Any, folder: Any) -> None:
    """The count after a filtered count is the whole count again."""
    topic = folder.topic("a")
    topic.batch([BatchMember(payload=b"%d" % n) for n in range(100)])
    frame = read(spark, folder, topic)
    assert frame.count() == 100
    assert frame.filter("__index < 10").count() == 10
    assert frame.count() == 100


def test_nothing_to_read_is_no_row(spark: Any, folder: Any) -> None:
    """A pattern that nothing matches, and a topic that holds control entries only."""
    topic = folder.topic("a")
    topic.control()
    assert read(spark, folder, topic).collect() == []
    pattern = spark.read.format("pulsemark").option("topicsPattern", "nobody.*")
    assert pattern.load(str(folder.path)).collect() == []


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"startingTime": "soon"}, "OptionError: option startingTime = 'soon'"),
        ({"colour": "red"}, "OptionError: option colour = 'red'"),
        ({"topic": "absent"}, "TopicNotFoundError: .*absent"),
        ({"startingOffsets": "999"}, r"DataLossError: .*messages \[1, 999\) are missing"),
        ({"path": "/nowhere"}, "ForeignFolderError: /nowhere"),
    ],
)
def test_errors_reach_the_driver_by_name(
    spark: Any, folder: Any, options: dict[str, str], text: str
) -> None:
    """Spark wraps them; their class and their text are in its message."""
    topic = folder.topic("a")
    topic.single(b"x")
    given = {"path": str(folder.path), "topic": topic.name, **options}
    with pytest.raises(AnalysisException, match=text):
        spark.read.format("pulsar-ledger").options(**given).load().collect()


def rot(folder: Any, needle: bytes) -> None:
    """Flip a bit of the first place where these bytes stand in a segment."""
    for path in sorted((folder.path / "ledgers").glob("*.log")):
        data = bytearray(path.read_bytes())
        at = data.find(needle)
        if at >= 0:
            data[at] ^= 1
            path.write_bytes(data)
            return
    pytest.fail(f"{needle!r} is in no segment")


def test_rot_is_an_error_or_left_out(spark: Any, folder: Any) -> None:
    """failOnDataLoss names the messages that are gone; without it all others are read."""
    topic = folder.topic("a")
    for n in range(5):
        topic.single(b"message %d" % n)
    folder.store.close()
    rot(folder, b"message 2")
    with pytest.raises(PythonException, match=r"DataLossError: .*\[2, 3\).*checksum"):
        read(spark, folder, topic).collect()
    for columns in ("__index", "__index,value"):
        lenient = read(spark, folder, topic, columns=columns, failOnDataLoss="false")
        assert [row[0] for row in lenient.collect()] == [0, 1, 3, 4]


def test_an_entry_that_does_not_open_is_an_error_or_left_out(spark: Any, folder: Any) -> None:
    """A producer's broken batch is named by its position."""
    topic = folder.topic("a")
    topic.single(b"x")
    topic.single(b"broken", num_messages_in_batch=1)
    topic.single(b"y")
    with pytest.raises(PythonException, match=r"DecodeError: .*entry \(\d+, 1\) cannot be decoded"):
        read(spark, folder, topic).collect()
    lenient = read(spark, folder, topic, columns="value", failOnDataLoss="false")
    assert lenient.collect() == [(b"x",), (b"y",)]


# The audit


def audit_truth(topics: Sequence[Any], bucket_ms: int) -> list[Row]:
    """Counts by topic and bucket, entry by entry through the ledger's reader."""
    buckets: dict[tuple[str, int], Row] = {}
    for topic in topics:
        start = topic.ledger.first_position
        for entry in topic.ledger.read(start, max_entries=10**6, max_bytes=1 << 30):
            key = (topic.name, entry.append_time_ms // bucket_ms)
            row = buckets.setdefault(
                key, {"count": 0, "control_count": 0, "bytes": 0, "indexes": []}
            )
            kind = "control_count" if entry.kind is EntryKind.CONTROL else "count"
            row[kind] += entry.message_count
            row["bytes"] += len(entry.stored)
            row["indexes"] += range(entry.first_index, entry.index + 1)
    return [
        {
            "topic": name,
            "bucket_start": datetime.fromtimestamp(number * bucket_ms / 1000, UTC),
            "bucket_end": datetime.fromtimestamp((number + 1) * bucket_ms / 1000, UTC),
            "count": row["count"],
            "control_count": row["control_count"],
            "bytes": row["bytes"],
            "min_index": min(row["indexes"]),
            "max_index": max(row["indexes"]),
            "missing": 0,
        }
        for (name, number), row in sorted(buckets.items())
    ]


def test_the_audit_counts_what_is_there(spark: Any, folder: Any, tools: Any) -> None:
    """By topic and bucket, control entries apart, stamped or not, merged from several tasks."""
    topics = [folder.topic("a"), folder.topic("b")]
    for topic in topics:
        tools.fill(topic, folder.clock, rounds=3)
    truth = audit_truth(topics, 1000)
    frame = audit(spark, folder.path, bucket="1 second", min_partitions=5)
    found = frame.toArrow().to_pylist()
    assert len(found) > 8
    assert [{name: row[name] for name in truth[0]} for row in found] == truth
    for name in ("missing_before", "missing_after", "doubtful_count"):
        assert {row[name] for row in found} == {0}
    assert {row["loss"] for row in found} == {None}
    assert tuple(frame.columns) == AUDIT_COLUMNS


def test_the_audit_opens_no_payload(spark: Any, folder: Any) -> None:
    """With every payload destroyed it says the same; with a head destroyed it misses that one."""
    topic = folder.topic("a")
    for n in range(6):
        folder.clock.advance(by_ms=60_000)
        topic.batch([BatchMember(payload=b"poison %d" % n)] * 10)
        topic.single(b"x" * 50_000)
    columns = ("count", "min_index", "max_index", "missing", "missing_before", "bytes")
    sound = audit(spark, folder.path).select(*columns).collect()
    folder.store.close()
    for n in range(6):
        rot(folder, b"poison %d" % n)
    assert audit(spark, folder.path).select(*columns).collect() == sound
    with FolderReader(folder.path) as reader:
        log = reader.log(topic.name)
        assert log.first_position is not None
        positions = [log.first_position]
        for _ in range(11):
            positions.append(log.next_position(positions[-1]))
        segment = as_segment(log.segments()[0])
        with pytest.raises(CorruptEntryError):
            log.read(positions[0])
        data = bytearray(segment.path.read_bytes())
        # The heads of the batch in the third bucket, and of all of the fifth bucket.
        for row in (4, 8, 9):
            data[segment.row(row).offset + 20] ^= 0xFF
        segment.path.write_bytes(data)
    rows = audit(spark, folder.path).select("missing", "missing_before", "count").collect()
    assert [tuple(row) for row in rows] == [
        (0, 0, 11),
        (0, 0, 11),
        (0, 10, 1),
        (0, 0, 11),
        (0, 11, 11),
    ]
    assert sum(row["count"] for row in rows) == 66 - 10 - 11


def test_the_audit_finds_gaps_inside_a_bucket(spark: Any, folder: Any) -> None:
    """missing = max - min + 1 - count."""
    topic = folder.topic("a")
    for n in range(5):
        topic.batch([BatchMember(payload=b"%d" % n)] * 4)
    folder.store.close()
    with FolderReader(folder.path) as reader:
        segment = as_segment(reader.log(topic.name).segments()[0])
        data = bytearray(segment.path.read_bytes())
        data[segment.row(2).offset + 20] ^= 0xFF
    segment.path.write_bytes(data)
    (row,) = audit(spark, folder.path).collect()
    assert (row["count"], row["min_index"], row["max_index"], row["missing"]) == (16, 0, 19, 4)


def test_the_audit_finds_what_is_lost_at_the_edges(spark: Any, folder: Any) -> None:
    """First and last records, the first and the last ledger file, one in the middle, a topic."""
    topics = [folder.topic(name) for name in ("ends", "first", "last", "middle", "none", "whole")]
    for number in range(3):
        folder.clock.advance(by_ms=60_000)
        for topic in topics:
            for _ in range(2):
                topic.batch([BatchMember(payload=b"%d" % number)] * 5)
            if topic is not topics[-2]:
                topic.ledger.roll()
    with FolderReader(folder.path) as reader:
        files = {
            t.name: [as_segment(s).path for s in reader.log(t.name).segments()] for t in topics
        }
        ends = [as_segment(s) for s in reader.log(topics[0].name).segments()]
        offsets = [(ends[0].path, ends[0].row(0).offset), (ends[2].path, ends[2].row(1).offset)]
    folder.store.close()
    for path, offset in offsets:
        data = bytearray(path.read_bytes())
        data[offset + 20] ^= 0xFF
        path.write_bytes(data)
    _, first, last, middle, none, _ = (files[topic.name] for topic in topics)
    for path in (first[0], last[2], middle[1], none[0]):
        path.unlink()
    found: dict[str, list[tuple[object, ...]]] = {}
    for row in audit(spark, folder.path).collect():
        name = row["topic"].rpartition("/")[2]
        figures = ("count", "missing", "missing_before", "missing_after")
        lost = row["loss"] is not None
        found.setdefault(name, []).append((*(row[each] for each in figures), lost))
    assert found == {
        "ends": [(5, 0, 5, 0, False), (10, 0, 0, 0, False), (5, 0, 0, 5, False)],
        "first": [(10, 0, 0, 0, True), (10, 0, 0, 0, True)],
        "last": [(10, 0, 0, 0, True), (10, 0, 0, 0, True)],
        "middle": [(10, 0, 0, 0, True), (10, 0, 10, 0, True)],
        "none": [(0, 0, 0, None, True)],
        "whole": [(10, 0, 0, 0, False)] * 3,
    }


def test_the_audit_of_a_topic_without_an_entry_left(spark: Any, folder: Any) -> None:
    """One row without a bucket says how many messages there should be."""
    topic = folder.topic("a")
    topic.batch([BatchMember(payload=b"x")] * 5)
    folder.store.close()
    with FolderReader(folder.path) as reader:
        segment = as_segment(reader.log(topic.name).segments()[0])
        data = bytearray(segment.path.read_bytes())
        data[segment.row(0).offset + 20] ^= 0xFF
    segment.path.write_bytes(data)
    (row,) = audit(spark, folder.path).collect()
    figures = ("bucket_start", "count", "min_index", "missing", "missing_before", "missing_after")
    assert [row[each] for each in figures] == [None, 0, None, 0, 0, 5]


def test_the_audit_of_a_time_range_and_its_labels(spark: Any, folder: Any) -> None:
    """Only entries between two moments; the labels say where they were counted."""
    topic, other = folder.topic("a"), folder.topic("b")
    for _ in range(10):
        folder.clock.advance(by_ms=60_000)
        topic.single(b"x")
        other.single(b"y")
    start_ms = 1_700_000_000_000
    frame = audit(
        spark,
        str(folder.path),
        ["a"],
        bucket="5 minutes",
        starting_time=start_ms + 3 * 60_000,
        ending_time=start_ms + 9 * 60_000,
        labels=AuditLabels(host="h", datacenter="d", application="app"),
    )
    rows = frame.collect()
    assert sum(row["count"] for row in rows) == 6
    assert {row["topic"] for row in rows} == {topic.name}
    assert {(row["tier"], row["host"], row["datacenter"], row["application"]) for row in rows} == {
        ("broker", "h", "d", "app")
    }
    assert {(row["bucket_end"] - row["bucket_start"]).total_seconds() for row in rows} == {300}


def test_the_audit_refuses_bad_arguments_itself(spark: Any, folder: Any) -> None:
    """As typed errors, not as Spark's."""
    folder.topic("a").single(b"x")
    with pytest.raises(OptionError, match="startingTime = 'x'"):
        audit(spark, folder.path, starting_time="x")
    with pytest.raises(OptionError, match="bucket = 'often'"):
        audit(spark, folder.path, bucket="often")
    with pytest.raises(TopicNotFoundError, match="nobody"):
        audit(spark, folder.path, "nobody")


def test_a_job_s_topics_are_names_and_not_lists(spark: Any, folder: Any) -> None:
    """A comma is a character of a name; a name that is not there is an error of one line."""
    folder.topic("a,b").single(b"x")
    folder.topic("a").single(b"y")
    out, err = io.StringIO(), io.StringIO()
    assert (
        run_job("audit", ["--data-dir", str(folder.path), "--topic", "a,b"], out=out, err=err) == 0
    )
    assert json.loads(out.getvalue())["topic"] == "persistent://public/default/a,b"
    assert (
        run_job("audit", ["--data-dir", str(folder.path), "--topic", "b,a"], out=out, err=err) == 2
    )
    assert err.getvalue().count("\n") == 1
    assert "default/b,a" in err.getvalue()


def test_a_job_that_spark_gives_up_is_one_line(spark: Any, folder: Any, tmp_path: Path) -> None:
    """With the worker's own error; exit code 1, and nothing counts."""
    folder.topic("a").raw(b"not a message")
    folder.store.close()
    out, err = io.StringIO(), io.StringIO()
    arguments = [str(tmp_path / "lake"), "--data-dir", str(folder.path)]
    assert run_job("offload", arguments, out=out, err=err) == 1
    assert err.getvalue().count("\n") == 1, err.getvalue()
    assert "DecodeError: persistent://public/default/a: entry" in err.getvalue()
    assert not [*(tmp_path / "lake").rglob("*.parquet")]


def test_the_clock_errors_of_producers(spark: Any, folder: Any) -> None:
    """By producer and bucket: the quantiles that plain Python finds in what was sent."""
    topic = folder.topic("a")
    sent: dict[tuple[int, str], list[int]] = {}
    for number in range(200):
        folder.clock.advance(by_ms=1_000)
        name, lead_ms = ("fast", 60_000 + number) if number % 2 else ("slow", -5_000)
        lead_ms -= 90_000 if number in (51, 150) else 0
        now_ms = folder.clock.now_ms()
        topic.single(b"x", publish_time_ms=now_ms + lead_ms, producer_name=name)
        sent.setdefault((now_ms // 60_000, name), []).append(lead_ms)
    topic.ledger.stampers = StamperChain()
    topic.single(b"without stamp", publish_time_ms=1, producer_name="stampless")
    audited = audit(spark, folder.path, by="producer", clock_errors=True)
    assert tuple(audited.columns[-3:]) == CLOCK_COLUMNS
    rows = {
        (int(row["bucket_start"].timestamp()) // 60, row["producer_name"]): row
        for row in audited.collect()
    }
    (without,) = [row for (_, name), row in rows.items() if name == "stampless"]
    assert (without["count"], without["clock_error_most_ms"]) == (1, None)
    assert {key for key in rows if key[1] != "stampless"} == set(sent)
    for key, leads in sent.items():
        row, ordered, sizes = rows[key], sorted(leads), sorted(map(abs, leads))
        assert row["count"] == len(leads)
        assert row["clock_error_p50_ms"] == ordered[-(-len(leads) // 2) - 1]
        assert row["clock_error_p99_ms"] == sizes[-(-len(leads) * 99 // 100) - 1]
        assert row["clock_error_most_ms"] == sizes[-1]


def test_the_clock_errors_of_kafkas_producers(spark: Any, folder: Any) -> None:
    """By the stamp's send time; without it nothing is known, and the messages count as well."""
    topic = folder.topic("a")
    set_of_two = BrokerEntryMetadata(
        message_count=2, source_format=SourceFormat.SOURCE_KAFKA_MAGIC_2
    )
    for name, stampers in (("told", ["producer", "send-time"]), ("untold", ["producer"])):
        topic.ledger.stampers = StamperChain.from_names(["broker-time", "index", *stampers])
        for lead_ms in (-7, 300, 40):
            builder = MemoryRecordsBuilder(2, 0, 1 << 20)
            for _ in range(2):
                builder.append(folder.clock.now_ms() + lead_ms, b"k", b"v", [])
            builder.close()
            topic.ledger.append(
                bytes(builder.buffer()), message_count=2, base=set_of_two, sender=Sender(name)
            ).commit.wait(60)
    rows = {
        row["producer_name"]: (row["count"], *(row[column] for column in CLOCK_COLUMNS))
        for row in audit(spark, folder.path, by="producer", clock_errors=True).collect()
    }
    assert rows == {"told": (6, 40, 300, 300), "untold": (6, None, None, None)}


def test_an_offload_is_a_table_for_spark(spark: Any, folder: Any, tmp_path: Path) -> None:
    """The command copies and verifies; Spark reads the files as one table."""
    topics = [folder.topic("a"), folder.topic("b")]
    for topic in topics:
        for number in range(30):
            topic.batch([BatchMember(payload=b"%d-%d" % (number, place)) for place in range(3)])
            folder.clock.advance(by_ms=10 * 60_000)
        topic.ledger.roll()
        topic.single(b"last")
    truth = sorted((row["__topic"], row["__index"], row["value"]) for t in topics for row in t.rows)
    target = tmp_path / "copy"
    arguments = ["--data-dir", str(folder.path), str(target), "--json"]
    out, err = io.StringIO(), io.StringIO()
    assert run_job("offload", [*arguments, "--verify"], out=out, err=err) == 0, err.getvalue()
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [(line["topic"], line["rows"]) for line in lines] == [(t.name, 91) for t in topics]
    table = spark.read.parquet(str(target))
    assert sorted(map(tuple, table.select("__topic", "__index", "value").collect())) == truth
    folder.store.close()
    next(target.glob("topic=*/hour=*/*.parquet")).unlink()
    assert run_job("offload", [*arguments, "--verify"], out=out, err=err) == 1
    assert "is missing" in err.getvalue().splitlines()[-1]


def test_typed_values_and_grpc(spark: Any, tmp_path: Path) -> None:
    """A broker's topic with a schema, while it runs: typed, by entry, and over its gRPC service."""
    definition = {
        "type": "record", "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "items", "type": {"type": "array", "items": "string"}, "default": []},
        ],
    }  # fmt: skip
    schema = pulsar.schema.AvroSchema(None, schema_definition=definition)
    with running_broker(data_dir=tmp_path, http_port=None, grpc_port=0) as broker:
        client = pulsar.Client(broker.service_url)
        producer = client.create_producer("orders", schema=schema)
        for number in range(100):
            producer.send_async({"id": number, "at": 1000 * number, "items": ["x"] * number}, None)
        producer.flush()
        client.close()
        reader = spark.read.format("pulsemark").options(topic="orders", columns="value,__index")
        typed = reader.option("valueSchema", "latest").load(str(tmp_path))
        assert typed.select("value").schema.simpleString() == (
            "struct<value:struct<id:bigint,at:timestamp,items:array<string>>>"
        )
        rows = typed.selectExpr("value.id", "unix_millis(value.at)", "size(value.items)").collect()
        assert [tuple(row) for row in rows] == [(n, 1000 * n, n) for n in range(100)]
        target = broker.grpc_url.rpartition("/")[2]
        options = {"topic": "orders", "columns": "value,__index", "grpcUrl": f"grpc://{target}"}
        remote = spark.read.format("pulsemark").options(**options).load()
        plain = spark.read.format("pulsemark").options(topic="orders", columns="value,__index")
        assert remote.collect() == plain.load(str(tmp_path)).collect()


def test_the_session_is_one(spark: Any) -> None:
    """A second call hands back the session that runs, in UTC."""
    assert local_session() is spark
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"

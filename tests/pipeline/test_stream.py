"""The stream's reader in this process, without Spark's JVM: offsets, limits and losses."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pulsemark.ledger import TopicNotFoundError
from pulsemark.metadata import StamperChain
from pulsemark.pipeline.errors import DataLossError, OptionError
from pulsemark.pipeline.options import StreamOptions
from pulsemark.pipeline.source import LedgerSource
from pulsemark.pipeline.stream import start_text
from pulsemark.testing.raw_messages import BatchMember, unbatched_message


class Query:
    """What Spark does with a stream's reader: offsets go through JSON, as in a checkpoint."""

    def __init__(self, tools: Any, folder: Any, **options: object) -> None:
        texts = {name: str(value) for name, value in options.items()}
        texts = {"startingOffsets": "earliest", "columns": "__topic,__index", **texts}
        place = {} if "grpcUrl" in texts else {"path": str(folder.path)}
        source = LedgerSource({**place, **texts})
        names = StreamOptions.parse(source.options).read.columns
        self._make: Callable[[], Any] = lambda: source.streamReader(tools.spark_schema(names))
        self._tools = tools
        self.reader: Any = self._make()
        self.offset = self.reader.initialOffset()
        self.batches: list[list[Any]] = []

    def restart(self) -> None:
        """A new driver process: only the offset is kept."""
        self.reader.stop()
        self.reader = self._make()

    def step(self) -> list[Any]:
        """One micro-batch; the rows as tuples."""
        limit = self.reader.getDefaultReadLimit()
        end = json.loads(json.dumps(self.reader.latestOffset(dict(self.offset), limit)))
        rows = self.between(self.offset, end) if end != self.offset else []
        self.offset = end
        self.batches.append(rows)
        return rows

    def between(self, start: Any, end: Any) -> list[Any]:
        """The rows of a micro-batch with these offsets."""
        return [
            tuple(row.values())
            for part in self.reader.partitions(start, end)
            for batch in self.reader.read(part)
            for row in self._tools.plain(batch.to_pylist())
        ]

    def run(self, steps: int = 200) -> list[Any]:
        """Micro-batches until there is nothing more; all their rows."""
        rows: list[Any] = []
        for _ in range(steps):
            before = self.offset
            rows += self.step()
            if self.offset == before:
                return rows
        raise AssertionError(f"the stream has not come to its end after {steps} micro-batches")


def fill(topic: Any, count: int) -> None:
    """Singles and batches, `count` messages in all."""
    while count > 0:
        size = min(count, 3)
        topic.batch([BatchMember(payload=b"m" * 40) for _ in range(size)])
        count -= size


def truth(*topics: Any) -> list[Any]:
    """The (topic, index) pairs of all messages, by topic."""
    return [(row["__topic"], row["__index"]) for topic in topics for row in topic.rows]


@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"maxOffsetsPerTrigger": 1},
        {"maxOffsetsPerTrigger": 7},
        {"maxBytesPerTrigger": 1},
        {"maxBytesPerTrigger": 700},
        {"maxBytesPerTrigger": 900, "maxOffsetsPerTrigger": 4},
    ],
)
def test_every_message_once_whatever_the_limits(
    folder: Any, tools: Any, limits: dict[str, int]
) -> None:
    """Micro-batches divide the messages, also of growing and rolled topics and over restarts."""
    topics = [folder.topic("a"), folder.topic("b"), folder.topic("c")]
    for number, topic in enumerate(topics):
        fill(topic, 4 + 9 * number)
    query = Query(tools, folder, topicsPattern=".*", **limits)
    rows = query.step() + query.step()
    query.restart()
    topics[0].ledger.roll()
    topics[0].control()
    fill(topics[0], 11)
    rows += query.run()
    fill(topics[2], 5)
    rows += query.run()
    assert sorted(rows) == truth(*topics)
    assert len(rows) == len(set(rows))


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6), limit=st.integers(1, 30))
def test_a_limit_is_kept_and_every_topic_goes_on(
    tmp_path_factory: Any, tools: Any, sizes: list[int], limit: int
) -> None:
    """No micro-batch has more messages than the limit, and all topics reach their ends."""
    folder = tools.Folder(tmp_path_factory.mktemp("stream") / "data")
    topics = [folder.topic(f"t{number}") for number in range(len(sizes))]
    for topic, size in zip(topics, sizes, strict=True):
        fill(topic, size)
    query = Query(tools, folder, topicsPattern=".*", maxOffsetsPerTrigger=limit)
    query.run(steps=sum(sizes) + 2)
    assert [len(rows) for rows in query.batches if len(rows) > limit] == []
    assert sorted(row for rows in query.batches for row in rows) == truth(*topics)
    folder.store.close()


def test_a_large_topic_does_not_delay_small_ones(folder: Any, tools: Any) -> None:
    """Topics with little to read are read to their ends in the first micro-batch."""
    large, small = folder.topic("a-large"), folder.topic("small")
    fill(large, 300)
    fill(small, 6)
    query = Query(tools, folder, topicsPattern=".*", maxOffsetsPerTrigger=30)
    rows = query.step()
    assert len(rows) == 30
    assert [row for row in rows if row[0] == small.name] == truth(small)


def test_bytes_are_counted_as_stored(folder: Any, tools: Any) -> None:
    """A micro-batch has whole entries of at most the limit, and one entry if that is larger."""
    topic = folder.topic("a")
    topic.single(b"x" * 50_000)
    for _ in range(10):
        topic.single(b"y" * 1_000)
    query = Query(tools, folder, topic="a", maxBytesPerTrigger=4_000)
    query.run()
    assert [len(rows) for rows in query.batches] == [1, 3, 3, 3, 1, 0][: len(query.batches)]
    assert sum(len(rows) for rows in query.batches) == 11


def test_the_same_offsets_are_the_same_rows(folder: Any, tools: Any) -> None:
    """A restarted query that plans its last micro-batch again gets its rows again."""
    topic = folder.topic("a")
    fill(topic, 20)
    query = Query(tools, folder, topic="a", maxOffsetsPerTrigger=8)
    query.step()
    start = query.offset
    rows = query.step()
    end = query.offset
    fill(topic, 20)
    topic.ledger.roll()
    query.restart()
    assert query.between(start, end) == rows


def test_where_a_stream_begins(folder: Any, tools: Any) -> None:
    """At the end by default, as from Kafka; else at an index or a time."""
    topic = folder.topic("a")
    fill(topic, 4)
    folder.clock.advance(by_ms=60_000)
    time_ms = folder.clock.now_ms()
    fill(topic, 4)
    for options, first in (
        ({"startingOffsets": "latest"}, 8),
        ({"startingOffsets": "3"}, 3),
        ({"startingOffsets": "earliest"}, 0),
        ({"startingOffsets": '{"a": 5}'}, 5),
    ):
        query = Query(tools, folder, topic="a", **options)
        assert query.offset[topic.name]["index"] == first
    read = {"path": str(folder.path), "topic": "a", "columns": "__index"}
    for name in ("startingTime", "startingTimestamp"):
        source = LedgerSource({**read, name: str(time_ms)})
        reader = source.streamReader(tools.spark_schema(["__index"]))
        assert reader.initialOffset()[topic.name]["index"] == 4


def test_a_log_line_says_where_a_new_query_starts(
    folder: Any, tools: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Each topic with its index; a warning if earlier messages are skipped, and once a query."""
    fill(folder.topic("a"), 7)
    query = Query(tools, folder, topic="a", startingOffsets="latest")
    query.restart()
    query.step()
    (line,) = [each for each in caplog.records if "new stream" in each.message]
    assert line.levelno == logging.WARNING
    assert line.message == "the new stream starts in persistent://public/default/a at index 7"
    caplog.clear()
    caplog.set_level(logging.INFO)
    Query(tools, folder, topic="a", startingOffsets="earliest")
    assert [(each.levelno, each.message.rpartition(" ")[2]) for each in caplog.records] == [
        (logging.INFO, "0")
    ]


def test_a_log_line_about_many_topics_is_short() -> None:
    """Five topics are named, the others are counted; without topics the line says so."""
    offset = {f"t{number}": {"index": number, "id": 1} for number in range(7)}
    assert start_text(offset).endswith("t4 at index 4 and 2 more")
    assert start_text({}).endswith("no topic yet")


def test_new_topics_are_read_from_their_first_message(folder: Any, tools: Any) -> None:
    """A topic that appears while a stream from `latest` runs is not a part of its past."""
    old = folder.topic("old")
    fill(old, 5)
    query = Query(tools, folder, topicsPattern=".*", startingOffsets="latest")
    assert query.run() == []
    new = folder.topic("new")
    fill(new, 5)
    assert query.run() == truth(new)


def test_available_now_ends_where_it_began(folder: Any, tools: Any) -> None:
    """Neither entries nor topics that come later are read, and the query comes to its end."""
    topic = folder.topic("a")
    fill(topic, 10)
    query = Query(tools, folder, topicsPattern=".*", maxOffsetsPerTrigger=4)
    query.reader.prepareForTriggerAvailableNow()
    rows = query.step()
    fill(topic, 10)
    fill(folder.topic("later"), 3)
    rows += query.run()
    assert rows == truth(topic)[:10]


def test_a_minimum_waits_and_a_delay_ends_the_wait(folder: Any, tools: Any) -> None:
    """Less than minOffsetsPerTrigger is not read before maxTriggerDelay is over."""
    topic = folder.topic("a")
    fill(topic, 3)
    waiting = Query(tools, folder, topic="a", minOffsetsPerTrigger=5, maxTriggerDelay="1d")
    assert waiting.step() == []
    fill(topic, 2)
    assert waiting.step() == truth(topic)
    impatient = Query(tools, folder, topic="a", minOffsetsPerTrigger=9, maxTriggerDelay="0")
    assert impatient.step() == truth(topic)


def test_a_trigger_without_limits_reads_everything(folder: Any, tools: Any) -> None:
    """Spark may ask for all that is available, whatever the options say (Trigger.Once)."""
    topic = folder.topic("a")
    fill(topic, 10)
    query = Query(tools, folder, topic="a", maxOffsetsPerTrigger=1)
    assert query.reader.latestOffset(query.offset, ReadAllAvailable())[topic.name]["index"] == 10
    assert query.reader.reportLatestOffset()[topic.name]["index"] == 10


def test_the_progress_has_each_topic_s_lag(folder: Any, tools: Any) -> None:
    """In messages, and in broker time between the query's last message and the topic's."""
    one, two = folder.topic("a"), folder.topic("b")
    for _ in range(5):
        folder.clock.advance(by_ms=1_500)
        one.single(b"x")
    two.single(b"y")
    with tools.serving(folder.path) as target:
        for place in ({}, {"grpcUrl": f"grpc://{target}"}):
            query = Query(tools, folder, topics="a,b", maxOffsetsPerTrigger=2, **place)
            found = []
            for _ in range(4):
                query.step()
                progress = query.reader.reportLatestOffset()
                names = "index", "messagesBehindLatest", "secondsBehindLatest"
                found.append([tuple(progress[t.name][n] for n in names) for t in (one, two)])
            assert found == [
                [(5, 3, 4.5), (1, 1, 0.0)],
                [(5, 2, 3.0), (1, 0, 0.0)],
                [(5, 0, 0.0), (1, 0, 0.0)],
                [(5, 0, 0.0), (1, 0, 0.0)],
            ]


def test_trimmed_before_it_was_read_is_a_loss(folder: Any, tools: Any) -> None:
    """An error by default; else the stream goes on with the first message that is left."""
    topic = folder.topic("a")
    fill(topic, 10)
    topic.ledger.roll()
    strict = Query(tools, folder, topic="a", maxOffsetsPerTrigger=2)
    loose = Query(tools, folder, topic="a", failOnDataLoss="false")
    strict.step()
    fill(topic, 4)
    topic.ledger.trim(topic.ledger.segments()[-1].first_position)
    with pytest.raises(DataLossError, match="trimmed"):
        strict.run()
    assert loose.run() == truth(topic)[10:]


def test_a_topic_that_is_created_again_is_another_one(folder: Any, tools: Any) -> None:
    """An error by default; else its messages are read from the first one on."""
    fill(folder.topic("a"), 5)
    strict = Query(tools, folder, topic="a")
    loose = Query(tools, folder, topic="a", failOnDataLoss="false")
    assert len(strict.run()) == len(loose.run()) == 5
    folder.store.delete_topic("persistent://public/default/a")
    again = folder.topic("a")
    fill(again, 7)
    with pytest.raises(DataLossError, match="created again"):
        strict.step()
    assert loose.run() == truth(again)


def test_a_deleted_topic_is_a_loss(folder: Any, tools: Any) -> None:
    """An error by default; else the stream goes on with the others."""
    gone, kept = folder.topic("gone"), folder.topic("kept")
    fill(gone, 5)
    fill(kept, 5)
    strict = Query(tools, folder, topicsPattern=".*")
    loose = Query(tools, folder, topicsPattern=".*", failOnDataLoss="false")
    strict.run()
    loose.run()
    folder.store.delete_topic(gone.name)
    fill(kept, 3)
    with pytest.raises(DataLossError, match=r"gone: messages from 5 on .*deleted"):
        strict.step()
    assert loose.run() == truth(kept)[5:]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endingOffsets": "5"}, "endingOffsets = '5': a stream has no end"),
        ({"endingTime": "1700000000000"}, "a stream has no end"),
        ({"endingOffsetsByTimestamp": '{"a": 1700000000000}'}, "a stream has no end"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger = '0': is not between 1"),
        ({"maxBytesPerTrigger": "1k"}, "maxBytesPerTrigger = '1k': is not a whole number"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay = 'soon': is not a duration"),
        (
            {"maxOffsetsPerTrigger": "2", "minOffsetsPerTrigger": "3"},
            "exceeds maxOffsetsPerTrigger",
        ),
        ({"maxFilesPerTrigger": "2"}, "maxFilesPerTrigger = '2': is not an option"),
    ],
)
def test_nonsense_is_refused_by_name(folder: Any, options: dict[str, str], message: str) -> None:
    """An option that a stream cannot have is an error that names it."""
    with pytest.raises(OptionError, match=message):
        StreamOptions.parse({"path": str(folder.path), "topic": "a", **options})


def test_a_missing_topic_is_an_error(folder: Any, tools: Any) -> None:
    """A stream of a topic that does not exist fails when it begins, with the name."""
    with pytest.raises(TopicNotFoundError, match="public/default/nope"):
        Query(tools, folder, topic="nope")


def test_batch_reads_do_not_take_a_stream_s_options(folder: Any, tools: Any) -> None:
    """An option that would have no effect is refused."""
    folder.topic("a").single(b"x")
    with pytest.raises(OptionError, match="maxOffsetsPerTrigger = '5': is for readStream only"):
        tools.rows_of(folder.path, topic="a", maxOffsetsPerTrigger=5)


def test_a_thousand_topics_are_few_tasks(tools: Any, folder: Any) -> None:
    """A micro-batch over all of them has all their rows, in fewer tasks than one for 100 topics."""
    for number in range(1000):
        topic = folder.store.open_topic(f"persistent://public/default/t{number}")
        topic.stampers = StamperChain.from_names(["broker-time", "index"])
        for each in range(2):
            last = topic.append(unbatched_message(b"%d" % each, publish_time_ms=1))
    last.commit.wait(60)
    query = Query(tools, folder, topicsPattern=".*")
    start = query.offset
    rows = query.step()
    assert len(query.reader.partitions(start, query.offset)) < 10
    assert sorted(rows) == sorted(
        (f"persistent://public/default/t{number}", each)
        for number in range(1000)
        for each in (0, 1)
    )

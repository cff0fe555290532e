"""Plans cover what was asked for, exactly once, cut between entries."""

from __future__ import annotations

import pickle
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsemark.ledger import Entry, FolderReader, ForeignFolderError, Position, TopicNotFoundError
from pulsemark.maintenance.expected import Expected
from pulsemark.pipeline import plan as plan_module
from pulsemark.pipeline.errors import DataLossError
from pulsemark.pipeline.followed import followed
from pulsemark.pipeline.options import ReadOptions, StreamOptions
from pulsemark.pipeline.plan import existing, slice_of
from pulsemark.pipeline.slices import Slice
from pulsemark.pipeline.stream import LedgerStreamReader
from pulsemark.testing.raw_messages import BatchMember

NAMES = ("a", "b", "c")


def options(path: Path, **more: object) -> ReadOptions:
    """All topics of a folder, with these options more."""
    given = {"path": path, "topicsPattern": ".*", **more}
    return ReadOptions.parse({name: str(value) for name, value in given.items()})


def tasks_of(options: ReadOptions) -> list[tuple[Slice, ...]]:
    """The slices of each task of a batch; none if there is nothing to read."""
    with closing(followed(options)) as topics:
        return [part.slices for part in topics.read() if part.slices]


@dataclass(repr=False)
class Topics:
    """A folder, and the entries of its topics by name."""

    path: Path
    entries: dict[str, list[Entry]]


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory, tools: Any) -> Any:
    """Three topics of different sizes."""
    folder = tools.Folder(tmp_path_factory.mktemp("plan") / "data")
    writers = {name: folder.topic(name) for name in NAMES}
    for name, rounds in zip(NAMES, (1, 4, 2), strict=True):
        for _ in range(rounds):
            tools.fill(writers[name], folder.clock)
            writers[name].ledger.roll()
    writers["b"].batch([BatchMember(payload=b"x")] * 60)
    entries = {
        writer.name: writer.ledger.read(Position(0, 0), max_entries=10**6, max_bytes=1 << 30)
        for writer in writers.values()
    }
    yield Topics(folder.path, entries)
    folder.store.close()


@settings(deadline=None, max_examples=50)
@given(
    parts=st.integers(1, 60),
    first=st.integers(0, 30),
    length=st.none() | st.integers(0, 30),
)
def test_every_message_is_in_one_slice(
    topics: Topics, parts: int, first: int, length: int | None
) -> None:
    """Slices follow each other without gap, overlap or torn entry; tasks are even and in order."""
    end: int | str = "latest" if length is None else first + length
    tasks = tasks_of(
        options(topics.path, startingOffsets=first, endingOffsets=end, minPartitions=parts)
    )
    assert all(tasks)
    assert len(tasks) <= parts
    slices = [part for task in tasks for part in task]
    for topic, stored in topics.entries.items():
        mine = [part for part in slices if part.topic == topic]
        last = end if isinstance(end, int) else stored[-1].index + 1
        covered = [index for part in mine for index in range(part.first_index, part.end_index)]
        assert covered == list(range(first, last))
        positions = [
            entry.position
            for part in mine
            for entry in stored
            if part.start <= entry.position < part.end
        ]
        # An empty range touches no entry, not even one that it lies in the middle of.
        inside = [e.position for e in stored if max(e.first_index, first) < min(e.index + 1, last)]
        assert positions == inside
    if slices:
        sizes = [sum(part.message_count for part in task) for task in tasks]
        largest = max(entry.message_count for stored in topics.entries.values() for entry in stored)
        assert max(sizes) <= sum(sizes) / parts + 2 * largest


def test_small_topics_share_a_task_and_large_ones_are_divided(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few megabytes are one task; from some size on every core has one, and none is too large."""
    assert len(tasks_of(options(topics.path))) == 1
    assert len(tasks_of(options(topics.path))[0]) == 3
    monkeypatch.setattr(plan_module, "SPREAD_FROM_BYTES", 1000)
    monkeypatch.setattr("os.cpu_count", lambda: 5)
    assert len(tasks_of(options(topics.path))) == 5
    monkeypatch.setattr(plan_module, "PARTITION_BYTES", 16_000)
    assert 6 <= len(tasks_of(options(topics.path))) <= 30


def test_a_plan_pickles(topics: Topics) -> None:
    """It travels to the workers."""
    tasks = tasks_of(options(topics.path, minPartitions=4))
    assert pickle.loads(pickle.dumps(tasks)) == tasks


def test_what_is_not_there_is_reported(topics: Topics, tmp_path: Path) -> None:
    """Folders and topics, with the ledger's own errors."""
    with pytest.raises(ForeignFolderError):
        tasks_of(options(tmp_path))
    named = ReadOptions.parse({"path": str(topics.path), "topics": "a,nobody"})
    with pytest.raises(TopicNotFoundError) as raised:
        tasks_of(named)
    assert raised.value.topic == "persistent://public/default/nobody"


def test_indexes_that_are_not_there_are_a_loss(topics: Topics, tools: Any, tmp_path: Path) -> None:
    """Trimmed ones and ones to come; without failOnDataLoss what there is."""
    folder = tools.Folder(tmp_path / "trimmed")
    topic = folder.topic("a")
    for _ in range(3):
        topic.batch([BatchMember(payload=b"x")] * 10)
        topic.ledger.roll()
    entries = topic.ledger.read(Position(0, 0))
    topic.ledger.trim(entries[1].position)
    folder.store.close()

    def asked(**more: object) -> Slice:
        with FolderReader(folder.path) as reader:
            return slice_of(reader.log(topic.name), options(folder.path, **more), Expected())

    assert (asked().first_index, asked().end_index) == (10, 30)
    for more, lost in (
        ({"startingOffsets": 4}, (4, 10)),
        ({"endingOffsets": 31}, (30, 31)),
        ({"startingOffsets": 40}, (30, 40)),
    ):
        with pytest.raises(DataLossError) as raised:
            asked(**more)
        assert (raised.value.first_index, raised.value.end_index) == lost
    lenient = asked(startingOffsets=4, endingOffsets=31, failOnDataLoss="false")
    assert (lenient.first_index, lenient.end_index) == (10, 30)


def test_a_topic_that_never_had_a_message_exists(folder: Any, tools: Any) -> None:
    """Its name is in the catalog only: a read has no rows, and a stream begins with its first."""
    folder.topic("a").single(b"x")
    empty = folder.topic("empty")
    assert tools.rows_of(folder.path, topic="empty") == []
    assert len(tools.rows_of(folder.path, topics="a,empty")) == 1
    with FolderReader(folder.path) as reader, pytest.raises(TopicNotFoundError):
        existing(reader, ReadOptions.parse({"path": str(folder.path), "topic": "absent"}))
    stream = LedgerStreamReader(
        StreamOptions.parse({"path": str(folder.path), "topic": "empty"}), tools.spark_schema([])
    )
    start = stream.initialOffset()
    empty.single(b"first")
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    tasks: list[Any] = [*stream.partitions(start, end)]
    assert [part.message_count for task in tasks for part in task.slices] == [1]
    stream.stop()

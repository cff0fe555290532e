"""An offload without Spark's JVM: each message is in one file, whatever happened before."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pulsemark.ledger import FolderLockedError, TopicNotFoundError
from pulsemark.pipeline.errors import DataLossError, OptionError
from pulsemark.pipeline.offload import (
    OffloadResult,
    offload,
    truncate_offloaded,
    verify_offload,
)
from pulsemark.pipeline.offload.manifest import load_manifest, target_lock
from pulsemark.testing.raw_messages import BatchMember

HOUR_MS = 3_600_000


class InProcess:
    """The calls of a SparkSession that an offload makes; tasks run here, one after another."""

    def __init__(self, pieces_before_kill: int | None = None) -> None:
        self._left = pieces_before_kill
        self._source: Any = None
        self._options: dict[str, str] = {}
        self.read = self.dataSource = self

    def register(self, source: Any) -> None:
        """Keep the source for `load`."""
        self._source = source

    def format(self, name: str) -> InProcess:
        """The registered source, by its name."""
        assert name == self._source.name()
        return self

    def options(self, **options: str) -> InProcess:
        """Spark hands names on in lower case."""
        self._options |= {name.lower(): value for name, value in options.items()}
        return self

    def option(self, name: str, value: str) -> InProcess:
        """One option."""
        return self.options(**{name: value})

    def load(self) -> InProcess:
        """Nothing runs yet."""
        return self

    def collect(self) -> list[dict[str, str]]:
        """Run the tasks through pickle, as Spark does, and die where the test wants it."""
        reader = self._source(self._options).reader(None)
        rows = []
        for number, partition in enumerate(reader.partitions()):
            if self._left == number:
                raise KeyboardInterrupt
            sent = pickle.loads(pickle.dumps((reader, partition)))
            rows += [{"file": row[0]} for row in sent[0].read(sent[1])]
        return rows


def copy(folder: Any, target: Path, **arguments: Any) -> OffloadResult:
    """An offload of the folder as it is now."""
    spark: Any = InProcess(arguments.pop("pieces_before_kill", None))
    return offload(spark, folder.path, target, **arguments)


def fill(topic: Any, folder: Any, hours: int, each: int = 6) -> None:
    """In each hour a few batches, singles and a control entry."""
    for _ in range(hours):
        for number in range(each):
            topic.batch([BatchMember(payload=b"b%d" % place) for place in range(4)])
            topic.single(b"s%d" % number, key="k")
            folder.clock.advance(HOUR_MS // each)
        topic.control()


def rows_in(target: Path) -> list[tuple[Any, ...]]:
    """(topic, index, value) of all rows of all files, sorted."""
    rows = []
    for path in target.glob("topic=*/hour=*/*.parquet"):
        columns = ("__topic", "__index", "value")
        table = pq.read_table(path, partitioning=None)
        rows += [tuple(row[name] for name in columns) for row in table.to_pylist()]
    return sorted(rows)


def truth(*topics: Any) -> list[tuple[Any, ...]]:
    """What the files must have."""
    columns = ("__topic", "__index", "value")
    return sorted(tuple(row[name] for name in columns) for topic in topics for row in topic.rows)


def test_every_message_is_in_one_file(folder: Any, tools: Any, tmp_path: Path) -> None:
    """Entries of every kind, two topics, growth between runs, and a run with nothing new."""
    topics = [folder.topic("a"), folder.topic("b", partition=0)]
    for topic in topics:
        tools.fill(topic, folder.clock, rounds=2)
        fill(topic, folder, hours=2)
    done = copy(folder, tmp_path / "out")
    assert done.rows == sum(len(topic.rows) for topic in topics)
    assert rows_in(tmp_path / "out") == truth(*topics)
    topics[0].ledger.roll()
    fill(topics[0], folder, hours=1)
    more = copy(folder, tmp_path / "out")
    assert {file.topic for file in more.files} == {topics[0].name}
    assert rows_in(tmp_path / "out") == truth(*topics)
    assert copy(folder, tmp_path / "out").files == ()
    assert load_manifest(tmp_path / "out").runs == 2


def test_files_are_of_one_hour_of_broker_time(folder: Any, tmp_path: Path) -> None:
    """A file's folder names the hour of all its rows, and its name their indexes."""
    topic = folder.topic("a")
    fill(topic, folder, hours=3)
    done = copy(folder, tmp_path / "out")
    assert len({file.hour_ms for file in done.files}) == 4
    for file in done.files:
        table = pq.read_table(tmp_path / "out" / file.path, partitioning=None)
        hours = {time.strftime("%Y-%m-%dT%H") for time in table["__brokerPublishTime"].to_pylist()}
        assert hours == {Path(file.path).parent.name.removeprefix("hour=")}
        indexes = table["__index"].to_pylist()
        assert file.first_index <= min(indexes)
        assert max(indexes) < file.end_index
        assert file.rows == len(indexes)


@pytest.mark.parametrize("rows_per_file", [1, 3, 10, 1_000])
def test_a_file_has_a_limit(folder: Any, tmp_path: Path, rows_per_file: int) -> None:
    """Files end at the limit's multiples, or with the entry there; entries are not divided."""
    topic = folder.topic("a")
    fill(topic, folder, hours=1)
    done = copy(folder, tmp_path / "out", rows_per_file=rows_per_file)
    assert all(file.end_index - file.first_index < rows_per_file + 4 for file in done.files)
    assert rows_in(tmp_path / "out") == truth(topic)


@pytest.mark.parametrize("killed_after", [0, 1, 3])
def test_a_killed_run_and_its_repetition_are_one_run(
    folder: Any, tmp_path: Path, killed_after: int
) -> None:
    """Complete files are used, others removed: also if the topic has grown meanwhile."""
    topic = folder.topic("a")
    fill(topic, folder, hours=3)
    with pytest.raises(KeyboardInterrupt):
        copy(folder, tmp_path / "out", pieces_before_kill=killed_after)
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*/*/*")}
    assert len(written) == killed_after
    assert load_manifest(tmp_path / "out").files == ()
    fill(topic, folder, hours=1)
    done = copy(folder, tmp_path / "out")
    assert rows_in(tmp_path / "out") == truth(topic)
    assert {file.path for file in done.files} == {
        path.relative_to(tmp_path / "out").as_posix()
        for path in (tmp_path / "out").glob("topic=*/hour=*/*")
    }
    undisturbed = copy(folder, tmp_path / "other")
    assert [(f.path, f.rows) for f in undisturbed.files] == [(f.path, f.rows) for f in done.files]
    kept = [path for path, time_ns in written.items() if path.exists()]
    assert all(path.stat().st_mtime_ns == written[path] for path in kept)
    assert len(kept) >= killed_after - 1


def test_half_a_file_is_written_again(folder: Any, tmp_path: Path) -> None:
    """A file that is cut short, or has another piece's footer, is not taken for complete."""
    topic = folder.topic("a")
    fill(topic, folder, hours=2)
    with pytest.raises(KeyboardInterrupt):
        copy(folder, tmp_path / "out", pieces_before_kill=2)
    first, second = sorted((tmp_path / "out").glob("*/*/*"))
    second.write_bytes(first.read_bytes())
    first.write_bytes(first.read_bytes()[:-10])
    (first.parent / ".left-over").write_bytes(b"x")
    copy(folder, tmp_path / "out")
    assert rows_in(tmp_path / "out") == truth(topic)
    assert not (first.parent / ".left-over").exists()


def test_an_end_by_time(folder: Any, tmp_path: Path) -> None:
    """Only what is before it is copied; the next run goes on there."""
    topic = folder.topic("a")
    fill(topic, folder, hours=1)
    moment = folder.clock.now_ms()
    before = len(topic.rows)
    fill(topic, folder, hours=1)
    assert copy(folder, tmp_path / "out", ending_time=moment).rows == before
    copy(folder, tmp_path / "out")
    assert rows_in(tmp_path / "out") == truth(topic)


def test_what_was_trimmed_before_it_was_copied_is_a_loss(folder: Any, tmp_path: Path) -> None:
    """An error with the indexes, and the target stays as it is."""
    topic = folder.topic("a")
    fill(topic, folder, hours=1)
    copy(folder, tmp_path / "out")
    copied = rows_in(tmp_path / "out")
    fill(topic, folder, hours=1)
    topic.ledger.roll()
    fill(topic, folder, hours=1)
    topic.ledger.trim(topic.ledger.segments()[-1].first_position)
    with pytest.raises(DataLossError, match="trimmed before they were copied"):
        copy(folder, tmp_path / "out")
    assert rows_in(tmp_path / "out") == copied


def test_the_head_is_truncated_up_to_what_is_verified(folder: Any, tmp_path: Path) -> None:
    """Only acknowledged messages that are in good files go; the others stay readable."""
    topic = folder.topic("a")
    for _ in range(3):
        fill(topic, folder, hours=1)
        topic.ledger.roll()
    cursor = topic.ledger.open_cursor("s", initial=topic.ledger.segments()[0].first_position)
    copy(folder, tmp_path / "out")
    with pytest.raises(FolderLockedError):
        truncate_offloaded(folder.path, tmp_path / "out")
    second = topic.ledger.segments()[1]
    cursor.ack_cumulative(topic.ledger.previous_position(second.first_position))
    cursor.persist().wait(10)
    first_index = second.first_index
    folder.store.close()
    assert truncate_offloaded(folder.path, tmp_path / "out") == {topic.name: first_index}
    assert all(check.good for check in verify_offload(folder.path, tmp_path / "out"))
    assert rows_in(tmp_path / "out") == truth(topic)


def test_nothing_bad_is_truncated(folder: Any, tmp_path: Path) -> None:
    """A topic with a bad file keeps all its messages."""
    topic = folder.topic("a")
    for _ in range(2):
        fill(topic, folder, hours=1)
        topic.ledger.roll()
    done = copy(folder, tmp_path / "out")
    path = tmp_path / "out" / done.files[0].path
    path.write_bytes(path.read_bytes()[:-1])
    folder.store.close()
    assert truncate_offloaded(folder.path, tmp_path / "out") == {}


@pytest.mark.parametrize("damage", ["bytes", "missing", "manifest gap", "rows"])
def test_a_check_finds_what_is_wrong(folder: Any, tmp_path: Path, damage: str) -> None:
    """Changed bytes, a missing file, a file that no manifest has, and rows that are not there."""
    topic = folder.topic("a")
    fill(topic, folder, hours=3)
    target = tmp_path / "out"
    done = copy(folder, target)
    (good,) = verify_offload(folder.path, target)
    assert good.good
    assert good.verified_end_index == topic.ledger.next_index
    manifest = target / "_pulsemark" / "manifest-000001.json"
    content = json.loads(manifest.read_text())
    path = target / done.files[1].path
    if damage == "bytes":
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    elif damage == "missing":
        path.unlink()
    elif damage == "manifest gap":
        del content["files"][1]
    else:
        content["files"][1]["rows"] -= 1
    manifest.write_text(json.dumps(content))
    (bad,) = verify_offload(folder.path, target)
    assert not bad.good
    assert bad.verified_end_index == done.files[0].end_index


def test_a_topic_that_is_created_again_is_copied_from_its_beginning(
    folder: Any, tmp_path: Path
) -> None:
    """The files of the deleted topic stay, and their names differ."""
    first = folder.topic("a")
    fill(first, folder, hours=1)
    copy(folder, tmp_path / "out")
    folder.store.delete_topic(first.name)
    again = folder.topic("a")
    fill(again, folder, hours=1)
    copy(folder, tmp_path / "out")
    assert rows_in(tmp_path / "out") == truth(first, again)


def test_one_run_at_a_time(folder: Any, tmp_path: Path) -> None:
    """A second run of the same target is refused and changes nothing."""
    folder.topic("a").single(b"x")
    with (
        target_lock(tmp_path / "out"),
        pytest.raises(OptionError, match="another offload is writing to it"),
    ):
        copy(folder, tmp_path / "out")
    assert copy(folder, tmp_path / "out").rows == 1


def test_nonsense_is_refused_by_name(folder: Any, tmp_path: Path) -> None:
    """Bad arguments and targets are errors that name them."""
    folder.topic("a").single(b"x")
    target = tmp_path / "out"
    for arguments, message in (
        ({"rows_per_file": 0}, "rowsPerFile = '0'"),
        ({"columns": ["value", "nope"]}, "columns = 'value,nope'.*'nope' is not a column"),
        ({"ending_time": "yesterday"}, "endingTime = 'yesterday'"),
    ):
        with pytest.raises(OptionError, match=message):
            copy(folder, target, **arguments)
    with pytest.raises(TopicNotFoundError):
        copy(folder, target, topics="nope")
    assert not target.exists()
    copy(folder, target)
    with pytest.raises(OptionError, match="columns = 'value'"):
        copy(folder, target, columns=["value"])
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match="cannot be written"):
        copy(folder, tmp_path / "file" / "x")
    with pytest.raises(OptionError, match="has no manifest"):
        verify_offload(folder.path, tmp_path / "nothing")


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"version": 2, "files": [], "columns": []}'])
def test_a_damaged_manifest_stops_a_run(folder: Any, tmp_path: Path, content: str) -> None:
    """It is never taken for an empty one: everything would be copied twice."""
    folder.topic("a").single(b"x")
    copy(folder, tmp_path / "out")
    (tmp_path / "out" / "_pulsemark" / "manifest-000001.json").write_text(content)
    with pytest.raises(OptionError, match="manifest-000001"):
        copy(folder, tmp_path / "out")
    (tmp_path / "out" / "_pulsemark" / "manifest-000001.json").rename(
        tmp_path / "out" / "_pulsemark" / "manifest-000002.json"
    )
    with pytest.raises(OptionError, match="manifest 1 is missing"):
        copy(folder, tmp_path / "out")


def test_no_topics_is_no_files(folder: Any, tmp_path: Path) -> None:
    """A folder without entries gives an empty result, not an error."""
    assert copy(folder, tmp_path / "out").files == ()

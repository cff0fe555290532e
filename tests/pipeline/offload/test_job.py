"""An offload without Spark's JVM: each message is in the table once, whatever happened before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pulsemark.compaction.compaction import compact
from pulsemark.ledger import FolderLockedError, TopicNotFoundError
from pulsemark.pipeline.errors import DataLossError, JobFailedError, OptionError
from pulsemark.pipeline.offload import truncate_offloaded, verify_offload
from pulsemark.pipeline.offload.places import LocalPlace

HOUR_MS = 3_600_000


def data_files(place: LocalPlace) -> set[str]:
    """Every Parquet file below a place, whether it counts or not; with unfinished ones."""
    found = place.folder.glob("topic=*/hour=*/*")
    return {path.relative_to(place.folder).as_posix() for path in found}


def test_every_message_is_in_the_table_once(
    folder: Any, tools: Any, run: Any, make_table: Any
) -> None:
    """Entries of every kind, two topics, growth between runs, and a run with nothing new."""
    topics = [folder.topic("a"), folder.topic("b", partition=0)]
    for topic in topics:
        tools.fill(topic, folder.clock, rounds=2)
        run.fill(topic, folder, hours=2)
    done = run.copy(folder, make_table())
    assert done.rows == sum(len(topic.rows) for topic in topics)
    assert run.rows_in(make_table()) == run.truth(*topics)
    topics[0].ledger.roll()
    run.fill(topics[0], folder, hours=1)
    more = run.copy(folder, make_table())
    assert {file.topic for file in more.files} == {topics[0].name}
    assert run.rows_in(make_table()) == run.truth(*topics)
    assert run.copy(folder, make_table()).files == ()
    assert make_table().load().runs == 2
    assert all(check.good for check in verify_offload(folder.path, make_table()))


def test_all_columns_are_those_of_the_source(
    folder: Any, tools: Any, run: Any, make_table: Any
) -> None:
    """Every value of every column, compared with what was written down at the append."""
    topic = folder.topic("a")
    tools.fill(topic, folder.clock, rounds=1)
    columns = [name for name in topic.rows[0] if name not in ("__tags", "__error")]
    run.copy(folder, make_table(), columns=columns)
    rows = run.table_rows(make_table()).select(columns).sort_by("__index").to_pylist()
    assert tools.plain(rows) == tools.only(topic.rows, columns)


def test_files_are_of_one_hour_of_broker_time(folder: Any, run: Any, make_table: Any) -> None:
    """A file's folder names the hour of all its rows, and its name their indexes."""
    topic = folder.topic("a")
    run.fill(topic, folder, hours=3)
    table = make_table()
    done = run.copy(folder, table)
    assert len({file.hour_ms for file in done.files}) == 4
    for file in done.files:
        rows = pq.read_table(table.place.folder / file.path, partitioning=None)
        hours = {time.strftime("%Y-%m-%dT%H") for time in rows["__brokerPublishTime"].to_pylist()}
        assert hours == {Path(file.path).parent.name.removeprefix("hour=")}
        indexes = rows["__index"].to_pylist()
        assert file.first_index <= min(indexes)
        assert max(indexes) < file.end_index
        assert file.rows == len(indexes)


def test_a_lake_table_has_topic_and_hour(folder: Any, run: Any, make_lake_table: Any) -> None:
    """Both are columns and partitions; the hour is that of the rows' broker time."""
    topic = folder.topic("a")
    run.fill(topic, folder, hours=2)
    run.copy(folder, make_lake_table())
    for row in run.table_rows(make_lake_table()).to_pylist():
        assert row["topic"] == topic.name
        assert row["hour"] == row["__brokerPublishTime"].replace(minute=0, second=0, microsecond=0)


@pytest.mark.parametrize("rows_per_file", [1, 3, 10, 1_000])
def test_a_file_has_a_limit(folder: Any, run: Any, make_table: Any, rows_per_file: int) -> None:
    """Files end at the limit's multiples, or with the entry there; entries are not divided."""
    topic = folder.topic("a")
    run.fill(topic, folder, hours=1)
    done = run.copy(folder, make_table(), rows_per_file=rows_per_file)
    assert all(file.end_index - file.first_index < rows_per_file + 4 for file in done.files)
    assert run.rows_in(make_table()) == run.truth(topic)


@pytest.mark.parametrize("killed_after", [0, 1, 3])
def test_a_killed_run_and_its_repetition_are_one_run(
    folder: Any, run: Any, make_table: Any, killed_after: int
) -> None:
    """Complete files are used, others removed: also if the topic has grown meanwhile."""
    topic = folder.topic("a")
    run.fill(topic, folder, hours=3)
    with pytest.raises(KeyboardInterrupt):
        run.copy(folder, make_table(), files_before_kill=killed_after)
    place = make_table().place
    written = {path: (place.folder / path).stat().st_mtime_ns for path in data_files(place)}
    assert len(written) == killed_after
    assert make_table().load().files == ()
    run.fill(topic, folder, hours=1)
    done = run.copy(folder, make_table())
    assert run.rows_in(make_table()) == run.truth(topic)
    assert {file.path for file in done.files} == data_files(place)
    undisturbed = run.copy(folder, make_table("other"))
    assert [(f.path, f.rows) for f in undisturbed.files] == [(f.path, f.rows) for f in done.files]
    kept = [path for path in written if (place.folder / path).exists()]
    assert all((place.folder / path).stat().st_mtime_ns == written[path] for path in kept)
    assert len(kept) >= killed_after - 1


def test_half_a_file_is_written_again(folder: Any, run: Any, make_table: Any) -> None:
    """A file that is cut short, or has another piece's footer, is not taken for complete."""
    topic = folder.topic("a")
    run.fill(topic, folder, hours=2)
    with pytest.raises(KeyboardInterrupt):
        run.copy(folder, make_table(), files_before_kill=2)
    place = make_table().place
    first, second = (place.folder / path for path in sorted(data_files(place)))
    second.write_bytes(first.read_bytes())
    first.write_bytes(first.read_bytes()[:-10])
    left_over = first.with_name(f".{first.name}.12345")
    left_over.write_bytes(b"x")
    run.copy(folder, make_table())
    assert run.rows_in(make_table()) == run.truth(topic)
    assert not left_over.exists()


def test_a_worker_of_a_killed_run_writes_nothing_any_more(
    folder: Any, run: Any, make_table: Any
) -> None:
    """When the next run has begun, what an older run's worker still writes is not shown."""
    topic = folder.topic("a")
    run.fill(topic, folder, hours=1)
    table = make_table()

    spark = folder.in_process()
    collect = spark.collect

    def too_late() -> Any:
        for path in (table.place.folder / "_pulsemark").glob("unfinished-*"):
            path.unlink()
        return collect()

    spark.collect = too_late
    with pytest.raises(JobFailedError, match="another offload has begun"):
        run.copy(folder, table, spark=spark)
    assert data_files(table.place) == set()


def test_an_end_by_time(folder: Any, run: Any, make_table: Any) -> None:
    """Only what is before it is copied; the next run goes on there."""
    topic = folder.topic("a")
    run.fill(topic, folder, hours=1)
    moment = folder.clock.now_ms()
    before = len(topic.rows)
    run.fill(topic, folder, hours=1)
    assert run.copy(folder, make_table(), ending_time=moment).rows == before
    run.copy(folder, make_table())
    assert run.rows_in(make_table()) == run.truth(topic)


def test_what_was_trimmed_before_it_was_copied_is_a_loss(
    folder: Any, run: Any, make_table: Any
) -> None:
    """An error with the indexes; the other topics are copied; a lenient run goes on behind it."""
    topic = folder.topic("a")
    run.fill(topic, folder, hours=1)
    run.copy(folder, make_table())
    copied = run.rows_in(make_table())
    run.fill(topic, folder, hours=1)
    topic.ledger.roll()
    run.fill(topic, folder, hours=1)
    topic.ledger.trim(topic.ledger.segments()[-1].first_position)
    first = topic.ledger.first_index
    other = folder.topic("b")
    other.single(b"x")
    with pytest.raises(DataLossError, match=r"/a: .*trimmed before they were"):
        run.copy(folder, make_table())
    assert run.rows_in(make_table()) == sorted([*copied, *run.truth(other)])
    run.copy(folder, make_table(), fail_on_data_loss=False)
    left = [row for row in run.truth(topic) if row[1] >= first]
    assert run.rows_in(make_table()) == sorted([*copied, *left, *run.truth(other)])


def test_the_head_is_truncated_up_to_what_is_verified(
    folder: Any, run: Any, make_table: Any
) -> None:
    """Only acknowledged messages that are in good files go; the others stay readable."""
    topic = folder.topic("a")
    for _ in range(3):
        run.fill(topic, folder, hours=1)
        topic.ledger.roll()
    cursor = topic.ledger.open_cursor("s", initial=topic.ledger.segments()[0].first_position)
    run.copy(folder, make_table())
    with pytest.raises(FolderLockedError):
        truncate_offloaded(folder.path, make_table())
    second = topic.ledger.segments()[1]
    cursor.ack_cumulative(topic.ledger.previous_position(second.first_position))
    cursor.persist().wait(10)
    first_index = second.first_index
    folder.store.close()
    assert truncate_offloaded(folder.path, make_table()) == {topic.name: first_index}
    assert all(check.good for check in verify_offload(folder.path, make_table()))
    assert run.rows_in(make_table()) == run.truth(topic)


def test_nothing_bad_is_truncated(folder: Any, run: Any, make_table: Any) -> None:
    """A topic with a bad file keeps all its messages."""
    topic = folder.topic("a")
    for _ in range(2):
        run.fill(topic, folder, hours=1)
        topic.ledger.roll()
    done = run.copy(folder, make_table())
    path = make_table().place.folder / done.files[0].path
    path.write_bytes(path.read_bytes()[:-1])
    folder.store.close()
    assert truncate_offloaded(folder.path, make_table()) == {}


def test_a_topic_that_was_created_again_keeps_what_is_not_copied(
    folder: Any, run: Any, make_table: Any
) -> None:
    """The deleted topic's copy says nothing about the new topic of its name."""
    first = folder.topic("a")
    run.fill(first, folder, hours=3)
    run.copy(folder, make_table())
    folder.store.delete_topic(first.name)
    again = folder.topic("a")
    run.fill(again, folder, hours=1)
    again.ledger.roll()
    run.fill(again, folder, hours=1)
    folder.store.close()
    assert truncate_offloaded(folder.path, make_table()) == {}
    run.copy(folder, make_table(), fail_on_data_loss=False)
    assert run.rows_in(make_table()) == run.truth(first, again)


def test_what_compaction_has_not_read_stays(folder: Any, run: Any, make_table: Any) -> None:
    """A compacted topic is truncated up to its view's horizon: later keys are only in the log."""
    topic = folder.topic("a")
    run.fill(topic, folder, hours=1)
    topic.ledger.roll()
    horizon = compact(topic.ledger).horizon
    for _ in range(2):
        run.fill(topic, folder, hours=1)
        topic.ledger.roll()
    segments = topic.ledger.segments()
    assert horizon == topic.ledger.previous_position(segments[1].first_position)
    run.copy(folder, make_table())
    folder.store.close()
    left = truncate_offloaded(folder.path, make_table())
    assert left == {topic.name: segments[1].first_index}


def test_a_topic_that_is_created_again_is_copied_from_its_beginning(
    folder: Any, run: Any, make_table: Any
) -> None:
    """The files of the deleted topic stay, and their names differ.

    What it had that was not copied is a loss, which one lenient run accepts.
    """
    first = folder.topic("a")
    run.fill(first, folder, hours=1)
    run.copy(folder, make_table())
    folder.store.delete_topic(first.name)
    again = folder.topic("a")
    run.fill(again, folder, hours=1)
    with pytest.raises(DataLossError, match=r"/a: messages from 31 on .*created again"):
        run.copy(folder, make_table())
    run.copy(folder, make_table(), fail_on_data_loss=False)
    assert run.rows_in(make_table()) == run.truth(first, again)
    assert run.copy(folder, make_table()).files == ()


def test_one_run_at_a_time(folder: Any, run: Any, make_table: Any) -> None:
    """A second run of the same target is refused and changes nothing."""
    topic = folder.topic("a")
    topic.single(b"x")
    run.copy(folder, make_table())
    topic.single(b"y")
    with (
        make_table().lock(),
        pytest.raises(OptionError, match="another offload is writing to it"),
    ):
        run.copy(folder, make_table())
    assert run.copy(folder, make_table()).rows == 1


def test_nonsense_is_refused_by_name(folder: Any, run: Any, tmp_path: Path) -> None:
    """Bad arguments and targets are errors that name them, and nothing is made."""
    folder.topic("a").single(b"x")
    target = tmp_path / "out"
    for arguments, message in (
        ({"rows_per_file": 0}, "rowsPerFile = '0'"),
        ({"columns": ["value", "nope"]}, "columns = 'value,nope'.*'nope' is not a column"),
        ({"ending_time": "yesterday"}, "endingTime = 'yesterday'"),
    ):
        with pytest.raises(OptionError, match=message):
            run.copy(folder, target, **arguments)
    with pytest.raises(TopicNotFoundError):
        run.copy(folder, target, topics="nope")
    assert not target.exists()
    run.copy(folder, target)
    with pytest.raises(OptionError, match="columns = 'value'"):
        run.copy(folder, target, columns=["value"])
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match="is below a file"):
        run.copy(folder, tmp_path / "file" / "x")
    with pytest.raises(OptionError, match="has no manifest"):
        verify_offload(folder.path, tmp_path / "nothing")


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"version": 2, "files": [], "columns": []}'])
def test_a_damaged_manifest_stops_a_run(
    folder: Any, run: Any, make_table: Any, content: str
) -> None:
    """It is never taken for an empty one: everything would be copied twice."""
    topic = folder.topic("a")
    topic.single(b"x")
    run.copy(folder, make_table())
    topic.single(b"y")
    run.copy(folder, make_table())
    notes = make_table().place.folder / "_pulsemark"
    first, second = sorted(notes.glob("manifest-*"))
    good = second.read_bytes()
    second.write_text(content)
    with pytest.raises(OptionError, match=r"manifest-000002-.* is damaged"):
        run.copy(folder, make_table())
    second.write_bytes(good)
    first.unlink()
    with pytest.raises(OptionError, match=r"manifest-000001-.* is missing"):
        run.copy(folder, make_table())


def test_no_topics_is_no_files(folder: Any, run: Any, make_table: Any) -> None:
    """A folder without entries gives an empty table, not an error."""
    assert run.copy(folder, make_table()).files == ()
    assert run.rows_in(make_table()) == []

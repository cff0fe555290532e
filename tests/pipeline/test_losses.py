"""Every job and every source reports the same losses: one list of faults over all of them.

Nothing here needs Spark's JVM: planning, the stream's reader and the jobs' tasks run in this
process.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pulsemark.ledger import FolderLockedError, FolderReader
from pulsemark.ledger.local.segment.segment import as_segment
from pulsemark.metadata import crc32c
from pulsemark.pipeline import (
    ReplayOptions,
    estimate_compaction,
    offload,
    replay,
    truncate_offloaded,
    verify_offload,
)
from pulsemark.pipeline.audit_source import audit_tasks
from pulsemark.pipeline.errors import DataLossError
from pulsemark.pipeline.offload.table import ParquetFolder
from pulsemark.pipeline.options import ReadOptions
from pulsemark.pipeline.replay import job as replay_job
from pulsemark.pipeline.source import LedgerSource
from pulsemark.testing.raw_messages import BatchMember

TOPIC = "persistent://public/default/a"
OTHER = "persistent://public/default/b"
PER_LEDGER = 10
COPIED, ALL, OLDER = 30, 50, 20


@dataclass
class Stages:
    """Copies of one data folder as it was after so many messages of topic `a`."""

    folders: dict[int, Path]
    tools: Any

    def put(self, count: int, path: Path) -> Path:
        """Put the folder of that time in the place of what is there."""
        shutil.rmtree(path, ignore_errors=True)
        return Path(shutil.copytree(self.folders[count], path))


@pytest.fixture(scope="module")
def stages(tools: Any, tmp_path_factory: pytest.TempPathFactory) -> Stages:
    """Ledgers of ten messages in two entries each; a second topic, which nothing happens to."""
    base = tmp_path_factory.mktemp("losses")
    folder = tools.Folder(base / "data")
    topic = folder.topic("a")
    folder.topic("b").single(b"b")
    folders = {}
    for count in range(PER_LEDGER, ALL + 1, PER_LEDGER):
        append(folder, topic, PER_LEDGER)
        if count in (COPIED, ALL, OLDER):
            folder.store.close()
            folders[count] = Path(shutil.copytree(base / "data", base / f"after-{count}"))
            folder = tools.Folder(base / "data")
            folder.clock.advance(by_ms=count * 60_000)
            topic = folder.topic("a")
    folder.store.close()
    return Stages(folders, tools)


def append(folder: Any, topic: Any, count: int) -> None:
    """So many messages, in ledgers of their own."""
    for _ in range(count // PER_LEDGER):
        folder.clock.advance(by_ms=60_000)
        for half in range(2):
            size = PER_LEDGER // 2
            topic.batch([BatchMember(payload=b"%d" % half, key=f"k{n}") for n in range(size)])
        topic.ledger.roll()


def files_of(path: Path) -> list[Path]:
    """The topic's segment files, oldest first."""
    with FolderReader(path) as reader:
        return [as_segment(segment).path for segment in reader.log(TOPIC).segments()]


def lose(*numbers: int) -> Callable[[Stages, Path], None]:
    """Remove the files of these ledgers of the topic."""

    def lost(_: Stages, path: Path) -> None:
        files = files_of(path)
        for number in numbers:
            files[number].unlink()
            files[number].with_suffix(".idx").unlink()

    return lost


def lose_index(_: Stages, path: Path) -> None:
    """Remove an index file: it is made again from the entries."""
    files_of(path)[3].with_suffix(".idx").unlink()


def trim(stages: Stages, path: Path) -> None:
    """Retention leaves the last ledger."""
    folder = stages.tools.Folder(path)
    ledger = folder.topic("a").ledger
    ledger.trim(ledger.segments()[-1].first_position)
    folder.store.close()


def make_again(stages: Stages, path: Path) -> None:
    """Delete the topic, and make another one of its name."""
    folder = stages.tools.Folder(path)
    folder.store.delete_topic(TOPIC)
    append(folder, folder.topic("a"), PER_LEDGER)
    folder.store.close()


def restore(stages: Stages, path: Path) -> None:
    """An older copy of the folder takes its place, and is written to."""
    stages.put(OLDER, path)
    folder = stages.tools.Folder(path)
    folder.clock.advance(by_ms=OLDER * 60_000)
    append(folder, folder.topic("a"), 2 * OLDER)
    folder.store.close()


def restore_alone(stages: Stages, path: Path) -> None:
    """An older copy takes its place, and nothing is written."""
    stages.put(OLDER, path)


def cut_tail(stages: Stages, path: Path) -> None:
    """The tail is cut off behind the 25th message, and the log grows beyond where it was."""
    folder = stages.tools.Folder(path)
    topic = folder.topic("a")
    topic.ledger.truncate_tail(25, epoch=topic.ledger.epoch + 1)
    append(folder, topic, ALL)
    folder.store.close()


@dataclass(frozen=True)
class Fault:
    """What happens to a folder, and who has to say it."""

    do: Callable[[Stages, Path], None]
    new: bool
    """Whether what reads the topic for the first time reports a loss."""
    later: bool
    """Whether what goes on behind message 30 does."""


FAULTS = {
    "nothing": Fault(lambda _stages, _path: None, False, False),
    "first ledger": Fault(lose(0), True, False),
    "middle ledger": Fault(lose(3), True, True),
    "copied ledger": Fault(lose(2), True, False),
    "last ledger": Fault(lose(4), True, True),
    "index file": Fault(lose_index, False, False),
    "topic": Fault(lose(0, 1, 2, 3, 4), True, True),
    "trimmed": Fault(trim, False, True),
    "made again": Fault(make_again, False, True),
    "restored older": Fault(restore, False, True),
    "restored older, not written": Fault(restore_alone, False, True),
    "truncated tail": Fault(cut_tail, False, True),
}


@pytest.fixture(params=FAULTS)
def fault(request: pytest.FixtureRequest) -> Fault:
    """One fault."""
    return FAULTS[request.param]


class Case:
    """A folder, what was copied of it before the fault, and everything that reads it."""

    def __init__(self, stages: Stages, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stages, self.tools, self.folder = stages, stages.tools, folder
        self.path = folder / "data"
        self.options = {"topicsPattern": ".*", "columns": "__topic,__index"}
        self.number = 0
        self.published: list[dict[int, int]] = []
        monkeypatch.setattr(replay_job, "check_targets", lambda *_: None)
        monkeypatch.setattr(replay_job, "replayed", lambda *given: self.published.append(given[3]))

    def spark(self) -> Any:
        """What runs a job's tasks here."""
        return self.tools.InProcess()

    def batch(self, fail: bool) -> set[tuple[str, int]]:
        """A batch read of all topics."""
        rows = self.tools.rows_of(self.path, **self.options, failOnDataLoss=str(fail).lower())
        return {(row["__topic"], row["__index"]) for row in rows}

    def stream(self, fail: bool, start: Any = None) -> set[tuple[str, int]]:
        """A stream from its beginning, or from an offset, to the end."""
        texts = {**self.options, "path": str(self.path), "failOnDataLoss": str(fail).lower()}
        source = LedgerSource({**texts, "startingOffsets": "earliest"})
        reader: Any = source.streamReader(self.tools.spark_schema(("__topic", "__index")))
        try:
            start = reader.initialOffset() if start is None else start
            end = reader.latestOffset(start, reader.getDefaultReadLimit())
            self.reached = json.loads(json.dumps(end))
            return self.read(reader, start, end)
        finally:
            reader.stop()

    def between(self, start: Any, end: Any) -> set[tuple[str, int]]:
        """A micro-batch that a restarted query plans again."""
        source = LedgerSource({**self.options, "path": str(self.path)})
        reader: Any = source.streamReader(self.tools.spark_schema(("__topic", "__index")))
        try:
            return self.read(reader, start, end)
        finally:
            reader.stop()

    def read(self, reader: Any, start: Any, end: Any) -> set[tuple[str, int]]:
        """The rows of a micro-batch."""
        return {
            (row["__topic"], row["__index"])
            for part in reader.partitions(start, end)
            for batch in reader.read(part)
            for row in batch.to_pylist()
        }

    def offload(self, fail: bool, target: str | None = None) -> set[tuple[str, int]]:
        """An offload to a new table, or to one that has something."""
        table = self.folder / (target or f"table-{fail}")
        done = offload(self.spark(), self.path, table, fail_on_data_loss=fail)
        rows = [
            row
            for file in done.files
            for row in pq.read_table(table / file.path, partitioning=None).to_pylist()
        ]
        found = {(row["__topic"], row["__index"]) for row in rows}
        assert len(found) == len(rows)
        return found

    def estimate(self, fail: bool) -> None:
        """A dry run of a compaction."""
        estimate_compaction(self.spark(), self.path, fail_on_data_loss=fail)

    def replay(self, fail: bool, checkpoint: str | None = None) -> None:
        """A replay as far as its driver plans it."""
        place = self.folder / (checkpoint or f"checkpoint-{fail}")
        options = ReplayOptions(service_url="pulsar://127.0.0.1:1")
        replay(self.spark(), self.path, options, place, fail_on_data_loss=fail)

    def audit(self) -> bool:
        """Whether the audit has a loss to report."""
        read = ReadOptions.parse({"path": str(self.path), "topicsPattern": ".*"})
        return any(TOPIC in task.losses for task in audit_tasks(read))


@pytest.fixture
def case(stages: Stages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    """One to be damaged."""
    return Case(stages, tmp_path, monkeypatch)


def reported(caplog: pytest.LogCaptureFixture) -> bool:
    """Whether a warning names the topic since the last call."""
    named = any("/a: messages" in line or "/a: its" in line for line in caplog.messages)
    caplog.clear()
    return named


def test_what_reads_a_topic_for_the_first_time(
    case: Case, fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    """By default a loss is an error everywhere; else it is logged and all others are read."""
    case.stages.put(ALL, case.path)
    fault.do(case.stages, case.path)
    jobs = (case.batch, case.stream, case.offload, case.estimate, case.replay)
    for job in jobs:
        if fault.new:
            with pytest.raises(DataLossError, match=TOPIC):
                job(True)
        else:
            job(True)
    assert case.audit() is fault.new
    caplog.set_level(logging.WARNING)
    read = case.batch(False)
    assert reported(caplog) is fault.new
    assert (OTHER, 0) in read
    assert case.stream(False) == read
    assert reported(caplog) is fault.new
    assert case.offload(False) == read
    assert reported(caplog) is fault.new
    for job in (case.estimate, case.replay):
        job(False)
        assert reported(caplog) is fault.new


def test_what_goes_on_with_a_topic(
    case: Case, fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    """A stream and an offload go on behind what they have; a log that is another one is refused.

    Nothing is removed from it, either.
    """
    case.stages.put(COPIED, case.path)
    case.stream(True)
    start = case.reached
    case.offload(True, "table")
    case.stages.put(ALL, case.path)
    fault.do(case.stages, case.path)
    is_same = case.path.exists() and fault.do not in (make_again, restore, restore_alone, cut_tail)
    for again in (lambda: case.stream(True, start), lambda: case.offload(True, "table")):
        if fault.later:
            with pytest.raises(DataLossError, match=TOPIC):
                again()
    caplog.set_level(logging.WARNING)
    everything = case.batch(False)
    caplog.clear()
    wanted = {each for each in everything if each[0] == TOPIC and each[1] >= COPIED}
    if fault.do is make_again:
        wanted = {each for each in everything if each[0] == TOPIC}
    assert case.stream(False, start) == wanted
    assert reported(caplog) is fault.later
    if not is_same:
        checks = verify_offload(case.path, case.folder / "table")
        assert fault.do is make_again or not all(check.good for check in checks)
        assert TOPIC not in truncate_offloaded(case.path, case.folder / "table")
    assert case.offload(False, "table") == wanted
    assert reported(caplog) is fault.later


def test_a_replay_that_goes_on(case: Case, fault: Fault, caplog: pytest.LogCaptureFixture) -> None:
    """Its plan is of a log that must be the same one; only a lenient replay goes on."""
    case.stages.put(ALL, case.path)
    case.replay(True, "checkpoint")
    fault.do(case.stages, case.path)
    is_lost = fault.new or fault.later
    if fault.do is not make_again:  # its task says that
        if is_lost:
            with pytest.raises(DataLossError, match=TOPIC):
                case.replay(True, "checkpoint")
        else:
            case.replay(True, "checkpoint")
    caplog.set_level(logging.WARNING)
    case.published.clear()
    case.replay(False, "checkpoint")
    assert reported(caplog) is is_lost
    assert case.published[0]


@pytest.mark.parametrize("lost", [(0,), (3,), (4,), (0, 1, 2, 3, 4)], ids=str)
def test_a_running_stream(case: Case, lost: tuple[int, ...]) -> None:
    """Files that are lost while a query runs are noticed by its next micro-batch."""
    case.stages.put(ALL, case.path)
    texts = {**case.options, "path": str(case.path), "startingOffsets": "earliest"}
    source = LedgerSource({**texts, "maxOffsetsPerTrigger": "6"})
    reader: Any = source.streamReader(case.tools.spark_schema(("__topic", "__index")))
    limit = reader.getDefaultReadLimit()
    first = reader.latestOffset(reader.initialOffset(), limit)
    assert case.read(reader, reader.initialOffset(), first)
    lose(*lost)(case.stages, case.path)

    def run_on(offset: Any) -> None:
        for _ in range(ALL):
            following = reader.latestOffset(offset, limit)
            reader.partitions(offset, following)
            offset = following

    with pytest.raises(DataLossError, match=TOPIC):
        run_on(first)
    reader.stop()


def test_a_micro_batch_that_is_planned_again(case: Case) -> None:
    """A restarted query refuses its last batch if the log has other messages there by now."""
    case.stages.put(COPIED, case.path)
    case.stream(True)
    start = case.reached
    case.stages.put(ALL, case.path)
    rows = case.stream(True, start)
    end = case.reached
    assert case.between(start, end) == rows
    restore(case.stages, case.path)
    with pytest.raises(DataLossError, match="an older copy was restored"):
        case.between(start, end)


def test_marks_of_earlier_versions_are_not_needed(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Manifest, checkpoint and offset without marks are read, and go by the index alone."""
    case.stages.put(COPIED, case.path)
    for module in ("offload.writer", "replay.job", "followed"):
        found = import_module(f"pulsemark.pipeline.{module}")
        monkeypatch.setattr(found, "mark_of", lambda *_: None)
    monkeypatch.setattr(import_module("pulsemark.pipeline.offload.manifest"), "VERSION", 1)
    case.stream(True)
    assert case.reached[TOPIC].keys() == {"index", "id"}
    case.offload(True, "table")
    (manifest,) = (case.folder / "table" / "_pulsemark").glob("manifest-*")
    stated = json.loads(manifest.read_text())
    for file in stated["files"]:
        assert file.pop("mark") is None
    manifest.unlink()
    data = json.dumps(stated).encode()
    manifest.with_name(f"manifest-000001-{crc32c(data):08x}.json").write_bytes(data)
    case.replay(True, "checkpoint")
    plan = case.folder / "checkpoint" / "plan.json"
    stated = json.loads(plan.read_text())
    for part in stated["parts"]:
        assert part.pop("mark") is None
    del stated["crc32c"]
    plan.write_text(json.dumps({**stated, "version": 1}))
    monkeypatch.undo()
    again = Case(case.stages, case.folder, monkeypatch)
    again.stages.put(ALL, again.path)
    wanted = {(TOPIC, index) for index in range(COPIED, ALL)}
    assert again.stream(True, case.reached) == wanted
    assert again.offload(True, "table") == wanted
    again.replay(True, "checkpoint")
    assert all(check.good for check in verify_offload(again.path, again.folder / "table"))


def test_a_file_of_a_lenient_run_is_not_used_by_a_strict_one(case: Case) -> None:
    """A lenient run that is killed before its commit leaves a file without the lost messages."""
    case.stages.put(ALL, case.path)
    log = files_of(case.path)[2]
    kept = [(each, each.read_bytes()) for each in (log, log.with_suffix(".idx"))]
    lose(2)(case.stages, case.path)
    table = ParquetFolder(case.folder / "table")
    for number in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            offload(case.tools.InProcess(number), case.path, table, fail_on_data_loss=False)
    for each, data in kept:
        each.write_bytes(data)
    case.offload(True, "table")
    (check, _) = verify_offload(case.path, table)
    assert (check.problems, check.rows) == ((), ALL)


def test_a_lenient_copy_is_not_called_whole(case: Case) -> None:
    """What a lenient offload has left out is a problem of the table: nothing is removed for it."""
    for number in range(5):
        case.stages.put(ALL, case.path)
        lose(number)(case.stages, case.path)
        case.offload(False, f"table-{number}")
        checks = verify_offload(case.path, case.folder / f"table-{number}")
        assert [check.good for check in checks] == [False, True], number
        assert TOPIC not in truncate_offloaded(case.path, case.folder / f"table-{number}")


def shorten(path: Path, size_bytes: int, *, is_index_lost: bool) -> None:
    """Cut bytes off the end of the topic's last segment file."""
    last = files_of(path)[-1]
    with last.open("r+b") as file:
        file.truncate(max(0, last.stat().st_size - size_bytes))
    if is_index_lost:
        last.with_suffix(".idx").unlink()


@pytest.mark.parametrize("is_index_lost", [False, True], ids=["index", "no-index"])
@pytest.mark.parametrize("size_bytes", [1, 20, 300, 10_000])
def test_a_shortened_file(case: Case, size_bytes: int, is_index_lost: bool) -> None:
    """A copied log whose last file became shorter is refused by name, and is not truncated.

    A stream that read up to there refuses it, too.
    """
    case.stages.put(ALL, case.path)
    case.offload(True, "table")
    case.stream(True)
    start = case.reached
    shorten(case.path, size_bytes, is_index_lost=is_index_lost)
    for again in (lambda: case.stream(True, start), lambda: case.offload(True, "table")):
        with pytest.raises(DataLossError, match=TOPIC):
            again()
    checks = verify_offload(case.path, case.folder / "table")
    assert not next(check for check in checks if check.topic == TOPIC).good
    before = sorted(file.name for file in (case.path / "ledgers").glob("*.log"))
    assert TOPIC not in truncate_offloaded(case.path, case.folder / "table")
    assert sorted(file.name for file in (case.path / "ledgers").glob("*.log")) == before


def test_a_file_that_is_shortened_below_a_running_store(case: Case) -> None:
    """A store that has the folder open does not hide that a copied log is shorter."""
    case.stages.put(ALL, case.path)
    case.offload(True, "table")
    folder = case.tools.Folder(case.path)
    try:
        shorten(case.path, 20, is_index_lost=False)
        with pytest.raises(DataLossError, match=TOPIC):
            case.offload(True, "table")
        with pytest.raises(FolderLockedError):
            truncate_offloaded(case.path, case.folder / "table")
    finally:
        folder.store.close()

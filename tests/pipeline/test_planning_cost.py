"""What plans and streams do for each topic and ledger, counted in calls to the file system."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pulsemark.ledger.local.io.files import Files
from pulsemark.maintenance import verify_catalog
from pulsemark.pipeline import estimate_compaction, offload
from pulsemark.pipeline.audit_source import audit_tasks, counted
from pulsemark.pipeline.followed import followed
from pulsemark.pipeline.options import ReadOptions, StreamOptions
from pulsemark.pipeline.source import LedgerReader
from pulsemark.pipeline.stream import LedgerStreamReader


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often folders were listed and files were opened, since it was last cleared."""
    counted: Counter[str] = Counter()
    for name in ("listdir", "open"):
        whole: Callable[..., Any] = getattr(Files, name)

        def counting(*args: Any, name: str = name, whole: Callable[..., Any] = whole) -> Any:
            counted[name] += 1
            return whole(*args)

        monkeypatch.setattr(Files, name, counting)
    return counted


def filled(path: Path, tools: Any, topics: int, ledgers: int) -> Any:
    """An open folder with so many topics of so many ledgers of one message."""
    folder = tools.Folder(path)
    for number in range(topics):
        topic = folder.topic(f"t{number:03}")
        for _ in range(ledgers):
            topic.single(b"x")
            topic.ledger.roll()
    return folder


def counts(calls: Counter[str], step: Callable[[], Any]) -> tuple[int, int, Any]:
    """Listings and openings of a step, and its result."""
    calls.clear()
    result = step()
    return calls["listdir"], calls["open"], result


@pytest.mark.parametrize("shape", ["topics", "ledgers"])
def test_a_batch_read_lists_the_folder_as_often_for_many_as_for_few(
    tmp_path: Path, tools: Any, calls: Counter[str], shape: str
) -> None:
    """Listings do not grow; for each segment, plan and tasks each open at most six files."""
    seen = []
    for many in (4, 40):
        topics, ledgers = (many, 1) if shape == "topics" else (1, many)
        folder = filled(tmp_path / f"{many}", tools, topics, ledgers)
        folder.store.close()
        options = ReadOptions.parse(
            {"path": str(folder.path), "topicsPattern": ".*", "columns": "__index"}
        )
        reader = LedgerReader(options, tools.spark_schema(["__index"]))
        listed, opened, parts = counts(calls, reader.partitions)
        assert len(parts) == 1
        rows = lambda: sum(b.num_rows for part in parts for b in reader.read(part))  # noqa: E731, B023
        read_listed, read_opened, read = counts(calls, rows)
        assert read == many
        seen.append((listed, read_listed, opened, read_opened))
    few, more = seen
    assert more[:2] == few[:2]
    assert few[1] == 0
    for place in (2, 3):
        assert more[place] - few[place] <= 6 * 36


def test_a_task_of_an_audit_opens_the_segments_that_it_reads(
    tmp_path: Path, tools: Any, calls: Counter[str]
) -> None:
    """Of a topic's many segments a small part, without a listing."""
    folder = filled(tmp_path, tools, 1, 40)
    folder.store.close()
    options = ReadOptions.parse(
        {"path": str(folder.path), "topicsPattern": ".*", "minPartitions": "20"}
    )
    *_, task = audit_tasks(options)
    listed, opened, rows = counts(calls, lambda: list(counted(options, 60_000, (), False, task)))
    assert sum(sum(batch["count"].to_pylist()) for batch in rows) == 2
    assert (listed, opened <= 6 * 4) == (0, True)


def test_a_micro_batch_costs_what_has_changed(
    tmp_path: Path, tools: Any, calls: Counter[str]
) -> None:
    """Listings do not grow with the topics, and a task opens only the topics that it reads."""
    seen = []
    for many in (4, 40):
        folder = filled(tmp_path / f"{many}", tools, many, 1)
        options = StreamOptions.parse(
            {
                "path": str(folder.path),
                "topicsPattern": ".*",
                "columns": "__index",
                "startingOffsets": "earliest",
            }
        )
        stream = LedgerStreamReader(options, tools.spark_schema(["__index"]))
        start = stream.initialOffset()
        end = stream.latestOffset(start, ReadAllAvailable())
        assert len(stream.partitions(start, end)) == 1
        folder.topic("t001").single(b"new")
        listed, opened, later = counts(
            calls,
            lambda: stream.latestOffset(end, ReadAllAvailable()),  # noqa: B023
        )
        assert opened <= 2 * many + 10
        parts = stream.partitions(end, later)
        read_listed, read_opened, read = counts(
            calls,
            lambda: sum(b.num_rows for part in parts for b in stream.read(part)),  # noqa: B023
        )
        assert read == 1
        seen.append((listed, read_listed, read_opened))
        stream.stop()
        folder.store.close()
    assert seen[0] == seen[1]
    assert seen[0][1] == 0


@pytest.mark.parametrize("job", [offload, estimate_compaction])
def test_a_job_opens_a_topics_files_for_that_topic_alone(
    tmp_path: Path, tools: Any, calls: Counter[str], job: Callable[..., Any]
) -> None:
    """Listings do not grow with the topics, and each one costs at most 20 opened files."""
    seen = []
    for many in (4, 40):
        folder = filled(tmp_path / f"{many}", tools, many, 1)
        folder.store.close()
        # What has changed just now may change again unseen, so readers list it again.
        os.utime(folder.path / "ledgers", (0, 0))
        target = [tmp_path / f"table-{many}"] if job is not estimate_compaction else []
        listed, opened, done = counts(
            calls,
            lambda: job(folder.in_process(), folder.path, *target),  # noqa: B023
        )
        assert many == len(done if isinstance(done, list) else done.files)
        seen.append((listed, opened))
    (few_listed, few_opened), (listed, opened) = seen
    assert listed == few_listed
    assert opened - few_opened <= 20 * 36


def test_the_catalog_is_opened_as_often_for_many_topics(
    tmp_path: Path, tools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the plan of a batch, and by the first offload."""
    opened: list[Path] = []
    connect = verify_catalog.connect_read_only

    def counting(path: Path) -> Any:
        opened.append(path)
        return connect(path)

    monkeypatch.setattr(verify_catalog, "connect_read_only", counting)
    seen = []
    for many in (4, 40):
        folder = filled(tmp_path / str(many), tools, many, 1)
        folder.store.close()
        opened.clear()
        followed(ReadOptions.parse({"path": str(folder.path), "topicsPattern": ".*"})).read()
        planned = len(opened)
        offload(tools.InProcess(), folder.path, tmp_path / f"table-{many}")
        seen.append((planned, len(opened) - planned))
    assert seen[0] == seen[1]

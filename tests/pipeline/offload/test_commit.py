"""Runs that do not see one another's lock, as on two machines: the table lets each row in once."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from pulsemark.pipeline.columns import DEFAULT_COLUMNS
from pulsemark.pipeline.errors import JobFailedError, OptionError, TableChangedError
from pulsemark.pipeline.offload import DeltaTarget, IcebergTarget, verify_offload
from pulsemark.pipeline.offload.manifest import Layout
from pulsemark.pipeline.offload.places import LocalPlace
from pulsemark.pipeline.offload.schema import raw_schema
from pulsemark.pipeline.offload.table import ParquetFolder


class UnlockedPlace(LocalPlace):
    """A place without locks, as an object store; its files are in a folder all the same."""

    has_locks = False


def unlocked(table: Any) -> Any:
    """The table in a place without locks."""
    table.create(raw_schema(Layout(DEFAULT_COLUMNS)), ("topic", "hour"))
    table.place = UnlockedPlace(table.place.folder)
    table.lock = contextlib.nullcontext
    return table


def test_a_run_that_was_overtaken_copies_only_the_rest(
    folder: Any, run: Any, make_lake_table: Any
) -> None:
    """Between a run's plan and its commit another one copies the same messages, and grows more."""
    topic = folder.topic("a")
    run.fill(topic, folder, hours=2)
    table = unlocked(make_lake_table())
    commit, calls = table.commit, []

    def overtaken(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) == 1:
            assert run.copy(folder, unlocked(make_lake_table()), rows_per_file=7).rows
            run.fill(topic, folder, hours=1)
        commit(*arguments)

    table.commit = overtaken
    done = run.copy(folder, table)
    assert len(calls) == 2
    assert 0 < done.rows < len(topic.rows)
    assert run.rows_in(make_lake_table()) == run.truth(topic)
    assert all(check.good for check in verify_offload(folder.path, make_lake_table()))


def test_runs_at_once_copy_each_message_once(folder: Any, run: Any, make_lake_table: Any) -> None:
    """Four runs, also the first ones, which make the table."""
    topics = [folder.topic("a"), folder.topic("b")]
    for topic in topics:
        run.fill(topic, folder, hours=2)
    failures: list[BaseException] = []

    def offload_all(rows_per_file: int) -> None:
        try:
            run.copy(folder, unlocked(make_lake_table()), rows_per_file=rows_per_file)
        except (JobFailedError, OptionError) as error:
            failures.append(error)

    threads = [threading.Thread(target=offload_all, args=(size,)) for size in (5, 7, 50, 1000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a run has not ended in a minute"
    # A run that lost may be refused; the rows are there once in any case.
    assert len(failures) < len(threads), failures
    run.copy(folder, make_lake_table())
    assert run.rows_in(make_lake_table()) == run.truth(*topics)
    assert all(check.good for check in verify_offload(folder.path, make_lake_table()))


def test_a_table_that_always_changes_ends_the_run(folder: Any, run: Any, make_table: Any) -> None:
    """After ten attempts, with an error that says why."""
    folder.topic("a").single(b"x")
    table = make_table()
    calls = []

    def changed(*_: Any) -> None:
        calls.append(1)
        raise TableChangedError("t", "somebody was here")

    table.commit = changed
    with pytest.raises(JobFailedError, match="10 attempts: t: somebody was here"):
        run.copy(folder, table)
    assert len(calls) == 10


def test_a_kill_before_the_commit_shows_nothing(folder: Any, run: Any, make_table: Any) -> None:
    """The manifest is written, the table's transaction is not: the next run copies all of it."""
    topic = folder.topic("a")
    run.fill(topic, folder, hours=1)
    table = make_table()

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    table.commit = killed
    with pytest.raises(KeyboardInterrupt):
        run.copy(folder, table)
    assert make_table().load().files == ()
    assert run.copy(folder, make_table()).rows == len(topic.rows)
    assert run.rows_in(make_table()) == run.truth(topic)


def test_a_kill_after_the_commit_copies_nothing_twice(
    folder: Any, run: Any, make_table: Any
) -> None:
    """The run's note is still there; the next run removes it, and none of its files."""
    topic = folder.topic("a")
    run.fill(topic, folder, hours=1)
    table = make_table()
    commit = table.commit

    def killed(*arguments: Any) -> None:
        commit(*arguments)
        raise KeyboardInterrupt

    table.commit = killed
    with pytest.raises(KeyboardInterrupt):
        run.copy(folder, table)
    notes = table.place.folder / "_pulsemark"
    assert list(notes.glob("unfinished-*"))
    assert run.copy(folder, make_table()).files == ()
    assert not list(notes.glob("unfinished-*"))
    assert run.rows_in(make_table()) == run.truth(topic)


def test_a_commit_warns_of_nothing(
    folder: Any, run: Any, make_lake_table: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Values have no statistics on purpose: the table's library is told so, and does not warn."""
    topic = folder.topic("a")
    run.fill(topic, folder, hours=2)
    with caplog.at_level(logging.WARNING):
        assert run.copy(folder, make_lake_table()).rows
        run.fill(topic, folder, hours=1)
        assert run.copy(folder, make_lake_table()).rows
    assert [record.getMessage() for record in caplog.records] == []
    assert run.rows_in(make_lake_table()) == run.truth(topic)


def test_a_table_of_others_is_refused(folder: Any, run: Any, make_lake_table: Any) -> None:
    """With other columns or partitions it is not touched."""
    import pyarrow as pa

    folder.topic("a").single(b"x")
    table = make_lake_table()
    rows = pa.table({"x": [1]})
    if isinstance(table, DeltaTarget):
        from deltalake import write_deltalake

        write_deltalake(table.name, rows)
    else:
        table.catalog.create_namespace("archive")
        table.catalog.create_table(table.name, rows.schema).append(rows)
    with pytest.raises(OptionError, match="of other columns"):
        run.copy(folder, make_lake_table())
    assert run.table_rows(make_lake_table()).to_pylist() == [{"x": 1}]


def test_the_index_is_needed(folder: Any, run: Any, make_lake_table: Any) -> None:
    """A table with transactions is checked by the index; no columns without it."""
    folder.topic("a").single(b"x")
    with pytest.raises(OptionError, match=r"columns = 'value'.*needs __index"):
        run.copy(folder, make_lake_table(), columns=["value"])


@pytest.mark.parametrize("identifier", ["", "orders", ".x", "a..b"])
def test_bad_identifiers_are_refused(identifier: str) -> None:
    """An Iceberg table is named by namespace and table."""
    with pytest.raises(OptionError, match="option table"):
        IcebergTarget(identifier)


def test_a_catalog_that_cannot_be_opened_is_named(folder: Any, run: Any) -> None:
    """Not configured, or not there: one line with the option's name."""
    folder.topic("a").single(b"x")
    for properties in ({}, {"uri": "nope://x"}, {"type": "sql", "uri": "sqlite:////proc/x/y.db"}):
        with pytest.raises(OptionError, match="option catalog = 'nowhere': cannot be opened"):
            run.copy(folder, IcebergTarget("a.b", "nowhere", properties))


def test_what_counts_is_synced(
    folder: Any, run: Any, tmp_path: Path, make_table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All files of the table and all new folders: after a power cut the ledgers may be gone."""
    synced: set[Path] = set()
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        synced.add(Path(f"/proc/self/fd/{descriptor}").readlink())
        fsync(descriptor)

    folder.topic("a").single(b"x")
    monkeypatch.setattr("os.fsync", noted)
    table = make_table("new/x" if isinstance(make_table(), ParquetFolder | DeltaTarget) else "new")
    run.copy(folder, table)
    top = table.place.folder
    files = [path for path in top.rglob("*") if path.is_file() and path.name != "lock"]
    folders = [path for path in (top, *top.rglob("*"), *top.parents) if path.is_dir()]
    # A file that is renamed after its sync was synced under another name.
    names = {path.name.lstrip(".").split(".")[0] for path in synced}
    assert not [path for path in files if path.name.split(".")[0] not in names]
    assert not [path for path in folders if path.is_relative_to(tmp_path) and path not in synced]

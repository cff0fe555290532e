"""Offloads under bad conditions: odd names, wrong clocks, many hours, a disk that is full."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pulsemark.ledger import LocalStore
from pulsemark.pipeline.errors import DataLossError, OptionError
from pulsemark.pipeline.offload import DeltaTarget, IcebergTarget, verify_offload
from pulsemark.pipeline.offload.manifest import LAST_HOUR_MS, file_name
from pulsemark.pipeline.offload.places import LocalPlace
from pulsemark.pipeline.offload.table import ParquetFolder
from pulsemark.testing.raw_messages import unbatched_message

HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    "name", ["a b", "ü%2F", "x=1", "quo'te\"", "#?&", "日本", "n" * 180, "日" * 60, ".."]
)
def test_topics_with_odd_names(folder: Any, run: Any, make_table: Any, name: str) -> None:
    """Each is copied, verified, and read back under its own name."""
    topic = folder.topic(name)
    run.fill(topic, folder, hours=1)
    run.copy(folder, make_table())
    assert run.rows_in(make_table()) == run.truth(topic)
    assert all(check.good for check in verify_offload(folder.path, make_table()))


def test_long_names_keep_apart() -> None:
    """Names that are cut have a checksum: no two topics share a folder."""
    paths = {file_name("日" * 60 + end, 1, 0, 0, 1) for end in ("a", "b", "c")}
    assert len(paths) == 3
    assert all(len(part) <= 255 for path in paths for part in path.split("/"))


def test_a_clock_that_was_wrong_by_years(folder: Any, run: Any, make_table: Any) -> None:
    """Ahead beyond the year 9999, then back: every message is there, the files in order."""
    topic = folder.topic("a")
    run.fill(topic, folder, hours=1)
    now_ms, messages = folder.clock.now_ms(), len(topic.rows)
    for moment in (now_ms + 30 * 365 * 24 * HOUR_MS, LAST_HOUR_MS + 5 * HOUR_MS, now_ms):
        folder.clock.set(moment)
        for _ in range(3):
            topic.raw(unbatched_message(b"x", publish_time_ms=1))
            folder.clock.advance(by_ms=HOUR_MS)
            messages += 1
    columns = ["__topic", "__index", "value"]
    done = run.copy(folder, make_table(), columns=columns)
    assert max(file.hour_ms for file in done.files) == LAST_HOUR_MS
    indexes = [index for _, index, _ in run.rows_in(make_table())]
    assert len(indexes) == len(set(indexes)) == messages
    assert all(check.good for check in verify_offload(folder.path, make_table()))


def test_many_hours_are_few_tasks(folder: Any, run: Any, make_table: Any) -> None:
    """A file for each hour, written one after another: small ones share a task."""
    topic = folder.topic("a")
    for number in range(60):
        topic.single(b"%d" % number)
        folder.clock.advance(by_ms=HOUR_MS)
    spark = folder.in_process()
    done = run.copy(folder, make_table(), spark=spark)
    assert len(done.files) == 60
    assert spark.tasks == 1
    assert run.rows_in(make_table()) == run.truth(topic)


def test_a_full_disk_shows_nothing(
    folder: Any, run: Any, make_table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At whichever file it happens: nothing counts, and the next run copies all of it."""
    topic = folder.topic("a")
    run.fill(topic, folder, hours=3)
    for full_at in (0, 1, 3):
        left = [full_at]

        def fsync(descriptor: int, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise OSError(28, os.strerror(28))

        table = make_table()
        with monkeypatch.context() as full:
            full.setattr("os.fsync", fsync)
            with pytest.raises((OSError, OptionError), match="No space left"):
                run.copy(folder, table)
        assert make_table().load().files == ()
    run.copy(folder, make_table())
    assert run.rows_in(make_table()) == run.truth(topic)
    assert all(check.good for check in verify_offload(folder.path, make_table()))


def test_a_damaged_ledger_stops_the_run(folder: Any, run: Any, make_table: Any) -> None:
    """A loss is an error with the topic's name; what was there before still counts."""
    topic = folder.topic("a")
    run.fill(topic, folder, hours=1)
    run.copy(folder, make_table())
    copied = run.rows_in(make_table())
    topic.ledger.roll()
    run.fill(topic, folder, hours=1)
    ledgers = folder.path / "ledgers"
    path = max((p for p in ledgers.iterdir() if p.suffix == ".log"), key=lambda p: p.name)
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 40] = bytes(40)
    path.write_bytes(data)
    with pytest.raises(DataLossError, match="/a:"):
        run.copy(folder, make_table())
    assert run.rows_in(make_table()) == copied


def test_an_unwritable_folder_is_one_line(folder: Any, run: Any) -> None:
    """A place where nothing can be made is refused with the option's name."""
    folder.topic("a").single(b"x")
    for target in (Path("/proc/nowhere/x"), Path("/dev/null/x"), Path("/x\0y")):
        with pytest.raises(OptionError, match="target"):
            run.copy(folder, target)


@pytest.mark.parametrize("content", [b"", b"\xff", b'["topic=/../../victim"]'])
def test_a_note_of_a_killed_run_names_nothing(
    folder: Any, run: Any, tmp_path: Path, content: bytes
) -> None:
    """Whatever is in it: only files of killed runs go, and none of others or of the table."""
    topic = folder.topic("a")
    topic.single(b"x")
    (tmp_path / "victim").write_text("mine")
    table = ParquetFolder(tmp_path / "out")
    (file,) = run.copy(folder, table).files
    theirs = (tmp_path / "out" / file.path).with_name("part-0.parquet")
    theirs.write_bytes(b"mine")
    left = (tmp_path / "out" / file.path).with_name(f"9-{7:020d}-{8:020d}.parquet")
    left.write_bytes(b"half")
    (tmp_path / "out/_pulsemark/unfinished-0.json").write_bytes(content)
    topic.single(b"y")
    run.copy(folder, table)
    assert (tmp_path / "victim").read_text() == theirs.read_text() == "mine"
    assert not left.exists()
    assert not list((tmp_path / "out/_pulsemark").glob("unfinished-*"))
    theirs.unlink()
    assert run.rows_in(table) == run.truth(topic)


def test_a_table_of_another_format_is_refused(folder: Any, run: Any, tmp_path: Path) -> None:
    """Its manifests would be taken for those of the format that was named."""
    topic = folder.topic("a")
    topic.single(b"x")
    run.copy(folder, DeltaTarget(tmp_path / "delta"))
    run.copy(folder, tmp_path / "parquet")
    uri, warehouse = f"sqlite:///{tmp_path}/c.db", f"file://{tmp_path}/w"
    iceberg = IcebergTarget("a.b", "x", {"type": "sql", "uri": uri, "warehouse": warehouse})
    run.copy(folder, iceberg)
    topic.single(b"y")
    with pytest.raises(OptionError, match="is a table of the format delta, not parquet"):
        run.copy(folder, tmp_path / "delta")
    with pytest.raises(OptionError, match="is a table of the format parquet, not delta"):
        run.copy(folder, DeltaTarget(tmp_path / "parquet"))
    assert isinstance(iceberg.place, LocalPlace)
    for other in (ParquetFolder, DeltaTarget):
        with pytest.raises(OptionError, match="is a table of the format iceberg, not"):
            run.copy(folder, other(iceberg.place.folder))


def test_another_store_s_folder_is_refused(folder: Any, run: Any, tmp_path: Path) -> None:
    """Files in it would be taken for what a crash left there."""
    folder.topic("a").single(b"x")
    LocalStore.open(tmp_path / "other").close()
    (tmp_path / "link").symlink_to(tmp_path / "other")
    for target in (tmp_path / "other", tmp_path / "other/x/y", tmp_path / "link"):
        for table in (ParquetFolder(target), DeltaTarget(target)):
            with pytest.raises(OptionError, match=r"is inside the data folder .*other"):
                run.copy(folder, table)
    assert not (tmp_path / "other/x").exists()

"""A check reads the table back; what it finds wrong is named, and nothing is removed for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from pulsemark.pipeline.offload import DeltaTarget, truncate_offloaded, verify_offload


@pytest.mark.parametrize("damage", ["bytes", "missing", "manifest gap", "rows"])
def test_a_check_finds_what_is_wrong(folder: Any, run: Any, make_table: Any, damage: str) -> None:
    """Changed bytes, a missing file, a file that no manifest has, and rows that are not there."""
    topic = folder.topic("a")
    run.fill(topic, folder, hours=3)
    table = make_table()
    done = run.copy(folder, table)
    (good,) = verify_offload(folder.path, table)
    assert good.good
    assert good.verified_end_index == topic.ledger.next_index
    path = table.place.folder / done.files[1].path
    manifest = table.load()
    files = list(manifest.files)
    if damage == "bytes":
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    elif damage == "missing":
        path.unlink()
    elif damage == "manifest gap":
        del files[1]
    else:
        files[1] = replace(files[1], rows=files[1].rows - 1)
    table.load = lambda: replace(manifest, files=tuple(files))
    (bad,) = verify_offload(folder.path, table)
    assert not bad.good
    assert bad.verified_end_index <= done.files[0].end_index
    folder.store.close()
    assert truncate_offloaded(folder.path, table) == {}


def rewritten(table: Any, rows: pa.Table) -> None:
    """What a table's own maintenance, or its users, may do: other files with these rows."""
    if isinstance(table, DeltaTarget):
        from deltalake import write_deltalake

        write_deltalake(table.name, rows, mode="overwrite")
    else:
        table.catalog.load_table(table.name).overwrite(rows)


def test_a_table_that_others_have_compacted_is_good(
    folder: Any, run: Any, make_lake_table: Any
) -> None:
    """Its files are others, its rows the same ones: also for the next run."""
    topics = [folder.topic("a"), folder.topic("b")]
    for topic in topics:
        run.fill(topic, folder, hours=2)
    run.copy(folder, make_lake_table())
    rewritten(make_lake_table(), run.table_rows(make_lake_table()))
    assert all(check.good for check in verify_offload(folder.path, make_lake_table()))
    run.fill(topics[0], folder, hours=1)
    run.copy(folder, make_lake_table())
    assert run.rows_in(make_lake_table()) == run.truth(*topics)
    assert all(check.good for check in verify_offload(folder.path, make_lake_table()))


@pytest.mark.parametrize("damage", ["one less", "one twice", "moved"])
def test_a_table_that_others_have_changed_is_not(
    folder: Any, run: Any, make_lake_table: Any, damage: str
) -> None:
    """A row that is gone, doubled, or replaced by another one; nothing is truncated for it."""
    topic = folder.topic("a")
    run.fill(topic, folder, hours=2)
    topic.ledger.roll()
    run.fill(topic, folder, hours=1)
    run.copy(folder, make_lake_table())
    rows = run.table_rows(make_lake_table())
    if damage == "one less":
        rows = rows.slice(1)
    elif damage == "one twice":
        rows = pa.concat_tables([rows, rows.slice(3, 1)])
    else:
        rows = pa.concat_tables([rows.slice(1), rows.slice(3, 1)])
    rewritten(make_lake_table(), rows)
    (check,) = verify_offload(folder.path, make_lake_table())
    assert not check.good
    assert "rows" in check.problems[0]
    folder.store.close()
    assert truncate_offloaded(folder.path, make_lake_table()) == {}


def test_a_file_that_no_manifest_lists_is_a_problem(folder: Any, run: Any, make_table: Any) -> None:
    """In a folder of Parquet files its readers see it; in the others they do not."""
    topic = folder.topic("a")
    run.fill(topic, folder, hours=1)
    table = make_table()
    done = run.copy(folder, table)
    path = table.place.folder / done.files[0].path
    path.with_name("other.parquet").write_bytes(path.read_bytes())
    (check,) = verify_offload(folder.path, make_table())
    seen = len(run.rows_in(make_table())) != len(topic.rows)
    assert check.good is not seen

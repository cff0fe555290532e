"""Upkeep of a table after a run: few files, few states, no rows whose lifetime is over."""

from __future__ import annotations

import time
from typing import Any

import pytest

from pulsemark.pipeline.errors import OptionError
from pulsemark.pipeline.offload import Upkeep, verify_offload

HOUR_MS = 3_600_000


def test_small_files_become_one_and_old_states_go(
    folder: Any, run: Any, make_lake_table: Any
) -> None:
    """The rows are the same; the files of earlier states are removed; the next run goes on."""
    topic = folder.topic("a")
    run.fill(topic, folder, hours=1)
    run.copy(folder, make_lake_table(), rows_per_file=5)
    many = len(make_lake_table().data_paths())
    assert many > 3
    run.copy(folder, make_lake_table(), upkeep=Upkeep(compact_files=True, expire_snapshots_ms=0))
    assert len(make_lake_table().data_paths()) < many / 2
    run.fill(topic, folder, hours=1)
    run.copy(folder, make_lake_table(), rows_per_file=5)
    assert run.rows_in(make_lake_table()) == run.truth(topic)
    assert all(check.good for check in verify_offload(folder.path, make_lake_table()))


def test_rows_have_a_lifetime(folder: Any, run: Any, make_table: Any) -> None:
    """What is older is removed, and missed by nobody; a kill in between is made up for."""
    topic = folder.topic("a")
    now_ms = time.time_ns() // 1_000_000 // HOUR_MS * HOUR_MS
    folder.clock.set(now_ms - 48 * HOUR_MS)
    run.fill(topic, folder, hours=2)
    old = len(topic.rows)
    folder.clock.set(now_ms - 2 * HOUR_MS)
    run.fill(topic, folder, hours=1)
    table = make_table()
    remove = table.remove_before

    def killed(*given: Any) -> None:
        remove(*given)
        raise KeyboardInterrupt

    table.remove_before = killed
    asked = Upkeep(row_lifetime_ms=24 * HOUR_MS)
    with pytest.raises(KeyboardInterrupt):
        run.copy(folder, table, upkeep=asked)
    for _ in range(2):
        run.copy(folder, make_table(), upkeep=asked)
        kept = [row for row in run.truth(topic) if row[1] >= topic.rows[old]["__index"]]
        assert run.rows_in(make_table()) == kept
        assert all(check.good for check in verify_offload(folder.path, make_table()))


def test_what_a_table_cannot_do_is_refused(folder: Any, run: Any, make_table: Any) -> None:
    """With the option, and what is right."""
    topic = folder.topic("a")
    topic.single(b"x", key="k")
    table = make_table()
    if table.format == "parquet":
        for upkeep in (Upkeep(compact_files=True), Upkeep(expire_snapshots_ms=1)):
            with pytest.raises(OptionError, match="needs --format delta or iceberg"):
                run.copy(folder, table, upkeep=upkeep)
    else:
        with pytest.raises(OptionError, match="rowLifetime = '1': needs writeMode=append"):
            run.copy(folder, table, upkeep=Upkeep(row_lifetime_ms=1), write_mode="upsert")

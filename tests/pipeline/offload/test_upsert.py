"""Offloads that keep the latest message of each key: as computed by hand, whatever was killed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from pulsemark.pipeline.errors import JobFailedError, OptionError
from pulsemark.pipeline.offload import job, truncate_offloaded, verify_offload

UPSERT = {"write_mode": "upsert"}


def fill(topic: Any, made: random.Random, count: int, *, keyless: float = 0.0) -> None:
    """Singles and batches of a few keys; some delete their key."""
    for _ in range(count):
        key = None if made.random() < keyless else made.choice([*"abcdefgh", "ä", "k" * 40])
        value = made.choice([None, b"", *(b"v%d" % made.randrange(1000) for _ in range(4))])
        topic.single(value, key=key)


def latest(*topics: Any) -> list[tuple[Any, ...]]:
    """(topic, key, index, value) of the last message of each key, computed by hand."""
    found: dict[Any, Any] = {}
    for topic in topics:
        for row in topic.rows:
            if row["__key"] is not None:
                found[topic.name, row["__key"]] = (row["__index"], row["value"])
    return sorted((*name, *row) for name, row in found.items() if row[1])


def rows_of(run: Any, table: Any) -> list[tuple[Any, ...]]:
    """The same of a table."""
    columns = ["topic", "__key", "__index", "value"]
    rows = run.table_rows(table).select(columns).to_pylist()
    return sorted(tuple(row.values()) for row in rows)


@pytest.mark.parametrize("partition_by", ["topic", "bucket(3)"])
def test_a_row_is_the_latest_message_of_its_key(
    folder: Any, run: Any, make_lake_table: Any, monkeypatch: pytest.MonkeyPatch, partition_by: str
) -> None:
    """Over several runs and commits, of which some are killed."""
    made = random.Random(5)
    monkeypatch.setattr(job, "MERGED_ROWS", 25)
    topics = [folder.topic("a"), folder.topic("b")]
    for number in range(2):
        for topic in topics:
            fill(topic, made, 30)
        asked = {**UPSERT, "partition_by": partition_by, "rows_per_file": 20}
        with pytest.raises(KeyboardInterrupt):
            run.copy(folder, make_lake_table(), files_before_kill=number, **asked)
        table = make_lake_table()
        upsert = table.upsert
        calls: list[int] = []

        def killed(*given: Any, calls: Any = calls, upsert: Any = upsert) -> None:
            calls.append(1)
            upsert(*given)
            if len(calls) == 2:
                raise KeyboardInterrupt

        table.upsert = killed
        with pytest.raises(KeyboardInterrupt):
            run.copy(folder, table, **asked)
        run.copy(folder, make_lake_table(), **asked)
        assert rows_of(run, make_lake_table()) == latest(*topics)
    table = make_lake_table()
    assert all(check.good for check in verify_offload(folder.path, table))
    assert table.place.names("_pulsemark/changes") == []
    assert run.copy(folder, make_lake_table(), **UPSERT, partition_by=partition_by).files == ()


def test_messages_without_a_key_are_named(folder: Any, run: Any, make_lake_table: Any) -> None:
    """An error with the message's index; or they are rejected, each once."""
    made = random.Random(6)
    topic = folder.topic("a")
    topic.single(b"x", key="a")
    topic.single(b"dead")
    with pytest.raises(JobFailedError, match=r"a: message 1 has no key.*PERMISSIVE"):
        run.copy(folder, make_lake_table(), **UPSERT)
    assert rows_of(run, make_lake_table()) == []
    fill(topic, made, 40, keyless=0.2)
    run.copy(folder, make_lake_table(), **UPSERT, mode="PERMISSIVE")
    assert rows_of(run, make_lake_table()) == latest(topic)
    rejected = run.table_rows(make_lake_table().rejected()).sort_by("__index")
    keyless = [row for row in topic.rows if row["__key"] is None]
    assert rejected["value"].to_pylist() == [row["value"] for row in keyless]
    assert set(rejected["__error"].to_pylist()) == {"it has no key"}
    assert all(check.good for check in verify_offload(folder.path, make_lake_table()))


def test_a_topic_that_is_created_again_goes_on(folder: Any, run: Any, make_lake_table: Any) -> None:
    """Its indexes begin again, and its messages are the later ones."""
    first = folder.topic("a")
    for number in range(5):
        first.single(b"old%d" % number, key=f"k{number}")
    run.copy(folder, make_lake_table(), **UPSERT)
    folder.store.delete_topic(first.name)
    again = folder.topic("a")
    again.single(b"new", key="k3")
    run.copy(folder, make_lake_table(), **UPSERT, fail_on_data_loss=False)
    values = {key: value for _, key, _, value in rows_of(run, make_lake_table())}
    assert values == {b"k0": b"old0", b"k1": b"old1", b"k2": b"old2", b"k3": b"new", b"k4": b"old4"}


def test_nonsense_is_refused_by_name(
    folder: Any, run: Any, make_lake_table: Any, tmp_path: Path
) -> None:
    """Each option with what is right; such a table does not let the ledgers go."""
    folder.topic("a").single(b"x", key="k")
    for target, arguments, message in (
        (tmp_path / "files", UPSERT, "writeMode = 'upsert': needs --format delta or iceberg"),
        (make_lake_table(), {"write_mode": "merge"}, "writeMode = 'merge': is not one of append"),
        (make_lake_table(), {**UPSERT, "partition_by": "hour"}, "partitionBy = 'hour'.*bucket"),
        (make_lake_table(), {"partition_by": "bucket(4)"}, "partitionBy.*one of hour, day"),
        (make_lake_table(), {**UPSERT, "columns": ["__index"]}, "an upsert needs __key, value"),
    ):
        with pytest.raises(OptionError, match=message):
            run.copy(folder, target, **arguments)
    run.copy(folder, make_lake_table(), **UPSERT)
    with pytest.raises(OptionError, match=r"partitionBy = 'bucket.2.': the target has topic"):
        run.copy(folder, make_lake_table(), **UPSERT, partition_by="bucket(2)")
    with pytest.raises(OptionError, match="writeMode = 'append': the target has upsert"):
        run.copy(folder, make_lake_table())
    folder.store.close()
    with pytest.raises(OptionError, match="only the latest message of each key"):
        truncate_offloaded(folder.path, make_lake_table())

"""The job and the broker's own compaction keep the same messages, and dry runs say how many."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pulsemark.compaction.batch_rewrite import open_batch
from pulsemark.compaction.compaction import MAX_UNCOMPRESSED_BYTES, compact
from pulsemark.compaction.current_view import compacted_log
from pulsemark.compaction.keys import is_batch
from pulsemark.ledger import EARLIEST, FolderLockedError, Position
from pulsemark.metadata import read_message_metadata
from pulsemark.pipeline import (
    DeltaTarget,
    compact_folder,
    estimate_compaction,
    offload,
)
from pulsemark.testing.raw_messages import BatchMember

_PLACE = ("__ledgerId", "__entryId", "__batchIndex")
_COLUMNS = ("__index", "__key", "value", *_PLACE)


def fill(topic: Any, folder: Any, seed: int, entries: int = 150) -> None:
    """Random singles and batches of a few keys, with deletions, compressions, and no keys."""
    made = random.Random(seed)

    def member() -> dict[str, Any]:
        value = made.choice([None, b"", b"v%d" % made.randrange(1000), b"w" * made.randrange(200)])
        return {"key": made.choice([None, *"abcdefgh", "ä", "k" * 40]), "value": value}

    for number in range(entries):
        folder.clock.advance(by_ms=1000)
        if made.random() < 0.4:
            one = member()
            topic.single(one["value"], key=one["key"], compression=made.choice([0, 0, 1, 2, 3, 4]))
        elif made.random() < 0.1:
            topic.control()
        else:
            members = [member() for _ in range(made.randrange(1, 6))]
            topic.batch(
                [BatchMember(payload=each["value"], key=each["key"]) for each in members],
                compression=made.choice([0, 1, 2, 3, 4]),
            )
        if number % 60 == 59:
            topic.ledger.roll()


def latest_by_hand(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last row of each key that has a value, computed from what was written."""
    latest: dict[bytes, dict[str, Any]] = {}
    for row in rows:
        if row["__key"] is None:
            continue
        latest.pop(row["__key"], None)
        if row["value"]:
            latest[row["__key"]] = row
    return sorted(latest.values(), key=lambda row: row["__index"])


def kept_in_view(topic: Any) -> set[tuple[Position, int]]:
    """The messages of the topic's compacted view, read as its consumers do."""
    kept = set()
    log = compacted_log(topic.ledger)
    entries = log.read(EARLIEST, max_entries=10_000)
    for entry in entries:
        metadata = read_message_metadata(entry.body)
        if is_batch(metadata) and not metadata.encryption_keys:
            members = open_batch(metadata, entry.body, MAX_UNCOMPRESSED_BYTES).members
            kept |= {(entry.position, n) for n, each in enumerate(members) if not each.hole}
        else:
            kept |= {(entry.position, n) for n in range(entry.message_count)}
    return kept


def places_of(rows: list[dict[str, Any]]) -> set[tuple[Position, int]]:
    """The same of rows."""
    return {
        (Position(row["__ledgerId"], row["__entryId"]), max(0, row["__batchIndex"])) for row in rows
    }


def rows_of(target: DeltaTarget) -> list[dict[str, Any]]:
    """All rows of a table, by index."""
    from deltalake import DeltaTable

    table = pa.table(DeltaTable(target.name).to_pyarrow_table())
    return [dict(row) for row in table.sort_by("__index").to_pylist()]


@pytest.mark.parametrize("seed", range(4))
def test_an_upsert_keeps_what_a_compaction_keeps(folder: Any, tmp_path: Path, seed: int) -> None:
    """Compared with a computation by hand from what was written, and with the topic's own view."""
    topic, target = folder.topic("a"), DeltaTarget(tmp_path / "out")
    fill(topic, folder, seed)
    offload(
        folder.in_process(), folder.path, target,
        columns=_COLUMNS, write_mode="upsert", mode="PERMISSIVE",
    )  # fmt: skip
    rows = [{name: row[name] for name in _COLUMNS} for row in rows_of(target)]
    by_hand = latest_by_hand(topic.rows)
    assert by_hand
    assert rows == [{name: row[name] for name in _COLUMNS} for row in by_hand]
    compact(topic.ledger)
    assert places_of(rows) == kept_in_view(topic)


def test_a_dry_run_says_what_the_compaction_does(folder: Any) -> None:
    """The figures of both are the same, by topic; the dry run changes nothing."""
    for number in range(3):
        fill(folder.topic(f"t{number}"), folder, seed=number)
    before = sorted(path.stat().st_mtime_ns for path in folder.path.rglob("*"))
    guessed = estimate_compaction(folder.in_process(), folder.path)
    assert sorted(path.stat().st_mtime_ns for path in folder.path.rglob("*")) == before
    folder.store.close()
    done = compact_folder(folder.path)
    for guess, figures in zip(guessed, done, strict=True):
        for name in _GUESSED:
            assert getattr(guess, name) == getattr(figures, name), name
        # The view has headers and an index of its own beside the entries.
        assert guess.bytes_written < figures.bytes_written < guess.bytes_written + 200 * 150
        assert guess.bytes_written < guess.bytes_read
    (again, *_) = compact_folder(folder.path)
    assert (again.entries_read, again.messages_read) == (0, 0)


_GUESSED = (
    *("topic", "entries_read", "entries_kept", "messages_read", "keys", "tombstones", "unkeyed"),
    *("unreadable", "damaged", "bytes_read"),
)


def test_a_dry_run_begins_with_the_view_that_is_there(folder: Any) -> None:
    """What was compacted once is read from the view, also if the log was trimmed."""
    topic = folder.topic("a")
    fill(topic, folder, seed=1)
    topic.ledger.roll()
    compact(topic.ledger)
    topic.ledger.trim(topic.ledger.segments()[-1].first_position)
    topic.single(b"new", key="only")
    (guess,) = estimate_compaction(folder.in_process(), folder.path)
    report = compact(topic.ledger)
    assert (guess.keys, guess.entries_read) == (report.keys, report.entries_read)


def test_a_folder_in_use_is_not_compacted(folder: Any) -> None:
    """Its broker makes the views, or no process does."""
    folder.topic("a").single(b"x", key="k")
    with pytest.raises(FolderLockedError):
        compact_folder(folder.path)


def test_no_topics_are_no_figures(folder: Any) -> None:
    """An empty folder gives an empty result."""
    assert estimate_compaction(folder.in_process(), folder.path) == []

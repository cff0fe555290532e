"""Reads of a folder with all that can be in one, compared with plain Python over the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pulsemark.ledger import EARLIEST, EntryKind, FolderReader
from pulsemark.pipeline.columns import ENTRY_COLUMNS

MESSAGE_COLUMNS = (
    "value", "__key", "__eventTime", "__messageProperties", "__index", "__ledgerId", "__entryId",
)  # fmt: skip
ALL_OF_ENTRIES = ",".join(ENTRY_COLUMNS)


def test_the_folder_has_all_that_it_is_for(mixed: tuple[Path, list[str]], tools: Any) -> None:
    """Each kind of entry that the comparisons are about is really there."""
    path, topics = mixed
    assert len(topics) == 5
    rows = [row for topic in topics for row in tools.entries_by_hand(path, topic)]
    assert {row["__compression"] for row in rows} == {None, "LZ4", "ZLIB", "ZSTD", "SNAPPY"}
    assert {row["__encrypted"] for row in rows} == {True, False}
    assert {row["__prefix"] is None for row in rows} == {True, False}
    assert {row["__messageCount"] for row in rows} >= {1, 2, 3, 4, 7}
    assert {row["__tags"].get("region") for row in rows} == {None, "life 0", "life 1", "life 2"}
    with FolderReader(path) as reader:
        logs = reader.logs(topics)
        assert all(log.segments()[-1].header.ledger_id > 0 for log in logs.values())
        assert logs[topics[2]].first_index > 0
        for log in logs.values():
            kinds = {entry.kind for entry in log.read(EARLIEST, max_entries=1000)}
            assert kinds == {EntryKind.DATA, EntryKind.CONTROL}


def test_messages_are_those_of_plain_python(mixed: tuple[Path, list[str]], tools: Any) -> None:
    """Values, keys, times, properties and places, of all topics."""
    path, topics = mixed
    found = tools.rows_of(path, topicsPattern=".*", columns=",".join(MESSAGE_COLUMNS))
    assert found == [row for topic in sorted(topics) for row in tools.messages_by_hand(path, topic)]


def test_entries_are_those_of_plain_python(mixed: tuple[Path, list[str]], tools: Any) -> None:
    """All columns of all entries, unopened."""
    path, topics = mixed
    found = tools.rows_of(path, topicsPattern=".*", rows="entries", columns=ALL_OF_ENTRIES)
    assert found == [row for topic in sorted(topics) for row in tools.entries_by_hand(path, topic)]


@pytest.mark.parametrize("name", ENTRY_COLUMNS)
def test_each_column_of_entries_alone(mixed: tuple[Path, list[str]], tools: Any, name: str) -> None:
    """A column does not depend on which others are read."""
    path, topics = mixed
    found = tools.rows_of(path, topic=topics[0], rows="entries", columns=name)
    assert found == tools.only(tools.entries_by_hand(path, topics[0]), [name])


def test_neighbouring_ranges_share_no_entry(mixed: tuple[Path, list[str]], tools: Any) -> None:
    """Whatever message of a batch a range ends at, each entry is in one range."""
    path, topics = mixed
    expected = tools.entries_by_hand(path, topics[0])
    last = expected[-1]["__index"] + 1

    def between(start: int, end: int) -> Sequence[dict[str, Any]]:
        rows: list[dict[str, Any]] = tools.rows_of(
            path, topic=topics[0], rows="entries", startingOffsets=start, endingOffsets=end
        )
        return rows

    for cut in range(min(last, 60)):
        indexes = [row["__index"] for row in (*between(0, cut), *between(cut, last))]
        assert indexes == [row["__index"] for row in expected]

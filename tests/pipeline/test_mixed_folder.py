"""Reads of a folder with all that can be in one, compared with plain Python over the ledger."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from pulsemark.ledger import EARLIEST, EntryKind, FolderReader

MESSAGE_COLUMNS = (
    "value", "__key", "__eventTime", "__messageProperties", "__index", "__ledgerId", "__entryId",
)  # fmt: skip


def test_the_folder_has_all_that_it_is_for(mixed: tuple[Path, list[str]], tools: Any) -> None:
    """Each kind of entry that the comparisons are about is really there."""
    path, topics = mixed
    assert len(topics) == 5
    rows = [row for topic in topics for row in tools.entries_by_hand(path, topic)]
    assert {row["compression"] for row in rows} == {"NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY"}
    assert {row["is_encrypted"] for row in rows} == {True, False}
    assert {row["is_stamped"] for row in rows} == {True, False}
    assert {row["count"] for row in rows} >= {1, 2, 3, 4, 7}
    assert {row["tags"].get("region") for row in rows} == {None, "life 0", "life 1", "life 2"}
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


def test_neighbouring_ranges_share_no_message(mixed: tuple[Path, list[str]], tools: Any) -> None:
    """Whatever message of a batch a range ends at, each message is in one range."""
    path, topics = mixed
    expected = [row["__index"] for row in tools.messages_by_hand(path, topics[0])]
    read = partial(tools.rows_of, path, topic=topics[0], columns="__index")
    for cut in range(min(expected[-1], 60)):
        rows = [*read(endingOffsets=cut), *read(startingOffsets=cut)]
        assert [row["__index"] for row in rows] == expected

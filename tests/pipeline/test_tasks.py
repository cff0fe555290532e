"""A gap in the indexes is a loss, wherever in a slice it is."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from pulsemark.ledger import CorruptEntryError, Entry, EntryKind, FolderReader, Position
from pulsemark.ledger.local.segment.segment import as_segment
from pulsemark.pipeline.decode.entries import EntryTable, table_of_entries
from pulsemark.pipeline.errors import DataLossError
from pulsemark.pipeline.slices import Slice
from pulsemark.pipeline.tasks import Continuity
from pulsemark.testing.raw_messages import BatchMember

PART = Slice("t", Position(1, 0), Position(1, 9), 10, 20)


def table(*spans: tuple[int, int]) -> EntryTable:
    """Entries of the messages [first, last]."""
    return table_of_entries(
        [
            Entry(Position(1, n), EntryKind.DATA, last - first + 1, last, 5, 0, memoryview(b""))
            for n, (first, last) in enumerate(spans)
        ]
    )


@pytest.mark.parametrize(
    "tables",
    [
        [table((10, 19))],
        [table((8, 12), (13, 13)), table((14, 25))],
        [table((10, 11), (12, 11), (12, 19))],
    ],
    ids=["one entry", "cut at both ends", "an entry without messages"],
)
def test_a_whole_slice_passes(tables: list[EntryTable]) -> None:
    """However its entries are cut, and where they reach beyond it."""
    continuity = Continuity(PART, fail=True)
    for each in tables:
        continuity.check(each)
    continuity.finish()


@pytest.mark.parametrize(
    ("tables", "lost"),
    [
        ([], (10, 20)),
        ([table((12, 19))], (10, 12)),
        ([table((10, 12), (15, 19))], (13, 15)),
        ([table((10, 12)), table((15, 19))], (13, 15)),
        ([table((10, 12))], (13, 20)),
    ],
    ids=["all", "the first", "between", "between tables", "the last"],
)
def test_a_gap_is_named(
    tables: list[EntryTable], lost: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    """As an error with the range; as a warning where losses are allowed."""
    strict = Continuity(PART, fail=True)
    with pytest.raises(DataLossError) as raised:
        follow(strict, tables)
    assert (raised.value.topic, raised.value.first_index, raised.value.end_index) == ("t", *lost)
    with caplog.at_level(logging.WARNING):
        follow(Continuity(PART, fail=False), tables)
    assert f"[{lost[0]}, {lost[1]})" in caplog.text


def test_damage_is_given_as_the_reason() -> None:
    """The next gap tells why it is there."""
    continuity = Continuity(PART, fail=True)
    continuity.damaged(CorruptEntryError("t", Position(1, 3), Position(1, 4), "damaged"))
    with pytest.raises(DataLossError, match="damaged"):
        continuity.finish()


def test_each_gap_has_the_reason_of_its_own_damage(caplog: pytest.LogCaptureFixture) -> None:
    """Damage is reported before the entries around it; a gap without damage has no such reason."""
    continuity = Continuity(PART, fail=False)
    entries = table((10, 11), (13, 13), (16, 17), (19, 19))
    entries.entry_ids[:] = [0, 2, 4, 5]
    for entry_id in (1, 3):
        damage = CorruptEntryError("t", Position(1, entry_id), Position(1, 9), f"why {entry_id}")
        continuity.damaged(damage)
    with caplog.at_level(logging.WARNING):
        continuity.check(entries)
    reasons = [record.getMessage() for record in caplog.records]
    for reason, text in zip(reasons, ("why 1", "why 3", "not in the folder"), strict=True):
        assert text in reason


def follow(continuity: Continuity, tables: list[EntryTable]) -> None:
    """Read a slice to its end."""
    for each in tables:
        continuity.check(each)
    continuity.finish()


COLUMNS = "value,__index,__ledgerId,__entryId,__topic,__error"


@pytest.fixture
def damaged(tmp_path: Path, tools: Any) -> Path:
    """Entries 1 (head), 2 (body), 3 (no batch), 4 (no message) and 7 (a damaged batch) are bad."""
    folder = tools.Folder(tmp_path)
    topic = folder.topic("a")
    for value in (b"good 0", b"head is damaged", b"body is damaged"):
        topic.single(value)
    topic.single(b"no batch", num_messages_in_batch=1)
    topic.raw(b"no message")
    for number in range(5, 9):
        topic.batch([BatchMember(payload=b"good %d" % number)] * 3)
    folder.store.close()
    with FolderReader(tmp_path) as reader:
        segment = as_segment(reader.log(topic.name).segments()[0])
        head, bodies = segment.row(1).offset, [segment.row(row).end_offset for row in (2, 7)]
    data = bytearray(segment.path.read_bytes())
    data[head + 20] ^= 1
    for body in bodies:
        data[body - 3] ^= 1
    segment.path.write_bytes(data)
    return tmp_path


@pytest.mark.parametrize("fail", ["true", "false"])
def test_each_bad_entry_is_a_row(damaged: Path, tools: Any, fail: str) -> None:
    """With topic, position and reason, and no other value; and no message is lost without one."""
    rows = tools.rows_of(damaged, topic="a", columns=COLUMNS, failOnDataLoss=fail)
    good = [row for row in rows if row["__error"] is None]
    values = [(0, b"good 0")]
    values += [(e, b"good %d" % e) for e in (5, 6, 8) for _ in range(3)]
    assert [(row["__entryId"], row["value"]) for row in good] == values
    assert [row["__index"] for row in good] == [0, *range(5, 11), *range(14, 17)]
    bad = {row["__entryId"]: row for row in rows if row["__error"] is not None}
    assert sorted(bad) == [1, 2, 3, 4, 7]
    assert len(rows) == len(good) + len(bad)
    for row in bad.values():
        assert (row["value"], row["__index"]) == (None, None)
        assert row["__topic"] == "persistent://public/default/a"
        assert row["__ledgerId"] == good[0]["__ledgerId"]
    assert {entry: "damaged" in row["__error"] for entry, row in bad.items()} == {
        1: True, 2: True, 3: False, 4: False, 7: True,
    }  # fmt: skip


def test_the_rows_do_not_depend_on_the_other_columns(damaged: Path, tools: Any) -> None:
    """`__error` alone opens everything."""
    alone = tools.rows_of(damaged, topic="a", columns="__error")
    assert alone == tools.only(tools.rows_of(damaged, topic="a", columns=COLUMNS), ["__error"])


def test_neighbouring_ranges_share_no_bad_entry(damaged: Path, tools: Any) -> None:
    """A bad batch is in the range of its last message, wherever the ranges meet."""
    for cut in range(18):
        parts = [
            tools.rows_of(damaged, topic="a", columns="__entryId,__error", **bound)
            for bound in ({"endingOffsets": cut}, {"startingOffsets": cut})
        ]
        bad = [row["__entryId"] for part in parts for row in part if row["__error"] is not None]
        assert sorted(bad) == [1, 2, 3, 4, 7], cut


def test_a_loss_without_a_record_stays_a_loss(damaged: Path, tools: Any) -> None:
    """A deleted ledger between damaged entries is an error, also if damage is shown as rows."""
    folder = tools.Folder(damaged)
    topic = folder.topic("a")
    paths = []
    for _ in range(2):
        topic.ledger.roll()
        topic.single(b"later")
        paths.append(as_segment(topic.ledger.segments()[-1]).path)
    folder.store.close()
    assert len(tools.rows_of(damaged, topic="a", columns="__error")) == 17
    paths[0].unlink()
    with pytest.raises(DataLossError) as lost:
        tools.rows_of(damaged, topic="a", columns="__error")
    assert (lost.value.first_index, lost.value.end_index) == (17, 18)

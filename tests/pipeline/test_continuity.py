"""A gap in the indexes is a loss, wherever in a slice it is."""

from __future__ import annotations

import logging

import pytest

from pulsemark.ledger import CorruptEntryError, Entry, EntryKind, Position
from pulsemark.pipeline.continuity import Continuity
from pulsemark.pipeline.decode.entries import EntryTable, table_of_entries
from pulsemark.pipeline.errors import DataLossError
from pulsemark.pipeline.plan import Slice

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

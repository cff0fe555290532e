"""Searching and reading a view, by its index and without, whole and damaged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from unittest.mock import patch

import pytest

from pulsemark.compaction import view
from pulsemark.compaction import view as compacted_view
from pulsemark.compaction.compacted_log import CompactedLog
from pulsemark.compaction.current_view import store_of
from pulsemark.compaction.view import CompactedView, Key, ViewWriter
from pulsemark.ledger import (
    EARLIEST,
    LATEST,
    CorruptEntryError,
    Entry,
    EntryKind,
    IoCount,
    ManagedLedger,
    Position,
)
from pulsemark.ledger.local.segment.segment import as_segment

TOPIC = "persistent://public/default/prices"
HORIZON = Position(40, 0)
PREFIX = b"\x0e\x02\0\0\0\2\x10\1"
COUNT = 30


def entry(number: int) -> Entry:
    """Entries with gaps in their positions and indexes; every third without prefix."""
    prefix = b"" if number % 3 == 0 else PREFIX
    return Entry(
        Position(number // 7, number % 7 * 2),
        EntryKind.DATA,
        number % 4,
        number * 10 - 1,
        1000 + number,
        len(prefix),
        memoryview(prefix + b"body %d" % number * (1 + number % 5 * 9)),
    )


ENTRIES = [entry(number) for number in range(COUNT)]
TIMES = [(number, number // 3 * 3) for number in range(COUNT)]


@pytest.fixture(params=[(4, 10_000), (4, 150), (100, 10_000)], ids=["blocks", "pieces", "one"])
def written(request, open_store) -> Iterator[tuple[ManagedLedger, CompactedView]]:
    """A view with several index blocks; with records in pieces; with one block."""
    rows, limit = request.param
    ledger = open_store(ledger_entries=11).open_view("compacted/1/1")
    with ExitStack() as stack:
        stack.enter_context(patch.object(view, "BLOCK_ROWS", rows))
        stack.enter_context(patch.object(compacted_view, "BLOCK_ROWS", rows))
        writer = ViewWriter(ledger, limit)
        for each, (own_ms, max_ms) in zip(ENTRIES, TIMES, strict=True):
            writer.add(each, None, entry_time_ms=own_ms, time_max_ms=max_ms)
        summary = writer.finish(HORIZON, 400, 77)
        assert (summary.entry_count, summary.message_count) == (
            COUNT,
            sum(each.message_count for each in ENTRIES),
        )
        yield ledger, CompactedView(ledger, TOPIC, 1)


def test_summary(written):
    """What the footer says of the view is what it was finished with."""
    _, view = written
    assert (view.horizon, view.after_horizon) == (HORIZON, Position(40, 1))
    assert (view.summary.next_index, view.summary.time_max_ms) == (400, 77)
    assert (view.name, view.topic, view.generation) == ("compacted/1/1", TOPIC, 1)


def first(wanted) -> Position | None:
    """The first entry for which something holds."""
    return next((ENTRIES[n].position for n in range(COUNT) if wanted(n)), None)


@pytest.mark.parametrize("by_records", [False, True])
def test_find(written, by_records):
    """By position, time or index the first row is found, with the index blocks and without."""
    _, view = written
    positions = [EARLIEST, LATEST, *(Position(a, b) for a in range(6) for b in range(15))]
    for position in positions:
        row = view.find(Key.POSITION, position, by_records=by_records)
        expected = first(lambda n, p=position: ENTRIES[n].position >= p)
        assert (row.position if row else None) == expected
    for time_ms in range(COUNT + 2):
        row = view.find(Key.TIME, time_ms, by_records=by_records)
        expected = first(lambda n, t=time_ms: TIMES[n][1] >= t)
        assert (row.position if row else None) == expected
    for index in range(COUNT * 10 + 2):
        row = view.find(Key.INDEX, index, by_records=by_records)
        expected = first(lambda n, i=index: ENTRIES[n].index + 1 >= i)
        assert (row.position if row else None) == expected


def test_rows(written):
    """A row has all facts of its entry, whichever way it was found."""
    _, view = written
    messages = 0
    for number, each in enumerate(ENTRIES):
        row = view.find(Key.POSITION, each.position)
        assert row == view.find(Key.POSITION, each.position, by_records=True)
        assert (row.entry_time_ms, row.time_max_ms) == TIMES[number]
        assert (row.message_count, row.next_index) == (each.message_count, each.index + 1)
        assert (row.append_time_ms, row.ordinal) == (each.append_time_ms, number)
        assert row.messages_before == messages
        messages += each.message_count


def test_find_before(written):
    """The last entry before any position is found."""
    _, view = written
    without_index = CompactedView(damaged_footer(written), TOPIC, 1, view.summary)
    for position in [EARLIEST, LATEST, *(Position(a, b) for a in range(6) for b in range(15))]:
        before = [each.position for each in ENTRIES if each.position < position]
        for each in (view, without_index):
            row = each.find_before(position)
            assert (row.position if row else None) == (before[-1] if before else None)


def test_read(written):
    """Reading gives the entries as they were, within the limits, from any row on."""
    _, view = written
    for number, each in enumerate(ENTRIES):
        row = view.find(Key.POSITION, each.position)
        assert view.read(row, 1000, 1 << 20) == ENTRIES[number:]
        assert view.read(row, 3, 1 << 20) == ENTRIES[number : number + 3]
        assert view.read(row, 1000, 0) == [each]
        some = view.read(row, 1000, 300)
        assert some == ENTRIES[number : number + len(some)]
        assert len(some) == 1 or sum(len(e.stored) for e in some) <= 300


def test_reads_are_counted(written):
    """A search counts what it reads: one block with the index, whole records without."""
    _, view = written
    by_block, by_records = IoCount(), IoCount()
    view.find(Key.POSITION, Position(2, 4), io=by_block)
    view.find(Key.POSITION, Position(2, 4), by_records=True, io=by_records)
    assert by_block.reads == 1
    assert 1 < by_records.reads < 40
    again = IoCount()
    view.find(Key.POSITION, Position(2, 4), io=again)
    assert again.reads == 0


def flip(ledger: ManagedLedger, position: Position) -> None:
    """Flip a bit in the last byte of a record, on disk."""
    for segment in ledger.segments():
        row = position.entry_id - segment.first_entry_id
        if segment.ledger_id == position.ledger_id and 0 <= row < segment.entry_count:
            content = bytearray(as_segment(segment).path.read_bytes())
            content[segment.row(row).end_offset - 1] ^= 1
            as_segment(segment).path.write_bytes(content)


def damaged_footer(written) -> ManagedLedger:
    """The view's ledger, its last record damaged."""
    ledger: ManagedLedger = written[0]
    store_of(ledger).checkpoint()
    assert ledger.last_position is not None
    flip(ledger, ledger.last_position)
    return ledger


def test_damaged_footer(written):
    """Without its footer a view is read with what the catalog says of it, else not at all."""
    ledger, view = damaged_footer(written), written[1]
    with pytest.raises(CorruptEntryError, match="no footer"):
        CompactedView(ledger, TOPIC, 1)
    again = CompactedView(ledger, TOPIC, 1, view.summary)
    first = again.find(Key.POSITION, EARLIEST)
    assert first is not None
    assert again.read(first, 1000, 1 << 20) == ENTRIES


def records(ledger: ManagedLedger) -> list[tuple[Position, int]]:
    """Position and type of every record in the view."""
    return [(e.position, e.body[0]) for e in ledger.read(EARLIEST, max_entries=1000)]


def test_damage_costs_what_it_hits(written):
    """Whichever record is damaged, all entries but its own are read, and it is named."""
    ledger, view = written
    store_of(ledger).checkpoint()
    log = CompactedLog(ledger.store.open_topic(TOPIC), lambda: view)
    begun = 0
    for position, kind in records(ledger):
        begun += kind == 1
        flip(ledger, position)
        view._cache.clear()
        found, lost = [], []
        at = EARLIEST
        while at <= ENTRIES[-1].position:
            try:
                part = log.read(at, max_entries=5)
            except CorruptEntryError as error:
                assert error.topic == TOPIC
                lost.append(error.position)
                at = error.next_position
                continue
            if not part:
                break
            found += part
            at = Position(part[-1].position.ledger_id, part[-1].position.entry_id + 1)
        flip(ledger, position)
        hit = [] if kind in (2, 3) else [ENTRIES[begun - 1].position]
        if kind == 4 and not lost:
            hit = []  # a piece of a block, or of the footer
        assert lost == hit
        assert found == [each for each in ENTRIES if each.position not in hit]


def test_unfinished(open_store):
    """What was not finished is no view."""
    ledger = open_store().open_view("compacted/1/2")
    with pytest.raises(CorruptEntryError):
        CompactedView(ledger, TOPIC, 2)
    writer = ViewWriter(ledger, 150)
    for each in ENTRIES:
        writer.add(each, None, entry_time_ms=1, time_max_ms=1)
    ledger.store.committer.flush()
    with pytest.raises(CorruptEntryError, match="no footer"):
        CompactedView(ledger, TOPIC, 2)


@pytest.mark.parametrize("content", [b"", b"\4", b"\4\0", b"\4\1rest", b"\1\0", b"\3\0\1\0"])
def test_garbage_in_place_of_a_view(open_store, content):
    """A ledger with anything else in it is no view, and looking at it ends."""
    ledger = open_store().open_view("compacted/1/3")
    for _ in range(3):
        ledger.append(content).commit.wait()
    with pytest.raises(CorruptEntryError, match="no footer"):
        CompactedView(ledger, TOPIC, 3)

"""Which segments make a log: by headers alone, and with records gone from a segment's end."""

from __future__ import annotations

from typing import Any

import pytest

from pulsemark.ledger import EARLIEST, FolderReader, Position
from pulsemark.ledger.local.segment.segment_format import SegmentHeader
from pulsemark.ledger.run import chain_of
from pulsemark.ledger.topic_log import read_on

TOPIC = "persistent://public/default/orders"


def header(ledger_id, segment_no=0, first_entry=0, first_index=0, *, previous=(-1, 0)):
    """A segment header; ``previous`` is the ledger before it and how many entries of it count."""
    return SegmentHeader(TOPIC, 1, ledger_id, segment_no, first_entry, first_index, 0, 0, *previous)


def stated(links):
    """(ledger, segment, end entry, end index) of each link."""
    return [(k.header.ledger_id, k.header.segment_no, k.end_entry_id, k.end_index) for k in links]


def test_every_header_says_where_the_segment_before_it_ends():
    """Ends come from the next segment or ledger; no header says where the newest one ends."""
    headers = [
        header(3, 0, 0, 100, previous=(2, 9)),
        header(3, 1, 10, 150, previous=(2, 9)),
        header(7, 0, 0, 170, previous=(3, 15)),
    ]
    assert stated(chain_of(headers[::-1])) == [(3, 0, 10, 150), (3, 1, 15, 170), (7, 0, None, None)]


def test_a_ledger_that_no_later_one_names_is_left_out():
    """A ledger whose first write failed is not part of the log, nor segments beyond the count."""
    headers = [
        header(1),
        header(1, 1, 10, 10),
        header(2, previous=(1, 10)),
        header(4, first_index=10, previous=(1, 10)),
    ]
    assert stated(chain_of(headers)) == [(1, 0, 10, 10), (4, 0, None, None)]


def test_a_count_below_the_next_segment_ends_the_ledger_there():
    """After a cut of the tail the next ledger's header decides, not the cut segments."""
    headers = [header(1), header(1, 1, 10, 20), header(2, first_index=6, previous=(1, 5))]
    assert stated(chain_of(headers)) == [(1, 0, 5, 6), (2, 0, None, None)]


def test_the_chain_ends_where_the_log_was_trimmed():
    """Segments before a missing ledger are not part of the log."""
    assert stated(chain_of([header(1), header(5, previous=(3, 8))])) == [(5, 0, None, None)]
    assert chain_of([]) == []


def test_ring_of_ledgers_is_walked_once():
    """Headers that no writer wrote can form a ring; the walk ends all the same."""
    headers = [header(1, previous=(2, 5)), header(2, previous=(1, 5))]
    assert stated(chain_of(headers)) == [(1, 0, 5, 0), (2, 0, None, None)]


@pytest.fixture
def cut_folder(tmp_path, open_store):
    """A ledger of six entries whose last two are cut from its file, and a ledger after it."""
    store = open_store()
    topic = store.open_topic(TOPIC)
    for number in range(8):
        if number == 6:
            topic.roll()
        topic.append(b"entry %d" % number, message_count=number + 1).commit.wait(10)
    first = topic.segments()[0]
    end = first.row(4).offset - 5
    store.close()
    with first.path.open("r+b") as file:
        file.truncate(end)
    first.path.with_suffix(".idx").unlink()
    return first.path.parent.parent


def read_all(log):
    """Bodies, or damaged positions, in order."""
    found: list[Any] = []
    for lot in read_on(log, EARLIEST, lambda error: found.append(error.position)):
        found.extend(bytes(entry.body) for entry in lot)
    return found


@pytest.mark.parametrize("how", ["owner", "owner again", "folder"])
def test_entries_gone_from_the_end_are_typed_errors(cut_folder, open_store, how):
    """Entries that a later ledger counts were durable: their loss is an error, never silence."""
    if how == "folder":
        reader = FolderReader(cut_folder)
        log = reader.log(TOPIC)
    else:
        store = open_store()
        if how == "owner again":
            store.open_topic(TOPIC)
            store.close()
            store = open_store()
        log = store.open_topic(TOPIC)
    assert log.first_position is not None
    ledger_id = log.first_position.ledger_id
    assert read_all(log) == [
        *(b"entry %d" % n for n in range(3)),
        Position(ledger_id, 3),
        Position(ledger_id, 4),
        Position(ledger_id, 5),
        b"entry 6",
        b"entry 7",
    ]
    assert (log.first_index, log.next_index) == (0, 36)
    assert log.count_entries(EARLIEST, log.end_position) == 8
    assert log.message_count(Position(ledger_id, 3), Position(ledger_id, 6)) == 4 + 5 + 6
    if how == "folder":
        reader.close()


def test_a_torn_tail_of_the_newest_ledger_is_no_damage(cut_folder):
    """If nothing says that there were more entries, the rest was never acknowledged."""
    _, newest = sorted(cut_folder.glob("ledgers/*.log"))
    newest.unlink()
    newest.with_suffix(".idx").unlink()
    with FolderReader(cut_folder) as reader:
        log = reader.log(TOPIC)
        assert read_all(log) == [b"entry %d" % n for n in range(3)]
        assert log.next_index == 6


def test_store_goes_on_after_lost_entries(cut_folder, open_store):
    """The index of new entries continues after those that were lost."""
    store = open_store()
    topic = store.open_topic(TOPIC)
    appended = topic.append(b"new")
    appended.commit.wait(10)
    assert appended.index == 36

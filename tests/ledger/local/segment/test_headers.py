"""Segments with damaged headers stay readable, with the same entries as before."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pulsemark.ledger import EARLIEST, FolderReader, Position, StoreOptions
from pulsemark.ledger.local import ledgers
from pulsemark.ledger.local.io.files import Files
from pulsemark.ledger.local.io.folder import list_segments, segment_path
from pulsemark.ledger.local.segment.record_format import pack_body_crc, pack_record_head
from pulsemark.ledger.local.segment.salvage import (
    correct_header,
    read_named_header,
    salvage_headers,
)
from pulsemark.ledger.local.segment.segment import as_segment
from pulsemark.ledger.local.segment.segment_format import SegmentHeader, version_1_key
from pulsemark.ledger.topic_log import read_on
from pulsemark.testing.faulty_files import flipped
from tests.support.simulated_store import NEVER_MS, SimulatedStore

ORDERS = "persistent://public/default/orders"
AUDIT = "persistent://public/default/audit"
FILES = Files()


def fill(store, clock):
    """Two topics side by side: ORDERS in three ledgers of several segments, with two epochs."""
    orders, audit = store.open_topic(ORDERS), store.open_topic(AUDIT)
    random = Random(3)
    for number in range(36):
        clock.advance(by_ms=random.randint(0, 50))
        if number == 14:
            orders.roll()
        if number == 25:
            store.next_ledger_id()
            orders.begin_epoch(4)
        orders.append(b"order %d " % number * random.randint(1, 9), message_count=number % 3 + 1)
        audit.append(b"audit %d" % number).commit.wait(10)


@pytest.fixture
def folder(open_store, clock):
    """A closed data folder."""
    return closed_folder(open_store, clock)


@pytest.fixture
def old_folder(open_store, clock, monkeypatch):
    """A closed data folder as version 1 wrote it."""
    monkeypatch.setattr(ledgers, "new_secret", bytes)
    return closed_folder(open_store, clock)


def closed_folder(open_store, clock):
    """A store's folder, filled and closed."""
    store = open_store(segment_size_bytes=700)
    fill(store, clock)
    store.close()
    return store.folder


def all_of(log):
    """All that a reader can see of a log, damage included."""
    found: list[Any] = []
    for lot in read_on(log, EARLIEST, lambda error: found.append((error.position, "damaged"))):
        found.extend((e.position, e.index, e.append_time_ms, bytes(e.stored)) for e in lot)
    return found, log.first_index, log.next_index


def read_folder(folder):
    """All topics, read without the owner."""
    with FolderReader(folder) as reader:
        return {name: all_of(reader.log(name)) for name in reader.topics()}


def spoil(path: Path, offset: int, data: bytes) -> None:
    """Write over bytes of a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def segments_of(folder, topic=ORDERS):
    """(path, header) of a topic's segments."""
    found = []
    for segment_id in list_segments(FILES, folder):
        header = read_named_header(FILES, folder, segment_id)
        if header.topic == topic:
            found.append((segment_path(folder, *segment_id), header))
    return found


def test_the_folder_has_what_the_tests_need(folder):
    """Several ledgers, several segments in each, two epochs."""
    headers = [header for _, header in segments_of(folder)]
    assert len({h.ledger_id for h in headers}) == 3
    assert len(headers) > 6
    assert [h.epoch for h in headers if h.segment_no == 0] == [0, 0, 4]


def test_every_flipped_bit_of_a_header_is_corrected(folder):
    """With one wrong bit anywhere, the header is read exactly as it was."""
    path, header = segments_of(folder)[2]
    good = path.read_bytes()
    for bit in range(0, 8 * header.size_bytes, 11):
        assert correct_header(flipped(good, bit), path) == header
    assert correct_header(b"", path) is None
    assert correct_header(bytes(200), path) is None
    assert correct_header(os.urandom(200), path) is None


@pytest.mark.parametrize("with_index", [True, False])
@pytest.mark.parametrize("number", range(7))
def test_zeroed_header_is_rebuilt(old_folder, number, with_index):
    """Whichever segment of the topic lost its header, readers see everything that was there."""
    expected = read_folder(old_folder)
    path, header = segments_of(old_folder)[number]
    spoil(path, 0, bytes(header.size_bytes))
    if not with_index:
        path.with_suffix(".idx").unlink()
    assert read_folder(old_folder) == expected


def test_named_segments_are_found_with_a_damaged_header(old_folder):
    """Of a topic only these segments are opened; if a header is damaged, all of the folder is."""
    (_, first), (path, second), *_ = segments_of(old_folder)
    named = {ORDERS: [first.segment_id, second.segment_id], AUDIT: [(99, 0)]}
    with FolderReader(old_folder) as reader:
        whole = all_of(reader.log(ORDERS))
        (log,) = reader.logs_of(named).values()
        assert [run.header for run in log.segments()] == [first, second]
        part, *_ = all_of(log)
        assert part == whole[0][: len(part)]
    spoil(path, 0, bytes(second.size_bytes))
    with FolderReader(old_folder) as reader:
        logs = reader.logs_of(named)
        assert all_of(logs[ORDERS]) == whole


@pytest.mark.parametrize("with_index", [True, False])
def test_all_headers_but_one_zeroed(old_folder, with_index):
    """The last segment alone is enough to find the others of its ledger."""
    expected = read_folder(old_folder)
    *others, (_, last) = segments_of(old_folder)
    for path, header in others:
        if header.ledger_id == last.ledger_id:
            spoil(path, 0, bytes(header.size_bytes))
            if not with_index:
                path.with_suffix(".idx").unlink()
    assert read_folder(old_folder) == expected


def test_salvaged_headers_have_the_original_values(old_folder):
    """With index files, all fields that matter are exact; a lost count is known to be unknown."""
    segments = segments_of(old_folder)
    for path, header in segments:
        others = [h for _, h in segments if h != header]
        spoil(path, 0, bytes(header.size_bytes))
        (salvaged,) = salvage_headers(
            FILES, old_folder, [(header.ledger_id, header.segment_no)], others
        ).values()
        for name in SegmentHeader.__dataclass_fields__:
            if name not in ("previous_entry_count", "stamp_floor_ms"):
                assert getattr(salvaged, name) == getattr(header, name), name
        assert salvaged.previous_entry_count in (header.previous_entry_count, -1)
        spoil(path, 0, header.pack())


def test_name_in_the_damaged_bytes(old_folder):
    """A topic with one segment is found by what its damaged header still says."""
    expected = read_folder(old_folder)
    (path, header), *more = segments_of(old_folder, AUDIT)
    for other, _ in more:
        other.unlink()
    before = read_folder(old_folder)
    spoil(path, 16, bytes(8))
    spoil(path, header.size_bytes - 4, b"nope")
    assert read_folder(old_folder) == before
    assert before[ORDERS] == expected[ORDERS]


def test_segment_without_any_clue_is_left_out(old_folder):
    """If nothing is known of a segment, it is left out, and the others are read as before."""
    expected = read_folder(old_folder)
    (path, header), *more = segments_of(old_folder, AUDIT)
    for other, _ in more:
        other.unlink()
    spoil(path, 0, bytes(header.size_bytes))
    assert read_folder(old_folder) == {ORDERS: expected[ORDERS]}


def test_first_records_damaged_too(old_folder):
    """Entries that were lost with the header keep their places where the index file has them."""
    expected, first_index, next_index = read_folder(old_folder)[ORDERS]
    path, header = segments_of(old_folder)[3]
    spoil(path, 0, bytes(header.size_bytes + 20))
    place = Position(header.ledger_id, header.first_entry_id)
    damaged = [(p, "damaged") if p == place else (p, *others) for p, *others in expected]
    assert read_folder(old_folder)[ORDERS] == (damaged, first_index, next_index)
    path.with_suffix(".idx").unlink()
    found, *indexes = read_folder(old_folder)[ORDERS]
    assert [f for f in found if f[0] != place] == [f for f in damaged if f[0] != place]
    assert indexes == [first_index, next_index]


def test_a_ledger_that_was_given_up_is_not_taken_for_the_one_before(old_folder):
    """After a lost header, a ledger that begins at the same index as this one does not count."""
    headers = [header for _, header in segments_of(old_folder)]
    lost = [header for header in headers if header.epoch == 4]
    kept = [header for header in headers if header.epoch == 0]
    given_up = replace(lost[0], ledger_id=lost[0].ledger_id - 1, epoch=0)
    assert kept[-1].ledger_id < given_up.ledger_id
    for header in lost:
        path = segment_path(old_folder, header.ledger_id, header.segment_no)
        spoil(path, 0, bytes(header.size_bytes))
    ids = [(header.ledger_id, header.segment_no) for header in lost]
    salvaged = salvage_headers(
        FILES, old_folder, ids, [*kept, given_up], (ORDERS, lost[0].topic_id)
    )
    assert [h.previous_ledger_id for h in salvaged.values()] == [kept[-1].ledger_id] * len(lost)
    assert [h.epoch for h in salvaged.values()] == [4] * len(lost)


SECTORS = [512, 4096]


@pytest.mark.parametrize("size_bytes", SECTORS)
@pytest.mark.parametrize("number", range(7))
def test_zeroed_first_sector_loses_only_its_own_entries(open_store, clock, number, size_bytes):
    """The copy in the index file replaces the header: all entries after the sector are read."""
    store = open_store(segment_size_bytes=6000)
    orders = store.open_topic(ORDERS)
    for n in range(80):
        orders.append(b"order %d " % n * 50).commit.wait(10)
        if n == 40:
            orders.begin_epoch(2)
    starts = {
        Position(s.ledger_id, s.first_entry_id + row): (s.path, s.row(row).offset)
        for s in orders.segments()
        for row in range(s.entry_count)
    }
    store.close()
    expected, *indexes = read_folder(store.folder)[ORDERS]
    path, _ = segments_of(store.folder)[number]
    spoil(path, 0, bytes(size_bytes))
    gone = {p for p, (of, at) in starts.items() if of == path and at < size_bytes}
    wanted = [(p, "damaged") if p in gone else (p, *others) for p, *others in expected]
    assert gone
    assert read_folder(store.folder)[ORDERS] == (wanted, *indexes)
    with open_store() as again:
        assert all_of(again.open_topic(ORDERS)) == (wanted, *indexes)


def test_header_has_a_copy_before_the_journal_is_freed(open_store):
    """After a checkpoint an open segment with one entry has its header in two files."""
    store = open_store()
    orders = store.open_topic(ORDERS)
    orders.append(b"one").commit.wait(10)
    store.checkpoint()
    path = as_segment(orders.segments()[0]).path
    spoil(path, 0, bytes(as_segment(orders.segments()[0]).header.size_bytes))
    with FolderReader(store.folder) as reader:
        assert [bytes(e.body) for e in reader.log(ORDERS).read(EARLIEST)] == [b"one"]


def test_header_has_a_copy_after_recovery(memory_folder):
    """Recovery frees the journal; by then the headers that were in it are in two other files."""
    options = StoreOptions(checkpoint_interval_ms=NEVER_MS, journal_size_bytes=NEVER_MS)
    simulated = SimulatedStore(memory_folder / "data", options=options)
    orders = simulated.open().open_topic(ORDERS)
    orders.append(b"one").commit.wait(10)
    segment = as_segment(orders.segments()[0])
    simulated.kill()
    simulated.open()
    simulated.disk.overwrite(segment.path, bytes(segment.header.size_bytes))
    with FolderReader(memory_folder / "data", files=simulated.disk.process()) as reader:
        assert [bytes(e.body) for e in reader.log(ORDERS).read(EARLIEST)] == [b"one"]
    simulated.close()


def test_forged_records_are_not_salvaged(open_store):
    """With both copies of the header gone, records that a client wrote into bodies are not read."""
    store = open_store()
    orders = store.open_topic(ORDERS)
    orders.append(b"first").commit.wait(10)
    ledger_id = as_segment(orders.segments()[0]).ledger_id
    key = version_1_key(ledger_id)
    forged = b"".join(
        pack_record_head(key, n, 0, 1, 5, n, b"", b"evil", 0) + b"evil" + pack_body_crc(b"evil")
        for n in range(5)
    )
    orders.append(forged).commit.wait(10)
    path, size_bytes = (
        as_segment(orders.segments()[0]).path,
        as_segment(orders.segments()[0]).header.size_bytes,
    )
    store.close()
    spoil(path, 0, bytes(size_bytes))
    path.with_suffix(".idx").unlink()
    with FolderReader(store.folder) as reader:
        assert ORDERS not in reader.topics()


def test_renamed_segment_is_refused(folder):
    """A file under another segment's name is refused: its records are not that segment's."""
    expected = read_folder(folder)
    path, _ = segments_of(folder)[1]
    copy = segment_path(folder, 999, 0)
    copy.write_bytes(path.read_bytes())
    assert read_folder(folder) == expected

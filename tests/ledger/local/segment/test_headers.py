"""Segments with damaged headers stay readable, with the same entries as before."""

from __future__ import annotations

import os
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
)
from pulsemark.ledger.local.segment.segment import as_segment
from pulsemark.ledger.local.segment.segment_format import version_1_key
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


def test_named_segments_are_found_with_a_damaged_header(folder):
    """Of a topic only these segments are opened; if a header is damaged, all of the folder is."""
    (_, first), (path, second), *_ = segments_of(folder)
    named = {ORDERS: [first.segment_id, second.segment_id], AUDIT: [(99, 0)]}
    with FolderReader(folder) as reader:
        whole = all_of(reader.log(ORDERS))
        (log,) = reader.logs_of(named).values()
        assert [run.header for run in log.segments()] == [first, second]
        part, *_ = all_of(log)
        assert part == whole[0][: len(part)]
    spoil(path, 0, bytes(second.size_bytes))
    with FolderReader(folder) as reader:
        logs = reader.logs_of(named)
        assert all_of(logs[ORDERS]) == whole


def test_a_lost_header_of_version_1_loses_its_segment(old_folder):
    """It has no copy: the segment is left out, and the others are read as before."""
    expected = read_folder(old_folder)
    (path, header), *more = segments_of(old_folder, AUDIT)
    for other, _ in more:
        other.unlink()
    spoil(path, 0, bytes(header.size_bytes))
    assert read_folder(old_folder) == {ORDERS: expected[ORDERS]}


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

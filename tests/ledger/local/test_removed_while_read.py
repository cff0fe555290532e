"""Entries that are removed while they are read are removed, not damaged."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pulsemark.finder import Finder, SearchMethod
from pulsemark.finder.stream import ReadPlan, entry_responses
from pulsemark.ledger import EARLIEST, CorruptEntryError, FolderReader, LocalStore, Position
from pulsemark.ledger.local.io.files import Files
from pulsemark.ledger.store_core import StoreOptions
from pulsemark.metadata import StamperChain
from pulsemark.testing.raw_messages import unbatched_message

ORDERS = "persistent://public/default/orders"
COUNT = 40
KEPT = 30
"""The first entry that is not removed."""
START_MS = 1_700_000_000_000


class BusyFiles(Files):
    """Something happens just before a segment is read; a hole reads as zeros at once."""

    def __init__(self):
        self.happens = None
        self.paths = {}

    def open(self, path, flags):
        """As the system does it; what is open is remembered."""
        fd = super().open(path, flags)
        self.paths[fd] = path
        return fd

    def close(self, fd):
        """As the system does it."""
        del self.paths[fd]
        super().close(fd)

    def pread(self, fd, size_bytes, offset):
        """As the system does it, after what happens."""
        if self.paths[fd].suffix == ".log" and self.happens is not None:
            happens, self.happens = self.happens, None
            happens()
        return super().pread(fd, size_bytes, offset)

    def punch_hole(self, fd, offset, size_bytes):
        """Not every file system of those who test has holes: zeros are the same to readers."""
        os.pwrite(fd, bytes(size_bytes), offset)


def filled(folder, files, segment_size_bytes):
    """A store with one topic, all of it durable."""
    options = StoreOptions(segment_size_bytes=segment_size_bytes)
    store = LocalStore.open(folder, files=files, options=options)
    topic = store.open_topic(ORDERS)
    topic.stampers = StamperChain.from_names(["broker-time", "index"])
    for number in range(COUNT):
        body = unbatched_message(b"order %d" % number * 10, publish_time_ms=START_MS + number)
        topic.append(body).commit.wait(10)
    return store, topic


def ids_by_read(log):
    """Entry ids that `read` gives."""
    found, place = [], EARLIEST
    while entries := log.read(place, max_entries=7):
        found += [entry.position.entry_id for entry in entries]
        place = Position(entries[-1].position.ledger_id, found[-1] + 1)
    return found


def ids_by_read_stored(log):
    """Entry ids that `read_stored` gives."""
    found: list[int] = []
    place = EARLIEST
    while True:
        first, stored = log.read_stored(place, max_entries=7)
        if not stored:
            return found
        found += range(first.entry_id, first.entry_id + len(stored))
        place = Position(first.ledger_id, found[-1] + 1)


def ids_by_stream(log, *, prefixes_only):
    """Entry ids that ReadEntries gives."""
    plan = ReadPlan(EARLIEST, None, None, prefixes_only)
    return [
        piece.position.entry_id for response in entry_responses(log, plan)
        for piece in response.pieces
    ]  # fmt: skip


WAYS = {
    "read": ids_by_read,
    "read_stored": ids_by_read_stored,
    "stream": lambda log: ids_by_stream(log, prefixes_only=False),
    "prefixes": lambda log: ids_by_stream(log, prefixes_only=True),
}


@pytest.mark.parametrize("segment_size_bytes", [1 << 20, 1000], ids=["one segment", "many"])
@pytest.mark.parametrize("way", WAYS)
def test_the_owners_reader_goes_on_after_what_was_removed(tmp_path, way, segment_size_bytes):
    """The head is cut off, and its bytes are gone, between a reader's look and its read."""
    files = BusyFiles()
    store, topic = filled(tmp_path / "data", files, segment_size_bytes)
    ledger_id = topic.first_position.ledger_id
    files.happens = lambda: topic.truncate_head(Position(ledger_id, KEPT))
    found = WAYS[way](topic)
    assert files.happens is None
    assert found[-(COUNT - KEPT) :] == list(range(KEPT, COUNT))
    assert WAYS[way](topic) == list(range(KEPT, COUNT))
    store.close()


@pytest.mark.parametrize("segment_size_bytes", [1 << 20, 1000], ids=["one segment", "many"])
@pytest.mark.parametrize("way", WAYS)
def test_a_stale_reader_goes_on_after_what_the_owner_removed(tmp_path, way, segment_size_bytes):
    """A reader of the folder that has not refreshed since gets no error about damage."""
    store, topic = filled(tmp_path / "data", BusyFiles(), segment_size_bytes)
    with FolderReader(tmp_path / "data") as reader:
        stale, opened = reader.log(ORDERS), reader.log(ORDERS)
        assert len(ids_by_read(opened)) == COUNT
        topic.truncate_head(Position(topic.first_position.ledger_id, KEPT))
        # Files that it has open already it may read to their ends.
        assert WAYS[way](stale)[-(COUNT - KEPT) :] == list(range(KEPT, COUNT))
        stale.refresh()
        assert WAYS[way](stale) == list(range(KEPT, COUNT))
    store.close()


@pytest.mark.parametrize("method", list(SearchMethod))
def test_a_search_in_a_stale_reader_finds_what_is_left(tmp_path, method):
    """Segments whose files were removed are not searched any more."""
    store, topic = filled(tmp_path / "data", BusyFiles(), 1000)
    with FolderReader(tmp_path / "data") as reader:
        stale = reader.log(ORDERS)
        topic.truncate_head(Position(topic.first_position.ledger_id, KEPT))
        reader.log(ORDERS)  # the reader lets go of what is gone
        found = Finder(stale).by_time(0, method=method)
        assert found.position.entry_id >= KEPT
    store.close()


def test_damage_of_an_existing_entry_is_still_an_error(tmp_path):
    """An entry that is there and does not match its checksum stays an error."""
    store, topic = filled(tmp_path / "data", BusyFiles(), 1 << 20)
    segment = topic.segments()[0]
    with segment.path.open("r+b") as file:
        file.seek(segment.row(KEPT).offset + 50)
        file.write(b"\0\0")
    topic.truncate_head(Position(segment.ledger_id, 10))
    with FolderReader(tmp_path / "data") as reader:
        for log in (topic, reader.log(ORDERS)):
            for way in (ids_by_read, ids_by_read_stored):
                with pytest.raises(CorruptEntryError) as error:
                    way(log)
                assert error.value.position.entry_id == KEPT
    store.close()


def test_a_deleted_topic_has_nothing_to_read(tmp_path):
    """A caller that still has a deleted topic gets no error about damage: its files are removed."""
    store, topic = filled(tmp_path / "data", BusyFiles(), 1000)
    with FolderReader(tmp_path / "data") as reader:
        stale = reader.log(ORDERS)
        store.delete_topic(ORDERS)
        with pytest.raises(FileNotFoundError):  # by this, readers of a replaced view notice it
            topic.read(EARLIEST)
        assert reader.topics() == []
        assert stale.read(EARLIEST) == []
    store.close()


def test_a_reader_keeps_no_file_of_what_was_removed(tmp_path):
    """After a refresh the space of removed segments is free: nothing holds them open."""
    store, topic = filled(tmp_path / "data", BusyFiles(), 1000)
    files = BusyFiles()
    with FolderReader(tmp_path / "data", files=files) as reader:
        log = reader.log(ORDERS)
        assert len(ids_by_read(log)) == COUNT
        topic.truncate_head(Position(topic.first_position.ledger_id, KEPT))
        assert any(not path.exists() for path in files.paths.values())
        log.refresh()
        assert files.paths
        assert all(path.exists() for path in files.paths.values())
        assert ids_by_read(log) == list(range(KEPT, COUNT))
    store.close()


class Vanishing(Files):
    """Files of which some are removed just before the first index file is opened."""

    def __init__(self, victims: list[Path]) -> None:
        super().__init__()
        self.victims = victims

    def open(self, path: Path, flags: int) -> int:
        """Open a file."""
        if path.suffix == ".idx":
            while self.victims:
                self.victims.pop().unlink()
        return super().open(path, flags)


@pytest.mark.parametrize("removed", [1, 2, 3])
def test_segments_removed_after_their_header_was_read_are_left_out(tmp_path, removed):
    """A reader that has read a segment's header may find it trimmed when it loads its index."""
    with LocalStore.open(tmp_path) as store:
        topic = store.open_topic("persistent://public/default/a")
        for _ in range(3):
            topic.append(b"x").commit.wait(10)
            topic.roll()
    files = sorted((tmp_path / "ledgers").iterdir())[: 2 * removed]
    assert len(files) == 2 * removed
    with FolderReader(tmp_path, files=Vanishing(files)) as reader:
        logs = reader.logs(["persistent://public/default/a"])
        found = [log.first_index for log in logs.values()]
        assert found == ([removed] if removed < 3 else [])
    with FolderReader(tmp_path) as reader:
        assert list(reader.logs(["persistent://public/default/a"])) == list(logs)

"""Reading ledgers for threads that wait: what is read ahead."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from pulsemark.ledger.bookkeeper import read_ahead
from pulsemark.ledger.bookkeeper.client.errors import EntryMissingError
from pulsemark.ledger.bookkeeper.loop_thread import LoopThread
from pulsemark.ledger.bookkeeper.read_ahead import LedgerAccess, UnreadableEntryError


class Ledgers:
    """A client whose ledgers have entries of 100 bytes; notes what is read."""

    def __init__(self):
        self.reads = []
        self.missing = set()

    async def open_ledger_no_recovery(self, ledger_id):
        """A reader of any ledger."""
        return SimpleNamespace(
            know_confirmed=lambda last: None,
            read=lambda first, last, max_bytes: self.read(ledger_id, first, last, max_bytes),
        )

    async def read(self, ledger_id, first, last, max_bytes):
        """As `LedgerReader.read`."""
        self.reads.append((ledger_id, first))
        await asyncio.sleep(0)
        end = min(last, first + max(1, max_bytes // 100) - 1)
        if self.missing & set(range(first, end + 1)):
            raise EntryMissingError("lost", ledger_id=ledger_id, entry_id=first)
        return [
            SimpleNamespace(entry_id=number, payload=b"%100d" % number)
            for number in range(first, end + 1)
        ]


@pytest.fixture
def thread():
    """The client's loop."""
    made = LoopThread("test-access")
    yield made
    made.stop()


def read_all(reader, ledger_id, count, *, entries=10, first=0):
    """Read as a consumer that catches up; the entries' ids."""
    found = []
    while first < count:
        last = min(count, first + entries) - 1
        got = reader.read(ledger_id, first, last, 400, until=count - 1)
        found += [int(one.payload) for one in got]
        first = got[-1].entry_id + 1
    return found


def test_the_next_entries_are_read_ahead(thread):
    """A reader that goes on gets each entry once and in order, and each is asked for once; all
    reads but the first two are begun before they are wanted, and are as large as it asks for.
    """
    client: Any = Ledgers()
    reader = LedgerAccess(thread, client)
    assert read_all(reader, 1, 450) == list(range(450))
    assert client.reads == [(1, first) for first in (0, 4, 204, 404)]
    reader.read(2, 0, 299, 400, until=999)
    reader.read(2, 4, 303, 400, until=999)
    thread.run(asyncio.sleep(0.01))
    assert client.reads[4:] == [(2, 0), (2, 4), (2, 304)]


def test_single_reads_read_nothing_ahead(thread):
    """Steps of a search, and reads of what is not known to be confirmed, ask for no other entry."""
    client: Any = Ledgers()
    reader = LedgerAccess(thread, client)
    wanted = [20, 10, 15, 12, 18, 11]
    for entry_id in wanted:
        reader.read(1, entry_id, entry_id, 1, until=99)
    for first in (0, 4, 8):
        reader.read(2, first, first + 3, 400)
    thread.run(asyncio.sleep(0.01))
    assert client.reads == [*((1, each) for each in wanted), (2, 0), (2, 4), (2, 8)]


def test_what_was_read_ahead_in_vain(thread):
    """A reader that goes on elsewhere, with another size, or after the ledger was deleted, gets
    what it asks for; one that wants fewer entries gets no more than those.
    """
    client: Any = Ledgers()
    reader = LedgerAccess(thread, client)

    def ids(first, last, max_bytes=400):
        return [one.entry_id for one in reader.read(1, first, last, max_bytes, until=99)]

    assert (ids(0, 9), ids(4, 13)) == ([0, 1, 2, 3], [4, 5, 6, 7])
    assert ids(50, 59) == [50, 51, 52, 53]
    assert (ids(54, 63), ids(58, 67, 200)) == ([54, 55, 56, 57], [58, 59])
    assert (ids(60, 61, 200), ids(62, 62, 200)) == ([60, 61], [62])
    thread.run(asyncio.sleep(0.01))  # what is read ahead is noted
    before = len(client.reads)
    reader.forget([1])
    assert ids(63, 64, 200) == [63, 64]
    assert len(client.reads) == before + 1


def test_entries_that_are_lost(thread, monkeypatch):
    """What is before a lost entry is read, also where it was asked for with that. A moment after
    the failure it is asked for again.
    """
    client: Any = Ledgers()
    reader = LedgerAccess(thread, client)
    client.missing = {9}
    first = 0
    while first < 9:
        got = [one.entry_id for one in reader.read(1, first, first + 3, 400, until=99)]
        assert got == list(range(first, got[-1] + 1))
        first = got[-1] + 1
    with pytest.raises(UnreadableEntryError):
        reader.read(1, 9, 12, 400, until=99)
    client.missing = set()
    monkeypatch.setattr(read_ahead, "FAILURE_KEPT_S", 0.0)
    assert [one.entry_id for one in reader.read(1, 9, 12, 400, until=99)] == [9, 10, 11, 12]


def test_ledgers_that_are_read_at_once(thread, monkeypatch):
    """Only so many reads are made ahead; other ledgers are read as asked."""
    monkeypatch.setattr(read_ahead, "AHEAD_MAX", 2)
    client: Any = Ledgers()
    reader = LedgerAccess(thread, client)
    for first in range(0, 40, 4):
        for ledger_id in range(5):
            got = reader.read(ledger_id, first, first + 3, 400, until=39)
            assert [one.entry_id for one in got] == list(range(first, first + 4))


def test_a_reader_that_drops_the_last_entry_of_each_read(thread):
    """A reader whose reads each begin with the last entry of the one before asks for none twice."""
    client: Any = Ledgers()
    reader = LedgerAccess(thread, client)
    first = 0
    while first < 39:
        got = reader.read(1, first, 39, 400, until=39)
        assert got[0].entry_id == first
        assert not reader.read(1, got[-1].entry_id, 39, 50, until=39)[1:]
        first = got[-1].entry_id if len(got) > 1 else first + 1
    asked = [number for _, number in client.reads]
    assert len(asked) == len(set(asked)) <= 14

"""Entries for a thread that must not wait: what is fetched, kept and dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pulsemark.ledger.bookkeeper import read_ahead
from pulsemark.ledger.bookkeeper.client.errors import EntryMissingError
from pulsemark.ledger.bookkeeper.loop_thread import LoopThread
from pulsemark.ledger.bookkeeper.read_ahead import LedgerAccess, UnreadableEntryError
from pulsemark.ledger.errors import StoreClosedError, WouldBlockError

SIZE = 100


class Ledgers:
    """A client whose ledgers have entries of 100 bytes; it answers when the test says so."""

    def __init__(self) -> None:
        self.reads: list[tuple[int, int, int]] = []
        self.missing: set[int] = set()
        self.is_stopped = False

    async def open_ledger_no_recovery(self, ledger_id: int) -> Any:
        """A reader of any ledger."""
        return SimpleNamespace(
            know_confirmed=lambda last: None,
            read=lambda first, last, max_bytes: self.read(ledger_id, first, last, max_bytes),
        )

    async def read(self, ledger_id: int, first: int, last: int, max_bytes: int) -> list[Any]:
        """As `LedgerReader.read`."""
        self.reads.append((ledger_id, first, last))
        while self.is_stopped:  # noqa: ASYNC110 - the test's thread changes it
            await asyncio.sleep(0.001)
        end = min(last, first + max(1, max_bytes // SIZE) - 1)
        if self.missing & set(range(first, end + 1)):
            raise EntryMissingError("lost", ledger_id=ledger_id, entry_id=first)
        return [
            SimpleNamespace(entry_id=number, payload=b"%100d" % number)
            for number in range(first, end + 1)
        ]


@pytest.fixture
def client() -> Ledgers:
    """The bookies."""
    return Ledgers()


@pytest.fixture
def thread(client: Ledgers) -> Iterator[LoopThread]:
    """The client's loop."""
    made = LoopThread("test-fetches")
    yield made
    client.is_stopped = False
    made.stop()


@pytest.fixture
def access(client: Ledgers, thread: LoopThread) -> LedgerAccess:
    """Ledgers that are read by this thread, which never waits."""
    made = LedgerAccess(thread, client)  # type: ignore[arg-type] # it has what is used here
    made.never_wait_here()
    return made


def ids(access: LedgerAccess, first: int, last: int, until: int = 999) -> list[int]:
    """Entries that are read, asking again until they are there."""
    while True:
        try:
            return [one.entry_id for one in access.read(1, first, last, 1000, until=until)]
        except WouldBlockError as error:
            error.done.exception(10)


def test_nothing_is_waited_for(access, client):
    """What is not there raises at once, and all who ask for it wait for the same read."""
    client.is_stopped = True
    waits = []
    for first in (0, 3, 0):
        with pytest.raises(WouldBlockError) as wait:
            access.read(1, first, 9, 1000, until=9)
        waits.append(wait.value.done)
    assert waits[0] is waits[1] is waits[2]
    assert not waits[0].done()
    client.is_stopped = False
    assert ids(access, 0, 9) == list(range(10))
    assert ids(access, 3, 5) == [3, 4, 5]
    assert client.reads == [(1, 0, 9)]


def test_who_goes_on_finds_the_next_entries_there(access, client):
    """A reader that goes on gets each entry once and in order; from its second read on entries are
    asked for before it wants them, many at a time, and none twice.
    """
    found, first = [], 0
    while first < 900:
        found += ids(access, first, min(first + 9, 899), until=899)
        first = found[-1] + 1
    assert found == list(range(900))
    begins = [begin for _, begin, _ in client.reads]
    assert begins[:3] == [0, 10, 210]
    assert len(begins) == len(set(begins)) == 6


def test_single_entries_ask_for_nothing_more(access, client):
    """Entries here and there, as a search reads them, cost one read each."""
    for entry_id in (20, 10, 15, 12, 18):
        assert ids(access, entry_id, entry_id) == [entry_id]
    assert client.reads == [(1, each, each) for each in (20, 10, 15, 12, 18)]


def test_what_cannot_be_read(access, client, monkeypatch):
    """The error comes to all who wait for that entry, but to nobody who wants another one; after a
    moment the entry is asked for again.
    """
    client.missing = {5}
    assert ids(access, 4, 8) == [4]
    with pytest.raises(UnreadableEntryError):
        ids(access, 5, 8)
    count = len(client.reads)
    with pytest.raises(UnreadableEntryError):
        access.read(1, 5, 5, 1000, until=9)
    assert len(client.reads) == count
    assert ids(access, 6, 8) == [6, 7, 8]
    client.missing = set()
    monkeypatch.setattr(read_ahead, "FAILURE_KEPT_S", 0.0)
    assert ids(access, 5, 8) == [5, 6, 7, 8]


def test_what_is_kept_is_bounded(access, client, monkeypatch):
    """What was used longest ago is dropped, and read again when it is wanted."""
    cost = SIZE + read_ahead.ENTRY_COST_BYTES
    monkeypatch.setattr(read_ahead, "KEPT_BYTES", 10 * cost)
    for entry_id in range(0, 60, 2):
        assert ids(access, entry_id, entry_id) == [entry_id]
        assert access.fetches.size_bytes <= 10 * cost
    before = len(client.reads)
    assert ids(access, 58, 58) == [58]
    assert len(client.reads) == before
    assert ids(access, 0, 0) == [0]
    assert len(client.reads) == before + 1


def test_as_many_fetches_as_bytes(access, monkeypatch):
    """Also the number of fetches that are kept is bounded."""
    monkeypatch.setattr(read_ahead, "KEPT_FETCHES", 5)
    for entry_id in range(0, 60, 2):
        assert ids(access, entry_id, entry_id) == [entry_id]
    assert len(access.fetches) <= 5


def test_so_many_at_once(access, client, thread):
    """No more than so many reads are under way; the others follow."""
    client.is_stopped = True
    waits = []
    for number in range(read_ahead.AT_ONCE + 10):
        with pytest.raises(WouldBlockError) as wait:
            access.read(1, 2 * number, 2 * number, 1000, until=999)
        waits.append(wait.value.done)
    thread.run(asyncio.sleep(0.01))
    assert len(client.reads) == read_ahead.AT_ONCE
    client.is_stopped = False
    assert [len(wait.result(10)) for wait in waits] == [1] * len(waits)


def test_a_deleted_ledger_is_forgotten(access, client, thread):
    """Nothing is kept of it, and what comes later is dropped."""
    assert ids(access, 0, 9) == list(range(10))
    client.is_stopped = True
    with pytest.raises(WouldBlockError) as wait:
        access.read(1, 10, 19, 1000, until=19)
    access.forget([1])
    client.is_stopped = False
    wait.value.done.result(10)
    thread.run(asyncio.sleep(0))
    assert access.fetches.size_bytes == 0
    assert not len(access.fetches)


def test_the_store_is_closed_meanwhile(access, client, thread):
    """Who waits is told, and then learns that the store is closed."""
    client.is_stopped = True
    with pytest.raises(WouldBlockError) as wait:
        access.read(1, 0, 9, 1000, until=9)
    thread.stop()
    assert wait.value.done.cancelled()
    with pytest.raises(StoreClosedError):
        access.read(1, 0, 9, 1000, until=9)


def test_readers_that_go_on_at_once(access, client, monkeypatch):
    """For all readers together only so many fetches are begun ahead, also when some of them never
    come back; and none of what is kept is counted twice.
    """
    monkeypatch.setattr(read_ahead, "AHEAD_MAX", 4)
    for first in range(0, 900, 10):
        for ledger_id in range(5):
            while True:
                try:
                    got = access.read(ledger_id, first, first + 9, 1000, until=899)
                except WouldBlockError as error:
                    error.done.exception(10)
                else:
                    break
            assert [one.entry_id for one in got] == list(range(first, first + 10))
            assert 0 <= access.fetches.ahead_count <= 4
        if first == 500:
            access.forget([4])
    access.forget(list(range(5)))
    assert (access.fetches.ahead_count, access.fetches.size_bytes) == (0, 0)

"""The shared parts of the suite: fixtures, and functions to read a whole log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol

import pytest

from ...ledger import EARLIEST, Entry, ManagedLedger, Position, StoreOptions, TopicLog
from ...ledger.entry import RecordHead
from ...ledger.topic_store import TopicStore
from ...metadata import StamperChain
from ..clock import SettableClock

TOPIC = "persistent://public/default/orders"
OTHER = "persistent://public/default/parcels"
STAMPED = ("broker-time", "index")

SMALL = StoreOptions(
    segment_size_bytes=1000,
    ledger_size_bytes=2500,
    ledger_entries=12,
    max_entry_size_bytes=64 * 1024,
    checkpoint_interval_ms=2**40,
)
"""Runs and ledgers of a few entries, so that a short test goes over many of them."""


class EngineTests:
    """The fixtures. A subclass provides ``make_engine``."""

    @pytest.fixture
    def make_engine(self) -> MakeEngine:
        """Makes the engine under test; a subclass overrides it."""
        raise NotImplementedError("a conformance suite needs a fixture make_engine")

    @pytest.fixture
    def engine(self, make_engine: MakeEngine) -> Iterator[Engine]:
        """An empty engine, with small runs and ledgers."""
        engine = make_engine(SMALL)
        try:
            yield engine
        finally:
            engine.end()

    @pytest.fixture
    def store(self, engine: Engine) -> Iterator[TopicStore]:
        """An open store of the engine."""
        with engine.open() as store:
            yield store

    @pytest.fixture
    def ledger(self, store: TopicStore) -> ManagedLedger:
        """An empty topic of the store."""
        return store.open_topic(TOPIC)


def next_life(engine: Engine, store: TopicStore, ending: str) -> TopicStore:
    """The store after its owner was ended by "close" or "kill"; "none": the same one."""
    if ending == "none":
        return store
    store.close() if ending == "close" else engine.kill()
    return engine.open()


def filled(ledger: ManagedLedger, count: int, *, messages: int = 1, size: int = 50) -> list[Entry]:
    """Append entries with different bodies, wait for them, and return the new entries."""
    start = ledger.end_position
    appended = [
        ledger.append(f"{number:04}".encode().ljust(size, b"."), message_count=messages)
        for number in range(count)
    ]
    for each in appended:
        each.commit.wait(10)
    return [entry for entry in entries_of(ledger) if entry.position >= start]


def stamped(ledger: ManagedLedger) -> ManagedLedger:
    """The ledger, which from now on stamps time and index."""
    ledger.stampers = StamperChain.from_names(STAMPED)
    return ledger


def entries_of(log: TopicLog, *, max_entries: int = 7) -> list[Entry]:
    """All entries, read in small parts."""
    entries: list[Entry] = []
    position = EARLIEST
    while part := log.read(position, max_entries=max_entries):
        entries += part
        last = part[-1].position
        assert last >= position, f"reading from {position} gave what stands before it: {last}"
        position = last.following
    return entries


Facts = tuple[Position, int, int, int, int, int, bytes]


def facts_of(entries: list[Entry]) -> list[Facts]:
    """All facts of entries, for comparisons."""
    return [
        (
            e.position,
            e.kind,
            e.message_count,
            e.index,
            e.append_time_ms,
            e.prefix_size_bytes,
            bytes(e.stored),
        )
        for e in entries
    ]


def heads_of(log: TopicLog) -> list[RecordHead]:
    """The heads that the engine gives for each entry."""
    return [
        run.head(row) for run, first, end in log.stretches(EARLIEST) for row in range(first, end)
    ]


def bodies_of(log: TopicLog) -> list[bytes]:
    """The bodies of all entries."""
    return [bytes(entry.body) for entry in entries_of(log)]


def check_chain(log: TopicLog) -> None:
    """Positions and times grow, and indexes have no gap from the first to the next."""
    index, time_ms, position = log.first_index, 0, EARLIEST
    for entry in entries_of(log):
        assert entry.first_index == index
        assert entry.position > position
        assert entry.append_time_ms >= time_ms
        index, time_ms, position = entry.index + 1, entry.append_time_ms, entry.position
    assert log.next_index == index


class Engine(Protocol):
    """An engine with its stored data, which outlives the stores that are opened on it."""

    clock: SettableClock
    """The clock of every store that is opened."""

    def open(self, *, threaded: bool = True) -> TopicStore:
        """Open a store as a new owner, after the former one was closed or killed."""

    def kill(self) -> None:
        """End the owner as a crash does: pending entries may be lost."""

    def take_over(self) -> TopicStore | None:
        """Open a store while another owner has one open; None: the engine refuses that."""

    def failing(self) -> AbstractContextManager[None]:
        """In this context, writes of entries fail in the open store."""

    def end(self) -> None:
        """End all open stores, and remove the stored data."""


MakeEngine = Callable[[StoreOptions], Engine]
"""Makes an engine that keeps nothing yet."""

"""Readers give way to commits, and only then."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from pulsemark.finder.stream import ReadPlan, entry_responses
from pulsemark.ledger import EARLIEST, Position
from pulsemark.ledger.commit import read_throttle
from pulsemark.ledger.commit.read_throttle import ReadTurns

ORDERS = "persistent://public/default/orders"
COUNT = 1000


@pytest.fixture
def sleeps(monkeypatch):
    """How long readers slept, each time; a slice is over as soon as it has begun."""
    slept: list[float] = []
    clock = SimpleNamespace(sleep=slept.append, perf_counter=time.perf_counter)
    monkeypatch.setattr(read_throttle, "time", clock)
    monkeypatch.setattr(read_throttle, "SLICE_S", 0)
    monkeypatch.setattr(read_throttle, "RECENT_S", 0)
    return slept


@pytest.fixture
def topic(open_store):
    """A topic with entries in two ledgers."""
    topic = open_store().open_topic(ORDERS)
    for number in range(COUNT):
        if number == COUNT // 2:
            topic.roll()
        last = topic.append(b"%d" % number)
    last.commit.wait(10)
    return topic


def read(log):
    """All entries, in calls as large as may be."""
    place, count = EARLIEST, 0
    while entries := log.read(place, max_entries=10_000):
        count += len(entries)
        place = Position(entries[-1].position.ledger_id, entries[-1].position.entry_id + 1)
    return count


def stream(log, *, prefixes_only):
    """All entries, as ReadEntries has them."""
    plan = ReadPlan(EARLIEST, None, None, prefixes_only)
    return sum(len(response.pieces) for response in entry_responses(log, plan))


WAYS = {
    "read": (read, 32),
    "stream": (lambda log: stream(log, prefixes_only=False), 16),
    "prefixes": (lambda log: stream(log, prefixes_only=True), 16),
}


@pytest.mark.parametrize("way", WAYS)
def test_no_reader_waits_while_nothing_is_pending(topic, sleeps, way):
    """Reading alone costs no pause."""
    assert WAYS[way][0](topic) == COUNT
    assert sleeps == []


@pytest.mark.parametrize("way", WAYS)
def test_a_long_read_gives_way_in_small_slices(topic, sleeps, way, monkeypatch):
    """Beside pending commits a reader pauses each time it has had so many entries."""
    how, slice_entries = WAYS[way]
    monkeypatch.setattr(topic.store.committer.pending, "size_bytes", 1)
    assert how(topic) == COUNT
    monkeypatch.undo()
    assert len(sleeps) >= COUNT / slice_entries


def test_the_thread_of_the_callbacks_never_waits(topic, sleeps, monkeypatch):
    """An event loop that runs commit callbacks reads without a pause."""
    committer = topic.store.committer
    monkeypatch.setattr(committer.pending, "size_bytes", 1)
    monkeypatch.setattr(committer._delivery, "_notify", lambda call: call())
    committer._delivery.put([lambda: None])
    assert read(topic) == COUNT
    assert sleeps == []
    other = threading.Thread(target=read, args=[topic])
    other.start()
    other.join()
    monkeypatch.undo()
    assert sleeps


def test_readers_pause_one_after_another(monkeypatch):
    """With more readers each gets fewer turns: their pauses never overlap."""
    inside, most = set(), []

    def sleep(seconds):
        inside.add(threading.get_ident())
        time.sleep(seconds)
        most.append(len(inside))
        inside.discard(threading.get_ident())

    clock = SimpleNamespace(sleep=sleep, perf_counter=time.perf_counter)
    monkeypatch.setattr(read_throttle, "time", clock)
    monkeypatch.setattr(read_throttle, "SLICE_S", 0)
    turns = ReadTurns(lambda: True)

    def take_turns():
        for _ in range(25):
            turns.wait()

    threads = [threading.Thread(target=take_turns) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 100


def test_readers_also_pause_between_two_commits(topic, sleeps, monkeypatch):
    """Readers also pause while nothing is pending, if a batch was committed a moment ago."""
    monkeypatch.setattr(read_throttle, "RECENT_S", 3600)
    topic.append(b"new").commit.wait(10)
    assert read(topic) == COUNT + 1
    assert sleeps

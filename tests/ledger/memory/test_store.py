"""What ledgers in memory do beyond what every engine does; the rest is the conformance suite's."""

from __future__ import annotations

import errno
import sys

import pytest

from pulsemark.ledger import (
    EARLIEST,
    CatalogError,
    CorruptEntryError,
    FencedError,
    LedgerError,
    MemoryFolder,
    MemoryStore,
    OwnershipLostError,
    StoreFailedError,
)
from pulsemark.ledger.local.segment.segment import as_segment
from pulsemark.ledger.memory.store import MemoryRun

TOPIC = "persistent://public/default/orders"


def test_the_next_store_finds_what_the_first_one_left():
    """The content outlives the stores that open it, without any file."""
    memory = MemoryFolder()
    with MemoryStore.open(memory) as store:
        store.open_topic(TOPIC).append(b"x").commit.wait(10)
    with MemoryStore.open(memory) as store:
        assert bytes(store.open_topic(TOPIC).read(EARLIEST)[0].body) == b"x"
    with MemoryStore.open() as store:
        assert store.topic_names() == []


def test_a_lost_owner_gets_an_error_and_stops():
    """Its first write or change raises; the store has failed then, and can be closed."""
    memory = MemoryFolder()
    first = MemoryStore.open(memory)
    topic = first.open_topic(TOPIC)
    topic.append(b"x").commit.wait(10)
    second = MemoryStore.open(memory)
    with pytest.raises(OwnershipLostError):
        first.catalog.put("kind", "key", b"")
    with pytest.raises(StoreFailedError, match="OwnershipLostError"):
        topic.append(b"late").commit.wait(10)
    with pytest.raises(StoreFailedError):
        topic.read(EARLIEST)
    first.close()
    assert len(second.open_topic(TOPIC).read(EARLIEST)) == 1
    second.close()


def test_readers_of_a_lost_owner_see_no_damage():
    """Entries that the new owner removes are removed for the old one, too, and are not damage."""
    memory = MemoryFolder()
    first = MemoryStore.open(memory)
    topic = first.open_topic(TOPIC)
    for _ in range(5):
        topic.append(b"x").commit.wait(10)
    with MemoryStore.open(memory) as second:
        mine = second.open_topic(TOPIC)
        mine.truncate_head(mine.read(EARLIEST)[3].position)
        try:
            assert [entry.index for entry in topic.read(EARLIEST)] == [3, 4]
        except CorruptEntryError as error:
            pytest.fail(str(error))
    first.close()


def test_refused_writes_leave_everything_as_it_was():
    """Appends get FencedError, changes of the catalog CatalogError, probes OSError."""
    memory = MemoryFolder()
    with MemoryStore.open(memory) as store:
        topic = store.open_topic(TOPIC)
        memory.refusal = OSError(errno.ENOSPC, "full")
        with pytest.raises(FencedError, match="full"):
            topic.append(b"x").commit.wait(10)
        with pytest.raises(CatalogError, match="full"):
            store.catalog.write([("a", "1", b"x"), ("a", "2", None)])
        with pytest.raises(CatalogError):
            store.delete_topic(TOPIC)
        with pytest.raises(OSError, match="full"):
            store.probe()
        memory.refusal = None
        store.probe()
        assert topic.append(b"x").index == 0
        assert store.catalog.items("a") == []


def test_removed_entries_give_their_memory_back():
    """Trimmed runs, cut heads and deleted topics keep no bytes."""
    memory = MemoryFolder()
    with MemoryStore.open(memory) as store:
        topic = store.open_topic(TOPIC)
        body = b"x" * 10_000
        for _ in range(20):
            topic.append(body).commit.wait(10)
            if len(topic.all_segments()) < 3:
                topic.roll()
        runs = topic.segments()

        def kept() -> int:
            contents = [run.content for run in runs if isinstance(run, MemoryRun)]
            return sum(sys.getsizeof(data) for each in contents for data in each.entries)

        assert kept() > 200_000
        topic.truncate_head(topic.read(EARLIEST, max_entries=20)[18].position)
        assert kept() < 25_000
        store.delete_topic(TOPIC)
        assert kept() == 0


def test_a_run_in_memory_has_no_file():
    """Code that goes to a segment's file gets a typed error."""
    with MemoryStore.open() as store:
        topic = store.open_topic(TOPIC)
        topic.append(b"x").commit.wait(10)
        with pytest.raises(TypeError, match="MemoryRun"):
            as_segment(topic.segments()[0])


def test_memory_store_is_refused_in_a_child_process():
    """As with files, every call in a fork is refused; here the state alone is looked at."""
    store = MemoryStore.open()
    store.state._disown()
    with pytest.raises(LedgerError, match="belongs to the process"):
        store.open_topic(TOPIC)


def test_a_store_that_was_stopped_before(caplog):
    """What fails in a store that has stopped already, since it has another owner, is no alarm."""
    store = MemoryStore.open(MemoryFolder())
    store.state.fail(OwnershipLostError("taken over"))
    store.committer.stop_store(OSError("no session any more"))
    assert "taken over" in str(store.state.error())
    assert not [record for record in caplog.records if record.levelname == "CRITICAL"]
    store.close()

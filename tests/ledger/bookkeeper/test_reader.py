"""Reading topics without owning them, and topics of a real Pulsar as it stored them."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pulsemark.coordination import CoordinationUnavailableError
from pulsemark.finder import Finder
from pulsemark.finder.search import SearchMethod
from pulsemark.ledger import (
    EARLIEST,
    CatalogError,
    CorruptEntryError,
    Entry,
    Position,
    StoreOptions,
    TopicNotFoundError,
)
from pulsemark.ledger.bookkeeper.ledgers import LedgerOptions
from pulsemark.ledger.bookkeeper.reader import BookKeeperReader, ledger_info, topic_path
from pulsemark.ledger.bookkeeper.store import BookKeeperStore
from pulsemark.ledger.store_core import StoreSetup
from pulsemark.metadata import MessageHeader, StamperChain, peek
from pulsemark.metadata.compression import compress
from pulsemark.proto.managed_ledger_pb2 import InfoCompression
from pulsemark.testing.clock import A_TIME_MS, SettableClock
from pulsemark.testing.raw_messages import BatchMember, batched_message
from tests.support.faulty_coordination import FaultyTree
from tests.support.memory_bookies import MemoryBookies

GOLDEN = json.loads((Path(__file__).parent / "golden" / "pulsar_4_0_8.json").read_text())
TOPIC = GOLDEN["topic"]
OURS = "persistent://public/default/ours"


class Cluster:
    """ZooKeeper's nodes and bookies in memory."""

    def __init__(self) -> None:
        self.tree = FaultyTree()
        self.bookies = MemoryBookies()

    async def connecting(self) -> Any:
        """Sessions with both."""
        return self.tree.session(), self.bookies.client()

    def reader(self) -> BookKeeperReader:
        """A reader of it."""
        return BookKeeperReader(self.connecting, name="memory")

    def store(self) -> BookKeeperStore:
        """A store of this package in it."""
        return BookKeeperStore.open_with(
            self.connecting,
            ledgers_root="/ledgers",
            root="/pulsemark",
            ledger_options=LedgerOptions(),
            setup=StoreSetup(
                SettableClock(A_TIME_MS), StoreOptions(ledger_entries=5), None, threaded=True
            ),
        )


async def load_golden(cluster: Cluster, change: Callable[[bytes], bytes] = bytes) -> None:
    """Put Pulsar's nodes and ledgers into the cluster; ``change`` the topic's own node."""
    session, client = await cluster.connecting()
    for path, data in GOLDEN["nodes"].items():
        value = bytes.fromhex(data)
        if path == topic_path(TOPIC):
            value = change(value)
        await session.create(path, value, make_parents=True)
    for ledger_id, entries in GOLDEN["ledgers"].items():
        writer = await client.create_ledger(ledger_id=int(ledger_id))
        for _, payload in entries:
            await writer.append(bytes.fromhex(payload))


def compressed(compression: int) -> Callable[[bytes], bytes]:
    """What Pulsar stores with managedLedgerInfoCompressionType."""

    def change(data: bytes) -> bytes:
        how = InfoCompression(compression=compression, uncompressed_size_bytes=len(data))
        header = how.SerializeToString()
        return struct.pack(">HI", 0x4778, len(header)) + header + compress(compression, data)

    return change


@pytest.mark.parametrize("compression", [0, 1, 2, 3, 4])
async def test_a_real_pulsars_topic(compression: int) -> None:
    """Its entries come in order, with the index and time of their stamps, from any node."""
    cluster = Cluster()
    await load_golden(cluster, compressed(compression) if compression else bytes)
    with cluster.reader() as reader:
        assert TOPIC in reader.topics()
        log = reader.log(TOPIC)
        entries = log.read(EARLIEST, max_entries=1000)
        stored = [
            payload
            for ledger_id in sorted(map(int, GOLDEN["ledgers"]))
            for _, payload in GOLDEN["ledgers"][str(ledger_id)]
        ]
        assert [bytes(entry.stored).hex() for entry in entries] == stored
        for entry in entries:
            stamp, header = peek(entry.stored), MessageHeader(entry.body).metadata()
            assert stamp is not None
            assert (entry.index, entry.time_ms) == (stamp.index, stamp.broker_timestamp)
            assert entry.message_count == header.num_messages_in_batch
        indexes = [entry.first_index for entry in entries]
        assert (log.first_index, log.next_index) == (indexes[0], entries[-1].index + 1)


@pytest.mark.parametrize("method", SearchMethod)
async def test_searches_in_a_real_pulsars_topic(method: SearchMethod) -> None:
    """Each entry is found by its time and by each of its indexes; only a few entries are read."""
    cluster = Cluster()
    await load_golden(cluster)
    with cluster.reader() as reader:
        log = reader.log(TOPIC)
        finder = Finder(log)
        for entry in log.read(EARLIEST, max_entries=1000):
            found = finder.by_time(entry.time_ms, method=method)
            assert found.time_ms == entry.time_ms
            assert found.position <= entry.position
            for index in (entry.first_index, entry.index):
                assert finder.by_index(index, method=method).position == entry.position
        assert finder.by_time(2**62, method=method).end


async def test_a_pulsar_without_stamps() -> None:
    """Messages are counted by the entries' headers, and have their publish time."""
    cluster = Cluster()
    await load_golden(cluster)
    with cluster.bookies.lock:
        for ledger in cluster.bookies.ledgers.values():
            bare = [entry[6 + struct.unpack_from(">HI", entry)[1] :] for entry in ledger.entries]
            ledger.entries[:] = bare
    with cluster.reader() as reader:
        log = reader.log(TOPIC)
        next_index = 0
        for entry in log.read(EARLIEST, max_entries=1000):
            header = MessageHeader(entry.body).metadata()
            assert entry.first_index == next_index
            assert entry.message_count == header.num_messages_in_batch
            assert entry.time_ms == header.publish_time
            next_index = entry.index + 1
        assert log.next_index == next_index
        found = Finder(log).by_time(entry.time_ms)
        assert found.time_ms >= entry.time_ms


async def test_a_trimmed_head(caplog: pytest.LogCaptureFixture) -> None:
    """Ledgers that Pulsar removed are not part of the log, whose index begins with the next."""
    cluster = Cluster()
    await load_golden(cluster)
    first = min(map(int, GOLDEN["ledgers"]))
    with cluster.reader() as reader:
        log = reader.log(TOPIC)
        second = next(run for run in log.segments() if run.ledger_id != first)
        del cluster.bookies.ledgers[first]
        log.refresh()
        assert log.first_index == second.first_index
        assert log.read(EARLIEST)[0].position.ledger_id == second.ledger_id


async def test_nodes_that_are_no_lists() -> None:
    """A node that cannot be parsed or decompressed raises CatalogError with its path."""
    for data in (b"\xff\xff", b"\x47\x78\x00\x00\x00\x04\x08\x03\x10\x20junk", b"\x47\x78\x00\x00"):
        with pytest.raises(CatalogError, match="/managed-ledgers/x"):
            ledger_info("/managed-ledgers/x", data)


async def test_topics_that_are_not_there() -> None:
    """Unknown names and names that no topic can have raise TopicNotFoundError."""
    with Cluster().reader() as reader:
        assert reader.topics() == []
        for name in ("persistent://a/b/c", "nothing", "non-persistent://a/b/c"):
            with pytest.raises(TopicNotFoundError):
                reader.log(name)


def test_this_packages_topics_beside_their_owner() -> None:
    """A reader sees what the owner has confirmed, and takes nothing over."""
    cluster = Cluster()
    with cluster.store() as store, cluster.reader() as reader:
        ledger = store.open_topic(OURS)
        ledger.stampers = StamperChain.from_names(("broker-time", "index"))
        for number in range(12):
            ledger.append(b"%d" % number, message_count=2).commit.wait(10)
        assert reader.topics() == [OURS]
        log = reader.log(OURS)
        assert [bytes(e.body) for e in log.read(EARLIEST)] == [b"%d" % n for n in range(12)]
        ledger.append(b"more").commit.wait(10)
        log.refresh()
        assert log.next_index == ledger.next_index == 25
        assert Finder(log).by_index(24).position == ledger.last_position


@pytest.mark.parametrize("damaged", [0, 3, 11])
def test_the_entries_around_a_damaged_one(damaged: int) -> None:
    """An entry whose copies are all bad is an error at its position, and reading goes on after."""
    cluster = Cluster()
    with cluster.store() as store, cluster.reader() as reader:
        ledger = store.open_topic(OURS)
        ledger.stampers = StamperChain.from_names(("broker-time", "index"))
        body = batched_message([BatchMember(payload=b"x")] * 3, publish_time_ms=1)
        appended = [ledger.append(body, message_count=3) for _ in range(13)]
        appended[-1].commit.wait(10)
        positions = [each.position for each in appended]
        place = positions[damaged]
        entries = cluster.bookies.ledgers[place.ledger_id].entries
        entries[place.entry_id] = b"\x0e\x02\x00\x00\x00\x01\xff" + bytes(100)
        log = reader.log(OURS)
        found, errors, position = list[Entry](), list[Position](), EARLIEST
        for _ in range(30):
            try:
                part = log.read(position)
            except CorruptEntryError as error:
                errors.append(error.position)
                position = error.next_position
                continue
            if not part:
                break
            found += part
            position = part[-1].position.following
        assert errors == [place]
        assert [entry.position for entry in found] == [at for at in positions if at != place]
        assert [entry.index for entry in found] == [n * 3 + 2 for n in range(13) if n != damaged]
        assert {entry.message_count for entry in found} == {3}


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_log_whose_last_entry_is_damaged_or_lost(is_lost: bool) -> None:
    """Cannot be opened, by a reader or a store, and the error is the one that callers expect."""
    cluster = Cluster()
    with cluster.store() as store, cluster.reader() as reader:
        place = store.open_topic(OURS).append(b"last")
        place.commit.wait(10)
        ledger = cluster.bookies.ledgers[place.position.ledger_id]
        ledger.entries[0] = b"\x0e\x02\x00\x00\x00\x01\xff" + bytes(100)
        if is_lost:
            ledger.lost.add(0)
        with pytest.raises(OSError, match="memory: "):
            reader.log(OURS)
    with cluster.store() as store, pytest.raises(OSError, match="entry 0: "):
        store.open_topic(OURS)


def test_a_place_that_does_not_answer_is_named_as_it_was_given():
    """With both slashes: the address can be copied out of the error."""
    address = "zk://127.0.0.1:1/ledgers"

    async def connecting() -> Any:
        raise CoordinationUnavailableError(reason="no server answered")

    with pytest.raises(CatalogError, match=f"^{address}: ") as caught:
        BookKeeperReader(connecting, name=address)
    assert caught.value.path == address

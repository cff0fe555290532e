"""Deduplication: receipts of duplicates, snapshots, restarts, kills, forgotten producers."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pulsemark.broker import BrokerThread
from pulsemark.broker.topics.deduplication import (
    ALL_MAX_BYTES,
    SNAPSHOT_BYTES_PER_ENTRY,
    TOPIC_MAX_BYTES,
    Deduplication,
    Snapshot,
    trim_all,
)
from pulsemark.client import Receipt, SendRefusedError
from pulsemark.ledger import (
    EARLIEST,
    Appended,
    FencedError,
    FolderReader,
    LocalStore,
    Position,
    StoreFailedError,
    StoreOptions,
)
from pulsemark.metadata import payload_of
from pulsemark.metadata.source_stamp import MIRROR_PROPERTY, SourceStamp
from pulsemark.proto.pulsar_api_pb2 import CommandSend
from pulsemark.testing import RawClient, SettableClock, running_broker
from pulsemark.testing.faulty_files import FaultyFiles
from pulsemark.testing.raw_client import RawProducer
from pulsemark.testing.raw_messages import unbatched_message

DUPLICATE = (-1, -1)
TOPIC = "persistent://public/default/once"
KIND = "deduplication"
PATIENCE_S = 30.0


@pytest.fixture
def deduplicating(tmp_path: Path) -> Iterator[Callable[..., BrokerThread]]:
    """Starts brokers that deduplicate, one after another on the same folder."""
    running: list[Any] = []

    def start(**config: Any) -> BrokerThread:
        stop()
        made = running_broker(data_dir=tmp_path, broker_deduplication_enabled=True, **config)
        broker = made.__enter__()
        running.append(made)
        return broker

    def stop() -> None:
        while running:
            running.pop().__exit__(None, None, None)

    yield start
    stop()


def payloads(broker: BrokerThread, topic: str = TOPIC) -> list[bytes]:
    """What the log has."""

    async def read(running: Any) -> list[bytes]:
        ledger = running.services.topics.open_topics[topic].ledger
        entries = ledger.read(EARLIEST, max_entries=10_000, max_bytes=1 << 30)
        return [bytes(payload_of(entry.body)) for entry in entries]

    found: list[bytes] = broker.call(read)
    return found


def post_all(producer: RawProducer, messages: list[bytes], first: int) -> None:
    """Send messages with sequence ids from ``first`` on, without waiting for their receipts."""
    for n, payload in enumerate(messages, first):
        body = unbatched_message(payload, publish_time_ms=n, sequence_id=n, producer_name="p")
        producer.post(body, sequence_id=n)


def receipts_before_a_refusal(producer: RawProducer) -> list[Receipt]:
    """What a producer gets until a message is refused."""
    found: list[Receipt] = []
    while True:
        try:
            found += producer.receipts(1)
        except SendRefusedError:
            return found


def snapshot_of(broker: BrokerThread, topic: str = TOPIC) -> Any:
    """The stored snapshot."""
    value = broker.broker.store.catalog.get(KIND, topic)
    return None if value is None else json.loads(value)


def eventually(holds: Callable[[], object], what: str) -> None:
    """Return when something holds."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline_s, f"{what} did not come to hold"
        time.sleep(0.02)


def test_a_duplicate_is_answered_and_not_stored(deduplicating):
    """Its receipt has the position (-1, -1), and it takes no index."""
    broker = deduplicating()
    with RawClient.from_url(broker.service_url) as client:
        producer = client.create_producer(TOPIC, producer_name="p")
        assert producer.last_sequence_id == -1
        for n in range(3):
            assert producer.send(b"%d" % n, sequence_id=n)[1:3] != DUPLICATE
        for n in range(3):
            assert producer.send(b"again", sequence_id=n)[:3] == (n, *DUPLICATE)
        assert producer.send(b"3", sequence_id=3)[1:3] != DUPLICATE
        assert payloads(broker) == [b"0", b"1", b"2", b"3"]

        async def next_index(running: Any) -> int:
            return int(running.services.topics.open_topics[TOPIC].ledger.next_index)

        assert broker.call(next_index) == 4
        producer.close()
        again = client.create_producer(TOPIC, producer_name="p")
        assert again.last_sequence_id == 3
        other = client.create_producer(TOPIC, producer_name="q")
        assert other.last_sequence_id == -1
        assert other.send(b"q", sequence_id=0)[1:3] != DUPLICATE


def test_a_batch_counts_by_the_sequence_id_of_its_send(deduplicating):
    """Its highest id is the one above which the next SEND must be."""
    broker = deduplicating()
    with RawClient.from_url(broker.service_url) as client:
        producer = client.create_producer(TOPIC, producer_name="p")
        assert producer.send_batch([b"a", b"b", b"c"], sequence_id=4)[1:3] != DUPLICATE
        receipt = producer.send_batch([b"b", b"c", b"d"], sequence_id=5)
        assert receipt[:] == (5, *DUPLICATE, 7)
        assert producer.send_batch([b"d", b"e"], sequence_id=7)[1:3] != DUPLICATE


def test_of_a_chunked_message_the_last_chunk_counts(deduplicating):
    """Chunks have one sequence id. Once the message is whole, each of them is a duplicate."""
    broker = deduplicating()
    with RawClient.from_url(broker.service_url) as client:
        producer = client.create_producer(TOPIC, producer_name="p")

        def chunk(number: int) -> tuple[int, int]:
            body = unbatched_message(
                b"c%d" % number,
                publish_time_ms=1,
                sequence_id=5,
                producer_name="p",
                num_chunks_from_msg=3,
                chunk_id=number,
                uuid="u",
                total_chunk_msg_size=6,
            )
            receipt = producer.send_raw(body, sequence_id=5, is_chunk=True)
            return receipt.ledger_id, receipt.entry_id

        # The client lost its connection after two chunks: they are stored again with the last.
        assert DUPLICATE not in [chunk(n) for n in (0, 1, 0, 1, 2)]
        assert [chunk(n) for n in (0, 1, 2)] == [DUPLICATE] * 3
        producer.close()
        assert client.create_producer(TOPIC, producer_name="p").last_sequence_id == 5


@pytest.mark.parametrize("entries_interval", [2, 1_000])
def test_over_a_restart(deduplicating, entries_interval):
    """The ids come from the snapshot and the entries after it, after one or without a later one."""
    broker = deduplicating(broker_deduplication_entries_interval=entries_interval)
    with RawClient.from_url(broker.service_url) as client:
        producer = client.create_producer(TOPIC, producer_name="p")
        for n in range(5):
            producer.send(b"%d" % n, sequence_id=10 * n)
        if entries_interval == 2:
            eventually(lambda: snapshot_of(broker)["producers"], "a snapshot with the producer")
        producer.send(b"5", sequence_id=50)
    broker = deduplicating()
    with RawClient.from_url(broker.service_url) as client:
        producer = client.create_producer(TOPIC, producer_name="p")
        assert producer.last_sequence_id == 50
        assert producer.send(b"again", sequence_id=50)[1:3] == DUPLICATE
        assert producer.send(b"6", sequence_id=51)[1:3] != DUPLICATE
        assert payloads(broker) == [b"0", b"1", b"2", b"3", b"4", b"5", b"6"]


def test_producers_of_another_cluster_do_not_count(deduplicating):
    """What a mirror brought is not deduplicated by its producers, also after a restart."""
    broker = deduplicating(mirror_sources=("west",))
    with RawClient.from_url(broker.service_url) as client:
        mirror = client.create_producer(TOPIC, properties={MIRROR_PROPERTY: "west"})
        body = unbatched_message(b"x", publish_time_ms=1, sequence_id=100, producer_name="p")
        assert mirror.send_raw(SourceStamp("west", 7, 0, 1, 2).prefix() + body).entry_id >= 0
        assert client.create_producer(TOPIC, producer_name="p").last_sequence_id == -1
    broker = deduplicating()
    with RawClient.from_url(broker.service_url) as client:
        assert client.create_producer(TOPIC, producer_name="p").last_sequence_id == -1


def test_what_is_removed_from_the_log_is_in_the_snapshot(deduplicating):
    """After a truncation and a restart the ids are still known."""
    broker = deduplicating(store_options=StoreOptions(segment_size_bytes=500))
    with RawClient.from_url(broker.service_url) as client:
        producer = client.create_producer(TOPIC, producer_name="p")
        for n in range(20):
            producer.send(b"x" * 100, sequence_id=n)

        async def truncate(running: Any) -> None:
            services = running.services
            await services.cleaning.truncate(services.topics.open_topics[TOPIC])

        broker.call(truncate)
        assert payloads(broker) == []
    broker = deduplicating()
    with RawClient.from_url(broker.service_url) as client:
        assert client.create_producer(TOPIC, producer_name="p").last_sequence_id == 19


def test_producers_that_are_gone_are_forgotten(deduplicating):
    """After the timeout, and above the most producers those that published first."""
    clock = SettableClock()
    broker = deduplicating(
        clock=clock,
        broker_deduplication_producer_inactivity_timeout_ms=60_000,
        broker_deduplication_max_number_of_producers=2,
    )

    def store() -> dict[str, Any]:
        async def work(running: Any) -> None:
            topics = running.services.topics
            await topics.rule_keeping.store_snapshot(topics.open_topics[TOPIC])

        broker.call(work)
        found: dict[str, Any] = snapshot_of(broker)["producers"]
        return found

    with RawClient.from_url(broker.service_url) as client:
        stays = client.create_producer(TOPIC, producer_name="stays")
        gone = client.create_producer(TOPIC, producer_name="gone")
        stays.send(b"x", sequence_id=1)
        gone.send(b"x", sequence_id=1)
        gone.close()
        assert set(store()) == {"stays", "gone"}
        clock.advance(by_ms=61_000)
        assert set(store()) == {"stays"}
        for name in ("a", "b"):
            clock.advance(by_ms=1)
            client.create_producer(TOPIC, producer_name=name).send(b"x", sequence_id=1)
        assert set(store()) == {"a", "b"}


@pytest.mark.parametrize("field", ["sequence_id", "highest_sequence_id"])
@pytest.mark.parametrize("restarts", [False, True])
def test_the_highest_unsigned_id_locks_no_name(deduplicating, field, restarts):
    """It is -1, as in Pulsar: the producer opens, and stores what has a higher id."""
    broker = deduplicating()
    with RawClient.from_url(broker.service_url) as client:
        producer = client.create_producer(TOPIC, producer_name="p")
        ids: dict[str, Any] = {"sequence_id": 0, field: 2**64 - 1}
        body = unbatched_message(b"x", publish_time_ms=1, producer_name="p", **ids)
        assert producer.send_raw(body, **ids)[1:3] != DUPLICATE
    if restarts:
        broker = deduplicating()
    with RawClient.from_url(broker.service_url) as client:
        producer = client.create_producer(TOPIC, producer_name="p")
        assert producer.last_sequence_id == (-1 if field == "sequence_id" else 0)
        producer.send(b"y", sequence_id=1)
        assert producer.send(b"again", sequence_id=2**64 - 1)[1:3] == DUPLICATE
        assert payloads(broker) == [b"x", b"y"]


def test_negative_ids_that_are_not_durable_yet_lock_no_name(deduplicating):
    """The first id of a producer may be any number; only those above it are new."""
    broker = deduplicating()
    with RawClient.from_url(broker.service_url) as client:
        producer = client.create_producer(TOPIC, producer_name="p")
        for n in (2**64 - 5, 2**64 - 1, 0):
            producer.post(
                unbatched_message(b"%d" % n, publish_time_ms=1, sequence_id=n, producer_name="p"),
                sequence_id=n,
            )
        assert DUPLICATE not in [receipt[1:3] for receipt in producer.receipts(3)]


def test_a_name_that_a_stored_snapshot_locks_is_usable_again(deduplicating, tmp_path):
    """Earlier versions stored ids unsigned; the producer of such a name could not be opened."""
    broker = deduplicating()
    with RawClient.from_url(broker.service_url) as client:
        client.create_producer(TOPIC, producer_name="p").send(b"x", sequence_id=0)

        async def spoil(running: Any) -> None:
            topics = running.services.topics
            topic = topics.open_topics[TOPIC]
            topic.deduplication.new_entries()
            topic.deduplication.durable["p"] = 2**64 - 1, topic.deduplication.durable["p"][1]
            await topics.rule_keeping.store_snapshot(topic)

        broker.call(spoil)
        assert snapshot_of(broker)["producers"]["p"][0] == 2**64 - 1
    broker = deduplicating()
    with RawClient.from_url(broker.service_url) as client:
        producer = client.create_producer(TOPIC, producer_name="p")
        assert producer.last_sequence_id == -1
        assert producer.send(b"y", sequence_id=1)[1:3] != DUPLICATE


def stored_at_once(deduplication: Deduplication, name: str) -> None:
    """A producer's entry was appended and is durable."""
    entry: Any = SimpleNamespace(
        commit=SimpleNamespace(done=True), error=None, ledger_id=1, entry_id=1
    )
    deduplication.appended(name, CommandSend(producer_id=1, sequence_id=1), b"", entry)
    deduplication.new_entries()


@pytest.mark.parametrize("character", ["n", "\N{POSTAL HORN}", "\0"])
def test_the_names_of_a_topic_are_bounded_by_their_bytes(character):
    """In memory and in a snapshot; those of connected producers and the latest ones stay."""
    clock = SettableClock()
    deduplication = Deduplication(
        Snapshot(Position(1, 0), {}), clock.now_ms, connected=lambda name: name == "connected"
    )
    stored_at_once(deduplication, "connected")
    for number in range(4_000):
        clock.advance(by_ms=1)
        stored_at_once(deduplication, f"{number:04}" + character * 1_020)
        assert deduplication.size_bytes <= TOPIC_MAX_BYTES
    snapshot = deduplication.snapshot(10**9, 10_000)
    assert len(snapshot.stored(1)) <= deduplication.size_bytes + 1_000 <= TOPIC_MAX_BYTES + 1_000
    assert {"connected", f"3999{character * 1_020}"} <= set(snapshot.producers)
    assert f"0000{character * 1_020}" not in snapshot.producers
    read = Snapshot.parse(snapshot.stored(1), 1)
    assert read is not None
    assert Deduplication(read, clock.now_ms).size_bytes == deduplication.size_bytes


def test_a_large_snapshot_of_an_earlier_version_is_bounded_when_it_is_read():
    """A restart does not keep more than the broker would have kept."""
    rows = {f"{number}" + "n" * 1_000: (1, number) for number in range(10_000)}
    read = Deduplication(Snapshot(Position(1, 0), rows), SettableClock().now_ms)
    assert read.size_bytes <= TOPIC_MAX_BYTES
    assert f"9999{'n' * 1_000}" in read.durable


def test_a_large_snapshot_is_due_after_more_entries():
    """What is written for snapshots is bounded by the number of entries."""
    deduplication = Deduplication(Snapshot(Position(1, 0), {}), SettableClock().now_ms)
    for number in range(2_000):
        stored_at_once(deduplication, f"{number}" + "n" * 1_000)
    assert deduplication.size_bytes > 2_400_000
    assert not deduplication.is_large(10)
    while not deduplication.is_large(10):
        stored_at_once(deduplication, f"0{'n' * 1_000}")
    assert (deduplication.new_entries() + 1) * SNAPSHOT_BYTES_PER_ENTRY > deduplication.size_bytes


def test_the_names_of_all_topics_are_bounded_together():
    """Topics with many names forget some; those with few keep theirs."""
    clock = SettableClock()
    few = Deduplication(Snapshot(Position(1, 0), {"p": (1, 1)}), clock.now_ms)
    many = []
    for _ in range(ALL_MAX_BYTES // TOPIC_MAX_BYTES + 4):
        rows = {f"{number}" + "n" * 1_000: (1, number) for number in range(2_400)}
        many.append(Deduplication(Snapshot(Position(1, 0), rows), clock.now_ms))
    assert sum(each.size_bytes for each in many) > 0.9 * ALL_MAX_BYTES
    while sum(each.size_bytes for each in many) <= ALL_MAX_BYTES:
        for each in many:
            stored_at_once(each, f"{len(each.durable)}" + "m" * 1_000)
    trim_all([few, *many])
    assert sum(each.size_bytes for each in many) <= ALL_MAX_BYTES
    assert few.durable == {"p": (1, 1)}
    assert all(each.durable for each in many)


def test_it_goes_with_its_policy_and_its_topic(deduplicating):
    """Off: duplicates are stored, and nothing is kept. A new topic of a name knows no producers."""
    broker = deduplicating()
    with RawClient.from_url(broker.service_url) as client:
        producer = client.create_producer(TOPIC, producer_name="p")
        producer.send(b"x", sequence_id=5)

        async def switch(running: Any, value: bool | None) -> None:
            topics = running.services.topics
            from pulsemark.broker.policies.pulsar_policies import DEDUPLICATION

            levels = topics.policies[DEDUPLICATION]
            await levels.set(topics.parse(TOPIC), value)
            await topics.policies.background.settled()

        broker.call(lambda running: switch(running, False))
        assert producer.send(b"y", sequence_id=5)[1:3] != DUPLICATE
        assert snapshot_of(broker) is None
        broker.call(lambda running: switch(running, None))
        assert producer.send(b"z", sequence_id=5)[1:3] != DUPLICATE
        assert producer.send(b"z", sequence_id=5)[1:3] == DUPLICATE
        producer.close()

        async def delete(running: Any) -> None:
            topics = running.services.topics
            await topics.delete(topics.parse(TOPIC))

        broker.call(delete)
        assert snapshot_of(broker) is None
        assert client.create_producer(TOPIC, producer_name="p").last_sequence_id == -1


def test_after_a_failed_write_nothing_is_lost_and_nothing_doubled(deduplicating):
    """A message that failed may be sent again; one after it was not stored without it."""
    broker = deduplicating()
    with RawClient.from_url(broker.service_url) as client:
        producer = client.create_producer(TOPIC, producer_name="p")
        producer.send(b"0", sequence_id=0)

        async def fail(running: Any) -> tuple[bool, int]:
            from pulsemark.broker.topics.deduplication import UncertainError
            from pulsemark.broker.topics.producers import DuplicateMessageError
            from pulsemark.proto.pulsar_api_pb2 import CommandSend

            deduplication = running.services.topics.open_topics[TOPIC].deduplication

            class Commit:
                done = False
                error: Exception | None = None

            commit: Any = Commit()
            command = CommandSend(producer_id=1, sequence_id=1)
            deduplication.appended("p", command, b"", Appended(0, 0, 0, 0, commit))
            try:
                deduplication.admit("p", command)
            except UncertainError:
                refused = True
            Commit.done, Commit.error = True, OSError("no")
            follows = deduplication.admit("p", CommandSend(producer_id=1, sequence_id=2))
            assert follows.commit.error is not None
            last = deduplication.opened("p")
            try:
                assert deduplication.admit("p", command) is None
            except DuplicateMessageError:
                refused = False
            return refused, last

        assert broker.call(fail) == (True, 0)


@pytest.mark.parametrize("operation", ["pwritev", "fdatasync"])
def test_a_batch_that_fails_is_stored_once(deduplicating, monkeypatch, operation):
    """What was written whole after the sync has its receipt; all else is refused, and stored when
    it is sent again.
    """
    files = FaultyFiles()
    opened = LocalStore.open
    monkeypatch.setattr(
        LocalStore, "open", lambda folder, **options: opened(folder, **{**options, "files": files})
    )
    broker = deduplicating()
    messages = [b"%d" % n for n in range(20)]
    syncing, gathered = threading.Event(), threading.Event()
    sync = files.fdatasync

    def sync_late(fd: int) -> None:
        if not syncing.is_set():
            syncing.set()
            gathered.wait(PATIENCE_S)
        elif not files.failed_calls:
            # The journal's sync, or half of what goes to the segment after it.
            files.fail(operation, error=errno.ENOSPC)
        sync(fd)

    async def next_entry_id(running: Any) -> int:
        return int(running.services.topics.open_topics[TOPIC].ledger.tail.entry_id)

    with RawClient.from_url(broker.service_url) as client:
        producer = client.create_producer(TOPIC, producer_name="p")
        monkeypatch.setattr(files, "fdatasync", sync_late)
        post_all(producer, messages[:1], 0)
        client.write()
        assert syncing.wait(PATIENCE_S)
        post_all(producer, messages[1:], 1)
        client.write()
        eventually(lambda: broker.call(next_entry_id) == len(messages), "what is sent to gather")
        gathered.set()
        acknowledged = receipts_before_a_refusal(producer)
    assert files.failed_calls == 1
    assert (1 < len(acknowledged) < len(messages)) == (operation == "pwritev")
    assert files.violations == []
    with RawClient.from_url(broker.service_url) as client:
        producer = client.create_producer(TOPIC, producer_name="p")
        assert producer.last_sequence_id == acknowledged[-1].sequence_id == len(acknowledged) - 1
        post_all(producer, messages, 0)
        again = producer.receipts(len(messages))
    is_new = [receipt[1:3] != DUPLICATE for receipt in again]
    assert is_new == [n >= len(acknowledged) for n in range(len(messages))]
    assert payloads(broker) == messages


@pytest.mark.parametrize("failure", [FencedError, StoreFailedError])
def test_after_a_refused_message_none_is_stored_until_the_producer_is_opened_again(
    deduplicating, failure
):
    """Else a later one would hide it: sent again, it would be answered as a duplicate."""
    broker = deduplicating()
    with RawClient.from_url(broker.service_url) as client:
        producer = client.create_producer(TOPIC, producer_name="p")
        producer.send(b"0", sequence_id=0)

        async def refuse_the_next(running: Any) -> None:
            ledger = running.services.topics.open_topics[TOPIC].ledger
            append = ledger.append

            def refused(*arguments: Any, **options: Any) -> Any:
                ledger.append = append
                raise failure(TOPIC, "a new ledger began")

            ledger.append = refused

        broker.call(refuse_the_next)
        for number in (1, 2, 3):
            with pytest.raises(SendRefusedError):
                producer.send(b"%d" % number, sequence_id=number)
    with RawClient.from_url(broker.service_url) as client:
        producer = client.create_producer(TOPIC, producer_name="p")
        assert producer.last_sequence_id == 0
        for number in (1, 2, 3):
            assert producer.send(b"%d" % number, sequence_id=number)[1:3] != DUPLICATE
    assert payloads(broker) == [b"0", b"1", b"2", b"3"]


PROGRAM = """
import asyncio, json, pathlib, sys
from pulsemark.broker import Broker, BrokerConfig
from pulsemark.ledger import StoreOptions

async def main():
    config = BrokerConfig(
        data_dir=pathlib.Path(sys.argv[1]), port=0, http_port=None,
        broker_deduplication_enabled=True, broker_deduplication_entries_interval=7,
        store_options=StoreOptions(segment_size_bytes=2_000),
    )
    async with Broker(config) as broker:
        print(json.dumps(broker.service_url), flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""
KILLS = int(os.environ.get("PULSEMARK_KILLS", "6"))


def test_killed_anywhere_each_message_is_stored_once(tmp_path):
    """A producer that sends again all that was not acknowledged, over kills: exactly once."""
    chance = random.Random(11)
    acknowledged = highest = -1
    for _ in range(KILLS):
        with subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path)], stdout=subprocess.PIPE
        ) as program:
            assert program.stdout is not None
            url = json.loads(program.stdout.readline())
            client = RawClient.from_url(url)
            producer = client.create_producer(TOPIC, producer_name="p")
            assert acknowledged <= producer.last_sequence_id <= highest
            count = chance.randrange(20, 60)
            for n in range(acknowledged + 1, acknowledged + 1 + count):
                body = unbatched_message(
                    b"%d" % n, publish_time_ms=n, sequence_id=n, producer_name="p"
                )
                producer.post(body, sequence_id=n)
                highest = max(highest, n)
            for receipt in producer.receipts(chance.randrange(1, count)):
                acknowledged = receipt.sequence_id
            program.send_signal(signal.SIGKILL)
            program.wait(30)
            client.close()
    with FolderReader(tmp_path) as folder:
        entries = folder.log(TOPIC).read(EARLIEST, max_entries=100_000, max_bytes=1 << 30)
        stored = [int(bytes(payload_of(entry.body))) for entry in entries]
    assert stored == list(range(len(stored)))
    assert acknowledged < len(stored) <= highest + 1

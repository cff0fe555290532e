"""Committed offsets survive everything that their log survives."""

from __future__ import annotations

import asyncio
import json

import pytest

from pulsemark.broker.kafka.groups import offsets as module
from pulsemark.broker.kafka.groups.offsets import Committed, Offsets, State, Transaction
from pulsemark.kafka.errors import KafkaError
from pulsemark.kafka.records.batch import Producer, producer_of
from pulsemark.ledger import FencedError, StoreOptions
from tests.support.simulated_store import NEVER_MS, SimulatedStore, settle

NEW_FIELDS = {"ended", "number"}


async def run_blocking(function, *arguments):
    """In a thread, as the broker does."""
    return await asyncio.to_thread(function, *arguments)


def at(offset, text=""):
    """A committed offset."""
    return Committed(offset, -1, text, 1_000)


@pytest.fixture
def opened(open_store):
    """Open the offsets of the test's store."""

    def open_them(limit=1_000):
        store = open_store()
        offsets = Offsets(store.open_internal("kafka-groups"), run_blocking, limit)
        offsets.load()
        return store, offsets

    return open_them


async def until_done(*futures):
    """Until they are done, on the loop of a store that calls back in any thread."""
    async with asyncio.timeout(30):
        while not all(each.done() for each in futures):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    return [each.exception() for each in futures]


async def committed(offsets, group, changes, **more):
    """Commit and wait until it is durable."""
    await until_done(offsets.commit(group, "consumer", changes, **more))


async def test_offsets_are_there_after_the_store_was_opened_again(opened):
    """The last commit of a partition counts, with its text; dropped ones are gone."""
    store, offsets = opened()
    await committed(offsets, "g", {("t", 0): at(3), ("t", 1): at(4, "x")})
    await committed(offsets, "g", {("t", 0): at(5)})
    await committed(offsets, "h", {("u", 0): at(1)})
    await until_done(offsets.drop("h", None))
    store.close()
    _, again = opened()
    assert dict(again.of_group("g")) == {("t", 0): at(5), ("t", 1): at(4, "x")}
    assert again.groups() == ["g"]
    assert again.types == {"g": "consumer"}
    assert again.count == 2


async def test_an_offset_is_shown_when_it_is_durable(opened):
    """Before that, readers see the one before."""
    store, offsets = opened()
    await committed(offsets, "g", {("t", 0): at(1)})
    with store.committer.lock:
        later = offsets.commit("g", "consumer", {("t", 0): at(2)})
        assert offsets.of_group("g")[("t", 0)].offset == 1
    await until_done(later)
    assert offsets.of_group("g")[("t", 0)].offset == 2


async def test_the_number_of_offsets_has_a_limit(opened):
    """New partitions are refused above it; known ones can always be committed."""
    _, offsets = opened(limit=2)
    await committed(offsets, "g", {("t", 0): at(1), ("t", 1): at(1)})
    with pytest.raises(KafkaError, match="the limit is 2"):
        offsets.commit("g", "consumer", {("t", 2): at(1)})
    await committed(offsets, "g", {("t", 0): at(9)})


async def test_dropping_a_topic_leaves_the_other_topics_offsets(opened):
    """A deleted topic's offsets must not be found by a topic that is created again."""
    _, offsets = opened()
    await committed(offsets, "g", {("t", 0): at(1), ("u", 0): at(2)})
    dropping = asyncio.ensure_future(offsets.drop_topic("t"))
    while not dropping.done():  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    assert dict(offsets.of_group("g")) == {("u", 0): at(2)}


async def test_offsets_of_open_transactions_do_not_make_a_rewritten_log_due_again(
    opened, monkeypatch
):
    """Each group's are an entry that the log needs until their transaction ends."""
    monkeypatch.setattr(module, "REWRITE_AT_LEAST", 20)
    _, offsets = opened()
    for number in range(30):
        await committed(offsets, f"g{number}", {("t", 0): at(1)}, transaction="t")
    await offsets.rewrite()
    assert not offsets.is_due


async def test_rewriting_keeps_the_log_short_and_the_offsets(opened, monkeypatch):
    """After many commits of few offsets the log has little more entries than there are offsets."""
    monkeypatch.setattr(module, "REWRITE_AT_LEAST", 20)
    store, offsets = opened()
    for number in range(30):
        offsets.commit("g", "consumer", {("t", number % 2): at(number)})
    assert offsets.is_due
    await committed(offsets, "g", {("t", 0): at(100)})
    await offsets.rewrite()
    assert not offsets.is_due
    store.close()
    reopened, again = opened()
    assert dict(again.of_group("g")) == {("t", 0): at(100), ("t", 1): at(29)}
    ledger = reopened.open_internal("kafka-groups")
    assert ledger.count_entries(ledger.first_position, ledger.end_position) <= 3


@pytest.fixture
def simulated(memory_folder):
    """A store on a simulated disk that syncs only on request; a power cut takes all unsynced."""
    simulated = SimulatedStore(
        memory_folder / "data",
        survival="none",
        threaded=True,
        options=StoreOptions(
            checkpoint_interval_ms=NEVER_MS, journal_size_bytes=NEVER_MS, sync_interval_ms=60_000
        ),
    )
    yield simulated
    simulated.end()


def offsets_in(store, run=run_blocking):
    """The offsets of a store; `run` runs what blocks."""
    offsets = Offsets(store.open_internal("kafka-groups"), run, 10_000)
    offsets.load()
    return offsets


async def test_a_rewrite_in_interval_mode_survives_a_power_cut(simulated):
    """Offsets that were on the disk for long stay there when the log is made short."""
    store = simulated.open()
    offsets = offsets_in(store)
    for number in range(100):
        await committed(offsets, f"g{number}", {("t", 0): at(number)})
    store.checkpoint()
    await committed(offsets, "g0", {("t", 0): at(7)})  # a segment's first block is synced at once
    await offsets.rewrite()
    simulated.power_off()
    assert len(offsets_in(simulated.open()).groups()) == 100


async def test_a_rewrite_keeps_what_is_being_committed(open_store):
    """Commits that are not durable when the rewrite begins, or come during it, are kept."""
    loop = asyncio.get_running_loop()
    store = open_store(notify=loop.call_soon_threadsafe)
    offsets = offsets_in(store)
    await committed(offsets, "g", {("t", 0): at(0)})
    with store.committer.lock:
        one = offsets.commit("g", "consumer", {("t", 0): at(1), ("t", 1): at(1)})
        rewriting = asyncio.ensure_future(offsets.rewrite())
        await asyncio.sleep(0)
        other = offsets.commit("g", "consumer", {("t", 0): at(2)})
        assert not any(each.done() for each in (one, other))
    await rewriting
    assert await until_done(one, other) == [None, None]
    await asyncio.to_thread(store.close)
    assert dict(offsets_in(open_store()).of_group("g")) == {("t", 0): at(2), ("t", 1): at(1)}


async def test_a_rewrite_that_failed_in_part_removes_nothing(memory_folder):
    """If one entry of the rewrite is not durable, the log still has all that it had before."""
    simulated = SimulatedStore(memory_folder / "data", threaded=True)
    files = simulated.files()
    store = simulated.open(files)

    async def run_on_a_healthy_disk(function, *arguments):
        settle(store)
        files.heal()
        return await run_blocking(function, *arguments)

    offsets = offsets_in(store, run_on_a_healthy_disk)
    for number in range(3):
        await committed(offsets, f"g{number}", {("t", 0): at(number)})
    files.fail("fdatasync")
    with pytest.raises(FencedError):
        await offsets.rewrite()
    simulated.kill()
    assert len(offsets_in(simulated.open()).groups()) == 3
    simulated.close()


def test_a_transaction_of_an_older_folder_keeps_its_id(opened):
    """Version 1.0.0 stored neither the producer that had ended the last one nor a number."""
    store, offsets = opened()
    transaction = Transaction(
        "orders", Producer(7, 3), 60_000, State.ONGOING, marked=Producer(7, 3)
    )
    record = {name: each for name, each in transaction.record().items() if name not in NEW_FIELDS}
    ledger = store.open_internal("kafka-groups")
    ledger.append(json.dumps(record).encode(), message_count=0).commit.wait()
    store.close()
    _, offsets = opened()
    assert offsets.transactions["orders"].id == "7:3"
    assert producer_of("7:3") == Producer(7, 3)

"""Syncing every so often: what a power cut may take, and what not."""

import errno
import time
from random import Random

import pytest

from pulsemark.ledger import EARLIEST, FolderReader, Position, StoreOptions
from tests.support.simulated_store import NEVER_MS, SimulatedStore, settle

ORDERS = [f"persistent://public/default/orders-{number}" for number in range(3)]


def options(sync_interval_ms, segment_size_bytes=4000):
    """No checkpoint but on demand, small segments."""
    return StoreOptions(
        checkpoint_interval_ms=NEVER_MS,
        journal_size_bytes=NEVER_MS,
        segment_size_bytes=segment_size_bytes,
        sync_interval_ms=sync_interval_ms,
    )


def positions_of(log):
    """All positions; a damaged entry is an error here."""
    positions, place = [], EARLIEST
    while part := log.read(place):
        positions += [entry.position for entry in part]
        place = Position(positions[-1].ledger_id, positions[-1].entry_id + 1)
    return positions


@pytest.mark.parametrize("seed", range(12))
def test_power_cut_takes_the_newest_entries_and_makes_no_hole(memory_folder, seed):
    """What is left of each topic is a beginning of what was acknowledged, synced parts whole."""
    random = Random(seed)
    simulated = SimulatedStore(
        memory_folder / "data", seed=seed, options=options(60_000), threaded=True
    )
    store = simulated.open()
    topics = [store.open_topic(name) for name in ORDERS]
    sent: dict[str, list[Position]] = {name: [] for name in ORDERS}
    synced = dict.fromkeys(ORDERS, 0)
    for _ in range(25):
        with store.committer.lock:
            for _ in range(random.randint(1, 8)):
                topic = random.choice(topics)
                body = b"\1" + random.randbytes(random.choice([10, 300, 900]))
                sent[topic.name].append(topic.append(body).position)
        settle(store)
        if random.random() < 0.1:
            store.checkpoint()
            synced = {name: len(positions) for name, positions in sent.items()}
    simulated.power_off()
    store = simulated.open()
    for name in ORDERS:
        left = positions_of(store.open_topic(name))
        assert left == sent[name][: len(left)]
        assert len(left) >= synced[name]
        store.open_topic(name).append(b"goes on").commit.wait(10)
    with FolderReader(simulated.folder, files=simulated.disk.process()) as reader:
        for name in ORDERS:
            assert len(positions_of(reader.log(name))) > synced[name]
    simulated.close()


def test_appends_do_not_wait_for_a_sync_each(memory_folder):
    """Within the interval acknowledgements cost no sync, but for a segment's first block."""
    simulated = SimulatedStore(memory_folder / "data", options=options(60_000), threaded=True)
    files = simulated.files()
    topic = simulated.open(files).open_topic(ORDERS[0])
    topic.append(b"first").commit.wait(10)
    before = files.calls["fdatasync"]
    for _ in range(50):
        topic.append(b"x").commit.wait(10)
    assert files.calls["fdatasync"] == before
    simulated.close()


def test_after_the_interval_nothing_is_lost(memory_folder):
    """The committer syncs by itself once the interval has passed."""
    simulated = SimulatedStore(
        memory_folder / "data", survival="none", options=options(20), threaded=True
    )
    files = simulated.files()
    topic = simulated.open(files).open_topic(ORDERS[0])
    topic.append(b"first").commit.wait(10)
    before = files.calls["fdatasync"]
    topic.append(b"second").commit.wait(10)
    deadline = time.monotonic() + 20
    while files.calls["fdatasync"] == before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert simulated.store is not None
    settle(simulated.store)
    simulated.power_off()
    assert simulated.open().open_topic(ORDERS[0]).next_index == 2
    simulated.close()


def test_what_a_failed_write_stored_is_synced_within_the_interval(memory_folder):
    """The first entries of a batch whose segment was written half are stored: they are synced."""
    simulated = SimulatedStore(
        memory_folder / "data", survival="none", options=options(20), threaded=True
    )
    files = simulated.files()
    store = simulated.open(files)
    topic = store.open_topic(ORDERS[0])
    topic.append(b"first").commit.wait(10)
    while store.committer.unsynced.seconds_left() is not None:
        time.sleep(0.01)
    before = files.calls["fdatasync"]
    files.fail("pwritev", error=errno.ENOSPC, times=2, path_part=".log")  # the journal's is first
    with store.committer.lock:
        half = [topic.append(b"half") for _ in range(4)]
    settle(store)
    stored = [appended.error is None for appended in half]
    assert stored == [True, True, False, False]
    deadline = time.monotonic() + 20
    while files.calls["fdatasync"] == before and time.monotonic() < deadline:
        time.sleep(0.01)
    settle(store)
    simulated.power_off()
    assert simulated.open().open_topic(ORDERS[0]).next_index > sum(stored)
    simulated.close()


def test_failed_sync_of_the_interval_fences(memory_folder):
    """A sync that fails after the acknowledgement ends the ledgers; what follows is durable."""
    simulated = SimulatedStore(memory_folder / "data", options=options(60_000), threaded=True)
    files = simulated.files()
    store = simulated.open(files)
    topic = store.open_topic(ORDERS[0])
    first = topic.append(b"first")
    first.commit.wait(10)
    topic.append(b"second").commit.wait(10)
    files.fail("fdatasync", path_part="journal")
    store.checkpoint()
    third = topic.append(b"third")
    third.commit.wait(10)
    assert third.position.ledger_id > first.position.ledger_id
    assert files.violations == []
    simulated.close()
    assert simulated.open().open_topic(ORDERS[0]).next_index == 3
    simulated.close()


@pytest.mark.parametrize("end", ["kill", "power_off"])
@pytest.mark.parametrize("checkpoints", [1, 2, 3])
def test_a_kept_journal_does_not_cut_off_what_later_ones_had(memory_folder, end, checkpoints):
    """A failed sync keeps its journal. Entries of later journals, synced and freed, stay whole."""
    simulated = SimulatedStore(
        memory_folder / "data", survival="none", options=options(60_000, 100_000), threaded=True
    )
    files = simulated.files()
    store = simulated.open(files)
    failing, whole = (store.open_topic(name) for name in ORDERS[:2])
    for topic in (failing, whole):
        topic.append(b"kept").commit.wait(10)
    files.fail("fdatasync", error=errno.ENOSPC, path_part=".log")
    store.checkpoint()
    sent = [topic.append(b"later") for topic in (whole, failing)]
    for _ in range(checkpoints):
        settle(store)
        store.checkpoint()
        sent += [topic.append(b"more") for topic in (whole, failing)]
    settle(store)
    store.checkpoint()
    assert all(each.error is None for each in sent)
    getattr(simulated, end)()
    store = simulated.open()
    for name in ORDERS[:2]:
        assert store.open_topic(name).next_index == 2 + checkpoints
        assert len(positions_of(store.open_topic(name))) == 2 + checkpoints
    simulated.close()


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_failed_write_leaves_nothing_unsynced(memory_folder, goes_on):
    """What a journal had before a write of it failed is synced with the rest."""
    simulated = SimulatedStore(
        memory_folder / "data", survival="none", options=options(60_000), threaded=True
    )
    files = simulated.files()
    store = simulated.open(files)
    topic, other = (store.open_topic(name) for name in ORDERS[:2])
    for _ in range(3):
        topic.append(b"kept").commit.wait(10)
    files.fail("pwritev", error=errno.EIO, path_part=".journal")
    refused = other.append(b"refused")
    settle(store)
    assert refused.error is not None
    if goes_on:  # in another file
        other.append(b"new").commit.wait(10)
    store.sync_acknowledged()
    simulated.power_off()
    store = simulated.open()
    assert len(positions_of(store.open_topic(ORDERS[0]))) == 3
    assert len(positions_of(store.open_topic(ORDERS[1]))) == goes_on
    simulated.close()


def test_failed_sync_of_a_left_journal_is_told(memory_folder):
    """A journal that is left after a failed write, and whose sync fails, counts as not synced."""
    simulated = SimulatedStore(
        memory_folder / "data", survival="none", options=options(60_000), threaded=True
    )
    files = simulated.files()
    store = simulated.open(files)
    topic, other = (store.open_topic(name) for name in ORDERS[:2])
    for _ in range(2):
        topic.append(b"kept").commit.wait(10)
    files.fail("pwritev", error=errno.EIO, path_part=".journal")
    files.fail("fdatasync", error=errno.EIO, path_part=".journal")
    other.append(b"refused")
    settle(store)
    with pytest.raises(OSError, match="could not be synced"):
        store.sync_acknowledged()
    store.checkpoint()  # it syncs the segments
    store.sync_acknowledged()
    simulated.power_off()
    assert len(positions_of(simulated.open().open_topic(ORDERS[0]))) == 2
    simulated.close()


def subscriptions_after_a_power_cut(simulated, topic):
    """The places of all subscriptions, as a new process finds them."""
    simulated.power_off()
    cursors = simulated.open().open_topic(topic).cursors
    return {name: cursor.mark_delete for name, cursor in cursors.items()}


def with_old_subscriptions(simulated, files, count):
    """A topic with subscriptions that have been on the disk for long."""
    store = simulated.open(files)
    topic = store.open_topic(ORDERS[0])
    for _ in range(3):
        topic.append(b"x").commit.wait(10)
    for number in range(count):
        topic.open_cursor(f"s{number}", initial=EARLIEST)
    settle(store)
    store.checkpoint()
    return store, topic


def test_compaction_keeps_subscriptions_that_were_durable_before(memory_folder):
    """The ledgers of old snapshots go when the new are synced, not when they are acknowledged."""
    simulated = SimulatedStore(
        memory_folder / "data", survival="none", options=options(60_000, 100_000), threaded=True
    )
    store, topic = with_old_subscriptions(simulated, simulated.files(), 150)
    old = store.cursors.ledger.first_position
    store.cursors.compact()
    for _ in range(3):  # each change writes some of the other cursors' snapshots
        topic.cursors["s0"].ack(topic.cursors["s0"].first_unacked)
        topic.cursors["s0"].persist()
        settle(store)
    while store.cursors.ledger.first_position == old:
        time.sleep(0.01)
    left = subscriptions_after_a_power_cut(simulated, ORDERS[0])
    assert len(left) == 150
    simulated.close()


def test_nothing_is_removed_after_a_sync_failed_until_a_checkpoint(memory_folder):
    """What was acknowledged and could not be synced may be lost: what it replaces must stay."""
    simulated = SimulatedStore(
        memory_folder / "data", survival="none", options=options(60_000, 100_000), threaded=True
    )
    files = simulated.files()
    store, topic = with_old_subscriptions(simulated, files, 3)
    for _ in range(2):  # a segment's first block is synced at once, even in this mode
        topic.append(b"new").commit.wait(10)
    files.fail("fdatasync", path_part="journal")
    with pytest.raises(OSError, match="could not be synced"):
        topic.truncate_head(topic.end_position)
    with pytest.raises(OSError, match="could not be synced"):
        store.delete_topic(ORDERS[0])
    assert topic.first_index == 0
    store.checkpoint()
    assert topic.truncate_head(topic.end_position) == 5
    assert files.violations == []
    simulated.power_off()
    assert simulated.open().open_topic(ORDERS[0]).next_index == 5
    simulated.close()


def test_a_deleted_topics_subscriptions_stay_deleted(memory_folder):
    """The note of a deletion goes when the subscriptions' deletions are synced."""
    simulated = SimulatedStore(
        memory_folder / "data", survival="none", options=options(60_000, 100_000), threaded=True
    )
    store, topic = with_old_subscriptions(simulated, simulated.files(), 3)
    topic.cursors["s0"].ack(topic.first_position)
    topic.cursors["s0"].persist().wait(10)  # a segment's first block is synced at once
    store.delete_topic(ORDERS[0])
    simulated.power_off()
    assert simulated.open().cursors.names(topic.topic_id) == []
    simulated.close()

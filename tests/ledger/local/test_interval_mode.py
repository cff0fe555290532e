"""Syncing every so often: what a power cut may take, and what not."""

import errno
import threading
import time
from random import Random

import pytest

from pulsemark.ledger import EARLIEST, FolderReader, Position, StoreFailedError, StoreOptions
from pulsemark.ledger.local.io.folder import list_segments, segment_path
from pulsemark.maintenance.findings import DamagedEntries, Severity, UnsyncedEnd
from pulsemark.maintenance.verify import verify_folder
from pulsemark.maintenance.verify_topic import Checked
from pulsemark.testing.faulty_files import flipped
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
    while store.committer.seconds_to_sync() is not None:
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


def with_unsynced_entries(memory_folder, survival="none"):
    """A store whose journal's next sync fails, after two entries of which one was synced."""
    simulated = SimulatedStore(
        memory_folder / "data", survival=survival, options=options(60_000), threaded=True
    )
    files = simulated.files()
    topic = simulated.open(files).open_topic(ORDERS[0])
    for _ in range(2):  # a segment's first block is synced at once, even in this mode
        topic.append(b"x").commit.wait(10)
    files.fail("fdatasync", path_part="journal")
    return simulated, files, topic


@pytest.mark.parametrize("entries_after", [0, 1, 3])
@pytest.mark.parametrize("survival", ["none", "some", "all"])
def test_what_a_failed_sync_lost_is_synced_in_the_segments(memory_folder, survival, entries_after):
    """The journal's sync fails: what it was to make durable is durable when the call returns."""
    simulated, files, topic = with_unsynced_entries(memory_folder, survival)
    first = topic.first_position
    topic.store.sync_acknowledged()
    for _ in range(entries_after):
        assert topic.append(b"x").position.ledger_id == first.ledger_id
        settle(topic.store)
    assert files.violations == []
    simulated.power_off()
    left = positions_of(simulated.open().open_topic(ORDERS[0]))
    assert 2 + min(entries_after, 1) <= len(left) <= 2 + entries_after
    assert left == [Position(first.ledger_id, number) for number in range(len(left))]
    simulated.close()


def test_a_new_segments_block_whose_sync_fails_takes_nothing_else_with_it(memory_folder):
    """A segment's first block is refused; what the journal had before is synced elsewhere."""
    simulated, files, topic = with_unsynced_entries(memory_folder)
    refused = topic.store.open_topic(ORDERS[1]).append(b"refused")
    settle(topic.store)
    assert refused.error is not None
    topic.store.sync_acknowledged()
    simulated.power_off()
    store = simulated.open()
    assert len(positions_of(store.open_topic(ORDERS[0]))) == 2
    assert positions_of(store.open_topic(ORDERS[1])) == []
    assert files.violations == []
    simulated.close()


@pytest.mark.parametrize("failing", [".log", "00000001.journal"])
def test_a_store_stops_whose_journal_and_segments_cannot_be_synced(memory_folder, failing):
    """Both copies are in doubt: nothing more is promised or removed; after a kill all is there."""
    simulated, files, topic = with_unsynced_entries(memory_folder)
    store = topic.store
    files.fail("fdatasync", path_part=failing, times=None)
    with pytest.raises(StoreFailedError):
        topic.truncate_head(topic.end_position)
    with pytest.raises(StoreFailedError):
        topic.append(b"more")
    with pytest.raises(StoreFailedError):
        store.checkpoint()
    files.heal()
    simulated.kill()
    assert files.violations == []
    assert len(positions_of(simulated.open().open_topic(ORDERS[0]))) == 2
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


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_failed_write_and_a_failed_sync_leave_nothing_unsynced(memory_folder, goes_on):
    """After a failed write the journal cannot be synced either: the segments are."""
    simulated, files, topic = with_unsynced_entries(memory_folder)
    files.fail("pwritev", error=errno.EIO, path_part=".journal")
    topic.store.open_topic(ORDERS[1]).append(b"refused")
    settle(topic.store)
    if goes_on:
        topic.append(b"first of its journal").commit.wait(10)
    topic.store.sync_acknowledged()
    simulated.power_off()
    assert len(positions_of(simulated.open().open_topic(ORDERS[0]))) == 2 + goes_on
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


def cut_by_power(memory_folder, seed):
    """A store after a power cut, with whatever reached the disk of what was not synced."""
    random = Random(seed)
    simulated = SimulatedStore(
        memory_folder / str(seed), seed=seed, options=options(60_000, 4000), threaded=True
    )
    store = simulated.open()
    topics = [store.open_topic(name) for name in ORDERS]
    for number in range(30):
        with store.committer.lock:
            for _ in range(random.randint(1, 6)):
                random.choice(topics).append(b"\1" + random.randbytes(random.choice([10, 900])))
        settle(store)
        if number == 10:
            store.checkpoint()
    simulated.power_off()
    return simulated


def verified(simulated):
    """The findings of a folder, and how many entries count."""
    checked = Checked()
    found = list(verify_folder(simulated.folder, files=simulated.disk.process(), checked=checked))
    return found, checked.entries


def test_verify_tells_what_the_opening_cuts_off_from_damage(memory_folder):
    """Before the opening it counts the entries that are there after it, and finds no damage."""
    cut_off = 0
    for seed in range(16):
        simulated = cut_by_power(memory_folder, seed)
        found, entries = verified(simulated)
        assert [str(each) for each in found if each.severity is Severity.DAMAGE] == []
        cut_off += sum(each.entries for each in found if isinstance(each, UnsyncedEnd))
        simulated.open()
        simulated.close()
        again, entries_after = verified(simulated)
        assert entries_after == entries
        assert {each.severity for each in again} <= {Severity.NOTE}
        assert not any(isinstance(each, UnsyncedEnd) for each in again)
    assert cut_off


def test_verify_still_finds_damage_of_what_was_durable(memory_folder):
    """A bit of a synced record is flipped: also beside an end that was not synced, it is damage."""
    for seed in range(6):
        simulated = cut_by_power(memory_folder, seed)
        process = simulated.disk.process()
        first = min(list_segments(process, simulated.folder))
        path = segment_path(simulated.folder, *first)
        content = simulated.disk.contents(path)
        simulated.disk.overwrite(path, flipped(content[:300], 8 * 290))
        found, _ = verified(simulated)
        assert any(isinstance(each, DamagedEntries) for each in found)


def test_verify_beside_a_writer_reports_nothing(memory_folder):
    """A folder in use has no end that will be cut off, however fast its segments grow."""
    simulated = SimulatedStore(
        memory_folder / "data", options=options(60_000, 100_000), threaded=True
    )
    store = simulated.open()
    topic = store.open_topic(ORDERS[0])
    stopping = threading.Event()

    def append():
        while not stopping.is_set():
            topic.append(b"x" * 100).commit.wait(10)
            if topic.next_index % 200 == 0:
                store.checkpoint()

    writer = threading.Thread(target=append)
    writer.start()
    try:
        for _ in range(20):
            found, _ = verified(simulated)
            assert [each for each in found if each.severity is Severity.DAMAGE] == []
            assert not any(isinstance(each, UnsyncedEnd) for each in found)
    finally:
        stopping.set()
        writer.join(30)
    simulated.close()

import time
from contextlib import suppress

import pytest

from pulsemark.finder import Finder
from pulsemark.ledger import (
    EARLIEST,
    CatalogError,
    FolderReader,
    LocalStore,
    StoreClosedError,
    StoreOptions,
    TopicNotFoundError,
)
from pulsemark.ledger.errors import CorruptCatalogError, ReservedTopicError
from pulsemark.ledger.local.catalog import Catalog
from pulsemark.ledger.local.io.folder import list_segments
from pulsemark.testing.store_model import StoreModel
from tests.support.simulated_store import NEVER_MS, settle

ORDERS = "persistent://public/default/orders"
AUDIT = "persistent://public/default/audit"
OPTIONS = StoreOptions(
    checkpoint_interval_ms=NEVER_MS, journal_size_bytes=NEVER_MS, segment_size_bytes=500
)


def fill(store, model, name, count=20):
    """Entries in a topic, durable."""
    topic = store.open_topic(name)
    with store.committer.lock:
        for number in range(count):
            model.topic(name).append(topic, b"%d" % number * 10)
    settle(store)
    return topic


def test_topics_by_name(open_store):
    """A topic is the same object each time; a missing one is created, or raises an error."""
    store = open_store()
    with pytest.raises(TopicNotFoundError) as caught:
        store.open_topic(ORDERS, create=False)
    assert caught.value.topic == ORDERS
    topic = store.open_topic(ORDERS)
    assert store.open_topic(ORDERS, create=False) is topic
    store.open_topic(AUDIT)
    assert store.topic_names() == [AUDIT, ORDERS]
    store.close()
    assert open_store().topic_names() == [AUDIT, ORDERS]


@pytest.mark.parametrize("ending", ["close", "kill", "power_off"])
@pytest.mark.parametrize("when", ["before", "behind"])
def test_deleted_topic_stays_deleted(simulated, ending, when):
    """Neither the journal nor a crash brings a deleted topic back; its name begins empty."""
    store, model = simulated.open(), StoreModel()
    fill(store, model, ORDERS)
    fill(store, model, AUDIT)
    if when == "behind":
        store.checkpoint()
    model.delete_topic(store, ORDERS)
    assert store.topic_names() == [AUDIT]
    with pytest.raises(TopicNotFoundError):
        store.delete_topic(ORDERS)
    again = fill(store, model, ORDERS, 2)
    assert [e.index for e in again.read(EARLIEST)] == [0, 1]
    getattr(simulated, ending)()
    store = simulated.open()
    for name in (ORDERS, AUDIT):
        assert model.topic(name).problems(store.open_topic(name), reopened=True) == []
    store.checkpoint()
    listed = {s for t in store.catalog.topics().values() for s in store.catalog.segments(t)}
    there = set(list_segments(simulated.disk.process(), simulated.folder))
    assert there == listed
    with FolderReader(simulated.folder, files=simulated.disk.process()) as reader:
        assert reader.log(ORDERS).next_index == 2


def test_deletion_that_fails_keeps_the_topic(simulated, monkeypatch):
    """If the catalog cannot be changed, all of the topic is there, also after a restart."""
    store, model = simulated.open(), StoreModel()
    fill(store, model, ORDERS)

    def fail(*_, **__):
        raise CatalogError(simulated.folder, "disk is full")

    monkeypatch.setattr(store.catalog, "delete_topic", fail)
    with pytest.raises(CatalogError):
        store.delete_topic(ORDERS)
    assert store.topic_names() == [ORDERS]
    simulated.close()
    assert model.topic(ORDERS).problems(simulated.open().open_topic(ORDERS), reopened=True) == []


def test_catalog_that_fails_never_costs_a_ledger_its_id(simulated, monkeypatch):
    """Without a new ledger id, appends that need one fail, and nothing is ever overwritten."""
    files = simulated.files()
    store, model = simulated.open(files), StoreModel()
    topic = fill(store, model, ORDERS, 3)
    first = topic.ledger_id
    store._spare_ids.clear()

    def fail(*_, **__):
        raise CatalogError(simulated.folder, "disk is full")

    monkeypatch.setattr(store.catalog, "reserve_ledger_ids", fail)
    with pytest.raises(CatalogError):
        topic.roll()
    assert model.topic(ORDERS).append(topic, b"same ledger").position.ledger_id == first
    settle(store)
    files.fail("fdatasync")
    lost = topic.append(b"lost")
    settle(store)
    assert lost.commit.error is not None
    end = topic.end_position
    assert end > topic.last_position
    for _ in range(3):
        with pytest.raises(CatalogError):
            topic.append(b"no ledger")
    assert topic.end_position == end
    assert len(topic.read(EARLIEST)) == 4
    monkeypatch.undo()
    assert model.topic(ORDERS).append(topic, b"goes on").position.ledger_id > first
    settle(store)
    assert model.topic(ORDERS).problems(topic) == []
    simulated.power_off()
    assert model.topic(ORDERS).problems(simulated.open().open_topic(ORDERS), reopened=True) == []


def test_closed_store_leaves_no_journal_and_sealed_indexes(simulated):
    """A store that was closed needs no recovery: no journal, every index complete."""
    store, model = simulated.open(), StoreModel()
    fill(store, model, ORDERS)
    simulated.close()
    disk = simulated.disk.process()
    assert disk.listdir(simulated.folder / "journal") == []
    names = disk.listdir(simulated.folder / "ledgers")
    assert {n[:-4] for n in names if n.endswith(".log")} == {
        n[:-4] for n in names if n.endswith(".idx")
    }
    files = simulated.files()
    store = simulated.open(files)
    files.trace = []
    store.open_topic(ORDERS)
    assert not [call for call in files.trace if call.startswith("pwritev")]


def test_closed_store_refuses_work(open_store):
    """After closing, topics cannot be opened nor appended to; closing again does nothing."""
    store = open_store()
    topic = store.open_topic(ORDERS)
    store.close()
    store.close()
    with pytest.raises(StoreClosedError):
        store.open_topic(AUDIT)
    with pytest.raises(StoreClosedError):
        topic.append(b"x")


@pytest.mark.parametrize(
    "call",
    [
        lambda store, topic: store.topic_names(),
        lambda store, topic: Finder(topic).by_time(0),
        lambda store, topic: Finder(topic).by_index(0),
        lambda store, topic: topic.roll(),
        lambda store, topic: topic.trim(EARLIEST),
        lambda store, topic: topic.begin_epoch(5),
    ],
)
def test_every_call_after_the_close_is_refused_without_a_wait(open_store, call):
    """The main thread does not wait for a thread of the store that has ended."""
    store = open_store()
    topic = store.open_topic(ORDERS)
    topic.append(b"x").commit.wait(10)
    store.close()
    store.uninterrupted._jobs = None  # nothing can be given to that thread
    with pytest.raises(StoreClosedError):
        call(store, topic)


@pytest.mark.parametrize("durable", [True, False])
def test_cursors_of_a_closed_store_refuse_changes(open_store, durable):
    """They also refuse where there is nothing to write; earlier changes are durable."""
    store = open_store()
    topic = store.open_topic(ORDERS)
    appended = topic.append(b"x")
    appended.commit.wait(10)
    cursor = topic.open_cursor("s", initial=EARLIEST, durable=durable)
    kept = cursor.persist()
    kept.wait(10)
    store.close()
    for change in (
        cursor.persist,
        lambda: cursor.ack(appended.position),
        lambda: cursor.ack_batch(appended.position, [0]),
        lambda: cursor.ack_cumulative(appended.position),
        lambda: cursor.reset(EARLIEST),
    ):
        with pytest.raises(StoreClosedError):
            change()
    assert not cursor.is_acked(appended.position)
    answers: list[BaseException | None] = []
    for commit in (appended.commit, kept):
        commit.wait()
        commit.add_done_callback(answers.append)
    assert answers == [None, None]


def opened(files):
    """How many descriptors were opened, or would have been."""
    return files.calls["open"] + files.calls["hold_folder"]


def test_failed_opening_frees_everything(tmp_path, simulated):
    """An opening that fails gives the lock back, ends its threads and closes its files."""
    simulated.open()
    simulated.close()
    for operation in (
        "pread",
        "listdir",
        "sync_folder",
        "try_lock",
        "try_lock_folder",
        "hold_folder",
    ):
        refused = operation == "hold_folder"
        files = simulated.files()
        files.fail(operation, call=1)
        with pytest.raises(OSError, match="Errno 5"):
            LocalStore.open(simulated.folder, files=files)
        assert opened(files) - refused == files.calls["close"]
    (simulated.folder / "catalog.sqlite").write_bytes(b"rubbish" * 1000)
    files = simulated.files()
    with pytest.raises(CorruptCatalogError, match="catalog"):
        LocalStore.open(simulated.folder, files=files)
    assert opened(files) == files.calls["close"]


def test_checkpoints_are_made_by_size_and_by_time(open_store, tmp_path):
    """The journal's files stay few under load, and empty when it ends."""
    store = open_store(journal_size_bytes=100_000, checkpoint_interval_ms=200)
    topic = store.open_topic(ORDERS)
    checkpoints, deadline = 0, time.monotonic() + 60
    while checkpoints < 4:
        assert time.monotonic() < deadline
        before = store.engine.writer.journal.size_bytes
        for _ in range(20):
            last = topic.append(bytes(1000))
        last.commit.wait(10)
        checkpoints += store.engine.writer.journal.size_bytes < before
    assert len(list((tmp_path / "data" / "journal").iterdir())) < 10
    store.checkpoint()
    assert store.engine.writer.journal.size_bytes == 0
    assert store.catalog.segments(topic.topic_id)


@pytest.mark.parametrize("name", ["cursors", "compacted/1/1", "compacted/", "compacted/x"])
def test_names_of_the_store_itself_are_refused(open_store, name):
    """Cursors and compacted views can be neither opened nor deleted as topics."""
    store = open_store()
    orders = store.open_topic(ORDERS)
    orders.append(b"entry").commit.wait()
    orders.open_cursor("billing", initial=EARLIEST).persist().wait()
    before = store.catalog.topics()
    for call in (
        lambda: store.open_topic(name),
        lambda: store.open_topic(name, create=False),
        lambda: store.delete_topic(name),
    ):
        with pytest.raises(ReservedTopicError) as caught:
            call()
        assert caught.value.topic == name
    assert store.catalog.topics() == before
    store.close()
    assert list(open_store().open_topic(ORDERS).cursors) == ["billing"]


@pytest.mark.parametrize("name", ["", "x" * 70_000])
def test_names_that_no_topic_can_have(open_store, name):
    """An empty or too long name is refused, and not in the catalog."""
    store = open_store()
    with pytest.raises(ValueError, match="a topic's name has 1 to"):
        store.open_topic(name)
    assert store.topic_names() == []


def test_topic_takes_appends_after_a_deletion_that_failed(simulated, monkeypatch):
    """In the same process, in the same ledger, with its cursors; a second deletion succeeds."""
    store, model = simulated.open(), StoreModel()
    topic = fill(store, model, ORDERS)
    topic.open_cursor("billing", initial=EARLIEST).persist().wait()
    refused = []

    def fail(*_, **__):
        with pytest.raises(StoreClosedError):
            topic.append(b"meanwhile")
        refused.append(True)
        raise CatalogError(simulated.folder, "disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(store.catalog, "delete_topic", fail)
        with pytest.raises(CatalogError):
            store.delete_topic(ORDERS)
    assert refused
    assert fill(store, model, ORDERS) is topic
    assert topic.next_index == 40
    assert list(topic.cursors) == ["billing"]
    assert model.topic(ORDERS).problems(topic, reopened=False) == []
    store.delete_topic(ORDERS)
    assert store.topic_names() == []
    with pytest.raises(StoreClosedError):
        topic.append(b"too late")


def test_topic_is_not_open_before_its_cursors_are(open_store, monkeypatch):
    """If the cursors cannot be loaded, the next call tries again, and no cursor is lost."""
    store = open_store()
    store.open_topic(ORDERS).open_cursor("billing", initial=EARLIEST).persist().wait()
    store.close()
    store = open_store()

    def fail(*_):
        raise OSError(5, "broken")

    with monkeypatch.context() as patch:
        patch.setattr(store.cursors, "attach", fail)
        with pytest.raises(OSError, match="broken"):
            store.open_topic(ORDERS)
    assert list(store.open_topic(ORDERS).cursors) == ["billing"]


@pytest.mark.parametrize("everything", [True, False])
def test_segments_of_a_cut_tail_are_removed_after_a_crash(simulated, everything):
    """Files that truncate_tail could not remove are removed when the topic is opened."""
    store, model = simulated.open(), StoreModel()
    topic = fill(store, model, ORDERS)
    before = set(list_segments(simulated.disk.process(), simulated.folder))
    kept = topic.first_index if everything else topic.segments()[1].first_index
    store.engine.remove = lambda *_: simulated.kill()
    with suppress(Exception):
        topic.truncate_tail(kept, epoch=1)
    assert set(list_segments(simulated.disk.process(), simulated.folder)) >= before
    store = simulated.open()
    topic = store.open_topic(ORDERS)
    assert topic.next_index == kept + 1
    there = {(s.ledger_id, s.header.segment_no) for s in topic.all_segments()}
    assert set(store.catalog.segments(topic.topic_id)) == there
    left = set(list_segments(simulated.disk.process(), simulated.folder))
    assert left & before == there & before
    topic.append(b"on").commit.wait()
    assert topic.next_index == kept + 2
    simulated.close()
    assert simulated.open().open_topic(ORDERS).next_index == kept + 2


def test_segments_that_cannot_be_reached_are_kept(open_store):
    """If a ledger between is missing, older segments are not taken for those of a cut tail."""
    store = open_store(ledger_entries=2)
    topic = store.open_topic(ORDERS)
    for number in range(8):
        topic.append(b"%d" % number).commit.wait()
    segments = topic.segments()
    store.close()
    segments[2].path.unlink()
    catalog = Catalog(store.folder / "catalog.sqlite")
    catalog.db.execute("DELETE FROM segment WHERE ledger_id=?", (segments[2].ledger_id,))
    catalog.close()
    open_store(ledger_entries=2).open_topic(ORDERS)
    assert [segment.path.exists() for segment in segments] == [True, True, False, True]

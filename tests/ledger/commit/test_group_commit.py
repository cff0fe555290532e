import threading
import time
from types import SimpleNamespace

import pytest

from pulsemark.ledger import EARLIEST, FencedError, LocalStore, StoreOptions
from pulsemark.ledger.commit import group_commit
from pulsemark.testing.store_model import StoreModel
from tests.support.simulated_store import NEVER_MS, SimulatedStore, settle

ORDERS = "persistent://public/default/orders"
OPTIONS = StoreOptions(
    checkpoint_interval_ms=NEVER_MS, journal_size_bytes=NEVER_MS, segment_size_bytes=500
)


@pytest.fixture
def simulated(tmp_path):
    """A store on a simulated disk."""
    simulated = SimulatedStore(tmp_path / "data", options=OPTIONS, threaded=True)
    yield simulated
    simulated.close()


def test_one_sync_for_all_that_gathered(simulated):
    """Appends to many topics that gather together cost one sync of one file."""
    files = simulated.files()
    store = simulated.open(files)
    topics = [store.open_topic(f"{ORDERS}-{n}") for n in range(50)]
    settle(store)
    before = files.calls["fdatasync"]
    with store.committer.lock:
        commits = {topic.append(b"x").commit for topic in topics for _ in range(3)}
    settle(store)
    assert files.calls["fdatasync"] == before + 1
    assert all(commit.done and commit.error is None for commit in commits)
    assert len(commits) == 50


def test_batch_of_many_topics_waits_while_more_comes(simulated, monkeypatch):
    """It is committed with the appends made meanwhile, once no more come: one sync for all."""
    done = threading.Event()
    slept: list[float] = []

    def sleep(seconds):
        slept.append(seconds)
        if len(slept) <= 5:
            topics[0].append(b"more").commit.add_done_callback(lambda _error: done.set())

    fake_time = SimpleNamespace(monotonic=time.monotonic, sleep=sleep)
    monkeypatch.setattr(group_commit, "time", fake_time)
    monkeypatch.setattr(group_commit, "GATHER_RATIO", 1e15)
    monkeypatch.setattr(group_commit, "GATHER_MAX_S", 10)
    files = simulated.files()
    store = simulated.open(files)
    topics = [store.open_topic(f"{ORDERS}-{n}") for n in range(100)]
    settle(store)
    store.committer.thread._commit_s = 10.0
    before = files.calls["fdatasync"]
    with store.committer.lock:
        for topic in topics:
            topic.append(b"x")
    assert done.wait(10)
    assert len(slept) == 6
    assert files.calls["fdatasync"] == before + 1
    assert topics[0].read(EARLIEST)[-1].body == b"more"


@pytest.mark.parametrize("asked", ["by nobody", "by callback"])
def test_append_without_a_waiting_caller_is_committed(simulated, asked):
    """The store commits it, though threads that waited committed all earlier appends."""
    topic = simulated.open().open_topic(ORDERS)
    for _ in range(20):
        for _ in range(3):
            topic.append(b"waited for").commit.wait(10)
        called = threading.Event()
        commit = topic.append(b"x").commit
        if asked == "by callback":
            commit.batch.add_done_callback(called.set)
            assert called.wait(10)
        deadline = time.monotonic() + 10
        while not commit.done:
            assert time.monotonic() < deadline
            time.sleep(0.001)


def wait_until(condition):
    """Return when the condition holds; fails after ten seconds."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_many_appends_wake_the_committer_once_when_their_caller_says_so(tmp_path):
    """Without ``wakes`` no append rings; ``wake`` rings once, if there is something to commit."""
    with LocalStore.open(tmp_path / "data", options=OPTIONS, threaded=False) as store:
        committer = store.committer
        topics = [store.open_topic(f"{ORDERS}-{n}") for n in range(3)]
        committer.flush()
        wakeup = committer.wakeup
        wakeup.is_asleep = True  # as the committer's thread, which this store does not have
        committer.thread.wake()
        assert wakeup.signals.empty()
        for topic in topics:
            topic.append(b"x", wakes=False)
            topic.append(b"y", wakes=False)
        assert wakeup.signals.empty()
        committer.thread.wake()
        assert wakeup.signals.qsize() == 1
        committer.flush()
        topics[0].append(b"z")
        assert wakeup.signals.qsize() == 2


@pytest.mark.parametrize("how", ["wait", "room", "wait in another thread"])
def test_who_waits_wakes_the_committer_for_appends_that_did_not(simulated, how):
    """No wait depends on a ``wake`` that the waiting thread itself would make later."""
    store = simulated.open()
    topic = store.open_topic(ORDERS)
    settle(store)
    wait_until(lambda: store.committer.wakeup.is_asleep)
    commit = topic.append(b"x", wakes=False).commit
    if how == "wait":
        commit.wait(10)
    elif how == "room":
        store.committer.pending.max_bytes = 0
        topic.append(b"y", wakes=False)
    else:
        waiting = threading.Thread(target=commit.wait, daemon=True)
        waiting.start()
        waiting.join(10)
    wait_until(lambda: commit.done)


def test_failed_sync_fails_the_whole_batch_and_nothing_else(simulated):
    """Nothing of a batch is acknowledged after its sync failed; the topics go on in new ledgers."""
    files = simulated.files()
    store = simulated.open(files)
    topics = [store.open_topic(f"{ORDERS}-{n}") for n in range(3)]
    before = [topic.append(b"before") for topic in topics]
    settle(store)
    files.fail("fdatasync")
    with store.committer.lock:
        failed = [topic.append(b"failed", message_count=5) for topic in topics]
    settle(store)
    for appended in failed:
        with pytest.raises(FencedError) as caught:
            appended.commit.wait(1)
        assert "Input/output error" in caught.value.reason
    for topic, first, lost in zip(topics, before, failed, strict=True):
        after = topic.append(b"after")
        after.commit.wait(5)
        assert after.position.ledger_id > lost.position.ledger_id == first.position.ledger_id
        assert after.index == first.index + 1
        assert [bytes(e.body) for e in topic.read(EARLIEST)] == [b"before", b"after"]
    assert files.violations == []


def test_segment_that_cannot_be_written_fails_its_topic_only(simulated):
    """ENOSPC in one segment fences that topic; the others in the batch are stored."""
    files = simulated.files()
    store = simulated.open(files)
    good, bad = store.open_topic(f"{ORDERS}-good"), store.open_topic(f"{ORDERS}-bad")
    good.append(b"x"), bad.append(b"x")
    settle(store)
    path = bad.segments()[0].path
    files.fail("pwritev", times=3, path_part=path.name)
    with store.committer.lock:
        stored, failed = good.append(b"y"), bad.append(b"y")
    settle(store)
    assert stored.commit.error is None
    assert isinstance(failed.commit.error, FencedError)
    files.heal()
    assert bad.append(b"z").index == 1


def test_no_entry_after_a_gap_is_written_to_a_file(simulated):
    """If a batch fails in a topic's first segment, the file of its next segment is not created."""
    files = simulated.files()
    store = simulated.open(files)
    topic = store.open_topic(ORDERS)
    topic.append(b"x").commit.wait(5)
    files.fail("pwritev", times=2, path_part=topic.segments()[0].path.name)
    with store.committer.lock:
        commits = [topic.append(b"%d" % n * 100).commit for n in range(10)]
        names = {segment.path.name for segment in topic.all_segments()}
    settle(store)
    assert all(isinstance(commit.error, FencedError) for commit in commits)
    there = simulated.disk.process().listdir(simulated.folder / "ledgers")
    assert names & set(there) == {topic.segments()[0].path.name}


def test_pending_batch_of_a_fenced_topic_fails_too(simulated):
    """What gathers while an earlier batch of the topic fails is failed with it, in order."""
    files = simulated.files()
    gate, reached = threading.Event(), threading.Event()
    store = simulated.open(files)
    topic = store.open_topic(ORDERS)
    topic.append(b"x").commit.wait(5)
    real = files.fdatasync

    def wait_then_fail(fd):
        reached.set()
        gate.wait(10)
        files.fail("fdatasync")
        real(fd)

    files.fdatasync = wait_then_fail
    first = topic.append(b"first")
    assert reached.wait(10)
    second = topic.append(b"second")
    files.fdatasync = real
    gate.set()
    settle(store)
    assert isinstance(first.commit.error, FencedError)
    assert isinstance(second.commit.error, FencedError)
    third = topic.append(b"third")
    third.commit.wait(5)
    assert third.index == 1
    assert [bytes(e.body) for e in topic.read(EARLIEST)] == [b"x", b"third"]


def test_checkpoint_that_fails_while_a_batch_is_on_its_way(tmp_path):
    """A segment whose sync fails in a checkpoint fences its topic between two batches."""
    simulated = SimulatedStore(tmp_path / "data", options=OPTIONS, threaded=True)
    files = simulated.files()
    store, model = simulated.open(files), StoreModel()
    topic = store.open_topic(ORDERS)
    rounds = 8
    may_append, appended = threading.Semaphore(0), threading.Semaphore(0)

    def load():
        # As many entries for each round: a load without a limit makes segments faster than a
        # checkpoint can sync them.
        for number in range(rounds * 100):
            assert may_append.acquire(timeout=60)
            model.topic(ORDERS).append(topic, b"x" * 40)
            if number % 100 == 49:
                appended.release()

    thread = threading.Thread(target=load)
    thread.start()
    for _ in range(rounds):
        may_append.release(50)
        assert appended.acquire(timeout=60)
        settle(store)
        files.fail("fdatasync", path_part=".log", times=None)
        may_append.release(50)
        store.checkpoint()
        files.heal()
    thread.join(60)
    assert not thread.is_alive()
    settle(store)
    assert files.failed_calls >= rounds
    assert files.violations == []
    assert model.topic(ORDERS).problems(topic) == []
    simulated.power_off()
    assert model.topic(ORDERS).problems(simulated.open().open_topic(ORDERS), reopened=True) == []
    simulated.close()


@pytest.mark.parametrize("fault", [False, True])
def test_open_files_stay_within_bounds(tmp_path, fault):
    """However many topics are written between two checkpoints, few files are open at once."""
    options = StoreOptions(checkpoint_interval_ms=NEVER_MS, journal_size_bytes=NEVER_MS, fd_limit=8)
    simulated = SimulatedStore(tmp_path / "data", options=options, threaded=True)
    files = simulated.files()
    store, model = simulated.open(files), StoreModel()
    topics = [store.open_topic(f"{ORDERS}-{n}") for n in range(60)]
    most = 0
    for number in range(4):
        if fault and number == 2:
            files.fail("fdatasync", path_part=".log", times=7)
        with store.committer.lock:
            for topic in topics:
                model.topic(topic.name).append(topic, b"x" * 10)
        settle(store)
        most = max(most, files.calls["open"] - files.calls["close"])
    assert most < 8 + 10 + 7 * fault
    assert files.violations == []
    store.checkpoint()
    simulated.power_off()
    store = simulated.open()
    for name, known in model.topics.items():
        assert known.problems(store.open_topic(name), reopened=True) == []
    assert model.acknowledged >= (4 * 60 if not fault else 4 * 60 - 20)
    simulated.close()


def test_waiting_thread_is_woken_when_the_committers_thread_is_about_to_sleep(
    memory_folder, monkeypatch
):
    """The main thread commits; the committer's thread, which must wake the other one, is late."""
    about_to_sleep, sleeps = threading.Event(), threading.Event()
    is_held = False
    sleep = group_commit.CommitterThread._sleep

    def held_sleep(thread):
        if is_held:
            about_to_sleep.set()
            sleeps.wait(60)
        return sleep(thread)

    monkeypatch.setattr(group_commit.CommitterThread, "_sleep", held_sleep)
    with LocalStore.open(memory_folder / "data", options=OPTIONS) as store:
        topic = store.open_topic(ORDERS)
        topic.append(b"first").commit.wait(20)
        committer, is_held = store.committer, True
        committer.wakeup.wake()
        assert about_to_sleep.wait(20)
        commit = topic.append(b"second").commit
        waiting = threading.Thread(target=commit.wait, args=(60,), daemon=True)
        waiting.start()
        while committer._done.is_empty:
            time.sleep(0.001)
        commit.wait()
        is_held = False
        sleeps.set()
        waiting.join(20)
        assert not waiting.is_alive()

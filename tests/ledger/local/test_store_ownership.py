"""Who may use a store: the process that opened it, callbacks too, and no one once it failed."""

import os
import signal
import threading
import traceback
from pathlib import Path
from typing import Any

import pytest

from pulsemark.finder import Finder
from pulsemark.ledger import (
    EARLIEST,
    LATEST,
    CallbackError,
    FencedError,
    ForkedStoreError,
    LocalStore,
    StoreFailedError,
    StoreOptions,
)
from pulsemark.ledger.local.io.files import Files
from pulsemark.ledger.local.segment.segment import as_segment
from tests.support.simulated_store import NEVER_MS, SimulatedStore

ORDERS = "persistent://public/default/orders"
OPTIONS = StoreOptions(checkpoint_interval_ms=NEVER_MS, journal_size_bytes=NEVER_MS)


def in_child(function):
    """Run ``function()`` in a forked child for at most 20 s; whether it returned in order."""
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # it ends a child that hangs
        try:
            function()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_child_that_leaves_the_with_block_changes_nothing(tmp_path):
    """The parent's journal stays, and what the parent appends after that survives a kill."""
    folder = tmp_path / "data"
    with LocalStore.open(folder, options=OPTIONS) as store:
        topic = store.open_topic(ORDERS)
        topic.append(b"before").commit.wait(10)
        files = sorted(path.relative_to(folder) for path in folder.rglob("*"))
        assert in_child(lambda: store.__exit__(None, None, None))
        assert sorted(path.relative_to(folder) for path in folder.rglob("*")) == files
        topic.append(b"after").commit.wait(10)
        assert list((folder / "journal").iterdir()) != []
    with LocalStore.open(folder) as store:
        entries = store.open_topic(ORDERS).read(EARLIEST)
        assert [bytes(entry.body) for entry in entries] == [b"before", b"after"]


def test_every_method_is_refused_in_a_child(tmp_path):
    """A typed error at once, also while locks were held and commits pending at the fork."""
    with LocalStore.open(tmp_path / "data", options=OPTIONS) as store:
        topic = store.open_topic(ORDERS)
        answers: list[object] = []
        done = topic.append(b"x").commit
        done.wait(10)
        cursor = topic.open_cursor("billing", initial=EARLIEST)
        with store.committer.lock:
            pending = topic.append(b"pending").commit
            held = threading.Event()

            def hold():
                store.committer.settling.acquire()
                held.set()

            holder = threading.Thread(target=hold)
            holder.start()
            assert held.wait(10)
            assert topic.first_position is not None
            cursor.ack(topic.first_position)
            unchanged = topic.open_cursor("audit", initial=LATEST, durable=False)
            calls = [
                lambda: topic.append(b"y"),
                lambda: topic.read(EARLIEST),
                lambda: topic.read_stored(EARLIEST),
                lambda: topic.begin_epoch(5),
                lambda: topic.truncate_tail(1, epoch=5),
                topic.roll,
                lambda: topic.trim(EARLIEST),
                lambda: topic.truncate_head(EARLIEST),
                cursor.persist,
                unchanged.persist,
                lambda: cursor.ack(EARLIEST),
                lambda: cursor.ack_batch(EARLIEST, [0]),
                lambda: cursor.ack_cumulative(EARLIEST),
                lambda: cursor.reset(EARLIEST),
                lambda: unchanged.ack(EARLIEST),
                lambda: topic.delete_cursor("billing"),
                pending.wait,
                lambda: pending.batch.add_done_callback(print),
                lambda: pending.add_done_callback(print),
                lambda: store.open_topic(ORDERS),
                store.topic_names,
                lambda: Finder(topic).by_time(0),
                lambda: Finder(topic).by_index(0),
                lambda: store.delete_topic(ORDERS),
                store.checkpoint,
                store.probe,
                lambda: store.catalog.topics(),  # noqa: PLW0108 - the child's catalog
            ]

            def child():
                done.wait()
                done.add_done_callback(answers.append)
                assert answers == [None], "what was done before the fork is known"
                for number, call in enumerate(calls):
                    try:
                        call()
                    except ForkedStoreError:
                        continue
                    raise AssertionError(f"call {number} was not refused")
                store.close()

            good = in_child(child)
            store.committer.settling.release()
            holder.join()
        assert good
        pending.wait(10)


def test_a_child_does_not_keep_the_folder_locked(tmp_path):
    """The folder can be opened again while a child of the former owner lives."""
    start, end = os.pipe(), os.pipe()
    store = LocalStore.open(tmp_path / "data")
    child = os.fork()
    if child == 0:
        os.write(start[1], b"x")
        os.read(end[0], 1)
        os._exit(0)
    os.read(start[0], 1)
    store.close()
    try:
        LocalStore.open(tmp_path / "data").close()
    finally:
        os.write(end[1], b"x")
        os.waitpid(child, 0)


def test_a_closed_store_closes_no_file_of_others_in_a_child(tmp_path):
    """After the close the lock's descriptor numbers may be other files', in a child, too."""
    lock_fds: list[int] = []

    class Watched(Files):
        def open(self, path: Path, flags: int) -> int:
            fd = super().open(path, flags)
            if path in (tmp_path, tmp_path / "LOCK"):
                lock_fds.append(fd)
            return fd

    LocalStore.open(tmp_path, files=Watched()).close()
    others: list[int] = []
    try:
        while not set(lock_fds) <= set(others):  # numbers are given again, the lowest first
            others.append(os.open(os.devnull, os.O_RDONLY))
        assert in_child(lambda: [os.fstat(fd) for fd in lock_fds])
    finally:
        for fd in others:
            os.close(fd)


@pytest.mark.parametrize("threaded", [False, True])
def test_callbacks_may_use_the_whole_store(tmp_path, threaded):
    """A callback appends and waits, makes checkpoints, opens and deletes topics, and closes."""
    store = LocalStore.open(tmp_path / "data", threaded=threaded)
    topic, other = store.open_topic(ORDERS), store.open_topic(f"{ORDERS}-other")
    ended = threading.Event()
    errors = []

    def callback(error):
        try:
            errors.append(error)
            topic.append(b"from the callback").commit.wait(10)
            store.committer.flush()
            store.checkpoint()
            for _ in range(200):
                topic.append(b"unwaited")
            other.append(b"x").commit.wait(10)
            store.delete_topic(other.name)
            topic.begin_epoch(1).commit.wait(10)
            topic.truncate_tail(1, epoch=2)
            assert len(topic.read(EARLIEST)) == 2
            store.close()
        except BaseException as failure:
            errors.append(failure)
        ended.set()

    with store.committer.lock:
        topic.append(b"first").commit.add_done_callback(callback)
        assert errors == []
    if not threaded:
        store.committer.flush()
    assert ended.wait(30)
    assert errors == [None]


def test_a_callback_that_never_returns_does_not_keep_the_folder(tmp_path, monkeypatch, caplog):
    """After a time-out the store is closed all the same; the log names the callback."""
    monkeypatch.setattr("pulsemark.ledger.commit.group_commit.CALLBACKS_TIMEOUT_S", 0.05)
    store = LocalStore.open(tmp_path / "data")
    topic = store.open_topic(ORDERS)
    may_return, later = threading.Event(), threading.Event()

    def stuck(_error):
        may_return.wait(60)

    topic.append(b"x").commit.add_done_callback(stuck)
    topic.append(b"y").commit.add_done_callback(lambda _: later.set())
    store.close()
    assert "a callback has not returned" in caplog.text
    assert "stuck" in caplog.text
    with LocalStore.open(tmp_path / "data") as again:
        assert len(again.open_topic(ORDERS).read(EARLIEST)) == 2
    may_return.set()
    assert later.wait(20)


@pytest.mark.parametrize("second", ["main", "thread"])
def test_close_in_a_callback_beside_another_close(tmp_path, second):
    """Whichever begins first, both return, and the folder can be opened again."""
    for number in range(10):
        store = LocalStore.open(tmp_path / "data")
        closed = threading.Event()

        def close_here(_error, store=store, closed=closed):
            store.close()
            closed.set()

        topic = store.open_topic(ORDERS)
        with store.committer.lock:
            # It is not committed yet: the callback runs where commits are made.
            topic.append(b"%d" % number).commit.add_done_callback(close_here)
        if second == "main":
            store.close()
        else:
            closer = threading.Thread(target=store.close, daemon=True)
            closer.start()
            closer.join(20)
            assert not closer.is_alive()
        assert closed.wait(20)
        store.close()
    with LocalStore.open(tmp_path / "data") as store:
        assert store.open_topic(ORDERS).next_index == 10


def test_close_by_a_notify_that_runs_calls_at_once_is_refused(tmp_path):
    """The thread that commits cannot wait for its own end."""
    refused: list[Any] = []

    def close_here(_error):
        try:
            store.close()
        except CallbackError as error:
            refused.append(error)

    with LocalStore.open(tmp_path / "data", notify=lambda call: call()) as store:
        topic = store.open_topic(ORDERS)
        with store.committer.lock:
            commit = topic.append(b"x").commit
            commit.add_done_callback(close_here)
        commit.wait(10)
        store.committer.flush()
    assert len(refused) == 1


def test_an_interrupted_opening_leaves_nothing(tmp_path, monkeypatch, threads_of_stores):
    """An exception out of a signal handler while a store is opened: it is closed again at once."""

    class AlarmError(Exception):
        pass

    def handler(_signal, _frame):
        raise AlarmError

    slow, release = threading.Event(), threading.Event()
    real = LocalStore._end_deletions

    def wait(store):
        slow.set()
        release.wait(20)
        real(store)

    monkeypatch.setattr(LocalStore, "_end_deletions", wait)
    before = signal.signal(signal.SIGUSR1, handler)

    def send():
        slow.wait(20)
        os.kill(os.getpid(), signal.SIGUSR1)

    try:
        sender = threading.Thread(target=send)
        sender.start()
        with pytest.raises(AlarmError):
            LocalStore.open(tmp_path / "data")
        sender.join()
    finally:
        release.set()
        signal.signal(signal.SIGUSR1, before)
    assert threads_of_stores() == []
    monkeypatch.undo()
    with LocalStore.open(tmp_path / "data") as store:
        store.open_topic(ORDERS).append(b"x").commit.wait(10)


def test_an_opening_that_fails_late_leaves_no_thread(tmp_path, monkeypatch, threads_of_stores):
    """Threads that run by then are ended before the files are closed."""
    monkeypatch.setattr(LocalStore, "_end_deletions", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        LocalStore.open(tmp_path / "data")
    assert threads_of_stores() == []
    monkeypatch.undo()
    LocalStore.open(tmp_path / "data").close()


def test_open_topic_in_a_callback_beside_delete_topic(tmp_path):
    """The two calls do not wait for each other."""
    with LocalStore.open(tmp_path / "data") as store:
        for number in range(30):
            topic = store.open_topic(ORDERS)
            gone = store.open_topic(f"{ORDERS}-{number}")
            gone.open_cursor("billing", initial=EARLIEST)
            opened = threading.Event()

            def callback(_error, name=f"{ORDERS}-new-{number}", opened=opened):
                store.open_topic(name).append(b"x").commit.wait(10)
                opened.set()

            with store.committer.lock:
                topic.append(b"x").commit.add_done_callback(callback)
            store.delete_topic(gone.name)
            assert opened.wait(10)


def test_a_callback_that_notify_runs_at_once_is_refused_what_would_wait(tmp_path):
    """Within `notify` itself, waiting for the committer is a typed error instead of a hang."""
    errors = []
    with LocalStore.open(tmp_path / "data", notify=lambda call: call()) as store:
        topic = store.open_topic(ORDERS)
        done = threading.Event()

        def callback(_error):
            for call in (store.checkpoint, topic.append(b"y").commit.wait, store.committer.flush):
                try:
                    call()
                except CallbackError as error:
                    errors.append(error)
            done.set()

        with store.committer.lock:
            topic.append(b"x").commit.add_done_callback(callback)
        assert done.wait(10)
    assert len(errors) == 3


@pytest.mark.parametrize("threaded", [False, True])
def test_more_unwaited_appends_than_may_be_pending(tmp_path, monkeypatch, threaded):
    """Where no other thread commits, and in callbacks, the appends themselves make room."""
    monkeypatch.setattr("pulsemark.ledger.commit.batch.MAX_PENDING_ENTRIES", 100)
    with LocalStore.open(tmp_path / "data", threaded=threaded) as store:
        topic = store.open_topic(ORDERS)
        done = threading.Event()

        def callback(_error):
            for _ in range(1000):
                topic.append(b"x")
            done.set()

        with store.committer.lock:
            topic.append(b"x").commit.add_done_callback(callback)
        for _ in range(1000):
            topic.append(b"x")
        store.committer.flush()
        assert done.wait(10)
        store.committer.flush()
        assert len(topic.read(EARLIEST, max_entries=5000)) == 2001


def test_a_wait_with_a_time_out_ends_in_time(tmp_path, monkeypatch):
    """Also in a thread that could commit itself, while the disk does not answer."""
    simulated = SimulatedStore(tmp_path / "data", options=OPTIONS, threaded=True)
    files = simulated.files()
    store = simulated.open(files)
    topic = store.open_topic(ORDERS)
    topic.append(b"x").commit.wait(10)
    gate, real, outcomes = threading.Event(), files.fdatasync, []

    def slow_sync(fd):
        gate.wait(20)
        real(fd)

    monkeypatch.setattr(files, "fdatasync", slow_sync)

    def wait():
        try:
            topic.append(b"y").commit.wait(0.01)
        except TimeoutError as error:
            outcomes.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join(10)
    assert len(outcomes) == 1
    gate.set()
    simulated.close()


@pytest.mark.parametrize("cause", ["EMFILE", "no index file"])
def test_fencing_reads_no_file(tmp_path, cause):
    """A topic whose index files cannot be read is fenced all the same, and others go on."""
    simulated = SimulatedStore(tmp_path / "data", options=OPTIONS, threaded=True)
    files = simulated.files()
    store = simulated.open(files)
    topic, other = store.open_topic(ORDERS), store.open_topic(f"{ORDERS}-other")
    for number in range(3 * 1024):
        topic.append(b"%d" % number)
    topic.append(b"last").commit.wait(10)
    other.append(b"x").commit.wait(10)
    store.drop_read_caches()
    path = as_segment(topic.segments()[0]).path
    if cause == "EMFILE":
        files.fail("open", error=24, times=None, path_part=".idx")
    else:
        files.unlink(path.with_suffix(".idx"))
    files.fail("pwritev", times=3, path_part=path.name)
    with pytest.raises(FencedError):
        topic.append(b"fails").commit.wait(10)
    files.heal()
    other.append(b"y").commit.wait(10)
    after = topic.append(b"after")
    after.commit.wait(10)
    assert after.index == 3 * 1024 + 1
    store.checkpoint()
    simulated.close()
    store = simulated.open()
    assert store.open_topic(ORDERS).next_index == 3 * 1024 + 2
    simulated.close()


def fail_in(place, store, monkeypatch):
    """Have something raise that no rule of the store covers."""

    def broken(*_args, **_more):
        raise RuntimeError("a fault of our own")

    if place == "commit":
        monkeypatch.setattr("pulsemark.ledger.commit.batch.Group.show", broken)
    elif place == "thread":
        monkeypatch.setattr(store.committer.thread, "_gather", broken)
    else:
        monkeypatch.setattr(store.engine._checkpointer, "_sync", broken)


@pytest.mark.parametrize("place", ["commit", "thread", "checkpoint"])
def test_what_cannot_be_repaired_stops_the_store_loudly(tmp_path, monkeypatch, caplog, place):
    """Each later call and each pending callback gets a typed error; acknowledged data stays."""
    options = StoreOptions(checkpoint_interval_ms=100 if place == "checkpoint" else NEVER_MS)
    store = LocalStore.open(tmp_path / "data", options=options)
    topic = store.open_topic(ORDERS)
    topic.append(b"kept").commit.wait(10)
    fail_in(place, store, monkeypatch)
    said = threading.Event()
    outcomes: list[Any] = []
    if place != "checkpoint":
        commit = topic.append(b"unknown").commit
        commit.add_done_callback(outcomes.append)
        commit.add_done_callback(lambda error: said.set())
        with pytest.raises(StoreFailedError, match="a fault of our own"):
            commit.wait(10)
        assert said.wait(10)
        assert isinstance(outcomes[0], StoreFailedError)
    else:
        deadline = threading.Event()
        while not store.state.has_failed:
            assert not deadline.wait(0.02)
    calls = [
        lambda: topic.append(b"y"),
        lambda: topic.read(EARLIEST),
        lambda: store.open_topic(f"{ORDERS}-new"),
        store.checkpoint,
        lambda: topic.begin_epoch(1),
    ]
    for call in calls:
        with pytest.raises(StoreFailedError):
            call()
    assert "the store stops" in caplog.text
    monkeypatch.undo()
    store.close()
    with LocalStore.open(tmp_path / "data") as store:
        bodies = [bytes(entry.body) for entry in store.open_topic(ORDERS).read(EARLIEST)]
        assert bodies[0] == b"kept"
        assert bodies[1:] in ([], [b"unknown"])

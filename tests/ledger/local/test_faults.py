import dataclasses
import errno
import itertools
import os
import threading
from typing import Any

import pytest

from pulsemark.ledger import (
    EARLIEST,
    FencedError,
    FolderReader,
    LedgerError,
    Position,
    StoreFailedError,
    StoreOptions,
)
from pulsemark.metadata import BrokerTimeStamper, IndexStamper, StamperChain
from pulsemark.testing.faulty_files import Short
from pulsemark.testing.store_model import StoreModel, is_expected
from tests.support.simulated_store import NEVER_MS, SimulatedStore, settle

ORDERS = "persistent://public/default/orders"
AUDIT = "persistent://public/default/audit"
OLD = "persistent://public/default/old"
OPTIONS = StoreOptions(
    segment_size_bytes=600,
    ledger_entries=9,
    checkpoint_interval_ms=NEVER_MS,
    journal_size_bytes=NEVER_MS,
)
FAULTS: dict[str, list[Any]] = {
    "open": [errno.EIO, errno.ENOSPC, errno.EMFILE, errno.EINTR],
    "pread": [errno.EIO, errno.EINTR, Short],
    "pwritev": [errno.EIO, errno.ENOSPC, errno.EINTR, Short],
    "fdatasync": [errno.EIO, errno.ENOSPC, errno.EINTR],
    "fsync": [errno.EIO],
    "sync_folder": [errno.EIO, errno.EMFILE],
    "ftruncate": [errno.EIO, errno.ENOSPC],
    "size": [errno.EIO],
    "rename": [errno.EIO, errno.ENOSPC],
    "unlink": [errno.EIO],
    "mkdir": [errno.EIO, errno.ENOSPC],
    "listdir": [errno.EIO],
    "try_lock": [errno.EIO],
    "try_lock_folder": [errno.EIO],
    "hold_folder": [errno.EIO, errno.EMFILE],
    "connect": [errno.EIO],
    "read": [errno.EIO],
    "commit_write": [errno.EIO, errno.ENOSPC],
    "commit_sync": [errno.EIO, errno.ENOSPC],
}


EVERY_CALL = "PULSEMARK_EVERY_CALL" in os.environ


def attempt(step, failures):
    """Do a step; a typed error is an answer, too."""
    try:
        return step()
    except Exception as error:
        if not is_expected(error):
            raise
        failures.append(error)
        return None


def burst(store, model, name, count):
    """Append so many entries as one batch, and wait for it."""
    ledger = store.open_topic(name)
    ledger.stampers = StamperChain([BrokerTimeStamper(), IndexStamper()])
    with store.committer.lock:
        for number in range(count):
            model.topic(name).append(
                ledger, b"%s %d" % (name[-5:].encode(), number) * 3, number % 3
            )
    settle(store)


def check_now(store, model, name):
    """What was acknowledged is readable while the store lives, also after a fault."""
    if name in store.topic_names():
        assert model.topic(name).problems(store.open_topic(name, create=False)) == []


def acknowledge(store, model, count):
    """Acknowledge the next ``count`` entries of a subscription, durably."""
    ledger = store.open_topic(ORDERS)
    cursor = ledger.open_cursor("billing", initial=EARLIEST)
    for _ in range(count):
        cursor.ack(cursor.next_unacked(cursor.first_unacked))
    cursor.ack(cursor.first_unacked)
    model.topic(ORDERS).persist(cursor)
    settle(store)


def story(simulated, files, model, *, ends_with_failure=False):
    """A store's life in steps, each of which may fail; returns the errors."""
    failures: list[Any] = []
    store = attempt(lambda: simulated.open(files), failures)
    if store is None:
        return failures

    def trim():
        ledger = store.open_topic(ORDERS)
        before = Position(ledger.end_position.ledger_id, 0)
        model.topic(ORDERS).trim(ledger, before)

    def cut_head():
        ledger = store.open_topic(ORDERS)
        first = ledger.first_position or EARLIEST
        model.topic(ORDERS).truncate_head(ledger, first._replace(entry_id=first.entry_id + 2))

    def cut_tail():
        ledger = store.open_topic(AUDIT)
        sent = model.topic(AUDIT).sent
        there = [entry.position for entry in ledger.read(EARLIEST) if entry.message_count]
        for place in there[-2:-1]:
            model.topic(AUDIT).truncate_tail(ledger, sent[place], ledger.epoch + 1)

    def set_policies(number):
        store.catalog.put("policies", str(number % 2), b"%d" % number)

    steps = [
        lambda: burst(store, model, ORDERS, 5),
        lambda: burst(store, model, AUDIT, 2),
        lambda: burst(store, model, OLD, 2),
        lambda: set_policies(1),
        lambda: acknowledge(store, model, 2),
        lambda: check_now(store, model, ORDERS),
        store.checkpoint,
        lambda: burst(store, model, ORDERS, 12),
        lambda: store.open_topic(AUDIT).roll(),
        lambda: burst(store, model, AUDIT, 3),
        store.checkpoint,
        lambda: acknowledge(store, model, 1),
        lambda: burst(store, model, ORDERS, 3),
        trim,
        lambda: burst(store, model, ORDERS, 4),
        store.checkpoint,
        lambda: burst(store, model, AUDIT, 4),
        lambda: set_policies(2),
        lambda: model.delete_topic(store, OLD),
        lambda: set_policies(3),
        cut_head,
        cut_tail,
        lambda: burst(store, model, ORDERS, 2),
        lambda: burst(store, model, AUDIT, 2),
        lambda: check_now(store, model, ORDERS),
        lambda: check_now(store, model, AUDIT),
    ]
    for step in steps:
        seen = len(failures)
        attempt(step, failures)
        if len(failures) > seen:
            attempt(lambda: check_all(store, model), failures)
            if ends_with_failure:
                break
    return failures


def check_all(store, model):
    """After a failure memory is sound: what it shows now a reopened folder must show, too."""
    for name in list(model.topics):
        check_now(store, model, name)


def shown(store):
    """What memory says: values, and of each topic its epoch, and its entries with their places."""
    topics: dict[str, Any] = {"": (store.catalog.items("policies"), 0, [])}
    for name in store.topic_names():
        topic = store.open_topic(name, create=False)
        entries = topic.read(EARLIEST, max_entries=10_000)
        topics[name] = (
            topic.epoch,
            topic.next_index,
            [(entry.position, entry.index, bytes(entry.stored)) for entry in entries],
        )
    return topics


def check_after(simulated, model, files=None):
    """Open again with a healthy disk: nothing is lost, and every topic goes on."""
    for _ in range(2):
        store = simulated.open(files)
        for name, topic in model.topics.items():
            if name in store.topic_names():
                assert topic.problems(store.open_topic(name), reopened=True) == []
            else:
                assert not any(s.state in ("acknowledged", "seen") for s in topic.sent.values())
            burst(store, model, name, 2)
        for topic in model.topics.values():
            assert all(s.state != "pending" for s in topic.sent.values())
            assert topic.problems(store.open_topic(topic.name)) == []
        simulated.close()


@pytest.fixture(scope="module")
def counted(tmp_path_factory):
    """Files that have counted how often each operation is called in the story, without a fault."""
    simulated = SimulatedStore(tmp_path_factory.mktemp("count") / "data", options=OPTIONS)
    model, files = StoreModel(), simulated.files()
    assert story(simulated, files, model) == []
    simulated.close()
    check_after(simulated, model)
    return files


def test_run_without_faults_is_correct_and_deterministic(tmp_path):
    """Without faults all is kept; the order of calls is the same every time."""
    traces = []
    for number in range(2):
        folder = tmp_path / str(number) / "data"
        simulated, model = SimulatedStore(folder, options=OPTIONS), StoreModel()
        files = simulated.files()
        files.trace = []
        assert story(simulated, files, model) == []
        assert model.acknowledged == 35
        simulated.close()
        traces.append(files.trace[files.trace.index("open LOCK") :])
        check_after(simulated, model)
    assert traces[0] == traces[1]


ENDINGS = ("close", "kill", "power_off")


def chosen(operation, total, ending):
    """(error, call) pairs to try: all in a campaign; otherwise eight, divided among the endings."""
    pairs = [(error, call) for error in FAULTS[operation] for call in range(1, total + 1)]
    if EVERY_CALL:
        return pairs
    some = pairs[:: max(1, len(pairs) // 8)]
    return some[ENDINGS.index(ending) :: len(ENDINGS)] if len(some) > 6 else some


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("operation", FAULTS)
def test_any_single_failing_call_loses_nothing(memory_folder, counted, operation, ending):
    """Whichever call fails, in whatever way: what was acknowledged is there, in order."""
    before = set(threading.enumerate())
    for number, (error, call) in enumerate(chosen(operation, counted.calls[operation], ending)):
        simulated = SimulatedStore(memory_folder / str(number), seed=number, options=OPTIONS)
        model, files = StoreModel(), simulated.files()
        files.fail(operation, call=call, error=error)
        failures = story(simulated, files, model)
        attempt(getattr(simulated, ending), failures)
        if error in (errno.EINTR, Short) and operation in ("pread", "pwritev"):
            assert failures == [], (error, call)
        assert files.violations == [], (error, call)
        check_after(simulated, model)
    left = set(threading.enumerate()) - before
    assert not [thread for thread in left if thread.name.startswith("pulsemark-")]


@pytest.mark.parametrize("ending", ["kill", "power_off"])
@pytest.mark.parametrize("operation", ["open", "pwritev", "fdatasync", "sync_folder", "size"])
def test_after_a_failure_memory_and_a_reopened_folder_agree(
    memory_folder, counted, operation, ending
):
    """Once each topic has one entry more, both have the same topics, values, entries and epochs."""
    for number, (error, call) in enumerate(chosen(operation, counted.calls[operation], ending)):
        simulated = SimulatedStore(memory_folder / str(number), seed=number, options=OPTIONS)
        model, files = StoreModel(), simulated.files()
        files.fail(operation, call=call, error=error)
        story(simulated, files, model)
        if simulated.store is None:
            continue
        files.heal()
        for name in simulated.store.topic_names():
            burst(simulated.store, model, name, 1)
        in_memory = shown(simulated.store)
        getattr(simulated, ending)()
        assert agree(in_memory, shown(simulated.open())), (error, call)
        check_after(simulated, model)


@pytest.mark.parametrize("step", ["commit_write", "commit_sync", "read"])
def test_after_a_failed_commit_of_the_catalog_memory_and_a_killed_folder_agree(
    memory_folder, counted, step
):
    """Whichever change of the catalog fails: entries follow, then a kill, and it never happened."""
    pairs = itertools.product(FAULTS[step], range(1, counted.calls[step] + 1))
    for number, (error, call) in enumerate(
        itertools.islice(pairs, 0, None, 1 if EVERY_CALL else 3)
    ):
        simulated = SimulatedStore(memory_folder / str(number), seed=number, options=OPTIONS)
        model, files = StoreModel(), simulated.files()
        files.fail(step, call=call, error=error)
        story(simulated, files, model, ends_with_failure=True)
        if simulated.store is None:
            continue
        for name in simulated.store.topic_names():
            burst(simulated.store, model, name, 1)
        in_memory = shown(simulated.store)
        simulated.kill()
        assert agree(in_memory, shown(simulated.open())), (error, call)
        check_after(simulated, model)


def agree(in_memory, reopened):
    """Whether both are the same; but a head whose removal was reported as failed may be gone."""
    return in_memory.keys() == reopened.keys() and all(
        (epoch, next_index) == reopened[name][:2]
        and entries[len(entries) - len(reopened[name][2]) :] == reopened[name][2]
        for name, (epoch, next_index, entries) in in_memory.items()
    )


def test_failed_sync_anywhere_in_a_long_life(memory_folder):
    """The k-th sync fails, k up to 200: only its batch is lost, and no sync is retried."""
    for k in range(1, 201, 1 if EVERY_CALL else 23):
        simulated = SimulatedStore(memory_folder / str(k), seed=k, options=OPTIONS)
        model, files = StoreModel(), simulated.files()
        store = simulated.open(files)
        files.fail("fdatasync", call=k)
        for number in range(190):
            burst(store, model, (ORDERS, AUDIT)[number % 2], 1)
            if number % 30 == 29:
                store.checkpoint()
        assert files.failed_calls == 1
        assert files.violations == []
        states = [sent.state for topic in model.topics.values() for sent in topic.sent.values()]
        assert states.count("refused") <= 1
        simulated.power_off()
        check_after(simulated, model)


def full_after_sync(files, size_bytes):
    """The write after the next sync stores so many bytes; then the disk is full."""
    sync, write = files.fdatasync, files.pwritev

    def write_partly(fd, buffers, offset):
        files.pwritev = write
        write(fd, [b"".join(buffers)[:size_bytes]], offset)
        raise OSError(errno.ENOSPC, "no space left on device")

    def sync_once(fd):
        sync(fd)
        files.fdatasync, files.pwritev = sync, write_partly

    files.fdatasync = sync_once


def entries_of(log):
    """What a reader finds."""
    return [bytes(entry.body) for entry in log.read(EARLIEST)]


def test_an_entry_is_refused_or_in_the_log_however_much_of_a_batch_is_written(memory_folder):
    """Of a batch that is written up to any byte, readers see just the entries without an error."""
    kept = set()
    for size_bytes in range(0, 300, 1 if EVERY_CALL else 7):
        simulated = SimulatedStore(memory_folder / str(size_bytes), options=OPTIONS)
        model, files = StoreModel(), simulated.files()
        store = simulated.open(files)
        burst(store, model, ORDERS, 1)
        burst(store, model, AUDIT, 1)
        orders, audit = store.open_topic(ORDERS), store.open_topic(AUDIT)
        full_after_sync(files, size_bytes)
        with store.committer.lock:
            half = [orders.append(b"half %d" % number) for number in range(4)]
            whole = [audit.append(b"whole %d" % number) for number in range(2)]
        settle(store)
        assert [appended.error for appended in whole] == [None, None]
        stored = [b"half %d" % n for n, each in enumerate(half) if each.error is None]
        kept.add(len(stored))
        for appended in half:
            assert appended.commit.done
            assert appended.error is None or isinstance(appended.error, FencedError)
        assert entries_of(orders)[1:] == stored
        with FolderReader(simulated.folder, files=simulated.disk.process()) as reader:
            assert entries_of(reader.log(ORDERS))[1:] == stored
        for number in range(len(stored), 4):
            orders.append(b"half %d" % number, follows=half[len(stored) - 1] if stored else None)
        settle(store)
        every = [b"half %d" % number for number in range(4)]
        assert entries_of(orders)[1:] == every
        simulated.power_off()
        assert entries_of(simulated.open().open_topic(ORDERS))[1:] == every
        simulated.close()
    assert kept == {0, 1, 2, 3, 4}


def full_at_the_segment(files, size_bytes, rewrites):
    """Of the next batch the first segment's write stores so many bytes; then the disk is full.

    ``rewrites``: so many writes after the other segment's fail, too: those of the journal.
    """
    write = files.pwritev

    def write_partly(fd, buffers, offset):
        files.pwritev = write
        write(fd, [b"".join(buffers)[:size_bytes]], offset)
        if rewrites != 0:
            files.fail("pwritev", call=2, error=errno.ENOSPC, times=rewrites)
        raise OSError(errno.ENOSPC, "no space left on device")

    def write_journal(fd, buffers, offset):
        files.pwritev = write_partly
        return write(fd, buffers, offset)

    files.pwritev = write_journal


@pytest.mark.parametrize("ending", ["kill", "power_off"])
@pytest.mark.parametrize("interval_ms", [0, 60_000])
@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("rewrites", [0, 1, 2])
def test_no_refused_entry_comes_back_with_the_journal(
    memory_folder, ending, interval_ms, is_new, rewrites
):
    """A segment is not written, then the process or the power ends: only what was refused lacks."""
    options = dataclasses.replace(OPTIONS, sync_interval_ms=interval_ms)
    for size_bytes in range(0, 300, 1 if EVERY_CALL else 23):
        simulated = SimulatedStore(
            memory_folder / str(size_bytes), options=options, threaded=bool(interval_ms)
        )
        files = simulated.files()
        store = simulated.open(files)
        orders, audit, old = [store.open_topic(name) for name in (ORDERS, AUDIT, OLD)]
        old.append(b"old").commit.wait()
        if not is_new:
            orders.append(b"before").commit.wait()
            audit.append(b"before").commit.wait()
        before = [] if is_new else [b"before"]
        full_at_the_segment(files, size_bytes, rewrites)
        with store.committer.lock:
            half = [orders.append(b"half %d" % number) for number in range(4)]
            whole = [audit.append(b"whole %d" % number) for number in range(2)]
        store.committer.flush()
        assert [appended.error for appended in whole] == [None, None]
        stored = [b"half %d" % n for n, each in enumerate(half) if each.error is None]
        if size_bytes % 2:  # the journal goes on, in the place of what was taken out of it
            old.append(b"later").commit.wait()
        if ending == "power_off":
            store.sync_acknowledged()
        getattr(simulated, ending)()
        store = simulated.open()
        assert entries_of(store.open_topic(ORDERS)) == before + stored
        assert entries_of(store.open_topic(AUDIT)) == [*before, b"whole 0", b"whole 1"]
        assert entries_of(store.open_topic(OLD)) == [b"old", b"later"][: 1 + size_bytes % 2]
        simulated.close()


@pytest.mark.parametrize("ending", ["kill", "power_off"])
def test_a_refused_entry_that_stays_in_the_journal_stops_the_store(memory_folder, ending):
    """No write to the journal works any more: no outcome is told, and nothing acknowledged lost."""
    simulated = SimulatedStore(memory_folder / "data", options=OPTIONS)
    files = simulated.files()
    store = simulated.open(files)
    orders, audit = store.open_topic(ORDERS), store.open_topic(AUDIT)
    orders.append(b"before").commit.wait()
    full_at_the_segment(files, 20, None)
    with store.committer.lock:
        sent = [orders.append(b"refused"), audit.append(b"beside it")]
    for appended in sent:
        with pytest.raises(StoreFailedError):
            appended.commit.wait()
    with pytest.raises(StoreFailedError):
        orders.append(b"later")
    getattr(simulated, ending)()
    assert entries_of(simulated.open().open_topic(ORDERS))[0] == b"before"
    simulated.close()


@pytest.mark.parametrize("ending", ["kill", "power_off"])
@pytest.mark.parametrize("operation", ["fdatasync", "pwritev"])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_journal_block_that_failed_does_not_come_back(memory_folder, operation, is_first, ending):
    """It may be on the disk as a whole; its entry was refused, so it is not there, at no time."""
    for seed in range(12):
        simulated = SimulatedStore(memory_folder / str(seed), options=OPTIONS, seed=seed)
        files = simulated.files()
        store = simulated.open(files)
        orders = store.open_topic(ORDERS)
        orders.append(b"before").commit.wait()
        if is_first:  # of its journal
            store.checkpoint()
        files.fail(operation)
        with pytest.raises(FencedError):
            orders.append(b"refused").commit.wait()
        getattr(simulated, ending)()
        assert entries_of(simulated.open().open_topic(ORDERS)) == [b"before"]
        simulated.close()


def test_a_store_stops_if_a_refusal_cannot_be_made_durable(memory_folder):
    """The journal's sync fails, and the next file's, too: the store says that it cannot go on."""
    simulated = SimulatedStore(memory_folder / "data", options=OPTIONS)
    files = simulated.files()
    orders = simulated.open(files).open_topic(ORDERS)
    orders.append(b"before").commit.wait()
    files.fail("fdatasync", times=2)
    with pytest.raises(StoreFailedError):
        orders.append(b"unknown").commit.wait()
    assert files.violations == []
    simulated.power_off()
    assert entries_of(simulated.open().open_topic(ORDERS))[:1] == [b"before"]
    simulated.close()


def test_a_full_disk_that_has_room_for_a_block_alone_stores_it(memory_folder):
    """The zeros with which the journal grows do not fit: the entry is stored all the same."""
    simulated = SimulatedStore(memory_folder / "data", options=OPTIONS)
    files: Any = simulated.files()
    orders = simulated.open(files).open_topic(ORDERS)
    write = files.pwritev

    def write_without_zeros(fd, buffers, offset):
        sizes = [len(buffer) for buffer in buffers]
        if max(sizes) > 100_000:
            write(fd, buffers[:1], offset)
            raise OSError(errno.ENOSPC, "no space left on device")
        return write(fd, buffers, offset)

    files.pwritev = write_without_zeros
    for number in range(3):
        orders.append(b"%d" % number).commit.wait()
    simulated.power_off()
    assert entries_of(simulated.open().open_topic(ORDERS)) == [b"0", b"1", b"2"]
    simulated.close()


@pytest.mark.parametrize("operation", ["pwritev", "fdatasync", "open"])
def test_a_disk_that_stays_broken_loses_nothing(memory_folder, counted, operation):
    """From some call on all calls fail; once the disk works, nothing is lost and appends go on.

    A store that has no way to make a refusal durable stops, and does so when it is opened again.
    """
    total = counted.calls[operation]
    step = 1 if EVERY_CALL else max(1, total // 4)
    for number, call in enumerate(range(1, total + 1, step)):
        simulated = SimulatedStore(memory_folder / str(number), seed=number, options=OPTIONS)
        model, files = StoreModel(), simulated.files()
        files.fail(operation, call=call, error=errno.ENOSPC, times=None)
        story(simulated, files, model)
        files.heal()
        assert files.violations == []
        if files.calls["try_lock"]:  # the store came up
            if simulated.store is not None and simulated.store.state.has_failed:
                assert operation in ("fdatasync", "pwritev")
                simulated.kill()
                simulated.open()
            store = simulated.store
            for name in list(model.topics):
                if store is not None:
                    burst(store, model, name, 3)
                    check_now(store, model, name)
                    assert list(model.topic(name).sent.values())[-1].state == "seen"
        simulated.power_off()
        check_after(simulated, model)


def crash_at(folder, seed, number, ending, **options):
    """The story, ended at its ``number``-th call, or after its last one."""
    simulated = SimulatedStore(folder / str(seed), seed=seed, options=OPTIONS, **options)
    model, files = StoreModel(), simulated.files()
    end = simulated.disk.power_off if ending == "power" else simulated.disk.kill
    ended: list[Any] = []

    def end_once():  # a dead process's descriptors are closed later, which counts as calls
        if not ended:
            ended.append(True)
            end()

    files.at_call(number, end_once)
    story(simulated, files, model)
    end_once()
    return simulated, model


def try_to_open(simulated, files):
    """Open and close a store, as far as it goes."""
    attempt(lambda: simulated.open(files), [])
    attempt(simulated.close, [])


def all_calls(total, ending):
    """The numbers of all calls in the story, or a spread of them with a start of its own."""
    return range(1, total + 1) if EVERY_CALL else range(3 if ending == "power" else 7, total, 16)


@pytest.mark.parametrize("ending", ["kill", "power"])
def test_end_at_any_call_loses_nothing(memory_folder, counted, ending):
    """A kill or a power cut at any call: everything that was acknowledged is there."""
    for number in all_calls(counted.total_calls, ending):
        simulated, model = crash_at(memory_folder, number, number, ending)
        check_after(simulated, model)


@pytest.mark.parametrize("ending", ["kill", "power"])
def test_end_during_recovery_loses_nothing(memory_folder, counted, ending):
    """A crash, and further crashes during recovery: nothing acknowledged is lost."""
    for number in all_calls(counted.total_calls, ending)[:: 1 if EVERY_CALL else 2]:
        simulated, model = crash_at(memory_folder, number, number, ending)
        for call in range(5, 200, 23):
            files = simulated.files()
            files.at_call(call, getattr(simulated.disk, "power_off" if call % 2 else "kill"))
            try_to_open(simulated, files)
            if files.total_calls < call:
                break
        check_after(simulated, model)


def test_faults_during_recovery_lose_nothing(memory_folder):
    """If a failing call stops an opening, the store can be opened once the call works again."""
    simulated, model = crash_at(memory_folder, 1, 250, "power")
    counting = simulated.files()
    simulated.open(counting)
    simulated.close()
    seed = 1
    for operation, errors in FAULTS.items():
        for call in range(1, counting.calls[operation] + 1, 1 if EVERY_CALL else 5):
            seed += 1
            simulated, model = crash_at(memory_folder, seed, 250, "power")
            files = simulated.files()
            files.fail(operation, call=call, error=errors[0])
            try_to_open(simulated, files)
            assert files.violations == []
            check_after(simulated, model)


def test_checks_notice_syncs_that_do_nothing(memory_folder, counted):
    """The control: with syncs that do nothing, the same checks report losses."""
    losses = 0
    numbers = range(60, counted.total_calls, 24)
    for number in numbers:
        simulated, model = crash_at(
            memory_folder, number, number, "power", syncs=False, survival="none"
        )
        try:
            check_after(simulated, model)
        except (AssertionError, LedgerError, OSError):
            losses += 1
    assert losses > len(numbers) * 3 // 4

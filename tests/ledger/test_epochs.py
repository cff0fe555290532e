"""Epochs and cut tails: first all is checked, then changed, and a failure changes nothing."""

import errno
import threading

import pytest

from pulsemark.ledger import (
    EARLIEST,
    CatalogError,
    ClockError,
    FencedError,
    LocalStore,
    StaleEpochError,
    StoreOptions,
)
from pulsemark.metadata import BrokerTimeStamper, IndexStamper, StamperChain, StampingError, peek
from pulsemark.testing.raw_messages import unbatched_message
from tests.support.simulated_store import NEVER_MS

ORDERS = "persistent://public/default/orders"
OPTIONS = StoreOptions(
    checkpoint_interval_ms=NEVER_MS, journal_size_bytes=NEVER_MS, segment_size_bytes=600
)


class Foreign:
    """A stamper that fails whenever it is asked."""

    name = "foreign"

    def stamp(self, context, metadata):
        """Fail."""
        raise RuntimeError("no message")


class Willing(Foreign):
    """One that says it wants control entries, too."""

    stamps_control = True


def filled(store, count=10):
    """A topic with so many entries."""
    topic = store.open_topic(ORDERS)
    for number in range(count):
        topic.append(b"%d" % number)
    store.committer.flush()
    return topic


def state(topic):
    """What a failing step must not change."""
    entries = topic.read(EARLIEST, max_entries=10_000)
    return topic.epoch, topic.next_index, [(e.position, e.index, bytes(e.body)) for e in entries]


def fail_by_stamper(topic, files, monkeypatch):
    """A stamper that wants control entries fails."""
    topic.stampers = StamperChain([Willing()])


def fail_by_catalog(topic, files, monkeypatch):
    """No ledger id can be had."""

    def full(*_):
        raise CatalogError(topic.store.folder, "full")

    monkeypatch.setattr(topic.store, "next_ledger_id", full)


def fail_by_read(topic, files, monkeypatch):
    """The index of what is to be cut cannot be read."""
    topic.store.drop_read_caches()
    files.fail("open", error=errno.EMFILE, times=None)


def fail_by_sync(topic, files, monkeypatch):
    """The mark does not become durable."""
    files.fail("fdatasync")


def fail_by_write(topic, files, monkeypatch):
    """The mark does not come into its segment."""
    files.fail("pwritev", error=errno.ENOSPC, times=None, path_part=".log")


FAILURES = [fail_by_stamper, fail_by_catalog, fail_by_sync, fail_by_write]


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("fail", [*FAILURES, fail_by_read], ids=lambda fail: fail.__name__)
def test_a_failing_new_epoch_leaves_the_old_one(simulated, monkeypatch, fail, cut):
    """Memory is as before, the topic goes on, no index is given twice, and a restart agrees."""
    files = simulated.files()
    store = simulated.open(files)
    topic = filled(store)
    topic.begin_epoch(3)
    store.committer.flush()
    before = state(topic)
    with monkeypatch.context() as patch:
        fail(topic, files, patch)
        try:
            begun = topic.truncate_tail(4, epoch=7) if cut else topic.begin_epoch(7)
            begun.commit.wait(10)
            failed = False
        except (StampingError, CatalogError, FencedError, OSError):
            failed = True
    files.heal()
    topic.stampers = StamperChain()
    assert failed or fail is fail_by_read
    if failed:
        assert state(topic) == before
        assert topic.append(b"on", epoch=3).index == before[1]
    store.committer.flush()
    after = state(topic)
    simulated.kill()
    assert state(simulated.open().open_topic(ORDERS)) == after


@pytest.mark.parametrize("epoch", [2**32, 2**64])
def test_an_epoch_beyond_the_header_is_refused(simulated, epoch):
    """It is a ValueError that names it, and nothing has changed; the highest one can begin."""
    topic = filled(simulated.open())
    before = state(topic)
    for begin in (topic.begin_epoch, lambda epoch: topic.truncate_tail(5, epoch=epoch)):
        with pytest.raises(ValueError, match=str(epoch)):
            begin(epoch)
    assert state(topic) == before
    topic.begin_epoch(2**32 - 1).commit.wait(10)
    with pytest.raises(StaleEpochError):
        topic.begin_epoch(2**32 - 1)


def test_foreign_stampers_are_not_asked_for_control_entries(simulated):
    """A control entry is stamped only by stampers that ask for it."""
    topic = simulated.open().open_topic(ORDERS)
    topic.stampers = StamperChain([BrokerTimeStamper(), IndexStamper(), Foreign()])
    topic.begin_epoch(1).commit.wait(10)
    stamp = peek(topic.read(EARLIEST)[0].prefix)
    assert stamp is not None
    assert (stamp.index, stamp.leader_epoch) == (0, 1)
    with pytest.raises(StampingError, match="foreign"):
        topic.append(b"x")


def test_cutting_a_tail_while_others_append(open_store):
    """An acknowledged entry is in the log, or it was cut off before its acknowledgement counted."""
    store = open_store(segment_size_bytes=2000)
    topic = store.open_topic(ORDERS)
    acknowledged, errors, stop = {}, [], threading.Event()

    def load(name):
        number = 0
        while not stop.is_set():
            body = b"%s-%d" % (name, number)
            number += 1
            try:
                appended = topic.append(body)
                appended.commit.wait(20)
                acknowledged[appended.position] = (appended.index, body)
            except FencedError:
                continue
            except BaseException as error:
                errors.append(error)
                return

    threads = [threading.Thread(target=load, args=(b"%d" % n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    cuts = []
    for epoch in range(1, 40):
        at = max(topic.first_index, topic.next_index - 5)
        begun = topic.truncate_tail(at, epoch=epoch)
        cuts.append((at, begun.position))
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []
    log = {e.position: (e.index, bytes(e.body)) for e in topic.read(EARLIEST, max_entries=10**6)}
    assert [index for index, _ in log.values()] == list(range(len(log)))
    for position, (index, body) in acknowledged.items():
        is_cut = any(index >= at and position < mark for at, mark in cuts)
        assert is_cut or log.get(position) == (index, body)
    store.close()
    again = open_store(segment_size_bytes=2000).open_topic(ORDERS)
    there = again.read(EARLIEST, max_entries=10**6)
    assert {e.position: (e.index, bytes(e.body)) for e in there} == log


@pytest.mark.parametrize("rolls", [False, True], ids=["one segment", "two ledgers"])
def test_entries_without_messages_before_the_cut_stay(tmp_path, rolls):
    """Entries before the first message that is dropped stay, wherever segments begin."""
    with LocalStore.open(tmp_path) as store:
        topic = store.open_topic("persistent://public/default/orders")
        topic.append(b"m0").commit.wait(10)
        if rolls:
            topic.roll()
        topic.append(b"z1", message_count=0)
        topic.append(b"z2", message_count=0)
        topic.append(b"m1").commit.wait(10)
        topic.truncate_tail(1, epoch=1)
        kept = [bytes(entry.body) for entry in topic.read(EARLIEST)]
    assert kept == [b"m0", b"z1", b"z2", b""]
    with LocalStore.open(tmp_path) as store:
        again = store.open_topic("persistent://public/default/orders").read(EARLIEST)
    assert [bytes(entry.body) for entry in again] == kept


class Name(int):
    """A number with more to it, as enums are."""


def test_an_epoch_is_kept_as_a_plain_number(simulated):
    """What the caller's class adds is not kept: the epoch is compared, stored and sent."""
    topic = filled(simulated.open())
    topic.begin_epoch(Name(3)).commit.wait()
    topic.truncate_tail(5, epoch=Name(4))
    assert {type(start.epoch) for start in topic.epochs} == {type(topic.epoch)} == {int}
    with pytest.raises(TypeError):
        topic.begin_epoch("6")


BAD_TIMES = [None, "1", 1.5, float("nan"), -(2**63), 2**63, 2**80]


@pytest.mark.parametrize("bad", BAD_TIMES, ids=repr)
def test_a_run_is_refused_while_the_clock_gives_no_time(tmp_path, bad):
    """No entry of a run is stored with a time that is none; the run is appended afterwards."""

    class Clock:
        time = 1_700_000_000_000

        def now_ms(self):
            return self.time

    clock = Clock()
    bodies = [unbatched_message(b"x", publish_time_ms=1)] * 5
    with LocalStore.open(tmp_path, clock=clock) as store:
        topic = store.open_topic(ORDERS)
        topic.stampers = StamperChain([BrokerTimeStamper(), IndexStamper()])
        topic.append(bodies[0]).commit.wait(10)
        clock.time = bad
        with pytest.raises(ClockError):
            topic.append_run(bodies, [1] * 5)
        clock.time = Clock.time
        appended, added = topic.append_run(bodies, [1] * 5)
        appended.commit.wait(10)
        assert (added, appended.index) == (5, 5)
        assert {entry.append_time_ms for entry in topic.read(EARLIEST)} == {Clock.time}


@pytest.mark.parametrize("bad", BAD_TIMES, ids=repr)
def test_a_clock_that_gives_no_time_once_refuses_one_append(tmp_path, bad):
    """Whichever call of the clock it is, one append at most fails, and the topic goes on."""

    class Clock:
        bad_in = 0

        def now_ms(self):
            self.bad_in -= 1
            return bad if self.bad_in == 0 else 1_700_000_000_000

    clock = Clock()
    with LocalStore.open(tmp_path, clock=clock, options=StoreOptions(ledger_entries=2)) as store:
        topic = store.open_topic(ORDERS)
        topic.stampers = StamperChain([BrokerTimeStamper(), IndexStamper()])
        count = 0
        for call in range(1, 12):
            topic.read(EARLIEST)  # so that the tail cache keeps what is appended
            clock.bad_in = call
            refused = 0
            for _ in range(6):
                try:
                    topic.append(b"x").commit.wait(10)
                    count += 1
                except ClockError as error:
                    refused += 1
                    assert error.value is bad
            assert refused <= 1
        clock.bad_in = 0
        entries = topic.read(EARLIEST, max_entries=1000)
        assert [entry.index for entry in entries] == list(range(count))
        assert count >= 6 * 11 - 11

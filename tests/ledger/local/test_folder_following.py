"""Following a topic in a folder while it is written: it is refreshed, not opened again."""

from __future__ import annotations

import os
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsemark.ledger import (
    EARLIEST,
    FolderLog,
    FolderReader,
    LocalStore,
    StoreOptions,
    TopicNotFoundError,
)
from pulsemark.ledger.local import folder_reader
from pulsemark.ledger.topic_log import read_on
from pulsemark.testing.clock import SettableClock
from pulsemark.testing.faulty_files import FaultyFiles

TOPIC = "persistent://public/default/orders"


def append(topic, count, size=50):
    """Append entries and wait until they are durable."""
    for _ in range(count):
        last = topic.append(b"x" + os.urandom(size - 1), message_count=2)
    last.commit.wait(10)


def all_of(log):
    """Everything a reader can see of a log."""
    lots = read_on(log, EARLIEST)
    entries = [(e.position, e.index, bytes(e.stored)) for lot in lots for e in lot]
    ends = (log.first_position, log.last_position, log.first_index, log.next_index)
    return entries, ends, log.index_before(log.last_position)


steps = st.lists(
    st.tuples(st.just("append"), st.integers(1, 40))
    | st.tuples(st.sampled_from(["roll", "reopen", "keep little"]), st.just(0))
    | st.tuples(st.just("trim"), st.integers(0, 99)),
    max_size=12,
)


@settings(max_examples=25)
@given(steps=steps)
def test_refreshed_log_equals_a_new_one(tmp_path_factory, steps):
    """After any appends, rolls, trims and restarts a refreshed log shows what a new one shows."""
    folder = tmp_path_factory.mktemp("store") / "data"
    options = StoreOptions(segment_size_bytes=2000)
    store = LocalStore.open(folder, clock=SettableClock(1000), options=options)
    append(store.open_topic(TOPIC), 1)
    with FolderReader(folder) as reader, pytest.MonkeyPatch.context() as patch:
        followed = reader.log(TOPIC)
        for step, number in steps:
            topic = store.open_topic(TOPIC)
            if step == "append":
                append(topic, number)
            elif step == "roll":
                topic.roll()
            elif step == "reopen":
                store.close()
                store = LocalStore.open(folder, clock=SettableClock(1000), options=options)
            elif step == "trim":
                middle = topic.count_entries(EARLIEST, topic.end_position) * number // 100
                topic.trim(topic.read(EARLIEST, max_entries=middle + 1)[-1].position)
            else:
                patch.setattr(folder_reader, "ROWS_IN_MEMORY_MAX", 1)
            followed.refresh()
            with FolderReader(folder) as other:
                assert all_of(followed) == all_of(other.log(TOPIC))
    store.close()


def test_following_costs_what_is_new(tmp_path):
    """A refresh reads the new entries, not the ones that were there."""
    store = LocalStore.open(tmp_path / "data", options=StoreOptions(segment_size_bytes=300_000))
    topic = store.open_topic(TOPIC)
    append(topic, 5000)
    files = FaultyFiles()
    with FolderReader(tmp_path / "data", files=files) as reader:
        log = reader.log(TOPIC)
        assert files.bytes_read > 20_000
        for _ in range(3):
            append(topic, 1)
            files.bytes_read = 0
            log.refresh()
            assert log.next_index == topic.next_index
            assert files.bytes_read < 1000
    store.close()


def test_following_costs_nothing_for_segments_that_have_ended(tmp_path):
    """A refresh reads nothing of ledgers that were read before and have ended."""
    store = LocalStore.open(tmp_path / "data")
    topic = store.open_topic(TOPIC)
    for _ in range(20):
        append(topic, 1)
        topic.roll()
    store.checkpoint()
    files = FaultyFiles()
    with FolderReader(tmp_path / "data", files=files) as reader:
        reader._filer._chunks.capacity = 2
        log = reader.log(TOPIC)
        log.refresh()
        files.bytes_read = 0
        log.refresh()
        assert len(log.segments()) == 20
        assert files.bytes_read < 100  # the first one's cut file, if it had one
    store.close()


def test_a_deleted_topic_is_noticed(tmp_path):
    """Following ends with an error; a new topic of the same name is another one."""
    store = LocalStore.open(tmp_path / "data")
    append(store.open_topic(TOPIC), 3)
    with FolderReader(tmp_path / "data") as reader:
        log = reader.log(TOPIC)
        store.delete_topic(TOPIC)
        with pytest.raises(TopicNotFoundError):
            log.refresh()
        append(store.open_topic(TOPIC), 1)
        log.refresh()
        assert (log.first_index, log.next_index) == (0, 2)
        assert len(log.read(EARLIEST)) == 1
    store.close()


class LateLog(FolderLog):
    """A log whose first renewal waits, as a thread that gets no processor."""

    def __init__(self, *given):
        super().__init__(*given)
        self.is_first = True
        self.has_looked, self.may_go_on = threading.Event(), threading.Event()

    def renew(self, *given):
        """As `FolderLog.renew`."""
        if self.is_first:
            self.is_first = False
            self.has_looked.set()
            assert self.may_go_on.wait(10)
        return super().renew(*given)


def test_a_slow_refresh_takes_nothing_back_that_another_one_has_shown(tmp_path):
    """Two threads refresh one log; the one that looked first renews it last."""
    with LocalStore.open(tmp_path / "data") as store:
        topic = store.open_topic(TOPIC)
        append(topic, 3)
        with FolderReader(tmp_path / "data") as reader:
            log = LateLog(reader, TOPIC, reader.log(TOPIC).segments())
            slow = threading.Thread(target=log.refresh)
            slow.start()
            assert log.has_looked.wait(10)
            topic.roll()
            append(topic, 3)
            log.refresh()
            assert log.next_index == 12
            log.may_go_on.set()
            slow.join()
            assert log.next_index == 12


def test_opening_topics_one_by_one_lists_the_folder_once(tmp_path):
    """A folder at rest is listed once for all topics, and again as soon as there is a new one."""
    folder = tmp_path / "data"
    names = [f"persistent://public/default/t{number}" for number in range(12)]
    with LocalStore.open(folder) as store:
        for name in names:
            append(store.open_topic(name), 1)
    os.utime(folder / "ledgers", (1, 1))  # as if nothing had changed for long
    files = FaultyFiles()
    with FolderReader(folder, files=files) as reader:
        for name in names:
            assert reader.log(name).next_index == 2
        assert files.calls["listdir"] == 1
        with LocalStore.open(folder) as store:
            append(store.open_topic(names[0]), 1)
            append(store.open_topic(TOPIC), 1)
        assert reader.log(names[0]).next_index == 4
        assert reader.log(TOPIC).next_index == 2

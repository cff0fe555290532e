"""Exceptions that signal handlers raise: the program goes on, and so does the store.

Python runs signal handlers in the main thread: when a function begins, when a loop goes round and
when a call returns. `Interruption` raises at exactly such steps, one after another.
"""

import dis
import errno
import signal
import sys
import threading
import time
from random import Random

import pytest

from pulsemark import ledger
from pulsemark.ledger import (
    EARLIEST,
    Commit,
    LocalStore,
    ManagedLedger,
    Position,
    StoreOptions,
)
from pulsemark.ledger.commit.group_commit import GroupCommit
from pulsemark.maintenance.findings import Severity
from pulsemark.maintenance.verify import verify_folder
from pulsemark.metadata import BrokerTimeStamper, IndexStamper, StamperChain
from pulsemark.testing.store_model import Sent, TopicModel

ORDERS = "persistent://public/default/orders"
OPTIONS = StoreOptions(segment_size_bytes=900, ledger_entries=23)
_STEPS = {"RESUME", "CALL", "CALL_FUNCTION_EX", "JUMP_BACKWARD", "CALL_KW"}
_PACKAGE = ledger.__file__.rpartition("/")[0]

pytestmark = pytest.mark.skipif(
    sys.version_info >= (3, 12), reason="tracing misses the steps of a function's first call"
)


class Interrupt(BaseException):
    """What the handler raises."""


class Interruption:
    """Raises in the main thread at the step numbered ``at``, counted from 0, within the ledger.

    Python looks for signals after a call into C, not when one Python function returns to another.
    Unless ``only_c`` is true, it raises there as well.
    """

    package = _PACKAGE

    def __init__(self, at, error=Interrupt, *, only_c=False):
        self.left = at
        self.error = error
        self.only_c = only_c
        self.raised = False
        self._before = {}

    def __enter__(self):
        self._trace_before = sys.gettrace()
        sys.settrace(self._called)
        return self

    def __exit__(self, kind, *_):
        sys.settrace(self._trace_before)
        return kind is Interrupt

    def _called(self, frame, _event, _argument):
        if not frame.f_code.co_filename.startswith(self.package):
            return None
        frame.f_trace_opcodes = True
        return self._traced

    def _traced(self, frame, event, _argument):
        if event == "opcode":
            operation = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            is_step = self._before.get(id(frame)) in _STEPS
            self._before[id(frame)] = operation
            if is_step and not self.raised:
                if self.left == 0:
                    self.raised = True
                    raise self.error
                self.left -= 1
        elif event == "return":
            self._before.pop(id(frame), None)
            if self.only_c:
                self._before.pop(id(frame.f_back), None)
        return self._traced


def opened(folder):
    """The store, and its topic with stamps on."""
    store = LocalStore.open(folder, options=OPTIONS)
    topic = store.open_topic(ORDERS)
    topic.stampers = StamperChain([BrokerTimeStamper(), IndexStamper()])
    return store, topic


class Program:
    """A program that appends to one topic and notes what was acknowledged."""

    other: ManagedLedger
    """A second topic, where a test has one."""
    turns: list[tuple[list[str], list[str]]]
    """Of each turn, where a test notes that: whose callbacks were registered, and were called."""
    commit: Commit | None
    """The commit that a test's action left."""

    def __init__(self, folder):
        self.folder = folder
        self.model = TopicModel(ORDERS)
        self.store, self.topic = opened(folder)

    def append(self, body=b"entry", count=1):
        """Append and wait; what raises in between may be stored or not."""
        appended = self.topic.append(body, message_count=count)
        sent = Sent(body, count, appended.position, appended.index, appended.time_ms)
        assert self.model.sent.setdefault(appended.position, sent) is sent, "a position twice"
        appended.commit.wait(20)
        sent.settle(None)

    def check(self, *, reopened=False):
        """All that was acknowledged is there; what is there has its place, index and bytes."""
        self._know_the_unanswered()
        assert self.model.problems(self.topic, reopened=reopened) == []

    def _know_the_unanswered(self):
        """An append that was interrupted may be stored, though its caller knows no position."""
        position = EARLIEST
        while entries := self.topic.read(position):
            for entry in entries:
                if entry.position not in self.model.sent and entry.body == b"interrupted":
                    self.model.sent[entry.position] = Sent(
                        b"interrupted", 1, entry.position, entry.index, entry.append_time_ms
                    )
            position = Position(entries[-1].position.ledger_id, entries[-1].position.entry_id + 1)

    def reopen(self):
        """Close, open again, and check."""
        self.store.close()
        self.store, self.topic = opened(self.folder)
        self.check(reopened=True)


def interrupted_append(program):
    """The append itself."""
    program.topic.append(b"interrupted")


def interrupted_wait(program):
    """Append and wait."""
    program.topic.append(b"interrupted").commit.wait(20)


def interrupted_callback(program):
    """Append and ask to be called."""
    program.topic.append(b"interrupted").commit.add_done_callback(lambda _error: None)


def interrupted_flush(program):
    """Append and flush."""
    program.topic.append(b"interrupted")
    program.store.committer.flush()


def interrupted_checkpoint(program):
    """A checkpoint."""
    program.store.checkpoint()


def interrupted_roll(program):
    """Begin a ledger."""
    program.topic.roll()
    program.topic.append(b"interrupted")


def interrupted_begin_epoch(program):
    """Begin an epoch."""
    program.topic.begin_epoch(program.topic.epoch + 1).commit.wait(20)


def interrupted_truncate_tail(program):
    """Cut off the last entry."""
    ledger = program.topic
    last = ledger.last_position
    entry = ledger.read(last)[0]
    program.model.sent = {p: s for p, s in program.model.sent.items() if p < last}
    ledger.truncate_tail(entry.first_index, epoch=ledger.epoch + 1)


def interrupted_open(program):
    """Make a topic and append to it."""
    program.store.open_topic(f"{ORDERS}-{Random().random()}").append(b"x")


ACTIONS = [
    interrupted_append,
    interrupted_wait,
    interrupted_callback,
    interrupted_flush,
    interrupted_checkpoint,
    interrupted_roll,
    interrupted_begin_epoch,
    interrupted_open,
]


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.__name__)
def test_an_exception_at_any_step_leaves_the_store_whole(memory_folder, action):
    """The program appends on, nothing acknowledged is lost or changed, also after a restart."""
    program = Program(memory_folder / "data")
    for step in range(2000):
        with Interruption(step) as interruption:
            action(program)
        program.append()
        program.check()
        if step % 10 == 9:
            program.reopen()
        if not interruption.raised:
            break
    assert step > 5
    assert not interruption.raised
    program.reopen()
    program.store.close()


def own_commit(program):
    """Append and wait without a time-out: the main thread commits itself."""
    program.commit = program.topic.append(b"interrupted").commit
    program.commit.wait()


def own_commit_of_topics(program):
    """One batch with two topics."""
    with program.store.committer.lock:  # so that no other thread commits the first
        program.other.append(b"other")
        program.commit = program.topic.append(b"interrupted").commit
    program.commit.wait()


def own_commit_with_callbacks(program):
    """With callbacks to be called after it, in this order."""
    registered: list[str] = []
    called: list[str] = []
    program.turns.append((registered, called))
    with program.store.committer.lock:
        program.commit = program.topic.append(b"interrupted").commit
        program.commit.add_done_callback(lambda _error: called.append("commit"))
        registered.append("commit")
        program.commit.batch.add_done_callback(lambda: called.append("batch"))
        registered.append("batch")
    program.commit.wait()


def check_turns(program):
    """Once the store is closed: what was registered was called once, in order, and at its turn.

    A registration that an exception ended may count or not.
    """
    for registered, called in program.turns:
        both = ["commit", "batch"]
        assert registered == both[: len(registered)]
        assert called in (registered, both[: len(registered) + 1])
    program.turns.clear()


@pytest.fixture
def own_commits(monkeypatch):
    """Whether it was the main thread, for each commit that was led by one who waits."""
    own_commits: list[bool] = []
    plainly = GroupCommit._commit_plainly

    def spied(committer):
        own_commits.append(threading.current_thread() is threading.main_thread())
        return plainly(committer)

    monkeypatch.setattr(GroupCommit, "_commit_plainly", spied)
    monkeypatch.setattr(sys.modules[__name__], "OPTIONS", StoreOptions())
    return own_commits


@pytest.mark.parametrize("action", [own_commit, own_commit_of_topics, own_commit_with_callbacks])
def test_another_thread_ends_a_commit_that_an_exception_left(memory_folder, own_commits, action):
    """At any step: nothing is lost or doubled, counts are right, callbacks are called once."""
    program = Program(memory_folder / "data")
    program.turns = []
    step = 0
    for turn in range(2000):
        if turn % 100 == 0:
            program.reopen()
            check_turns(program)
            program.other = program.store.open_topic(f"{ORDERS}-other")
            program.append()
            program.other.append(b"other").commit.wait(20)
        program.commit = None
        own_commits.clear()
        with Interruption(step) as interruption:
            action(program)
        while program.commit is not None and not program.commit.done:
            time.sleep(0.0005)  # no call wakes the committer's thread for it
        program.append()
        program.store.committer.flush()
        program.append()
        program.check()
        if interruption.raised:
            step += 1
        elif any(own_commits):  # else the committer's thread was faster: once more
            break
    assert not interruption.raised
    assert step > 100
    program.store.close()
    check_turns(program)
    assert [f for f in verify_folder(program.folder) if f.severity == Severity.DAMAGE] == []


def test_a_handler_may_raise_what_looks_like_an_error_of_the_disk(memory_folder, own_commits):
    """Whatever it raises ends the wait, at any step, and fails no commit."""
    program = Program(memory_folder / "data")
    program.append()
    step = 0
    for _turn in range(2000):
        commit = program.topic.append(b"interrupted").commit
        own_commits.clear()
        late = TimeoutError(errno.ETIMEDOUT, "the program's alarm")
        seen: list[OSError] = []
        interruption = Interruption(step, late)
        try:
            with interruption:
                commit.wait()
        except OSError as error:
            seen.append(error)
        assert seen == ([late] if interruption.raised else [])
        commit.wait(20)
        if interruption.raised:
            step += 1
        elif any(own_commits):  # else the committer's thread was faster: once more
            break
    assert not interruption.raised
    assert step > 50
    program.check()
    program.store.close()


def test_an_exception_at_any_step_of_closing_closes_all_the_same(memory_folder, threads_of_stores):
    """Another close() returns once the threads have ended; then the folder can be opened."""
    program = Program(memory_folder / "data")
    for step in range(2000):
        program.append()
        program.topic.append(b"interrupted")
        with Interruption(step) as interruption:
            program.store.close()
        program.store.close()
        assert threads_of_stores() == []
        program.reopen()
        if not interruption.raised:
            break
    assert step > 5
    program.store.close()
    assert threads_of_stores() == []


def test_an_exception_at_any_step_of_opening_leaves_no_store_open(memory_folder, threads_of_stores):
    """The caller has no store to close, so the folder is free again and no thread is left."""
    for step in range(2000):
        with Interruption(step, only_c=True) as interruption:
            store = LocalStore.open(memory_folder / "data", options=OPTIONS)
        if not interruption.raised:
            break
        assert threads_of_stores() == []
        LocalStore.open(memory_folder / "data").close()
    store.close()
    assert step > 5
    assert not interruption.raised


class InterruptionOfThreading(Interruption):
    """Raises within the standard library's threading module instead."""

    package = threading.__file__


def test_the_main_thread_never_does_work_that_must_not_be_interrupted(memory_folder):
    """After an exception at any step, also in `threading`, the store's own thread still works."""
    program = Program(memory_folder / "data")
    for step in range(200):
        with InterruptionOfThreading(step) as interruption:
            program.topic.roll()
        program.append()
        worker = program.store.uninterrupted.run(threading.current_thread)
        assert worker is not threading.main_thread(), f"step {step}"
        if not interruption.raised:
            break
    assert not interruption.raised
    program.store.close()


def test_a_cut_tail_is_cut_or_not_whatever_interrupts_it(memory_folder):
    """An exception at any step of truncate_tail: indexes have no gap, none is given twice."""
    program = Program(memory_folder / "data")
    for step in range(2000):
        for _ in range(3):
            program.append()
        with Interruption(step) as interruption:
            interrupted_truncate_tail(program)
        program.store.committer.flush()
        program.append()
        entries = program.topic.read(EARLIEST, max_entries=100_000)
        assert [e.index for e in entries] == list(range(len(entries)))
        if not interruption.raised:
            break
    assert step > 5
    program.store.close()
    program.store, program.topic = opened(program.folder)
    again = program.topic.read(EARLIEST, max_entries=100_000)
    assert [(e.position, e.index) for e in again] == [(e.position, e.index) for e in entries]
    program.store.close()


@pytest.mark.parametrize("seed", range(3))
def test_signals_at_any_time_leave_the_store_whole(memory_folder, seed):
    """Real signals, at random moments of appends and waits, whose handler raises."""
    random = Random(seed)

    def handler(_number, _frame):
        raise Interrupt

    program = Program(memory_folder / "data")
    before = signal.signal(signal.SIGALRM, handler)
    caught = 0
    try:
        for number in range(150):
            try:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 1.5e-3))
                while True:
                    interrupted_wait(program)
            except Interrupt:
                caught += 1
            program.append()
            if number % 30 == 0:
                program.check()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert caught == 150
    program.check()
    program.reopen()
    program.store.close()

"""Real threads of which one runs at a time, in virtual time; a seed decides which one is next.

    with Threads(Random(7)) as threads:
        threading.Thread(target=work).start()
        threads.settle()                    # run whatever can run, until all wait
        threads.pass_to(threads.now_s + 5)  # timers come at their times

Inside the block `threading`, `queue` and `time` are simulated, so code with threads, locks, queues
and event loops is run as it is. A thread gives its turn up only where it waits: for a lock, for the
time, in its event loop. The main thread, a test, decides who is next. It has its own event loops
(`ProcessLoop`); while it waits for a lock itself, only the threads go on.

A thread belongs to the process of the one that made it. `end` ends a process as kill -9 does.
"""

from __future__ import annotations

import _thread
import asyncio
import queue
import threading
import time
import warnings
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from random import Random
from typing import Any, Self, TypeVar
from unittest.mock import patch

from pulsemark.ledger import store_state
from pulsemark.ledger.bookkeeper import loop_thread
from pulsemark.ledger.commit import batch, group_commit

from .simulated_loop import SimulatedLoop
from .virtual_loop import StalledError, VirtualLoop, VirtualTime, drop

T = TypeVar("T")

_ROUNDS = 50
_real_sleep = time.sleep


class ProcessEnded(BaseException):
    """The process of this thread was killed."""


class Process:
    """What is killed at once: threads, their loops, and their connections."""

    def __init__(self) -> None:
        self.is_dead = self.is_paused = False
        self.loops: list[VirtualLoop] = []


class Threads:
    """The threads, and their time."""

    def __init__(self, random: Random) -> None:
        self.now_s = 1_000.0
        self.process = Process()
        """To which what the main thread does now belongs."""
        self.loops: list[ProcessLoop] = []
        """Those of the main thread."""
        self._random = random
        self._alive: list[SimulatedThread] = []
        self._main = threading.get_ident()
        self._turn = _held()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._patch()
        except BaseException:
            self._stack.close()  # other tests of this process need real threads
            raise
        return self

    def _patch(self) -> None:
        self._stack.enter_context(warnings.catch_warnings())
        # The end of a process leaves coroutines that were not begun.
        warnings.filterwarnings("ignore", ".* was never awaited", RuntimeWarning)
        thread = type("Thread", (SimulatedThread,), {"threads": self})
        lock, own_lock = partial(Lock, self), partial(RLock, self)
        for module, name, new in (
            (threading, "Thread", thread), (threading, "Lock", lock),
            (threading, "_allocate_lock", lock), (threading, "RLock", own_lock),
            (queue, "SimpleQueue", queue._PySimpleQueue),  # type: ignore[attr-defined]
            *((each, "SimpleQueue", queue._PySimpleQueue)  # type: ignore[attr-defined]
              for each in (store_state, batch, group_commit)),
            *((time, each, self.time) for each in ("monotonic", "perf_counter", "thread_time")),
            (time, "sleep", self.sleep), (loop_thread, "new_event_loop", self.new_loop),
        ):  # fmt: skip
            self._stack.enter_context(patch.object(module, name, new))

    def __exit__(self, *_: object) -> None:
        for process in dict.fromkeys(thread.process for thread in self._alive):
            self.end(process)
        self._stack.close()

    def time(self) -> float:
        """The virtual time, in seconds."""
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """As `time.sleep`."""
        self.wait(lambda: False, seconds)

    def new_loop(self) -> VirtualLoop:
        """An event loop for one of the threads."""
        loop = VirtualLoop(_ThreadTime(self))
        self.own_process().loops.append(loop)
        return loop

    # -- waiting: in any thread -------------------------------------------------------------------

    def own_process(self) -> Process:
        """That of the calling thread."""
        this = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]
        return this.process if isinstance(this, SimulatedThread) else self.process

    def wait(self, is_ready: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Return when it holds, or time is over; whether it holds."""
        until_s = None if timeout_s is None else self.now_s + timeout_s
        return self.wait_until(is_ready, lambda: until_s)

    def wait_until(self, is_ready: Callable[[], bool], due: Callable[[], float | None]) -> bool:
        """As `wait`; `due` gives the time, which may change meanwhile."""
        ident = threading.get_ident()
        this = threading._active.get(ident)  # type: ignore[attr-defined]
        if isinstance(this, SimulatedThread):
            this.is_ready, this.due = is_ready, due
            self._turn.release()
            this.turn.acquire()
            if this.process.is_dead:
                raise ProcessEnded
        elif ident == self._main:
            self._wait_in_main(is_ready, due)
        else:  # a thread of the test's runner
            while not is_ready():
                _real_sleep(0.001)
        return is_ready()

    def _wait_in_main(self, is_ready: Callable[[], bool], due: Callable[[], float | None]) -> None:
        while not is_ready():
            if self._run_one():
                continue
            until_s = due()
            if until_s is not None and until_s <= self.now_s:
                return
            times = self._timers() + ([] if until_s is None else [until_s])
            if not times:
                names = [thread.name for thread in self._alive]
                raise StalledError(f"the main thread waits, and so do {names}")
            self.now_s = max(self.now_s, min(times))

    # -- running: in the main thread --------------------------------------------------------------

    def start(self, thread: SimulatedThread) -> None:
        """Have a thread run from its next turn on."""
        self._alive.append(thread)

    def run(self, function: Callable[[], T]) -> T:
        """Call a function in a thread of its own, and return its result once it is there."""
        results: list[T] = []
        errors: list[Exception] = []

        def call() -> None:
            try:
                results.append(function())
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=call, name="test")
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        return results[0]

    @contextmanager
    def acting(self, process: Process) -> Iterator[None]:
        """What the main thread does in this block belongs to a process."""
        before, self.process = self.process, process
        try:
            yield
        finally:
            self.process = before

    def settle(self) -> None:
        """Run whatever can run, until everything waits."""
        is_busy = True
        while is_busy:
            is_busy = self._run_one()
            for loop in self.loops:
                is_busy = loop.run_ready() or is_busy

    def pass_to(self, now_s: float) -> None:
        """Move the time, with a stop at each timer's."""
        self.settle()
        while (due_s := self._next_due()) is not None and due_s <= now_s:
            self.now_s = max(self.now_s, due_s)
            self.settle()
        self.now_s = max(self.now_s, now_s)

    def end(self, process: Process) -> None:
        """Kill a process. What its threads still do meets no living peer."""
        process.is_dead = True
        for _ in range(_ROUNDS):
            for thread in [each for each in self._alive if each.process is process]:
                self._give_turn(thread)
        # One that goes on whatever is raised is never run again.
        self._alive = [thread for thread in self._alive if thread.process is not process]
        for loop in process.loops:
            loop.drop()

    def _timers(self) -> list[float]:
        """When the waiting threads go on at the latest."""
        waiting = [thread for thread in self._alive if not thread.process.is_paused]
        return [at for thread in waiting if (at := thread.due()) is not None]

    def _next_due(self) -> float | None:
        loops = [loop for loop in self.loops if not loop.process.is_paused]
        times = [at for loop in loops if (at := loop.due()) is not None]
        return min(times + self._timers(), default=None)

    def _run_one(self) -> bool:
        ready = [thread for thread in self._alive if thread.may_run()]
        if ready:
            self._give_turn(self._random.choice(ready))
        return bool(ready)

    def _give_turn(self, thread: SimulatedThread) -> None:
        if not thread.is_begun:
            thread.is_begun = True
            _thread.start_new_thread(thread.run_whole, (self._turn,))
        else:
            thread.turn.release()
        self._turn.acquire()
        if thread.is_over:
            self._alive.remove(thread)


class SimulatedThread:
    """Takes the place of `threading.Thread`."""

    threads: Threads

    def __init__(
        self, group: None = None, target: Any = None, name: str | None = None, args: Any = (),
        kwargs: Any = None, *, daemon: bool | None = None,
    ) -> None:  # fmt: skip
        self.name, self.daemon = name or "thread", True
        self.process = self.threads.own_process()
        self.ident: int | None = None
        self.is_begun = self.is_over = False
        self.turn = _held()
        self.is_ready: Callable[[], bool] = lambda: True
        self.due: Callable[[], float | None] = lambda: None
        self._call = partial(target, *args, **(kwargs or {}))

    def start(self) -> None:
        """As `threading.Thread.start`."""
        self.threads.start(self)

    def join(self, timeout: float | None = None) -> None:
        """As `threading.Thread.join`."""
        self.threads.wait(lambda: self.is_over or self.process.is_dead, timeout)

    def is_alive(self) -> bool:
        """As `threading.Thread.is_alive`."""
        return not self.is_over

    def may_run(self) -> bool:
        """Whether what it waits for is there, or its time is over."""
        if self.process.is_paused:
            return False
        if self.is_ready():
            return True
        due_s = self.due()
        return due_s is not None and due_s <= self.threads.now_s

    def run_whole(self, main_turn: Any) -> None:
        """In the new thread: everything."""
        self.ident = threading.get_ident()
        active: dict[int, Any] = threading._active  # type: ignore[attr-defined]
        active[self.ident] = self
        try:
            with suppress(ProcessEnded):
                self._call()
        finally:
            del active[self.ident]
            self.is_over = True
            main_turn.release()


class ProcessLoop(SimulatedLoop):
    """An event loop of a process, run by the main thread: its time is that of all threads."""

    def __init__(self, threads: Threads, reach: Callable[[str], Coroutine[Any, Any, None]]) -> None:
        self._threads = threads
        self._reach = reach
        self.process = Process()
        super().__init__()
        threads.loops.append(self)

    async def create_connection(self, factory: Any, host: Any = None, port: Any = None,  # type: ignore[override]
                                **others: Any) -> Any:  # fmt: skip
        """A connection to a host that answers nothing, if `reach` finds it."""
        await self._reach(host)
        transport, protocol = _Silent(), factory()
        protocol.connection_made(transport)
        return transport, protocol

    @property
    def now_s(self) -> float:
        """The virtual time; to set it lets everything happen that is due by then."""
        return self._threads.now_s

    @now_s.setter
    def now_s(self, now_s: float) -> None:
        self._threads.pass_to(now_s)

    def turn(self) -> None:
        """Run the callbacks that are ready now, as a part of its process."""
        with self._threads.acting(self.process):
            super().turn()

    def do(self, function: Callable[[], Any]) -> Any:
        """As `SimulatedLoop.do`; while the process is paused it is only put in line."""
        if self.process.is_paused:
            return self.call_soon(function)
        return super().do(function)

    def settle(self) -> None:
        """Run until neither this loop nor any thread can go on."""
        self._threads.settle()

    def drop(self) -> None:
        """End it as the end of its process does."""
        if self in self._threads.loops:
            self._threads.loops.remove(self)
            drop(self)

    def due(self) -> float | None:
        """When its next timer is due."""
        timers = vars(self)["_scheduled"]
        return timers[0].when() if timers else None

    def run_ready(self) -> bool:
        """Run what is ready; whether there was anything."""
        if self.process.is_paused:
            return False
        due_s = self.due()
        is_ready = bool(vars(self)["_ready"]) or (due_s is not None and due_s <= self.now_s)
        if is_ready:
            self.turn()
        return is_ready


class _Silent(asyncio.Transport):
    """A connection on which nothing comes."""

    def write(self, data: Any) -> None: ...

    def close(self) -> None: ...

    def is_closing(self) -> bool:
        return True  # nobody has to close it


class _ThreadTime(VirtualTime):
    """An event loop that has nothing to do waits as all threads do."""

    def __init__(self, threads: Threads) -> None:
        super().__init__()
        self._threads = threads

    def time(self) -> float:
        return self._threads.now_s

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None or timeout > 0:
            loop: Any = asyncio.get_running_loop()
            self._threads.wait_until(lambda: bool(loop._ready), loop.due)
        return []


class Lock:
    """Takes the place of `threading.Lock`."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._is_held = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As `threading.Lock.acquire`."""
        if self._is_held:
            limit_s = None if timeout < 0 else timeout
            if not blocking or not self._threads.wait(lambda: not self._is_held, limit_s):
                return False
        self._is_held = True
        return True

    def release(self) -> None:
        """As `threading.Lock.release`."""
        self._is_held = False

    def locked(self) -> bool:
        """As `threading.Lock.locked`."""
        return self._is_held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock:
    """Takes the place of `threading.RLock`, also for `threading.Condition`."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._owner, self._count = 0, 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As `threading.RLock.acquire`."""
        this = threading.get_ident()
        if self._owner not in (0, this):
            limit_s = None if timeout < 0 else timeout
            if not blocking or not self._threads.wait(lambda: not self._owner, limit_s):
                return False
        self._owner = this
        self._count += 1
        return True

    def release(self) -> None:
        """As `threading.RLock.release`."""
        self._count -= 1
        if not self._count:
            self._owner = 0

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _is_owned(self) -> bool:
        return self._owner == threading.get_ident()

    def _release_save(self) -> int:
        count, self._count, self._owner = self._count, 0, 0
        return count

    def _acquire_restore(self, count: int) -> None:
        self.acquire()
        self._count = count


def _held() -> Any:
    lock = _thread.allocate_lock()
    lock.acquire()
    return lock

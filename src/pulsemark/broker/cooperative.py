"""Work on the event loop that is too long for one turn (one iteration), or must not be cut off.

One ACK can name half a million messages, a subscription can have twenty thousand consumers. Code
that visits all of them is an iterator of pieces: each `next` does a small, bounded part of the
work. `FairTurns` bounds what the connections and subscriptions of a loop do in one turn together.
Two classes run pieces:

- `LongWork`: the work of one subscription, in the order in which it came, at most one piece in each
  turn of the loop (see `FairTurns`). If nothing is waiting, the first piece runs at once. After a
  piece that gives a future the next one comes when that is done.
- `Turns`: work that a coroutine waits for, for SLICE_S in each turn of the loop. All such work of a
  broker shares these slices, so that many requests get no more of the loop than one. Short work
  runs at once, as long as the slice of this turn has time.

Between two pieces other code runs, and may change the objects that the pieces visit. So pieces
visit a copy of the collection, and check of each object that it still exists, where that matters. A
result is true for each object at the time of its visit, not for all objects at one moment.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable, Iterator
from functools import partial
from typing import Any, Self, TypeVar
from weakref import WeakKeyDictionary

from ..ledger import LedgerError
from .errors import RefusedError

T = TypeVar("T")

log = logging.getLogger(__name__)

#: Message ids that are handled in one turn.
PIECE_IDS = 1_000
#: How long connections and subscriptions may work in one turn of the loop, all together.
TURN_S = 0.01
#: How long the pieces of one turn may take together. The last piece may end after that.
SLICE_S = 0.005
#: Long answers that are made at a time. The others wait after their first slice.
LONG_ANSWERS_AT_ONCE = 4


class Due:
    """A call that waits for its turn or for a future, and can be cancelled."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self._call: Callable[[], None] | None = call

    @classmethod
    def after(cls, done: asyncio.Future[Any], call: Callable[[], None]) -> Self:
        """A call that comes when a future is done, however it ends."""
        due = cls(call)
        done.add_done_callback(lambda _: due.run())
        return due

    def cancel(self) -> None:
        """Cancel the call."""
        self._call = None

    def run(self) -> bool:
        """Call, unless it was cancelled. Return whether it was called."""
        call, self._call = self._call, None
        if call is not None:
            call()
        return call is not None


class FairTurns:
    """The time that connections and subscriptions may use in one turn of the loop: TURN_S together.

    A caller with work asks `has_time`. When the turn's time is used up, the call waits with
    `later`, after all that wait already. At least one of them is called in each turn, so each gets
    its turn, however busy the others are. The thread's CPU time is measured: time of other
    processes does not count.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._call_soon = loop.call_soon
        self._of_clients: deque[Due] = deque()
        self._others: deque[Due] = deque()
        #: When this turn's time ends; None: it has not begun.
        self._until_s: float | None = None
        #: Whether a call from the queue runs now: it always has time.
        self._is_granted = False
        self._is_planned = False

    @staticmethod
    def of_running_loop() -> FairTurns:
        """The object of the running event loop."""
        loop = asyncio.get_running_loop()
        return _fair_turns.get(loop) or _fair_turns.setdefault(loop, FairTurns(loop))

    def has_time(self) -> bool:
        """Whether something may be done in this turn; if not, it has to wait (`later`)."""
        if self._until_s is None:
            self._until_s = time.thread_time() + TURN_S
            self._call_soon(self._ended)
            return True
        return self._is_granted or time.thread_time() < self._until_s

    @property
    def is_over(self) -> bool:
        """Whether this turn's time is used up. Unlike `has_time` this does not begin the time."""
        return self._until_s is not None and not self.has_time()

    def later(self, call: Callable[[], None], *, of_client: bool = False) -> Due:
        """Call in a later turn, after all waiting calls of its kind.

        ``of_client``: it handles a client's input. Such calls and the others take turns: an answer
        does not wait for the deliveries of all subscriptions.
        """
        due = Due(call)
        (self._of_clients if of_client else self._others).append(due)
        self._plan()
        return due

    def _plan(self) -> None:
        if (self._of_clients or self._others) and not self._is_planned:
            self._is_planned = True
            self._call_soon(self._run)

    def _ended(self) -> None:
        self._until_s = None

    def _run(self) -> None:
        self._is_planned = False
        self.has_time()  # the turn's time begins here, if it has not yet
        try:
            for due in self._in_turns():
                self._is_granted = True
                was_called = due.run()
                self._is_granted = False
                if was_called and not self.has_time():
                    break
        finally:
            self._is_granted = False
            self._plan()

    def _in_turns(self) -> Iterator[Due]:
        """Take the waiting calls, alternating between the two kinds."""
        kinds = [(waiting, len(waiting)) for waiting in (self._of_clients, self._others)]
        for number in range(max(count for _, count in kinds)):
            for waiting, count in kinds:
                if number < count:
                    yield waiting.popleft()


_fair_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, FairTurns] = WeakKeyDictionary()


class LongWork:
    """Pieces of work, done in order. Each `next` of an iterator is one piece."""

    __slots__ = ("_jobs", "_turn")

    def __init__(self) -> None:
        #: None while there is no work: an empty deque takes 600 bytes, for each subscription.
        self._jobs: deque[tuple[Iterator[object], Callable[[], None]]] | None = None
        self._turn: Due | None = None

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def add(self, pieces: Iterator[object], done: Callable[[], None] = lambda: None) -> None:
        """Run the first piece now if no other work waits. Call `done` after the last piece."""
        if self._jobs is None:
            self._jobs = deque()
        self._jobs.append((pieces, done))
        if len(self._jobs) == 1:
            if FairTurns.of_running_loop().has_time():
                self._step(self._jobs)
            else:
                self._plan(self._jobs)

    async def finished(self, pieces: Iterator[object]) -> None:
        """Add pieces and return after the last one. Cancelling the caller does not stop them."""
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.add(pieces, lambda: None if end.done() else end.set_result(None))
        await end

    def finish(self) -> None:
        """Run all remaining pieces now. Work that would have to wait is dropped."""
        while self._jobs:
            self._step(self._jobs, may_wait=False)

    def _step(
        self, jobs: deque[tuple[Iterator[object], Callable[[], None]]], *, may_wait: bool = True
    ) -> None:
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        if not jobs:
            return  # it was finished while a piece was waited for
        pieces, done = jobs[0]
        is_over, piece = True, None
        try:
            piece = next(pieces)
            is_over = isinstance(piece, asyncio.Future) and not may_wait
        except StopIteration:
            pass
        except Exception:
            log.exception("a step of long work failed; its remaining steps are skipped")
        if is_over:
            jobs.popleft()
            done()
        if not is_over and isinstance(piece, asyncio.Future):
            piece.add_done_callback(lambda _: self._step(jobs))
        elif jobs:
            self._plan(jobs)
        elif self._jobs is jobs:
            self._jobs = None

    def _plan(self, jobs: deque[tuple[Iterator[object], Callable[[], None]]]) -> None:
        self._turn = FairTurns.of_running_loop().later(partial(self._step, jobs))


class Turns:
    """Time slices, at most one in each turn of the loop, that many callers share."""

    def __init__(self) -> None:
        self._long_answers = asyncio.Semaphore(LONG_ANSWERS_AT_ONCE)
        #: Held by the caller that gets the next slice.
        self._place = asyncio.Lock()
        #: When this turn's slice ends; None: it has not begun.
        self._until_s: float | None = None

    def has_time(self) -> bool:
        """Whether the slice of this turn has time left for another piece."""
        if self._until_s is not None:
            return time.monotonic() < self._until_s
        if self._place.locked():
            return False  # the slice is for those that wait
        self._begin()
        return True

    async def next(self) -> None:
        """Wait for a slice of the caller's own, after all waiting callers."""
        async with self._place:
            while self._until_s is not None:  # noqa: ASYNC110 - it is for one turn
                await asyncio.sleep(0)
            self._begin()

    async def each(self, items: Iterable[T]) -> AsyncIterator[T]:
        """Yield the items, maybe very many, giving way to other work on the loop."""
        for item in items:
            if not self.has_time():
                await self.next()
            yield item

    def _begin(self) -> None:
        self._until_s = time.monotonic() + SLICE_S
        asyncio.get_running_loop().call_soon(self._end)

    def _end(self) -> None:
        self._until_s = None

    def run_now(self, pieces: Iterator[object]) -> bool:
        """Run pieces in what this turn's slice has left. Return whether all are done.

        The rest can be given to `work`. A piece that gives a future is the last one: work that
        waits runs in later turns.
        """
        while self.has_time():
            try:
                piece = next(pieces)
            except StopIteration:
                return True
            if isinstance(piece, asyncio.Future):
                return False
        return False

    async def work(self, pieces: Iterable[object]) -> None:
        """Return when all pieces are done. An error in a piece ends the work and is raised here.

        A piece that gives a future is the last one of its slice, and the next piece comes after
        that future is done, however it ends. If the caller is cancelled, the remaining pieces are
        not run.
        """
        remaining = iter(pieces)
        while not await self._one_slice(remaining):
            pass

    async def _one_slice(self, remaining: Iterator[object]) -> bool:
        """Run one slice. Return whether all pieces are done; wait for a piece's future."""
        await self.next()
        for piece in remaining:
            if isinstance(piece, asyncio.Future):
                await asyncio.wait([piece])
                return False
            if not self.has_time():
                return False
        return True

    async def answer(self, pieces: Iterable[object]) -> None:
        """As `work`, for an answer, which can take many times its size while it is made.

        So only a few are made at a time. One that is done in its first slice waits for no other.
        """
        remaining = iter(pieces)
        if await self._one_slice(remaining):
            return
        async with self._long_answers:
            while not await self._one_slice(remaining):
                pass

    async def result(self, pieces: Generator[object, None, T]) -> T:
        """Run all pieces, and return the generator's return value."""
        found: list[T] = []

        def keeping() -> Iterator[object]:
            found.append((yield from pieces))

        await self.work(keeping())
        return found[0]


def at_once(pieces: Iterable[object]) -> None:
    """Run all pieces now, without other work in between."""
    deque(pieces, maxlen=0)


class Background:
    """Tasks that run to their end even if the client that asked disconnects."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start `work`; the caller does not wait for its result."""
        task = self._begin(work)
        task.add_done_callback(_report)
        return task

    async def run_to_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for `work`. It goes on even if the waiting caller is cancelled."""
        task = self._begin(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_report)
            raise

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def cancel(self) -> None:
        """Cancel all running tasks."""
        for task in tuple(self._tasks):
            task.cancel()

    async def settle_running(self) -> None:
        """Return when all tasks that run now have ended; tasks started later are not awaited."""
        if self._tasks:
            await asyncio.wait(tuple(self._tasks))

    async def settled(self) -> None:
        """Return when no task runs any more."""
        while self._tasks:
            await self.settle_running()


def _report(task: asyncio.Task[Any]) -> None:
    """Log why a task failed, but not refusals and storage errors: these are answers to a client."""
    if task.cancelled():
        return
    error = task.exception()
    if error is not None and not isinstance(error, (RefusedError, LedgerError, OSError)):
        log.error("background task %s failed", task.get_name(), exc_info=error)

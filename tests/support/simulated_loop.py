"""An event loop with a simulated clock and no I/O, for tests that control the order of events.

    loop = SimulatedLoop()
    loop.settle()          # run all ready callbacks, and those they make ready, until none is left
    loop.turn()            # run one iteration
    loop.advance(5)        # move the clock by 5 s: timers fire at their times

Nothing waits for real time. Blocking work does not run in threads: `BlockingWork` keeps each piece
until the test releases it, so that a test can try any order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

__all__ = ["BlockingWork", "RestlessLoopError", "SimulatedLoop"]

T = TypeVar("T")

TURNS_MAX = 10_000
STEPS_PER_ADVANCE = 20


class RestlessLoopError(Exception):
    """The loop did not become idle: some callback always schedules another one."""


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop that runs, and whose time moves, only when a test calls its methods."""

    now_s = 1_000.0

    def time(self) -> float:
        """The simulated time, in seconds."""
        return self.now_s

    def turn(self) -> None:
        """Run the callbacks that are ready now. Those they schedule run in the next turn."""
        self.call_soon(self.stop)
        self.run_forever()

    def settle(self) -> None:
        """Run until no callback is ready. Raises `RestlessLoopError`."""
        for _ in range(TURNS_MAX):
            self.turn()
            if not vars(self)["_ready"]:
                return
        raise RestlessLoopError(f"still busy after {TURNS_MAX} turns")

    def advance(self, seconds: float) -> None:
        """Move the time forward in steps, and settle after each step."""
        for _ in range(STEPS_PER_ADVANCE):
            self.now_s += seconds / STEPS_PER_ADVANCE
            self.settle()

    def do(self, function: Callable[[], T]) -> T:
        """Call a function on the running loop, in its own turn, and return its result."""
        results: list[T] = []
        errors: list[BaseException] = []

        def call() -> None:
            try:
                results.append(function())
            except Exception as error:
                errors.append(error)

        self.call_soon(call)
        self.turn()
        if errors:
            raise errors[0]
        return results[0]


class BlockingWork:
    """Replaces the executor: the test decides when and in which order blocking work is done.

    A piece runs when it is released, even if the coroutine that waits for it was cancelled: a
    thread that has begun would go on, too.
    """

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self._pieces: list[tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]]] = []

    def __len__(self) -> int:
        """The number of pieces that were not released yet."""
        return len(self._pieces)

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Add a piece and wait until it is done; a broker calls this as `run_blocking`."""
        done: asyncio.Future[Any] = self._loop.create_future()
        self._pieces.append((done, function, arguments))
        return await done

    def release(self, number: int = 0) -> None:
        """Run one of the pieces, on the loop, because it may call callbacks; 0 is the oldest."""
        done, function, arguments = self._pieces.pop(number)
        try:
            result = self._loop.do(partial(function, *arguments))
        except Exception as error:
            if not done.done():
                done.set_exception(error)
        else:
            if not done.done():
                done.set_result(result)

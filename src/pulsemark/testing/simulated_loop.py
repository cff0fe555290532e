"""An event loop with a clock of its own and no I/O, for tests that decide what happens when.

    loop = SimulatedLoop()
    loop.settle()          # run what is ready, and what that makes ready, until nothing is
    loop.turn()            # one round of it
    loop.advance(5)        # let 5 s go by: timers fire at their times

Nothing waits for real time. Work that blocks is not run in threads: `BlockingWork` keeps it until
the test says that a piece of it is done, so that any order can be tried.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["BlockingWork", "RestlessLoopError", "SimulatedLoop"]

T = TypeVar("T")

TURNS_MAX = 10_000
STEPS_PER_ADVANCE = 20


class RestlessLoopError(Exception):
    """Something on the loop goes on and on without waiting for anything."""


class SimulatedLoop(asyncio.SelectorEventLoop):
    """Runs only when told, and its time goes by only when told."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        super().__init__()

    def time(self) -> float:
        """The simulated time, in seconds."""
        return self.now_s

    def turn(self) -> None:
        """Run what is ready now; what it makes ready is for the next turn."""
        self.call_soon(self.stop)
        self.run_forever()

    def settle(self) -> None:
        """Run until nothing is ready. Raises `RestlessLoopError`."""
        for _ in range(TURNS_MAX):
            self.turn()
            if not vars(self)["_ready"]:
                return
        raise RestlessLoopError(f"still busy after {TURNS_MAX} turns")

    def advance(self, seconds: float) -> None:
        """Let time go by, in steps, settling after each."""
        for _ in range(STEPS_PER_ADVANCE):
            self.now_s += seconds / STEPS_PER_ADVANCE
            self.settle()

    def do(self, function: Callable[[], T]) -> T:
        """The result of a call made on the running loop, in a turn of its own."""
        results: list[T] = []
        errors: list[BaseException] = []

        def call() -> None:
            try:
                results.append(function())
            except Exception as error:  # noqa: BLE001 - raised again where the call was asked for
                errors.append(error)

        self.call_soon(call)
        self.turn()
        if errors:
            raise errors[0]
        return results[0]


class BlockingWork:
    """Stands for the executor: pieces of blocking work, done when and in the order the test says.

    A piece is run when it is released, also if whoever waited for it was cancelled, as a thread
    that has begun goes on.
    """

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self._pieces: list[tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]]] = []

    def __len__(self) -> int:
        """Pieces that were handed in and not released."""
        return len(self._pieces)

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a broker calls as `run_blocking`."""
        done: asyncio.Future[Any] = self._loop.create_future()
        self._pieces.append((done, function, arguments))
        return await done

    def release(self, number: int = 0) -> None:
        """Do one of the pieces, counted from the oldest."""
        done, function, arguments = self._pieces.pop(number)
        try:
            result = function(*arguments)
        except Exception as error:  # noqa: BLE001 - it belongs to whoever waits
            if not done.done():
                done.set_exception(error)
        else:
            if not done.done():
                done.set_result(result)

"""Asking again, on an event loop, when what a store was asked for has been read.

The loop's thread never waits for a store whose entries come over a network: a question that needs
what is not in memory raises WouldBlockError, and is asked again later. So a question that is asked
with these functions must change nothing before it has its answer. Stores on files and in memory
answer at the first time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import ParamSpec, TypeVar

from .errors import WouldBlockError

P = ParamSpec("P")
T = TypeVar("T")


def arrival(error: WouldBlockError) -> asyncio.Future[None]:
    """A future that is done when it is time to ask again, also if reading failed."""
    loop = asyncio.get_running_loop()
    arrived: asyncio.Future[None] = loop.create_future()

    def arrive() -> None:
        if not arrived.done():
            arrived.set_result(None)

    def tell(_: object) -> None:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(arrive)

    error.done.add_done_callback(tell)
    return arrived


def in_pieces(
    question: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> Generator[object, None, T]:
    """The answer in pieces, as `Turns` of the broker: each one is a future to wait for."""
    while True:
        try:
            return question(*args, **kwargs)
        except WouldBlockError as error:
            wait = arrival(error)
        yield wait


async def when_read(question: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return `question()`; if it would block, ask again once the data has arrived."""
    while True:
        try:
            return question(*args, **kwargs)
        except WouldBlockError as error:
            wait = arrival(error)
        await wait

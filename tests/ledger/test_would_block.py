"""Asking again when what a store was asked for has been read."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future

import pytest

from pulsemark.ledger.errors import BeingReadError
from pulsemark.ledger.would_block import in_pieces, when_read


class Store:
    """Answers a question after some reads; the test ends them."""

    def __init__(self, *reads: Future[None]) -> None:
        self._reads = list(reads)
        self.asked = 0

    def answer(self) -> int:
        """How often it was asked. Raises BeingReadError, and what a read ended with."""
        self.asked += 1
        if self._reads:
            if not self._reads[0].done():
                raise BeingReadError(self._reads[0])
            self._reads.pop(0).result()
            return self.answer()
        return self.asked


def test_a_question_is_asked_again():
    """Once for each read that it needs, and not before that read has ended."""

    async def ask() -> int:
        first, second = Future[None](), Future[None]()
        store = Store(first, second)
        asking = asyncio.ensure_future(when_read(store.answer))
        await asyncio.sleep(0)
        assert store.asked == 1
        await asyncio.to_thread(first.set_result, None)
        while store.asked < 3:  # noqa: ASYNC110 - each turn may be the one
            await asyncio.sleep(0)
        second.set_result(None)
        return await asking

    assert asyncio.run(ask()) == 5


def test_an_error_is_raised():
    """The error that reading ends with is that of the question."""

    async def ask() -> int:
        read = Future[None]()
        asking = asyncio.ensure_future(when_read(Store(read).answer))
        await asyncio.sleep(0)
        read.set_exception(OSError("no bookie answers"))
        return await asking

    with pytest.raises(OSError, match="no bookie answers"):
        asyncio.run(ask())


def test_who_stops_waiting_ends_no_read():
    """Others may wait for the same read."""

    async def ask() -> None:
        read = Future[None]()
        asking = asyncio.ensure_future(when_read(Store(read).answer))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])
        assert asking.cancelled()
        assert not read.cancelled()
        read.set_result(None)
        await asyncio.sleep(0)

    asyncio.run(ask())


def test_pieces_give_what_to_wait_for():
    """A question in pieces gives a future for each read, and at last the answer."""

    async def ask() -> int:
        read = Future[None]()
        pieces = in_pieces(Store(read).answer)
        wait = next(pieces)
        assert isinstance(wait, asyncio.Future)
        assert not wait.done()
        read.set_result(None)
        await wait
        with pytest.raises(StopIteration) as end:
            next(pieces)
        return int(end.value.value)

    assert asyncio.run(ask()) == 3

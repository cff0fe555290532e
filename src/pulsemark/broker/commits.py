"""Lets a coroutine wait until a commit, or one entry of it, is durable."""

from __future__ import annotations

import asyncio

from ..ledger import Appended, Commit, LedgerError
from ..proto.pulsar_api_pb2 import ServerError
from .errors import RefusedError

__all__ = ["durable", "stored"]


async def durable(commit: Commit) -> None:
    """Return when a commit is durable; `RefusedError` (PersistenceError) if it failed."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle(error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    commit.add_done_callback(settle)
    try:
        await done
    except LedgerError as error:
        raise RefusedError(ServerError.PersistenceError, str(error)) from error


async def stored(appended: Appended) -> None:
    """As `durable`, of one entry: it may be stored although its commit failed."""
    try:
        await durable(appended.commit)
    except RefusedError:
        if appended.error is not None:
            raise

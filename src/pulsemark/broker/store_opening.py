"""Opens the store that a broker's configuration names: a data folder, memory, or BookKeeper."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import TYPE_CHECKING

from ..ledger import LocalStore, MemoryStore, TopicStore
from ..ledger.commit.group_commit import Notify
from .configuration.config import BrokerConfig
from .storage import Storage

if TYPE_CHECKING:
    from ..ledger.local.io.files import Files

__all__ = ["executor_threads", "needs_folder", "open_store", "opened"]

EXECUTOR_THREADS = 4
#: Where some threads wait for bookies that do not answer, enough must be left for other topics.
BOOKKEEPER_THREADS = 64


def executor_threads(config: BrokerConfig) -> int:
    """How many threads the broker's blocking work may have at most."""
    on_bookies = config.bookkeeper.store_address is not None
    return BOOKKEEPER_THREADS if on_bookies else EXECUTOR_THREADS


def needs_folder(config: BrokerConfig) -> bool:
    """Whether the broker's data is in files, and the configuration names no folder."""
    is_in_files = config.storage == "files" and config.bookkeeper.store_address is None
    return is_in_files and config.data_dir is None


def open_store(
    config: BrokerConfig, temporary: Path | None, notify: Notify, files: Files | None
) -> TopicStore:
    """Open the broker's store. Blocks.

    Args:
        config: names the engine, its clock and options, and the data folder.
        temporary: the data folder of a broker on files whose configuration names none.
        notify: as in `LocalStore.open`.
        files: how files are reached; None: by the operating system.

    Raises what `LocalStore.open`, `MemoryStore.open` and `BookKeeperStore.open` raise.
    """
    if config.storage == "memory":
        return MemoryStore.open(
            config.memory, clock=config.clock, options=config.store_options, notify=notify
        )
    if config.bookkeeper.store_address is not None:
        return _open_in_bookkeeper(config, config.bookkeeper.store_address, notify)
    folder = temporary if config.data_dir is None else config.data_dir
    assert folder is not None, "a broker on files has a folder"
    return LocalStore.open(
        folder, clock=config.clock, options=config.store_options, notify=notify, files=files
    )


def _open_in_bookkeeper(config: BrokerConfig, address: str, notify: Notify) -> TopicStore:
    from ..ledger.bookkeeper.ledgers import LedgerOptions
    from ..ledger.bookkeeper.store import BookKeeperStore

    where = config.bookkeeper
    return BookKeeperStore.open(
        address,
        root=where.store_root,
        ledger_options=LedgerOptions(
            where.ensemble_size, where.write_quorum_size, where.ack_quorum_size
        ),
        clock=config.clock,
        options=config.store_options,
        notify=notify,
        session_timeout_ms=where.zookeeper_session_timeout_ms,
        tls=where.bookie_tls(),
    )


async def opened(opening: Awaitable[Storage]) -> Storage:
    """The store that a thread opens. If the caller is cancelled, it is closed again.

    The thread cannot be cancelled: what it opens would keep the folder locked.
    """
    work = asyncio.ensure_future(opening)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait((work,))
        if not work.cancelled() and work.exception() is None:
            await asyncio.to_thread(work.result().close)
        raise

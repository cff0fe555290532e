"""A broker's store: what the broker needs of it, how it is opened, and whether its disk is full.

`Storage` is a store of the broker's own, or its part of a cluster's stores. `open_store` opens the
one that the configuration names: a data folder, memory, or BookKeeper.

`StorageHealth` lets producers wait while the disk is full. A SEND that cannot be stored is answered
with a SEND_ERROR, upon which clients reconnect. The official C++ and Python clients restart their
send timeout whenever a producer is opened: if the broker accepted producers while the disk is full,
their sends would never time out. So after the first failed append the broker answers PRODUCER only
when a probe could be written. Once the disk has space, producers go on within half a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from ..ledger import Appended, Commit, LedgerError, ManagedLedger, TopicStore
from ..ledger.commit.group_commit import Notify
from ..ledger.store import MetadataStore
from ..proto.pulsar_api_pb2 import ServerError
from .configuration.config import BrokerConfig
from .errors import RefusedError

if TYPE_CHECKING:
    from ..ledger.local.io.files import Files

T = TypeVar("T")


class Storage(Protocol):
    """The interface of a broker's store. `TopicStore` is one; its methods say what they raise."""

    @property
    def catalog(self) -> MetadataStore:
        """Settings and names; its calls block."""

    @property
    def owner_id(self) -> str:
        """A random id of this opening of the store."""

    @property
    def name(self) -> str:
        """The store's name in messages."""

    @property
    def is_whole(self) -> bool:
        """Whether all topics are in this store, not only those of some bundles."""

    def distinct(self) -> list[TopicStore]:
        """The different open stores of which it consists."""

    def topic_names(self) -> list[str]:
        """Full names of all topics, sorted."""

    def add_topics(self, names: Sequence[str]) -> None:
        """Create those of these topics that do not exist. Blocks."""

    def open_topic(self, name: str) -> ManagedLedger:
        """A topic's ledger; it is created if it does not exist. Blocks."""

    def open_internal(self, name: str) -> ManagedLedger:
        """Open a log that the broker itself uses. Blocks."""

    def delete_topic(self, name: str) -> None:
        """Remove a topic with all that it has. Blocks."""

    def metadata_of(self, name: str) -> MetadataStore:
        """The metadata store of a topic, which has the same owner as its entries."""

    def freeing(self, work: Callable[[], T]) -> T:
        """Do work that frees space, or must succeed on a full disk. Blocks."""

    def probe(self) -> None:
        """Check whether writes are possible. Blocks. Raises OSError."""

    def wake_committer(self) -> None:
        """Have the entries committed that were appended without waking the committer."""

    def reads_are_due(self) -> bool:
        """Whether readers of old entries have to wait for writers now."""

    def never_wait_here(self) -> None:
        """As `TopicStore.never_wait_here`, for all stores, also those that are opened later."""

    def close(self) -> None:
        """Close it. Blocks."""


EXECUTOR_THREADS = 4
#: Some threads may wait for silent bookies; enough must be left for other topics.
BOOKKEEPER_THREADS = 64


def executor_threads(config: BrokerConfig) -> int:
    """The highest number of threads for the broker's blocking work."""
    on_bookies = config.bookkeeper.store_address is not None
    return BOOKKEEPER_THREADS if on_bookies else EXECUTOR_THREADS


def is_in_files(config: BrokerConfig) -> bool:
    """Whether the broker's data is in a folder."""
    return config.storage == "files" and config.bookkeeper.store_address is None


def open_store(
    config: BrokerConfig, temporary: Path | None, notify: Notify, files: Files | None
) -> TopicStore:
    """Open the broker's store. Blocks.

    Args:
        config: names the engine, its clock and options, and the data folder.
        temporary: the data folder of a broker on files whose configuration names none.
        notify: as in `LocalStore.open`.
        files: how files are reached; None: by the operating system.

    Raises FollowerFolderError, and what `LocalStore.open`, `MemoryStore.open` and
    `BookKeeperStore.open` raise.
    """
    if config.storage == "memory":
        from ..ledger import MemoryStore

        return MemoryStore.open(
            config.memory, clock=config.clock, options=config.store_options, notify=notify
        )
    if config.bookkeeper.store_address is not None:
        return _open_in_bookkeeper(config, config.bookkeeper.store_address, notify)
    from ..ledger import LocalStore

    folder = temporary if config.data_dir is None else config.data_dir
    assert folder is not None, "a broker on files has a folder"
    store = LocalStore.open(
        folder, clock=config.clock, options=config.store_options, notify=notify, files=files
    )
    store.check_is_leader()
    return store


def _open_in_bookkeeper(config: BrokerConfig, address: str, notify: Notify) -> TopicStore:
    from ..ledger.bookkeeper.ledgers import LedgerOptions
    from ..ledger.bookkeeper.store import BookKeeperStore

    where = config.bookkeeper
    sizes = where.ensemble_size, where.write_quorum_size, where.ack_quorum_size
    return BookKeeperStore.open(
        address,
        root=where.store_root,
        ledger_options=LedgerOptions(*sizes),
        clock=config.clock,
        options=config.store_options,
        notify=notify,
        session_timeout_ms=where.zookeeper_session_timeout_ms,
        tls=where.bookie_tls(),
    )


async def opened(opening: Awaitable[Storage]) -> Storage:
    """Open a store in a thread. If the caller is cancelled, the store is closed again.

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


PROBE_INTERVAL_S = 0.5
#: Shorter than a client's operation timeout (30 s), so that the client gets the reason.
WAIT_MAX_S = 20.0


class StorageHealth:
    """The result of the last append or probe.

    `probe` raises OSError while the disk accepts no writes.
    """

    def __init__(self, probe: Callable[[], Awaitable[None]]) -> None:
        self._probe = probe
        self._probing: asyncio.Task[None] | None = None
        self._reason = ""

    @property
    def is_healthy(self) -> bool:
        """Whether the last append or probe succeeded."""
        return self._probing is None

    def failed(self, error: BaseException) -> None:
        """An append failed: probe the disk until a probe succeeds."""
        self._reason = str(error)
        if self._probing is None:
            self._probing = asyncio.ensure_future(self._probe_until_healthy())

    async def wait_until_healthy(self) -> None:
        """Return once entries can be stored; raise `RefusedError` if that takes too long."""
        if self._probing is not None:
            done, _ = await asyncio.wait({self._probing}, timeout=WAIT_MAX_S)
            if not done:
                raise RefusedError(ServerError.PersistenceError, self._reason)

    def close(self) -> None:
        """Stop probing."""
        if self._probing is not None:
            self._probing.cancel()

    async def _probe_until_healthy(self) -> None:
        try:
            while True:
                try:
                    await self._probe()
                except (OSError, LedgerError) as error:  # LedgerError: the store has stopped
                    self._reason = str(error)
                    await asyncio.sleep(PROBE_INTERVAL_S)
                else:
                    return
        finally:
            self._probing = None


@contextmanager
def persisting() -> Iterator[None]:
    """Turn the store's errors of reading and writing into PersistenceError."""
    try:
        yield
    except (LedgerError, OSError) as error:
        raise RefusedError(ServerError.PersistenceError, str(error)) from error


async def durable(commit: Commit) -> None:
    """Return when a commit is durable; `RefusedError` (PersistenceError) if it failed."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle(error: BaseException | None) -> None:
        if error is not None and not done.done():
            done.set_exception(error)
        elif not done.done():
            done.set_result(None)

    commit.add_done_callback(settle)
    try:
        await done
    except LedgerError as error:
        raise RefusedError(ServerError.PersistenceError, str(error)) from error


async def stored(appended: Appended) -> None:
    """As `durable`, for one entry; it may be stored although its commit failed."""
    try:
        await durable(appended.commit)
    except RefusedError:
        if appended.error is not None:
            raise

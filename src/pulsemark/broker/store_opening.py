"""Opens the store that a broker's configuration names: a data folder, memory, or BookKeeper."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..ledger import LocalStore, MemoryStore, TopicStore
from ..ledger.commit.delivery import Notify
from .configuration.config import BrokerConfig

if TYPE_CHECKING:
    from ..ledger.local.io.files import Files

__all__ = ["needs_folder", "open_store"]


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
    folder = config.data_dir or temporary
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

"""Opens the store that a broker's configuration names: a data folder, or memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..ledger import LocalStore, MemoryStore, TopicStore
from ..ledger.commit.delivery import Notify
from .configuration.config import BrokerConfig

if TYPE_CHECKING:
    from ..ledger.local.io.files import Files

__all__ = ["open_store"]


def open_store(
    config: BrokerConfig, temporary: Path | None, notify: Notify, files: Files | None
) -> TopicStore:
    """Open the broker's store. Blocks.

    Args:
        config: names the engine, its clock and options, and the data folder.
        temporary: the data folder of a broker on files whose configuration names none.
        notify: as in `LocalStore.open`.
        files: how files are reached; None: by the operating system.

    Raises what `LocalStore.open` and `MemoryStore.open` raise.
    """
    if config.storage == "memory":
        return MemoryStore.open(
            config.memory, clock=config.clock, options=config.store_options, notify=notify
        )
    folder = config.data_dir or temporary
    assert folder is not None, "a broker on files has a folder"
    return LocalStore.open(
        folder, clock=config.clock, options=config.store_options, notify=notify, files=files
    )

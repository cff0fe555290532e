"""Where a broker keeps its entries: what of the configuration says so must go together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...ledger import MemoryFolder
from ..errors import ConfigError

if TYPE_CHECKING:
    from .config import BrokerConfig

__all__ = ["STORAGES", "check_storage", "path_of"]

STORAGES = ("files", "memory")


def check_storage(config: BrokerConfig) -> None:
    """Raise ConfigError if no storage has this name, or if two places are given."""
    storage, memory = config.storage, config.memory
    data_dir: Any = config.data_dir
    if data_dir is not None:
        data_dir = path_of("data_dir", data_dir)
        object.__setattr__(config, "data_dir", data_dir)
    if storage not in STORAGES:
        raise ConfigError("storage", storage, f"must be one of {', '.join(STORAGES)}")
    if data_dir is not None and storage == "memory":
        raise ConfigError("data_dir", data_dir, "a broker in memory has no data folder")
    if memory is not None and not isinstance(memory, MemoryFolder):
        raise ConfigError("memory", memory, "must be a MemoryFolder or None")
    if memory is not None and storage != "memory":
        raise ConfigError("memory", memory, "needs storage='memory'")
    config.bookkeeper.check(storage, data_dir)


def path_of(name: str, value: Any) -> Path:
    """A setting's path. Raises ConfigError if it is none."""
    try:
        return Path(value)
    except TypeError as error:
        raise ConfigError(name, value, "must be a path or None") from error

"""The configuration of the commands that start a broker: from a file, the environment, options."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import CliError
from .options import DEFAULT_DATA_DIR

if TYPE_CHECKING:
    from ..broker import BrokerConfig
    from ..broker.configuration.sources import Loaded

__all__ = ["load_settings", "with_default_folder"]


def load_settings(path: Path | None) -> Loaded:
    """The settings of a file (default: the variable PULSEMARK_CONFIG) and of the environment.

    Raises CliError, OSError.
    """
    from ..broker.configuration.settings import SettingError
    from ..broker.configuration.sources import CONFIG_VARIABLE, ConfigFileError, load

    if path is None and os.environ.get(CONFIG_VARIABLE):
        path = Path(os.environ[CONFIG_VARIABLE])
    try:
        return load(path, os.environ)
    except (ConfigFileError, SettingError) as error:
        raise CliError(str(error)) from error


def with_default_folder(loaded: Loaded, overrides: dict[str, Any]) -> BrokerConfig:
    """The configuration, whose data folder is ./pulsemark-data if nothing else is said.

    Raises BrokerError; CliError for a data folder that is a file.
    """
    if loaded.parts["bookkeeper"].get("store_address") is not None:
        overrides.setdefault("data_dir", None)  # likewise
    elif (overrides.get("storage") or loaded.broker.get("storage")) == "memory":
        overrides.setdefault("data_dir", None)  # a data folder in the file is for files only
    elif loaded.broker.get("data_dir") is None:
        overrides.setdefault("data_dir", DEFAULT_DATA_DIR)
    config = loaded.config(**overrides)
    folder = None if config.data_dir is None else Path(config.data_dir)
    if folder is not None and folder.exists() and not folder.is_dir():
        raise CliError(f"data folder {config.data_dir} is a file, not a folder")
    return config

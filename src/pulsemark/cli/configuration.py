"""Reading a configuration file, for the commands that take `--config`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .errors import CliError

if TYPE_CHECKING:
    from ..broker.configuration.settings import FileSettings


def read_config(path: Path) -> FileSettings:
    """The settings of a `broker.conf`. Raises CliError, OSError."""
    from ..broker.configuration.properties import PropertiesError, read_properties
    from ..broker.configuration.settings import SettingError, parse_settings

    try:
        return parse_settings(read_properties(path.read_text(encoding="utf-8-sig")))
    except UnicodeDecodeError as error:
        raise CliError(f"{path} is not UTF-8 text: {error}") from error
    except (PropertiesError, SettingError) as error:
        raise CliError(f"{path}: {error}") from error

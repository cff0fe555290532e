"""`pulsemark config check|show`: a broker's configuration, before a broker uses it.

    pulsemark config check broker.conf
    pulsemark config show --config pulsemark.toml

`check` names everything that is wrong with a file: unknown settings with the closest name, wrong
values, settings of Pulsar that this broker does not have, and settings that make it less safe.
Exit code 1 if there are errors. `show` prints the settings that a broker would have, and the source
of each: the file, the environment or the default.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..broker.errors import BrokerError
from .options import DEFAULT_DATA_DIR, JSON, declared
from .output import counted, json_line, print_rows
from .parsing import CliError

if TYPE_CHECKING:
    from ..broker import BrokerConfig
    from ..broker.configuration.settings import Loaded
    from ..broker.configuration.sources import CheckedFile


ERRORS = (BrokerError, OSError)


add_arguments = declared(f"""
check: everything that is wrong with a file
file FILE  TOML (*.toml), or a broker.conf
{JSON}
show: the settings in force, and where each comes from
--config FILE  (default: the variable PULSEMARK_CONFIG)
--all  also those that have their defaults
{JSON}""")


def run(args: argparse.Namespace) -> int:
    """Run the action."""
    if args.action == "check":
        return _check(args)
    return _show(args)


def _check(args: argparse.Namespace) -> int:
    from ..broker.configuration.sources import check_file

    found = check_file(args.file)
    for each in found.remarks:
        if args.json:
            fields = {
                "level": each.level.value, "setting": each.setting, "value": each.value,
                "reason": each.reason, "line": each.line,
            }  # fmt: skip
            print(json_line(fields))
        else:
            place = f"{args.file}:{each.line}" if each.line else str(args.file)
            what = f"{each.setting}={each.value}: " if each.setting else ""
            print(f"{place}: {each.level.value}: {what}{each.reason}")
    print(_summary(found, as_json=args.json))
    return 1 if found.has_errors else 0


def _summary(found: CheckedFile, *, as_json: bool) -> str:
    from ..broker.configuration.sources import Level

    errors = sum(each.level is Level.ERROR for each in found.remarks)
    warnings = len(found.remarks) - errors
    if as_json:
        fields = {
            "level": "summary", "errors": errors, "warnings": warnings, "used": found.used,
            "unused": found.unused,
        }  # fmt: skip
        return json_line(fields)
    text = f"{found.path}: {counted(errors, 'error')}, {counted(warnings, 'warning')}; "
    text += f"used: {counted(found.used, 'setting')}"
    if found.unused:
        text += f", {found.unused} of Pulsar's, with Pulsar's values, have no effect here"
    return text


def _show(args: argparse.Namespace) -> int:
    from ..broker.configuration.settings import SECRETS, setting_fields

    loaded = load_settings(args.config)
    config = with_default_folder(loaded, {})
    for warning in loaded.warnings:
        print(f"pulsemark: warning: {warning}", file=sys.stderr)
    rows = []
    for spec in setting_fields().values():
        origin = loaded.origins.get(spec.name)
        if origin is None and not args.all:
            continue
        owner = getattr(config, spec.part) if spec.part else config
        value = _shown(getattr(owner, spec.name), as_json=args.json)
        if spec.key in SECRETS and value:
            value = "***"
        rows.append({"setting": spec.name, "value": value, "source": origin or "default"})
    if not (rows or args.json):
        print("all settings have their defaults; --all shows them")
    else:
        print_rows(rows, ("setting", "value", "source"), as_json=args.json)
    return 0


def _shown(value: Any, *, as_json: bool) -> Any:
    if isinstance(value, tuple):
        value = ",".join(value)
    if as_json or value is None:
        return value
    return str(value).lower() if isinstance(value, bool) else str(value)


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
    """The configuration, by default with ./pulsemark-data. Raises BrokerError, CliError."""
    if loaded.values.get("store_address") is not None:
        overrides.setdefault("data_dir", None)  # likewise
    elif (overrides.get("storage") or loaded.values.get("storage")) == "memory":
        overrides.setdefault("data_dir", None)  # a data folder in the file is for files only
    elif loaded.values.get("data_dir") is None:
        overrides.setdefault("data_dir", DEFAULT_DATA_DIR)
    config = loaded.config(**overrides)
    folder = None if config.data_dir is None else Path(config.data_dir)
    if folder is not None and folder.exists() and not folder.is_dir():
        raise CliError(f"data folder {config.data_dir} is a file, not a folder")
    return config

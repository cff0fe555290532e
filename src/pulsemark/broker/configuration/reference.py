"""The table of all settings, made from the fields, for docs/settings.md and `config settings`.

What a setting means is the comment above its field (``#:``), or the text below it.
"""

from __future__ import annotations

import ast
import inspect
import os
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from types import ModuleType
from typing import Any, get_type_hints

from ...ledger import store_core
from . import bookkeeper_config, config, security_config
from .dynamic_settings import RELOADABLE
from .settings import PARTS, all_settings

_MODULES: tuple[ModuleType, ...] = (
    config,
    security_config,
    bookkeeper_config,
    store_core,
)
_GROUPS = {
    "": "The broker",
    "store_options": "The store",
    "security": "Authentication, authorisation and TLS",
    "bookkeeper": "Apache BookKeeper",
}


def meanings() -> dict[str, str]:
    """What each field means, by its name."""
    found: dict[str, str] = {}
    for module in _MODULES:
        source = inspect.getsource(module)
        lines = source.splitlines()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                _add_meanings(node, lines, found)
    return found


def _add_meanings(owner: ast.ClassDef, lines: list[str], found: dict[str, str]) -> None:
    for statement, following in zip(owner.body, [*owner.body[1:], None], strict=True):
        if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)):
            continue
        said: list[str] = []
        at = statement.lineno - 2
        while lines[at].strip().startswith("#:"):
            said.insert(0, lines[at].strip()[2:].strip())
            at -= 1
        if (
            not said
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
        ):
            said = str(following.value.value).split()
        found[statement.target.id] = " ".join(said)


def settings_table() -> str:
    """The tables of all settings, in Markdown."""
    explained = meanings()
    parts = []
    for part, title in _GROUPS.items():
        rows = [spec for spec in setting_fields().values() if spec.part == part]
        rows.sort(key=lambda spec: spec.name)
        lines = [
            f"### {title}",
            "",
            "| TOML | broker.conf | type | default | meaning |",
            "|---|---|---|---|---|",
            *(_row(spec, explained[spec.name]) for spec in rows),
        ]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _row(spec: SettingField, meaning: str) -> str:
    mark = " (reloaded)" if spec.name in RELOADABLE else ""
    cells = (f"`{spec.name}`{mark}", f"`{spec.file_name}`", spec.type_name, default_text(spec))
    return f"| {' | '.join(cells)} | {meaning.replace('|', ' or ')} |"


def default_text(spec: SettingField) -> str:
    """A default for people; "" for none."""
    value = spec.default
    if value is None or value == ():
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)


ENVIRONMENT_PREFIX = "PULSEMARK_"

_TYPES: dict[Any, str] = {
    bool: "true or false",
    int: "whole number",
    int | None: "whole number",
    str: "text",
    str | None: "text",
    str | os.PathLike[str] | None: "path",
    tuple[str, ...]: "list of names",
    tuple[str, ...] | str: "list of names",
}


@dataclass(frozen=True, slots=True)
class SettingField:
    """One setting."""

    name: str
    #: The field of `BrokerConfig` that holds it; "" for its own fields.
    part: str
    kind: Any
    default: Any
    #: Its name in a broker.conf.
    file_name: str

    @property
    def type_name(self) -> str:
        """The type, for people."""
        return _TYPES[self.kind]

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return ENVIRONMENT_PREFIX + self.name.upper()

    @property
    def is_optional(self) -> bool:
        """Whether it may have no value."""
        return self.kind in (int | None, str | None, str | os.PathLike[str] | None)


@cache
def setting_fields() -> Mapping[str, SettingField]:
    """Every setting by its name in Python, in the order of the classes."""
    file_names: dict[tuple[str, str], str] = {}
    for key, setting in all_settings().items():
        file_names.setdefault((setting.part, setting.field), key)
    found = {}
    for part, owner in PARTS.items():
        kinds = get_type_hints(owner)
        for spec in fields(owner):
            file_name = file_names.get((part, spec.name))
            if file_name is None:  # the clock, and others that no text can say
                continue
            default = spec.default
            if default is MISSING:
                default = spec.default_factory() if spec.default_factory is not MISSING else None
            assert spec.name not in found, f"two settings are called {spec.name}"
            found[spec.name] = SettingField(spec.name, part, kinds[spec.name], default, file_name)
    return found

"""The table of all settings, made from the fields, for docs/settings.md and `config settings`.

What a setting means is the comment above its field (``#:``), or the text below it.
"""

from __future__ import annotations

import ast
import inspect
from types import ModuleType

from ...ledger import options
from . import bookkeeper_config, config, policy_defaults, security_config
from .fields import SettingField, setting_fields
from .reloading import RELOADABLE

__all__ = ["meanings", "settings_table"]

_MODULES: tuple[ModuleType, ...] = (
    config,
    policy_defaults,
    security_config,
    bookkeeper_config,
    options,
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

"""docs/settings.md: every setting of a broker, with its names, its default and its comment.

What a setting means is the comment above its field (``#:``), or the text below it.
"""

from __future__ import annotations

import ast
import inspect
from types import ModuleType

from pulsemark.broker.configuration import bookkeeper_config, config, security_config
from pulsemark.broker.configuration.settings import Setting, setting_fields
from pulsemark.ledger import store_core

__all__ = ["settings_page"]

INTRODUCTION = """\
# Settings

Every setting of a broker, made from the code by `tools/write_references.py`; do not edit it.
[configuration.md](configuration.md) says where settings are set, and which place wins. The first
name is for a TOML file and the field of `BrokerConfig`, of its `store_options` or of its
`security`; in capitals after `PULSEMARK_` it is the variable of the environment. The second name is
for a `broker.conf`: a setting that Pulsar has, too, has Pulsar's name, unit and meaning there.
Defaults are in the first name's unit. Settings marked "reloaded" change on SIGHUP. An empty default
means: not set.

"""


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
        silent = [spec.name for spec in rows if not explained[spec.name]]
        assert not silent, f"these settings have no comment: {silent}"
        lines = [
            f"## {title}",
            "",
            "| TOML | broker.conf | type | default | meaning |",
            "|---|---|---|---|---|",
            *(_row(spec, explained[spec.name]) for spec in rows),
        ]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _row(spec: Setting, meaning: str) -> str:
    mark = " (reloaded)" if spec.declaration.reloadable else ""
    cells = (f"`{spec.name}`{mark}", f"`{spec.key}`", spec.type_name, spec.default_text)
    return f"| {' | '.join(cells)} | {meaning.replace('|', ' or ')} |"


def settings_page() -> str:
    """The page."""
    return INTRODUCTION + settings_table()

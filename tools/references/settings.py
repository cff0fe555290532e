"""docs/settings.md: every setting of a broker, with its names, its default and its comment."""

from __future__ import annotations

import inspect
import re

from pulsemark.broker import BrokerConfig
from pulsemark.broker.configuration.policy_defaults import PolicyDefaults
from pulsemark.broker.configuration.security_config import SecurityConfig
from pulsemark.broker.configuration.settings import (
    PARTS,
    PULSAR_SETTINGS,
    SECURITY,
    STORE,
    _our_settings,
    runtime_settings,
)
from pulsemark.ledger import StoreOptions

__all__ = ["comments_of", "settings_page"]

INTRODUCTION = """\
# Settings

Every setting of a broker, made from the code by `tools/write_references.py`; do not edit it. The
first name is for a configuration file (`pulsemark standalone --config FILE`); the second is the
field of `BrokerConfig`, of its `store_options` or of its `security`. A setting that Pulsar has,
too, has Pulsar's name, unit and meaning. Empty means: not set.
"""

TITLES = {
    "": ("The broker", (BrokerConfig, PolicyDefaults)),
    STORE: ("The store", (StoreOptions,)),
    SECURITY: ("Authentication, authorisation, TLS", (SecurityConfig,)),
}


def settings_page() -> str:
    """The page."""
    shown = runtime_settings(BrokerConfig())
    settings = {**PULSAR_SETTINGS, **_our_settings()}
    parts = [INTRODUCTION]
    for part in PARTS:
        title, owners = TITLES[part]
        comments: dict[str, str] = {}
        for owner in reversed(owners):
            comments |= comments_of(owner)
        parts.append(
            f"\n## {title}\n\n| setting | field | default | meaning |\n|---|---|---|---|\n"
        )
        for key in sorted(settings, key=str.lower):
            setting = settings[key]
            if setting.part == part:
                default = f"`{shown[key]}`" if shown[key] else ""
                text = comments.get(setting.field, "").replace("|", "\\|").replace("<", "&lt;")
                parts.append(f"| `{key}` | `{setting.field}` | {default} | {text} |\n")
    return "".join(parts)


def comments_of(owner: type) -> dict[str, str]:
    """The `#:` comment of each field of a dataclass that has one."""
    found: dict[str, str] = {}
    comment: list[str] = []
    for line in inspect.getsource(owner).splitlines():
        text = line.strip()
        if text.startswith("#: "):
            comment.append(text[3:])
        else:
            field = re.match(r"(\w+): ", text)
            if field and comment:
                found[field[1]] = " ".join(comment)
            comment = []
    return found

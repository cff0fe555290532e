"""The settings of Apache Pulsar, with the values that its own files give them."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

__all__ = ["pulsar_defaults"]

_DEFAULTS = "pulsar_defaults.txt"


@cache
def pulsar_defaults() -> dict[str, frozenset[str]]:
    """The settings of Pulsar, with the values that its own files give them."""
    text = files(__package__).joinpath(_DEFAULTS).read_text(encoding="utf-8")
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, set()).add(value)
    return {name: frozenset(values) for name, values in found.items()}

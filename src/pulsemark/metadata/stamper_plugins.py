"""Stampers by name: the built-in ones, and those of installed packages.

Third parties bring stampers as entry points of the group `pulsemark.stampers`: a callable that
returns a `Stamper`. It is named in a chain as `name`, then it is called without argument, or as
`name:argument`, then with that one string. docs/stamps.md has the whole contract.

A plugin that extends the entry metadata with fields of its own imports their generated code. Once
it is loaded, protobuf knows those fields by name; `load_all_plugins` is for readers that show them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING

from .builtin_stampers import STAMPERS
from .errors import StamperLoadError, UnknownStamperError
from .stamp_context import Stamper

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

ENTRY_POINT_GROUP = "pulsemark.stampers"

_log = logging.getLogger(__name__)

BUILT_IN: dict[str, Callable[..., Stamper]] = {
    str(kind.__dict__["name"]): getattr(kind, "parse", kind) for kind in STAMPERS
}


def load_stampers(names: Iterable[str]) -> list[Stamper]:
    """The stampers of these names, in this order. Built-in names cannot be taken by a plugin.

    Args:
        names: each `name` or `name:argument`; `builtin_stampers` lists those that are built in.

    Raises:
        UnknownStamperError: neither built in nor installed.
        StamperLoadError: installed, but it cannot be imported, refuses its argument, is no
            stamper, calls itself like a built-in one, or two packages offer it.
    """
    return [_load(name) for name in names]


@cache
def load_all_plugins() -> None:
    """Import every installed plugin, so that their fields are known by name. Blocks.

    One that cannot be imported is logged and left out: its fields are shown by their numbers.
    """
    for plugin in _installed_plugins():
        try:
            plugin.load()
        except Exception as error:  # noqa: BLE001 - whatever a foreign package does wrong
            _log.warning("stamper plugin %s cannot be imported: %s", plugin.value, error)


def _load(spec: str) -> Stamper:
    name, colon, argument = spec.partition(":")
    is_built_in = name in BUILT_IN
    factory = BUILT_IN[name] if is_built_in else _installed_factory(name)
    try:
        stamper = factory(argument) if colon else factory()
    except Exception as error:
        raise StamperLoadError(spec, f"{type(error).__name__}: {error}") from error
    if not isinstance(stamper, Stamper):
        raise StamperLoadError(spec, f"{type(stamper).__name__} has no name or no stamp()")
    if not is_built_in and stamper.name in BUILT_IN:
        raise StamperLoadError(spec, f"it calls itself {stamper.name!r}, which is built in")
    return stamper


def _installed_factory(name: str) -> Callable[..., Stamper]:
    """The one entry point of that name, loaded."""
    plugins = _installed_plugins()
    found = plugins.select(name=name)
    if not found:
        raise UnknownStamperError(name, sorted({*BUILT_IN, *plugins.names}))
    if len(found) > 1:
        offers = ", ".join(sorted(plugin.value for plugin in found))
        raise StamperLoadError(name, f"several packages offer it: {offers}")
    (plugin,) = found
    try:
        factory: Callable[..., Stamper] = plugin.load()
    except Exception as error:
        raise StamperLoadError(name, f"{type(error).__name__}: {error}") from error
    return factory


def _installed_plugins() -> EntryPoints:
    from importlib.metadata import entry_points

    return entry_points(group=ENTRY_POINT_GROUP)

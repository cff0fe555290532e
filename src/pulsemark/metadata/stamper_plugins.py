"""Find stampers by name: the built-in ones, and those of installed packages.

Third parties install stampers as entry points of the group `pulsemark.stampers`. Such an entry
point is a callable that returns a `Stamper`. A chain names it as `name`: then it is called without
an argument. Or it names it as `name:argument`: then it is called with that one string.
docs/stamps.md has the whole contract.

A plugin that adds its own fields to the entry metadata imports their generated code. After it is
loaded, protobuf knows those fields by name. Readers that show fields call `load_all_plugins`.
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
    """The stampers with these names, in this order. A plugin cannot use a built-in name.

    Args:
        names: each `name` or `name:argument`; `builtin_stampers` lists the built-in names.

    Raises:
        UnknownStamperError: a stamper is neither built in nor installed.
        StamperLoadError: a stamper is installed but cannot be imported, refuses its argument, is
            not a `Stamper`, or has a built-in name; or two packages have a stamper with this name.
    """
    return [_load(name) for name in names]


@cache
def load_all_plugins() -> None:
    """Import every installed plugin, so that their fields are known by name. This call blocks.

    A plugin that cannot be imported is logged and skipped: its fields are shown by their numbers.
    """
    for plugin in _installed_plugins():
        try:
            plugin.load()
        except Exception as error:  # noqa: BLE001 - a third party's package may raise anything
            _log.warning(
                "stamper plugin %s cannot be imported, so its fields are shown by number: %s",
                plugin.value,
                error,
            )


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
        raise StamperLoadError(spec, f"its name is {stamper.name!r}, which is a built-in stamper")
    return stamper


def _installed_factory(name: str) -> Callable[..., Stamper]:
    """The only entry point with that name, loaded."""
    plugins = _installed_plugins()
    found = plugins.select(name=name)
    if not found:
        raise UnknownStamperError(name, sorted({*BUILT_IN, *plugins.names}))
    if len(found) > 1:
        offers = ", ".join(sorted(plugin.value for plugin in found))
        raise StamperLoadError(name, f"several packages have a stamper with this name: {offers}")
    (plugin,) = found
    try:
        factory: Callable[..., Stamper] = plugin.load()
    except Exception as error:
        raise StamperLoadError(name, f"{type(error).__name__}: {error}") from error
    return factory


def _installed_plugins() -> EntryPoints:
    from importlib.metadata import entry_points

    return entry_points(group=ENTRY_POINT_GROUP)

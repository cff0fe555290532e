"""Tools for tests: a broker in a `with` block, a settable clock, a client for raw frames.

    running_broker     a broker on free ports (see `running`)
    SettableClock      a clock that shows the time a test sets (see `clock`)
    RawClient          Pulsar's protocol frame by frame (see `raw_client`)

The pytest plugin is in `plugin`. Names are imported when they are first used, because pytest loads
this package in every run, also in runs that do not use it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .clock import SettableClock as SettableClock
    from .raw_client import RawClient as RawClient
    from .running import running_broker as running_broker

__all__ = ["RawClient", "SettableClock", "running_broker"]

_HOMES = {"RawClient": "raw_client", "SettableClock": "clock", "running_broker": "running"}


def __getattr__(name: str) -> Any:
    """Import a name of the kit when it is first used (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """All names, including those that were not imported yet."""
    return sorted({*globals(), *__all__})

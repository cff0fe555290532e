"""Names of a package that are imported from their modules when they are first used (PEP 562).

So a program pays at its start for what it uses: a broker in memory loads no engine on files, and a
tool that reads a folder no broker.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, names_of: Mapping[str, Iterable[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The functions `__getattr__` and `__dir__` of a package.

    Args:
        package: its `__name__`.
        names_of: each module below the package, and its names; "" has such modules themselves.
    """
    homes = {name: module for module, names in names_of.items() for name in names}

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = homes[name]
        module = import_module(f".{home or name}", package)
        value = getattr(module, name) if home else module
        setattr(sys.modules[package], name, value)
        return value

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return load, listed

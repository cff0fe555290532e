"""The settings as fields: of `BrokerConfig` and of what it holds, by their names in Python.

These are the names in a TOML file, and, in capitals after ``PULSEMARK_``, in the environment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Any, get_type_hints

from .settings import PARTS, all_settings

__all__ = ["ENVIRONMENT_PREFIX", "SettingField", "setting_fields"]

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

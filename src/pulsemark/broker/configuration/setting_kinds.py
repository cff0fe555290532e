"""How the values of settings are written in a configuration file."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import BrokerConfig

__all__ = ["BOOLEAN", "INTEGER", "NAMES", "TEXT", "Kind", "Setting", "limit", "multiple"]

INT_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Kind:
    """How a value is written in a file. `parse` raises ValueError with what was expected."""

    parse: Callable[[str], Any]
    show: Callable[[Any], str] = str


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of a file: the field that it sets, and how its value is written."""

    field: str
    kind: Kind
    #: A tuple with the value that an empty text means; () for the default.
    empty: tuple[Any, ...] = ()
    #: The field of `BrokerConfig` that holds the field; "": it is a field of `BrokerConfig`.
    part: str = ""

    def value_in(self, config: BrokerConfig) -> Any:
        """The field's value."""
        return getattr(getattr(config, self.part) if self.part else config, self.field)


def _integer(text: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 18:
        raise ValueError("must be a whole number")
    return int(text)


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("must be true or false")
    return text.lower() == "true"


def limit(unit: int) -> Kind:
    """A limit in some unit. 0 and below mean "no limit", which is the highest value here."""

    def parse(text: str) -> int:
        number = _integer(text)
        return min(number, INT_MAX) * unit if number > 0 else INT_MAX * unit

    return Kind(parse, lambda value: str(value // unit))


def multiple(unit: int) -> Kind:
    """A quantity in a unit that is larger than ours. Pulsar allows whole numbers, we fractions."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,15}(\.[0-9]{1,15})?", text):
            raise ValueError("must be a number")
        whole, _, fraction = text.partition(".")
        return int(whole + fraction) * unit // int(10 ** len(fraction))

    def show(value: int) -> str:
        return str(value // unit if value % unit == 0 else value / unit)

    return Kind(parse, show)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


INTEGER = Kind(_integer)
BOOLEAN = Kind(_boolean, lambda value: str(value).lower())
TEXT = Kind(str)
NAMES = Kind(_names, ",".join)

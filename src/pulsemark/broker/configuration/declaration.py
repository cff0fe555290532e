"""How a setting is declared: `setting(...)` stands where its field has its default.

The field's name, type, default and the comment above it say most. `setting` adds what they do not:
Pulsar's name if it is not the field's in camel case, how a file writes a value, which values there
are, and whether it may change while the broker runs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import Field, field
from typing import Any, NamedTuple, TypeVar

from ..errors import ConfigError

T = TypeVar("T")
MIB = 1024 * 1024
INT_MAX = 2**31 - 1
HIGHEST_PORT = 65_535
#: Fields with these name endings hold amounts, which are at least 1 if nothing else is said.
AMOUNTS = ("_ms", "_bytes", "_bytes_per_s")


class Kind(NamedTuple):
    """How a value is written in a file. `parse` raises ValueError with what was expected."""

    parse: Callable[[str], Any]
    show: Callable[[Any], str] = str


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
    """A quantity in a unit larger than ours: whole numbers in Pulsar, fractions allowed here."""

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
#: Names with commas or spaces between them, as the TLS settings have.
WORDS = Kind(lambda text: tuple(text.replace(",", " ").split()), ",".join)
SECONDS, MINUTES, MIBS = multiple(1000), multiple(60_000), multiple(MIB)


class Declaration(NamedTuple):
    """A field's name, type and allowed values in configuration files, as `setting` declares it."""

    #: Pulsar's name; "": the field's name in camel case, if Pulsar has that.
    key: str = ""
    #: The form of the value in a file; None: the type's usual one.
    kind: Kind | None = None
    #: The lowest number; None: 1 for an amount, and none for others.
    lowest: int | None = None
    #: The highest number; None: any. Ports have their own bounds.
    highest: int | None = None
    #: The allowed values; (): any.
    choices: tuple[str, ...] = ()
    #: Whether an empty list in a file means the default.
    is_never_empty: bool = False
    #: Whether a changed file applies at once (SIGHUP).
    reloadable: bool = False
    #: Whether Apache Pulsar 4.0.8 can change it while it runs, so that it can be changed over REST.
    dynamic: bool = False


_KEY = "pulsemark"
_NOTHING = Declaration()


def setting(default: T, *, repr: bool = True, **said: Any) -> T:  # noqa: A002 - as field's
    """A field with this default; `said` are the fields of `Declaration`."""
    found: Any = field(default=default, repr=repr, metadata={_KEY: Declaration(**said)})
    declared: T = found
    return declared


def changeable_limit() -> int:
    """A limit that may change at once, also over REST; 0: without limit."""
    return setting(0, lowest=0, reloadable=True, dynamic=True)


def declaration_of(spec: Field[Any]) -> Declaration:
    """The declaration of a field."""
    found: Declaration = spec.metadata.get(_KEY, _NOTHING)
    return found


def check_declared(spec: Field[Any], value: Any) -> None:
    """Raise ConfigError for a number out of bounds, and for any other value that is not allowed."""
    declared, name = declaration_of(spec), spec.name
    if isinstance(value, str | os.PathLike) and "\0" in str(value):
        raise ConfigError(name, value, "must be without NUL bytes")
    lowest, highest = declared.lowest, declared.highest
    if lowest is None and (name.endswith(AMOUNTS) or name.startswith("max_")):
        lowest = 1
    if name.endswith("port"):
        if value is not None and not (is_whole(value) and 0 <= value <= HIGHEST_PORT):
            raise ConfigError(name, value, f"must be a port number from 0 to {HIGHEST_PORT}")
    elif isinstance(spec.default, bool):
        if not isinstance(value, bool):
            raise ConfigError(name, value, "must be True or False")
    elif lowest is not None:
        _check_number(name, value, lowest, highest)
    elif declared.choices and value not in declared.choices:
        raise ConfigError(name, value, f"must be one of {', '.join(declared.choices)}")


def is_whole(value: Any) -> bool:
    """Whether it is a whole number; True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def _check_number(name: str, value: Any, lowest: int, highest: int | None) -> None:
    if is_whole(value) and value >= lowest and (highest is None or value <= highest):
        return
    wanted = (
        f"a whole number of at least {lowest}" if highest is None else f"from {lowest} to {highest}"
    )
    raise ConfigError(name, value, f"must be {wanted}")

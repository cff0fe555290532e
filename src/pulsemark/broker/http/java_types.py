"""Checks a JSON body against the Java type that Pulsar reads it as, with the texts of its answers.

Pulsar's web server reads a body with Jackson before the route looks at anything else, and what
Jackson cannot read is answered with its own text. Clients and people know these texts, so they are
the same here. Only the type is checked: what a value may be is a matter of the route.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, NoReturn

from .json_errors import SOURCE

__all__ = [
    "BOOLEAN",
    "BOXED_BOOLEAN",
    "BOXED_INT",
    "BOXED_LONG",
    "DOUBLE",
    "INT",
    "LONG",
    "TEXT",
    "Bean",
    "Choice",
    "JavaType",
    "JavaTypeError",
    "Many",
    "MapOf",
    "check_start",
    "check_type",
]

_DECODER = json.JSONDecoder()
_SPACES = re.compile(r"[ \t\r\n]*")
_TRUE_OR_FALSE = ("true", "True", "TRUE", "false", "False", "FALSE", "null", "")
_INT_BITS, _LONG_BITS = 31, 63


class JavaTypeError(ValueError):
    """A body that Pulsar could not read. The text is Pulsar's answer."""


@dataclass(frozen=True, slots=True)
class JavaType:
    """A type by its Java name. This class itself accepts every value."""

    name: str = "java.lang.Object"

    def check(self, found: _Found) -> None:
        """Raise `JavaTypeError` if the value cannot be read as this type."""

    @property
    def is_primitive(self) -> bool:
        """Whether Java has no null of this type: an empty body is refused."""
        return self.name in ("int", "long", "boolean", "double")

    @property
    def full_name(self) -> str:
        """The name with its type arguments."""
        return self.name


@dataclass(frozen=True, slots=True)
class _Found:
    """A value that was found in a body: where, and on which way."""

    text: str
    start: int
    end: int
    value: Any
    way: tuple[tuple[str, str], ...] = ()

    def refuse(self, reason: str, *, at_end: bool = False) -> NoReturn:
        """Raise `JavaTypeError` with the place and the way to it."""
        position = self.end if at_end else self.start
        before = self.text[:position]
        line = before.count("\n") + 1
        column = len(before.rpartition("\n")[2].encode()) + 1  # bytes, as Jackson counts
        way = "->".join(f"{owner}[{member}]" for owner, member in self.way)
        chain = f" (through reference chain: {way})" if way else ""
        raise JavaTypeError(f"{reason}\n at {SOURCE}; line: {line}, column: {column}]{chain}")

    def wrong_kind(self, java: JavaType) -> NoReturn:
        """Refuse a value of another kind."""
        self.refuse(f"Cannot deserialize value of type `{java.full_name}` from {_kind(self.value)}")


def _kind(value: Any) -> str:
    kinds: dict[type, tuple[str, str]] = {
        list: ("Array", "START_ARRAY"),
        dict: ("Object", "START_OBJECT"),
        str: ("String", "VALUE_STRING"),
        int: ("Integer", "VALUE_NUMBER_INT"),
        float: ("Floating-point", "VALUE_NUMBER_FLOAT"),
    }
    if isinstance(value, bool):
        return f"Boolean value (token `JsonToken.VALUE_{str(value).upper()}`)"
    name, token = kinds[type(value)]
    return f"{name} value (token `JsonToken.{token}`)"


@dataclass(frozen=True, slots=True)
class _Whole(JavaType):
    bits: int = _INT_BITS

    def check(self, found: _Found) -> None:
        value = found.value
        if value is None or (isinstance(value, str) and value.strip() in ("", "null")):
            return
        if isinstance(value, bool | list | dict):
            found.wrong_kind(self)
        low, high = -(1 << self.bits), (1 << self.bits) - 1
        if isinstance(value, str):
            self._check_text(found, value, low, high)
        elif not low <= value <= high:
            kind = "int" if self.bits == _INT_BITS else "long"
            written = found.text[found.start : found.end]
            reason = f"Numeric value ({written}) out of range of {kind} ({low} - {high})"
            found.refuse(reason, at_end=True)

    def _check_text(self, found: _Found, value: str, low: int, high: int) -> None:
        start = f'Cannot deserialize value of type `{self.name}` from String "{value}": '
        number = value.strip()
        fits_long = False
        if re.fullmatch(r"[-+]?[0-9]{1,25}", number) is not None:
            if low <= int(number) <= high:
                return
            fits_long = -(1 << _LONG_BITS) <= int(number) < 1 << _LONG_BITS
        if fits_long:
            kind = self.name if self.is_primitive else f"`{self.name}`"
            what = f"Overflow: numeric value ({number}) out of range of {kind} ({low} -{high})"
            found.refuse(start + what)
        found.refuse(f"{start}not a valid `{self.name}` value")


@dataclass(frozen=True, slots=True)
class _Decimal(JavaType):
    def check(self, found: _Found) -> None:
        value = found.value
        if isinstance(value, bool | list | dict):
            found.wrong_kind(self)
        if isinstance(value, str) and value.strip() not in ("", "null"):
            try:
                float(value)
            except ValueError:
                start = f'Cannot deserialize value of type `{self.name}` from String "{value}": '
                found.refuse(f"{start}not a valid `{self.name}` value (as String to convert)")


@dataclass(frozen=True, slots=True)
class _TrueOrFalse(JavaType):
    def check(self, found: _Found) -> None:
        value = found.value
        if isinstance(value, float | list | dict):
            found.wrong_kind(self)
        if isinstance(value, str) and value.strip() not in _TRUE_OR_FALSE:
            known = '"true"/"True"/"TRUE" or "false"/"False"/"FALSE"'
            if not self.is_primitive:
                known = '"true" or "false"'
            start = f'Cannot deserialize value of type `{self.name}` from String "{value}": '
            found.refuse(f"{start}only {known} recognized")


@dataclass(frozen=True, slots=True)
class _Text(JavaType):
    def check(self, found: _Found) -> None:
        if isinstance(found.value, list | dict):
            found.wrong_kind(self)


@dataclass(frozen=True, slots=True)
class Choice(JavaType):
    """An enumeration. An unknown name or number is null in Pulsar, and no error."""

    def check(self, found: _Found) -> None:
        """See `JavaType.check`."""
        if isinstance(found.value, bool | float | list | dict):
            found.wrong_kind(self)


INT = _Whole("int")
LONG = _Whole("long", _LONG_BITS)
BOXED_INT = _Whole("java.lang.Integer")
BOXED_LONG = _Whole("java.lang.Long", _LONG_BITS)
DOUBLE = _Decimal("double")
BOOLEAN = _TrueOrFalse("boolean")
BOXED_BOOLEAN = _TrueOrFalse("java.lang.Boolean")
TEXT = _Text("java.lang.String")


def _no_constructor(found: _Found, name: str) -> NoReturn:
    """Refuse a scalar for a class that is not made from one."""
    value = found.value
    if isinstance(value, str):
        what, shown = "String", f"String value ('{value}')"
    elif isinstance(value, bool):
        what, shown = "boolean/Boolean", f"boolean value ({str(value).lower()})"
    elif isinstance(value, int):
        size = "int/Int" if value.bit_length() <= _INT_BITS else "long/Long"
        what = size if value.bit_length() <= _LONG_BITS else "BigInteger"
        shown = f"Number value ({value})"
    else:
        what, shown = "double/Double", f"Number value ({value})"
    found.refuse(
        f"Cannot construct instance of `{name}` (although at least one Creator exists): "
        f"no {what}-argument constructor/factory method to deserialize from {shown}"
    )


def _refuse_empty_text(found: _Found, name: str) -> None:
    """Refuse a text without anything in it, which Jackson tells from other texts."""
    if isinstance(found.value, str) and not found.value.strip():
        coerced = "(but could if coercion was enabled using `CoercionConfig`)"
        found.refuse(f'Cannot coerce empty String ("") to {name} {coerced}')


@dataclass(frozen=True, slots=True)
class Bean(JavaType):
    """A class with fields. Fields that are not named here may have any value."""

    fields: Mapping[str, JavaType] = field(default_factory=dict, hash=False)
    #: Kinds of scalars from which it can be made, too.
    made_from: tuple[type, ...] = ()
    #: What it says of a text from which it cannot be made, and the texts that are right.
    wrong_text: str = ""
    right_texts: tuple[str, ...] = ()

    def check(self, found: _Found) -> None:
        """See `JavaType.check`."""
        value = found.value
        if value is None or type(value) in self.made_from:
            return
        if isinstance(value, list):
            found.wrong_kind(self)
        if self.wrong_text and isinstance(value, str):
            if value not in self.right_texts:
                problem = self.wrong_text.format(value)
                found.refuse(f"Cannot construct instance of `{self.name}`, problem: {problem}")
            return
        _refuse_empty_text(found, f"`{self.name}` value")
        if not isinstance(value, dict):
            _no_constructor(found, self.name)
        for name, member in _members(found):
            java = self.fields.get(name)
            if java is not None:
                java.check(_at(member, found, self.name, f'"{name}"'))


@dataclass(frozen=True, slots=True)
class Many(JavaType):
    """A list or a set."""

    of: JavaType = TEXT

    @property
    def full_name(self) -> str:
        """See `JavaType.full_name`."""
        return f"{self.name}<{self.of.full_name}>"

    def check(self, found: _Found) -> None:
        """See `JavaType.check`."""
        value = found.value
        if value is None:
            return
        if isinstance(value, str) and self.of is TEXT:
            _refuse_empty_text(found, f"element of `{self.name}`")
            _no_constructor(found, self.name)
        if not isinstance(value, list):
            found.wrong_kind(self)
        for number, element in enumerate(_elements(found)):
            self.of.check(_at(element, found, self.name, str(number)))


@dataclass(frozen=True, slots=True)
class MapOf(JavaType):
    """A map with texts as keys."""

    of: JavaType = TEXT

    @property
    def full_name(self) -> str:
        """See `JavaType.full_name`."""
        return f"{self.name}<java.lang.String,{self.of.full_name}>"

    def check(self, found: _Found) -> None:
        """See `JavaType.check`."""
        if found.value is None:
            return
        if isinstance(found.value, str):
            _refuse_empty_text(found, f"`{self.name}` value")
            _no_constructor(found, self.name)
        if not isinstance(found.value, dict):
            found.wrong_kind(self)
        for name, member in _members(found):
            self.of.check(_at(member, found, self.name, f'"{name}"'))


def check_type(text: str, java: JavaType) -> None:
    """Check a body, which is valid JSON. Raises `JavaTypeError` with Pulsar's text."""
    java.check(_value_at(text, 0))


def _value_at(text: str, position: int) -> _Found:
    start = _after_spaces(text, position)
    value, end = _DECODER.raw_decode(text, start)
    if isinstance(value, float) and not isfinite(value):
        value = 1 << (2 * _LONG_BITS)  # any number that is out of every range
    return _Found(text, start, end, value)


def _at(member: _Found, owner: _Found, name: str, place: str) -> _Found:
    return _Found(member.text, member.start, member.end, member.value, (*owner.way, (name, place)))


def _members(found: _Found) -> list[tuple[str, _Found]]:
    """The members of an object in the order of the text, names that stand twice too."""
    members, position = [], _after_spaces(found.text, found.start + 1)
    while found.text[position] != "}":
        name = _value_at(found.text, position)
        member = _value_at(found.text, _after_spaces(found.text, name.end) + 1)
        members.append((name.value, member))
        position = _after_spaces(found.text, member.end)
        if found.text[position] == ",":
            position = _after_spaces(found.text, position + 1)
    return members


def _elements(found: _Found) -> list[_Found]:
    elements, position = [], _after_spaces(found.text, found.start + 1)
    while found.text[position] != "]":
        elements.append(_value_at(found.text, position))
        position = _after_spaces(found.text, elements[-1].end)
        if found.text[position] == ",":
            position = _after_spaces(found.text, position + 1)
    return elements


def _after_spaces(text: str, position: int) -> int:
    spaces = _SPACES.match(text, position)
    assert spaces is not None
    return spaces.end()


def check_start(text: str, java: JavaType) -> None:
    """Raise `JavaTypeError` if a body that begins with this bracket cannot be of the type."""
    start = len(text) - len(text.lstrip(" \t\r\n"))
    value = {"[": list, "{": dict}.get(text[start : start + 1])
    if value is not None:
        java.check(_Found(text[:start] + str(value()), start, start + 1, value()))

"""Options as users write them: their names, and the values that several of them share.

Case and underscores in names do not matter, because Spark changes names to lower case in some
calls: ``startingTime``, ``startingtime`` and ``starting_time`` are the same option. An unknown
option is an error; it is never ignored.

The parsers raise ``ValueError`` with a reason, which :class:`Given` makes an
:class:`~pulsemark.pipeline.errors.OptionError` that names the option.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from .errors import OptionError

MAX_TIME_MS = 253_402_300_800_000
"""The end of the year 9999, where Spark's timestamps end."""

_MIN_TIME_NUMBER = 100_000_000_000
"""As milliseconds in the year 1973; as seconds in the year 5138."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_T = TypeVar("_T")
_D = TypeVar("_D")


class Given:
    """The options as the user gave them, looked up without regard to case and underscores."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._by_key: dict[str, tuple[str, str]] = {}
        for name, value in options.items():
            key = _key(name)
            if key in self._by_key and self._by_key[key][1] != value:
                raise OptionError(name, value, f"also given as {self._by_key[key][0]}")
            self._by_key[key] = (name, value)
        self._known: list[str] = []

    def get(self, name: str, parse: Callable[[str], _T], default: _D) -> _T | _D:
        """The parsed value of an option, or ``default`` if it was not given.

        ``parse`` raises ``ValueError`` with a reason, which becomes an :class:`OptionError`.
        """
        self._known.append(name)
        found = self._by_key.get(_key(name))
        if found is None:
            return default
        try:
            return parse(found[1])
        except ValueError as error:
            raise OptionError(name, found[1], str(error)) from error

    def required(self, name: str, parse: Callable[[str], _T]) -> _T:
        """The parsed value of an option that must be given."""
        value = self.get(name, parse, None)
        if value is None:
            raise OptionError(name, None, "is required")
        return value

    def has(self, names: Collection[str]) -> bool:
        """Whether one of these options was given."""
        return any(_key(name) in self._by_key for name in names)

    def only_one(self, *names: str) -> None:
        """Refuse more than one of several options that exclude each other."""
        given = [name for name in names if _key(name) in self._by_key]
        if len(given) > 1:
            raise OptionError(given[1], self._by_key[_key(given[1])][1], f"excludes {given[0]}")

    def refuse(self, names: Collection[str], reason: str) -> None:
        """Refuse options that this kind of read does not have."""
        for name in names:
            found = self._by_key.get(_key(name))
            if found is not None:
                raise OptionError(name, found[1], reason)

    def refuse_unknown(self) -> None:
        """Refuse options that no call has asked for."""
        known = {_key(name): name for name in self._known}
        for key, (name, value) in self._by_key.items():
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"; did you mean {known[near[0]]}?" if near else ""
                raise OptionError(name, value, f"is not an option of this source{hint}")


def _key(name: str) -> str:
    return name.replace("_", "").lower()


def listed(text: str) -> list[str]:
    """Names with commas between them, without the blanks around them."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise ValueError("must be a list separated by commas, without empty names")
    return names


def boolean(text: str) -> bool:
    """``true`` or ``false``, in any case."""
    folded = text.strip().lower()
    if folded not in ("true", "false"):
        raise ValueError("is neither true nor false")
    return folded == "true"


def integer(minimum: int, maximum: int) -> Callable[[str], int]:
    """A parser of whole numbers in ``[minimum, maximum]``."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"\s*[+-]?[0-9]{1,19}\s*", text):
            raise ValueError("is not a whole number")
        number = int(text)
        if not minimum <= number <= maximum:
            raise ValueError(f"is not between {minimum} and {maximum}")
        return number

    return parse


_UNIT_MS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_duration_ms(text: str) -> int:
    """Milliseconds, from a number with one of Spark's units (``90s``, ``15m``), or without (ms).

    Raises:
        ValueError: the text is no such duration.
    """
    found = re.fullmatch(r"\s*([0-9]{1,12})\s*([a-z]*)\s*", text.lower())
    if found is None or found[2] not in _UNIT_MS:
        raise ValueError("is not a duration like 500ms, 90s, 15m, 1h or 1d")
    return int(found[1]) * _UNIT_MS[found[2]]


def parse_time_ms(text: str) -> int:
    """Milliseconds since the epoch, from such a number or from ISO-8601 (UTC by default).

    Raises:
        ValueError: the text is neither, the time is outside the years 1970 to 9999, or the number
            is so small that it is probably not milliseconds.
    """
    if re.fullmatch(r"\s*[+-]?[0-9]+\s*", text):
        time_ms = integer(0, MAX_TIME_MS)(text)
        if 0 < time_ms < _MIN_TIME_NUMBER:
            moment = _EPOCH + timedelta(milliseconds=time_ms)
            raise ValueError(
                f"as milliseconds since the epoch is {moment:%Y-%m-%dT%H:%MZ}; for unix seconds add"
                " three digits, and write a date with dashes (2026-03-01)"
            )
        return time_ms
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError("is neither milliseconds since the epoch nor ISO-8601") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    # A time between two milliseconds is rounded up, because no entry's time is between them.
    time_ms = -((_EPOCH - moment) // timedelta(milliseconds=1))
    if not 0 <= time_ms <= MAX_TIME_MS:
        raise ValueError("is not between the years 1970 and 9999")
    return time_ms


def parse_path(text: str) -> Path:
    """The data folder, from a path or a ``file:`` URI.

    Raises:
        ValueError: empty, or a URI of another scheme.
    """
    if not text.strip() or "\0" in text:
        raise ValueError("is not a path")
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):", text)
    if scheme is None:
        return Path(text).absolute()
    uri = urlsplit(text)
    if uri.scheme != "file" or uri.netloc not in ("", "localhost"):
        raise ValueError("is not on this machine's file system; use a path or a file: URI")
    return Path(unquote(uri.path)).absolute()

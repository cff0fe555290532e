"""The source's options, parsed once and typed; all later code uses :class:`ReadOptions`.

Case and underscores in option names do not matter, because Spark changes names to lower case in
some calls: ``startingTime``, ``startingtime`` and ``starting_time`` are the same option. An unknown
option is an error; it is never ignored.

A range has two ends, each given as a time or as an offset, and is half-open (``[start, end)``):

- Times are entry times (PIP-70: the broker's stamp, else the producer's publish time), in
  milliseconds since the epoch or ISO-8601 (UTC if no zone is given). A number that would be a time
  long before Pulsar existed is refused: it is probably seconds, or a date without its dashes.
- Offsets are indexes: a number, ``earliest`` or ``latest``.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from .columns import COLUMNS, DEFAULT_COLUMNS
from .errors import OptionError

MAX_PARTITIONS = 10_000
MAX_TIME_MS = 253_402_300_800_000
"""The end of the year 9999, where Spark's timestamps end."""

MAX_INDEX = 2**63 - 1

DEFAULT_MAX_UNCOMPRESSED_BYTES = 128 << 20
"""The largest size of one entry after decompression. As stored, Pulsar allows 5 MiB."""
DEFAULT_MAX_MESSAGES_PER_ENTRY = 1 << 18
"""Pulsar's clients put at most 1,000 messages into a batch by default."""
DEFAULT_MAX_PROPERTIES_PER_ENTRY = 1 << 18

_MIN_TIME_NUMBER = 100_000_000_000
"""As milliseconds in the year 1973; as seconds in the year 5138."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_T = TypeVar("_T")


class BoundKind(Enum):
    """How one end of a range is given."""

    EARLIEST = "earliest"
    LATEST = "latest"
    INDEX = "index"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of a range; ``value`` is an index, or a time in ms, by ``kind``."""

    kind: BoundKind
    value: int = 0


EARLIEST = Bound(BoundKind.EARLIEST)
LATEST = Bound(BoundKind.LATEST)


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """Which topics to read: ``names`` (as given), or all topics that match ``pattern``."""

    names: tuple[str, ...] = ()
    pattern: str | None = None


@dataclass(frozen=True, slots=True)
class EntryLimits:
    """The limits of one entry after decompression; a larger entry is refused."""

    max_uncompressed_bytes: int = DEFAULT_MAX_UNCOMPRESSED_BYTES
    max_messages: int = DEFAULT_MAX_MESSAGES_PER_ENTRY
    max_properties: int = DEFAULT_MAX_PROPERTIES_PER_ENTRY
    """The properties of all its messages together."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The parsed options of a read."""

    path: Path
    topics: TopicSelection
    start: Bound = EARLIEST
    end: Bound = LATEST
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    min_partitions: int | None = None
    fail_on_data_loss: bool = True
    limits: EntryLimits = EntryLimits()

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ReadOptions:
        """Read the options of ``spark.read.format("pulsar-ledger")``.

        Raises:
            OptionError: an option is unknown, missing, malformed, or contradicts another.
        """
        given = _Given(options)
        start = _bound(given, "starting", EARLIEST)
        end = _bound(given, "ending", LATEST)
        if start.kind is end.kind and start.value > end.value:
            raise OptionError(
                f"ending{_OPTION_OF[end.kind]}", str(end.value), f"is before {start.value}"
            )
        parsed = cls(
            path=given.required("path", parse_path),
            topics=_topics(given),
            start=start,
            end=end,
            columns=given.get("columns", _columns, DEFAULT_COLUMNS),
            min_partitions=given.get("minPartitions", integer(1, MAX_PARTITIONS), None),
            fail_on_data_loss=given.get("failOnDataLoss", _boolean, True),
            limits=_limits(given),
        )
        given.refuse_unknown()
        return parsed


class _Given:
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
        value = self.get(name, parse, None)
        if value is None:
            raise OptionError(name, None, "is required")
        return value

    def only_one(self, *names: str) -> None:
        """Refuse more than one of several options that exclude each other."""
        given = [name for name in names if _key(name) in self._by_key]
        if len(given) > 1:
            raise OptionError(given[1], self._by_key[_key(given[1])][1], f"excludes {given[0]}")

    def refuse_unknown(self) -> None:
        known = {_key(name): name for name in self._known}
        for key, (name, value) in self._by_key.items():
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"; did you mean {known[near[0]]}?" if near else ""
                raise OptionError(name, value, f"is not an option of this source{hint}")


_D = TypeVar("_D")
_OPTION_OF = {BoundKind.INDEX: "Offsets", BoundKind.TIME: "Time"}


def _key(name: str) -> str:
    return name.replace("_", "").lower()


def _limits(given: _Given) -> EntryLimits:
    usual = EntryLimits()
    return EntryLimits(
        # Arrow's offsets allow 2 GiB, which must be enough for a batch's entries and their headers.
        given.get("maxUncompressedBytes", integer(1, 1 << 30), usual.max_uncompressed_bytes),
        given.get("maxMessagesPerEntry", integer(1, 2**31 - 1), usual.max_messages),
        given.get("maxPropertiesPerEntry", integer(0, 2**31 - 1), usual.max_properties),
    )


def _bound(given: _Given, side: str, default: Bound) -> Bound:
    given.only_one(f"{side}Time", f"{side}Offsets")
    by_offset = given.get(f"{side}Offsets", _offset, default)
    time_ms = given.get(f"{side}Time", parse_time_ms, None)
    return by_offset if time_ms is None else Bound(BoundKind.TIME, time_ms)


def _offset(text: str) -> Bound:
    if text.strip().lower() == "earliest":
        return EARLIEST
    if text.strip().lower() == "latest":
        return LATEST
    try:
        return Bound(BoundKind.INDEX, integer(0, MAX_INDEX)(text))
    except ValueError:
        raise ValueError("is neither an index (0 or more), 'earliest' nor 'latest'") from None


def _topics(given: _Given) -> TopicSelection:
    given.only_one("topic", "topics", "topicsPattern")
    name = given.get("topic", full_topic_name, None)
    names = given.get("topics", _topic_names, ())
    pattern = given.get("topicsPattern", parse_topics_pattern, None)
    if name is None and not names and pattern is None:
        raise OptionError("topic", None, "one of topic, topics and topicsPattern is required")
    return TopicSelection((name,) if name is not None else names, pattern)


def _topic_names(text: str) -> tuple[str, ...]:
    names = _json_list(text) if text.lstrip().startswith("[") else _listed(text)
    return tuple(dict.fromkeys(full_topic_name(name) for name in names))


def _json_list(text: str) -> list[str]:
    try:
        names = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("begins with [ but is not a JSON list of names") from None
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError("is not a JSON list of at least one name")
    return list(names)


def _columns(text: str) -> tuple[str, ...]:
    names = _listed(text)
    folded = {name.lower(): name for name in COLUMNS}
    for name in names:
        if name.lower() not in folded:
            raise ValueError(f"{name!r} is not a column; the columns are {', '.join(COLUMNS)}")
    columns = tuple(folded[name.lower()] for name in names)
    if len(set(columns)) < len(columns):
        raise ValueError("names a column twice")
    return columns


def _listed(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise ValueError("must be a list separated by commas, without empty names")
    return names


def _boolean(text: str) -> bool:
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


def full_topic_name(name: str) -> str:
    """``x`` and ``tenant/namespace/x`` written out: ``persistent://tenant/namespace/x``.

    Blanks at the ends are a part of the name, as in Pulsar.

    Raises:
        ValueError: the text is neither a local, a short nor a full name.
    """
    domain, separator, rest = name.partition("://")
    if not separator:
        domain, rest = "persistent", domain
    if "/" not in rest and not separator:
        rest = f"public/default/{rest}"
    if domain != "persistent" or len(rest.split("/")) != 3 or not all(rest.split("/")):
        raise ValueError("is not a topic's name (x, tenant/namespace/x or persistent://...)")
    return f"{domain}://{rest}"


_LEADING_FLAGS = re.compile(r"\(\?([a-zA-Z]+)\)")


def parse_topics_pattern(text: str) -> str:
    """A regular expression for full topic names, completed in the same way as topic names.

    Flags at the beginning, as in ``(?i)x``, apply to the part that the user wrote.

    Raises:
        ValueError: the expression does not compile.
    """
    pattern = text
    if "://" not in text:
        prefix = "persistent://" if "/" in text else "persistent://public/default/"
        leading = _LEADING_FLAGS.match(text)
        flags, rest = (leading[1], text[leading.end() :]) if leading else ("", text)
        # With the flag x, a comment at the end would include the bracket.
        pattern = f"{prefix}(?{flags}:{rest}{chr(10) if 'x' in flags else ''})"
    for each in (text, pattern):
        try:
            re.compile(each)
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"is not a regular expression: {error}") from error
    return pattern


def select_topics(
    selection: TopicSelection, existing: Iterable[str]
) -> tuple[list[str], list[str]]:
    """The existing topics that are selected, sorted, and the names without a topic.

    A name also means the partitions of a partitioned topic (``x-partition-0`` ...).
    """
    existing = sorted(existing)
    if selection.pattern is not None:
        matches = re.compile(selection.pattern).fullmatch
        return [name for name in existing if matches(name)], []
    by_name: dict[str, list[str]] = {}
    for topic in existing:
        by_name.setdefault(topic, []).append(topic)
        base = _PARTITION.sub("", topic)
        if base != topic:
            by_name.setdefault(base, []).append(topic)
    found = {topic for name in selection.names for topic in by_name.get(name, ())}
    return sorted(found), [name for name in selection.names if name not in by_name]


_PARTITION = re.compile(r"-partition-[0-9]+\Z")

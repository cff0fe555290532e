"""Arguments that several commands share, and the parsers of their values.

Points in time, as people type them:

    1762945500123            unix milliseconds (only digits)
    2025-11-12T11:05:00Z     ISO 8601; without a zone it is this machine's local time
    14:05  14:05:30.250      today, this machine's local time
    -5m  -1h30m  +10s  now   relative to now; units ms, s, m, h, d, w

A number is always milliseconds, and is never taken for seconds. A number so small that it is
probably seconds (a moment before March 1973) is refused; only 0, the beginning, is accepted.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime, time, timedelta, tzinfo
from functools import partial
from pathlib import Path
from typing import Any

from ..finder.arguments import relative_time_ms
from ..option_table import add_options
from .parsing import CliError

DEFAULT_DATA_DIR = Path("pulsemark-data")
IN_DATA_DIR = f"(default: ./{DEFAULT_DATA_DIR})"
"""The end of each help of `--data-dir`."""
HIGHEST_PORT = 65_535
MAX_REQUEST_TIMEOUT_S = 86_400.0
"""A day. A socket takes no timeout of any length."""
JSON = "--json  print one JSON object per line\n"
TOPIC = "topic TOPIC  short or full name\n"


def declared(
    table: str, **special: Callable[[str], Any] | Collection[str]
) -> Callable[[argparse.ArgumentParser], None]:
    """A function that declares a table's options (see `option_table`) for a parser.

    `special` has types of single options.
    """

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        add_options(parser, table, TYPES, request_timeout=_request_timeout, **special)

    return add_arguments


def port_number(text: str) -> int:
    """A port; 0 picks a free port."""
    if not (text.isascii() and text.isdigit()) or int(text) > HIGHEST_PORT:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a port number from 0 to {HIGHEST_PORT} (0 picks a free port)"
        )
    return int(text)


def grpc_target(text: str) -> str:
    """HOST:PORT of a gRPC service; an IPv6 address in brackets."""
    host, _, port = text.rpartition(":")
    is_port = port.isascii() and port.isdigit() and 0 < int(port) <= HIGHEST_PORT
    if not (is_port and host and host.isascii() and host.isprintable() and "/" not in host):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form HOST:PORT, for gRPC")
    return text


def _whole(least: int, text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
    return int(text)


positive, not_negative = partial(_whole, 1), partial(_whole, 0)


def seconds(text: str, *, most: float = 1e9) -> float:
    """A number of seconds above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return number


_request_timeout = partial(seconds, most=MAX_REQUEST_TIMEOUT_S)

TYPES: Mapping[str, Callable[[str], Any]] = {
    "N": positive, "SECONDS": seconds, "PORT": port_number, "HOST:PORT": grpc_target,
    "PATH": Path, "FILE": Path, "DIR": Path, "DATA_DIR": Path, "BACKUP": Path,
}  # fmt: skip
"""Of values that are no text, by their placeholders."""


def full_topic(text: str) -> str:
    """The topic's full name: persistent://public/default/x for x. Raises CliError."""
    from ..wire import InvalidTopicNameError, TopicName

    try:
        return str(TopicName.parse(text))
    except InvalidTopicNameError as error:
        raise CliError(str(error)) from error


def read_token(path: Path | None) -> str | None:
    """The token in a file: printable ASCII without spaces. Raises OSError, CliError."""
    if path is None:
        return None
    from ..finder.arguments import TokenFileError
    from ..finder.arguments import read_token as read

    try:
        return read(path)
    except TokenFileError as error:
        raise CliError(str(error)) from error


MAX_TIME_MS = 2**63 - 1
MIN_TIME_NUMBER = 100_000_000_000
"""As milliseconds in the year 1973; as seconds in the year 5138. The Spark options have it too."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CLOCK = re.compile(r"\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?", re.ASCII)


def parse_time(text: str, *, now: datetime | None = None, zone: tzinfo | None = None) -> int:
    """The unix milliseconds of a time in text (the module's docstring has the forms).

    Args:
        text: what the user typed.
        now: the present time, with its zone; None means the machine's clock.
        zone: the zone of times without a zone; None means the machine's, with its summer time.

    Raises CliError: it is no time, is before 1970 or beyond 63 bits, or is probably in seconds.
    """
    now = now or datetime.now(UTC)
    text = text.strip()
    if re.fullmatch(r"\d+", text, re.ASCII):
        time_ms = _number(text)
    elif (relative_ms := relative_time_ms(text, _milliseconds(now))) is not None:
        time_ms = relative_ms
    else:
        time_ms = _milliseconds(_calendar_time(text, now, zone))
    if not 0 <= time_ms <= MAX_TIME_MS:
        raise CliError(f"the time {text!r} is before 1970 or too large for 63 bits")
    return time_ms


def _number(text: str) -> int:
    time_ms = int(text)
    if 0 < time_ms < MIN_TIME_NUMBER:
        raise CliError(
            f"the time {text!r} as unix milliseconds is {show_time(time_ms)}: for unix seconds add"
            " three digits (times are milliseconds), and write a date with dashes (2026-03-01)"
        )
    return time_ms


def _calendar_time(text: str, now: datetime, zone: tzinfo | None) -> datetime:
    try:
        if _CLOCK.fullmatch(text):
            clock = time.fromisoformat(text.zfill(5) if text.count(":") == 1 else text.zfill(8))
            when = datetime.combine(now.astimezone(zone).date(), clock)
        else:
            when = datetime.fromisoformat(text)
        if when.tzinfo is None:
            when = when.astimezone() if zone is None else when.replace(tzinfo=zone)
        return when.astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        raise CliError(
            f"cannot read the time {text!r}: use unix milliseconds, ISO 8601, a clock time"
            " like 14:05, or a time relative to now like -5m"
        ) from None


def _milliseconds(when: datetime) -> int:
    return (when - _EPOCH) // timedelta(milliseconds=1)


def show_time(time_ms: int) -> str:
    """A time in ISO 8601, UTC, with milliseconds; the number itself if it is after year 9999."""
    try:
        when = datetime.fromtimestamp(time_ms // 1_000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(time_ms)
    return f"{when:%Y-%m-%dT%H:%M:%S}.{time_ms % 1_000:03d}Z"

"""Arguments of the command line that several jobs have."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from ..finder.arguments import relative_time_ms
from .arguments import Range, checked_options
from .errors import OptionError

__all__ = [
    "TOKEN_VARIABLE",
    "add_fail_on_data_loss",
    "add_range",
    "add_storage_option",
    "add_topic",
    "add_topics",
    "check_file",
    "check_range",
    "range_of",
    "rate",
    "token_of",
]

TOKEN_VARIABLE = "PULSEMARK_TOKEN"  # noqa: S105  # the variable's name


def rate(text: str) -> float:
    """The argparse type of an amount in a second: a number above 0, with K, M or G for 1024..."""
    factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper())
    try:
        number = float(text if factor is None else text[:-1]) * (factor or 1)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e15:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0, with K, M or G")
    return number


def add_topics(parser: argparse.ArgumentParser) -> None:
    """The data folder, and which of its topics."""
    parser.add_argument(
        "path",
        help="the data folder; a broker may be writing to it; for audit, skew and verify also "
        "zk://HOST:PORT/ledgers: topics in BookKeeper",
    )
    add_topic(parser)


def add_topic(parser: argparse.ArgumentParser) -> None:
    """Which topics."""
    parser.add_argument(
        "--topic", action="append", metavar="NAME", help="only this topic; may be repeated"
    )


def add_fail_on_data_loss(parser: argparse.ArgumentParser) -> None:
    """Whether lost messages end the job."""
    parser.add_argument(
        "--fail-on-data-loss",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="lost messages are an error (default); --no-fail-on-data-loss logs them, and goes on"
        " with the others",
    )


def add_storage_option(parser: argparse.ArgumentParser) -> None:
    """How a Delta table's storage is reached."""
    parser.add_argument(
        "--storage-option",
        action="append",
        metavar="KEY=VALUE",
        help="for deltalake, for example AWS_REGION=eu-west-1; may be repeated",
    )


def add_range(parser: argparse.ArgumentParser, *, offsets: bool = False) -> None:
    """The data folder, its topics, and a range of them."""
    add_topics(parser)
    times = "ms since the epoch, ISO-8601 (UTC unless it says otherwise), or relative: -1h"
    parser.add_argument(
        "--starting-time", type=_moment, metavar="TIME", help=f"begin here; {times}"
    )
    parser.add_argument("--ending-time", type=_moment, metavar="TIME", help="end here")
    if offsets:
        parser.add_argument("--starting-offsets", metavar="INDEX", help="begin with this index")
        parser.add_argument("--ending-offsets", metavar="INDEX", help="end before this index")


def _moment(text: str) -> str:
    """The time, in milliseconds if it is relative to now: all tasks get the same moment."""
    time_ms = relative_time_ms(text, time.time_ns() // 1_000_000)
    return text if time_ms is None else str(max(time_ms, 0))


def range_of(given: argparse.Namespace) -> Range:
    """The range that was given."""
    bounds: Range = {"starting_time": given.starting_time, "ending_time": given.ending_time}
    if "starting_offsets" in given:
        bounds["starting_offsets"] = given.starting_offsets
        bounds["ending_offsets"] = given.ending_offsets
    return bounds


def check_range(given: argparse.Namespace) -> None:
    """Check folder, topics and range before a session is started."""
    checked_options(given.path, given.topic, **range_of(given))


def check_file(option: str, file: str | os.PathLike[str]) -> None:
    """Check before a long job that a file can be written. Raises OptionError."""
    path = Path(file).absolute()
    try:
        if path.is_dir():
            raise OptionError(option, str(file), "is a folder; name a file")
        probe = path.with_name(f".{path.name}.new")
        probe.touch()
        probe.unlink()
    except (OSError, ValueError) as error:
        if isinstance(error, OptionError):
            raise
        reason = f"cannot be written: {getattr(error, 'strerror', None) or error}"
        raise OptionError(option, str(file), reason) from error


def token_of(file: Path | None) -> str | None:
    """A token for authentication, from a file or the environment. Raises OptionError."""
    if file is None:
        return os.environ.get(TOKEN_VARIABLE)
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = f"cannot be read: {getattr(error, 'strerror', None) or error}"
        raise OptionError("tokenFile", str(file), reason) from error

"""The arguments that jobs share, in Python and on the command line.

A folder, topics and a range are checked before Spark starts work.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from ..finder.arguments import relative_time_ms
from ..ledger import FolderReader, TopicNotFoundError
from ..ledger.local.io.folder import MARKER_NAME
from .errors import OptionError
from .options import (
    MAX_INDEX,
    ReadOptions,
    camel,
    full_topic_name,
    integer,
    opened,
    parse_duration_ms,
)
from .plan import existing

T = TypeVar("T")


class Range(TypedDict, total=False):
    """Which entries of the topics a job reads; by default all of them.

    Times are ms since the epoch, or ISO-8601; they mean the first entry at or after them. Offsets
    are indexes. An end is the first that is left out.
    """

    starting_time: str | int | None
    ending_time: str | int | None
    starting_offsets: str | int | None
    ending_offsets: str | int | None
    min_partitions: int | None
    """Divide the work into at least this many tasks."""


def option_texts(
    path: str | os.PathLike[str], topics: str | Sequence[str] | None = None, **options: object
) -> dict[str, str]:
    """The source's options for a job's arguments, with their names in Python; None: not given.

    Raises OptionError for a bad name of a topic.
    """
    names = [topics] if isinstance(topics, str) else topics
    for name in names or ():
        try:
            full_topic_name(name)
        except ValueError as error:
            raise OptionError("topic", name, str(error)) from error
    given = {
        "path": path,
        "topicsPattern": "persistent://.*" if names is None else None,
        "topics": None if names is None else json.dumps(list(names)),
        **{camel(name): value for name, value in options.items()},
    }
    given |= {name: str(value).lower() for name, value in given.items() if isinstance(value, bool)}
    return {name: str(value) for name, value in given.items() if value is not None}


def checked_options(texts: Mapping[str, str]) -> ReadOptions:
    """The options of a read; folder and topics exist. Raises the errors of `audit`."""
    parsed = ReadOptions.parse(texts)
    try:
        _check(parsed)
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}"
        raise OptionError("path", texts["path"], reason) from error
    return parsed


def _check(options: ReadOptions) -> None:
    """Raise errors here, before Spark would wrap them into its own errors."""
    with opened(options.path, options.store) as reader:
        if isinstance(reader, FolderReader):
            existing(reader, options)
            return
        _, absent = options.select(reader.topics())
    if absent:
        raise TopicNotFoundError(absent[0])


def check_folder(option: str, folder: str | os.PathLike[str]) -> None:
    """Check before a long job that a folder is in no data folder, and exists or can be made.

    A broker would take strange files in its folder for what a crash left.

    Raises OptionError: it is in a data folder, or it or a folder above it is a file.
    """
    if not os.fspath(folder):
        raise OptionError(option, "", "is empty; name a folder")
    try:
        there = Path(folder).resolve()
        above = (there, *there.parents)
        existing = next(each for each in above if each.exists())
        data = next((each for each in above if _is_data(each)), None)
    except (OSError, ValueError, RuntimeError) as error:  # a NUL, links in a circle
        raise OptionError(option, str(folder), f"is not a folder's path: {error}") from error
    if data is not None:
        raise OptionError(option, str(folder), f"is inside the data folder {data}")
    if not existing.is_dir():
        what = "is a file" if existing == there else f"is below a file, {existing}"
        raise OptionError(option, str(folder), f"{what}; name a folder")


def _is_data(folder: Path) -> bool:
    return (folder / MARKER_NAME).exists()


def pairs(option: str, given: Sequence[str] | None) -> dict[str, str]:
    """The values of an option that is repeated as KEY=VALUE. Raises OptionError."""
    found: dict[str, str] = {}
    for text in given or ():
        key, sign, value = text.partition("=")
        if not key or not sign:
            raise OptionError(option, text, "is not of the form KEY=VALUE")
        if key in found:
            raise OptionError(option, text, f"{key} is given twice")
        found[key] = value
    return found


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


DEFAULT_DATA_DIR = "pulsemark-data"
"""As in all commands that take a data folder."""


def argparse_type(parse: Callable[[str], T]) -> Callable[[str], T]:
    """An argparse type whose errors say what is wrong with the text."""

    def parsed(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} {error}") from error

    return parsed


def _fixed_moment(text: str) -> str:
    """The argparse type of an absolute time."""
    if relative_time_ms(text, 0) is not None:
        reason = f"{text!r} means another time when the command is run again: write {moment(text)}"
        raise argparse.ArgumentTypeError(reason)
    return text


def moment(text: str) -> str:
    """Fix a relative time to milliseconds, so that all tasks get the same moment."""
    time_ms = relative_time_ms(text, time.time_ns() // 1_000_000)
    return text if time_ms is None else str(max(time_ms, 0))


TYPES: Mapping[str, Callable[[str], Any]] = {
    "TIME": moment,
    "FIXED_TIME": _fixed_moment,
    "AGE": argparse_type(parse_duration_ms),
    "RATE": rate,
    "N": argparse_type(integer(1, MAX_INDEX)),
    "PORT": argparse_type(integer(0, 65_535)),
    "SECONDS": float,
    "FILE": Path,
}
DATA_DIR = f"""
--data-dir=path PATH [{DEFAULT_DATA_DIR}]  the data folder; a broker may be writing to it
    (default: ./{DEFAULT_DATA_DIR})
"""
STORE = """
--store=path zk://HOST:PORT/ledgers  read from BookKeeper, whose ZooKeeper this is, instead of a
    folder
"""
TOPICS = "--topic NAME...  only this topic; may be repeated"
RANGE = f"""
{TOPICS}
--starting-time TIME  begin here; ms since the epoch, ISO-8601 (UTC unless it says otherwise), or
    relative: -1h
--ending-time TIME  end here
"""
FIXED_RANGE = f"""
{TOPICS}
--starting-time FIXED_TIME  begin here; ms since the epoch or ISO-8601 (UTC unless it says
    otherwise)
--ending-time FIXED_TIME  end here
--starting-offsets INDEX  begin with this index
--ending-offsets INDEX  end before this index
"""
"""For a command that must mean the same when it is run again; also by index."""
OF_ALL_JOBS = """
--json  print each row as a line of JSON
--cores N  tasks at once (default: all cores)
"""
LOSSES = """
--[no-]fail-on-data-loss [yes]  lost messages are an error (default);
    --no-fail-on-data-loss logs them, and goes on with the others
"""


def range_of(given: argparse.Namespace) -> Range:
    """The range in the command line's options."""
    bounds: Range = {"starting_time": given.starting_time, "ending_time": given.ending_time}
    if "starting_offsets" in given:
        bounds["starting_offsets"] = given.starting_offsets
        bounds["ending_offsets"] = given.ending_offsets
    return bounds


def check_file(option: str, file: str | os.PathLike[str]) -> None:
    """Check before a long job that a file can be written. Raises OptionError."""
    path = Path(file).absolute()
    try:
        if path.is_dir():
            raise OptionError(option, str(file), "is a folder; name a file")
        data = next((each for each in path.resolve().parents if _is_data(each)), None)
        if data is not None:
            raise OptionError(option, str(file), f"is inside the data folder {data}")
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

"""The arguments that jobs share, in Python and on the command line.

A folder, topics and a range are checked before Spark starts work.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict, Unpack

from ..finder.arguments import relative_time_ms
from ..ledger import FolderReader, TopicNotFoundError
from ..ledger.local.io.folder import MARKER_NAME
from .errors import OptionError
from .options import ReadOptions, full_topic_name, opened
from .plan import existing


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


_OPTIONS = {
    "starting_time": "startingTime",
    "ending_time": "endingTime",
    "starting_offsets": "startingOffsets",
    "ending_offsets": "endingOffsets",
    "min_partitions": "minPartitions",
}


def checked_options(
    path: str | os.PathLike[str], topics: str | Sequence[str] | None = None, **bounds: Unpack[Range]
) -> dict[str, str]:
    """The source's options for a job's arguments. Raises the errors of `audit`."""
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
        **{_OPTIONS[name]: value for name, value in bounds.items()},
    }
    options = {name: str(value) for name, value in given.items() if value is not None}
    parsed = ReadOptions.parse(options)
    try:
        _check(parsed)
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}"
        raise OptionError("path", str(path), reason) from error
    return options


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

    Raises:
        OptionError: it is in a data folder, or it or a folder above it is a file.
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


def check_new_folder(option: str, folder: Path) -> None:
    """Check that nothing is there yet, and that a folder can be made there. Raises OptionError."""
    try:
        if folder.exists() or folder.is_symlink():
            raise OptionError(option, str(folder), "exists already; name a new folder")
        check_folder(option, folder)
        parent = next(each for each in folder.absolute().parents if each.exists())
        tempfile.TemporaryDirectory(dir=parent).cleanup()
    except (OSError, ValueError) as error:
        if isinstance(error, OptionError):
            raise
        reason = f"cannot be written: {getattr(error, 'strerror', None) or error}"
        raise OptionError(option, str(folder), reason) from error


def _is_data(folder: Path) -> bool:
    return (folder / MARKER_NAME).exists()


def positive(text: str) -> int:
    """The argparse type of a number from 1 on."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not 1 or more")
    return number


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


def add_topics(
    parser: argparse.ArgumentParser, *, store: bool = False, target: str | None = None
) -> None:
    """The data folder, and which of its topics; ``target`` is the help of a job that writes one."""
    place = parser.add_mutually_exclusive_group()
    place.add_argument(
        "--data-dir",
        dest="path",
        metavar="PATH",
        default=DEFAULT_DATA_DIR,
        help=f"the data folder; a broker may be writing to it (default: ./{DEFAULT_DATA_DIR})",
    )
    if store:
        place.add_argument(
            "--store",
            dest="path",
            metavar="zk://HOST:PORT/ledgers",
            default=argparse.SUPPRESS,
            help="read from BookKeeper, whose ZooKeeper this is, instead of a folder",
        )
    parser.add_argument(
        "folders",
        nargs="*",
        metavar="FOLDER" if target is None else "TARGET",
        help=argparse.SUPPRESS if target is None else target,
    )
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


def take_folders(given: argparse.Namespace, *, writes: bool) -> None:
    """Take what was named without an option: the target of a job that ``writes``, and no more.

    Raises:
        OptionError: the data folder was named so, as in earlier versions.
    """
    *others, given.target = given.folders or [None]
    if others or (given.folders and (not writes or _is_data(Path(given.target)))):
        folder = given.folders[0]
        what = "is one folder too many" if others else "is a data folder"
        reason = f"the data folder to read is named by --data-dir {folder}"
        if not writes:
            reason += ", a table to write only by offload (--write-mode upsert: each key's latest)"
        reason = f"{what}; {reason}" if writes else reason
        raise OptionError("TARGET" if writes else "FOLDER", folder, reason)


TIMES = "ms since the epoch, ISO-8601 (UTC unless it says otherwise), or relative: -1h"


def add_range(parser: argparse.ArgumentParser, *, store: bool = False) -> None:
    """The data folder, its topics, and a range of them."""
    add_topics(parser, store=store)
    parser.add_argument("--starting-time", type=moment, metavar="TIME", help=f"begin here; {TIMES}")
    parser.add_argument("--ending-time", type=moment, metavar="TIME", help="end here")


def add_fixed_range(parser: argparse.ArgumentParser) -> None:
    """The same, for a command that must mean the same when it is run again; also by index."""
    add_topics(parser)
    times = "ms since the epoch or ISO-8601 (UTC unless it says otherwise)"
    parser.add_argument(
        "--starting-time", type=_fixed_moment, metavar="TIME", help=f"begin here; {times}"
    )
    parser.add_argument("--ending-time", type=_fixed_moment, metavar="TIME", help="end here")
    parser.add_argument("--starting-offsets", metavar="INDEX", help="begin with this index")
    parser.add_argument("--ending-offsets", metavar="INDEX", help="end before this index")


def _fixed_moment(text: str) -> str:
    """The argparse type of a time that is not relative to now."""
    if relative_time_ms(text, 0) is not None:
        reason = f"{text!r} means another time when the command is run again: write {moment(text)}"
        raise argparse.ArgumentTypeError(reason)
    return text


def moment(text: str) -> str:
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

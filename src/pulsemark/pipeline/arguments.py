"""The arguments that jobs share: a folder, topics and a range, checked before Spark starts work."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict, Unpack

from ..ledger import FolderReader, TopicNotFoundError
from .errors import OptionError
from .options import ReadOptions, select_topics
from .places import opened
from .plan import existing

__all__ = ["Range", "check_folder", "checked_options", "pairs", "positive"]


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
    given = {
        "path": path,
        "topicsPattern": "persistent://.*" if names is None else None,
        "topics": None if names is None else json.dumps(list(names)),
        **{_OPTIONS[name]: value for name, value in bounds.items()},
    }
    options = {name: str(value) for name, value in given.items() if value is not None}
    _check(ReadOptions.parse(options))
    return options


def _check(options: ReadOptions) -> None:
    """Raise errors here, before Spark would wrap them into its own errors."""
    with opened(options.path, options.store) as reader:
        if isinstance(reader, FolderReader):
            existing(reader, options)
            return
        _, absent = select_topics(options.topics, reader.topics())
    if absent:
        raise TopicNotFoundError(absent[0])


def check_folder(option: str, folder: Path, data: str | os.PathLike[str]) -> None:
    """Check before a long job that a folder is outside the data folder, and exists or can be made.

    A broker would take strange files in its folder for what a crash left.

    Raises:
        OptionError: it is in the data folder, or it or a folder above it is a file.
    """
    try:
        here, there = Path(data).resolve(), folder.resolve()
        existing = next(each for each in (there, *there.parents) if each.exists())
    except (OSError, ValueError, RuntimeError) as error:  # a NUL, links in a circle
        raise OptionError(option, str(folder), f"is not a folder's path: {error}") from error
    if here == there or here in there.parents:
        raise OptionError(option, str(folder), "is inside the data folder")
    if not existing.is_dir():
        what = "is a file" if existing == there else f"is below a file, {existing}"
        raise OptionError(option, str(folder), f"{what}; name a folder")


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

"""The arguments that jobs share: a folder, topics and a range, checked before Spark starts work."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from ..ledger import FolderReader, TopicNotFoundError
from .errors import OptionError
from .options import ReadOptions, select_topics


def checked_options(
    path: str | Path,
    topics: str | Sequence[str] | None,
    starting_time: str | int | None,
    ending_time: str | int | None,
    min_partitions: int | None,
) -> dict[str, str]:
    """The source's options for a job's arguments. Raises the errors of `audit`."""
    names = [topics] if isinstance(topics, str) else topics
    given = {
        "path": path,
        "topicsPattern": "persistent://.*" if names is None else None,
        "topics": None if names is None else json.dumps(list(names)),
        "startingTime": starting_time,
        "endingTime": ending_time,
        "minPartitions": min_partitions,
    }
    options = {name: str(value) for name, value in given.items() if value is not None}
    _check(ReadOptions.parse(options))
    return options


def _check(options: ReadOptions) -> None:
    """Raise errors here, before Spark would wrap them into its own errors."""
    with FolderReader(options.path) as folder:
        _, absent = select_topics(options.topics, folder.topics())
    if absent:
        raise TopicNotFoundError(absent[0])


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

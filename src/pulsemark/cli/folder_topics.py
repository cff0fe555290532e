"""Topics of a data folder, by the names that users give."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import CliError
from .options import DEFAULT_DATA_DIR

if TYPE_CHECKING:
    from ..ledger import FolderReader
    from ..ledger.bookkeeper.reader import BookKeeperReader
    from ..ledger.local.folder_reader import FolderLog

__all__ = ["data_dir_of", "names_in", "one_log", "partitions_among"]


def data_dir_of(args: argparse.Namespace, target: str) -> Path:
    """The folder of `--data-dir`, or the default one, for the topic `target`.

    Raises CliError if there is none: what was meant may be a path that does not exist.
    """
    folder: Path = args.data_dir or DEFAULT_DATA_DIR
    if folder.is_dir():
        return folder
    if args.data_dir is not None:
        raise CliError(f"{folder} is not a folder")
    if "://" not in target and ("/" in target or Path(target).suffix):
        raise CliError(f"{target} does not exist")
    raise CliError(
        f"there is neither a path {target} nor a data folder ./{folder}; name the folder of a topic"
        " with --data-dir; messages of a broker in memory: pulsemark consume TOPIC --peek --from"
        " earliest"
    )


def partitions_among(names: list[str], topic: str) -> list[str]:
    """Those of the names that are partitions of a topic, by their numbers."""
    from ..metadata.partition_names import partition_of

    read = {name: partition_of(name) for name in names}
    partitions = [name for name, (of, index) in read.items() if of == topic and index >= 0]
    return sorted(partitions, key=read.__getitem__)


def names_in(reader: FolderReader | BookKeeperReader, topic: str) -> list[str]:
    """The topic, or the partitions of a partitioned one that have entries."""
    names = reader.topics()
    return [topic] if topic in names else partitions_among(names, topic) or [topic]


def one_log(reader: FolderReader, topic: str) -> FolderLog:
    """The log of a topic. Raises TopicNotFoundError; CliError for a partitioned topic."""
    names = names_in(reader, topic)
    if names != [topic]:
        parts = ", ".join(name.rpartition("/")[2] for name in names)
        raise CliError(f"{topic} is partitioned: name one of {parts}")
    return reader.log(topic)

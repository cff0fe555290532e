"""Where commands read topics without a broker: a data folder, or Apache BookKeeper (`--store`).

Topics in BookKeeper are this package's own or Apache Pulsar's. Nothing is written there: no ledger
is recovered or fenced, and the brokers that write to them notice nothing.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ..ledger import FolderReader
from .errors import CliError
from .options import DEFAULT_DATA_DIR

if TYPE_CHECKING:
    from ..ledger.bookkeeper.reader import BookKeeperReader
    from ..ledger.local.folder_reader import FolderLog


def add_store(parser: argparse._ActionsContainer) -> None:
    """`--store` and `--store-root`."""
    parser.add_argument(
        "--store",
        metavar="zk://HOST:PORT/ledgers",
        help="read from Apache BookKeeper, whose ZooKeeper this is, instead of a folder: "
        "topics of pulsemark or of Apache Pulsar",
    )


def open_store_reader(address: str) -> BookKeeperReader:
    """A reader of the topics there. Raises CliError for a bad address, CatalogError."""
    from ..ledger.bookkeeper.address import StoreAddressError
    from ..ledger.bookkeeper.reader import BookKeeperReader

    try:
        return BookKeeperReader.open(address)
    except StoreAddressError as error:
        raise CliError(str(error)) from error


def reader_of(args: argparse.Namespace) -> FolderReader | BookKeeperReader:
    """The reader of `--store`, else of `--data-dir`. Raises as `FolderReader` does, CliError."""
    if args.store is None:
        folder = args.data_dir or DEFAULT_DATA_DIR
        if not folder.is_dir() and hasattr(args, "grpc"):
            raise CliError(
                f"{folder} is not a folder; a running broker, also one in memory, is asked with"
                " --grpc HOST:PORT"
            )
        return FolderReader(folder)
    if args.data_dir is not None:
        raise CliError("--data-dir and --store are two places: give one of them")
    return open_store_reader(args.store)


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

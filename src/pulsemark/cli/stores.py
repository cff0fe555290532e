"""`--store`: topics that are in Apache BookKeeper, in the place of a data folder.

They are this package's own or Apache Pulsar's. Nothing is written there: no ledger is recovered or
fenced, and the brokers that write to them notice nothing.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..ledger import FolderReader
from .errors import CliError
from .options import DEFAULT_DATA_DIR

if TYPE_CHECKING:
    from ..ledger.bookkeeper.reader import BookKeeperReader


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

"""The stores that commands read without a broker: a data folder, or BookKeeper (`--store`).

Topics in BookKeeper are this package's own or Apache Pulsar's. Nothing is written there: no ledger
is recovered or fenced, and the brokers that write to them notice nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..ledger import FolderReader
from .brokers import DEFAULT_ADMIN_URL, admin_client, target_path
from .options import DEFAULT_DATA_DIR
from .parsing import CliError
from .records import Damage, Row, row_of_broker

if TYPE_CHECKING:
    from ..client.admin import AdminClient
    from ..compaction.compacted_log import CompactedLog
    from ..ledger import TopicLog
    from ..ledger.bookkeeper.reader import BookKeeperReader
    from ..ledger.local.folder_reader import FolderLog


T = TypeVar("T")
UNASKED_TIMEOUT_S = 2.0
"""What listens at the default address may be something else."""
PAGE = "50"
"""Entries that a broker lists after one; the most that it allows."""


STORE = """
--store zk://HOST:PORT/ledgers  read from Apache BookKeeper, whose ZooKeeper this is, instead of a
    folder: topics of pulsemark or of Apache Pulsar
"""


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
        if not folder.is_dir() and args.data_dir is None and hasattr(args, "url"):
            raise CliError(
                f"there is no data folder ./{folder}, and no broker answers at {DEFAULT_ADMIN_URL}:"
                " name one of them with --data-dir or --url"
            )
        return FolderReader(folder)
    if args.data_dir is not None:
        raise CliError("--data-dir and --store are two places: give one of them")
    return open_store_reader(args.store)


def data_dir_of(args: argparse.Namespace, target: str) -> Path:
    """The folder of `--data-dir`, or the default one, for the topic `target`.

    Raises CliError if the folder is missing: the user may have meant a path that does not exist.
    """
    folder: Path = args.data_dir or DEFAULT_DATA_DIR
    if folder.is_dir():
        return folder
    if args.data_dir is not None:
        raise CliError(f"{folder} is not a folder")
    if "://" not in target and ("/" in target or Path(target).suffix):
        what = "is not a folder" if Path(target).exists() else "does not exist"
        raise CliError(f"{target} {what}")
    raise CliError(
        f"there is neither a path {target} nor a data folder ./{folder}: name the folder with"
        " --data-dir, or a running broker with --url; pulsemark consume TOPIC --peek shows messages"
    )


def partitions_among(names: list[str], topic: str) -> list[str]:
    """The names that are partitions of a topic, by their numbers."""
    from ..metadata.partition_names import partition_of

    read = {name: partition_of(name) for name in names}
    partitions = [name for name, (of, index) in read.items() if of == topic and index >= 0]
    return sorted(partitions, key=read.__getitem__)


def names_in(reader: FolderReader | BookKeeperReader, topic: str) -> list[str]:
    """The topic, or the partitions of a partitioned one that have entries."""
    names = reader.topics()
    return [topic] if topic in names else partitions_among(names, topic) or [topic]


def log_in(reader: FolderReader | BookKeeperReader, topic: str) -> TopicLog | CompactedLog:
    """The log that readers of a topic get; for a cleaned topic in a folder, its compacted form.

    Raises TopicNotFoundError, CatalogError.
    """
    from ..compaction.current_view import log_of_folder

    return log_of_folder(reader, topic) if isinstance(reader, FolderReader) else reader.log(topic)


def one_log(reader: FolderReader, topic: str) -> FolderLog:
    """The log of a topic. Raises TopicNotFoundError; CliError for a partitioned topic."""
    names = names_in(reader, topic)
    if names != [topic]:
        parts = ", ".join(name.rpartition("/")[2] for name in names)
        raise CliError(f"{topic} is partitioned: name one of {parts}")
    return reader.log(topic)


def from_broker(
    args: argparse.Namespace, topic: str, ask: Callable[[AdminClient, str], T]
) -> list[tuple[str, T]] | None:
    """The results of `ask` for the topic, or for each of its partitions, over HTTP.

    The broker is that of `--url`. Without any place (no `--data-dir` and no `--store`), it is the
    one on this machine. None: a folder is to be read, since no broker runs there, or it does not
    have the topic.

    Raises CliError, OSError; AdminError and UnreachableError of the broker that was named.
    """
    from ..client.errors import AdminError, UnreachableError
    from ..metadata.partition_names import partition_name

    is_named = args.url is not None
    if not is_named and (args.data_dir is not None or args.store is not None):
        return None
    if not is_named:
        args.url = DEFAULT_ADMIN_URL
        args.request_timeout = args.request_timeout or UNASKED_TIMEOUT_S
    admin = admin_client(args)
    try:
        parts = range(admin.partitions(topic))
        names = [partition_name(topic, number) for number in parts] or [topic]
        found = [(name, ask(admin, name)) for name in names]
    except (AdminError, UnreachableError) as error:
        if is_named or (isinstance(error, AdminError) and not DEFAULT_DATA_DIR.is_dir()):
            raise
        return None
    if not is_named:
        print(f"pulsemark: the broker at {args.url} answers", file=sys.stderr)
    return found


def entries_page(admin: AdminClient, topic: str, **query: str) -> dict[str, Any]:
    """Entries of a topic from a place on: `time`, `index` or `position`, and how many `after`.

    Raises AdminError, UnreachableError; CliError if it is not a pulsemark that answers.
    """
    page = admin.request("GET", f"{target_path(topic)[1]}/entries", before="0", **query)
    if not isinstance(page, dict) or "found" not in page:
        raise CliError(f"{admin.url} does not list entries; is it a pulsemark broker?")
    return page


def broker_rows(
    admin: AdminClient, topic: str, place: dict[str, str], *, has_all: bool = False
) -> Iterator[Row | Damage]:
    """The entries of a topic from a place to its present end. The first page is read at once.

    Without `has_all` nothing of transactions that are open or aborted.
    """
    first = entries_page(admin, topic, after=PAGE, **place)
    return _rows(admin, topic, first, has_all=has_all)


def _rows(
    admin: AdminClient, topic: str, page: dict[str, Any], *, has_all: bool
) -> Iterator[Row | Damage]:
    end_index = page["nextIndex"]
    while page["entries"]:
        for entry in page["entries"]:
            if entry.get("firstIndex", -1) >= end_index:
                return
            if has_all or not entry.get("uncommitted"):
                yield row_of_broker(entry)
        last = page["entries"][-1]
        place = f"{last['ledgerId']}:{last['entryId'] + 1}"
        page = entries_page(admin, topic, after=PAGE, position=place)

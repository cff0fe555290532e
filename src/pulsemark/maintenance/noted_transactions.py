"""The transactions of logs that another process owns, by the notes in its metadata store."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..ledger.local.io.folder import CATALOG_NAME
from ..ledger.store import TRANSACTIONS_NOTE_KIND
from ..ledger.transactions import Transactions
from .verify_catalog import read_properties

if TYPE_CHECKING:
    from ..ledger.bookkeeper.reader import BookKeeperReader


def follow_transactions(place: Path | BookKeeperReader, logs: Iterable[Any]) -> None:
    """Let logs of a folder or store know their transactions, as far as the logs reach.

    A topic's note is stored before its first entry of a transaction, so it is read after the log.
    Topics without one cost no more than to look for it. Raises CatalogError, OSError.
    """
    new = {}
    for log in logs:
        if log.transactions is None:
            new[str(log.topic_id)] = log
        else:
            log.transactions.follow(log)
    if isinstance(place, Path):
        notes = read_properties(place / CATALOG_NAME, TRANSACTIONS_NOTE_KIND, new)
    else:
        notes = place.transactions_notes(new)
    for key, note in notes.items():
        transactions = Transactions()
        transactions.load(note, new[key])
        new[key].transactions = transactions

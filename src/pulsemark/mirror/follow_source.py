"""The source of a follower: a broker's gRPC port, or a data folder.

Both give a `StoreState` (topics, values, subscriptions), each topic's epochs and ledgers, and whole
entries with their positions.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from ..finder.following import StoreState, is_followed, state_of
from ..ledger import (
    Entry,
    EpochHistory,
    FolderLog,
    FolderReader,
    LedgerExtent,
    Position,
    StoreOptions,
    TopicLog,
    TopicNotFoundError,
    entries_of,
)
from ..ledger.cursors.cursor_store import CURSOR_TOPIC, CursorLedger, CursorStore
from ..ledger.entry import StoredEntry
from ..ledger.local.io.folder import CATALOG_NAME
from ..maintenance.verify_catalog import connect_read_only
from ..proto.cursor_pb2 import CursorRecord
from .entries import Options
from .errors import EndpointError

if TYPE_CHECKING:
    from ..finder.client import SeekClient

History = tuple[EpochHistory, tuple[LedgerExtent, ...]]
READ_ENTRIES = 5_000
"""How many entries are asked for at once: so a busy topic does not hold up the others."""
_SCHEMES = {"grpc": False, "grpcs": True}


class FollowSource(Protocol):
    """A data folder that is followed, local or served by a broker.

    Raises ServerUnavailableError, DeadlineExceededError if it cannot be reached now,
    TopicNotFoundError, CorruptEntryError.
    """

    endpoint: str

    def state(self, known_digest: bytes) -> StoreState:
        """Its topics, values and subscriptions."""

    def history(self, topic: str) -> History:
        """A topic's epochs and ledgers."""

    def read(self, topic: str, start: Position, limit: int = READ_ENTRIES) -> Iterator[StoredEntry]:
        """Entries from ``start`` on, up to the topic's end or the limit."""

    def close(self) -> None:
        """Close everything; a later call opens it again."""


def open_followed(endpoint: str, options: Options) -> FollowSource:
    """The source at an endpoint. Raises EndpointError, LedgerError, InvalidFieldError, OSError."""
    scheme, separator, rest = endpoint.partition("://")
    if not separator or scheme == "file":
        folder = Path(rest if separator else endpoint)
        if not folder.is_dir():
            raise EndpointError(endpoint, "there is no such data folder")
        return FolderFollowed(folder)
    if scheme not in _SCHEMES:
        what = "a follower needs the broker's gRPC port (grpc://HOST:PORT, grpcs:// with TLS)"
        raise EndpointError(endpoint, f"{what}, or a data folder")
    return BrokerFollowed(endpoint, rest.rstrip("/"), options, is_tls=_SCHEMES[scheme])


class BrokerFollowed:
    """A broker's folder, read over its gRPC port."""

    def __init__(self, endpoint: str, target: str, options: Options, *, is_tls: bool) -> None:
        from ..finder.client import ClientTls, SeekClient, checked_target

        self.endpoint = endpoint
        tls = ClientTls(ca=options.trusted_certificates) if is_tls else None
        checked_target(target)
        self._make = partial(SeekClient, target, token=options.source_token, tls=tls)
        self._client: SeekClient | None = None

    @property
    def calls(self) -> SeekClient:
        """The client, connected at the first use."""
        if self._client is None:
            self._client = self._make()
        return self._client

    def state(self, known_digest: bytes) -> StoreState:
        """Its topics, values and subscriptions."""
        return self.calls.follow_state(known_digest, timeout_s=60.0)

    def history(self, topic: str) -> History:
        """A topic's epochs and ledgers."""
        return self.calls.history(topic)

    def read(self, topic: str, start: Position, limit: int = READ_ENTRIES) -> Iterator[StoredEntry]:
        """Entries from ``start`` on."""
        return self.calls.read_entries(topic, start=start, max_entries=limit, stored=True)

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()
            self._client = None


class FolderFollowed:
    """A data folder, also while a broker writes to it."""

    def __init__(self, folder: Path) -> None:
        self.endpoint = str(folder)
        self._folder = folder
        self._reader: FolderReader | None = None
        self._logs: dict[str, FolderLog] = {}
        self._names: dict[str, int] = {}
        self._cursors: tuple[Position, list[CursorRecord]] | None = None
        self._open()

    def _open(self) -> FolderReader:
        if self._reader is None:
            self._reader = FolderReader(self._folder)
        return self._reader

    def state(self, known_digest: bytes) -> StoreState:
        """Its topics, values and subscriptions."""
        self._open()
        if not (self._folder / CATALOG_NAME).exists():
            raise EndpointError(self.endpoint, "the data folder has no catalog")
        with closing(connect_read_only(self._folder / CATALOG_NAME)) as db:
            query = "SELECT key, value FROM property WHERE kind=? ORDER BY key"
            state = state_of(
                lambda: self._topics(db),
                self._refreshed,
                lambda kind: ((key, bytes(value)) for key, value in db.execute(query, (kind,))),
                self._snapshots,
                lambda: max((row[0] for row in db.execute(_NEXT_ID)), default=0),
            )
        if state.digest == known_digest:
            state.values = None
        return state

    def _topics(self, db: sqlite3.Connection) -> dict[str, int]:
        self._names = dict(db.execute("SELECT name, id FROM topic"))
        return self._names

    def _refreshed(self) -> Mapping[str, TopicLog]:
        reader = self._open()
        for gone in reader.refresh(list(self._logs.values())):
            del self._logs[gone]
        names = [name for name in self._names if is_followed(name)]
        self._logs |= reader.logs([name for name in names if name not in self._logs])
        return {name: self._log(name) for name in names}

    def _snapshots(self) -> Iterable[CursorRecord]:
        try:
            log = self._open().log(CURSOR_TOPIC)
        except TopicNotFoundError:
            return []
        if self._cursors is None or self._cursors[0] != log.end_position:
            store = CursorStore(cast("CursorLedger", log), StoreOptions())
            self._cursors = log.end_position, list(store.snapshots())
        # A record is changed by the one who takes it over.
        return [CursorRecord.FromString(r.SerializeToString()) for r in self._cursors[1]]

    def history(self, topic: str) -> History:
        """A topic's epochs and ledgers."""
        log = self._log(topic)
        return log.epoch_history(), log.ledger_extents()

    def read(self, topic: str, start: Position, limit: int = READ_ENTRIES) -> Iterator[Entry]:
        """Entries from ``start`` on."""
        for number, entry in enumerate(entries_of(self._log(topic), start)):
            if number == limit:
                return
            yield entry

    def _log(self, topic: str) -> TopicLog:
        """The topic's log, which may have no entries."""
        if topic not in self._logs:
            self._logs |= self._open().logs([topic])
        if topic not in self._logs and topic not in self._names:
            raise TopicNotFoundError(topic)
        return self._logs.get(topic) or TopicLog(topic, ())

    def close(self) -> None:
        """Close the files."""
        self._logs.clear()
        if self._reader is not None:
            self._reader.close()
            self._reader = None


_NEXT_ID = "SELECT value FROM meta WHERE key='next_ledger_id'"

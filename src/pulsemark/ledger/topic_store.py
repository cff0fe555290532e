"""The topics of an open store, on any engine: opening, deleting and closing them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Self, TypeVar

from .cursors.cursor_store import CURSOR_TOPIC, CursorStore
from .errors import (
    LedgerError,
    OwnershipLostError,
    ReservedTopicError,
    StoreClosedError,
    TopicNotFoundError,
    UnsupportedVersionError,
)
from .limits import MAX_TOPIC_NAME_BYTES
from .run import Run
from .store import (
    CLEANER_PROPERTY_KIND,
    CONTROL_NOTE_KIND,
    DELETING_KIND,
    PENDING_ACKS_KIND,
    SEEN_PROPERTY_KIND,
    TRANSACTIONS_NOTE_KIND,
    VIEW_PROPERTY_KIND,
    VIEW_TOPIC_PREFIX,
    BadViewError,
    LedgerStore,
    unpack_property,
)
from .store_core import StoreCore, StoreSetup
from .store_state import StoreState
from .topic_log import ControlPositions, TopicLog, full_topic_name
from .transactions import Transactions
from .writer import ManagedLedger

_log = logging.getLogger(__name__)

INTERNAL_TOPIC_PREFIX = "internal/"
"""Names of logs that programs keep for themselves (`TopicStore.open_internal`)."""
_TOPIC_KINDS = (
    VIEW_PROPERTY_KIND,
    CLEANER_PROPERTY_KIND,
    SEEN_PROPERTY_KIND,
    CONTROL_NOTE_KIND,
    TRANSACTIONS_NOTE_KIND,
    PENDING_ACKS_KIND,
)
"""Kinds of the values by topic id that go with a topic."""
T = TypeVar("T")


class TopicStore(StoreCore):
    """Topics on an engine.

    After ``close``, its methods and those of its ledgers and cursors raise StoreClosedError; after
    a failure that it cannot repair, StoreFailedError; in a child of the process that opened it,
    ForkedStoreError. In a child ``close`` does nothing.
    """

    def __init__(self, engine: LedgerStore, state: StoreState, setup: StoreSetup) -> None:
        """Take over an engine. Raises as ``open_topic``, but no TopicNotFoundError, ValueError."""
        super().__init__(engine, state, setup)
        self._open_lock = threading.RLock()
        self._close_lock = threading.Lock()
        self._ledgers: dict[str, ManagedLedger] = {}
        self._closed = False
        try:
            engine.start(self.committer)
            self._topic_ids = self.catalog.topics()
            of_cursors = self._make_ledger(CURSOR_TOPIC, create=True)
            self.cursors = CursorStore(of_cursors, setup.options, state)
            of_cursors.recent.reader_left()  # it was read to its end, and will not be again
            self._end_deletions()
        except BaseException:
            self._stop_threads()
            raise

    # Topics

    def distinct(self) -> list[TopicStore]:
        """This one store: a broker of a cluster has several as one."""
        return [self]

    def topic_names(self) -> list[str]:
        """Full names of the topics that clients see, sorted. Raises StoreClosedError."""
        self.state.check_process()
        if self._closed:
            raise StoreClosedError(self.state.name)
        return sorted(name for name in self._topic_ids if not _is_reserved(name))

    def open_topic(self, name: str, *, create: bool = True) -> ManagedLedger:
        """The managed ledger of a topic, the same object each time. Blocks.

        A short name is completed as by Pulsar's clients (`topic_names`): `orders` opens
        `persistent://public/default/orders`.

        Raises TopicNotFoundError if there is no such topic and ``create`` is False,
        ReservedTopicError for a name of the store itself, ValueError for a new topic whose name is
        empty, has a wrong number of parts, or is longer than a segment's header can hold,
        TypeError for what is no str, StoreClosedError, CatalogError, OSError.
        """
        if not isinstance(name, str):
            raise TypeError(f"a topic's name is a str, not {name!r}")
        if _is_reserved(name):
            raise ReservedTopicError(name)
        return self.open_view(self._full_name(name), create=create)

    def _full_name(self, name: str) -> str:
        """The name as it is kept. Folders of older versions may have topics with short names."""
        return name if name in self._topic_ids else full_topic_name(name)

    def add_topics(self, names: Sequence[str]) -> None:
        """Create those of these topics that do not exist, in one change of the catalog. Blocks.

        Names that no topic can have are left out: `open_topic` refuses them. Raises
        StoreClosedError, CatalogError; then none is created.
        """
        self.state.check()
        self.uninterrupted.run(partial(self._add_topics, names))

    def _add_topics(self, names: Sequence[str]) -> None:
        with self._open_lock:
            if self._closed:
                raise StoreClosedError(self.state.name)
            new = [
                name
                for name in names
                if name not in self._topic_ids and not _is_reserved(name) and _is_name(name)
            ]
            if new:
                self._topic_ids.update(self.catalog.create_topics(new))

    def open_internal(self, name: str) -> ManagedLedger:
        """Open a log that a program itself uses; not listed. Raises as `open_topic`."""
        return self.open_view(INTERNAL_TOPIC_PREFIX + name)

    def open_view(self, name: str, *, create: bool = True) -> ManagedLedger:
        """As `open_topic`, for a compacted view's own topic (see `current_view`)."""
        self.state.check()
        return self.uninterrupted.run(partial(self._open_topic, name, create=create))

    def _open_topic(self, name: str, *, create: bool) -> ManagedLedger:
        with self._open_lock:
            if self._closed:
                raise StoreClosedError(self.state.name)
            ledger = self._ledgers.get(name)
            if ledger is None:
                try:
                    ledger = self._make_ledger(name, self.cursors, create=create)
                except OwnershipLostError as error:
                    self.state.fail(error)
                    raise
            return ledger

    def _make_ledger(
        self, name: str, cursors: CursorStore | None = None, *, create: bool
    ) -> ManagedLedger:
        self.state.check()
        topic_id = self._topic_ids.get(name)
        if topic_id is None:
            if not create:
                raise TopicNotFoundError(name)
            if not _is_name(name):
                raise ValueError(
                    f"a topic's name has 1 to {MAX_TOPIC_NAME_BYTES} bytes, not "
                    f"{len(name.encode())}: {name[:40]!r}"
                )
            topic_id = self.catalog.create_topic(name)
            self._topic_ids[name] = topic_id
        segments = self.engine.open(name, topic_id)
        ledger = ManagedLedger(
            self,
            name,
            topic_id,
            segments,
            self.engine.freeing(self.next_ledger_id),
            index_floor=self._index_floor(name, topic_id, segments),
            cursors=cursors,
            # The store's own topic of cursors has only control entries.
            controls=None if cursors is None else self._controls(topic_id, segments),
            transactions=self._transactions(name, topic_id, segments),
        )
        self._ledgers[name] = ledger
        return ledger

    def _controls(self, topic_id: int, segments: list[Run]) -> ControlPositions:
        """The positions of a topic's control entries."""
        key = str(topic_id)
        controls = ControlPositions(lambda note: self.catalog.put(CONTROL_NOTE_KIND, key, note))
        note = self.catalog.get(CONTROL_NOTE_KIND, key)
        if note is not None:
            controls.load(note, segments)
        return controls

    def _transactions(self, name: str, topic_id: int, segments: list[Run]) -> Transactions | None:
        """A topic's transactions; None: it never had any."""
        note = self.catalog.get(TRANSACTIONS_NOTE_KIND, str(topic_id))
        if note is None:
            return None
        transactions = Transactions(self.transactions_noter(topic_id))
        transactions.load(note, TopicLog(name, segments))
        return transactions

    def _index_floor(self, name: str, topic_id: int, segments: list[Run]) -> int:
        """A lower bound of the next index, from the view: the newest ledger may be lost."""
        value = self.catalog.get(VIEW_PROPERTY_KIND, str(topic_id))
        if value is None:
            return 0
        try:
            _, summary = unpack_property(value, name)
        except (BadViewError, UnsupportedVersionError):
            return 0  # the error is raised where the view is opened
        newest = segments[-1].ledger_id if segments else -1
        return summary.next_index if newest <= summary.horizon.ledger_id else 0

    def delete_topic(self, name: str) -> None:
        """Remove a topic with its entries, cursors and compacted views. Blocks.

        If it raises, the topic is unchanged. It is deleted, also after a crash, once the metadata
        store does not have it; the rest is then removed when the store is next opened. Raises
        TopicNotFoundError, ReservedTopicError, StoreClosedError, CatalogError, OSError.
        """
        if _is_reserved(name):
            raise ReservedTopicError(name)
        self.delete_view(self._full_name(name))

    def delete_view(self, name: str) -> None:
        """As `delete_topic`, for a compacted view's own topic."""
        self.state.check()
        self.uninterrupted.run(partial(self._delete_topic, name))

    def _delete_topic(self, name: str) -> None:
        with self._open_lock:
            ledger = self._open_topic(name, create=False)
            with ledger.refusing_appends():
                self.committer.flush()
                self.committer.sync_acknowledged()
                give_back_space = self.engine.remove_topic(
                    ledger.topic_id, ledger.all_segments(), (DELETING_KIND, str(ledger.topic_id))
                )
                ledger.deleted()
            del self._ledgers[name], self._topic_ids[name]
            try:
                give_back_space()
                self._delete_belongings(ledger.topic_id)
            except (OSError, LedgerError) as error:
                _log.warning("%s: deleted; the next opening removes the rest: %s", name, error)

    def _delete_belongings(self, topic_id: int) -> None:
        """Remove the cursors and compacted views of a deleted topic."""
        forgotten = self.cursors.forget_topic(topic_id)
        prefix = f"{VIEW_TOPIC_PREFIX}{topic_id}/"
        for name in [name for name in self._topic_ids if name.startswith(prefix)]:
            self._delete_topic(name)
        self.catalog.write((kind, str(topic_id), None) for kind in _TOPIC_KINDS)
        for commit in forgotten:
            commit.wait()
        self.committer.sync_acknowledged()
        self.catalog.delete(DELETING_KIND, str(topic_id))

    def _end_deletions(self) -> None:
        """Finish the deletion of topics that a process began before it ended."""
        there = {str(topic_id) for topic_id in self._topic_ids.values()}
        for topic_id, _ in self.catalog.items(DELETING_KIND):
            try:
                if topic_id in there:  # it still has all entries: it was not deleted
                    self.catalog.delete(DELETING_KIND, topic_id)
                else:
                    self._delete_belongings(int(topic_id))
            except (OSError, LedgerError) as error:
                _log.warning("topic %s: the next opening removes the rest: %s", topic_id, error)

    # The whole

    def freeing(self, work: Callable[[], T]) -> T:
        """Do work that frees space, or must work on a full disk. Raises what ``work`` does."""
        return self.engine.freeing(work)

    def probe(self) -> None:
        """Check whether the engine takes writes, apart from any ledger. Blocks. Raises OSError."""
        self.state.check()
        self.engine.probe()

    def checkpoint(self) -> None:
        """Have the engine make a checkpoint (see `LedgerStore.checkpoint`). Blocks."""
        self.state.check()
        self.uninterrupted.run(self.engine.checkpoint)

    def abandon(self) -> None:
        """Close a store that was lost to another owner; nothing more has to be stored. Blocks."""
        self.close()

    def close(self) -> None:
        """Close the store; a second call waits for the first and does nothing. Blocks.

        If the engine fails, the ownership is given up, OSError or CatalogError raised, and what was
        acknowledged is there at the next opening. A signal handler's exception only ends the
        waiting.
        """
        if self.state.is_foreign:
            return
        self.committer.refuse_committer("close")
        if self.uninterrupted.run(self._close):
            self.uninterrupted.join()

    def _close(self) -> bool:
        """Whether the store is closed now. A callback does not wait for another thread that is
        closing: that thread waits for the callbacks.
        """
        if not self._close_lock.acquire(blocking=not self._delivery.is_own_thread):
            return False
        try:
            with self._open_lock:
                is_first, self._closed = not self._closed, True
            if is_first:
                self._end()
        finally:
            self._close_lock.release()
        return True

    def _end(self) -> None:
        with ExitStack() as at_the_end:
            at_the_end.callback(self.state.close)
            at_the_end.callback(self.engine.close)
            at_the_end.callback(self._stop_threads)
            at_the_end.callback(self.tail_cache.close)
            for ledger in self._ledgers.values():
                ledger.close()
            self.committer.flush()
            self.engine.finish()
            self.state.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _is_reserved(name: str) -> bool:
    return name == CURSOR_TOPIC or name.startswith((VIEW_TOPIC_PREFIX, INTERNAL_TOPIC_PREFIX))


def _is_name(name: str) -> bool:
    return 1 <= len(name.encode()) <= MAX_TOPIC_NAME_BYTES

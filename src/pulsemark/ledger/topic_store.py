"""The topics of an open store on any engine: opened when first asked for, deleted, closed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Self, TypeVar

from ..metadata import Clock
from .commit.delivery import Notify
from .cursors.cursor_store import CURSOR_TOPIC, CursorStore
from .errors import (
    LedgerError,
    ReservedTopicError,
    StoreClosedError,
    TopicNotFoundError,
    UnsupportedVersionError,
)
from .limits import MAX_TOPIC_NAME_BYTES
from .managed_ledger import ManagedLedger
from .options import StoreOptions
from .property_kinds import DELETING_KIND, SEEN_PROPERTY_KIND
from .run import Run
from .store import LedgerStore
from .store_core import StoreCore
from .store_state import StoreState
from .view_property import VIEW_PROPERTY_KIND, VIEW_TOPIC_PREFIX, BadViewError, unpack_property

_log = logging.getLogger(__name__)
T = TypeVar("T")


class TopicStore(StoreCore):
    """Topics on an engine.

    Its methods, and those of its ledgers and cursors, raise StoreClosedError once it is closed,
    StoreFailedError once something failed that it cannot repair, and ForkedStoreError in a child
    of the process that opened it. In a child ``close`` does nothing.
    """

    def __init__(
        self,
        engine: LedgerStore,
        state: StoreState,
        *,
        clock: Clock,
        options: StoreOptions,
        notify: Notify | None = None,
        threaded: bool = True,
    ) -> None:
        """Take over an engine that was just made. Blocks. Raises as ``open_topic``.

        ``notify`` is how commit callbacks are run (``loop.call_soon_threadsafe``): it hands a call
        over and does not run it. Without one they run in a thread of the store that does nothing
        else, and may call every method. ``threaded`` False is for simulations: the store has no
        threads, and commits are made by those who wait for them.
        """
        super().__init__(
            engine, state, clock=clock, options=options, notify=notify, threaded=threaded
        )
        self._open_lock = threading.RLock()
        self._close_lock = threading.Lock()
        self._ledgers: dict[str, ManagedLedger] = {}
        self._closed = False
        try:
            engine.start(self.committer)
            self._topic_ids = self.catalog.topics()
            of_cursors = self._make_ledger(CURSOR_TOPIC, create=True)
            self.cursors = CursorStore(of_cursors, options)
            of_cursors.recent.reader_left()  # it was read to its end, and will not be again
            self._end_deletions()
        except BaseException:
            self._stop_threads()
            raise

    # Topics

    def topic_names(self) -> list[str]:
        """Full names of all topics, sorted; without those that the store has for itself.

        Raises StoreClosedError.
        """
        self.state.check_process()
        if self._closed:
            raise StoreClosedError(self.state.name)
        return sorted(name for name in self._topic_ids if not _is_reserved(name))

    def open_topic(self, name: str, *, create: bool = True) -> ManagedLedger:
        """The managed ledger of a topic, the same object each time. Blocks.

        Raises TopicNotFoundError when there is none and ``create`` is false, ReservedTopicError
        for a name that the store keeps for itself, ValueError for a new one that has no name or
        one longer than a segment's header can hold, StoreClosedError, CatalogError, OSError.
        """
        if _is_reserved(name):
            raise ReservedTopicError(name)
        return self.open_view(name, create=create)

    def open_view(self, name: str, *, create: bool = True) -> ManagedLedger:
        """As `open_topic`, for a compacted view's own topic (see `current_view`)."""
        self.state.check()
        return self.aside.run(partial(self._open_topic, name, create=create))

    def _open_topic(self, name: str, *, create: bool) -> ManagedLedger:
        with self._open_lock:
            if self._closed:
                raise StoreClosedError(self.state.name)
            ledger = self._ledgers.get(name)
            if ledger is None:
                ledger = self._make_ledger(name, self.cursors, create=create)
            return ledger

    def _make_ledger(
        self, name: str, cursors: CursorStore | None = None, *, create: bool
    ) -> ManagedLedger:
        self.state.check()
        topic_id = self._topic_ids.get(name)
        if topic_id is None:
            if not create:
                raise TopicNotFoundError(name)
            if not 1 <= len(name.encode()) <= MAX_TOPIC_NAME_BYTES:
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
        )
        self._ledgers[name] = ledger
        return ledger

    def _index_floor(self, name: str, topic_id: int, segments: list[Run]) -> int:
        """Indexes below this were given, though the newest ledger is lost.

        The compacted view remembers how far the log went. Where the log ends before that, its
        end was lost: a tail that is cut off leaves a newer ledger in its place.
        """
        value = self.catalog.get(VIEW_PROPERTY_KIND, str(topic_id))
        if value is None:
            return 0
        try:
            _, summary = unpack_property(value, name)
        except (BadViewError, UnsupportedVersionError):
            return 0  # whoever asks for the view hears of it
        newest = segments[-1].ledger_id if segments else -1
        return summary.next_index if newest <= summary.horizon.ledger_id else 0

    def delete_topic(self, name: str) -> None:
        """Remove a topic with its entries, cursors and compacted views. Blocks.

        Where it raises, the topic is as it was. Once the catalog has it no more it is deleted,
        also after a crash: what cannot be removed then (entries, cursors, views) goes when the
        store is next opened.

        Raises TopicNotFoundError, ReservedTopicError, StoreClosedError, CatalogError, OSError.
        """
        if _is_reserved(name):
            raise ReservedTopicError(name)
        self.delete_view(name)

    def delete_view(self, name: str) -> None:
        """As `delete_topic`, for a compacted view's own topic."""
        self.state.check()
        self.aside.run(partial(self._delete_topic, name))

    def _delete_topic(self, name: str) -> None:
        with self._open_lock:
            ledger = self._open_topic(name, create=False)
            with ledger.refusing_appends():
                self.committer.flush()
                give_back_space = self.engine.remove_topic(
                    ledger.topic_id, ledger.all_segments(), (DELETING_KIND, str(ledger.topic_id))
                )
                ledger.deleted()
            del self._ledgers[name], self._topic_ids[name]
            try:
                give_back_space()
                self._delete_belongings(ledger.topic_id)
            except (OSError, LedgerError) as error:
                _log.warning("%s: rests stay until the next opening: %s", name, error)

    def _delete_belongings(self, topic_id: int) -> None:
        """Remove the cursors and compacted views of a topic that is no more."""
        forgotten = self.cursors.forget_topic(topic_id)
        prefix = f"{VIEW_TOPIC_PREFIX}{topic_id}/"
        for name in [name for name in self._topic_ids if name.startswith(prefix)]:
            self._delete_topic(name)
        for kind in (VIEW_PROPERTY_KIND, SEEN_PROPERTY_KIND):
            self.catalog.delete(kind, str(topic_id))
        for commit in forgotten:
            commit.wait()
        self.catalog.delete(DELETING_KIND, str(topic_id))

    def _end_deletions(self) -> None:
        """Go on where a process ended while it deleted a topic."""
        there = {str(topic_id) for topic_id in self._topic_ids.values()}
        for topic_id, _ in self.catalog.items(DELETING_KIND):
            try:
                if topic_id in there:  # its entries are all there: it was not deleted
                    self.catalog.delete(DELETING_KIND, topic_id)
                else:
                    self._delete_belongings(int(topic_id))
            except (OSError, LedgerError) as error:
                _log.warning("rests of topic %s stay until the next opening: %s", topic_id, error)

    # The whole

    def freeing(self, work: Callable[[], T]) -> T:
        """Do what makes room, or must not fail for want of room. Raises what ``work`` does."""
        return self.engine.freeing(work)

    def probe(self) -> None:
        """See whether the engine takes writes, apart from any ledger. Blocks. Raises OSError."""
        self.state.check()
        self.engine.probe()

    def checkpoint(self) -> None:
        """Have the engine put in its place what was acknowledged (see `LedgerStore`). Blocks."""
        self.state.check()
        self.aside.run(self.engine.checkpoint)

    def close(self) -> None:
        """Close the store; a second call waits for the first and does nothing. Blocks.

        Where the engine fails, what was acknowledged is there at the next opening; the ownership
        is given back, and OSError or CatalogError raised. An exception that a signal handler
        raises ends the waiting: the store is closed all the same, and another call waits for that.
        """
        if self.state.is_foreign:
            return
        self.committer.refuse_committer("close")
        if self.aside.run(self._close):
            self.aside.join()

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
    return name == CURSOR_TOPIC or name.startswith(VIEW_TOPIC_PREFIX)

"""A topic's current compacted view, and the part of the log that compaction still needs.

Each view is a topic of its own in the store, with a name that no client can choose:
``compacted/<topic id>/<generation>``. The catalog's property (kind ``compaction``, key the topic's
id) names the generation that counts. Other views are left from unfinished compactions, and the next
compaction removes them. Deleting a topic removes its views. Topic ids are never used again, so a
new topic of the same name never gets the old views.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from weakref import WeakKeyDictionary

from ..ledger.errors import (
    CompactionRunningError,
    CorruptEntryError,
    LedgerError,
    TopicNotFoundError,
)
from ..ledger.local.folder_reader import FolderLog, FolderReader
from ..ledger.local.io.folder import CATALOG_NAME
from ..ledger.position import EARLIEST, Position
from ..ledger.store import (
    CLEANER_PROPERTY_KIND,
    VIEW_PROPERTY_KIND,
    VIEW_TOPIC_PREFIX,
    BadViewError,
    ViewSummary,
    unpack_property,
)
from ..ledger.topic_store import TopicStore
from ..ledger.writer import ManagedLedger
from ..maintenance.verify_catalog import read_properties
from ..records import record
from .compacted_log import CompactedLog
from .view import CompactedView

_log = logging.getLogger(__name__)


@record(frozen=True)
class CleanerState:
    """The catalog's state of a topic whose log is cleaned as Kafka's are (see `cleaner`)."""

    first_index: int
    """The topic's first position: entries before it were deleted."""
    runs: tuple[tuple[Position, int], ...] = ()
    """Horizons of views, oldest first, and when (ms) each was reached."""
    held: Position | None = None
    """The first damaged entry of the log: from it on nothing is freed."""

    def pack(self) -> bytes:
        """The stored form."""
        record = {
            "firstIndex": self.first_index,
            "runs": [[*position, time_ms] for position, time_ms in self.runs],
            "held": self.held,
        }
        return json.dumps(record).encode()

    @classmethod
    def unpack(cls, value: bytes) -> CleanerState:
        """Parse the stored form. Raises ValueError."""
        try:
            record = json.loads(value)
            held = record["held"]
            return cls(
                int(record["firstIndex"]),
                tuple((Position(ledger, entry), time) for ledger, entry, time in record["runs"]),
                None if held is None else Position(*held),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a cleaner's state: {value[:100]!r}") from error


class CompactionState:
    """This process's state of a topic's compaction."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.running = False
        self.loaded = False
        self.view: CompactedView | None = None
        self.part: tuple[tuple[CompactedView, Position, int], CompactedView] | None = None
        """After a cut of the log's tail: the part of ``view`` that counts, and the cut's key."""
        self.view_lost = False
        """Whether there was a view of which no part can be opened."""
        self.cleaner: CleanerState | None = None
        """None: the log is not cleaned; the view stands beside it."""

    @property
    def generation(self) -> int:
        """The generation of the view that counts, or counted before a cut; else 0."""
        return self.view.generation if self.view is not None else 0


def compacted_log(ledger: ManagedLedger) -> CompactedLog:
    """The compacted form, as consumers read it. Raises UnsupportedVersionError."""
    current_view(ledger)
    return CompactedLog(ledger, lambda: current_view(ledger))


def current_view(ledger: ManagedLedger) -> CompactedView | None:
    """The view that counts, or None. The first call blocks.

    If the log's tail was cut off before the view's horizon (by a new leader), only the part counts
    that is before what the log still has: only the view has those entries. If the log lost the
    horizon with a file, the whole view counts.
    """
    state = state_of(ledger)
    view = state.view
    if view is None:
        return None
    cut_index = ledger.cut_before(view.horizon, view.summary.next_index)
    if cut_index is None:
        return view
    first = ledger.first_position or ledger.end_position
    limit_index = min(cut_index, ledger.first_index)
    key = (view, first, limit_index)
    if state.part is None or state.part[0] != key:
        state.part = key, view.before(first, limit_index)
    return state.part[1]


def claim_of(ledger: ManagedLedger) -> Position | None:
    """The last entry that compaction no longer needs from the log, as a cursor's mark delete.

    EARLIEST: it needs all entries. None: the topic is not compacted; it needs nothing.
    """
    state = state_of(ledger)
    view = current_view(ledger)
    if view is not None:
        return view.horizon
    return EARLIEST if state.running else None


@contextmanager
def claim_kept(ledger: ManagedLedger) -> Iterator[Position | None]:
    """`claim_of`, unchanged during the block: a compaction waits for its end."""
    with state_of(ledger).lock:
        yield claim_of(ledger)


@contextmanager
def compacting(ledger: ManagedLedger) -> Iterator[None]:
    """Keep the log from being trimmed while compacting it. Raises CompactionRunningError."""
    state = state_of(ledger)
    with state.lock:
        if state.running:
            raise CompactionRunningError(ledger.name)
        state.running = True
    try:
        yield
    finally:
        state.running = False


def switch_view(ledger: ManagedLedger, view: CompactedView) -> None:
    """Make ``view`` the current one, durably, in one transaction. Blocks."""
    value = view.summary.pack(view.generation)
    ledger.store.catalog.put(VIEW_PROPERTY_KIND, str(ledger.topic_id), value)
    state = state_of(ledger)
    state.view, state.view_lost = view, False


def set_cleaner_state(ledger: ManagedLedger, state: CleanerState) -> None:
    """Store a topic's state, durably. From then on its log counts as cleaned. Blocks."""
    loaded = state_of(ledger)
    if state != loaded.cleaner:
        ledger.store.catalog.put(CLEANER_PROPERTY_KIND, str(ledger.topic_id), state.pack())
        loaded.cleaner = state


def _unpacked(value: bytes, topic: str) -> CleanerState:
    try:
        return CleanerState.unpack(value)
    except ValueError as error:
        _log.error("%s: where it begins is not known: %s", topic, error)
        return CleanerState(0)


def drop_view(ledger: ManagedLedger) -> None:
    """Drop a cleaned topic's view: from now on the log alone is the topic. Blocks."""
    state, store = state_of(ledger), store_of(ledger)
    with state.lock:
        if state.running:
            return
        kinds = VIEW_PROPERTY_KIND, CLEANER_PROPERTY_KIND
        store.catalog.write((kind, str(ledger.topic_id), None) for kind in kinds)
        state.view = state.cleaner = None
    remove_other_views(store, ledger.topic_id, 0)


def store_of(ledger: ManagedLedger) -> TopicStore:
    """The store that the topic, and so its views, are in."""
    store = ledger.store
    assert isinstance(store, TopicStore)
    return store


def view_name(topic_id: int, generation: int) -> str:
    """The name of a view's own topic."""
    return f"{VIEW_TOPIC_PREFIX}{topic_id}/{generation}"


def remove_other_views(store: TopicStore, topic_id: int, generation: int) -> None:
    """Remove all but one of a topic's views. Failures are repeated by the next call."""
    for other in _generations(store).get(topic_id, ()):
        if other == generation:
            continue
        name = view_name(topic_id, other)
        try:
            store.delete_view(name)
        except (OSError, sqlite3.Error, LedgerError) as error:
            why = "could not be removed; the next compaction tries again"
            _log.warning("%s %s: %s", name, why, error)


def _generations(store: TopicStore) -> dict[int, list[int]]:
    """Every topic id's views, finished or not, oldest first."""
    found: dict[int, list[int]] = {}
    for name in store.catalog.topics():
        if name.startswith(VIEW_TOPIC_PREFIX):
            topic_id, _, generation = name.removeprefix(VIEW_TOPIC_PREFIX).partition("/")
            found.setdefault(int(topic_id), []).append(int(generation))
    return {topic_id: sorted(generations) for topic_id, generations in found.items()}


_making = threading.Lock()
_states: WeakKeyDictionary[ManagedLedger, CompactionState] = WeakKeyDictionary()
"""By ledger. A weak mapping: the ledger package does not refer to compaction."""


def state_of(ledger: ManagedLedger) -> CompactionState:
    """The state of a topic's compaction. The first call blocks."""
    state = _states.get(ledger)
    if state is None:
        with _making:
            state = _states.setdefault(ledger, CompactionState())
    if not state.loaded:
        with state.lock:
            if not state.loaded:
                state.view, state.view_lost = _load_view(ledger)
                value = ledger.store.catalog.get(CLEANER_PROPERTY_KIND, str(ledger.topic_id))
                state.cleaner = None if value is None else _unpacked(value, ledger.name)
                state.loaded = True
    return state


def log_of_folder(
    folder: FolderReader, topic: str, log: FolderLog | None = None
) -> FolderLog | FolderForm:
    """The log that readers of a topic get, in a folder that a process may be writing to.

    The compacted form as it is now, if the folder's catalog says that the log is cleaned. ``log``:
    the topic's, if it is open. Raises TopicNotFoundError, CatalogError.
    """
    return logs_of_folder(folder, {topic: log or folder.log(topic)})[topic]


def logs_of_folder(
    folder: FolderReader, logs: Mapping[str, FolderLog]
) -> dict[str, FolderLog | FolderForm]:
    """As `log_of_folder` for many topics, with one look into the catalog. Raises CatalogError."""
    ids = {topic: str(log.topic_id) for topic, log in logs.items()}
    catalog = folder.folder / CATALOG_NAME
    found = read_properties(catalog, CLEANER_PROPERTY_KIND, ids.values()) if ids else {}
    forms = {
        topic: FolderForm(folder, logs[topic], _unpacked(found[key], topic))
        for topic, key in ids.items()
        if key in found
    }
    return {**logs, **forms}


class FolderForm(CompactedLog):
    """A cleaned topic of a folder; between refreshes it does not change.

    Attributes: start_index (the first index at the opening: a hole may follow).
    """

    log: FolderLog
    has_holes = True

    def __init__(self, folder: FolderReader, log: FolderLog, state: CleanerState) -> None:
        super().__init__(log, lambda: self._view)
        self.start_index = state.first_index
        self._folder = folder
        self._view = newest_view(folder, log.name, log.topic_id)

    @property
    def topic_id(self) -> int:
        """As `FolderLog.topic_id`."""
        return self.log.topic_id

    def refresh(self) -> None:
        """Load what is new, a newer view too. Raises TopicNotFoundError."""
        self.log.refresh()
        self._view = newest_view(self._folder, self.name, self.topic_id, self._view)


def newest_view(
    folder: FolderReader, topic: str, topic_id: int, known: CompactedView | None = None
) -> CompactedView | None:
    """The newest finished view in a folder that another process may be writing to.

    It may be one that a compaction is about to make current: it says the same and more. ``known``
    is returned unless a newer one exists.
    """
    prefix = f"{VIEW_TOPIC_PREFIX}{topic_id}/"
    names = {header.topic for header in folder.headers() if header.topic.startswith(prefix)}
    generations = sorted((int(name.removeprefix(prefix)) for name in names), reverse=True)
    for generation in generations:
        if known is not None and known.generation == generation:
            return known
        try:
            log = folder.log(view_name(topic_id, generation))
            return CompactedView(log, topic, generation, None)
        except (CorruptEntryError, TopicNotFoundError):
            continue
    return None


def _load_view(ledger: ManagedLedger) -> tuple[CompactedView | None, bool]:
    """The view that counts, and whether there was one of which no part can be opened."""
    store, topic_id = store_of(ledger), ledger.topic_id
    value = store.catalog.get(VIEW_PROPERTY_KIND, str(topic_id))
    if value is None:
        return None, False
    try:
        generation, summary = unpack_property(value, ledger.name)
        return _open_view(ledger, generation, summary), False
    except (BadViewError, TopicNotFoundError) as error:
        _log.error("%s: the current compacted view cannot be opened: %s", ledger.name, error)
    # Any finished view is better than none: the log may no longer have its entries.
    for generation in reversed(_generations(store).get(topic_id, [])):
        try:
            return _open_view(ledger, generation, None), False
        except (CorruptEntryError, TopicNotFoundError):
            continue
    return None, True


def _open_view(
    ledger: ManagedLedger, generation: int, summary: ViewSummary | None
) -> CompactedView:
    log = store_of(ledger).open_view(view_name(ledger.topic_id, generation), create=False)
    return CompactedView(log, ledger.name, generation, summary)

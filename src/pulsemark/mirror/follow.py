"""A follower: a second data folder that keeps another one's entries with their positions.

`FollowRun` works in rounds: it asks the source for its state, brings each topic to the end that the
state names, and stores the values and subscriptions that belong to it (`finder.following` says in
which order, and why). It keeps no progress elsewhere: a topic goes on where its log ends. So a
follower may be killed at any moment, as may the source.

Whenever a topic is opened or a ledger begins, the two logs are compared: `common_point` compares
leader epochs (KAFKA-1211), `common_end` compares ledgers. Entries beyond the common part are cut
off, in one step with the first entry of the source that takes their place.

Ledger ids are the source's. The follower's own ledgers, of subscriptions, have ids far above them
(`GENERATION_IDS`), and so have those that it begins as a leader after `promote`. So the ledgers of
two leaders never share an id, and a new leader's are always the higher ones.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..finder import Finder
from ..finder.errors import DeadlineExceededError, ServerUnavailableError
from ..finder.following import (
    BY_ID_KINDS,
    EARLY_KINDS,
    GROUPS_LOG,
    LATE_KINDS,
    StoreState,
    TopicState,
    Values,
)
from ..ledger import (
    EARLIEST,
    Appended,
    CorruptEntryError,
    EntryKind,
    InvalidEntryError,
    LocalStore,
    ManagedLedger,
    Position,
    StoreOptions,
    TopicNotFoundError,
    common_end,
    common_point,
)
from ..ledger.entry import StoredEntry
from ..ledger.limits import MAX_RUN_BYTES
from ..ledger.store import FOLLOWS_KIND, FOLLOWS_PLACE, VIEW_PROPERTY_KIND, VIEW_TOPIC_PREFIX
from ..metadata import control_of
from ..proto.broker_entry_pb2 import CONTROL_LEADER_CHANGE
from ..proto.cursor_pb2 import CursorRecord
from .endpoints import Selection
from .errors import EndpointError, NoTopicsError, OtherSourceError
from .follow_source import READ_ENTRIES, FollowSource, History
from .run import Run
from .topic_mirror import Report

GENERATION_IDS = 2**26
"""Ledger ids between those of one leader and those of the next."""
APPEND_ENTRIES, APPEND_BYTES = 500, 4 << 20
"""How much is appended at once."""
POLL_S, POLL_MAX_S, POLL_SHARE = 0.1, 2.0, 10
"""The pause of a round without work: so many times what the source's state took, within limits."""
LOST = (ServerUnavailableError, DeadlineExceededError)
_TOPIC_ID_FIELDS = {"deduplication": "topicId", "kafka-log-start": "topicId", "mirrors": "topic_id"}


class NotFollowerError(Exception):
    """The data folder ``folder`` follows no source, so it cannot be promoted."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"{folder} is not a follower's folder")
        self.folder = folder


@dataclass(slots=True)
class Lag:
    """How far a topic is behind its source."""

    entries: int = 0
    time_ms: int = 0
    """Broker time between the last entry here and the last one there."""


@dataclass(slots=True)
class FollowReport(Report):
    """The counts and messages of a follower."""

    lags: dict[str, Lag] = field(default_factory=dict)
    truncated: dict[str, int] = field(default_factory=dict)
    """By topic: the entries that were cut off because the source does not have them."""
    is_connected: bool = False

    def line(self) -> str:
        """The totals as a line of text."""
        total, entries, time_s = self.sum(), *self.lag()
        return (
            f"topics: {len(self.topics)}, entries: {total.entries}, messages: {total.messages}, "
            f"bytes: {total.bytes}, truncated: {sum(self.truncated.values())}; "
            f"lag: {entries} entries, {time_s:.1f} s; payloads opened: {self.payloads_opened}"
        )

    def lag(self) -> tuple[int, float]:
        """The entries that all topics lack, and the largest lag of a topic in seconds."""
        lags = list(self.lags.values())
        return sum(lag.entries for lag in lags), max(
            (lag.time_ms for lag in lags), default=0
        ) / 1000


def open_follower(folder: Path) -> LocalStore:
    """Open the folder of a follower. Raises what `LocalStore.open` does."""
    # Entries that the source accepted are accepted here, whatever its limits are.
    return LocalStore.open(folder, options=StoreOptions(max_entry_size_bytes=MAX_RUN_BYTES // 2))


class FollowedTopic:
    """One topic of the follower."""

    def __init__(self, name: str, ledger: ManagedLedger, run: FollowRun) -> None:
        self.ledger = ledger
        self.name = name
        """Its name in the source; a compacted view has another one here."""
        self._run = run
        self.is_checked = False
        """Whether the log was compared with the source's, and has nothing that it lacks."""
        self.problem = ""
        """Why it is not followed further; "": it is."""
        self._stopped_at: Position | None = None
        self._epoch = 0
        self._is_more = False

    @property
    def end(self) -> Position:
        """One past the last entry."""
        last = self.ledger.last_position
        return EARLIEST if last is None else last.following

    def is_behind(self, state: TopicState) -> bool:
        """Whether there is work to do; not for a topic that the source cannot open."""
        if not self.is_checked or self._is_more:
            return not self.problem
        return state.end is not None and self.end < state.end and state.entry_count > 0

    def bring(self, state: TopicState) -> None:
        """Append the source's next entries, durably. Raises as the source and the ledger."""
        if not self.is_checked and not self._reconcile():
            return
        appended: Appended | None = None
        gathered: list[StoredEntry] = []
        taken, size_bytes, position = 0, 0, self.end
        for entry in self._run.source.read(self.name, position):
            if entry.position != position:
                appended, gathered = self._append(gathered, appended), []
                if entry.position.ledger_id == position.ledger_id and position.entry_id:
                    self._begin_anew(position, entry.position)
                    break
                if not self._enters(entry, goes_on=taken > 0):
                    self.is_checked = False
                    break
            gathered.append(entry)
            taken, size_bytes = taken + 1, size_bytes + len(entry.body or b"")
            position = entry.position.following
            if len(gathered) >= APPEND_ENTRIES or size_bytes >= APPEND_BYTES:
                appended, gathered, size_bytes = self._append(gathered, appended), [], 0
                if self._run.is_stopped():
                    break
        appended = self._append(gathered, appended)
        if appended is not None:
            appended.commit.wait()
        self._is_more = taken >= READ_ENTRIES
        self.measure(state)

    # Where the logs are the same

    def _reconcile(self) -> bool:
        """Cut off entries that the source lacks. Return whether the topic can go on."""
        epochs, ledgers = self._run.source.history(self.name)
        mine, end = self.ledger.ledger_extents(), self.end
        self._epoch = self.ledger.epoch
        self.is_checked = True
        if not mine:
            return True
        at = common_end(mine, ledgers) or EARLIEST
        index = common_point(self.ledger.epoch_history(), epochs)
        if index is not None and self.ledger.first_index <= index < self.ledger.next_index:
            at = min(at, Finder(self.ledger).by_index(index).position)
        at = self._same_until(at)
        return at == end or self._cut(at, end)

    def _same_until(self, at: Position) -> Position:
        """The end of the common part, which ledger ids put at `at`.

        A source that was set back, as to a backup, gives ids again. A ledger has one writer: so it
        is the same one if its last shared entry is, else it is another one from its start.
        """
        for each in reversed(self.ledger.ledger_extents()):
            if each.first >= at:
                continue
            end_entry_id = each.end_entry_id
            if at.ledger_id == each.first.ledger_id:
                end_entry_id = min(end_entry_id, at.entry_id)
            last = Position(each.first.ledger_id, end_entry_id - 1)
            try:
                mine = next(iter(self.ledger.read(last, max_entries=1)), None)
                theirs = self._first_after(last)
            except CorruptEntryError:
                return at  # this cannot tell them apart
            if theirs is None or theirs.position != last or _content(mine) == _content(theirs):
                return at
            at = Position(last.ledger_id, 0)
        return at

    def _cut(self, at: Position, end: Position) -> bool:
        first = self._first_after(at)
        if first is not None and first.position.ledger_id <= at.ledger_id:
            at = Position(first.position.ledger_id, -1)  # the ledger is another one from its start
            first = self._first_after(at)
        epoch = (
            None if first is None else self._epoch_of(first, self._run.source.history(self.name))
        )
        if first is None or epoch is None:
            self.is_checked = False
            self.stop(f"the source ends at {at}, this at {end}: waiting until the source goes on")
            return False
        self._run.forget_progress(self.ledger)
        dropped = self.ledger.follow_from(at, first, epoch)
        self._epoch, self.problem = epoch, ""
        report = self._run.report
        report.truncated[self.name] = report.truncated.get(self.name, 0) + dropped
        where = "all that it had" if at == EARLIEST else f"from {at} on"
        what = f"{dropped} entries that the source does not have were cut off, {where}"
        report.say(f"truncated: {self.name}: {what}")
        self._count([first])
        return True

    def _begin_anew(self, position: Position, after: Position) -> None:
        """Go on at what the source still has, since it lacks the next entries of a ledger."""
        first = self._first_after(EARLIEST)
        if first is not None and first.position > position:
            self._cut(EARLIEST, position)
        else:
            self.stop(f"the source has lost its entries from {position} to before {after}")

    def _first_after(self, at: Position) -> StoredEntry | None:
        return next(iter(self._run.source.read(self.name, at, 1)), None)

    def _enters(self, entry: StoredEntry, *, goes_on: bool) -> bool:
        """Whether the log may go on with the ledger that this entry begins; learns its epoch.

        ``goes_on``: the source's entry before it is the last one here. Then the entry's own mark
        says whether an epoch begins, else the source's ledgers do.
        """
        if goes_on:
            self._epoch = max(self._epoch, _epoch_begun_by(entry))
            return True
        history = self._run.source.history(self.name)
        mine, epoch = self.ledger.ledger_extents(), self._epoch_of(entry, history)
        if epoch is None or (mine and common_end(mine, history[1]) != self.end):
            return False
        self._epoch = epoch
        return True

    def _epoch_of(self, entry: StoredEntry, history: History) -> int | None:
        """The leader epoch of an entry's ledger; None: the ledger is gone again."""
        of_ledger = {each.first.ledger_id: each.epoch for each in history[1]}
        return of_ledger.get(entry.position.ledger_id)

    # Entries

    def _append(self, entries: list[StoredEntry], before: Appended | None) -> Appended | None:
        if not entries:
            return before
        try:
            appended = self.ledger.follow(entries, self._epoch)
        except InvalidEntryError:
            if before is not None:
                before.commit.wait()  # if it failed, these have nothing to follow
            raise
        self._count(entries)
        return appended

    def _count(self, entries: list[StoredEntry]) -> None:
        totals = self._run.report.of(self.name)
        totals.entries += len(entries)
        totals.messages += sum(each.message_count for each in entries)
        totals.bytes += sum(len(each.body or b"") for each in entries)
        totals.source_index = entries[-1].index

    def begin_round(self, state: TopicState) -> None:
        """Allow a stopped topic to go on if the source has changed; note the lag."""
        if self.problem and state.end != self._stopped_at:
            self.problem, self._stopped_at = "", state.end
        self.measure(state)

    def follow_head(self, state: TopicState) -> None:
        """Remove entries that the source has removed from its head."""
        first = self.ledger.first_position
        if self.is_checked and state.end is not None and first is not None and first < state.first:
            self.ledger.truncate_head(min(state.first, self.end))

    def measure(self, state: TopicState) -> None:
        """Note how far the topic is behind."""
        if state.end is None:
            return
        runs = self.ledger.segments()
        lag = self._run.report.lags.setdefault(self.name, Lag())
        lag.entries = max(0, state.entry_count - sum(r.entry_count - r.cut_rows for r in runs))
        last_ms = runs[-1].append_time_max_ms if runs else state.append_time_ms
        lag.time_ms = max(0, state.append_time_ms - last_ms) if lag.entries else 0

    def stop(self, problem: str) -> None:
        """Stop following it until the source changes, and report why."""
        self.problem = problem
        self._run.report.say(f"stopped: {self.name}: {problem}")


def _content(entry: StoredEntry | None) -> tuple[object, ...]:
    """The content by which entries of two logs are compared."""
    if entry is None:
        return ()
    return entry.index, entry.append_time_ms, bytes(entry.prefix), bytes(entry.body or b"")


def _epoch_begun_by(entry: StoredEntry) -> int:
    control = control_of(entry.prefix) if entry.kind is EntryKind.CONTROL else None
    is_mark = control is not None and control.control_type == CONTROL_LEADER_CHANGE
    return control.leader_epoch if control is not None and is_mark else 0


@dataclass(slots=True)
class FollowRun(Run):
    """One run of a follower, of the topics in ``selection``; None: all, and Kafka's offsets."""

    source: FollowSource
    store: LocalStore
    report: FollowReport
    selection: Selection | None = None
    _topics: dict[str, FollowedTopic] = field(default_factory=dict)
    _digest: bytes = b""
    _values: Values = field(default_factory=dict)
    _cursors: dict[tuple[str, str], bytes] = field(default_factory=dict)
    _own_ids_from: int = 0

    def run(self) -> bool:
        """Follow. Return whether everything that the source had at the start is here.

        Raises LostError (not reached for `reconnect_s`), OtherSourceError (the folder has entries
        and the source none of them), EndpointError (the source is this folder), NoTopicsError (with
        ``once``: the source has no such topic), SeekCallError, LedgerError, OSError. What was
        followed stays.
        """
        self._begin()
        is_complete = False
        while not self.is_stopped():
            try:
                pause_s, is_complete = self._round()
            except LOST as error:
                self._wait_for_source(error)
                continue
            self.report.progress()
            if is_complete and self.once:
                break
            self.sleep(pause_s)
        return is_complete

    @property
    def problems(self) -> list[str]:
        """Topics that cannot be followed further."""
        return [topic.name for topic in self._topics.values() if topic.problem]

    def _begin(self) -> None:
        """Check that both folders share a log, and reserve ids for this one's own ledgers."""
        state = self.source.state(b"")
        names = self._selected(state)
        self._check_source(state)
        own = [name for name in self._known() if name in names or self.selection is None]
        logs = [self._open(name) for name in own]
        with_entries = [topic for topic in logs if topic.ledger.ledger_extents()]
        is_known = self.store.followed_place == self.source.endpoint
        is_other = with_entries and not any(self._is_shared(each, state) for each in with_entries)
        if is_other and not is_known:
            what = (
                f"{self.source.endpoint} has no entry of {self.store.folder}: use an empty folder"
            )
            raise OtherSourceError(with_entries[0].name, what)
        self._take_ids(state)
        if self.store.followed_place is None:
            self._remove_views()
        self.store.catalog.put(FOLLOWS_KIND, FOLLOWS_PLACE, self.source.endpoint.encode())
        self.report.is_connected = True

    def _check_source(self, state: StoreState) -> None:
        """Raise EndpointError or NoTopicsError for an impossible source."""
        if Path(self.source.endpoint).resolve() == self.store.folder.resolve():
            raise EndpointError(self.source.endpoint, "a folder cannot follow itself")
        if not self.once or self.selection is None:
            return  # a topic may come later
        for name in self.selection.names:
            chosen = Selection((name,), self.selection.is_regex)
            if not any(map(chosen.has, state.topics)):
                raise NoTopicsError(self.source.endpoint, chosen.names)

    def _is_shared(self, topic: FollowedTopic, state: StoreState) -> bool:
        if topic.name not in state.topics:
            return False
        _, ledgers = self.source.history(topic.name)
        return common_end(topic.ledger.ledger_extents(), ledgers) is not None

    def _take_ids(self, state: StoreState) -> None:
        """Reserve ledger ids above the source's, also for when this folder leads."""
        at_least = (state.next_ledger_id // GENERATION_IDS + 1) * GENERATION_IDS
        if self.store.catalog.next_ledger_id() < at_least:
            self.store.skip_ledger_ids(at_least)
        self._own_ids_from = at_least

    def _remove_views(self) -> None:
        """Remove compacted views of a former leader: their entries may be cut off."""
        for key, _ in self.store.catalog.items(VIEW_PROPERTY_KIND):
            self.store.catalog.delete(VIEW_PROPERTY_KIND, key)
        self._remove([n for n in self.store.catalog.topics() if n.startswith(VIEW_TOPIC_PREFIX)])

    def _remove(self, names: Sequence[str]) -> None:
        """Remove topics, whose files may be named again by the source's."""
        for name in names:
            self.store.delete_view(name)
        if names:
            self.store.checkpoint()  # until then these names must not be used

    # A round

    def _round(self) -> tuple[float, bool]:
        """Bring what the source has now. Return the pause, and whether all of it is here."""
        began_s = self.clock()
        state = self.source.state(self._digest)
        took_s = self.clock() - began_s
        self.report.is_connected = True
        if state.next_ledger_id > self._own_ids_from:
            self._take_ids(state)
        if state.values is not None:
            self._values = state.values
            self._store_values(EARLY_KINDS, state)
        is_complete = self._bring_all(state)
        if not self.is_stopped() and is_complete:
            if state.values is not None:
                self._store_values(LATE_KINDS, state)
                self._digest = state.digest
            self._store_cursors(state)
            self._remove_old_views(self._views(state))
            for name, topic in self._topics.items():  # what a view has may be removed now
                if name in state.topics:
                    topic.follow_head(state.topics[name])
                    topic.measure(state.topics[name])
        return min(max(POLL_S, took_s * POLL_SHARE), POLL_MAX_S), is_complete

    def _bring_all(self, state: StoreState) -> bool:
        """Bring a part of each topic in turn. Return whether all are here."""
        names = self._selected(state)
        for name in self._known():
            if name not in state.topics and self.selection is None:
                self._delete(name)
        self.store.add_topics([name for name in names if name != GROUPS_LOG])
        topics = [(self._open(name), state.topics[name]) for name in names]
        views = self._views(state)
        topics += [(self._open(name, views[name]), state.topics[name]) for name in views]
        for topic, of_topic in topics:
            self.report.of(topic.name)
            topic.begin_round(of_topic)
        moved = True
        while moved and not self.is_stopped():
            moved = False
            for topic, of_topic in topics:
                if topic.is_behind(of_topic):
                    moved |= self._bring(topic, of_topic)
                    self.report.progress()
        return not any(topic.is_behind(of_topic) for topic, of_topic in topics)

    def _bring(self, topic: FollowedTopic, state: TopicState) -> bool:
        """Bring the next entries of a topic. Return whether there were any."""
        before = topic.end, topic.is_checked
        try:
            topic.bring(state)
        except CorruptEntryError as error:
            topic.stop(f"followed up to a damaged entry of the source: {error}")
        except TopicNotFoundError:
            topic.stop("deleted at the source")
        if not self.is_stopped() and not topic.ledger.all_segments() and state.next_index:
            key = topic.name
            value = str(state.next_index).encode()
            if self.store.catalog.get(FOLLOWS_KIND, key) != value:
                self.store.catalog.put(FOLLOWS_KIND, key, value)
        return before != (topic.end, topic.is_checked)

    def _selected(self, state: StoreState) -> list[str]:
        names = [name for name in state.topics if not name.startswith(VIEW_TOPIC_PREFIX)]
        return [name for name in names if self._has(name)]

    def _has(self, name: str) -> bool:
        return self.selection is None or self.selection.has(name)

    def _known(self) -> list[str]:
        names = self.store.topic_names()
        return [*names, GROUPS_LOG] if GROUPS_LOG in self.store.catalog.topics() else names

    def _open(self, name: str, own_name: str = "") -> FollowedTopic:
        topic = self._topics.get(name)
        if topic is None:
            ledger = self.store.open_view(own_name or name)
            topic = self._topics[name] = FollowedTopic(name, ledger, self)
        return topic

    def _views(self, state: StoreState) -> dict[str, str]:
        """The names here of compacted views, by their names in the source."""
        own_ids = {state.topics[name].topic_id: name for name in self._selected(state)}
        found = {}
        for name in state.topics:
            if name.startswith(VIEW_TOPIC_PREFIX):
                number, _, generation = name.removeprefix(VIEW_TOPIC_PREFIX).partition("/")
                topic = self._topics.get(own_ids.get(int(number), ""))
                if topic is not None:
                    own_id = topic.ledger.topic_id
                    found[name] = f"{VIEW_TOPIC_PREFIX}{own_id}/{generation}"
        return found

    def _remove_old_views(self, views: dict[str, str]) -> None:
        """Remove views that the source lacks, after the value that names the newest."""
        for name in [n for n in self._topics if n.startswith(VIEW_TOPIC_PREFIX) and n not in views]:
            del self._topics[name]
        own = [n for n in self.store.catalog.topics() if n.startswith(VIEW_TOPIC_PREFIX)]
        self._remove([name for name in own if name not in views.values()])

    def _delete(self, name: str) -> None:
        entries = sum(r.entry_count - r.cut_rows for r in self._open(name).ledger.segments())
        self._topics.pop(name, None)
        self.report.lags.pop(name, None)
        self._remove([name])
        self.report.say(f"deleted: {name}: the source has no such topic; it had {entries} entries")

    # Values and subscriptions

    def _store_values(self, kinds: tuple[str, ...], state: StoreState) -> None:
        catalog = self.store.catalog
        known = {(kind, key): value for kind in kinds for key, value in catalog.items(kind)}
        wanted = {}
        for (kind, key), value in self._values.items():
            topic = self._topics.get(key)
            if kind in BY_ID_KINDS:
                names = (n for n, each in state.topics.items() if str(each.topic_id) == key)
                topic = self._topics.get(next(names, ""))
                if kind in kinds and topic is not None:
                    wanted[kind, str(topic.ledger.topic_id)] = value
            elif kind in kinds and (key not in state.topics or self._has(key)):
                wanted[kind, key] = _translated(kind, value, topic, state.topics.get(key))
        changes: list[tuple[str, str, bytes | None]] = [
            (*key, value) for key, value in wanted.items() if known.get(key) != value
        ]
        changes += [(*key, None) for key in known if key not in wanted]
        if changes:
            catalog.write(changes)

    def forget_progress(self, ledger: ManagedLedger) -> None:
        """Before entries are cut off, forget stored progress that may name them."""
        keys = {kind: str(ledger.topic_id) for kind in BY_ID_KINDS}
        changes = [(kind, keys.get(kind, ledger.name), None) for kind in LATE_KINDS]
        self.store.catalog.write(changes)
        self._digest = b""

    def _store_cursors(self, state: StoreState) -> None:
        commits = []
        for (name, subscription), record in state.cursors.items():
            topic = self._topics.get(name)
            if topic is None or self._cursors.get((name, subscription)) == record:
                continue
            taken = CursorRecord.FromString(record)
            commits.append(self.store.cursors.take_over(topic.ledger, taken))
        for topic in self._topics.values():
            gone = [s for s in topic.ledger.cursors if (topic.name, s) not in state.cursors]
            commits += map(topic.ledger.delete_cursor, gone)
        for commit in commits:
            commit.wait()
        self._cursors = state.cursors

    def _wait_for_source(self, lost: Exception) -> None:
        """Ask the source until it answers. Raises LostError."""
        self.report.lost(str(lost))
        self.report.is_connected = False
        self.source.close()
        for topic in self._topics.values():
            topic.is_checked, topic.problem = False, ""  # it may be another leader
        self.until_back(lost, self._answered, self.clock())

    def _answered(self) -> Exception | None:
        """Ask the source. Return None if it answers, else the error."""
        try:
            self.source.state(b"")
        except LOST as error:
            self.source.close()
            return error
        return None


def _translated(
    kind: str, value: bytes, topic: FollowedTopic | None, source: TopicState | None
) -> bytes:
    """A topic's value with the topic's id here instead of the source's."""
    member = _TOPIC_ID_FIELDS.get(kind)
    if member is None or topic is None or source is None:
        return value
    record = json.loads(value)
    if record.get(member) == source.topic_id:
        record[member] = topic.ledger.topic_id
    return json.dumps(record).encode()


def promote(store: LocalStore, leader: str) -> dict[str, int]:
    """Make a follower's folder a leader's: each topic begins the next leader epoch.

    Returns the epochs by topic. It can be repeated after a kill; until it is done, the folder stays
    a follower's. Raises NotFollowerError, LedgerError, OSError.
    """
    if store.followed_place is None:
        raise NotFollowerError(store.folder)
    catalog, epochs = store.catalog, {}
    terminated = {key for key, _ in catalog.items("terminated-topic")}
    indexes = dict(catalog.items(FOLLOWS_KIND))
    for name in store.topic_names():
        ledger = store.open_topic(name)
        if name in terminated:
            continue
        if name in indexes and not ledger.all_segments():
            ledger.begin_at(int(indexes[name]))
        epochs[name] = ledger.epoch + 1
        ledger.begin_epoch(epochs[name], leader=leader).commit.wait()
    store.sync_acknowledged()
    catalog.write((FOLLOWS_KIND, key, None) for key in indexes)
    return epochs

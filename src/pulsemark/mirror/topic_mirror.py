"""Mirrors one topic: takes entries from the source, in order, and puts them into the target.

Its state is the target's progress at the opening (`Resume`), and the source's entries after it. No
progress is kept elsewhere, so a mirror may be killed at any moment.

Entries that the target has are passed over. Between two entries the indexes of the source must be
contiguous, or, if the source shows none, the positions in a ledger. Otherwise messages are missing
in the source, which is reported as a gap.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ..client import Pace
from ..metadata import headers_parsed
from ..metadata.compression import payloads_opened
from ..metadata.source_stamp import position_of_sequence_id
from .entries import (
    Gap,
    Resume,
    Source,
    SourceEntry,
    SourcePosition,
    Target,
    TopicSource,
    TopicTarget,
)
from .errors import OtherSourceError, SchemaVersionError

# A mirror's reports: progress, gaps, and the sum at the end.


@dataclass(slots=True)
class Totals:
    """The counts of one topic, or of all."""

    entries: int = 0
    messages: int = 0
    bytes: int = 0
    gaps: int = 0
    source_index: int | None = None


@dataclass(slots=True)
class Report:
    """Counts by topic, and writes lines with `say`.

    Attributes: topics (totals by topic), reconnections, headers_parsed and payloads_opened (by this
    process since the report was made).
    """

    say: Callable[[str], None]
    interval_s: float = 10.0
    clock: Callable[[], float] = time.monotonic
    topics: dict[str, Totals] = field(default_factory=dict)
    reconnections: int = 0
    _said_at_s: float = field(init=False)
    _said: int = 0
    _headers_before: int = field(default_factory=headers_parsed)
    _payloads_before: int = field(default_factory=payloads_opened)

    def __post_init__(self) -> None:
        self._said_at_s = self.clock()

    def of(self, topic: str) -> Totals:
        """A topic's totals."""
        return self.topics.setdefault(topic, Totals())

    def mirrored(self, topic: str, entry: SourceEntry) -> None:
        """Count an entry that is durable in the target."""
        totals = self.of(topic)
        totals.entries += 1
        totals.messages += entry.message_count
        totals.bytes += 0 if entry.body is None else len(entry.body)
        totals.source_index = entry.stamp.index

    def gap(self, gap: Gap) -> None:
        """Report messages that are missing in the source."""
        self.of(gap.topic).gaps += 1
        self.say(f"gap: {gap.topic}: {gap.what}")

    def gone(self, reason: str) -> None:
        """Report that the source has deleted a topic."""
        self.say(f"gone: {reason}; it is mirrored again when it is there")

    def lost(self, reason: str) -> None:
        """Report a lost connection, which will be made again."""
        self.reconnections += 1
        self.say(f"connection lost, trying again: {reason}")

    @property
    def headers_parsed(self) -> int:
        """The number of message headers that were parsed."""
        return headers_parsed() - self._headers_before

    @property
    def payloads_opened(self) -> int:
        """The number of payloads (de)compressed by this process; mirrors do neither."""
        return payloads_opened() - self._payloads_before

    def sum(self) -> Totals:
        """The totals of all topics."""
        each = self.topics.values()
        return Totals(
            sum(totals.entries for totals in each),
            sum(totals.messages for totals in each),
            sum(totals.bytes for totals in each),
            sum(totals.gaps for totals in each),
        )

    def line(self) -> str:
        """The totals as a line of text."""
        total = self.sum()
        return (
            f"topics: {len(self.topics)}, entries: {total.entries}, messages: {total.messages}, "
            f"bytes: {total.bytes}, gaps: {total.gaps}; headers parsed: {self.headers_parsed}, "
            f"payloads opened: {self.payloads_opened}"
        )

    def progress(self) -> None:
        """Write the totals if the interval is over and something has changed."""
        now_s = self.clock()
        if now_s - self._said_at_s < self.interval_s:
            return
        self._said_at_s, before = now_s, self._said
        self._said = self.sum().entries
        if self._said != before:
            self.say(self.line())


_VERSION_SIZE_BYTES = 8
TAKE_ENTRIES = 500
TAKE_BYTES = 4 * 1024 * 1024
#: Pulsar stores a snapshot of sequence ids after each 1,000 entries, by default.
TAIL_ENTRIES = 20_000


class TopicMirror:
    """One topic from its opening, where the target says how far it has come, to its `close`.

    Raises what `Source.open` and `Target.open` do.
    """

    def __init__(
        self, topic: str, source: Source, target: Target, pace: Pace, report: Report
    ) -> None:
        self.topic = topic
        self._pace = pace
        self._report = report
        self._waiting: deque[SourceEntry] = deque()
        self._in_flight: deque[SourceEntry] = deque()
        self._writer: TopicTarget = target.open(topic)
        self._resume = self._writer.resume
        try:
            self._reader: TopicSource = source.open(topic, self._resume)
        except BaseException:
            self._writer.close()
            raise
        self._schemas_carried = -1
        self._passed: SourcePosition | None = self._resume.position
        self._next_index = None if self._resume.index is None else self._resume.index + 1
        self._has_rewound = False
        self._is_first = True
        tail = self._writer.tail
        self._search = None if tail is None else _TailSearch(tail, self._resume)

    @property
    def is_caught_up(self) -> bool:
        """Whether all that the source had at the opening is durable in the target."""
        return (
            not self._waiting
            and not self._in_flight
            and (self._search is None or self._search.first_seen is None)
            and self._reader.is_caught_up(self._passed)
        )

    @property
    def has_taken_all(self) -> bool:
        """Whether all that the source had at the opening was taken from it."""
        last = self._waiting[-1].position if self._waiting else self._passed
        return self._search is None and self._reader.is_caught_up(last)

    def step(self, *, takes: bool = True) -> bool:
        """Do what is possible without waiting. Return whether anything was done.

        `takes` False: only finish entries that were taken before. Raises MirrorError, ClientError,
        LedgerError.
        """
        settled = self._settle()
        if takes and not self._waiting:
            for taken in self._reader.take(TAKE_ENTRIES, TAKE_BYTES):
                if isinstance(taken, Gap):
                    self._report.gap(taken)
                else:
                    self._waiting.append(taken)
        if self._search is not None:
            return self._search_tail() or settled
        return self._put_waiting() or settled

    @property
    def in_flight(self) -> int:
        """Entries that were put and are not known to be durable."""
        return len(self._in_flight)

    def drop_waiting(self) -> int:
        """Drop entries that were taken and not put. Return their number."""
        count = len(self._waiting)
        self._waiting.clear()
        return count

    def close(self) -> None:
        """Close both ends. Entries not known to be durable are taken again after an opening."""
        try:
            self._writer.close()
        finally:
            self._reader.close()

    def _settle(self) -> bool:
        """Confirm durable entries to the source."""
        self._reader.attend()
        count = self._writer.stored()
        last = None
        for _ in range(count):
            last = self._in_flight.popleft()
            self._report.mirrored(self.topic, last)
        if last is not None:
            self._reader.confirm(last.position)
        return count > 0

    def _put_waiting(self) -> bool:
        moved = False
        while self._waiting:
            entry = self._waiting[0]
            if self._resume.has(entry):
                self._pass(self._waiting.popleft())
            elif self._must_rewind(entry):
                return True
            elif entry.body is None:
                self._check_gap(self._waiting.popleft())
            else:
                if not self._writer.has_room(entry) or self._pace.wait_s():
                    break
                self._put(self._waiting.popleft())
            moved = True
        return moved

    def _put(self, entry: SourceEntry) -> None:
        assert entry.body is not None
        self._carry_schemas(entry.schema_version)
        self._check_gap(entry)
        self._pace.spend(len(entry.body), entry.message_count)
        self._in_flight.append(entry)
        self._writer.put(entry)

    def _carry_schemas(self, version: bytes) -> None:
        """Bring the schema of this version, and those before it, in their order.

        A message names its schema by a number, in bytes that a mirror does not change (Pulsar's own
        replication does): so a number must mean the same in the target. Bytes that name no version
        are left as they are. Raises SchemaVersionError.
        """
        if len(version) != _VERSION_SIZE_BYTES:
            return
        for number in range(
            self._schemas_carried + 1, int.from_bytes(version, "big", signed=True) + 1
        ):
            schema = self._reader.schema(number)
            if schema is None:
                raise SchemaVersionError(self.topic, number, "the source does not have it")
            given = self._writer.add_schema(number, schema)
            if given != number:
                raise SchemaVersionError(self.topic, number, f"it is {given} in the target")
            self._schemas_carried = number

    def _pass(self, entry: SourceEntry) -> None:
        """Pass over an entry that the target has."""
        self._passed = entry.position
        if entry.stamp.index is not None:
            self._next_index = entry.stamp.index + 1
            known = self._resume.index
            if entry.position == self._resume.position and known not in (None, entry.stamp.index):
                reason = f"its entry {entry.position} has index {entry.stamp.index}, not {known}"
                raise OtherSourceError(self.topic, reason)
        self._is_first = False

    def _must_rewind(self, entry: SourceEntry) -> bool:
        """Whether to start again: the source's position is after the target's last id."""
        known = self._resume.sequence_id
        if known is None or self._has_rewound or not self._is_first:
            return False
        if entry.first_index is not None and entry.first_index <= known + 1:
            return False
        self._has_rewound = True
        self._waiting.clear()
        # Without indexes the sequence id is a position.
        self._reader.rewind(position_of_sequence_id(known) if entry.first_index is None else None)
        return True

    def _check_gap(self, entry: SourceEntry) -> None:
        """Report missing messages before this entry, and go on after them."""
        first, known = entry.first_index, self._next_index
        if known is None and first is not None and self._resume.is_beginning:
            known = 0
        before, at = self._passed, entry.position
        has_holes = self._reader.has_holes
        if first is not None and known is not None:
            if first > known and not has_holes:
                self._report.gap(Gap(self.topic, f"indexes {known} to {first - 1} are missing"))
            elif entry.stamp.index is not None and entry.stamp.index < known:
                what = f"indexes go back from {known} to {entry.stamp.index}: the source's topic"
                self._report.gap(Gap(self.topic, f"{what} was recreated, or its tail was cut off"))
        elif has_holes:
            pass  # without indexes, too
        elif before is not None and before[0] == at[0] and before[1] + 1 < at[1]:
            what = f"entries {before[0]}:{before[1] + 1} to {at[0]}:{at[1] - 1}"
            self._report.gap(Gap(self.topic, f"{what} are missing"))
        self._passed, self._is_first = at, False
        if entry.stamp.index is not None:
            self._next_index = entry.stamp.index + 1

    def _search_tail(self) -> bool:
        """Search the source for the target's last entry, and start again after it."""
        search, reader = self._search, self._reader
        assert search is not None
        moved = bool(self._waiting)
        while self._waiting and not search.is_over:
            if search.first_seen is None and self._must_rewind(self._waiting[0]):
                return True
            self._passed = self._waiting[0].position
            search.look_at(self._waiting.popleft())
        if search.is_over or (search.first_seen and reader.is_caught_up(self._passed)):
            found = search.found
            if found is None and self._resume.sequence_id is None:
                self._writer.check_may_begin()
            if found is not None:
                self._resume = Resume(position=found.position, index=found.stamp.index)
            again = search.first_seen if found is None else found
            self._search, self._passed, self._next_index = None, self._resume.position, None
            self._waiting.clear()
            if again is not None:
                reader.rewind(again.position)
            moved = True
        return moved


@dataclass(slots=True)
class _TailSearch:
    """A search for the entry with the bytes of the target's last one."""

    tail: bytes
    resume: Resume
    found: SourceEntry | None = None
    first_seen: SourceEntry | None = None
    seen_after: int = 0

    @property
    def is_over(self) -> bool:
        """Whether enough entries were compared; never if nothing else tells the progress."""
        return self.resume.sequence_id is not None and self.seen_after > TAIL_ENTRIES

    def look_at(self, entry: SourceEntry) -> None:
        """Compare one entry."""
        self.first_seen = self.first_seen or entry
        if self.resume.sequence_id is not None and entry.sequence_id > self.resume.sequence_id:
            self.seen_after += 1
        body = entry.body
        if body is not None and len(body) == len(self.tail) and bytes(body) == self.tail:
            self.found = entry

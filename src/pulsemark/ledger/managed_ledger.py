"""A topic's chain of ledgers, written: append, roll, trim.

Position, time and index of an entry are assigned at append, under the store's lock, and never
again: ``time = max(clock, last)``, ``index = last + messages``. What cannot be made durable is
not taken back one by one. The ledger is fenced at its last durable entry and the topic goes on
in a new ledger, whose header says how many entries of the one before count. So the index has no
gaps and no number is given twice, by construction.

A ledger gets its file with its first entry; every opening of a topic begins a new ledger, so
that nothing is ever appended behind what a crash may have left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..metadata import (
    BrokerEntryMetadata,
    MessageHeader,
    Sender,
    StamperChain,
    add_application_tags,
    pack,
)
from ..proto.broker_entry_pb2 import CONTROL, CONTROL_LEADER_CHANGE, ControlType
from .admission import body_check_of, check_size, time_of_entry
from .commit import Commit
from .entry import EntryKind
from .epochs import EpochStart, cut_tail, epoch_starts
from .errors import CatalogError, StaleEpochError, StoreClosedError
from .files import Buffer
from .position import EARLIEST, Position
from .segment import Segment
from .segment_format import (
    BODY_CRC_OURS,
    RECORD_HEADER_SIZE,
    SegmentHeader,
    pack_body_crc,
    pack_record_head,
)
from .topic_log import TopicLog

MAX_MESSAGE_COUNT = 2**31 - 1
MAX_SEGMENT_MESSAGES = 2**32 - 1

if TYPE_CHECKING:
    from .current_view import CompactionState
    from .cursor import Cursor
    from .store import LocalStore


@dataclass(slots=True)
class Appended:
    """What an entry got. It counts once ``commit`` is done without error."""

    ledger_id: int
    entry_id: int
    index: int
    """Index of the entry's LAST message (PIP-70)."""
    time_ms: int
    commit: Commit

    @property
    def position(self) -> Position:
        """Where the entry stands."""
        return Position(self.ledger_id, self.entry_id)


class ManagedLedger(TopicLog):
    """One topic of a LocalStore, open for appending."""

    def __init__(
        self,
        store: LocalStore,
        name: str,
        topic_id: int,
        segments: Sequence[Segment],
        ledger_id: int,
    ) -> None:
        super().__init__(name, segments)
        self._store = store
        self.topic_id = topic_id
        self.on_confirmed: list[Callable[[], None]] = []
        """Called after each commit that added entries, where callbacks are run."""
        self.cursors: dict[str, Cursor] = {}
        """Open cursors by subscription name."""
        self.compaction: CompactionState | None = None
        """What is known of the topic's compaction, once it was asked for (see current_view)."""
        self._chain = StamperChain()
        self._stamps_time = False
        self._next_index = super().next_index
        self._stamp_floor_ms = max((s.append_time_max_ms for s in segments), default=0)
        self._time_floor_ms = segments[-1].index.time_max_ms if segments else 0
        self._ledger_id = ledger_id
        self._needs_ledger_id = False
        self._segment: Segment | None = None
        self._offset = 0
        self._ledger_started_ms = 0
        self._ledger_bytes = 0
        self._closed = False
        self._epoch = segments[-1].header.epoch if segments else 0

    @property
    def store(self) -> LocalStore:
        """The store that the topic is in."""
        return self._store

    @property
    def stampers(self) -> StamperChain:
        """Who stamps new entries; an empty chain stores them without prefix."""
        return self._chain

    @stampers.setter
    def stampers(self, chain: StamperChain) -> None:
        # Under the lock: an append in another thread sees the old chain or the new, not halves.
        with self._store.committer.lock:
            self._chain = chain
            self._stamps_time = chain.stamps_time

    @property
    def end_position(self) -> Position:
        """Where the first entry that is not yet durable stands, or the next one will.

        A topic at rest: in the current ledger, even if that has no entry yet.
        """
        end = super().end_position if self._needs_ledger_id else Position(self._ledger_id, 0)
        if self._segment is not None:
            end = Position(self._ledger_id, self._segment.end_entry_id)
        for segment in reversed(self._segments):
            if segment.entry_count < segment.index.count:
                end = Position(segment.ledger_id, segment.end_entry_id)
            elif segment.entry_count:
                break  # durable, and so is all before it
        return end

    @property
    def ledger_id(self) -> int:
        """The ledger that the next entry goes to."""
        return self._ledger_id

    # Appending

    def append(
        self,
        body: Buffer,
        *,
        message_count: int = 1,
        kind: EntryKind = EntryKind.DATA,
        base: BrokerEntryMetadata | None = None,
        epoch: int | None = None,
        sender: Sender | None = None,
    ) -> Appended:
        """Add an entry. Returns at once; it is durable when the returned ``commit`` is done.

        ``body`` is a producer's headers-and-payload (or anything else), which must not change
        until then. ``message_count`` 0 takes no index and gets no prefix, as in Pulsar. ``base``
        are prefix fields that the store itself has to say, written even where stamps are off.
        ``epoch`` is the leader epoch the caller believes to lead, ``sender`` the producer on whose
        connection the entry came, for stampers.

        Raises AlreadyStampedError, ChecksumError (a body with Pulsar's magic whose CRC32C is
        wrong), EntryTooLargeError, StaleEpochError, StoreClosedError, ValueError for a count
        beyond Pulsar's int32, and StampingError from a plugin: nothing is stored then.
        """
        limit_bytes = self._store.options.max_entry_size_bytes
        body_check = body_check_of(self.name, body)
        messages = max(message_count, 0)
        if messages > MAX_MESSAGE_COUNT:
            raise ValueError(f"message_count must be at most {MAX_MESSAGE_COUNT}, not {messages}")
        committer = self._store.committer
        with committer.lock:
            if self._closed:
                raise StoreClosedError(self.name)
            if epoch is not None and epoch != self._epoch:
                raise StaleEpochError(self.name, epoch, self._epoch)
            now_ms = max(self._store.clock.now_ms(), self._stamp_floor_ms)
            index = self._next_index + messages - 1
            # Without a stamp of time both the stampers and the time index may read the header.
            unread = None if self._stamps_time else MessageHeader(body)
            prefix = self._chain.prefix(
                self.name, now_ms, index, messages, body, base=base, sender=sender, header=unread
            )
            if base is not None and not prefix:
                prefix = pack(base)
            check_size(self.name, prefix, body, limit_bytes)
            size = RECORD_HEADER_SIZE + len(prefix) + len(body)
            crc = b""
            if body_check == BODY_CRC_OURS:
                crc = pack_body_crc(body)
                size += len(crc)
            segment = self._writable(size, messages, now_ms)
            entry_id = segment.first_entry_id + segment.index.count
            head = pack_record_head(
                segment.seed, entry_id, kind, messages, now_ms, index, prefix, body, body_check
            )
            group = committer.group(self, segment, self._offset)
            if self._offset == 0:
                header = segment.header.pack()
                group.buffers.append(header)
                group.size_bytes = self._offset = len(header)
                committer.pending_bytes += len(header)
            group.buffers += (head, body, crc) if crc else (head, body)
            group.next_message = index + 1 - segment.first_index
            group.append_time_ms = now_ms
            stamped = self._stamps_time and prefix
            time_ms = now_ms if stamped else time_of_entry(unread or MessageHeader(body), now_ms)
            end = self._offset + size
            segment.index.append(time_ms, group.next_message, self._offset, end)
            self._offset = end
            self._ledger_bytes += size
            self._next_index = index + 1
            self._stamp_floor_ms = now_ms
            appended = Appended(self._ledger_id, entry_id, index, now_ms, group.commit)
            committer.added(group, size, segment.index.count)
        return appended

    def append_control(
        self, control_type: ControlType, *, tags: Mapping[str, bytes] | None = None
    ) -> Appended:
        """Add a control entry: the broker's own mark, with application tags and no payload.

        It takes one index, audits count it, consumers never see it.
        """
        base = BrokerEntryMetadata(entry_kind=CONTROL, control_type=control_type)
        if self._epoch:
            base.leader_epoch = self._epoch
        if tags:
            add_application_tags(base, tags)
        return self.append(b"", kind=EntryKind.CONTROL, base=base)

    # Leader epochs

    @property
    def epoch(self) -> int:
        """The leader epoch that appends belong to; 0 until one has been begun."""
        return self._epoch

    @property
    def epochs(self) -> list[EpochStart]:
        """Where each leader epoch that has entries begins, oldest first."""
        return epoch_starts(self.segments())

    def begin_epoch(self, epoch: int) -> Appended:
        """A new leader takes over: appends of earlier epochs are refused from now on.

        The epoch begins a ledger, whose first entry is a control entry that says so. Raises
        StaleEpochError unless ``epoch`` is higher than the current one.
        """
        with self._store.committer.lock:
            if epoch <= self._epoch:
                raise StaleEpochError(self.name, epoch, self._epoch)
            self._end_ledger()
            self._epoch = epoch
            return self.append_control(CONTROL_LEADER_CHANGE)

    def truncate_tail(self, index: int, *, epoch: int) -> Appended:
        """Drop every message from ``index`` on and begin ``epoch`` there. Blocks until durable.

        After a crash either nothing is dropped or all is, and the epoch has begun. Raises
        StaleEpochError, and ValueError where ``index`` is not the first of an entry, or outside
        the log.
        """
        store = self._store
        store.committer.flush()
        with store.committer.lock:
            if epoch <= self._epoch:
                raise StaleEpochError(self.name, epoch, self._epoch)
            if not self.first_index <= index <= self.next_index:
                raise ValueError(
                    f"index must be from {self.first_index} to {self.next_index}, not {index}"
                )
            self._end_ledger()  # fails before anything is changed, if it does
            kept, dropped = cut_tail(self._segments, index)
            shortened = kept[-1] if kept else None
            if shortened is not None:
                shortened.tail_cut_pending = True
            self._segments = kept
            self._segment = None
            self._next_index = index
            begun = self.begin_epoch(epoch)
        begun.commit.wait()
        if shortened is not None:
            with store.committer.lock:
                shortened.tail_cut_pending = False
                store.segment_ended(shortened)
        store.unlist_segments(self, dropped)
        store.remove_segments(dropped)
        return begun

    def _writable(self, size: int, messages: int, now_ms: int) -> Segment:
        """The segment to append ``size`` bytes to; begins a new one, or a new ledger, if due."""
        options = self._store.options
        if self._needs_ledger_id:
            self._end_ledger()
        segment = self._segment
        if segment is not None:
            entries = segment.first_entry_id + segment.index.count
            if (
                entries >= options.ledger_entries
                or self._ledger_bytes + size > options.ledger_size_bytes
                or now_ms - self._ledger_started_ms >= options.ledger_age_ms
            ):
                self._end_ledger()
                segment = None
            elif (
                self._offset + size > options.segment_size_bytes
                or segment.index.next_message + messages > MAX_SEGMENT_MESSAGES
            ):
                return self._begin_segment(segment.header.segment_no + 1, entries)
        if segment is None:
            self._ledger_started_ms = now_ms
            self._ledger_bytes = 0
            return self._begin_segment(0, 0)
        return segment

    def _begin_segment(self, segment_no: int, first_entry_id: int) -> Segment:
        previous = self._last_of_previous_ledger()
        ended, self._segment = self._segment, None
        header = SegmentHeader(
            topic=self.name,
            topic_id=self.topic_id,
            ledger_id=self._ledger_id,
            segment_no=segment_no,
            first_entry_id=first_entry_id,
            first_index=self._next_index,
            entry_time_floor_ms=self._entry_time_max_ms(),
            stamp_floor_ms=self._stamp_floor_ms,
            previous_ledger_id=previous.ledger_id if previous else -1,
            epoch=self._epoch,
            previous_entry_count=previous.header.first_entry_id + previous.index.count
            if previous
            else 0,
        )
        segment = self._store.new_segment(header)
        self._segments = (*self._segments, segment)
        self._segment = segment
        self._offset = 0
        if ended is not None:
            self._store.segment_ended(ended)
        return segment

    def _last_of_previous_ledger(self) -> Segment | None:
        return next((s for s in reversed(self._segments) if s.ledger_id != self._ledger_id), None)

    def _entry_time_max_ms(self) -> int:
        return self._segments[-1].index.time_max_ms if self._segments else self._time_floor_ms

    def _end_ledger(self) -> None:
        """The next entry begins a new ledger. Raises CatalogError: nothing has changed then."""
        ledger_id = self._store.next_ledger_id()
        self._drop_segment()
        self._ledger_id, self._needs_ledger_id = ledger_id, False

    def _drop_segment(self) -> None:
        if self._segment is not None:
            self._store.segment_ended(self._segment)
            self._segment = None

    # What the committer calls

    def fence(self) -> None:
        """Under the lock: drop what is not durable; the next entry begins a new ledger."""
        kept = []
        for segment in self._segments:
            segment.truncate(segment.entry_count)
            if segment.entry_count:
                kept.append(segment)
            else:
                self._store.segment_void(segment)
        self._segments = tuple(kept)
        self._next_index = super().next_index if kept else 0
        if self._segment is not None and not self._segment.entry_count:
            self._segment = None
        self._drop_segment()
        self._needs_ledger_id = True
        # On a full disk the catalog may fail as well: then the next append asks again.
        with suppress(CatalogError):
            self._end_ledger()

    def confirmed(self) -> None:
        """Tell the listeners that there are new entries."""
        for listener in self.on_confirmed:
            listener()

    # Ending

    def roll(self) -> None:
        """End the current ledger; the next entry begins a new one."""
        with self._store.committer.lock:
            if self._segment is not None:
                self._end_ledger()

    def trim(self, before: Position) -> int:
        """Remove the segments whose entries all stand before ``before``; how many.

        The last segment with entries stays, whatever ``before`` says: it carries the index on.
        Blocks. After a crash either all of them are there, or none.
        """
        with self._store.committer.lock:
            segments = self._segments
            keep = next(
                (
                    n
                    for n, s in enumerate(segments)
                    if Position(s.ledger_id, s.end_entry_id) > before
                ),
                len(segments),
            )
            last = max((n for n, s in enumerate(segments) if s.entry_count), default=0)
            gone = segments[: min(keep, last)]
        if gone:
            self._store.unlist_segments(self, gone)
            with self._store.committer.lock:
                self._segments = tuple(s for s in self._segments if s not in gone)
            self._store.remove_segments(gone)
        return len(gone)

    def truncate_head(self, before: Position) -> int:
        """Remove all entries before ``before``, also inside the open ledger; how many. Blocks.

        Only durable entries are removed. The removal is durable when this returns; after a crash
        in between a part of the entries may be there still.
        """
        count = self.count_entries(EARLIEST, before)
        self.trim(before)
        number, row = self._locate(self._segments, before)
        if number == 0 and self._segments:
            first = self._segments[0]
            row = min(row, first.entry_count)
            if row > first.cut_rows:
                first.cut_head(row)
        return count

    def open_cursor(
        self,
        name: str,
        *,
        initial: Position,
        durable: bool = True,
        properties: dict[str, int] | None = None,
    ) -> Cursor:
        """The cursor of a subscription: as it was left, or a new one that reads from ``initial``.

        ``initial`` may be EARLIEST or LATEST. A cursor that is not durable lives in memory.
        """
        return self._store.cursors.open(
            self, name, initial=initial, durable=durable, properties=properties
        )

    def delete_cursor(self, name: str) -> Commit:
        """Forget a subscription; durable when the commit is done."""
        return self._store.cursors.delete(self, name)

    def close(self) -> None:
        """End the current ledger and refuse appends. What is pending still becomes durable."""
        with self._store.committer.lock:
            self._closed = True
            if self._segment is not None:
                self._store.segment_ended(self._segment)
                self._segment = None

"""The partitions that Kafka clients use, and how their logs are read by offset.

A partition is made when its topic is opened, and dropped when the topic is closed. It knows which
fetches wait for new entries, and where the entries begin that clients will ask for next, so that a
client who reads on costs no search.

**Idempotent producers** (`Sequences`, KIP-98). A batch has a producer id, an epoch and a sequence
number. The next batch's number is the last one plus 1 (after 2^31-1 comes 0); a new epoch begins at
0. A batch that repeats one of the last five is answered with its old offset and not stored again.
An unknown id may begin with any number.

Nothing of this is stored. When the first idempotent batch comes after a start, the newest entries
are read. A client repeats a batch only while it has no answer, and has five batches on their way at
most. So the newest entries have it, unless thousands of other batches came in between.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ...finder import IndexOutOfRangeError
from ...finder.search import AnyFinder, finder_of
from ...kafka.errors import Code, KafkaError
from ...kafka.records import SEQUENCE_END, EntryRules, SentBatch, magic_of, producer_of, sent_batch
from ...kafka.topic_settings import rules_of
from ...ledger import Commit, CorruptEntryError, Entry, EntryKind, ManagedLedger, Position
from ...ledger.epochs import epoch_runs
from ...ledger.topic_log import entries_of
from ...metadata import peek
from ...metadata.source_stamp import source_stamp_of
from ..connection.services import Services
from ..topics.topic import Topic
from .topics import KafkaTopics

log = logging.getLogger(__name__)

NO_EPOCH = -1
READ_COMMITTED = 1
"""The isolation level of consumers that get nothing of open and aborted transactions."""
#: A log's epochs have 32 bits without a sign, those of Kafka's protocol have a sign.
MAX_SHOWN_EPOCH = 2**31 - 1
PLACES_KEPT = 64
READ_ENTRIES = 500


def shown_epoch(epoch: int) -> int:
    """The leader epoch for Kafka's clients: -1 (not known) if it exceeds their i32."""
    return epoch if epoch <= MAX_SHOWN_EPOCH else NO_EPOCH


class KafkaPartition:
    """One open partition."""

    def __init__(self, topics: KafkaTopics, topic: str, index: int, opened: Topic) -> None:
        self._topics = topics
        self.topic = topic
        self.index = index
        self.opened = opened
        self.ledger: ManagedLedger = opened.ledger
        #: None until an idempotent producer writes.
        self.sequences: Sequences | None = None
        #: The commit of the last append.
        self.last_commit: Commit | None = None
        #: Held from the check of a set that has the log's offsets inside until it is appended.
        self.numbering = asyncio.Lock()
        self._rules: tuple[Mapping[str, str] | None, str | None, EntryRules] | None = None
        #: Called after commits; a fetch that waits is in here.
        self.waiting: dict[object, Callable[[], None]] = {}
        self._places: OrderedDict[int, Position] = OrderedDict()
        self._damaged: Position | None = None
        self.ledger.on_confirmed.append(self._confirmed)

    @property
    def first_offset(self) -> int:
        """The log's start, which may be inside an entry (`KafkaTopics.delete_before`)."""
        first = max(self.opened.first_index, self._topics.starts.of(self.ledger))
        return min(first, self.ledger.next_index)

    @property
    def end_offset(self) -> int:
        """The high watermark: one past the last durable record."""
        return self.ledger.next_index

    @property
    def stable_offset(self) -> int:
        """The last stable offset: the start of the first open transaction, or the end."""
        transactions = self.ledger.transactions
        return self.end_offset if transactions is None else transactions.stable_index(self.ledger)

    def committed(self, entries: list[Entry]) -> list[Entry]:
        """The entries that READ_COMMITTED gets of these: up to the last stable offset.

        Aborted entries of Pulsar's clients are shown as control entries. Those of Kafka's are there
        as they are: clients leave them out by the list of `aborted` transactions.
        """
        transactions = self.ledger.transactions
        if transactions is None:
            return entries
        shown = transactions.shown(entries, self.ledger)
        return [
            was if now is not was and _is_record_set(was) else now
            for now, was in zip(shown, entries, strict=False)
        ]

    def aborted(self, first_offset: int, last_offset: int) -> list[tuple[int, int]]:
        """Aborted Kafka transactions in a range: producer id and first offset.

        Those that ended in the compacted part of the log are left out: their control entries are
        gone, and consumers would take later records for aborted ones.
        """
        transactions = self.ledger.transactions
        if transactions is None:
            return []
        horizon = getattr(self.opened.read_log, "horizon", None)
        return [
            (producer.producer_id, max(each.first_index, 0))
            for each in transactions.aborted_in(first_offset, last_offset)
            if (producer := producer_of(each.transaction)) is not None
            and (horizon is None or each.end > horizon)
        ]

    @property
    def epoch(self) -> int:
        """The current leader epoch, as clients get it."""
        return shown_epoch(self.ledger.epoch)

    def rules_for_sets(self) -> EntryRules | None:
        """As `rules`; None if the topic takes no record sets."""
        return None if self._topics.settings(self.topic) is None else self.rules()

    def rules(self) -> EntryRules:
        """The topic's rules for produced record sets."""
        settings, header = self._topics.settings(self.topic), self.opened.tombstone_property
        known = self._rules
        if known is None or known[0] is not settings or known[1] != header:
            rules = replace(rules_of(settings or {}), tombstone_header=header)
            known = self._rules = settings, header, rules
        return known[2]

    async def load_sequences(
        self, run_blocking: Callable[..., Awaitable[Any]], max_producers: int
    ) -> None:
        """Read what idempotent producers have sent. Raises LedgerError, OSError."""
        commit = self.last_commit
        if commit is not None and not commit.done:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            commit.add_done_callback(lambda _: None if done.done() else done.set_result(None))
            await done
        found = await run_blocking(read_sequences, self.ledger, max_producers)
        if self.sequences is None:
            self.sequences = found

    def _confirmed(self) -> None:
        if self.waiting:
            for call in tuple(self.waiting.values()):
                call()

    def read(self, offset: int, max_bytes: int) -> list[Entry]:
        """Entries from the one with `offset` on; [] at the end.

        At least one entry, whatever `max_bytes` says. Entries without an offset are left out. After
        entries that compaction has removed, reading begins at the next one. A damaged entry at the
        front is skipped, too. Raises KafkaError (OFFSET_OUT_OF_RANGE), LedgerError, OSError.
        """
        if not self.first_offset <= offset <= self.end_offset:
            raise KafkaError(
                Code.OFFSET_OUT_OF_RANGE,
                f"{self.opened.name} has offsets from {self.first_offset} to {self.end_offset}, "
                f"not {offset}",
            )
        if offset == self.end_offset:
            self.ledger.recent.reached_end()
            return []
        at = self._places.get(offset) or self.find(offset)
        entries: list[Entry] = []
        while not entries:
            found = self._read_at(at, max_bytes)
            if not found:
                return []
            entries = [entry for entry in found if entry.message_count]
            last = found[-1]
            at = Position(last.position.ledger_id, last.position.entry_id + 1)
        self._places[last.index + 1] = at
        self._places.move_to_end(last.index + 1)
        if len(self._places) > PLACES_KEPT:
            self._places.popitem(last=False)
        return entries

    @property
    def finder(self) -> AnyFinder:
        """Finds entries by offset; for one that compaction has removed, the next entry."""
        return finder_of(self.opened.read_log)

    def position_of(self, offset: int) -> Position:
        """The position of an offset's entry, or of the log's end. Raises KafkaError, OSError."""
        return self.ledger.end_position if offset == self.end_offset else self.find(offset)

    def find(self, offset: int) -> Position:
        """The position of the entry with an offset, or of the next. Raises KafkaError, OSError."""
        first = self.opened.read_log.first_position
        if first is not None and offset == self.opened.first_index:
            return first
        try:
            return self.finder.by_index(offset).position
        except IndexOutOfRangeError as error:  # it was removed meanwhile
            raise KafkaError(Code.OFFSET_OUT_OF_RANGE, str(error)) from error

    def _read_at(self, at: Position, max_bytes: int) -> list[Entry]:
        log_ = self.opened.read_log
        while True:
            try:
                return log_.read(at, max_entries=READ_ENTRIES, max_bytes=max_bytes)
            except CorruptEntryError as damage:
                if self._damaged != damage.position:
                    self._damaged = damage.position
                    log.error(
                        "%s: a damaged entry is left out of fetches; run `verify`: %s",
                        self.opened.name,
                        damage,
                    )
                at = damage.next_position

    def epochs(self) -> Callable[[Entry], int]:
        """A function that returns the leader epoch of an entry."""
        current = self.ledger.epoch
        if not current:
            return lambda entry: 0  # no epoch was ever begun
        # `ledger.epochs` also reads the name of each epoch's leader, from the disk.
        begins = epoch_runs(self.ledger.segments())
        starts = [run.first_position for run in begins]
        epochs = [shown_epoch(run.header.epoch) for run in begins]
        if begins and begins[0].header.epoch == current:
            return lambda entry: epochs[0]

        def epoch_of(entry: Entry) -> int:
            number = bisect_right(starts, entry.position)
            return epochs[number - 1] if number else 0

        return epoch_of

    def check_epoch(self, claimed: int) -> None:
        """Raise KafkaError unless the claimed leader epoch is the current one; -1 is no claim."""
        current = self.ledger.epoch
        if claimed in (NO_EPOCH, current):
            return
        code = Code.FENCED_LEADER_EPOCH if claimed < current else Code.UNKNOWN_LEADER_EPOCH
        raise KafkaError(code, f"{self.opened.name} has leader epoch {current}, not {claimed}")

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """The highest epoch up to `epoch` and its end offset; (-1, -1): not known."""
        current = self.ledger.epoch
        if epoch == current:
            return epoch, self.end_offset
        if not 0 <= epoch <= current:
            return -1, -1
        found = -1
        for run in epoch_runs(self.ledger.segments()):
            if run.header.epoch > epoch:
                return (found, run.first_index) if found >= 0 else (epoch, run.first_index)
            found = run.header.epoch
        return found, self.end_offset


def _is_record_set(entry: Entry) -> bool:
    metadata = peek(entry.prefix)
    return metadata is not None and magic_of(metadata.source_format) is not None


class Partitions:
    """The open partitions of one endpoint."""

    def __init__(self, topics: KafkaTopics) -> None:
        self._topics = topics
        self._open: dict[tuple[str, int], KafkaPartition] = {}
        self._sweep_at = 1_000

    def get(self, topic: str, index: int) -> KafkaPartition | None:
        """The partition, if its topic is open."""
        known = self._open.get((topic, index))
        if known is not None and known.opened.is_open:
            return known
        opened = self._topics.opened(topic, index)
        if opened is None:
            self._open.pop((topic, index), None)
            return None
        return self._made(topic, index, opened)

    async def open(self, topic: str, index: int) -> KafkaPartition:
        """The partition; opens its topic if needed. Raises KafkaError."""
        known = self.get(topic, index)
        if known is not None:
            return known
        opened = await self._topics.open(topic, index)
        return self.get(topic, index) or self._made(topic, index, opened)

    def _made(self, topic: str, index: int, opened: Topic) -> KafkaPartition:
        made = self._open[topic, index] = KafkaPartition(self._topics, topic, index, opened)
        if len(self._open) >= self._sweep_at:
            self._open = {key: p for key, p in self._open.items() if p.opened.is_open}
            self._sweep_at = max(1_000, 2 * len(self._open))
        return made


BATCHES_KEPT = 5
#: The number of newest entries that are read, or fewer if they are large.
NEWEST_ENTRIES = (5_000, 1_000, 200, 40)
MAX_BYTES = 64 * 1024 * 1024
#: The number of producer ids that are reserved at once.
BLOCK = 1_000
#: The kind of catalog properties under which the next id is stored.
PROPERTY_KIND = "kafka"
NEXT_ID = "next-producer-id"


class Stored(NamedTuple):
    """The sequence numbers, offset and time of a stored batch."""

    batch: SentBatch
    base_offset: int
    time_ms: int


@dataclass(slots=True)
class _Producer:
    epoch: int
    batches: deque[Stored]


class Sequences:
    """The idempotent producers of one partition; the most recent ones are kept."""

    def __init__(self, max_producers: int) -> None:
        self._max_producers = max_producers
        self._producers: OrderedDict[int, _Producer] = OrderedDict()

    def __len__(self) -> int:
        return len(self._producers)

    def check(self, batch: SentBatch) -> Stored | None:
        """The stored batch that this one repeats; None if it is new. Raises KafkaError."""
        producer_id, epoch = batch.producer
        producer = self._producers.get(producer_id)
        if producer is None:
            return None
        if epoch < producer.epoch:
            raise KafkaError(
                Code.INVALID_PRODUCER_EPOCH,
                f"producer {producer_id} has epoch {producer.epoch}, not {epoch}",
            )
        if epoch > producer.epoch:
            expected = 0
        else:
            for stored in producer.batches:
                if stored.batch == batch:
                    return stored
            expected = (producer.batches[-1].batch.last_sequence + 1) % SEQUENCE_END
        if batch.first_sequence != expected:
            raise KafkaError(
                Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {producer_id} sent sequence number {batch.first_sequence}, "
                f"and the next one is {expected}",
            )
        return None

    def add(self, batch: SentBatch, base_offset: int, time_ms: int) -> None:
        """Remember a batch that was appended."""
        producer_id, epoch = batch.producer
        producer = self._producers.pop(producer_id, None)
        if producer is None or epoch != producer.epoch:
            producer = _Producer(epoch, deque(maxlen=BATCHES_KEPT))
        producer.batches.append(Stored(batch, base_offset, time_ms))
        self._producers[producer_id] = producer
        if len(self._producers) > self._max_producers:
            self._producers.popitem(last=False)


def read_sequences(ledger: ManagedLedger, max_producers: int) -> Sequences:
    """Read producers' last batches from the newest entries. Blocks. Raises LedgerError, OSError."""
    sequences = Sequences(max_producers)
    start = _start(ledger)
    if start is not None:
        for entry in entries_of(ledger, start, skip_damaged=True):
            batch = _batch_of(entry)
            if batch is not None:
                sequences.add(batch, entry.first_index, -1)
    return sequences


def _start(ledger: ManagedLedger) -> Position | None:
    first, end = ledger.first_position, ledger.end_position
    if first is None:
        return None
    count = ledger.count_entries(first, end)
    for newest in NEWEST_ENTRIES:
        start = ledger.entry_after(first, max(0, count - newest))
        if start is None:
            break
        stretches = ledger.stretches(start)
        sizes = (run.row(end - 1).end_offset - run.row(at).offset for run, at, end in stretches)
        if sum(sizes) <= MAX_BYTES:
            break
    return start


def _batch_of(entry: Entry) -> SentBatch | None:
    """The batch of an idempotent producer in an entry; None if it is another entry.

    Pulsar's entries do not begin with two zero bytes, or have another byte where the magic is.
    """
    if entry.kind is not EntryKind.DATA or bytes(entry.body[:8]) != bytes(8):
        return None
    sent = sent_batch(entry.body)
    if sent is None or source_stamp_of(peek(entry.prefix)) is not None:
        return None  # a mirrored batch has the number of another cluster's producer
    return sent._replace(records=entry.message_count)


MAX_TOPIC_IDS = 200_000
"""Ids that are known by their topics; with more, all are forgotten."""


class TopicIds:
    """Topic ids (KIP-516), derived from the names: equal on every broker and after each start.

    A topic that is created again has its former id. Only ids that were given out can be looked up.
    """

    def __init__(self, cluster: str) -> None:
        self._space = uuid.uuid5(uuid.NAMESPACE_URL, f"pulsemark:{cluster}")
        self._ids: dict[str, uuid.UUID] = {}
        self._names: dict[uuid.UUID, str] = {}

    def of(self, topic: str) -> uuid.UUID:
        """A topic's id."""
        known = self._ids.get(topic)
        if known is None:
            if len(self._ids) >= MAX_TOPIC_IDS:
                self._ids.clear()
                self._names.clear()
            known = self._ids[topic] = uuid.uuid5(self._space, topic)
            self._names[known] = topic
        return known

    def name(self, topic_id: uuid.UUID | None) -> str | None:
        """The name of the topic with an id; None: it is not known."""
        return None if topic_id is None else self._names.get(topic_id)


class ProducerIds:
    """Producer ids of one endpoint, reserved in blocks, so that most cost no write."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._next = self._end = 0
        self._taking = asyncio.Lock()

    async def take(self) -> int:
        """Return an id that no producer had before. Raises LedgerError."""
        async with self._taking:
            if self._next == self._end:
                self._next = await self._services.topics.catalog_writer.revising(self._take_block)
                self._end = self._next + BLOCK
            self._next += 1
            return self._next - 1

    async def _take_block(self) -> int:
        """Reserve a block of new ids and return its first one."""
        writer = self._services.topics.catalog_writer
        stored = await writer.read(PROPERTY_KIND, NEXT_ID)
        # Without a number (the folder is new, or its catalog was lost) ids begin above those that
        # were given before: at most 1,000 in each millisecond.
        now_ms = self._services.config.clock.now_ms()
        first = now_ms * 1_000 if stored is None else int(stored)
        await writer.write((PROPERTY_KIND, NEXT_ID, str(first + BLOCK).encode()))
        return first

"""The workers' part of a replay: publish one part, from its place in the checkpoint to its end.

Each entry is stored once, also when the replay, its workers or the target were killed:

- **Producer name.** A part of the plan always has the same producer name, and a broker lets only
  one producer of a name into a topic. So there is one run at a time that publishes a part.
- **Sequence ids.** They are the indexes of the source. A topic that deduplicates drops what it has.
- **Comparison.** A broker that was killed reads its newest entries again to learn their sequence
  ids, and takes them from the producers' own headers, which untouched entries keep. So it forgets
  ours. Therefore, when a topic is opened again, the target's entries after the last acknowledged
  one are read, and compared byte by byte with those that come next.

Without deduplication only the comparison holds. Then an entry that was on its way when the replay
was killed could be stored while the target is read, and be missed. So such a topic is refused,
unless the user wants it. Whether a topic deduplicates is seen after the first entry: its producer
is opened again, and a broker that deduplicates knows its sequence id.

If the connection to the target is lost, or the target refuses for a while, the part is opened again
and goes on where the target is, for as long as the options allow.

A message names its schema by the topic's version number, in bytes that do not change. So before the
first entry with a version goes, all versions up to it are registered in the target, in their order,
and the numbers that the target gives are compared. If one differs, its consumers would decode with
another schema: then the replay stops.

Spark runs the parts in its workers and, on a cluster, repeats those that fail. A repeated task goes
on where the checkpoint and the target are.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from ...client import (
    ClientError,
    Pace,
    RateLimit,
    RawEntry,
    RawProducer,
    RawReader,
    Receipt,
    RequestRefusedError,
    Service,
)
from ...client.errors import may_pass
from ...ledger import FolderReader, TopicLog
from ...maintenance.verify_catalog import follow_transactions
from ...metadata import MessageFormatError, read_message_metadata
from ..errors import ReplayError
from ..options import ReadOptions
from ..plan import slice_between
from ..slices import Slice
from ..tasks import Continuity, tables_of
from ..values.form import schema_key, stored_schemas
from .checkpoint import Checkpoint, Part, Progress
from .options import ReplayOptions, service_of

SAVE_S = 1.0
"""How often the progress is stored."""
BACKOFF_MIN_S, BACKOFF_MAX_S = 0.1, 5.0
_ATTEND_S = 0.25
"""How often receipts are looked for, and PINGs answered, while the rate limit holds."""

_log = logging.getLogger(__name__)


class Paces:
    """The rate limits of one task."""

    def __init__(self, options: ReplayOptions, clock: Callable[[], float] = time.monotonic) -> None:
        limits = ((options.messages_per_s, True), (options.bytes_per_s, False))
        self._paces = [
            Pace(RateLimit(rate, is_messages=is_messages), clock)
            for rate, is_messages in limits
            if rate is not None
        ]

    def wait_s(self) -> float:
        """Seconds until the next entry may go; 0: now."""
        return max((pace.wait_s() for pace in self._paces), default=0.0)

    def spend(self, entry: Outgoing) -> None:
        """Count an entry that is sent."""
        for pace in self._paces:
            pace.spend(len(entry.body), entry.message_count)


@dataclass(slots=True)
class PartReplay:
    """The replay of one part.

    Attributes: progress (what the target has acknowledged, in this run or before it).
    """

    read: ReadOptions
    options: ReplayOptions
    """Its rates are what the task of this part may use of the whole."""
    checkpoint: Checkpoint
    number: int
    """The part's number in the plan."""
    part: Part
    producer_name: str
    lost: Collection[int]
    """Ledgers that the driver found to be lost."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    progress: Progress = field(init=False)
    _saved: Progress | None = None
    _saved_s: float = 0.0

    def run(self, paces: Paces) -> Progress:
        """Replay to the end of the part.

        Raises ReplayError (also if the target was away for too long), DataLossError, DecodeError,
        OptionError (the checkpoint).
        """
        topic, target = self.part.topic, self.part.target_topic
        self.progress = self.checkpoint.progress(self.number, self.part)
        lost_s, delay_s = None, BACKOFF_MIN_S
        while not self.progress.done:
            before = self.progress.next_index
            try:
                self._go_on(paces)
                break
            except ClientError as error:
                if not may_pass(error):
                    reason = f"the target {target} does not take it: {error}"
                    raise ReplayError(topic, reason) from error
                lost = error
            if self.progress.next_index > before or lost_s is None:
                lost_s, delay_s = self.clock(), BACKOFF_MIN_S
            if self.clock() - lost_s >= self.options.reconnect_s:
                waited = f"{self.options.reconnect_s:g} s"
                reason = f"the target {target} did not take it for {waited}: {lost}"
                raise ReplayError(topic, reason) from lost
            text = "%s: the connection to the target was lost; the replay tries again: %s"
            _log.warning(text, topic, lost)
            self.sleep(delay_s)
            delay_s = min(2 * delay_s, BACKOFF_MAX_S)
        return self.progress

    def _go_on(self, paces: Paces) -> None:
        """Replay over one connection; what is acknowledged is kept, also if this raises."""
        with service_of(self.options) as service, FolderReader(self.read.path) as reader:
            log = self._log(reader)
            target = TargetTopic(service, self)
            try:
                target.note_beginning()
                self._save()
                self._publish(target, log, paces)
                target.flush()
                self.progress = replace(self.progress, done=True, next_index=self.part.end_index)
                target.close()
            finally:
                self._save()

    def _log(self, reader: FolderReader) -> TopicLog:
        log = reader.logs([self.part.topic], lost=self.lost).get(self.part.topic)
        if log is None:
            raise ReplayError(self.part.topic, "was deleted in the source")
        if log.topic_id != self.part.log_id:
            raise ReplayError(self.part.topic, "was deleted in the source and created again")
        follow_transactions(self.read.path, [log])
        return log

    def _publish(self, target: TargetTopic, log: TopicLog, paces: Paces) -> None:
        target.check_deduplication()
        for entry in target.pass_over_stored(self._entries(log)):
            while (wait_s := paces.wait_s()) > 0:
                self.sleep(min(wait_s, _ATTEND_S))
                self._attend(target)
            target.publish(entry)
            paces.spend(entry)
            self._attend(target)
            target.check_deduplication()

    def _entries(self, log: TopicLog) -> Iterator[Outgoing]:
        next_index, end_index = self.progress.next_index, self.part.end_index
        if next_index >= end_index:
            return iter(())
        part = slice_between(log, next_index, end_index)
        return untouched_entries(log, part, fail=self.read.fail_on_data_loss)

    def _attend(self, target: TargetTopic) -> None:
        target.settle()
        if self.clock() - self._saved_s >= SAVE_S:
            self._save()

    def _save(self) -> None:
        if self.progress != self._saved:
            self.checkpoint.save(self.number, self.progress)
            self._saved = self.progress
        self._saved_s = self.clock()


_RECORD_SET = bytes(4)
"""How a record set of Kafka's clients begins; no Pulsar message does."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """An entry of the source, and the part of it that is published."""

    first_index: int
    last_index: int
    body: bytes

    @property
    def message_count(self) -> int:
        """How many messages it has."""
        return self.last_index - self.first_index + 1


def untouched_entries(log: TopicLog, part: Slice, *, fail: bool = True) -> Iterator[Outgoing]:
    """The entries of a range as their producers made them.

    Raises:
        DataLossError: entries are missing (see ``fail_on_data_loss``).
        ReplayError: an entry is a record set of a Kafka client, which is not a message of Pulsar.
    """
    continuity = Continuity(part, fail=fail)
    for whole in tables_of(log, part, bodies=True, on_damage=continuity.damaged):
        continuity.check(whole)
        table = whole.with_messages()
        spans = zip(table.body_starts.tolist(), table.ends.tolist(), strict=True)
        indexes = zip(table.first_indexes.tolist(), table.indexes.tolist(), strict=True)
        for (start, end), (first, last) in zip(spans, indexes, strict=True):
            body = bytes(table.data[start:end])
            if body[:4] == _RECORD_SET:
                reason = (
                    f"message {first} was written by a Kafka client; read such topics with the"
                    " source, and write them with the sink"
                )
                raise ReplayError(part.topic, reason)
            yield Outgoing(first, last, body)
    continuity.finish()


def replay_parts(parts: Sequence[PartReplay]) -> Iterator[tuple[int, Progress]]:
    """Replay the parts of one task, in a worker. Yields the number and progress of each."""
    paces = Paces(parts[0].options)
    for part in parts:
        yield part.number, part.run(paces)


_VERSION_SIZE_BYTES = 8


class TargetTopic:
    """The target's side of one part, over one connection. Its methods raise ClientError."""

    def __init__(self, service: Service, replay: PartReplay) -> None:
        """Open the producer."""
        self._service = service
        self._replay = replay
        self._topic = replay.part.target_topic
        self._pending: deque[Outgoing] = deque()
        self._schemas_carried = -1
        self._producer = self._open()

    def _open(self) -> RawProducer:
        name = self._replay.producer_name
        return RawProducer(
            self._service, self._topic, name=name, gathers=True, reconnect_attempts=0
        )

    def _error(self, reason: str) -> ReplayError:
        return ReplayError(self._replay.part.topic, reason)

    # What is there already

    def note_beginning(self) -> None:
        """Note the last entry that the topic has before the first entry of the replay."""
        progress = self._replay.progress
        if not progress.began:
            with RawReader(self._service, self._topic) as reader:
                self._replay.progress = replace(progress, began=True, before=reader.last)

    def pass_over_stored(self, entries: Iterator[Outgoing]) -> Iterator[Outgoing]:
        """Skip the entries that the target has. Raises ReplayError."""
        known = self._producer.last_sequence_id
        following = next(entries, None)
        for stored in self._stored_since(known):
            if following is not None and stored.body == following.body:
                self._acknowledge(following, stored.position)
                following = next(entries, None)
        while following is not None and following.last_index <= known:
            self._acknowledge(following, None)
            following = next(entries, None)
        if following is not None:
            yield following
        yield from entries

    def _stored_since(self, known: int) -> Iterator[RawEntry]:
        """The target's entries after the last one that was acknowledged.

        That one is to be stored still, or known to the broker: raises ReplayError if it is neither.
        """
        progress = self._replay.progress
        start = progress.last or progress.before
        with RawReader(self._service, self._topic, start) as reader:
            is_at_end = start == reader.last
            entries = iter(()) if is_at_end else reader.entries()
            first = next(entries, None)
            is_there = is_at_end or (first is not None and first.position == start)
            if not is_there and progress.last is not None and known < progress.next_index - 1:
                raise self._error(
                    f"the target {self._topic} no longer has entry {progress.last}, so it was"
                    " deleted or trimmed meanwhile; to go on, begin a replay with a new checkpoint"
                    f" from index {progress.next_index} on"
                )
            if first is not None and first.position != start:
                yield first
            yield from entries

    # Publishing

    def publish(self, entry: Outgoing) -> None:
        """Send an entry, after its schema. Raises ReplayError."""
        self._carry_schemas(entry.body)
        self._pending.append(entry)
        self._producer.publish(
            entry.body,
            num_messages=entry.message_count,
            sequence_id=entry.first_index,
            highest_sequence_id=entry.last_index,
        )
        if self._replay.progress.deduplicates is None:
            self.flush()
            self._look_for_deduplication()

    def settle(self) -> None:
        """Count the receipts that have arrived; does not wait."""
        self._note(self._producer.receipts())

    def flush(self) -> None:
        """Wait for all receipts."""
        self._note(self._producer.flush())

    def _note(self, receipts: list[Receipt]) -> None:
        for receipt in receipts:
            entry = self._pending.popleft()
            assert entry.first_index == receipt.sequence_id, "receipts come in order"
            place = (receipt.ledger_id, receipt.entry_id)
            self._acknowledge(entry, place if receipt.ledger_id >= 0 else None)

    def _acknowledge(self, entry: Outgoing, place: tuple[int, int] | None) -> None:
        progress = self._replay.progress
        self._replay.progress = replace(
            progress,
            next_index=entry.last_index + 1,
            messages=progress.messages + entry.message_count,
            entries=progress.entries + 1,
            size_bytes=progress.size_bytes + len(entry.body),
            last=place or progress.last,
        )

    def _carry_schemas(self, body: bytes) -> None:
        """Register the schema that an entry names, and all before it. Raises ReplayError."""
        try:
            version = read_message_metadata(body).schema_version
        except MessageFormatError:
            return
        if len(version) != _VERSION_SIZE_BYTES:
            return  # bytes that name no version are left as they are
        wanted = int.from_bytes(version, "big", signed=True)
        if wanted <= self._schemas_carried:
            return
        topic = self._replay.part.topic
        schemas = stored_schemas(self._replay.read.path, [topic]).get(schema_key(topic), [])
        connection = self._service.connection(self._topic)
        for number in range(self._schemas_carried + 1, wanted + 1):
            what = f"schema version {number}"
            if number >= len(schemas):
                raise self._error(f"{what}: the source's catalog does not have it")
            try:
                given = connection.register_schema(self._topic, schemas[number])
            except RequestRefusedError as error:
                raise self._error(f"{what}: the target does not take it: {error}") from error
            if int.from_bytes(given, "big") != number:
                has = int.from_bytes(given, "big")
                raise self._error(f"{what}: it has the number {has} in the target")
            self._schemas_carried = number

    def _look_for_deduplication(self) -> None:
        self._producer.close()
        self._producer = self._open()
        deduplicates = self._producer.last_sequence_id >= 0
        self._replay.progress = replace(self._replay.progress, deduplicates=deduplicates)

    def check_deduplication(self) -> None:
        """Raise ReplayError if the topic does not deduplicate, but must."""
        deduplicates = self._replay.progress.deduplicates
        if deduplicates is False and not self._replay.options.without_deduplication:
            raise self._error(
                f"the target {self._topic} does not deduplicate, so a replay that is killed could"
                " store an entry twice. Switch it on there (pulsar-admin namespaces"
                " set-deduplication --enable, or topicPolicies), or allow it (option"
                " --without-deduplication), and run the same command again: it goes on"
            )

    def close(self) -> None:
        """Close the producer."""
        self._producer.close()

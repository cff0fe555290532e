"""Stores the record sets of one Produce request, and knows when all of them are durable.

The steps: open the partitions, check each set, then append all in one step of the event loop, so
that no other request comes in between. A set that is refused does not keep the others from being
stored. The request is answered when every commit is done; it shares the group commit with the
publishes of Pulsar's clients.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..ledger import Appended, Batch, EntryTooLargeError, LedgerError
from ..metadata import BrokerEntryMetadata, Buffer, Sender, StampError
from .errors import MESSAGE_LENGTH, Code, KafkaError
from .names import is_name
from .partitions import KafkaPartition
from .records import EntryRules, Produced, RecordSetError, validate_produced
from .sequences import Batch as SentBatch

if TYPE_CHECKING:
    from .session import KafkaSession

__all__ = ["AT_ONCE_PARTS", "Part", "Publish"]

log = logging.getLogger(__name__)

#: Larger sets are checked in a thread, and compressed ones from a lower size on.
CHECKED_AT_ONCE_BYTES = 128 * 1024
COMPRESSED_AT_ONCE_BYTES = 8 * 1024
#: More sets than this are checked and appended in turns.
AT_ONCE_PARTS = 200
MAGIC_AT, ATTRIBUTES_AT, PRODUCER_ID_AT = 16, 22, 43
_PRODUCER_ID = struct.Struct(">q")


@dataclass(slots=True, eq=False)
class Part:
    """The set for one partition, and what became of it."""

    topic: str
    index: int
    records: Buffer | None
    partition: KafkaPartition | None = None
    rules: EntryRules | None = None
    produced: Produced | None = None
    appended: Appended | None = None
    #: The commit of the batch that this one repeats is waited for, too.
    repeats: bool = False
    code: Code = Code.NONE
    message: str | None = None
    base_offset: int = -1
    #: LogAppendTime; -1: the producer's times hold.
    time_ms: int = -1

    def refuse(self, code: int, message: str) -> None:
        """Store nothing of it."""
        self.code, self.message, self.base_offset = Code(code), message[:MESSAGE_LENGTH], -1


class Publish:
    """One Produce request."""

    def __init__(
        self, session: KafkaSession, version: int, client_id: str, parts: list[Part]
    ) -> None:
        self._session = session
        self._endpoint = session.endpoint
        self._version = version
        self._sender = Sender(client_id, client_version="kafka", address=session.address)
        self.parts = parts
        self.size_bytes = sum(len(part.records or b"") for part in parts)
        #: For how long the connection is not read, because of topics' publish rates.
        self.throttle_ms = 0
        self._batches: dict[Batch, None] = {}
        self._waiting = 1
        self._done: Callable[[], None] = _nothing

    # -- before ---------------------------------------------------------------------------------

    def needs_no_wait(self) -> bool:
        """Whether all partitions are open, their epochs have begun, and sets are small and few."""
        if len(self.parts) > AT_ONCE_PARTS:
            return False
        get = self._endpoint.partitions.get
        topics = self._endpoint.ports.topics
        for part in self.parts:
            if part.code is not Code.NONE:
                continue
            if part.partition is None:
                part.partition = get(part.topic, part.index)
            if part.partition is None or _is_large(part.records):
                return False
            if topics.epoch_is_due(part.partition.opened) or topics.is_held(part.partition.opened):
                return False
            if part.partition.sequences is None and _is_idempotent(part.records):
                return False
        return True

    async def prepare(self) -> None:
        """Open the partitions, and check large sets in a thread, and very many in turns."""
        async for part in self._session.in_turns(self.parts):
            if part.code is not Code.NONE:
                continue
            try:
                await self._prepare(part)
            except KafkaError as refusal:
                part.refuse(refusal.code, refusal.message)
            except (LedgerError, OSError) as error:
                part.refuse(Code.KAFKA_STORAGE_ERROR, str(error))

    async def _prepare(self, part: Part) -> None:
        if not is_name(part.topic):
            raise KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION, "no topic can have that name")
        run_blocking = self._endpoint.ports.run_blocking
        part.partition = await self._endpoint.partitions.open(part.topic, part.index)
        await self._endpoint.ports.topics.check_backlog(part.partition.opened)
        await self._endpoint.ports.topics.begin_epoch(part.partition.opened)
        if part.partition.sequences is None and _is_idempotent(part.records):
            max_ids = self._endpoint.options.max_producer_ids
            await part.partition.load_sequences(run_blocking, max_ids)
        if _is_large(part.records):
            await run_blocking(self._check, part)
        elif len(self.parts) > AT_ONCE_PARTS:
            self._check(part)

    def _check(self, part: Part) -> None:
        """Check a set. Runs in any thread."""
        assert part.partition is not None
        part.rules = rules = part.partition.rules_for_sets()
        if rules is None:
            part.refuse(
                Code.POLICY_VIOLATION,
                f"{part.topic} has entries in Pulsar's format; its entryFormat must be kafka",
            )
            return
        try:
            part.produced = validate_produced(part.records, self._version, rules, is_given=True)
        except RecordSetError as error:
            part.refuse(error.code, error.reason)

    # -- appending ------------------------------------------------------------------------------

    def run(self, done: Callable[[], None]) -> None:
        """Append all sets at once; call `done` when each is durable or refused."""
        self._begin(done)
        for part in self.parts:
            self._run_one(part)
        self._end()

    async def run_in_turns(self, done: Callable[[], None]) -> None:
        """As `run`, for very many sets: others may append between two of them."""
        self._begin(done)
        try:
            async for part in self._session.in_turns(self.parts):
                self._run_one(part)
        finally:
            # The connection may be lost meanwhile: what was appended is counted all the same.
            self._end()

    def _begin(self, done: Callable[[], None]) -> None:
        self._done = done
        self._endpoint.ports.budget.bytes_in_flight += self.size_bytes
        self._session.publishing_bytes += self.size_bytes

    def _run_one(self, part: Part) -> None:
        """Append one set, unless it is refused."""
        if part.code is Code.NONE and part.produced is None:
            self._check_now(part)
        if part.code is not Code.NONE or part.produced is None:
            return
        try:
            self._append(part, part.produced)
        except KafkaError as refusal:
            part.refuse(refusal.code, refusal.message)
        except (LedgerError, StampError) as error:
            self._failed(part, error)
        except Exception:
            # The other sets are appended already: they must be counted and answered.
            log.exception("%s: a record set for %s failed", self._session.address, part.topic)
            part.refuse(Code.UNKNOWN_SERVER_ERROR, "the broker failed; see its log")
        else:
            assert part.partition is not None
            if part.partition.last_commit is not None:
                self._batches[part.partition.last_commit.batch] = None

    def _end(self) -> None:
        """All sets were appended or refused: wait for the disk."""
        self._waiting += len(self._batches)
        for batch in self._batches:
            # A batch that is done already calls back at once.
            batch.add_done_callback(self._settled)
        self._settled()

    def _check_now(self, part: Part) -> None:
        if part.partition is None or not part.partition.opened.is_open:
            part.refuse(Code.NOT_LEADER_OR_FOLLOWER, "the topic is being closed; try again")
        else:
            self._check(part)

    def _append(self, part: Part, produced: Produced) -> None:
        """Append a set; or find out that it was stored before."""
        partition = part.partition
        assert partition is not None
        if not partition.opened.is_open:
            raise KafkaError(Code.NOT_LEADER_OR_FOLLOWER, "the topic is being closed; try again")
        topics = self._endpoint.ports.topics
        topics.check_set(partition.opened, len(produced.stored))
        sent = _sent_batch(produced)
        if sent is not None and partition.sequences is None:
            # A commit failed after `prepare`: whether this batch was stored must be found out.
            raise KafkaError(Code.NOT_LEADER_OR_FOLLOWER, "the log is being read; try again")
        if sent is not None and partition.sequences is not None:
            repeated = partition.sequences.check(sent)
            if repeated is not None:
                part.repeats = True
                part.base_offset, part.time_ms = repeated.base_offset, repeated.time_ms
                return
        appended = partition.ledger.append(
            produced.stored,
            message_count=produced.message_count,
            base=_tags_of(produced),
            sender=self._sender,
        )
        part.appended = appended
        throttle_ms = topics.published(
            partition.opened, self._session, produced.message_count, len(produced.stored)
        )
        self.throttle_ms = max(self.throttle_ms, throttle_ms)
        figures = self._endpoint.figures
        figures.sets_in += 1
        figures.sets_in_place += produced.in_place
        figures.add(produced.work)
        part.base_offset = appended.index - produced.message_count + 1
        if part.rules is not None and part.rules.log_append_time:
            part.time_ms = appended.time_ms
        partition.last_commit = appended.commit
        if sent is not None and partition.sequences is not None:
            partition.sequences.add(sent, part.base_offset, part.time_ms)

    def _failed(self, part: Part, error: Exception) -> None:
        log.warning(
            "%s: a record set for %s was refused: %s", self._session.address, part.topic, error
        )
        if isinstance(error, EntryTooLargeError):
            part.refuse(Code.MESSAGE_TOO_LARGE, str(error))
        elif isinstance(error, StampError):
            part.refuse(Code.UNKNOWN_SERVER_ERROR, str(error))
        else:
            self._session.storage_failed(error)
            part.refuse(Code.KAFKA_STORAGE_ERROR, str(error))

    # -- after ----------------------------------------------------------------------------------

    def _settled(self) -> None:
        """One more batch is durable or failed."""
        self._waiting -= 1
        if self._waiting:
            return
        for part in self.parts:
            self._settle(part)
        self._session.publishing_bytes -= self.size_bytes
        self._endpoint.ports.budget.give_back(self.size_bytes)
        # It refers to this request: as long as both do, the request's memory is not free.
        done, self._done = self._done, _nothing
        done()

    def _settle(self, part: Part) -> None:
        partition = part.partition
        if partition is None or not (part.appended is not None or part.repeats):
            return
        done = part.appended or partition.last_commit
        error = None if done is None else done.error
        counters = partition.opened.counters
        if error is not None:
            # The log does not have it: what is known of producers is made of the log again.
            partition.sequences = None
            counters.failed_entries += 1
            log.error("%s: a record set could not be stored: %s", partition.opened.name, error)
            self._session.storage_failed(error)
            part.refuse(Code.KAFKA_STORAGE_ERROR, str(error))
        elif part.appended is not None and part.produced is not None:
            counters.messages_in += part.produced.message_count
            counters.bytes_in += len(part.produced.stored)


def _nothing() -> None:
    """What is called once a request is done, before and after."""


def _tags_of(produced: Produced) -> BrokerEntryMetadata:
    """What the prefix says of a set, beside its stamp."""
    tags = BrokerEntryMetadata(
        message_count=produced.message_count,
        source_format=produced.source_format,
        relative_offset_honoured=True,
    )
    if produced.has_keys:
        tags.has_keys = True
    if produced.tombstone:
        tags.tombstone = True
    if produced.raw_size_bytes:
        tags.raw_size_bytes = produced.raw_size_bytes
    return tags


def _is_large(records: Buffer | None) -> bool:
    if records is None or len(records) <= COMPRESSED_AT_ONCE_BYTES:
        return False
    if len(records) > CHECKED_AT_ONCE_BYTES:
        return True
    at = ATTRIBUTES_AT if records[MAGIC_AT] == 2 else MAGIC_AT + 1
    return bool(records[at] & 7)


def _is_idempotent(records: Buffer | None) -> bool:
    if records is None or len(records) < PRODUCER_ID_AT + 8 or records[MAGIC_AT] != 2:
        return False
    return bool(_PRODUCER_ID.unpack_from(records, PRODUCER_ID_AT)[0] >= 0)


def _sent_batch(produced: Produced) -> SentBatch | None:
    state = produced.producer
    if state is None:
        return None
    return SentBatch(state.producer_id, state.epoch, state.base_sequence, produced.message_count)

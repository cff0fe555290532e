"""Produce: stores record sets, and answers when all are durable.

The steps: open the partitions, check each set, then append them. A set that is refused does not
keep the others from being stored. The request is answered when every commit is done; it shares the
group commit with the publishes of Pulsar's clients.

What the check of a set costs is decided by its records and by its size after decompression, which a
client may make large with few bytes. So a set is checked on the event loop within narrow bounds
(`ON_LOOP`), else in a thread within wider ones, else in a thread within the topic's. Only a few of
each are checked at the same time, over all clients: that bounds the memory, and the time that
threads take from the loop.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from kafka.protocol.producer import ProduceResponse

from ....kafka.errors import MESSAGE_LENGTH, Code, KafkaError
from ....kafka.protocol import Request
from ....kafka.records import (
    EntryRules,
    Produced,
    Producer,
    RecordSetError,
    RecordSetTooLargeError,
    sent_batch,
    validate_produced,
)
from ....kafka.records.layout import LEAST_SIZE_BYTES, LOG_OVERHEAD_BYTES
from ....kafka.topic_settings import is_name
from ....ledger import Appended, Batch, EntryTooLargeError, LedgerError
from ....metadata import BrokerEntryMetadata, Buffer, Sender, StampError
from ..access import Operation
from ..endpoint import Handler, KafkaSession, parts_of
from ..partitions import KafkaPartition
from ..topics import check_set, published

log = logging.getLogger(__name__)

ACKS = (-1, 0, 1)
#: From these versions on, a client knows the code TRANSACTION_ABORTABLE; and a batch adds its
#: partition to the transaction (KIP-890).
ABORTABLE_VERSION, ADDING_VERSION = 11, 12
KIB = 1024


class Bounds(NamedTuple):
    """Limits within which a record set is checked in one go."""

    #: Bytes as sent, of a set that is not compressed and of one that is.
    plain_bytes: int
    compressed_bytes: int
    #: Bytes after decompression.
    raw_bytes: int
    records: int


ON_LOOP = Bounds(128 * KIB, 8 * KIB, 64 * KIB, 2_000)
IN_THREAD = Bounds(2_048 * KIB, 1_024 * KIB, 2_048 * KIB, 50_000)
#: A decompression of `ON_LOOP` costs as much as so many records, and a record that is converted as
#: several that are not.
DECOMPRESSION_RECORDS, CONVERTED_RECORDS = 250, 4
#: More sets than this are checked and appended in turns.
AT_ONCE_PARTS = 200
MAGIC_AT, ATTRIBUTES_AT, COUNT_AT = 16, 22, 57
_COUNT = struct.Struct(">i")
_Topic = ProduceResponse.TopicProduceResponse
_Partition = _Topic.PartitionProduceResponse


def produce(session: KafkaSession, request: Request) -> Coroutine[Any, Any, None] | None:
    """Store record sets; answered when all of them are durable, also with acks=1."""
    body = request.body
    if sum(len(topic.partition_data or ()) for topic in body.topic_data or ()) > AT_ONCE_PARTS:
        return _produce_many(session, request)
    publish = Publish(session, request, list(_parts(session, request)))
    if publish.needs_no_wait():
        _run(session, request, publish)
        return None
    return _prepare_and_run(session, request, publish)


def _parts(session: KafkaSession, request: Request) -> Iterator[Part]:
    """The sets of a request; those that the client may not write are refused."""
    refusal = _refusal(session, request)
    for topic in request.body.topic_data or ():
        for each in topic.partition_data or ():
            part = Part(topic.name or "", each.index, each.records)
            if refusal is not None:
                part.refuse(*refusal)
            elif not session.access.may(Operation.WRITE, part.topic):
                part.refuse(Code.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed.")
            yield part


def _refusal(session: KafkaSession, request: Request) -> tuple[Code, str] | None:
    """The error that refuses all sets of the request, or None."""
    body = request.body
    if body.acks not in ACKS:
        return Code.INVALID_REQUIRED_ACKS, f"acks={body.acks}: must be -1, 0 or 1"
    if request.version >= 3 and body.transactional_id is not None:
        try:
            session.access.check_transactional_id()
        except KafkaError as refusal:
            return refusal.code, refusal.message
    return None


async def _prepare_and_run(session: KafkaSession, request: Request, publish: Publish) -> None:
    await publish.prepare()
    _run(session, request, publish)


def _run(session: KafkaSession, request: Request, publish: Publish) -> None:
    if request.body.acks:
        publish.run(lambda: session.answer(request, _response(publish)))
        return
    publish.run(lambda: _close_if_refused(session, publish))
    session.answer_nothing(request)


async def _produce_many(session: KafkaSession, request: Request) -> None:
    """Store sets for very many partitions, in turns. Later requests wait for the answer."""
    parts = [part async for part in session.in_turns(_parts(session, request))]
    publish = Publish(session, request, parts)
    await publish.prepare()
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    await publish.run_in_turns(lambda: None if done.done() else done.set_result(None))
    await done
    if not request.body.acks:
        session.answer_nothing(request)
        _close_if_refused(session, publish)
        return
    response = await session.endpoint.services.run_blocking(_response, publish)
    await session.answer_by_size(request, response, len(publish.parts))


def _close_if_refused(session: KafkaSession, publish: Publish) -> None:
    """Close the connection of a client with acks=0 if a set was refused: it gets no answer."""
    refused = next((part for part in publish.parts if part.code is not Code.NONE), None)
    if refused is not None:
        session.close_because(
            f"a set for {refused.topic[:300]!r} sent with acks=0 was refused: {refused.message}"
        )


def _response(publish: Publish) -> Any:
    """The results of the sets, by topic. Runs in any thread."""
    topics: dict[str, list[Any]] = {}
    for part in publish.parts:
        topics.setdefault(part.topic, []).append(
            _Partition(
                index=part.index,
                error_code=part.code,
                base_offset=part.base_offset,
                log_append_time_ms=part.time_ms,
                log_start_offset=-1 if part.partition is None else part.partition.first_offset,
                record_errors=[],
                error_message=part.message,
            )
        )
    responses = [_Topic(name=name, partition_responses=each) for name, each in topics.items()]
    return ProduceResponse(responses=responses, throttle_time_ms=publish.throttle_ms)


@dataclass(slots=True, eq=False)
class Part:
    """The record set for one partition, and its result."""

    topic: str
    index: int
    records: Buffer | None
    partition: KafkaPartition | None = None
    rules: EntryRules | None = None
    produced: Produced | None = None
    #: Whether its check is done. `produced` may be None after it, without anything to store.
    is_checked: bool = False
    appended: Appended | None = None
    #: The commit of the batch that this one repeats; it is waited for.
    repeats: bool = False
    code: Code = Code.NONE
    message: str | None = None
    base_offset: int = -1
    #: LogAppendTime; -1: the producer's times hold.
    time_ms: int = -1

    def refuse(self, code: int, message: str) -> None:
        """Refuse the set with a code and a message."""
        self.code, self.message, self.base_offset = Code(code), message[:MESSAGE_LENGTH], -1


class Publish:
    """One Produce request."""

    def __init__(self, session: KafkaSession, request: Request, parts: list[Part]) -> None:
        self._session, self._endpoint = session, session.endpoint
        self._version = request.version
        self._transactional_id = request.body.transactional_id if request.version >= 3 else None
        self._sender = Sender(request.client_id, client_version="kafka", address=session.address)
        self.parts = parts
        self.size_bytes = sum(len(part.records or b"") for part in parts)
        #: For how long the connection is not read, because of topics' publish rates.
        self.throttle_ms = 0
        self._batches: dict[Batch, None] = {}
        self._is_counted = False
        self._waiting = 1
        self._done: Callable[[], None] = _nothing

    def needs_no_wait(self) -> bool:
        """Whether all partitions are open, their epochs have begun, and all sets are checked now.

        Sets are checked as long as they are few and small.
        """
        get = self._endpoint.partitions.get
        epochs = self._endpoint.services.topics.leader_epochs
        steps = 0
        for part in self.parts:
            if part.code is not Code.NONE:
                continue
            part.partition = get(part.topic, part.index)
            if part.partition is None:
                return False
            opened = part.partition.opened
            if epochs.is_due(opened) or opened.has_full_backlog:
                return False
            if part.partition.sequences is None and sent_batch(part.records):
                return False
            if self._unjoined(part) is not None:
                return False
            numbers = _has_offsets_inside(part)
            if numbers and part.partition.numbering.locked():
                return False
            steps += _steps(part.records) * (CONVERTED_RECORDS if numbers else 1)
        if steps > ON_LOOP.records:
            return False
        checked = (part.code is not Code.NONE or self._check(part, ON_LOOP) for part in self.parts)
        return all(checked) and not self._outside()

    async def prepare(self) -> None:
        """Open the partitions, and check the sets: in turns, and large ones in a thread."""
        self._count()
        try:
            async for part in self._session.in_turns(self.parts):
                if part.code is Code.NONE and not part.is_checked:
                    await self._prepare(part)
            await self._add_partitions()
        except BaseException:
            # The connection may be lost meanwhile: what was appended is counted all the same.
            self._end()
            raise

    async def _prepare(self, part: Part) -> None:
        try:
            await self._open(part)
        except KafkaError as refusal:
            self._refuse(part, refusal)
        except (LedgerError, OSError) as error:
            part.refuse(Code.KAFKA_STORAGE_ERROR, str(error))

    async def _open(self, part: Part) -> None:
        if not is_name(part.topic):
            raise KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION, "no topic can have that name")
        topics = self._endpoint.topics
        part.partition = await self._endpoint.partitions.open(part.topic, part.index)
        await topics.check_backlog(part.partition.opened)
        await topics.begin_epoch(part.partition.opened)
        if part.partition.sequences is None and sent_batch(part.records):
            run_blocking = self._endpoint.services.run_blocking
            max_ids = self._endpoint.config.max_kafka_producer_ids_per_partition
            await part.partition.load_sequences(run_blocking, max_ids)
        producer = self._unjoined(part)
        if producer is not None:
            name = self._transactional_id or ""
            at = part.topic, part.index
            adds = self._version >= ADDING_VERSION
            await topics.join(part.partition.opened, at, name, producer, adds=adds)
        if not _has_offsets_inside(part):
            await self._check_in_its_lane(part)
            return
        # It gets the log's offsets inside: such sets of others wait until it is appended.
        async with part.partition.numbering:
            await self._check_in_its_lane(part)
            self._run_one(part)

    def _outside(self) -> dict[Producer, list[Part]]:
        """By producer, the sets whose partitions must be added to a transaction first."""
        found: dict[Producer, list[Part]] = {}
        name = self._transactional_id
        if name is None or self._version < ADDING_VERSION or not self._endpoint.coordinates:
            return found
        has = self._endpoint.transactions.has
        for part in self.parts:
            if part.code is not Code.NONE or part.produced is None:
                continue
            sent = part.produced.sent
            is_in_one = part.produced.is_transactional
            if sent is None or not is_in_one or has(name, (part.topic, part.index)):
                continue
            found.setdefault(sent.producer, []).append(part)
        return found

    async def _add_partitions(self) -> None:
        for producer, parts in self._outside().items():
            added = {(part.topic, part.index) for part in parts}
            try:
                await self._endpoint.transactions.add(self._transactional_id or "", producer, added)
            except KafkaError as refusal:
                for part in parts:
                    self._refuse(part, refusal)

    def _refuse(self, part: Part, refusal: KafkaError) -> None:
        part.refuse(self._known_code(refusal.code), refusal.message)

    def _known_code(self, code: Code) -> Code:
        """A transaction's error code as this request's version has it."""
        if code is Code.PRODUCER_FENCED:
            return Code.INVALID_PRODUCER_EPOCH
        if code is Code.INVALID_TXN_STATE and self._version >= ABORTABLE_VERSION:
            return Code.TRANSACTION_ABORTABLE
        if code is Code.CONCURRENT_TRANSACTIONS and self._version < ADDING_VERSION:
            return Code.NOT_ENOUGH_REPLICAS  # older clients try again after this one
        return code

    def _unjoined(self, part: Part) -> Producer | None:
        """The set's producer, if another broker must be asked about its transaction."""
        if self._transactional_id is None or self._endpoint.coordinates:
            return None
        assert part.partition is not None
        opened, sent = part.partition.opened, sent_batch(part.records)
        if sent is None or opened.joined.get((self._transactional_id, sent.producer)) is not None:
            return None
        return sent.producer

    async def _check_in_its_lane(self, part: Part) -> None:
        if self._check(part, ON_LOOP):
            return
        endpoint = self._endpoint
        lanes = (endpoint.checks, IN_THREAD), (endpoint.large_sets, None)
        for lane, bounds in lanes:
            if await endpoint.in_lane(lane, self._check_unless_closing, part, bounds):
                return

    def _check_unless_closing(self, part: Part, bounds: Bounds | None) -> bool:
        if self._session.is_stopping:
            raise KafkaError(Code.NOT_LEADER_OR_FOLLOWER, "the broker is being closed")
        return self._check(part, bounds)

    def _check(self, part: Part, bounds: Bounds | None) -> bool:
        """Check a set. Return False if it exceeds `bounds`. Runs in any thread."""
        assert part.partition is not None
        rules = part.partition.rules_for_sets()
        if rules is None:
            part.refuse(
                Code.POLICY_VIOLATION,
                f"{part.topic} has entries in Pulsar's format; its entryFormat must be kafka",
            )
            return True
        numbers = _has_offsets_inside(part)
        if numbers:
            rules = replace(rules, base_offset=part.partition.ledger.tail.next_index)
        limits = rules
        if bounds is not None and part.records is not None:
            if not _is_within(bounds, part.records, rules.magic):
                return False
            raw_bytes = bounds.raw_bytes // (CONVERTED_RECORDS if numbers else 1)
            if _is_compressed(part.records) and raw_bytes < rules.max_raw_bytes:
                limits = replace(rules, max_raw_bytes=raw_bytes)
        try:
            produced = validate_produced(part.records, self._version, limits, is_given=True)
        except RecordSetError as error:
            if isinstance(error, RecordSetTooLargeError) and limits is not rules:
                return False
            part.refuse(error.code, str(error))
        else:
            part.rules, part.produced = rules, produced
        part.is_checked = True
        return True

    def run(self, done: Callable[[], None]) -> None:
        """Append all sets at once; call `done` when each is durable or refused."""
        self._done = done
        self._count()
        for part in self.parts:
            self._run_one(part)
        self._end()

    async def run_in_turns(self, done: Callable[[], None]) -> None:
        """As `run`, for very many sets: other requests may append in between."""
        self._done = done
        self._count()
        try:
            async for part in self._session.in_turns(self.parts):
                self._run_one(part)
        finally:
            # The connection may be lost meanwhile: what was appended is counted all the same.
            self._end()

    def _count(self) -> None:
        """Count the sets as in flight until they are durable."""
        if not self._is_counted:
            self._is_counted = True
            self._endpoint.services.budget.bytes_in_flight += self.size_bytes
            self._session.publishing_bytes += self.size_bytes

    def _uncount(self) -> None:
        self._session.publishing_bytes -= self.size_bytes
        self._endpoint.services.budget.give_back(self.size_bytes)

    def _run_one(self, part: Part) -> None:
        """Append one set, unless it is refused, or appended already."""
        if part.code is not Code.NONE or part.produced is None or part.appended is not None:
            return
        try:
            self._append(part, self._numbered(part, part.produced))
        except KafkaError as refusal:
            self._refuse(part, refusal)
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
        """Wait for the disk, after all sets were appended or refused."""
        self._waiting += len(self._batches)
        for batch in self._batches:
            # A batch that is done already calls back at once.
            batch.add_done_callback(self._settled)
        self._settled()

    def _append(self, part: Part, produced: Produced) -> None:
        """Append a set, unless it repeats one that was stored before."""
        partition = part.partition
        assert partition is not None
        if not partition.opened.is_open:
            raise KafkaError(Code.NOT_LEADER_OR_FOLLOWER, "the topic is being closed; try again")
        check_set(partition.opened, len(produced.stored))
        tags = _tags_of(produced)
        sent = produced.sent
        if sent is not None and produced.is_transactional:
            tags.transaction = self._transaction_of(part, sent.producer)
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
            produced.stored, message_count=produced.message_count, base=tags, sender=self._sender
        )
        part.appended = appended
        throttle_ms = published(
            partition.opened, self._session, produced.message_count, len(produced.stored)
        )
        self.throttle_ms = max(self.throttle_ms, throttle_ms)
        figures = self._endpoint.figures
        figures.produced(partition.opened.counters, self._version, in_place=produced.in_place)
        figures.add(produced.work)
        part.base_offset = appended.index - produced.message_count + 1
        if part.rules is not None and part.rules.log_append_time:
            part.time_ms = appended.time_ms
        partition.last_commit = appended.commit
        if sent is not None and partition.sequences is not None:
            partition.sequences.add(sent, part.base_offset, part.time_ms)

    def _transaction_of(self, part: Part, producer: Producer) -> str:
        """The id of a set's transaction. Raises KafkaError if it is not open."""
        if self._transactional_id is None:
            raise KafkaError(
                Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                "a transactional batch in a request without a transactional id",
            )
        if self._endpoint.coordinates:
            return self._endpoint.transactions.check_write(
                self._transactional_id, producer, (part.topic, part.index)
            )
        assert part.partition is not None
        joined = part.partition.opened.joined.get((self._transactional_id, producer))
        if joined is None:
            raise KafkaError(
                Code.NOT_ENOUGH_REPLICAS, "the transaction has just ended, or its coordinator moves"
            )
        return joined

    def _numbered(self, part: Part, produced: Produced) -> Produced:
        """The set with the log's next offset inside: checked again if others came in between.

        In that case a large one is stored unchanged, and fetches set the offset.
        """
        inside = produced.inner_base_offset
        assert part.partition is not None
        is_right = inside is None or inside == part.partition.ledger.tail.next_index
        if is_right:
            return produced
        self._check(part, ON_LOOP)
        return part.produced or produced

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

    def _settled(self) -> None:
        """Count a batch as done: durable or failed."""
        self._waiting -= 1
        if self._waiting:
            return
        for part in self.parts:
            self._settle(part)
        self._uncount()
        # Break the reference cycle with this request, which would keep its memory.
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
            # The log does not have the batch: read the producers' state from the log again.
            partition.sequences = None
            counters.failed_entries += 1
            log.error("%s: a record set could not be stored: %s", partition.opened.name, error)
            self._session.storage_failed(error)
            part.refuse(Code.KAFKA_STORAGE_ERROR, str(error))
        elif part.appended is not None and part.produced is not None:
            counters.messages_in += part.produced.message_count
            counters.bytes_in += len(part.produced.stored)


def _nothing() -> None:
    """Does nothing: the callback of a request before and after it runs."""


def _tags_of(produced: Produced) -> BrokerEntryMetadata:
    """The prefix fields of a set, beside time and index."""
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
    if produced.inner_base_offset is not None:
        tags.inner_base_offset = produced.inner_base_offset
    return tags


def _is_compressed(records: Buffer) -> bool:
    if len(records) <= ATTRIBUTES_AT:
        return False
    return bool(records[ATTRIBUTES_AT if records[MAGIC_AT] == 2 else MAGIC_AT + 1] & 7)


def _has_offsets_inside(part: Part) -> bool:
    """Whether the set is stored with the log's offsets inside: compressed and of magic 0."""
    if part.records is None or part.partition is None or not _is_compressed(part.records):
        return False
    rules = part.partition.rules_for_sets()
    return rules is not None and not rules.magic


def _records_in(records: Buffer) -> int:
    """The most records that a set can have, by its first header and its size.

    For a compressed set of magic 0 or 1 the decompressed size decides.
    """
    if len(records) <= COUNT_AT or records[MAGIC_AT] != 2:
        is_wrapper = _is_compressed(records)
        return 1 if is_wrapper else len(records) // (LOG_OVERHEAD_BYTES + LEAST_SIZE_BYTES)
    return max(0, *_COUNT.unpack_from(records, COUNT_AT)) if len(records) >= COUNT_AT + 4 else 0


def _steps(records: Buffer | None) -> int:
    """The cost of checking a set on the event loop, in records."""
    if records is None:
        return 1
    return 1 + _records_in(records) + DECOMPRESSION_RECORDS * _is_compressed(records)


def _is_within(bounds: Bounds, records: Buffer, stored_magic: int) -> bool:
    """Whether a set is within bounds, as far as is known before decompression."""
    most_bytes = bounds.compressed_bytes if _is_compressed(records) else bounds.plain_bytes
    if len(records) > most_bytes:
        return False
    is_kept = len(records) > MAGIC_AT and records[MAGIC_AT] == stored_magic
    return _records_in(records) * (1 if is_kept else CONVERTED_RECORDS) <= bounds.records


HANDLERS: dict[int, Handler] = {0: Handler(produce, parts_of("topic_data", "partition_data"))}

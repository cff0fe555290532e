"""Kafka as source and target of a mirror: record sets are copied as they are (KIP-31).

A partition is the topic `T-partition-P`. The position of a set is the offset of its last record,
split into two numbers as a sequence id is. So position and index are the same number.

**Source.** A fetch gives the sets as they are stored, of every magic, compressed or not. None is
decompressed; each is checked against its checksum. Sets of aborted transactions, control batches
and
what compaction has removed are holes. A hole keeps its offsets: a batch without records, as Kafka's
own compaction leaves them, takes its place. So offsets stay equal.

**Target.** A Kafka assigns offsets by itself, so they are equal only while nothing is missing. A
hole
ends the mirror with `OffsetsDifferError`, or, with `renumber`, later offsets are lower. A set that
Kafka would refuse (with holes in it, or of magic 0 or 1) is then decompressed and packed again.

The producer fields in a batch's header have no meaning in another cluster. There a mirror writes
where the set is from, and keeps no progress elsewhere: producer id and sequence number, minus
`PRODUCERS`, add up to the offset of the last record, and the epoch is a checksum of the source's
name. Within a run of offsets without a hole the id stays, and the numbers go on; after a hole
another id begins with 0. So a target's last batch tells where to go on. Kafka's own check of
sequence numbers refuses repeated batches, even those of a killed mirror that the broker takes only
after that look. A broker takes any number of an id that it does not know. So a run's first batch
goes alone.
"""

from __future__ import annotations

import time
import zlib
from collections import deque
from collections.abc import Iterator
from typing import Any, NoReturn

from ..client import ConnectionLostError
from ..kafka import importing_kafka
from ..kafka.records import (
    CorruptRecordSetError,
    RecordSetError,
    Work,
    check_mirrored,
    codec_of,
    empty_batch,
    is_hole,
    read,
)
from ..kafka.records.batch import BatchFields, build, check_crc, read_whole_header, sealed_header
from ..kafka.records.convert import renumbered
from ..kafka.records.layout import (
    BATCH_HEADER_BYTES,
    BATCH_OFFSET_SIZE_EPOCH,
    CODEC_MASK,
    CONTROL,
    LOG_APPEND_TIME,
    MESSAGE_ATTRIBUTES_AT,
    NO_LEADER_EPOCH,
    OFFSET,
    TRANSACTIONAL,
    BatchHeader,
    spans,
    stored_magic,
)
from ..kafka.records.rules import SOURCE_FORMATS
from ..ledger.limits import MAX_MESSAGE_COUNT
from ..metadata import Buffer, crc32c
from ..metadata.compression import count_opened
from ..metadata.partition_names import partition_name
from ..metadata.source_stamp import (
    RecordSetTags,
    SourceStamp,
    position_of_sequence_id,
    sequence_id_of,
)
from ..wire import TopicName
from .entries import (
    Gap,
    Options,
    Resume,
    Source,
    SourceEntry,
    SourcePosition,
    Target,
    TopicSource,
    TopicTarget,
)
from .errors import (
    OffsetsDifferError,
    OtherSourceError,
    TargetNotEmptyError,
    TargetRefusedError,
    TopicMissingError,
)

with importing_kafka():
    from ..kafka.client import (
        EARLIEST_TIME,
        FETCH,
        LATEST_TIME,
        READ_COMMITTED,
        KafkaCluster,
        KafkaRefusedError,
        check,
        fetch_fields,
        list_offsets_fields,
        only,
        produce_fields,
    )
    from ..kafka.protocol import LIST_OFFSETS, PRODUCE

FETCH_BYTES = 4 * 1024 * 1024
#: After an answer without records the source is asked again.
QUIET_S = 0.1
#: How long a comparison waits for an answer.
ANSWER_S = 30.0
OUT_OF_RANGE, OUT_OF_ORDER, DUPLICATE = 1, 45, 46
PRODUCERS = 1 << 62
"""Producer ids of mirrors are from here on. Kafka gives its own from 0 on, and checks none."""
#: Kafka recognises repetitions of a producer's last five batches.
IN_FLIGHT = 5
SEQUENCE_MAX = 2**31 - 1
_ANEW = ~(TRANSACTIONAL | CONTROL | 0x40)
"""Attributes that a batch keeps; 0x40 says that compaction has written its base time."""


class Partition:
    """One partition at its leader. Raises TopicMissingError, ConnectionLostError."""

    def __init__(self, cluster: KafkaCluster, topic: str) -> None:
        self.name, self.number = _partition(topic)
        connection = cluster.leader(self.name, self.number)
        if connection is None:
            raise TopicMissingError(cluster.url, topic)
        self.connection = connection
        self.topic = topic

    def offset(self, time_ms: int, isolation_level: int = READ_COMMITTED) -> int:
        """The first or last offset. Raises ConnectionLostError, KafkaRefusedError."""
        fields = list_offsets_fields(self.name, self.number, time_ms, isolation_level)
        found = only(self.connection.wait(self.connection.ask(LIST_OFFSETS, **fields)).topics)
        check(found.error_code, f"offsets of {self.topic}")
        return int(found.offset)

    def ask(self, offset: int, isolation_level: int = READ_COMMITTED) -> int:
        """Send a Fetch. Return its correlation id."""
        asked = (self.name, self.number, offset, FETCH_BYTES, -1)
        fields = fetch_fields([asked], 0, 1, FETCH_BYTES, isolation_level)
        return self.connection.ask(FETCH, **fields)

    def broken(self, offset: int, error: RecordSetError) -> ConnectionLostError:
        """The error for an answer whose sets cannot be split."""
        return ConnectionLostError(f"{self.topic}: offset {offset}: {error}")


def _partition(topic: str) -> tuple[str, int]:
    """Split a full name into the Kafka topic and the partition's number."""
    name = TopicName.parse(topic)
    return str(name.partitioned).rpartition("/")[2], max(name.partition_index, 0)


class KafkaSource(Source):
    """A Kafka cluster as a source; `name` is its name in the target's tags."""

    def __init__(self, cluster: KafkaCluster, name: str) -> None:
        super().__init__(cluster.url, cluster)
        self._cluster = cluster
        self._name = name

    def topics(self, namespaces: list[str]) -> list[str]:
        """All partitions, once for each namespace: a Kafka has no namespaces."""
        return [
            f"persistent://{namespace}/{partition_name(topic, number)}"
            for namespace in namespaces
            for topic, count in self._cluster.topics().items()
            for number in range(count)
        ]

    def partitions(self, topic: str) -> int | None:
        """The cluster's number; None: there is no such topic."""
        return self._cluster.partitions(_partition(topic)[0]) or None

    def open(self, topic: str, resume: Resume) -> KafkaSourceTopic:
        """Begin to read. Raises TopicMissingError, OtherSourceError."""
        return KafkaSourceTopic(Partition(self._cluster, topic), self._name, resume)


class KafkaSourceTopic(TopicSource):
    """One partition, read by fetches."""

    has_holes = True
    """Missing offsets are reported where they are found; each hole is an entry of its own."""

    def __init__(self, partition: Partition, cluster: str, resume: Resume) -> None:
        self._partition = partition
        self._topic = partition.topic
        self._cluster = cluster
        self._known = -1 if resume.sequence_id is None else resume.sequence_id
        if resume.position is not None:
            self._known = sequence_id_of(resume.position)
        self._end = partition.offset(LATEST_TIME)
        if self._known >= self._end:
            known, end = self._known, self._end
            reason = f"it has the source's offset {known}, but the source ends at {end}"
            raise OtherSourceError(self._topic, reason)
        self._asked: int | None = None
        self._begin(self._known + 1)

    def _begin(self, offset: int) -> None:
        self.close()
        self._asked, self._quiet_until_s = None, 0.0
        self._ready: deque[SourceEntry | Gap] = deque()
        self._next = self._added = self._empty_to = self._fetched = offset
        """The next offset to hand on; to add after the sets that are ready; up to which there is
        nothing after these; to fetch. What is between two sets is a hole."""
        self._skip_removed()

    def _skip_removed(self) -> None:
        """Go on at the log's start, if that is later."""
        start = self._partition.offset(EARLIEST_TIME)
        if start > self._fetched:
            what = f"indexes {self._fetched} to {start - 1} are missing"
            self._ready.append(Gap(self._topic, what))
            self._fetched = start  # the hole is filled up to its set, which may begin earlier

    def take(self, max_entries: int, max_bytes: int) -> list[SourceEntry | Gap]:
        """Take arrived sets. Raises ConnectionLostError, OtherSourceError, KafkaRefusedError."""
        if not self._is_ready:
            self._receive()
        taken: list[SourceEntry | Gap] = []
        size_bytes = 0
        while self._is_ready and len(taken) < max_entries and size_bytes < max_bytes:
            one = self._take_one()
            taken.append(one)
            size_bytes += len(one.body or b"") if isinstance(one, SourceEntry) else 0
        return taken

    @property
    def _is_ready(self) -> bool:
        return bool(self._ready) or self._next < self._empty_to

    def _take_one(self) -> SourceEntry | Gap:
        """A gap, the next set, or a part of the hole before it as an empty batch."""
        one = self._ready[0] if self._ready else None
        if isinstance(one, Gap):
            self._ready.popleft()
            return one
        end = self._empty_to if one is None else one.first_index
        if one is None or (end is not None and self._next < end):
            assert end is not None
            count = min(end - self._next, MAX_MESSAGE_COUNT)
            body = empty_batch(0, count, 2, NO_LEADER_EPOCH)
            tags = RecordSetTags(count, SOURCE_FORMATS[2])
            self._next += count
            return self._entry(self._next - 1, body, tags, None)
        self._ready.popleft()
        self._next = sequence_id_of(one.position) + 1
        return one

    def _receive(self) -> None:
        if self._asked is None:
            if time.monotonic() >= self._quiet_until_s:
                self._asked = self._partition.ask(self._fetched)
            return
        answer = self._partition.connection.answer(self._asked)
        if answer is None:
            return
        self._asked = None
        self._add(only(answer.responses))
        if self._is_ready:
            self._asked = self._partition.ask(self._fetched)  # while these are handed on
        else:
            self._quiet_until_s = time.monotonic() + QUIET_S

    def _add(self, found: Any) -> None:
        if found.error_code == OUT_OF_RANGE:
            before = self._fetched
            self._skip_removed()
            if self._fetched == before:
                raise OtherSourceError(self._topic, f"the source ends before offset {before}")
            return
        check(found.error_code, f"records of {self._topic}")
        aborted = _Aborted(found.aborted_transactions or ())
        records, before = memoryview(bytes(found.records or b"")), self._fetched
        try:
            for span in spans(records):
                of_span = records[span.start : span.end]
                self._add_set(of_span, span.magic, aborted, found.high_watermark)
            if records and self._fetched == before:
                raise CorruptRecordSetError(f"no whole set in {len(records)} bytes")
        except RecordSetError as error:  # where it ends is not known
            if not self._ready:
                raise self._partition.broken(self._fetched, error) from error
        self._empty_to = self._fetched

    def _add_set(self, records: memoryview, magic: int, aborted: _Aborted, end: int) -> None:
        (first,) = OFFSET.unpack_from(records)
        last, is_shown, time_ms, raw_bytes = first, True, None, 0
        if magic == len(SOURCE_FORMATS) - 1:
            header = read_whole_header(records)
            last += header.last_offset_delta
            is_shown = not aborted.has(header, last) and header.record_count > 0
            if header.attributes & LOG_APPEND_TIME:
                time_ms = header.max_time_ms
            if not header.attributes & CODEC_MASK:
                raw_bytes = len(records) - BATCH_HEADER_BYTES
            head = BATCH_OFFSET_SIZE_EPOCH.pack(0, header.size, NO_LEADER_EPOCH)
        else:
            if records[MESSAGE_ATTRIBUTES_AT] & CODEC_MASK:
                # Unopened, only a wrapper's last offset is known: a hole before it is in it.
                first = max(self._added, last - MAX_MESSAGE_COUNT + 1)
            else:
                raw_bytes = len(records)
            head = OFFSET.pack(last - first)
        if last >= end or (magic == 2 and last < first):  # no checksum covers an offset
            raise CorruptRecordSetError(f"offsets {first} to {last}, and the log's end is {end}")
        if last < self._fetched:
            return  # of a batch that began before what was asked for
        count = last - first + 1
        body = b"".join((head, records[len(head) :]))
        tags = RecordSetTags(count, SOURCE_FORMATS[magic], raw_size_bytes=raw_bytes)
        try:
            check_mirrored(body, tags.source_format, count)
        except RecordSetError as error:
            is_shown = False
            what = f"offsets {first} to {last} are damaged: {error}"
            self._ready.append(Gap(self._topic, what))
        self._fetched = last + 1
        if is_shown:
            self._ready.append(self._entry(last, body, tags, time_ms))
            self._added = last + 1

    def _entry(
        self, last: int, body: bytes, tags: RecordSetTags, time_ms: int | None
    ) -> SourceEntry:
        stamp = SourceStamp(self._cluster, *_position_of(last), last, time_ms, tags)
        return SourceEntry(stamp, tags.message_count, body)

    def is_caught_up(self, position: SourcePosition | None) -> bool:
        """Whether everything before the end at the opening was taken."""
        passed = self._known if position is None else sequence_id_of(position)
        return max(passed, self._known) + 1 >= self._end

    def rewind(self, position: SourcePosition | None = None) -> None:
        """Start again at the first record; entries that the target has are passed over."""
        self._begin(0)

    def close(self) -> None:
        """Drop the pending answer."""
        if self._asked is not None:
            self._partition.connection.drop(self._asked)


def _position_of(offset: int) -> SourcePosition:
    position = position_of_sequence_id(offset)
    assert position is not None
    return position


class _Aborted:
    """Finds batches of aborted transactions, and markers, in a Fetch's answer (KIP-98)."""

    def __init__(self, transactions: Any) -> None:
        begun = sorted((each.first_offset, each.producer_id) for each in transactions)
        self._begins = deque(begun)
        self._open: set[int] = set()

    def has(self, header: BatchHeader, last: int) -> bool:
        """Whether the next batch is aborted or a marker."""
        while self._begins and self._begins[0][0] <= last:
            self._open.add(self._begins.popleft()[1])
        if header.attributes & CONTROL:
            self._open.discard(header.producer_id)
            return True
        return bool(header.attributes & TRANSACTIONAL) and header.producer_id in self._open


class KafkaTarget(Target):
    """A Kafka cluster as a target. `append`: write behind any records; `renumber`: see above."""

    def __init__(self, cluster: KafkaCluster, options: Options) -> None:
        super().__init__(cluster.url, cluster)
        self._cluster = cluster
        self.name = options.source_cluster
        self.append = options.append
        self.renumber = options.renumber
        self.epoch = epoch_of(self.name)

    def partitions(self, topic: str) -> int | None:
        """The cluster's number; None: there is no such topic."""
        return self._cluster.partitions(_partition(topic)[0]) or None

    def check_partitions(self, topic: str, count: int | None, highest: int) -> None:
        """As `Target`, for partitions of Kafka. Raises TopicMissingError, PartitionCountError."""
        if not count and highest < 0 and self.partitions(topic) is None:
            raise TopicMissingError(self.endpoint, topic, "no such topic; create it there")
        super().check_partitions(topic, None if count is None else max(count, 1), max(highest, 0))

    def open(self, topic: str) -> KafkaTargetTopic:
        """Begin to write. Raises TopicMissingError, TargetNotEmptyError."""
        return KafkaTargetTopic(self, Partition(self._cluster, topic))


class KafkaTargetTopic(TopicTarget):
    """One partition, written as by idempotent producers."""

    def __init__(self, target: KafkaTarget, partition: Partition) -> None:
        self._target = target
        self._partition = partition
        self._topic = partition.topic
        self._in_flight: deque[tuple[int | None, int, int]] = deque()
        """Of each entry: the request (None: a hole), the offset that it is to get, the source's."""
        self._run: int | None = None
        """The source's offset with which the run of this producer id began; None: no run."""
        self._sequence = 0
        self._is_known = False
        """Whether the broker is known to know the run."""
        self._made_of: tuple[SourceEntry | None, tuple[BatchHeader, Buffer] | None] = None, None
        self._end = partition.offset(LATEST_TIME, 0)
        self.resume = self._look()

    def _look(self) -> Resume:
        """Read the progress from the last batch. Raises TargetNotEmptyError."""
        end, header = self._end, None
        while end and (header is None or header.attributes & CONTROL):
            header = self._batch_before(end)
            if header is None:
                break
            end = header.base_offset
        if header is not None and is_of(header, self._target.name):
            known = source_offset_of(header)
            self._sequence = header.base_sequence + header.last_offset_delta + 1
            self._run = known + 1 - self._sequence
        elif not end and (header is None or header.attributes & CONTROL):
            return Resume()
        elif self._target.append:
            known = self._end - 1
        else:
            raise TargetNotEmptyError(
                self._target.endpoint, self._topic, self._target.name, self._end
            )
        return Resume(index=known, sequence_id=known)

    def _batch_before(self, end: int) -> BatchHeader | None:
        """The header of the batch that ends at an offset; None: old magic, or removed."""
        asked = self._partition.ask(end - 1, 0)
        found = only(self._partition.connection.wait(asked).responses)
        if found.error_code == OUT_OF_RANGE:
            return None
        check(found.error_code, f"records of {self._topic}")
        records = memoryview(bytes(found.records or b""))
        try:
            for span in spans(records):
                if span.magic == 2:
                    header = read_whole_header(records[span.start : span.end])
                    if header.base_offset + header.last_offset_delta + 1 == end:
                        check_crc(records[span.start : span.end], header)
                        return header
        except RecordSetError as error:
            raise self._partition.broken(end - 1, error) from error
        return None

    def has_room(self, entry: SourceEntry) -> bool:
        """Whether `put` takes this entry without waiting."""
        if not self._in_flight:
            return True
        return len(self._in_flight) < IN_FLIGHT and self._is_known and not self._begins_run(entry)

    def _begins_run(self, entry: SourceEntry) -> bool:
        made = self._made(entry)
        return made is not None and not self._goes_on(made[0], entry)

    def _goes_on(self, header: BatchHeader, entry: SourceEntry) -> bool:
        """Whether a batch continues the run."""
        first = (entry.stamp.index or 0) - header.record_count + 1
        fits = self._sequence + header.record_count <= SEQUENCE_MAX
        return self._run is not None and first == self._run + self._sequence and fits

    def put(self, entry: SourceEntry) -> None:
        """Send the entry. Raises TargetRefusedError, OffsetsDifferError, ClientError."""
        made = self._made(entry)
        index = entry.stamp.index
        assert index is not None, "the batch was made"
        if made is None:  # a hole, which the next entry meets
            self._in_flight.append((None, self._end, index))
            return
        header, records = made
        first = index - header.record_count + 1
        if first != self._end and not self._target.renumber:
            self._finish()
            reason = f"it would be {self._end} in the target; --renumber mirrors all the same"
            raise OffsetsDifferError(self._topic, first, reason)
        if not self._goes_on(header, entry):
            self._run, self._sequence, self._is_known = first, 0, False
        assert self._run is not None
        header = header._replace(
            producer_id=PRODUCERS + self._run,
            producer_epoch=self._target.epoch,
            base_sequence=self._sequence,
        )
        sets = [(self._partition.name, self._partition.number, _sealed(header, records))]
        asked = self._partition.connection.ask(PRODUCE, **produce_fields(sets, -1))
        self._in_flight.append((asked, self._end, first))
        self._sequence += header.record_count
        self._end += header.record_count

    def _made(self, entry: SourceEntry) -> tuple[BatchHeader, Buffer] | None:
        """Make the batch that Kafka takes; None: the entry has no records."""
        if entry is self._made_of[0]:
            return self._made_of[1]
        what, first = f"entry {entry.position[0]}:{entry.position[1]}", entry.first_index
        if entry.stamp.record_set is None:
            self._refuse(f"{what} is no record set of a Kafka client")
        if first is None:
            self._refuse("the source does not show its indexes, which are Kafka's offsets")
        body = entry.body
        assert body is not None
        try:
            made = batch_of(body, opens=self._target.renumber)
            if made is None and not is_hole(body):
                self._finish()
                reason = "Kafka takes its set, with holes or of magic 0 or 1, only packed again: "
                raise OffsetsDifferError(self._topic, first, reason + "--renumber does so")
        except RecordSetError as error:
            self._refuse(f"{what}: {error}")
        self._made_of = entry, made
        return made

    def stored(self) -> int:
        """The number of answers that have arrived. Raises TargetRefusedError, ClientError."""
        count = 0
        while self._in_flight:
            asked, offset, source_offset = self._in_flight[0]
            if asked is not None:
                answer = self._partition.connection.answer(asked)
                if answer is None:
                    break
                self._check(answer, offset, source_offset)
            self._in_flight.popleft()
            count += 1
        return count

    def _check(self, answer: Any, offset: int, source_offset: int) -> None:
        found = only(answer.responses, "partition_responses")
        if found.error_code in (OUT_OF_ORDER, DUPLICATE):
            # The partition has more records than at the opening, or fewer: look again.
            raise ConnectionLostError(str(KafkaRefusedError(self._topic, found.error_code)))
        try:
            check(found.error_code, f"records of {self._topic}")
        except KafkaRefusedError as error:
            raise TargetRefusedError(self._target.endpoint, self._topic, str(error)) from error
        if found.base_offset != offset:
            reason = f"the target gave it {found.base_offset}, not {offset}: others write there"
            raise OffsetsDifferError(self._topic, source_offset, reason)
        self._is_known = True

    def _finish(self) -> None:
        """Wait for all answers, so that entries before a refused one are copied."""
        for asked, offset, source_offset in self._in_flight:
            if asked is not None:
                self._check(self._partition.connection.wait(asked), offset, source_offset)
        self._in_flight.clear()

    def _refuse(self, reason: str) -> NoReturn:
        self._finish()
        raise TargetRefusedError(self._target.endpoint, self._topic, reason)

    def close(self) -> None:
        """Drop the pending answers."""
        for asked, _, _ in self._in_flight:
            if asked is not None:
                self._partition.connection.drop(asked)
        self._in_flight.clear()


def epoch_of(cluster: str) -> int:
    """The producer's epoch of all batches of a source."""
    return zlib.crc32(cluster.encode()) & 0x7FFF


def is_of(header: BatchHeader, cluster: str) -> bool:
    """Whether a mirror of this source wrote a batch."""
    return header.producer_id >= PRODUCERS and header.producer_epoch == epoch_of(cluster)


def source_offset_of(header: BatchHeader) -> int:
    """The source's offset of the last record, from the header of a mirrored batch."""
    return header.producer_id - PRODUCERS + header.base_sequence + header.last_offset_delta


def batch_of(body: Buffer, *, opens: bool) -> tuple[BatchHeader, Buffer] | None:
    """The batch of magic 2 that a Kafka takes for a stored set: its header, its records.

    None: a set without records, or, unless ``opens``, one that has to be decompressed and packed
    again.
    """
    view = memoryview(body)
    magic = stored_magic(view)
    if magic == 2:
        header = read_whole_header(view)
        if header.record_count == header.last_offset_delta + 1:
            return _anew(header), view[BATCH_HEADER_BYTES:]
        if not header.record_count:
            return None
        bits = header.attributes & LOG_APPEND_TIME
    else:
        bits = magic and view[MESSAGE_ATTRIBUTES_AT] & LOG_APPEND_TIME
    if not opens:
        return None
    count_opened()
    fields = BatchFields(codec=codec_of(view, magic), attributes=bits)
    built = memoryview(build(renumbered(read(view)), fields, Work()))
    return _anew(read_whole_header(built)), built[BATCH_HEADER_BYTES:]


def _anew(header: BatchHeader) -> BatchHeader:
    """The header without the source's own offset, epoch, producer and transaction."""
    return header._replace(
        base_offset=0,
        leader_epoch=NO_LEADER_EPOCH,
        attributes=header.attributes & _ANEW,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
    )


def _sealed(header: BatchHeader, records: Buffer) -> bytes:
    return b"".join((sealed_header(header, records), records))


def checksum_of(body: Buffer, *, is_sent: bool, opens: bool) -> int | None:
    """A checksum of a set; ``is_sent``: of the bytes that a Kafka gets. None: a hole."""
    if is_hole(body):
        return None
    if not is_sent:
        return crc32c(body)
    made = batch_of(body, opens=opens)
    return crc32c(body) if made is None else crc32c(_sealed(*made))


def sets_of(
    cluster: KafkaCluster, topic: str, written_by: str | None
) -> Iterator[tuple[SourcePosition, Buffer]]:
    """The sets of a Kafka partition with holes, each with its source's offset as a position.

    ``written_by``: only sets that a mirror of this source has written; None: all.
    """
    try:
        partition = KafkaSource(cluster, "").open(topic, Resume())
        position = None
        while not partition.is_caught_up(position):
            taken = partition.take(1_000, FETCH_BYTES)
            for each in taken:
                if isinstance(each, Gap) or each.body is None:
                    continue
                position = at = each.position
                if written_by is not None and stored_magic(memoryview(each.body)) == 2:
                    header = read_whole_header(each.body)
                    if not is_of(header, written_by):
                        continue
                    at = _position_of(source_offset_of(header))
                yield at, each.body
            if not taken:
                cluster.ping(ANSWER_S)
                time.sleep(QUIET_S / 10)
    finally:
        cluster.close()

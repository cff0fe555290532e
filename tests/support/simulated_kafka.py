"""Kafka's clients of `simulated_history`: an idempotent producer, and a consumer that commits.

Both connect again whenever their connection ends, and wait for the answer to each request before
the next one. What has no answer is sent again, with the same numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafka.protocol.consumer import (
    FetchRequest,
    FetchResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from kafka.protocol.producer import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    ProduceResponse,
)
from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

from pulsemark.testing.raw_kafka import fetch_fields, produce_fields

from .simulated_broker import SimulatedClient, SimulatedTransport

if TYPE_CHECKING:
    from .simulated_history import Lane, World

DUPLICATE = 46
GROUP = "s"


class KafkaPeer(SimulatedClient):
    """A connection that hands on whole answers."""

    owner: KafkaClient

    def __post_init__(self) -> None:
        self._in = bytearray()
        self.session: Any = self.broker.loop.do(lambda: self.broker.kafka.session(0))
        self._transport = SimulatedTransport(self)
        self.broker.loop.do(lambda: self.session.connection_made(self._transport))

    def received(self, data: bytes) -> None:
        """Hand on what came whole."""
        self._in += data
        while len(self._in) >= 4:
            size = 4 + int.from_bytes(self._in[:4], "big")
            if len(self._in) < size:
                return
            frame = bytes(self._in[4:size])
            del self._in[:size]
            self.owner.took(frame)


class KafkaClient:
    """A producer or a consumer."""

    def __init__(self, world: World, lane: Lane, name: str) -> None:
        self.world, self.lane, self.name = world, lane, name
        self.peer: KafkaPeer | None = None
        self.is_broken = False
        self.last_s = 0.0
        self._asked: Any = None

    def step(self) -> None:
        """Do the next thing."""
        if self.peer is None or self.is_broken or not self.peer.is_connected:
            self.leave()
            self.peer = KafkaPeer(self.world.broker)
            self.peer.owner = self
            self.world.broker.clients.append(self.peer)
            self.is_broken, self._asked = False, None
        elif self._asked is None:
            self.act()

    def leave(self) -> None:
        """End the connection."""
        if self.peer is not None and self.peer.is_connected:
            self.peer.leave()
        self.peer = None

    def ask(self, request: Any, response: Any, version: int, **fields: Any) -> None:
        """Send a request."""
        assert self.peer is not None
        made = request(version=version, **fields)
        made.with_header(1, self.name)
        self._asked = response, version
        self.peer.send(made.encode(header=True, framed=True))

    def took(self, frame: bytes) -> None:
        """The answer has come."""
        (response, version), self._asked = self._asked, None
        self.answered(response.decode(frame, version=version, header=True))

    def note(self, what: str, begin_ns: int | None = None, **told: Any) -> None:
        """A step of this client ends now."""
        self.world.note(what, begin_ns, client=self.name, topic=self.lane.name, **told)

    def act(self) -> None:
        """Ask for the next thing."""
        raise NotImplementedError

    def answered(self, answer: Any) -> None:
        """What was asked for is here."""
        raise NotImplementedError


class KafkaProducer(KafkaClient):
    """Sends a set of records, and again until it is answered."""

    def __init__(self, world: World, lane: Lane) -> None:
        super().__init__(world, lane, f"{lane.name}-producer")
        #: Values of the set on its way, and when they were first sent.
        self.unanswered: list[str] = []
        self._begin_ns = 0
        #: Its id and epoch, and the number of the next record.
        self._identity: tuple[int, int] | None = None
        self._sequence = 0

    def act(self) -> None:
        """Ask for an identity, or send."""
        if self._identity is None:
            fields = {"transactional_id": None, "transaction_timeout_ms": 60_000}
            self.ask(
                InitProducerIdRequest, InitProducerIdResponse, 4, producer_id=-1,
                producer_epoch=-1, **fields,
            )  # fmt: skip
            return
        if not self.unanswered:
            if self.world.is_over:
                return
            numbers = range(self._sequence, self._sequence + self.world.random.choice((1, 1, 4)))
            self.unanswered = [f"{self.lane.name}/{number}" for number in numbers]
            self._begin_ns = self.world.now_ns()
        builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1 << 20)
        builder.set_producer_state(*self._identity, self._sequence, False)
        for value in self.unanswered:
            builder.append(timestamp=self.world.clock.now_ms(), key=b"k", value=value.encode())
        builder.close()
        sets = [(self.lane.name, 0, bytes(builder.buffer()))]
        self.ask(ProduceRequest, ProduceResponse, 7, **produce_fields(sets, -1))

    def answered(self, answer: Any) -> None:
        """An identity, or where the records are."""
        if isinstance(answer, InitProducerIdResponse):
            if not answer.error_code:
                self._identity = answer.producer_id, answer.producer_epoch
            return
        told = answer.responses[0].partition_responses[0]
        if told.error_code not in (0, DUPLICATE):
            self.is_broken = True
            return
        for number, value in enumerate(self.unanswered):
            at = None if told.error_code or told.base_offset < 0 else told.base_offset + number
            place = None if at is None else str(at)
            self.note("send", self._begin_ns, value=value, position=place, is_once=True)
        self._sequence += len(self.unanswered)
        self.unanswered = []

    def end(self) -> None:
        """Nobody knows what became of the rest."""
        for value in self.unanswered:
            self.note("send", self._begin_ns, value=value, ok=None, is_once=True)


class KafkaConsumer(KafkaClient):
    """Reads from where its group is, and commits, as a client does that assigns partitions."""

    def __init__(self, world: World, lane: Lane) -> None:
        super().__init__(world, lane, f"{lane.name}-consumer-0")
        self.about: dict[str, Any] = {"subscription": GROUP, "kind": lane.kind}
        self._offset: int | None = None
        #: Received, and not committed yet.
        self._held: list[dict[str, Any]] = []

    def leave(self) -> None:
        """End the connection; what was not committed comes again."""
        super().leave()
        self._offset = None
        self._held.clear()

    def act(self) -> None:
        """Ask where the group is, commit, leave, or fetch."""
        name, random = self.lane.name, self.world.random
        if self._offset is None:
            of = OffsetFetchRequest.OffsetFetchRequestTopic
            topics: list[Any] = [of(name=name, partition_indexes=[0])]
            self.ask(OffsetFetchRequest, OffsetFetchResponse, 5, group_id=GROUP, topics=topics)
        elif self._held and (self.world.is_over or random.random() < 0.3):
            made = OffsetCommitRequest.OffsetCommitRequestTopic
            place = made.OffsetCommitRequestPartition(
                partition_index=0, committed_offset=self._offset, committed_leader_epoch=-1,
                committed_metadata="",
            )  # fmt: skip
            topics = [made(name=name, partitions=[place])]
            self.ask(
                OffsetCommitRequest, OffsetCommitResponse, 7, group_id=GROUP, topics=topics,
                generation_id_or_member_epoch=-1, member_id="", group_instance_id=None,
            )  # fmt: skip
        elif not self.world.is_over and random.random() < 0.02:
            self.leave()
        else:
            asked = [(name, 0, self._offset, 1 << 16, -1)]
            self.ask(FetchRequest, FetchResponse, 11, **fetch_fields(asked, 0, 1, 1 << 16))

    def answered(self, answer: Any) -> None:
        """A place, records, or that the commit is durable."""
        if isinstance(answer, OffsetFetchResponse):
            found = answer.topics[0].partitions[0]
            self.is_broken = bool(answer.error_code or found.error_code)  # as without coordinator
            if not self.is_broken:
                self._offset = max(0, found.committed_offset)
                self.note("subscribe", **self.about)
        elif isinstance(answer, OffsetCommitResponse):
            self.is_broken = bool(answer.topics[0].partitions[0].error_code)
            if not self.is_broken:
                for told in self._held:
                    self.note("acknowledge", **told, **self.about)
            self._held.clear()
        else:
            told = answer.responses[0].partitions[0]
            if told.error_code:
                self.is_broken = True
                return
            records = MemoryRecords(bytes(told.records or b""))
            while (batch := records.next_batch()) is not None:
                for record in batch:
                    if record.offset >= (self._offset or 0):  # sets come whole
                        self._take(record, is_control=batch.is_control_batch)

    def _take(self, record: Any, *, is_control: bool) -> None:
        self._offset = record.offset + 1
        if is_control:
            return
        self.last_s = self.world.broker.loop.time()
        told = {"value": record.value.decode(), "position": str(record.offset)}
        self.note("receive", **told, **self.about)
        self._held.append(told)

    def end(self) -> None:
        """There is no more."""
        self.leave()
        self.note("drained", **self.about)

"""A broker, its clients and its faults in virtual time, and the history that they make.

    history = simulated_history(tmp_path / "data", seed=7, minutes=10)
    assert check(history) == []

Sessions, topics, dispatch, cursors, deduplication and the store are the real ones, on a simulated
disk (`SimulatedBroker`). Clients speak the protocol as official ones do: a producer sends again
what has no receipt, a consumer drops what it had when its connection ends. Nothing waits for real
time, and the seed decides everything: which client does something, when a batch is committed, in
which order blocking work is done, and when the process is killed, the power is cut, the clock
steps, or a connection breaks.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Literal

from pulsemark.ledger import EARLIEST, EntryKind, ManagedLedger, Position
from pulsemark.ledger.topic_log import entries_of
from pulsemark.metadata import messages_of, read_message_metadata
from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.testing.clock import A_TIME_MS, SettableClock
from pulsemark.testing.histories import History, Step
from pulsemark.testing.inspection import messages_in
from pulsemark.testing.raw_messages import BatchMember, batched_message, unbatched_message
from pulsemark.wire import Command, Message, MessageId, commands

from . import transaction_client
from .simulated_admin import AdminClient
from .simulated_broker import SimulatedBroker, SimulatedClient
from .simulated_cluster import ClusterBroker, Machines
from .simulated_kafka import KafkaConsumer, KafkaProducer
from .simulated_store import SimulatedStore
from .simulated_threads import Threads

_T = pb.BaseCommand.Type
On = Literal["broker", "cluster"]
#: How far the time moves at once.
STEPS_MS = (1, 5, 20, 200, 600)
PERMITS = 20
DELAY_MS = 2_000
#: Pulsar may deliver a delayed message so much early.
TOLERANCE_NS = 1_100_000_000
#: How long the end may take, and what silence is the end.
END_S, SILENCE_S = 3_600, 40
#: Of each tick: how likely it is that something happens.
FAULT = 0.01
#: How often a message is moved, and how likely it is that a transaction is aborted.
ROUNDS, ABORTED = 3, 0.2
#: How likely it is that a client looks for the broker of its topic while it has a connection.
MOVES = 0.05
TIMEOUT_MS = 30_000


@dataclass(frozen=True, slots=True)
class Lane:
    """A topic, and who works on it."""

    name: str
    kind: str
    consumers: int = 1
    batch: int = 1
    #: In how many parts a message is sent.
    chunks: int = 1
    has_delays: bool = False
    #: Messages are moved in transactions: from it, or to it.
    has_transactions: bool = False
    #: How likely it is that its producer sends when it may; 0: it has none.
    rate: float = 1

    @property
    def topic(self) -> str:
        """The full name."""
        return f"persistent://public/default/{self.name}"


LANES = (
    Lane("exclusive", "Exclusive", batch=3),
    Lane("failover", "Failover", consumers=2),
    Lane("shared", "Shared", consumers=2, has_delays=True),
    Lane("keys", "Key_Shared", consumers=2),
    Lane("chunks", "Exclusive", chunks=3, rate=0.5),
    Lane("ring-a", "Shared", consumers=0, has_transactions=True, rate=0.1),
    Lane("ring-b", "Shared", consumers=0, has_transactions=True, rate=0),
    Lane("moved", "Exclusive", has_transactions=True, rate=0),
)
RING_A, RING_B, MOVED = LANES[-3:]
KAFKA = Lane("kafka", "Group")


class Peer(SimulatedClient):
    """A connection that hands on what it gets."""

    owner: Client | None = None

    def received(self, data: bytes) -> None:
        """Hand on what came. It must not send: that is a step of its own."""
        self._connection.receive_data(data)
        for event in self._connection.events():
            if isinstance(event, Command):
                self._take(event)
            if self.owner is not None:
                self.owner.took(event)


class Client:
    """A producer or a consumer: it connects again whenever its connection or its object ends."""

    def __init__(self, world: World, lane: Lane, name: str) -> None:
        self.world, self.lane, self.name = world, lane, name
        self.peer: Peer | None = None
        self.is_open = self.is_broken = False
        self.request_id = 0
        #: When a message has last come.
        self.last_s = 0.0

    def step(self) -> None:
        """Do the next thing."""
        if self.peer is None or self.is_broken or not self.peer.is_connected:
            self.leave()
            self.peer = Peer(self.world.broker)
            self.peer.owner = self
            self.world.broker.clients.append(self.peer)
            self.is_open = self.is_broken = False
            self.request_id = self.world.broker.new_request_id()
            self.peer.send(self.opening())
        elif self.is_open:
            self.act(self.peer)

    def leave(self) -> None:
        """End the connection."""
        if self.peer is not None and self.peer.is_connected:
            self.peer.leave()
        self.peer = None

    def took(self, event: Any) -> None:
        """A frame has come."""
        if not isinstance(event, Command):
            return
        if event.type in (_T.ERROR, _T.SEND_ERROR, _T.CLOSE_PRODUCER, _T.CLOSE_CONSUMER):
            self.is_broken = True
        elif getattr(event.body, "request_id", None) == self.request_id:
            self.is_open = True
            self.opened()

    def opening(self) -> bytes:
        """The frame that opens it."""
        raise NotImplementedError

    def opened(self) -> None:
        """It was opened."""

    def act(self, peer: Peer) -> None:
        """Do something, open as it is."""

    def note(self, what: str, begin_ns: int | None = None, **told: Any) -> None:
        """A step of this client ends now."""
        self.world.note(what, begin_ns, client=self.name, topic=self.lane.name, **told)


class Producer(Client):
    """Sends, and sends again what has no receipt."""

    def __init__(self, world: World, lane: Lane) -> None:
        super().__init__(world, lane, f"{lane.name}-producer")
        #: Sequence id, the frame, and its steps.
        self.unanswered: deque[tuple[int, bytes, list[dict[str, Any]]]] = deque()
        self._sequence = 0
        self._is_new = False
        #: Chunks that are still to be sent.
        self._rest: deque[bytes] = deque()

    def opening(self) -> bytes:
        """PRODUCER."""
        return commands.producer(self.lane.topic, 1, self.request_id, producer_name=self.name)

    def opened(self) -> None:
        """What has no receipt is sent again."""
        self._is_new = True

    def act(self, peer: Peer) -> None:
        """Send."""
        if self._is_new:
            self._is_new = False
            self._rest.clear()
            peer.send(*(frame for _, frame, _ in self.unanswered))
        elif self._rest:
            peer.send(self._rest.popleft())
        elif self.world.random.random() > self.lane.rate:
            return
        elif not self.world.is_over and len(self.unanswered) < 20:
            if self.lane.chunks > 1:
                self._rest.extend(self._chunks())
                return
            frames = [self._message() for _ in range(self.world.random.choice((1, 1, 1, 4)))]
            peer.send(*frames)

    def _message(self) -> bytes:
        world, lane, first = self.world, self.lane, self._sequence
        now_ms, count = world.clock.now_ms(), lane.batch
        values = [f"{lane.name}/{number}" for number in range(first, first + count)]
        self._sequence += count
        is_late = lane.has_delays and first % 5 == 0
        due_ns = None
        more: dict[str, Any] = {}
        if is_late:
            more["deliver_at_time"] = now_ms + DELAY_MS
            if not world.has_moved_clock:
                due_ns = world.now_ns() + DELAY_MS * 1_000_000 - TOLERANCE_NS
        about = {"publish_time_ms": now_ms, "sequence_id": first, "producer_name": self.name}
        if count > 1:
            members = [BatchMember(payload=each.encode(), key=self._key(each)) for each in values]
            body = batched_message(members, **about)
        else:
            (value,) = values
            body = unbatched_message(value.encode(), key=self._key(value), **about, **more)
        frame = b"".join(
            commands.send(1, first, body, num_messages=count, highest_sequence_id=first + count - 1)
        )
        told = [
            {"value": value, "begin_ns": world.now_ns(), "due_ns": due_ns, "is_once": world.is_once}
            for value in values
        ]
        self.unanswered.append((first, frame, told))
        return frame

    def _chunks(self) -> Iterator[bytes]:
        """A message in parts, each with a receipt; they may be sent again from any of them on."""
        world, lane, number = self.world, self.lane, self._sequence
        self._sequence += 1
        value = f"{lane.name}/{number}"
        told = {"value": value, "begin_ns": world.now_ns(), "is_once": world.is_once}
        size = -(-len(value) // lane.chunks)
        for chunk in range(lane.chunks):
            body = unbatched_message(
                value[chunk * size : (chunk + 1) * size].encode(), sequence_id=number,
                publish_time_ms=world.clock.now_ms(), producer_name=self.name,
                uuid=f"{self.name}-{number}", chunk_id=chunk, num_chunks_from_msg=lane.chunks,
                total_chunk_msg_size=len(value),
            )  # fmt: skip
            frame = b"".join(commands.send(1, number, body, is_chunk=True))
            self.unanswered.append((number, frame, [told] if chunk == lane.chunks - 1 else []))
            yield frame

    def _key(self, value: str) -> str:
        return f"k{int(value.rpartition('/')[2]) % 7}"

    def took(self, event: Any) -> None:
        """A receipt, or something else."""
        if not isinstance(event, Command) or event.type != _T.SEND_RECEIPT:
            super().took(event)
            return
        if not self.unanswered or event.body.sequence_id != self.unanswered[0][0]:
            self.is_broken = True  # as official clients do
            return
        _, _, told = self.unanswered.popleft()
        at = MessageId.from_data(event.body.message_id)
        for batch, each in enumerate(told):
            place = f"{at.ledger_id}:{at.entry_id}:{batch}" if at.ledger_id >= 0 else None
            if self.lane.chunks > 1:
                place = None  # of a last chunk, which may come again without the others
            self.note("send", position=place, **each)

    def end(self) -> None:
        """Nobody knows what became of the rest."""
        for _, _, told in self.unanswered:
            for each in told:
                self.note("send", ok=None, **each)


class Consumer(Client):
    """Receives and acknowledges in every way, and leaves from time to time."""

    def __init__(self, world: World, lane: Lane, number: int) -> None:
        super().__init__(world, lane, f"{lane.name}-consumer-{number}")
        self.about: dict[str, Any] = {"subscription": "s", "kind": lane.kind}
        #: What is acknowledged together, and its messages.
        self._inbox: deque[tuple[list[MessageId], list[dict[str, Any]]]] = deque()
        #: Received and not acknowledged, in order.
        self._held: list[tuple[list[MessageId], list[dict[str, Any]]]] = []
        self._asked: dict[int, list[dict[str, Any]]] = {}
        self._owed = 0
        #: By message, the chunks that came.
        self._chunks: dict[str, tuple[list[MessageId], dict[int, str]]] = {}

    def opening(self) -> bytes:
        """SUBSCRIBE."""
        kind: Any = pb.CommandSubscribe.SubType.Value(self.lane.kind)
        return commands.subscribe(
            self.lane.topic, "s", 1, self.request_id, kind, consumer_name=self.name,
            initial_position=pb.CommandSubscribe.Earliest,
        )  # fmt: skip

    def leave(self) -> None:
        """End the connection: what it had goes with it, and what it asked may have been done."""
        super().leave()
        self._inbox.clear()
        self._held.clear()
        self._chunks.clear()
        for each in (each for told in self._asked.values() for each in told):
            self.note("acknowledge", ok=None, **each)
        self._asked.clear()

    def opened(self) -> None:
        """It may be sent messages."""
        self.note("subscribe", **self.about)
        self._owed = PERMITS

    def took(self, event: Any) -> None:
        """Messages, answers to acknowledgements, or something else."""
        if isinstance(event, Message):
            self.last_s = self.world.broker.loop.time()
            at = MessageId.from_data(event.command.message_id)
            got = [
                {**self.about, "value": (each.value or b"").decode(), "key": each.key,
                 "position": f"{at.ledger_id}:{at.entry_id}:{max(each.batch_index, 0)}"}
                for each in messages_of(event.headers_and_payload)
            ]  # fmt: skip
            self._inbox.extend(self._whole(event, at, got))
        elif isinstance(event, Command) and event.type == _T.ACK_RESPONSE:
            ok = None if event.body.HasField("error") else True
            for told in self._asked.pop(event.body.request_id, ()):
                self.note("acknowledge", ok=ok, **told)
        elif isinstance(event, Command) and event.type == _T.ACTIVE_CONSUMER_CHANGE:
            if not event.body.is_active:  # what it has goes to another one
                self._owed += sum(len(told) for _, told in self._inbox)
                self._inbox.clear()
                self._held.clear()
        else:
            super().took(event)

    def _whole(
        self, event: Message, at: MessageId, got: list[dict[str, Any]]
    ) -> list[tuple[list[MessageId], list[dict[str, Any]]]]:
        """What is acknowledged together: a message's chunks. A last one alone is dropped."""
        header = read_message_metadata(event.headers_and_payload)
        if header.num_chunks_from_msg < 2:
            return [([at], got)]
        ids, parts = self._chunks.setdefault(header.uuid, ([], {}))
        ids.append(at)
        parts[header.chunk_id] = got[0]["value"]
        if header.chunk_id < header.num_chunks_from_msg - 1:
            return []
        del self._chunks[header.uuid]
        got[0]["value"] = "".join(part for _, part in sorted(parts.items()))
        is_whole = len(parts) == header.num_chunks_from_msg
        return [(ids, got if is_whole else [])]

    def act(self, peer: Peer) -> None:
        """One thing of many."""
        random = self.world.random
        if self._owed >= PERMITS // 2:
            peer.send(commands.flow(1, self._owed))
            self._owed = 0
        elif not self.world.is_over and random.random() < 0.01:
            self.leave()
            self.note("closed", **self.about)
        elif self._inbox:
            for _ in range(min(len(self._inbox), random.randint(1, 5))):
                ids, told = self._inbox.popleft()
                self._owed += max(len(ids), len(told))
                for each in told:
                    self.note("receive", **each)
                self._held.append((ids, told))
            if self.world.is_over or random.random() < 0.8:
                self._acknowledge(peer)
        elif self._held:
            self._acknowledge(peer)

    def _acknowledge(self, peer: Peer) -> None:
        """All that is held: one by one, or at once; with an answer, or without."""
        random = self.world.random
        told = [each for _, some in self._held for each in some]
        ids, kind = [at for some, _ in self._held for at in some], pb.CommandAck.Individual
        if self.lane.kind in ("Exclusive", "Failover") and random.random() < 0.5:
            ids, kind = ids[-1:], pb.CommandAck.Cumulative
        request_id = None
        if random.random() < 0.5:
            request_id = self.world.broker.new_request_id()
            self._asked[request_id] = told
        else:
            for each in told:
                self.note("acknowledge", ok=None, **each)
        self._held.clear()
        peer.send(commands.ack(1, ids, kind, request_id=request_id))

    def end(self) -> None:
        """There is no more."""
        self.note("drained", **self.about)


class Mover(Client):
    """Receives messages, and in one transaction acknowledges them and sends each to other topics.

    Its commands wait for one another, so what comes next is that of a generator: it is sent the
    answer to each frame that it yields.
    """

    def __init__(self, world: World, lane: Lane, target: Lane) -> None:
        super().__init__(world, lane, f"{lane.name}-mover")
        #: By their producers.
        self._targets = {2: target, 3: MOVED}
        self.about: dict[str, Any] = {"subscription": "s", "kind": lane.kind}
        self.inbox: deque[tuple[MessageId, dict[str, Any]]] = deque()
        self._script: Generator[bytes, Any, None] | None = None
        self._asked, self._answer = 0, None
        self._opening: set[int] = set()
        self._owed = self._count = self._sequence = 0

    def opening(self) -> bytes:
        """SUBSCRIBE, and PRODUCER for each target."""
        new_id = self.world.broker.new_request_id
        kind: Any = pb.CommandSubscribe.SubType.Value(self.lane.kind)
        producers = {new_id(): (number, lane) for number, lane in self._targets.items()}
        self._opening = {self.request_id, *producers}
        subscribe = commands.subscribe(
            self.lane.topic, "s", 1, self.request_id, kind, consumer_name=self.name,
            initial_position=pb.CommandSubscribe.Earliest,
        )  # fmt: skip
        made = (commands.producer(lane.topic, at, each) for each, (at, lane) in producers.items())
        return b"".join((subscribe, *made))

    def opened(self) -> None:
        """It may be sent messages."""
        self.note("subscribe", **self.about)
        self._owed = PERMITS

    def leave(self) -> None:
        """End the connection; nobody ends its transaction."""
        super().leave()
        self.inbox.clear()
        self._answer = None
        if self._script is not None:
            self._script.close()
            self._script = None

    def took(self, event: Any) -> None:
        """Messages, answers, or something else."""
        if isinstance(event, Message):
            self.last_s = self.world.broker.loop.time()
            at = MessageId.from_data(event.command.message_id)
            value = (messages_of(event.headers_and_payload)[0].value or b"").decode()
            told = {"value": value, "position": f"{at.ledger_id}:{at.entry_id}:0"}
            self.inbox.append((at, told))
            return
        request_id = getattr(event.body, "request_id", None) if isinstance(event, Command) else None
        if isinstance(event, Command) and (
            event.type == _T.SEND_RECEIPT or request_id == self._asked
        ):
            has_error = event.type == _T.ERROR or (
                event.type != _T.SEND_RECEIPT and event.body.HasField("error")
            )
            self.is_broken = self.is_broken or has_error
            self._answer = event.body
        elif request_id in self._opening and event.type != _T.ERROR:
            self._opening.discard(request_id)
            if not self._opening:
                self.is_open = True
                self.opened()
        else:
            super().took(event)

    def act(self, peer: Peer) -> None:
        """Go on with the transaction, or begin one."""
        if self._script is None and self._owed >= PERMITS // 2:
            peer.send(commands.flow(1, self._owed))
            self._owed = 0
        elif self._script is None and self.inbox:
            self._script = self._transaction()
            peer.send(next(self._script))
        elif self._script is not None and self._answer is not None:
            answer, self._answer = self._answer, None
            try:
                peer.send(self._script.send(answer))
            except StopIteration:
                self._script = None

    def _new_id(self) -> int:
        self._asked = self.world.broker.new_request_id()
        return self._asked

    def _transaction(self) -> Generator[bytes, Any, None]:
        random, self._count = self.world.random, self._count + 1
        got = [self.inbox.popleft() for _ in range(min(len(self.inbox), random.randint(1, 3)))]
        self._owed += len(got)
        name, begin_ns = f"{self.name}.{self._count}", self.world.now_ns()
        committed: bool | None = False
        for _, told in got:
            self.note("receive", transaction=name, **told, **self.about)
        try:
            txn = transaction_client.id_of(
                (yield transaction_client.begin(self._new_id(), TIMEOUT_MS))
            )
            topics = [lane.topic for lane in self._targets.values()]
            yield transaction_client.add(self._new_id(), txn, topics)
            yield transaction_client.add_subscription(self._new_id(), txn, self.lane.topic, "s")
            for number, (_, told) in enumerate(got):
                yield from self._pass_on(told["value"], txn, f"{name}.{number}", name)
            ids = [at for at, _ in got]
            yield transaction_client.ack(self._new_id(), 1, ids, txn)
            wanted, end_ns = random.random() > ABORTED, self.world.now_ns()
            committed = None if wanted else False
            try:
                yield transaction_client.end(self._new_id(), txn, committed=wanted)
                committed = wanted
            finally:
                what, ok = ("commit", committed) if wanted else ("abort", True)
                self.world.note(what, end_ns, client=self.name, transaction=name, ok=ok)
        finally:
            for _, told in got:
                about = {"transaction": name, "ok": committed, **told, **self.about}
                self.note("acknowledge", begin_ns, **about)

    def _pass_on(
        self, value: str, txn: Any, new: str, transaction: str
    ) -> Generator[bytes, Any, None]:
        rounds = int(value.rpartition("+")[2]) if "+" in value else 0
        for number, lane in self._targets.items():
            if lane is not MOVED and rounds == ROUNDS:
                continue
            sent = f"{lane.name}/{new}+{rounds + 1}"
            about = {"client": self.name, "topic": lane.name, "value": sent}
            note = partial(
                self.world.note, "send", self.world.now_ns(), transaction=transaction, **about
            )
            now_ms, sequence_id = self.world.clock.now_ms(), self._sequence
            self._sequence += 1
            frame = transaction_client.send(number, sequence_id, sent.encode(), txn, time_ms=now_ms)
            try:
                at = (yield frame).message_id
            except GeneratorExit:
                note(ok=None)
                raise
            note(position=f"{at.ledgerId}:{at.entryId}:0")

    def end(self) -> None:
        """There is no more."""
        self.leave()
        self.note("drained", **self.about)


class Seeker(Client):
    """Asks for random moments of the past, and notes which message comes first."""

    def __init__(self, world: World, lane: Lane) -> None:
        super().__init__(world, lane, f"{lane.name}-seeker")
        self._asked: tuple[int, int] | None = None
        self._is_answered = False
        self._waits = 0

    def opening(self) -> bytes:
        """SUBSCRIBE; after a seek with a permit for one message."""
        if not self._is_answered:
            self._asked = None  # nobody knows whether it is done
        return commands.subscribe(self.lane.topic, "seeker", 1, self.request_id)

    def opened(self) -> None:
        """The answer to the subscription, or to the seek."""
        self._waits = 0
        if self._asked is not None:
            self._is_answered = True

    def act(self, peer: Peer) -> None:
        """Seek, or ask for a message."""
        world = self.world
        begin_ms, now_ms = world.began_ms, world.clock.now_ms()
        if self._asked is None:
            if now_ms - begin_ms > 4_000 and world.random.random() < 0.1:
                time_ms = world.random.randint(begin_ms, now_ms - 2_000)
                self._asked, self._is_answered = (time_ms, world.now_ns()), False
                self.request_id = world.broker.new_request_id()
                peer.send(commands.seek(1, self.request_id, publish_time_ms=time_ms))
        elif self._is_answered:
            self._waits += 1
            if self._waits == 1:
                peer.send(commands.flow(1, 1))

    def took(self, event: Any) -> None:
        """The first message, or something else."""
        if isinstance(event, Message) and self._asked is not None and self._is_answered:
            (time_ms, begin_ns), self._asked = self._asked, None
            value = messages_of(event.headers_and_payload)[0].value or b""
            self.note("seek", begin_ns, time_ms=time_ms, value=value.decode())
            self.is_broken = True
        else:
            super().took(event)

    def end(self) -> None:
        """A seek that had no answer says nothing."""


class World:
    """The broker, its clients, its time, and what they saw."""

    def __init__(
        self, folder: Path, seed: int, *, syncs: bool = True, threads: Threads | None = None
    ) -> None:
        self.random, self.threads = Random(seed), threads
        self.is_once = self.random.random() < 0.5
        self.has_moved_clock = self.random.random() < 0.3
        self.is_over = False
        self.steps: list[Step] = []
        self.clock: Any = SettableClock(A_TIME_MS)
        self.began_ms = self.clock.now_ms()
        config: dict[str, Any] = {
            "clock": self.clock, "active_consumer_failover_delay_ms": 0, "has_kafka": True,
            "broker_deduplication_enabled": self.is_once, "transaction_coordinator_enabled": True,
        }  # fmt: skip
        self.broker: SimulatedBroker
        if threads is None:
            store = SimulatedStore(folder, seed=seed, syncs=syncs, clock=self.clock)
            self.broker = SimulatedBroker(folder, store, **config)
        else:
            names = [lane.topic for lane in (*LANES, KAFKA)]
            self.broker = ClusterBroker(Machines(threads, self.random), names, **config)
        self.broker.result_of(self.broker.kafka.topics.create(KAFKA.name, 1, {}))
        self.producers = [Producer(self, lane) for lane in LANES if lane.rate]
        self.kafka = KafkaProducer(self, KAFKA), KafkaConsumer(self, KAFKA)
        self.consumers = [
            Consumer(self, lane, number) for lane in LANES for number in range(lane.consumers)
        ]
        self.movers = [Mover(self, RING_A, RING_B), Mover(self, RING_B, RING_A)]
        admin = AdminClient(self, [lane.name for lane in LANES])
        others = *self.consumers, *self.movers, *self.kafka, admin
        self.clients: list[Any] = [*self.producers, *others]
        if not self.has_moved_clock:
            self.clients.append(Seeker(self, LANES[1]))

    def now_ns(self) -> int:
        """The virtual time."""
        now_s: float = self.broker.loop.time()
        return round(now_s * 1e9)

    def note(self, what: str, begin_ns: int | None = None, **told: Any) -> None:
        """A step ends now."""
        now_ns = self.now_ns()
        begin_ns = now_ns if begin_ns is None else begin_ns
        self.steps.append(Step(what=what, begin_ns=begin_ns, end_ns=now_ns, **told))

    def tick(self) -> None:
        """Some clients do something, and some time passes."""
        random, broker = self.random, self.broker
        for _ in range(random.randint(1, 4)):
            self._step(random.choice(self.clients))
        for mover in self.movers:  # a transaction has many steps
            if random.random() < 0.5:
                self._step(mover)
        broker.go_on(random)
        step_ms = random.choice(STEPS_MS)
        self.clock.advance(by_ms=step_ms)
        broker.loop.now_s += step_ms / 1000
        broker.loop.settle()

    def _step(self, client: Any) -> None:
        peer = client.peer
        if peer is not None and peer.broker is not self.broker and self.random.random() < MOVES:
            client.leave()
        is_connected = client.peer is not None and client.peer.is_connected
        if self.broker.is_running or (is_connected and not client.is_broken):
            client.step()

    def disturb(self) -> None:
        """Something happens to the broker, or to a client."""
        random, begin_ns = self.random, self.now_ns()
        faults: dict[str, Callable[[], Any]] = {
            "kill": lambda: self.broker.restart(kill=True),
            "power": lambda: self.broker.restart(kill=True, power=True),
            "term": self.broker.restart,
            "drop": lambda: random.choice(self.clients).leave(),
            **self.broker.faults(),
        }
        if self.has_moved_clock:
            faults["clock"] = self._step_clock
        name = random.choice(list(faults))
        result = faults[name]()
        if isinstance(result, SimulatedBroker):
            self.broker = result
        end_ns = max(self.now_ns(), round(self.broker.calm_s * 1e9))
        about: dict[str, Any] = {"what": "fault", "client": "faults", "value": name}
        self.steps.append(Step(begin_ns=begin_ns, end_ns=end_ns, **about))

    def _step_clock(self) -> None:
        self.clock.advance(seconds=self.random.choice((-86_400, -30, -1, 1, 30, 86_400)))

    def run(self, seconds: float) -> None:
        """Work, and let all come to its end."""
        until_s = self.broker.loop.time() + seconds
        while self.broker.loop.time() < until_s:
            self.tick()
            if self.random.random() < (FAULT if self.threads is None else 2 * FAULT):
                self.disturb()
        self.is_over = True
        self.broker.heal()
        if self.has_moved_clock:  # what was delayed before a step back is due
            self.clock.advance(days=100)
        until_s = self.broker.loop.time() + END_S
        while self.broker.loop.time() < until_s and not self._is_quiet():
            self.tick()
        for client in self.clients:
            client.end()

    def _is_quiet(self) -> bool:
        receivers: list[Any] = [*self.consumers, *self.movers, *self.kafka]
        last_s = max(each.last_s for each in receivers)
        senders: list[Any] = [*self.producers, self.kafka[0]]
        is_silent = self.broker.loop.time() - last_s > SILENCE_S
        return is_silent and not any(each.unanswered for each in senders)

    def _read_chunks(self, lane: Lane, ledger: ManagedLedger) -> None:
        """The messages of which all chunks are stored."""
        parts: dict[str, dict[int, str]] = defaultdict(dict)
        for entry in entries_of(ledger, EARLIEST):
            if entry.kind is not EntryKind.DATA:
                continue
            header = read_message_metadata(entry.body)
            chunks = parts[header.uuid]
            chunks[header.chunk_id] = (messages_of(entry.body)[0].value or b"").decode()
            if header.chunk_id == lane.chunks - 1:
                del parts[header.uuid]
                if len(chunks) == lane.chunks:
                    at = f"{entry.position.ledger_id}:{entry.position.entry_id}:0"
                    value = "".join(part for _, part in sorted(chunks.items()))
                    self.note("read", client="log", topic=lane.name, position=at, value=value,
                              time_ms=entry.append_time_ms)  # fmt: skip

    def end(self) -> None:
        """End the broker that is there now."""
        self.broker.end()

    def read_logs(self) -> None:
        """All that is stored, and what waits."""
        for each in messages_in(self.broker.store.open_topic(f"{KAFKA.topic}-partition-0")):
            value = (each.value or b"").decode()
            # No index: control entries have offsets, too.
            self.note("read", client="log", topic=KAFKA.name, position=str(each.index),
                      time_ms=each.broker_time_ms, value=value)  # fmt: skip
        for lane in LANES:
            ledger = self.broker.store.open_topic(lane.topic)
            if lane.chunks > 1:
                self._read_chunks(lane, ledger)
            for each in () if lane.chunks > 1 else messages_in(ledger):
                at, batch = Position(*each.position), max(each.message.batch_index, 0)
                # Messages of transactions that were aborted have indexes, too.
                index = None if lane.has_transactions else each.index
                self.note(
                    "read", client="log", topic=lane.name, index=index,
                    position=f"{at.ledger_id}:{at.entry_id}:{batch}", key=each.key,
                    time_ms=each.broker_time_ms, value=(each.value or b"").decode(),
                )  # fmt: skip
            subscription = self.broker.topics.open_topics[lane.topic].subscriptions["s"]
            self.note("backlog", client="log", topic=lane.name, subscription="s",
                      count=subscription.backlog_entries)  # fmt: skip


@contextmanager
def _virtual_time(world: World) -> Iterator[None]:
    """What a broker without threads measures in this block is the world's time."""
    before = time.monotonic, time.perf_counter, time.thread_time, time.sleep
    time.monotonic = time.perf_counter = time.thread_time = world.broker.loop.time
    time.sleep = lambda _: None
    try:
        yield
    finally:
        time.monotonic, time.perf_counter, time.thread_time, time.sleep = before


def simulated_history(
    folder: Path,
    seed: int,
    *,
    minutes: float = 10,
    syncs: bool = True,
    on: On = "broker",
) -> History:
    """The history of a seed, of a broker on files or on bookies.

    `syncs` False: a disk on which no sync does anything.
    """
    with ExitStack() as stack:
        threads = stack.enter_context(Threads(Random(seed))) if on == "cluster" else None
        world = World(folder, seed, syncs=syncs, threads=threads)
        if threads is None:
            stack.enter_context(_virtual_time(world))
        # A store that is killed calls callbacks outside the loop: their tasks are dropped with it.
        asyncio.set_event_loop(world.broker.loop)
        stack.callback(asyncio.set_event_loop, None)
        stack.callback(world.end)
        world.run(60 * minutes)
        world.broker.quiesce()
        world.broker.in_a_thread(world.read_logs)
    return History(world.steps)

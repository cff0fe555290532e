"""Deliveries of one subscription in any order of events, compared with a model.

Hypothesis drives a real topic, subscription and dispatcher over a store in memory; the test has
the clock, the loop and the consumers' connections. The model knows which entries are gone:
acknowledged, given up or removed from the log. All others must reach a consumer.

PULSEMARK_DELIVERY_EXAMPLES=5000 makes a campaign of it.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest import mock

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pulsemark.broker.cleaning.trimming import expire
from pulsemark.broker.configuration.config import BrokerConfig
from pulsemark.broker.errors import RefusedError
from pulsemark.broker.policies.topic_rules import NO_RULES
from pulsemark.broker.subscriptions import key_shared_dispatcher, shared_dispatcher
from pulsemark.broker.subscriptions.consumer import Consumer
from pulsemark.broker.subscriptions.seek import SeekTarget, reset_subscription
from pulsemark.broker.subscriptions.sticky_keys import SLOTS, sticky_hash
from pulsemark.broker.topics.topic import Topic
from pulsemark.ledger import EARLIEST, MemoryStore, Position
from pulsemark.proto.broker_entry_pb2 import CONTROL_USER
from pulsemark.proto.pulsar_api_pb2 import CommandSubscribe, MessageIdData
from pulsemark.testing import SettableClock
from pulsemark.testing.raw_messages import batched_message, unbatched_message
from pulsemark.wire import Connection, Message, Role, TopicName, commands
from tests.support.simulated_loop import SimulatedLoop

EXAMPLES = int(os.environ.get("PULSEMARK_DELIVERY_EXAMPLES", "0"))
TOPIC = TopicName.parse("persistent://public/default/t")
SHARING = (CommandSubscribe.Shared, CommandSubscribe.Key_Shared)
TYPES = (CommandSubscribe.Exclusive, CommandSubscribe.Failover, *SHARING)
CONSUMERS_MAX = 3
DELAY_MS = 5_000
#: Small, so that a few entries reach them.
DELAYED_MAX, CHUNKS_MAX, LOOK_AHEAD, UNACKED_MAX = 3, 3, 4, 12
#: Rounds in which everything must be delivered: each delivers and acknowledges what it can.
ROUNDS_MAX = 60

numbers = st.integers(0, 30)
which = st.integers(0, CONSUMERS_MAX - 1)


class Client:
    """A consumer's connection: it keeps the positions that it was sent."""

    address, client_version, protocol_version = "-", "", 21
    exposes_entry_metadata = False

    def __init__(self) -> None:
        self.writable = True
        self.received: list[Position] = []
        self._connection = Connection(Role.CLIENT)
        self.write(commands.connected("broker", self.protocol_version, 5_000_000))

    def write(self, data):
        """Take frames."""
        self._connection.receive_data(bytes(data))
        for event in self._connection.events():
            if isinstance(event, Message):
                found = event.command.message_id
                self.received.append(Position(found.ledgerId, found.entryId))

    def write_gathered(self, buffers):
        """Take frames."""
        self.write(b"".join(bytes(one) for one in buffers))

    def close_consumer(self, consumer):
        """The broker closed it."""

    async def is_alive(self):
        """It is."""
        return True


@dataclass(frozen=True)
class Published:
    """What the test knows of an entry."""

    kind: str
    messages: int = 1
    due_ms: int = 0
    slot: int = 0


class Deliveries(RuleBasedStateMachine):
    """A topic with one subscription, its consumers, and all that takes entries away."""

    def __init__(self):
        super().__init__()
        self.patches = ExitStack()
        for module, name, value in (
            (shared_dispatcher, "MAX_WAITING_CHUNKS", CHUNKS_MAX),
            (key_shared_dispatcher, "LOOK_AHEAD_ENTRIES", LOOK_AHEAD),
        ):
            self.patches.enter_context(mock.patch.object(module, name, value))

    @initialize(sub_type=st.sampled_from(TYPES))
    def begin(self, sub_type):
        """A subscription of any type, with a consumer that can take all there will be."""
        self.sub_type = sub_type
        self.loop, self.clock = SimulatedLoop(), SettableClock(1_700_000_000_000)
        self.store = MemoryStore.open(clock=self.clock, threaded=False)
        config = BrokerConfig(
            data_dir=None,
            http_port=None,
            clock=self.clock,
            max_delayed_entries_per_subscription=DELAYED_MAX,
            active_consumer_failover_delay_ms=0,
        )
        ledger = self.store.open_topic(str(TOPIC))
        self.topic = self.loop.do(
            lambda: Topic(TOPIC, ledger, config, topic_epoch=None, store_epoch=mock.Mock())
        )
        self.topic.rules = replace(
            NO_RULES, max_unacked_per_consumer=UNACKED_MAX, max_unacked_per_subscription=UNACKED_MAX
        )
        self.subscription: Any = self.topic.create_subscription("s", EARLIEST)
        self.consumers: list[Any] = []
        #: What was published: by position.
        self.published: dict[Position, Published] = {}
        #: Entries that are not gone, and so must reach a consumer.
        self.open: set[Position] = set()
        self.sequence_id = 0
        self.subscribe(permits=1_000)

    def teardown(self):
        """Every run ends with the delivery of all that is left."""
        try:
            if hasattr(self, "topic"):
                self.deliver_the_rest()
        finally:
            self.patches.close()
            if hasattr(self, "topic"):
                self.loop.do(self.subscription.detach_all)
                self.store.close()
                self.loop.close()

    # -- how the test acts on the broker ----------------------------------------------------------

    def do(self, function, *arguments):
        """Call a function in a turn of the loop, and let what it began come to its end."""
        found = self.loop.do(partial(function, *arguments))
        self.settle()
        return found

    def run(self, coroutine):
        """Run a coroutine to its end."""
        task = self.loop.do(partial(self.loop.create_task, coroutine))
        self.settle()
        return task.result()

    def settle(self):
        """Let everything happen that needs no time."""
        for _ in range(2):
            self.loop.settle()
            self.loop.do(self.store.committer.flush)
        self.loop.settle()

    def gone_up_to(self, last):
        """Entries count as acknowledged."""
        for position in [one for one in self.open if one <= last]:
            self.gone(position)

    def gone(self, position):
        """An entry is acknowledged, or removed."""
        self.open.discard(position)

    def nth(self, number):
        """An entry of the log, or the place after the last one."""
        first, end = self.topic.ledger.first_position, self.topic.ledger.end_position
        if first is None:
            return end
        found = self.topic.ledger.entry_after(first, number)
        return end if found is None else found

    # -- what happens ----------------------------------------------------------------------------

    @rule(kind=st.sampled_from(("plain", "key", "batch", "control")), n=numbers)
    def publish(self, kind, n):
        """Entries are published that need not wait."""
        for at in range(1 + n % 5):
            self.append(kind, n + at)
        self.settle()

    @rule(kind=st.sampled_from(("delayed", "chunk")), n=numbers)
    def publish_what_waits(self, kind, n):
        """Entries are published that wait for their time, or for the consumer of their message."""
        for at in range(DELAYED_MAX + 1):
            self.append(kind, n + at)
        self.settle()

    def append(self, kind, n):
        """Publish one entry."""
        ledger = self.topic.ledger
        self.sequence_id += 1
        common: dict[str, Any] = {"publish_time_ms": 1, "sequence_id": self.sequence_id}
        size, due_ms = 1, 0
        if kind == "control":
            self.loop.do(partial(ledger.append_control, CONTROL_USER, "x"))
            return
        if kind == "batch":
            size = 3
            body = batched_message([b"x"] * size, **common)
        elif kind == "chunk":
            chunk: dict[str, Any] = {
                "uuid": f"u{n // 3}",
                "num_chunks_from_msg": 3,
                "chunk_id": n % 3,
            }
            body = unbatched_message(b"x", total_chunk_msg_size=3, **chunk, **common)
        elif kind == "delayed":
            due_ms = self.clock.now_ms() + DELAY_MS * (1 + n % 3)
            body = unbatched_message(b"x", deliver_at_time=due_ms, key=f"k{n % 4}", **common)
        else:
            body = unbatched_message(b"x", key=f"k{n % 4}" if kind == "key" else None, **common)
        appended = self.loop.do(partial(ledger.append, body, message_count=size))
        slot = sticky_hash(body) % (SLOTS - 1) + 1
        self.published[appended.position] = Published(kind, size, due_ms, slot)
        self.open.add(appended.position)

    @rule(permits=st.sampled_from((0, 1, 5, 1_000)))
    def subscribe(self, permits):
        """A consumer comes, if one may."""
        if len(self.consumers) == CONSUMERS_MAX:
            return
        number = self.sequence_id = self.sequence_id + 1
        command = CommandSubscribe(consumer_id=number, subType=self.sub_type, topic=str(TOPIC))
        consumer = Consumer(Client(), command, f"c{number}", 0)
        with suppress(RefusedError):
            self.run(self.subscription.add_consumer(consumer, self.sub_type))
            self.consumers.append(consumer)
            self.do(self.subscription.flow, consumer, permits)

    def pick(self, number):
        """One of the consumers; None if there is none."""
        return self.consumers[number % len(self.consumers)] if self.consumers else None

    @rule(number=which, event=st.sampled_from(("leave", "flow", "stop or go on")), n=numbers)
    def client_acts(self, number, event, n):
        """A consumer leaves, can take more, stops to read, or goes on."""
        consumer = self.pick(number)
        if consumer is None:
            return
        if event == "leave":
            self.consumers.remove(consumer)
            self.do(consumer.leave)
        elif event == "flow":
            self.do(self.subscription.flow, consumer, n)
        else:
            consumer.connection.writable = not consumer.connection.writable
            if consumer.connection.writable:
                self.do(consumer.resume)

    def held(self, consumer):
        """What a consumer has been sent and may answer for."""
        held = consumer.pending if self.sub_type in SHARING else consumer.connection.received
        return sorted(set(held))

    @rule(number=which, n=numbers, count=st.integers(1, 9), part=st.booleans())
    def ack(self, number, n, count, part):
        """A consumer acknowledges some of what it has, of a batch perhaps the first message."""
        if consumer := self.pick(number):
            held = self.held(consumer)
            for position in held[n % (len(held) or 1) :][:count]:
                self.ack_one(consumer, position, part)

    @rule(number=which, n=numbers)
    def ack_any(self, number, n):
        """A consumer acknowledges an entry wherever that is: waiting, delayed, or not read yet."""
        position = self.nth(n)
        if (consumer := self.pick(number)) and position < self.topic.ledger.end_position:
            self.ack_one(consumer, position, False)

    def ack_one(self, consumer, position, part):
        """Acknowledge an entry, or the first message of a batch."""
        message_id = MessageIdData(ledgerId=position.ledger_id, entryId=position.entry_id)
        if part and position in self.open and self.published[position].messages > 1:
            message_id.ack_set.append(0b110)
        else:
            self.gone(position)
        self.do(self.subscription.ack_piece, consumer, (message_id,))

    @rule(number=which, n=numbers)
    def ack_up_to(self, number, n):
        """A consumer acknowledges everything up to an entry; Shared types ignore it."""
        consumer, position = self.pick(number), self.nth(n)
        if consumer is None or position >= self.topic.ledger.end_position:
            return
        message_id = MessageIdData(ledgerId=position.ledger_id, entryId=position.entry_id)
        if self.sub_type not in SHARING:
            self.gone_up_to(position)
        self.do(self.subscription.ack_cumulatively, consumer, message_id)

    @rule(number=which, n=st.one_of(st.none(), numbers))
    def redeliver(self, number, n):
        """A consumer wants something again, or everything."""
        if consumer := self.pick(number):
            held = self.held(consumer)
            some = None if n is None else held[n % (len(held) or 1) :][:3]
            self.do(self.subscription.redeliver, consumer, some)

    @rule(event=st.sampled_from(("clear", "skip", "expire", "truncate", "retain")), n=numbers)
    def entries_leave(self, event, n):
        """Entries go away without a consumer: backlogs are cleared, and logs' heads removed."""
        ledger, position = self.topic.ledger, self.nth(n)
        if event in ("clear", "skip"):
            count = 1_000 if event == "clear" else 1 + n % 5
            position = self.subscription.cursor.nth_unacked(count)
        elif position >= ledger.end_position:
            position = ledger.last_position
        if position is None:
            return
        self.gone_up_to(position)
        if event in ("clear", "skip"):
            self.run(self.subscription.skip(count))
        elif event == "expire":
            self.run(expire(self.subscription, position))
        else:
            # Truncation moves the cursors first. Retention asks nobody.
            if event == "truncate":
                self.do(self.subscription.give_up, position)
            self.do(ledger.truncate_head, position.following)
            self.do(self.topic.entries_removed)

    @rule(n=numbers)
    def seek(self, n):
        """The subscription goes to another place; its consumers have to come again."""
        position = self.nth(n)
        end = self.topic.ledger.end_position
        first = self.nth(0)
        self.open = {one for one in self.published if max(first, position) <= one < end}
        self.run(reset_subscription(self.subscription, SeekTarget(position), then=lambda: None))
        connected = list(self.subscription.consumers)
        self.consumers = [one for one in self.consumers if one in connected]

    @rule(seconds=st.integers(1, 3))
    def time_passes(self, seconds):
        """Delays end."""
        self.clock.advance(by_ms=DELAY_MS * seconds)
        self.loop.advance(2)
        self.settle()

    @rule()
    def delays_are_switched(self):
        """A policy says whether messages may be delayed."""
        rules = self.topic.rules
        self.topic.rules = replace(rules, delays_delivery=not rules.delays_delivery)
        self.do(self.subscription.rules_changed)

    # -- what must be true ------------------------------------------------------------------------

    @invariant()
    def the_backlog_is_what_is_open(self):
        """Neither more nor less is unacknowledged than the model says."""
        if hasattr(self, "topic"):
            assert self.subscription.backlog_entries == len(self.open)

    @invariant()
    def an_entry_is_in_one_place(self):
        """An entry waits, or is delayed, or is with a consumer, and only if it is not gone."""
        dispatcher = getattr(self, "topic", None) and self.subscription.dispatcher
        if self.sub_type in SHARING and dispatcher:
            held = [position for one in self.consumers for position in one.pending]
            places = [*held, *dispatcher.waiting, *dispatcher.delayed]
            assert len(places) == len(set(places))
            in_log = [one for one in places if one >= self.nth(0)]
            assert set(in_log) <= self.open
            assert len(dispatcher.waiting) == len(list(dispatcher.waiting))
            assert len(dispatcher.delayed) == len(list(dispatcher.delayed))
            assert dispatcher.unacked_messages == sum(
                sum(c.pending.values()) for c in self.consumers
            )

    @invariant()
    def who_can_take_is_served(self):
        """Nothing waits for a consumer that can take it, unless too much waits for others."""
        dispatcher = getattr(self, "topic", None) and self.subscription.dispatcher
        if not dispatcher or dispatcher.all_blocked:
            return
        if self.sub_type not in SHARING:
            active = dispatcher.active
            if active is not None and self.is_ready(active):
                assert self.open <= set(active.connection.received)
            return
        with_consumers = {position for one in self.consumers for position in one.pending}
        waiting = self.open - with_consumers
        now_ms, delays = self.clock.now_ms(), self.topic.rules.delays_delivery
        delayed = {p for p in waiting if delays and self.published[p].due_ms > now_ms}
        waiting -= delayed
        if waiting and len(delayed) < DELAYED_MAX:
            assert not self.deliverable(dispatcher, waiting)

    def deliverable(self, dispatcher, waiting):
        """Those of the waiting entries that a consumer can take."""
        ready = [one for one in self.consumers if self.is_ready(one)]
        if self.sub_type == CommandSubscribe.Key_Shared:
            if not ready or len(waiting) >= LOOK_AHEAD:
                return []
            ranges = list(dispatcher.hash_ranges())
            moved = [slot for _, slot, _ in dispatcher.draining()]
            slots = {p: self.published[p].slot for p in waiting}
            owners = {s: c for c, a, b in ranges for s in slots.values() if a <= s <= b}
            return [p for p, slot in slots.items() if owners[slot] in ready and slot not in moved]
        chunks = {p for p in waiting if self.published[p].kind == "chunk"}
        if ready and len(ready) == len(self.consumers):
            return waiting
        return waiting - chunks if ready and len(chunks) < CHUNKS_MAX else []

    def is_ready(self, consumer):
        """Whether a consumer can be sent something."""
        is_blocked = self.subscription.is_blocked(consumer)
        return consumer.permits > 0 and consumer.connection.writable and not is_blocked

    @precondition(lambda self: hasattr(self, "topic"))
    @rule()
    def deliver_the_rest(self):
        """All consumers read and acknowledge: nothing is left after a bounded number of rounds."""
        if not self.consumers:
            self.subscribe(permits=0)
        for consumer in self.consumers:
            consumer.connection.writable = True
            self.do(consumer.resume)
        for _ in range(ROUNDS_MAX):
            for consumer in self.consumers:
                if consumer.permits <= 0:
                    self.do(self.subscription.flow, consumer, 10)
                for position in self.held(consumer):
                    self.ack_one(consumer, position, False)
            if not self.open:
                break
            self.time_passes(3)
        assert not self.open, "some entries are not delivered"


class TestDeliveries(Deliveries.TestCase):  # type: ignore[misc,valid-type]
    """What is neither acknowledged nor with a consumer is delivered, whatever has happened."""

    settings = settings(
        max_examples=EXAMPLES or 60,
        stateful_step_count=50 if EXAMPLES else 30,
        derandomize=not EXAMPLES,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )

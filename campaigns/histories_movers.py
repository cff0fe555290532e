"""Clients of `histories.py` that move messages in transactions.

Two movers of each protocol pass messages around a ring of two topics, for some rounds: a mover
receives messages of one topic, and one transaction acknowledges them, sends each on to the other
topic, and a copy to a third one, which consumers read (`LANES` in `histories_clients.py`). Some
transactions are aborted, and some never ended. None of their messages may be seen then, and what
they have received comes again.

Pulsar's mover is a raw client, because the official Python client has no transactions; Kafka's is
confluent-kafka (librdkafka).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import TopicPartition as Partition
from histories_clients import Lane, Run

from pulsemark.client import ClientError, ConnectionLostError, Service, WaitTimeoutError
from pulsemark.metadata.message import payload_of
from pulsemark.proto import pulsar_api_pb2 as pb
from tests.support.transaction_client import COORDINATOR, TransactionClient

AT_ONCE = 5
ROUNDS = 3
#: A transaction that its client has left is aborted after so long.
TIMEOUT_MS = 10_000
#: How long no message has come at the end: longer, because consumers wait for such a transaction.
#: A Kafka looks for them only every 10 s.
SILENT_S, SILENT_ON_KAFKA_S = 15.0, 30.0
#: A mover that got nothing for so long connects again: a consumer of librdkafka 2.16 once got no
#: message any more after all brokers had ended, while others read the same partition.
NOTHING_S = 60.0
#: Of each transaction: how likely it is that it is aborted, or never ended.
ABORTED, LEFT = 0.2, 0.03


class Got(NamedTuple):
    """A message that was received."""

    value: str
    position: str
    #: What acknowledges it.
    message_id: Any


class Mover:
    """Receives messages of a lane, and sends to others, in transactions."""

    #: What a step may raise: then nobody knows how the transaction ends.
    errors: tuple[type[Exception], ...] = ()
    kind = ""
    is_once = False

    def __init__(self, run: Run, source: Lane, target: Lane, copies: Lane) -> None:
        self.run, self.source, self.target, self.copies = run, source, target, copies
        self.name = f"{source.name}-mover"
        #: The one that sends to this one's source.
        self.other = self
        #: Whether it connects or moves messages, and when it has last moved some.
        self.is_busy = True
        self.last_s = time.monotonic()
        self._calm_s = self.last_s
        self._count = 0
        self.about = {
            "client": self.name, "topic": source.name, "subscription": "s", "kind": self.kind,
        }  # fmt: skip

    def connect(self) -> None:
        """Connect; what was open before is ended by the broker."""
        raise NotImplementedError

    def close(self) -> None:
        """Leave, without a word about an open transaction."""
        raise NotImplementedError

    def again(self) -> None:
        """What was not acknowledged comes again; Pulsar's broker sends it by itself."""

    def take(self) -> list[Got]:
        """Some messages; none if none come for a while."""
        raise NotImplementedError

    def begin(self) -> None:
        """Begin a transaction."""
        raise NotImplementedError

    def send(self, lane: Lane, value: str, answered: Callable[..., None]) -> None:
        """Send in the transaction; `answered` is called with `ok` and `position`, now or later."""
        raise NotImplementedError

    def acknowledge(self, messages: list[Got]) -> None:
        """Acknowledge in the transaction."""
        raise NotImplementedError

    def end(self, *, committed: bool) -> None:
        """Commit, or abort."""
        raise NotImplementedError

    def is_done(self) -> bool:
        """At the end: whether no more comes, because neither of the two does anything."""
        if self.run.is_sent.is_set():
            return True  # nobody waits any longer: the other one was left
        if not self.run.is_produced.is_set() or self.is_busy or self.other.is_busy:
            self._calm_s = time.monotonic()
            return False
        limit_s = SILENT_S if self.run.service_url else SILENT_ON_KAFKA_S
        last_s = max(self.last_s, self.other.last_s, self._calm_s)
        return time.monotonic() - last_s >= limit_s

    def transact(self, messages: list[Got], since_ns: int) -> bool:
        """Move messages, which have come since some time; whether that was committed."""
        run, random = self.run, self.run.random
        self._count += 1
        name = f"{self.name}.{self._count}"
        begin_ns = run.now_ns()
        committed: bool | None = False
        fate = 1.0 if run.stop.is_set() else random.random()
        try:
            for got in messages:
                told = {"value": got.value, "position": got.position, "transaction": name}
                run.note("receive", since_ns, **self.about, **told)
            self.begin()
            for number, got in enumerate(messages):
                self._pass_on(got, name, number)
            self.acknowledge(messages)
            if fate < LEFT:
                raise ConnectionLostError("left")
            is_wanted = fate > LEFT + ABORTED
            ended_ns = run.now_ns()
            about = {"client": self.name, "transaction": name}
            note = partial(run.note, "commit" if is_wanted else "abort", ended_ns, **about)
            try:
                committed = None if is_wanted else False
                self.end(committed=is_wanted)
                committed = is_wanted
            finally:
                note(ok=committed if is_wanted else True)
        finally:
            for got in messages:
                told = {"value": got.value, "position": got.position, "transaction": name}
                run.note("acknowledge", begin_ns, ok=committed, **self.about, **told)
        return bool(committed)

    def _pass_on(self, got: Got, name: str, number: int) -> None:
        rounds = int(got.value.rpartition("+")[2]) if "+" in got.value else 0
        goes_on = rounds < ROUNDS and not self.run.stop.is_set()
        for lane in [self.target, self.copies] if goes_on else [self.copies]:
            value = f"{lane.name}/{name}.{number}+{rounds + 1}"
            about = {"client": self.name, "topic": lane.name, "transaction": name}
            answered = self.run.note_send(value, is_once=self.is_once, **about)
            try:
                self.send(lane, value, answered)
            except self.errors:
                answered(ok=None)
                raise


def movers(run: Run) -> list[Mover]:
    """Those of each protocol that is there, in pairs."""
    lanes, found = {lane.name: lane for lane in run.lanes}, list[Mover]()
    for kind, prefix in ((PulsarMover, ""), (KafkaMover, "kafka-")):
        if f"{prefix}moved" in lanes:
            one, other, copies = (lanes[prefix + name] for name in ("ring-a", "ring-b", "moved"))
            pair = kind(run, one, other, copies), kind(run, other, one, copies)
            pair[0].other, pair[1].other = pair[1], pair[0]
            found += pair
    return found


def move(mover: Mover) -> None:
    """Move messages until there are no more at the end."""
    run, is_connected = mover.run, False
    run.note("subscribe", 0, **mover.about)
    since_ns = 0
    while not mover.is_done():
        try:
            if not is_connected:
                mover.is_busy = True
                mover.connect()
                is_connected, mover.last_s = True, time.monotonic()
            mover.is_busy = False
            messages = mover.take()
            before_ns, since_ns = since_ns, run.now_ns()
            if messages:
                mover.is_busy, mover.last_s = True, time.monotonic()
                if not mover.transact(messages, before_ns):
                    mover.again()
                mover.last_s = time.monotonic()
            elif time.monotonic() - mover.last_s > NOTHING_S:
                print(f"{mover.name}: nothing came for {NOTHING_S:.0f} s, it connects again")
                is_connected = False
        except mover.errors:
            is_connected = False
        if not is_connected:  # not above: there the error holds the client, which ends with its use
            mover.close()
            time.sleep(0.3)
    run.note("drained", run.now_ns(), **mover.about)
    mover.close()


class PulsarMover(Mover):
    """With commands of its own."""

    errors = (ClientError, OSError)
    kind = "Shared"
    _service: Service | None = None

    def connect(self) -> None:
        """Open all topics at the brokers that serve them."""
        self._service = Service(self.run.service_url, timeout_s=10)
        self._coordinator = self._client_of(COORDINATOR)
        self._coordinator.connect()
        self._source = self._client_of(self.source.name)
        self._consumer = self._source.raw.subscribe(
            self.source.name, "s", sub_type=pb.CommandSubscribe.Shared, earliest=True,
            consumer_name=self.name,
        )  # fmt: skip
        targets = [lane.name for lane in (self.target, self.copies)]
        self._targets = {name: self._client_of(name) for name in targets}
        self._producers = {
            name: client.raw.create_producer(name) for name, client in self._targets.items()
        }
        self._consumer.flow(AT_ONCE)

    def _client_of(self, topic: str) -> TransactionClient:
        assert self._service is not None
        return TransactionClient(self._service.connection(topic))

    def close(self) -> None:
        """Close the connections."""
        if self._service is not None:
            self._service.close()

    def take(self) -> list[Got]:
        """Some messages."""
        parts: list[Any] = [self._consumer, *self._producers.values()]
        try:
            messages = [self._consumer.receive(0.5), *self._consumer.arrived()]
        except WaitTimeoutError:
            messages = []
        if any(part.is_closed for part in parts):
            raise ConnectionLostError("a topic was closed")
        if messages:
            self._consumer.flow(len(messages))
        ids = [message.message_id for message in messages]
        return [
            Got(
                bytes(payload_of(message.headers_and_payload)).decode(),
                f"{at.ledger_id}:{at.entry_id}:0", at,
            )
            for message, at in zip(messages, ids, strict=True)
        ]  # fmt: skip

    def begin(self) -> None:
        """Begin, and say where it will send."""
        self._transaction = self._coordinator.begin(TIMEOUT_MS)
        topics = [f"persistent://public/default/{name}" for name in self._producers]
        self._coordinator.add(self._transaction, *topics)
        source = f"persistent://public/default/{self.source.name}"
        self._coordinator.add_subscription(self._transaction, source, "s")

    def send(self, lane: Lane, value: str, answered: Callable[..., None]) -> None:
        """Send, and wait for the receipt."""
        producer, client = self._producers[lane.name], self._targets[lane.name]
        at = client.send(producer, value.encode(), self._transaction)
        answered(position=f"{at.ledger_id}:{at.entry_id}:0")

    def acknowledge(self, messages: list[Got]) -> None:
        """One by one."""
        for got in messages:
            self._source.ack(self._consumer, got.message_id, self._transaction)

    def end(self, *, committed: bool) -> None:
        """END_TXN."""
        self._coordinator.end(self._transaction, committed=committed)


def _end_librdkafka(clients: list[Any]) -> None:
    """End clients that nobody else uses: the end of its last use waits for a client's threads."""
    while clients:
        client = clients.pop()
        with suppress(KafkaException):
            client.close() if isinstance(client, Consumer) else client.purge()


class KafkaMover(Mover):
    """With librdkafka."""

    errors = (KafkaException, ConnectionLostError, TimeoutError)
    kind = "Group"
    is_once = True
    LIMIT_S = 30.0
    _producer: Producer | None = None
    _consumer: Consumer | None = None

    def connect(self) -> None:
        """Begin where the group is, after the transaction before has ended."""
        settings = {
            "bootstrap.servers": self.run.kafka_url, "log_level": 0,
            "reconnect.backoff.max.ms": 1_000,
            # librdkafka 2.16 may begin anew with all brokers, and then never find the coordinator.
            "metadata.recovery.strategy": "none",
        }  # fmt: skip
        self._producer = Producer({
            **settings, "transactional.id": self.name, "transaction.timeout.ms": TIMEOUT_MS,
            "linger.ms": 0,
        })  # fmt: skip
        self._producer.init_transactions(self.LIMIT_S)
        self._consumer = Consumer({
            **settings, "group.id": "s", "enable.auto.commit": False,
            "isolation.level": "read_committed", "auto.offset.reset": "earliest",
        })  # fmt: skip
        self.again()

    def again(self) -> None:
        """Go on where the group is."""
        assert self._consumer is not None
        place = Partition(self.source.kafka_name, 0)
        (place,) = self._consumer.committed([place], self.LIMIT_S)
        place.offset = max(place.offset, 0)
        self._consumer.assign([place])

    def close(self) -> None:
        """Close both."""
        parts = [part for part in (self._producer, self._consumer) if part is not None]
        self._consumer = self._producer = None
        self.run.close(self.name, _end_librdkafka, parts)

    def take(self) -> list[Got]:
        """Some messages."""
        assert self._consumer is not None
        messages = self._consumer.consume(AT_ONCE, 0.5)
        for message in messages:
            if (error := message.error()) is not None:
                raise KafkaException(error)
        return [
            Got((message.value() or b"").decode(), str(message.offset()), message.offset())
            for message in messages
        ]

    def begin(self) -> None:
        """Begin."""
        assert self._producer is not None
        self._producer.begin_transaction()

    def send(self, lane: Lane, value: str, answered: Callable[..., None]) -> None:
        """Send; the answer comes before the end."""
        assert self._producer is not None

        def told(error: Any, message: Any) -> None:
            answered(**{"ok": None} if error else {"position": str(message.offset())})

        self._producer.produce(lane.kafka_name, value.encode(), on_delivery=told)
        self._producer.poll(0)

    def acknowledge(self, messages: list[Got]) -> None:
        """The group's offset."""
        assert self._producer is not None
        assert self._consumer is not None
        place = Partition(self.source.kafka_name, 0, messages[-1].message_id + 1)
        group = self._consumer.consumer_group_metadata()
        send = self._producer.send_offsets_to_transaction
        # librdkafka 2.16 may wait for ever for a coordinator that has left the cluster (its issues
        # 5456 and 5511): then the call is left alone, and a new producer takes its place.
        self.run.within(2 * self.LIMIT_S, self.name, send, [place], group, self.LIMIT_S)

    def end(self, *, committed: bool) -> None:
        """Commit, again until it is known how that ends; or abort."""
        assert self._producer is not None
        until_s = time.monotonic() + self.LIMIT_S
        while True:
            try:
                if committed:
                    self._producer.commit_transaction(self.LIMIT_S)
                else:
                    self._producer.abort_transaction(self.LIMIT_S)
                return
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > until_s:
                    raise

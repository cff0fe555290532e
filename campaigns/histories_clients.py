"""The clients of `histories.py`: official ones of Pulsar, and kafka-python, in lanes.

Each lane is a topic with producers and consumers. The consumers come and go (`AWAY_S`), as those of
real services do: what a consumer held must come again, and what it acknowledged must not.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, TypeVar

import pulsar
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from kafka.errors import KafkaError

from pulsemark.client import AdminClient, RawEntry, RawReader, Service
from pulsemark.client.errors import AdminError, ClientError, UnreachableError, WaitTimeoutError
from pulsemark.metadata.message import payload_of
from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.testing.histories import Step

sys.path.append(str(Path(__file__).resolve().parent.parent))
from tests.support.simulated_admin import BROKEN, NOT_FOUND, Asked, next_request, value_in

#: How long a consumer waits at the end until it believes that there is no more.
DRAINED_S = 5.0
#: A group that has not committed all after this silence does not get it.
LATE_S = 60.0
#: A consumer is closed, and another one opened, after so many seconds.
AWAY_S = (4.0, 12.0)
#: Pulsar may deliver a delayed message so much early.
TOLERANCE_NS = 1_100_000_000
DELAY_MS = 2_000
#: Two of them and one are more than the brokers' largest message (`histories_systems.py`).
CHUNK_BYTES = 70_000
ACKNOWLEDGED_AT_ONCE = 5
READ_TRIES = 10
#: How long a topic may give nothing when it is read at the end.
READ_S = 60
#: How long a client library's call for its end may take.
CLOSED_S = 60.0
#: How long a Kafka producer that is replaced may still send.
LEAVING_S = 1.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Lane:
    """A topic, and who works on it."""

    name: str
    kind: str
    consumers: int = 1
    rate: int = 60
    has_batches: bool = False
    has_delays: bool = False
    has_deduplication: bool = False
    has_chunks: bool = False
    #: A consumer acknowledges what it has had at once, after some messages.
    is_cumulative: bool = False
    #: kafka-python publishes to it, and Pulsar's clients consume what it has sent.
    has_kafka_producer: bool = False
    #: It is part of a ring in which messages are moved in transactions (`histories_movers.py`).
    has_transactions: bool = False

    @property
    def kafka_name(self) -> str:
        """Its name for Kafka's clients; empty for a lane of Pulsar's clients alone."""
        is_kafkas = self.kind == "Group" or self.has_kafka_producer
        return self.name.partition("-partition-")[0] if is_kafkas else ""


LANES = (
    Lane("exclusive", "Exclusive", has_batches=True, rate=200),
    Lane("failover", "Failover", consumers=2, is_cumulative=True),
    Lane("shared", "Shared", consumers=2, has_delays=True),
    Lane("keys", "Key_Shared", consumers=2),
    Lane("once", "Exclusive", has_deduplication=True),
    Lane("chunks", "Exclusive", has_deduplication=True, has_chunks=True, rate=4),
    Lane("parts-partition-1", "Failover", consumers=2),
    Lane("both-partition-0", "Exclusive", has_batches=True, has_kafka_producer=True),
    Lane("kafka", "Group"),
    Lane("ring-a", "Shared", consumers=0, rate=10, has_transactions=True),
    Lane("ring-b", "Shared", consumers=0, rate=0, has_transactions=True),
    Lane("moved", "Exclusive", rate=0, has_transactions=True),
    Lane("kafka-ring-a", "Group", consumers=0, rate=10, has_transactions=True),
    Lane("kafka-ring-b", "Group", consumers=0, rate=0, has_transactions=True),
    Lane("kafka-moved", "Group", rate=0, has_transactions=True),
)
KINDS = {
    "Exclusive": pulsar.ConsumerType.Exclusive,
    "Failover": pulsar.ConsumerType.Failover,
    "Shared": pulsar.ConsumerType.Shared,
    "Key_Shared": pulsar.ConsumerType.KeyShared,
}


class Left(NamedTuple):
    """A client that did not end, or whose library did not return from a call."""

    client: str
    call: str
    seconds: float
    #: Where it is not known whether it has seen all; empty if another one took its place.
    topic: str


@dataclass
class Run:
    """What the clients of a run share."""

    service_url: str
    kafka_url: str
    http_urls: tuple[str, ...]
    random: Random
    has_moved_clock: bool
    #: Whether Pulsar's clients have transactions; Kafka's always do.
    has_transactions: bool
    stop: threading.Event = field(default_factory=threading.Event)
    #: All producers have ended, without and with those that move messages.
    is_produced: threading.Event = field(default_factory=threading.Event)
    is_sent: threading.Event = field(default_factory=threading.Event)
    steps: list[Step] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    #: By the values of messages whose clients have no answer yet: what notes it.
    unanswered: dict[str, Callable[..., None]] = field(default_factory=dict)
    began_ns: int = field(default_factory=time.monotonic_ns)

    @property
    def admin(self) -> AdminClient:
        """The admin interface; a Kafka has none."""
        return AdminClient(self.http_urls[0])

    @property
    def lanes(self) -> list[Lane]:
        """Those that the broker can serve."""
        return [lane for lane in LANES if self._serves(lane)]

    @property
    def sending(self) -> list[Lane]:
        """Those with producers that send by themselves."""
        return [lane for lane in self.lanes if lane.rate]

    def _serves(self, lane: Lane) -> bool:
        has_kafkas = bool(self.kafka_url) or not lane.kafka_name
        if lane.kind == "Group":
            return has_kafkas
        has_all = self.has_transactions or not lane.has_transactions
        return has_kafkas and bool(self.service_url) and has_all

    def now_ns(self) -> int:
        """Time since the begin."""
        return time.monotonic_ns() - self.began_ns

    def note(self, what: str, begin_ns: int, **told: Any) -> None:
        """A client's step ends now."""
        self.steps.append(Step(what=what, begin_ns=begin_ns, end_ns=self.now_ns(), **told))

    def note_send(self, value: str, **about: Any) -> Callable[..., None]:
        """A client begins to send a message. The result notes the answer, `ok` and `position`."""
        begin_ns = self.now_ns()

        def answered(**told: Any) -> None:
            if self.unanswered.pop(value, None) is not None:
                self.note("send", begin_ns, value=value, **about, **told)

        self.unanswered[value] = answered
        return answered

    def within(
        self, limit_s: float, client: str, call: Callable[..., T], *given: Any, topic: str = ""
    ) -> T:
        """The result of a library's call. One that does not come in time is left behind, and named.

        Raises TimeoutError.
        """
        doing = ThreadPoolExecutor(1).submit(call, *given)
        try:
            return doing.result(limit_s)
        except TimeoutError:
            if not doing.done():
                self.left.append(Left(client, call.__qualname__, limit_s, topic))
            raise

    def close(self, client: str, call: Callable[..., object], *given: Any, topic: str = "") -> None:
        """Have a library end a client of Kafka's."""
        with suppress(KafkaError, TimeoutError):
            self.within(CLOSED_S, client, call, *given, topic=topic)

    def seen(self) -> list[Step]:
        """All steps. Nobody knows what became of a message that has no answer, and on the topics of
        clients that are left nobody has seen that there is no more.
        """
        for answered in list(self.unanswered.values()):
            answered(ok=None)
        blind = {left.topic for left in self.left}
        ends = ("drained", "backlog")
        return [each for each in self.steps if each.topic not in blind or each.what not in ends]

    def client(self) -> pulsar.Client:
        """A client with a connection of its own."""
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
        return pulsar.Client(self.service_url, logger=logger, operation_timeout_seconds=60)


def prepare(run: Run) -> None:
    """Make the topics, and give them their policies: nothing is removed."""
    if run.service_url:
        keep = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
        run.admin.request("POST", "namespaces/public/default/retention", keep)
    for lane in run.lanes:
        if lane.kafka_name:
            kafka = KafkaAdminClient(bootstrap_servers=run.kafka_url)
            settings = {"message.timestamp.type": "LogAppendTime"}
            kafka.create_topics([NewTopic(lane.kafka_name, 1, 1, topic_configs=settings)])
            kafka.close()
        elif "-partition-" in lane.name:
            run.admin.create_topic(lane.name.partition("-partition-")[0], partitions=2)
        else:
            run.admin.create_topic(lane.name)
        if lane.has_deduplication:
            path = f"persistent/public/default/{lane.name}/deduplicationEnabled"
            run.admin.request("POST", path, True)


def begin(run: Run) -> tuple[list[threading.Thread], list[threading.Thread]]:
    """Start the consumers, and then the producers and those that seek; both are returned."""
    ready = threading.Barrier(1 + sum(lane.consumers for lane in run.lanes))
    consumers = [
        start(consume_from_kafka if lane.kind == "Group" else consume, run, lane, number, ready)
        for lane in run.lanes
        for number in range(lane.consumers)
    ]
    ready.wait(600)
    producers = [
        start(produce_to_kafka if lane.kafka_name else produce, run, lane) for lane in run.sending
    ]
    if run.service_url and not run.has_moved_clock:
        producers.append(start(seek, run, LANES[0]))
    if run.http_urls:
        producers.append(start(manage, run))
    return consumers, producers


def start(target: Callable[..., None], *arguments: Any) -> threading.Thread:
    """A thread that runs this, named after what it works for."""
    names = [each.name for each in arguments if hasattr(each, "name")]
    name = " ".join([target.__name__, *names])
    thread = threading.Thread(target=target, args=arguments, daemon=True, name=name)
    thread.start()
    return thread


# -- messages -----------------------------------------------------------------------------------


def position_of(message_id: Any) -> str | None:
    """A message id as a history has it.

    None: the receipt of a message that was stored before, and sent again, names no place.
    """
    if message_id.ledger_id() < 0:
        return None
    batch = max(message_id.batch_index(), 0)
    return f"{message_id.ledger_id()}:{message_id.entry_id()}:{batch}"


def body_of(lane: Lane, value: str) -> bytes:
    """The message's bytes: its value, and what fills two chunks."""
    size_bytes = (int(value.rpartition("/")[2]) % 3) * CHUNK_BYTES if lane.has_chunks else 0
    return value.encode() + b"." * size_bytes


def value_of(lane: Lane, body: bytes) -> str:
    """The value of a message; one that nobody has sent if its bytes are not those of its value."""
    value = body.rstrip(b".").decode(errors="replace")
    return value if not lane.has_chunks or body_of(lane, value) == body else f"{value}, damaged"


def produce(run: Run, lane: Lane) -> None:
    """Publish until the end, with up to 50 messages unanswered."""
    client, name, room = run.client(), f"{lane.name}-producer", threading.Semaphore(50)
    options: dict[str, Any] = {"batching_enabled": lane.has_batches}
    if lane.has_chunks:
        options["chunking_enabled"] = True
    producer = client.create_producer(
        lane.name,
        producer_name=name if lane.has_deduplication else None,
        batching_max_publish_delay_ms=20,
        send_timeout_millis=0 if lane.has_deduplication else 60_000,
        **options,
    )
    number = 0
    while not run.stop.wait(1 / lane.rate):
        room.acquire()
        value, key = f"{lane.name}/{number}", f"k{number % 7}"
        number += 1
        # A clock that steps back keeps a delayed message for as long as it steps.
        has_delay = lane.has_delays and number % 5 == 0 and not run.has_moved_clock
        delay_ms = DELAY_MS if has_delay else None
        due_ns = run.now_ns() + DELAY_MS * 1_000_000 - TOLERANCE_NS if has_delay else None
        about = {"client": name, "topic": lane.name, "due_ns": due_ns}
        answered = run.note_send(value, is_once=lane.has_deduplication, **about)
        producer.send_async(
            body_of(lane, value),
            partial(_answered, room, answered),
            partition_key=key,
            deliver_after=None if delay_ms is None else timedelta(milliseconds=delay_ms),
        )
    with suppress(pulsar.PulsarException):
        producer.flush()
    client.close()


def _answered(room: threading.Semaphore, note: Callable[..., None], result: Any, at: Any) -> None:
    """A producer's message was stored, refused, or nobody knows."""
    is_stored = result == pulsar.Result.Ok
    ok = True if is_stored else False if result == pulsar.Result.ChecksumError else None
    note(ok=ok, position=position_of(at) if is_stored else None)
    room.release()


class Consuming:
    """A consumer of a lane that comes and goes, and notes what it gets."""

    def __init__(self, run: Run, lane: Lane, number: int) -> None:
        self.run, self.lane = run, lane
        self.client, self.name = run.client(), f"{lane.name}-consumer-{number}"
        self.about: dict[str, Any] = {
            "client": self.name,
            "topic": lane.name,
            "subscription": "s",
            # Clients drop messages of which a chunk came twice: what they get has gaps.
            "kind": "Shared" if lane.has_chunks else lane.kind,
        }
        #: What it was told, and has acknowledged or will, but not as a whole entry yet.
        self._open: list[dict[str, Any]] = []
        self._last_id: Any = None
        self.open()

    def open(self) -> None:
        """Subscribe."""
        begin_ns = self.run.now_ns()
        while True:
            with suppress(pulsar.PulsarException):  # no broker is there for long
                self.consumer = self.client.subscribe(
                    self.lane.name, "s", KINDS[self.lane.kind], consumer_name=self.name,
                    initial_position=pulsar.InitialPosition.Earliest,
                )  # fmt: skip
                break
        self.run.note("subscribe", begin_ns, **self.about)
        self.away_s = time.monotonic() + self.run.random.uniform(*AWAY_S)

    def close(self) -> None:
        """Leave, with messages that it has and did not acknowledge."""
        self._open.clear()
        begin_ns = self.run.now_ns()
        with suppress(pulsar.PulsarException):  # no broker there: it learns of it in the end
            self.consumer.close()
        self.run.note("closed", begin_ns, **self.about)

    def take(self) -> bool:
        """Receive and acknowledge a message, or wait for one in vain."""
        begin_ns = self.run.now_ns()
        try:
            message = self.consumer.receive(500)
        except pulsar.Timeout:
            return False
        told = {
            **self.about, "value": value_of(self.lane, message.data()),
            "key": message.partition_key(), "position": position_of(message.message_id()),
        }  # fmt: skip
        self.run.note("receive", begin_ns, **told)
        entry = told["position"].rpartition(":")[0]
        is_cumulative, has_batches = self.lane.is_cumulative, self.lane.has_batches
        if has_batches and self._open and self._open[-1]["position"].rpartition(":")[0] != entry:
            self.acknowledge_open()  # a batch counts when all its messages are acknowledged
        if not is_cumulative:
            self.consumer.acknowledge(message)
        self._open.append(told)
        self._last_id = message.message_id()
        if len(self._open) >= ACKNOWLEDGED_AT_ONCE if is_cumulative else not has_batches:
            self.acknowledge_open()
        return True

    def acknowledge_open(self) -> None:
        """Note that all it was told is acknowledged; of a cumulative one, do it."""
        begin_ns = self.run.now_ns()
        if self._open and self.lane.is_cumulative:
            self.consumer.acknowledge_cumulative(self._last_id)
        for told in self._open:
            self.run.note("acknowledge", begin_ns, **{**told, "ok": None})
        self._open.clear()

    def end(self) -> None:
        """There is no more."""
        self.acknowledge_open()
        if not self.lane.has_chunks:
            self.run.note("drained", self.run.now_ns(), **self.about)
        self.client.close()


def consume(run: Run, lane: Lane, number: int, ready: threading.Barrier) -> None:
    """Receive and acknowledge, until there is no more at the end."""
    one = Consuming(run, lane, number)
    ready.wait()
    silent_since_s = time.monotonic()
    while not run.is_sent.is_set() or time.monotonic() - silent_since_s < DRAINED_S:
        if one.take() or not run.is_sent.is_set():
            silent_since_s = time.monotonic()
        if not run.stop.is_set() and time.monotonic() > one.away_s:
            one.close()
            one.open()
            silent_since_s = time.monotonic()
    one.end()


def seek(run: Run, lane: Lane) -> None:
    """Ask for random moments of the past, and note which message comes first."""
    client, began_ms = run.client(), int(time.time() * 1000)
    while not run.stop.wait(1.5):
        time_ms = run.random.randint(began_ms, max(began_ms, int(time.time() * 1000) - 2_000))
        begin_ns = run.now_ns()
        try:
            reader = client.create_reader(lane.name, pulsar.MessageId.latest)
            reader.seek(time_ms)
            message = reader.read_next(10_000)
            reader.close()
        except Exception:  # noqa: BLE001 - the broker may be away: then nothing was seen
            continue
        run.note(
            "seek", begin_ns, client=f"{lane.name}-seeker", topic=lane.name, time_ms=time_ms,
            value=message.data().decode(),
        )  # fmt: skip
    client.close()


def manage(run: Run) -> None:
    """Change policies, make and delete topics, over REST; and read all of them at the end."""
    topics, seen = [lane.name for lane in run.lanes if lane.kind != "Group"], set[Asked]()
    while not run.stop.wait(0.3):
        asked = next_request(run.random, topics, is_over=False)
        if asked.what != "fault":
            seen.add(Asked("GET", asked.path, None, "get", ""))
            _manage(run, asked)
    for asked in seen:
        _manage(run, asked)


def _manage(run: Run, asked: Asked) -> None:
    begin_ns, value = run.now_ns(), asked.value
    ok: bool | None = True
    try:
        answer = run.admin.request(asked.method, asked.path, asked.body)
        value = value if asked.what == "set" else value_in(answer)
    except AdminError as error:
        ok = False if error.status < BROKEN else None
        if asked.what == "get" and error.status == NOT_FOUND:
            ok, value = True, "none"
    except UnreachableError:
        ok = None
    run.note(asked.what, begin_ns, client="admin", topic=asked.topic, value=value, ok=ok)


# -- Kafka's clients ----------------------------------------------------------------------------


def _kafka_producer(run: Run) -> KafkaProducer:
    while True:
        with suppress(KafkaError):  # no broker is there for long
            return KafkaProducer(
                bootstrap_servers=run.kafka_url, delivery_timeout_ms=90_000,
                reconnect_backoff_max_ms=1_000,
            )  # fmt: skip


def produce_to_kafka(run: Run, lane: Lane) -> None:
    """Publish with kafka-python's idempotent producer until the end."""
    producer, name = _kafka_producer(run), f"{lane.name}-kafka-producer"
    number, has_failed = 0, threading.Event()
    while not run.stop.wait(1 / lane.rate):
        if has_failed.is_set():  # kafka-python 3.0 may send nothing more after messages expired
            run.close(name, producer.close, LEAVING_S)
            producer = _kafka_producer(run)
            has_failed.clear()
            name = f"{lane.name}-kafka-producer-{number}"
        value = f"{lane.name}/kafka/{number}"
        number += 1
        answered = run.note_send(value, client=name, topic=lane.name, is_once=True)

        def sent(told: Any, answered: Callable[..., None] = answered) -> None:
            answered(position=str(told.offset) if lane.kind == "Group" else None)

        def failed(_: BaseException, answered: Callable[..., None] = answered) -> None:
            answered(ok=None)
            has_failed.set()

        try:
            producer.send(lane.kafka_name, value.encode()).add_callback(sent).add_errback(failed)
        except KafkaError as error:
            failed(error)
    run.close(name, producer.flush)
    run.close(name, producer.close)


def _kafka_consumer(run: Run, lane: Lane) -> KafkaConsumer:
    while True:
        with suppress(KafkaError):  # no broker is there for long
            return KafkaConsumer(
                lane.name, bootstrap_servers=run.kafka_url, group_id="s",
                auto_offset_reset="earliest", auto_commit_interval_ms=500,
                isolation_level="read_committed",
            )  # fmt: skip


def _is_at_end(consumer: KafkaConsumer, topic: str, silent_s: float) -> bool:
    """Whether the group has committed all of each partition, whoever has it.

    The end of a transaction is no record that anyone commits: there silence is the end, once the
    group has committed anything.
    """
    with suppress(KafkaError):
        found = [TopicPartition(topic, each) for each in consumer.partitions_for_topic(topic) or ()]
        ends = consumer.end_offsets(found)
        committed = {each: consumer.committed(each) or 0 for each in found}
        enough = 1 if silent_s > 2 * DRAINED_S else sys.maxsize
        return bool(found) and all(committed[at] >= min(ends[at], enough) for at in found)
    return False


def consume_from_kafka(run: Run, lane: Lane, number: int, ready: threading.Barrier) -> None:
    """Poll in a group that commits by itself, until it has committed all, or has waited long."""
    about: dict[str, Any] = {
        "client": f"{lane.name}-consumer-{number}",
        "topic": lane.name,
        "subscription": "s",
        "kind": lane.kind,
    }
    consumer = _kafka_consumer(run, lane)
    consumer.poll(2_000)
    run.note("subscribe", 0, **about)
    ready.wait()
    silent_since_s, begin_ns = time.monotonic(), run.now_ns()
    away_s = silent_since_s + run.random.uniform(*AWAY_S)
    while True:
        silent_s = time.monotonic() - silent_since_s
        if not run.is_sent.is_set():
            silent_since_s = time.monotonic()
        elif silent_s > LATE_S or (silent_s > 1 and _is_at_end(consumer, lane.name, silent_s)):
            break
        begin_ns = run.now_ns()
        batches: dict[Any, Any] = {}
        with suppress(KafkaError):  # the broker is away
            batches = consumer.poll(500)
        for records in batches.values():
            silent_since_s = time.monotonic()
            for record in records:
                value, position = record.value.decode(), str(record.offset)
                run.note("receive", begin_ns, value=value, position=position, **about)
        if not run.stop.is_set() and time.monotonic() > away_s:
            run.close(about["client"], consumer.close, topic=lane.name)  # commits what it has had
            consumer = _kafka_consumer(run, lane)
            silent_since_s = time.monotonic()
            away_s = silent_since_s + 3 * run.random.uniform(*AWAY_S)
    run.note("drained", begin_ns, **about)
    run.close(about["client"], consumer.close)


# -- the logs at the end ------------------------------------------------------------------------


def entries_of(run: Run, lane: Lane) -> list[RawEntry]:
    """A topic's entries as they are stored, with their stamps where the broker shows them."""
    flags = pb.FeatureFlags(supports_broker_entry_metadata=True)
    service = Service(run.service_url, feature_flags=flags)
    found: list[RawEntry] = []
    for _ in range(READ_TRIES):
        found.clear()
        try:
            with RawReader(service, lane.name, timeout_s=60) as reader:
                found.extend(reader.entries())
            break
        except WaitTimeoutError:
            break  # what follows cannot be read
        except ClientError:
            time.sleep(2)  # the topic is on its way to another broker
    service.close()
    return found


def stamps_of(run: Run, lane: Lane) -> dict[str, tuple[int, int]]:
    """Index and broker time by position, where the broker shows them (PIP-90)."""
    found: dict[str, tuple[int, int]] = {}
    if lane.has_kafka_producer or lane.has_transactions:
        # What a Kafka client sent does not say to Pulsar's how many messages it has, and those of
        # transactions that were aborted have indexes, too.
        return found
    for entry in entries_of(run, lane):
        if entry.stamp is not None:
            place, count = f"{entry.position[0]}:{entry.position[1]}", entry.message_count
            for number in range(count):
                index = entry.stamp.index - count + 1 + number
                found[f"{place}:{number}"] = index, entry.stamp.broker_timestamp
    return found


def read_chunks(run: Run, lane: Lane) -> None:
    """Put together what is stored.

    An official reader drops messages whose first chunks are there twice, as after a lost receipt.
    """
    parts: dict[str, dict[int, bytes]] = defaultdict(dict)
    for entry in entries_of(run, lane):
        header, body = entry.header, bytes(payload_of(entry.body))
        if header is not None and header.num_chunks_from_msg > 1:
            parts[header.uuid][header.chunk_id] = body
            if len(parts[header.uuid]) < header.num_chunks_from_msg:
                continue
            body = b"".join(part for _, part in sorted(parts.pop(header.uuid).items()))
        run.note(
            "read", run.now_ns(), client="log", topic=lane.name, value=value_of(lane, body),
            position=f"{entry.position[0]}:{entry.position[1]}:0",
        )  # fmt: skip


def read_logs(run: Run) -> None:
    """Read every topic from its first message to its last, and ask for the backlogs."""
    if run.service_url:
        read_pulsar_logs(run)
    if run.kafka_url:
        read_kafka_logs(run)


def read_pulsar_logs(run: Run) -> None:
    """With an official reader."""
    client = run.client()
    for lane in run.lanes:
        if lane.has_chunks:
            read_chunks(run, lane)
        if lane.kind == "Group" or lane.has_chunks:
            continue
        told = stamps_of(run, lane)
        reader = client.create_reader(lane.name, pulsar.MessageId.earliest)
        while reader.has_message_available():
            begin_ns = run.now_ns()
            try:
                message = reader.read_next(30_000)
            except pulsar.Timeout:
                break  # what follows cannot be read: it counts as lost
            position = position_of(message.message_id())
            index, time_ms = told.get(position or "", (None, None))
            run.note(
                "read", begin_ns, client="log", topic=lane.name, position=position, index=index,
                value=value_of(lane, message.data()), time_ms=time_ms, key=message.partition_key(),
            )  # fmt: skip
        reader.close()
        run.note(
            "backlog", run.now_ns(), client="log", topic=lane.name, subscription="s",
            count=run.admin.backlog(lane.name, "s"),
        )  # fmt: skip
    client.close()


def read_kafka_logs(run: Run) -> None:
    """The same with kafka-python."""
    consumer = KafkaConsumer(
        bootstrap_servers=run.kafka_url, enable_auto_commit=False, isolation_level="read_committed"
    )
    for lane in run.lanes:
        if lane.kind != "Group":
            continue
        partition = TopicPartition(lane.name, 0)
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        end = consumer.end_offsets([partition])[partition]
        came_s = time.monotonic()
        while consumer.position(partition) < end and time.monotonic() - came_s < READ_S:
            begin_ns = run.now_ns()
            for record in consumer.poll(5_000).get(partition, ()):
                came_s = time.monotonic()
                run.note(
                    "read", begin_ns, client="log", topic=lane.name, value=record.value.decode(),
                    position=str(record.offset), time_ms=record.timestamp,
                )  # fmt: skip
    run.close("log", consumer.close)

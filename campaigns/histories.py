"""Random work of real clients under faults, judged by what the clients saw.

    python campaigns/histories.py [--minutes 10] [--faults kill,pause] [--seed 1] [--mutant NAME]
    python campaigns/histories.py --service-url pulsar://HOST:6650 --http-url http://HOST:8080

Official Python clients of Pulsar and kafka-python publish to a topic for each lane (`LANES`), and
consume, seek and acknowledge, while the broker is killed, paused, filled and moved in time
(`FAULTS`). Each step goes into a history. At the end every topic is read from its first message,
and `pulsemark.testing.histories` finds what cannot have happened.

With `--service-url` the same work is done on another broker, a real Pulsar for example, without
faults. `--mutant` runs a broker with a fault of its own (`mutants.py`), which must be found;
`--all-mutants` runs each of them until it is found, for at most the minutes. Prints a table and the
first anomalies, and keeps the history in `--out`. Exit code 1 for an anomaly, or for a mutant that
was not found.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

import pulsar
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from kafka.errors import KafkaError
from mutants import MUTANTS

from pulsemark.client import AdminClient
from pulsemark.testing import BrokerProcess
from pulsemark.testing.histories import History, Step, check, table

#: How long a consumer waits at the end until it believes that there is no more.
DRAINED_S = 4.0
#: Pulsar may deliver a delayed message so much early.
TOLERANCE_NS = 1_100_000_000
DELAY_MS = 2_000
SHOWN = 3
#: A mutant's histories.
ROUND_S = 25.0


@dataclass(frozen=True, slots=True)
class Lane:
    """A topic, and who works on it."""

    name: str
    kind: str
    consumers: int = 1
    has_batches: bool = False
    has_delays: bool = False
    has_deduplication: bool = False
    rate: int = 100


LANES = (
    Lane("exclusive", "Exclusive", has_batches=True, rate=300),
    Lane("failover", "Failover", consumers=2),
    Lane("shared", "Shared", consumers=2, has_delays=True),
    Lane("keys", "Key_Shared", consumers=2),
    Lane("once", "Exclusive", has_deduplication=True),
    Lane("kafka", "Group", rate=100),
)
KINDS = {
    "Exclusive": pulsar.ConsumerType.Exclusive,
    "Failover": pulsar.ConsumerType.Failover,
    "Shared": pulsar.ConsumerType.Shared,
    "Key_Shared": pulsar.ConsumerType.KeyShared,
}


@dataclass
class Run:
    """What the clients of a run share."""

    service_url: str
    kafka_url: str
    random: Random
    has_moved_clock: bool
    stop: threading.Event = field(default_factory=threading.Event)
    #: All producers have ended.
    is_sent: threading.Event = field(default_factory=threading.Event)
    steps: list[Step] = field(default_factory=list)
    began_ns: int = field(default_factory=time.monotonic_ns)

    def now_ns(self) -> int:
        """Time since the begin."""
        return time.monotonic_ns() - self.began_ns

    def note(self, what: str, begin_ns: int, **told: Any) -> None:
        """A client's step ends now."""
        self.steps.append(Step(what=what, begin_ns=begin_ns, end_ns=self.now_ns(), **told))

    def client(self) -> pulsar.Client:
        """A client with a connection of its own."""
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
        return pulsar.Client(self.service_url, logger=logger, operation_timeout_seconds=60)


def position_of(message_id: Any) -> str | None:
    """A message id as a history has it.

    None: the receipt of a message that was stored before, and sent again, names no place.
    """
    if message_id.ledger_id() < 0:
        return None
    batch = max(message_id.batch_index(), 0)
    return f"{message_id.ledger_id()}:{message_id.entry_id()}:{batch}"


def produce(run: Run, lane: Lane) -> None:
    """Publish until the end, with up to 50 messages unanswered."""
    client, name, room = run.client(), f"{lane.name}-producer", threading.Semaphore(50)
    producer = client.create_producer(
        lane.name,
        producer_name=name if lane.has_deduplication else None,
        batching_enabled=lane.has_batches,
        batching_max_publish_delay_ms=20,
        send_timeout_millis=0 if lane.has_deduplication else 60_000,
    )
    number = 0
    while not run.stop.wait(1 / lane.rate):
        room.acquire()
        value, key = f"{lane.name}/{number}", f"k{number % 7}"
        number += 1
        delay_ms = DELAY_MS if lane.has_delays and number % 5 == 0 else None
        begin_ns = run.now_ns()
        due_ns = None
        if delay_ms is not None and not run.has_moved_clock:
            due_ns = begin_ns + delay_ms * 1_000_000 - TOLERANCE_NS

        def done(
            result: Any, message_id: Any, sent: tuple[Any, ...] = (value, begin_ns, due_ns)
        ) -> None:
            is_stored = result == pulsar.Result.Ok
            ok = True if is_stored else False if result == pulsar.Result.ChecksumError else None
            run.note(
                "send", sent[1], client=name, topic=lane.name, value=sent[0], ok=ok, due_ns=sent[2],
                position=position_of(message_id) if is_stored else None,
                is_once=lane.has_deduplication,
            )  # fmt: skip
            room.release()

        producer.send_async(
            value.encode(), done, partition_key=key,
            deliver_after=None if delay_ms is None else timedelta(milliseconds=delay_ms),
        )  # fmt: skip
    producer.flush()
    client.close()


def consume(run: Run, lane: Lane, number: int, ready: threading.Barrier) -> None:
    """Receive and acknowledge, until there is no more at the end."""
    client, name = run.client(), f"{lane.name}-consumer-{number}"
    about: dict[str, Any] = {
        "client": name,
        "topic": lane.name,
        "subscription": "s",
        "kind": lane.kind,
    }
    begin_ns = run.now_ns()
    consumer = client.subscribe(lane.name, "s", KINDS[lane.kind], consumer_name=name)
    run.note("subscribe", begin_ns, **about)
    ready.wait()
    silent_since_s = time.monotonic()
    while True:
        begin_ns = run.now_ns()
        try:
            message = consumer.receive(500)
        except pulsar.Timeout:
            if not run.is_sent.is_set():
                silent_since_s = time.monotonic()
            elif time.monotonic() - silent_since_s > DRAINED_S:
                break
            continue
        told = {
            **about, "value": message.data().decode(), "key": message.partition_key(),
            "position": position_of(message.message_id()),
        }  # fmt: skip
        run.note("receive", begin_ns, **told)
        silent_since_s = time.monotonic()
        begin_ns = run.now_ns()
        consumer.acknowledge(message)
        run.note("acknowledge", begin_ns, ok=None, **told)
    run.note("drained", begin_ns, **about)
    client.close()


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


def produce_to_kafka(run: Run, lane: Lane) -> None:
    """Publish with kafka-python's idempotent producer until the end."""
    producer = KafkaProducer(bootstrap_servers=run.kafka_url, delivery_timeout_ms=90_000)
    number = 0
    while not run.stop.wait(1 / lane.rate):
        value, begin_ns = f"{lane.name}/{number}", run.now_ns()
        number += 1

        about = {"client": f"{lane.name}-producer", "topic": lane.name, "value": value}
        note = partial(run.note, "send", begin_ns, is_once=True, **about)

        def sent(told: Any, note: Callable[..., None] = note) -> None:
            note(position=str(told.offset))

        def failed(_: BaseException, note: Callable[..., None] = note) -> None:
            note(ok=None)

        try:
            producer.send(lane.name, value.encode()).add_callback(sent).add_errback(failed)
        except KafkaError as error:
            failed(error)
            producer.close(timeout=1)
            producer = KafkaProducer(bootstrap_servers=run.kafka_url, delivery_timeout_ms=90_000)
    producer.flush(timeout=60)
    producer.close(timeout=10)


def consume_from_kafka(run: Run, lane: Lane, number: int, ready: threading.Barrier) -> None:
    """Poll in a group that commits by itself, until there is no more at the end."""
    name = f"{lane.name}-consumer-{number}"
    about: dict[str, Any] = {
        "client": name,
        "topic": lane.name,
        "subscription": "s",
        "kind": lane.kind,
    }
    consumer = KafkaConsumer(
        lane.name, bootstrap_servers=run.kafka_url, group_id="s", auto_offset_reset="earliest",
        auto_commit_interval_ms=500,
    )  # fmt: skip
    consumer.poll(2_000)
    run.note("subscribe", 0, **about)
    ready.wait()
    silent_since_s, begin_ns = time.monotonic(), run.now_ns()
    while not run.is_sent.is_set() or time.monotonic() - silent_since_s < 2 * DRAINED_S:
        begin_ns = run.now_ns()
        if not run.is_sent.is_set():
            silent_since_s = time.monotonic()
        for records in consumer.poll(500).values():
            silent_since_s = time.monotonic()
            for record in records:
                value, position = record.value.decode(), str(record.offset)
                run.note("receive", begin_ns, value=value, position=position, **about)
    run.note("drained", begin_ns, **about)
    consumer.close()


# -- faults -------------------------------------------------------------------------------------


def _kill(broker: BrokerProcess, _: Random) -> None:
    broker.kill()
    broker.start()


def _term(broker: BrokerProcess, _: Random) -> None:
    broker.restart()


def _pause(broker: BrokerProcess, random: Random) -> None:
    os.kill(broker.pid, signal.SIGSTOP)
    time.sleep(random.uniform(0.5, 4))
    os.kill(broker.pid, signal.SIGCONT)


def _drop(broker: BrokerProcess, _: Random) -> None:
    broker.faults.drop_connections()


def _disk(broker: BrokerProcess, random: Random) -> None:
    with broker.faults.full_disk():
        time.sleep(random.uniform(0.3, 1.5))


def _receipts(broker: BrokerProcess, _: Random) -> None:
    with broker.faults.losing_receipts(times=5):
        time.sleep(0.5)


def _refusals(broker: BrokerProcess, _: Random) -> None:
    with broker.faults.failing_sends(times=5):
        time.sleep(0.5)


def _answers(broker: BrokerProcess, _: Random) -> None:
    with broker.faults.losing_kafka_answers("Produce", times=2):
        time.sleep(0.5)


def _clock(broker: BrokerProcess, random: Random) -> None:
    broker.clock.advance(seconds=random.choice((-86_400, -30, -1, 1, 30, 86_400)))


FAULTS: dict[str, Callable[[BrokerProcess, Random], None]] = {
    "kill": _kill,
    "term": _term,
    "pause": _pause,
    "drop": _drop,
    "disk": _disk,
    "receipts": _receipts,
    "refusals": _refusals,
    "answers": _answers,
    "clock": _clock,
}


def disturb(run: Run, broker: BrokerProcess, faults: list[str], until_s: float) -> None:
    """Make one fault after the other."""
    while time.monotonic() < until_s:
        time.sleep(run.random.uniform(2, 5))
        name, begin_ns = run.random.choice(faults), run.now_ns()
        FAULTS[name](broker, run.random)
        run.note("fault", begin_ns, client="faults", value=name)


# -- a run --------------------------------------------------------------------------------------


def read_logs(run: Run, broker: BrokerProcess | None) -> None:
    """Read every topic from its first message to its last."""
    client = run.client()
    for lane in LANES:
        if lane.kind == "Group":
            continue
        told: dict[str | None, tuple[int | None, int | None]] = {}
        for each in broker.messages(lane.name) if broker is not None else ():
            place = f"{each.position.ledger_id}:{each.position.entry_id}"
            told[f"{place}:{max(each.message.batch_index, 0)}"] = each.index, each.broker_time_ms
        reader = client.create_reader(lane.name, pulsar.MessageId.earliest)
        while reader.has_message_available():
            begin_ns = run.now_ns()
            message = reader.read_next(30_000)
            position = position_of(message.message_id())
            index, time_ms = told.get(position, (None, None))
            run.note(
                "read", begin_ns, client="log", topic=lane.name, value=message.data().decode(),
                position=position, index=index, time_ms=time_ms, key=message.partition_key(),
            )  # fmt: skip
        reader.close()
    client.close()


def read_kafka_logs(run: Run) -> None:
    """The same with kafka-python."""
    consumer = KafkaConsumer(bootstrap_servers=run.kafka_url, enable_auto_commit=False)
    for lane in LANES:
        if lane.kind != "Group":
            continue
        partition = TopicPartition(lane.name, 0)
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        end = consumer.end_offsets([partition])[partition]
        while consumer.position(partition) < end:
            begin_ns = run.now_ns()
            for record in consumer.poll(5_000).get(partition, ()):
                run.note(
                    "read", begin_ns, client="log", topic=lane.name, value=record.value.decode(),
                    position=str(record.offset), time_ms=record.timestamp,
                )  # fmt: skip
    consumer.close()


def prepare(run: Run, admin: AdminClient) -> None:
    """Make the topics, and give them their policies."""
    for lane in LANES:
        if lane.kind == "Group":
            if run.kafka_url:
                kafka = KafkaAdminClient(bootstrap_servers=run.kafka_url)
                settings = {"message.timestamp.type": "LogAppendTime"}
                kafka.create_topics([NewTopic(lane.name, 1, 1, topic_configs=settings)])
                kafka.close()
            continue
        admin.create_topic(lane.name)
        if lane.has_deduplication:
            path = f"persistent/public/default/{lane.name}/deduplicationEnabled"
            admin.request("POST", path, True)


def work(run: Run, disturbing: Callable[[], None]) -> None:
    """Let all clients work while the broker is disturbed; then let them come to an end."""
    lanes = [lane for lane in LANES if run.kafka_url or lane.kind != "Group"]
    ready = threading.Barrier(1 + sum(lane.consumers for lane in lanes))
    consumers = [
        _thread(consume_from_kafka if lane.kind == "Group" else consume, run, lane, number, ready)
        for lane in lanes
        for number in range(lane.consumers)
    ]
    ready.wait(120)
    producers = [
        _thread(produce_to_kafka if lane.kind == "Group" else produce, run, lane) for lane in lanes
    ]
    if not run.has_moved_clock:
        producers.append(_thread(seek, run, LANES[0]))
    disturbing()
    run.stop.set()
    _join(producers)
    run.is_sent.set()
    _join(consumers)


def _thread(target: Callable[..., None], *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=target, args=arguments, daemon=True)
    thread.start()
    return thread


def _join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(180)
        if thread.is_alive():
            raise SystemExit(f"a client did not come to its end: {thread}")


class MutantProcess(BrokerProcess):
    """A broker with a fault of its own."""

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(**options)
        self.program = (sys.executable, str(Path(__file__).parent / "mutants.py"), name)


@contextmanager
def broker_of(mutant: str | None) -> Iterator[BrokerProcess]:
    """The process of the broker that is judged."""
    options: dict[str, Any] = {"kafka": True, "test_controls": True}
    with BrokerProcess(**options) if mutant is None else MutantProcess(mutant, **options) as broker:
        yield broker


def history_of(arguments: argparse.Namespace, mutant: str | None, seconds: float) -> History:
    """Work for some time, and return what was seen."""
    faults = [] if arguments.service_url else arguments.faults
    with ExitStack() as stack:
        if arguments.service_url:
            broker, urls = None, (arguments.service_url, arguments.kafka_url)
            admin = AdminClient(arguments.http_url)
        else:
            broker = stack.enter_context(broker_of(mutant))
            urls, admin = (broker.service_url, broker.kafka_url), broker.admin
        run = Run(*urls, Random(arguments.seed), has_moved_clock="clock" in faults)
        prepare(run, admin)
        until_s = time.monotonic() + seconds
        if broker is None or not faults:
            work(run, lambda: time.sleep(seconds))
        else:
            work(run, lambda: disturb(run, broker, faults, until_s))
        read_logs(run, broker)
        if run.kafka_url:
            read_kafka_logs(run)
    return History(run.steps)


def judge(arguments: argparse.Namespace, mutant: str | None, seconds: float) -> bool:
    """Make a history, print what is wrong in it; whether something is."""
    history = history_of(arguments, mutant, seconds)
    for topic in history.topics:
        if not any(step.ok for step in history.of(topic, "send")):
            raise SystemExit(f"{topic}: no message was acknowledged, so nothing was judged")
    found = check(history)
    path = arguments.out / f"{mutant or 'history'}-{arguments.seed}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    history.save(path)
    print(f"\n{mutant or 'The broker'}: {path}\n")
    print("\n".join(table(history, found)))
    for anomaly in found[:SHOWN]:
        print(f"\n{anomaly}")
    return bool(found)


def main() -> int:
    """Parse the arguments, work, judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument(
        "--faults",
        type=lambda text: text.split(","),
        default=[name for name in FAULTS if name != "clock"],
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("build/histories"))
    parser.add_argument("--mutant", choices=MUTANTS)
    parser.add_argument("--skip", nargs="*", default=[], choices=MUTANTS, help="of --all-mutants")
    parser.add_argument("--all-mutants", action="store_true")
    parser.add_argument("--service-url", help="of another broker, which is not disturbed")
    parser.add_argument("--http-url", help="its admin interface")
    parser.add_argument("--kafka-url", default="", help="its port for Kafka's clients, if any")
    arguments = parser.parse_args()
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    unknown = set(arguments.faults) - set(FAULTS)
    if unknown:
        parser.error(f"--faults: there is no {', '.join(unknown)}; there are {', '.join(FAULTS)}")
    if arguments.service_url and not urlsplit(arguments.http_url or "").netloc:
        parser.error("--service-url needs --http-url")
    seconds = 60 * arguments.minutes
    if not arguments.all_mutants:
        is_wrong = judge(arguments, arguments.mutant, seconds)
        return int(is_wrong is (arguments.mutant is None))
    missed = [
        name
        for name in MUTANTS
        if name not in arguments.skip and not finds(arguments, name, seconds)
    ]
    print(f"\n{len(MUTANTS) - len(missed)} of {len(MUTANTS)} mutants found; missed: {missed}")
    return int(bool(missed))


def finds(arguments: argparse.Namespace, mutant: str, seconds: float) -> bool:
    """Make short histories of a mutant, with other seeds, until one shows it or time is over."""
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        if judge(arguments, mutant, ROUND_S):
            return True
        arguments.seed += 1
    return False


if __name__ == "__main__":
    sys.exit(main())

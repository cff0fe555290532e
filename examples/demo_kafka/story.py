"""The round: phases of KIP-31 on a canary topic, back, forward again, and a kill -9.

Four kinds of clients write to the topic `canary` in every phase, and four kinds read all of it from
the first message on, over every change of the format and over the kill. The topic `others` shows
that a change holds for one topic alone.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import kafka
import pulsar
from demo.broker import BrokerProcess
from demo.checks import CheckError

from pulsemark.testing.raw_kafka import RawKafka

from . import checks
from .clients import (
    KafkaPython,
    KafkaReader,
    Librdkafka,
    Producer,
    PulsarProducer,
    PulsarReader,
    Reader,
)

CANARY, OTHERS = "canary", "others"
OLD, MIDDLE, NEW = "0.9.0", "0.10.0", "3.0"
MAGIC = {OLD: 0, MIDDLE: 1, NEW: 2}
KILLED = "kill -9"
#: What each phase is called, the canary's format in it, and who sets it.
PHASES = (
    ("phase 1: format 0", OLD, None),
    ("phase 2 on the canary: format 1", MIDDLE, "pulsemark policies"),
    ("back to format 0", OLD, "AlterConfigs"),
    ("forward again: format 1", MIDDLE, "AlterConfigs"),
    ("format 2", NEW, "pulsemark policies"),
)


class KafkaRound:
    """Runs the round; each failed check raises CheckError."""

    def __init__(self, folder: Path, messages: int) -> None:
        self._broker = BrokerProcess(folder / "data", kafka=True)
        self._client_log = folder / "client.log"
        self._each = max(messages // (len(PHASES) + 1) // 4, 1)
        self._acknowledged: dict[bytes, int | None] = {}
        self._lock = threading.Lock()
        self._marks: list[int] = []

    def run(self) -> None:
        """All of it."""
        with self._broker as broker:
            print(
                f"broker: Pulsar's clients at {broker.service_url}, Kafka's at {broker.kafka_url}"
            )
            self._create_topics()
            self._open_clients()
            for name, version, door in PHASES:
                if door is not None:
                    self._set_format(version, door)
                self._write(name)
                self._check(name, version)
            self._kill_while_all_write()
            self._check(KILLED, NEW)
            self._final_checks()
            clients: list[Producer | Reader] = [*self._producers, *self._all_readers]
            for client in clients:
                client.close()
            self._pulsar.close()
            if broker.stop():
                raise CheckError("the broker did not stop in an orderly way")

    # -- the clients ----------------------------------------------------------------------------

    def _create_topics(self) -> None:
        admin = kafka.KafkaAdminClient(bootstrap_servers=self._broker.kafka_url)
        settings = {"message.format.version": OLD}
        admin.create_topics(
            [kafka.admin.NewTopic(name, 1, 1, topic_configs=settings) for name in (CANARY, OTHERS)]
        )
        admin.close()

    def _open_clients(self) -> None:
        url = self._broker.kafka_url
        quiet = pulsar.FileLogger(pulsar.LoggerLevel.Error, str(self._client_log))
        self._pulsar = pulsar.Client(self._broker.service_url, logger=quiet)
        self._producers: list[Producer] = [
            KafkaPython(url, CANARY, "gzip", (0, 9)),
            KafkaPython(url, CANARY, None, (0, 10, 1)),
            Librdkafka(url, CANARY, "gzip"),
            PulsarProducer(self._pulsar, CANARY),
        ]
        versions = ((0, 9), (0, 10, 1), None)
        self._readers = [KafkaReader(url, CANARY, version) for version in versions]
        self._pulsar_reader = PulsarReader(self._pulsar, CANARY)
        self._all_readers: list[Reader] = [*self._readers, self._pulsar_reader]

    def _note_acknowledged(self, payload: bytes, offset: int | None) -> None:
        with self._lock:
            self._acknowledged[payload] = offset

    # -- writing --------------------------------------------------------------------------------

    def _writers(self, phase: str) -> list[threading.Thread]:
        """Threads of all producers at once, started."""
        threads = []
        for producer in self._producers:
            payloads = [
                f"{phase}/{producer.name}/{number}".encode() for number in range(self._each)
            ]
            arguments = (payloads, self._note_acknowledged)
            threads.append(threading.Thread(target=producer.send, args=arguments, daemon=True))
            threads[-1].start()
        return threads

    def _write(self, phase: str) -> None:
        _join(self._writers(phase))
        if len(self._of(phase)) != len(self._producers) * self._each:
            raise CheckError(f"{phase}: {len(self._of(phase))} messages were acknowledged")

    def _kill_while_all_write(self) -> None:
        before = len(self._acknowledged)
        threads = self._writers(KILLED)
        until_s = time.monotonic() + 20
        while len(self._acknowledged) == before and time.monotonic() < until_s:
            time.sleep(0.001)
        self._broker.kill()
        count = len(self._acknowledged) - before
        self._broker.start()
        # The first Produce or Fetch after the start has begun the next leader epoch.
        self._marks += _marks(self._broker, CANARY)
        _join(threads)
        print(
            f"kill -9 after {count:,} of {len(self._acknowledged) - before:,} were acknowledged; "
            f"serving again after {self._broker.start_ms:,.0f} ms"
        )

    def _set_format(self, version: str, door: str) -> None:
        setting = {"message.format.version": version}
        if door == "AlterConfigs":
            admin = kafka.KafkaAdminClient(bootstrap_servers=self._broker.kafka_url)
            admin.alter_configs([kafka.admin.ConfigResource("TOPIC", CANARY, setting)])
            admin.close()
            return
        subprocess.run(
            [sys.executable, "-m", "pulsemark", "policies", "set", CANARY, "entryFormat",
             "--setting", f"message.format.version={version}",
             "--admin-url", self._broker.http_url],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip

    # -- checking -------------------------------------------------------------------------------

    def _of(self, phase: str) -> dict[bytes, int | None]:
        with self._lock:
            known = self._acknowledged.items()
            return {p: offset for p, offset in known if p.startswith(f"{phase}/".encode())}

    def _check(self, phase: str, version: str) -> None:
        """All readers get what was written; Kafka's sets are in the format of the topic."""
        written = list(self._of(phase))
        for reader in self._all_readers:
            reader.read(written)
        with RawKafka.from_url(self._broker.kafka_url) as raw:
            for payload, offset in self._of(phase).items():
                if offset is not None and payload.endswith(b"/0"):
                    magic = raw.fetch(CANARY, offset).records[16]
                    checks.stored_format_is(CANARY, offset, magic, MAGIC[version])
        other = KafkaPython(self._broker.kafka_url, OTHERS, "gzip")
        other.send([phase.encode()], self._note_acknowledged_other)
        other.close()
        print(f"{phase:<34} {len(written):>6,} messages, read by 3 Kafka consumers and Pulsar's")

    def _note_acknowledged_other(self, payload: bytes, offset: int | None) -> None:
        """`others` stays in format 0, whatever the canary's format is."""
        with RawKafka.from_url(self._broker.kafka_url) as raw:
            magic = raw.fetch(OTHERS, offset or 0).records[16]
        checks.stored_format_is(OTHERS, offset or 0, magic, MAGIC[OLD])

    def _final_checks(self) -> None:
        newest = self._readers[-1]
        for reader in self._readers:
            checks.offsets_are_unbroken(reader.name, reader.rows, self._marks)
            checks.readers_agree(reader.name, reader.rows, newest.name, newest.rows)
        rows = newest.rows
        # Pulsar's reader shows no offsets: its payloads are compared in their order.
        by_place = list(enumerate(payload for _, payload in rows))
        of_pulsar = list(enumerate(self._pulsar_reader.payloads))
        checks.readers_agree(self._pulsar_reader.name, of_pulsar, newest.name, by_place)
        checks.acknowledged_is_there(self._acknowledged, rows)
        doubled = checks.nothing_is_doubled(rows, KILLED)
        print(
            f"\n{len(rows):,} messages; offsets unbroken but for {len(self._marks)} mark of a "
            f"leader epoch; {doubled} were sent again by clients over the kill"
        )


def _marks(broker: BrokerProcess, topic: str) -> list[int]:
    """The offsets of the control batches of a partition, which mark leader epochs."""
    found, offset = [], 0
    with RawKafka.from_url(broker.kafka_url) as raw:
        while data := raw.fetch(topic, offset, max_bytes=1 << 24).records:
            while len(data) > 61:
                base, size = int.from_bytes(data[:8], "big"), 12 + int.from_bytes(data[8:12], "big")
                is_new = data[16] == 2
                if is_new and data[22] & 0x20:
                    found.append(base)
                offset = base + 1 + (int.from_bytes(data[23:27], "big") if is_new else 0)
                data = data[size:]
    return found


def _join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(60)
        if thread.is_alive():
            raise CheckError("a producer did not end within 60 s")

"""Count words with Kafka Streams, exactly once, while it and the broker are killed.

    python compat/check_kafka_streams.py [--versions 3.9.2 4.3.1] [--kills 6] [--seed N]

Runs `kafka_clients/java/WordCount.java` (``exactly_once_v2``) against a broker's process, sends
lines, and kills (SIGKILL) Streams, the broker or both, again and again. At the end each word's
counts, as a committed reader finds them, must be 1, 2, 3 ... up to how often it was sent: each line
counts once, and no count was lost or sent twice.

Needs Java and Maven; the jars come from Maven Central into ``~/.cache/pulsemark-kafka-clients``.
Exit code 1 if a count is wrong, 2 without Java or the jars.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from pulsemark.testing import BrokerProcess

sys.path.insert(0, str(Path(__file__).parent))
from kafka_clients.sources import HERE, MissingError, jars

WORDS = ["ledger", "entry", "index", "stamp", "cursor", "segment", "journal", "tombstone", "batch"]
LINES, PARTITIONS, LIMIT_S = 6_000, 3, 600.0
LINES_TOPIC, COUNTS_TOPIC = "lines", "word-counts"


def main() -> int:
    """Run it with each version of Kafka Streams."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--versions", nargs="*", default=["3.9.2", "4.3.1"])
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    wrong = 0
    for version in args.versions:
        try:
            class_path = jars(version, streams=True)
        except MissingError as reason:
            print(f"Kafka Streams {version}: {reason}")
            return 2
        with tempfile.TemporaryDirectory() as folder, BrokerProcess(kafka=True) as broker:
            run = Run(broker, class_path, Path(folder), random.Random(args.seed))
            problems = run.count(args.kills)
        print(*problems, sep="\n")
        print(f"Kafka Streams {version}: {args.kills} kills, {len(problems)} words counted wrong")
        wrong += len(problems)
    return int(bool(wrong))


class Run:
    """One version of Kafka Streams and a broker."""

    def __init__(
        self, broker: BrokerProcess, class_path: str, folder: Path, chance: random.Random
    ) -> None:
        self._broker = broker
        self._class_path = class_path
        self._folder = folder
        self._chance = chance
        self._to: dict[str, str | int | float | bool] = {
            "bootstrap.servers": broker.kafka_url,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
        self._sent: Counter[str] = Counter()
        self._deadline_s = time.monotonic() + LIMIT_S

    def count(self, kills: int) -> list[str]:
        """Send lines, kill, and say which words' counts are wrong."""
        topics = [NewTopic(LINES_TOPIC, PARTITIONS, 1), NewTopic(COUNTS_TOPIC, PARTITIONS, 1)]
        admin = AdminClient(self._to)
        for made in admin.create_topics(topics).values():
            made.result(30)
        producer = Producer({**self._to, "enable.idempotence": True})
        streams = self._start()
        try:
            for kill in range(kills):
                done = self._committed()
                self._send(producer, LINES // kills)
                # It works on these now.
                self._until(done + 1)
                time.sleep(self._chance.random() / 2)
                what = ("Streams", "the broker", "both")[kill % 3]
                if what != "the broker":
                    streams.kill()
                    streams.wait()
                if what != "Streams":
                    self._broker.kill()
                    self._broker.start()
                if what != "the broker":
                    streams = self._start()
                print(f"{what} was killed; {self._committed()} of {self._sent.total()} are counted")
            producer.flush(60)
            self._until(self._sent.total())
        finally:
            streams.kill()
            streams.wait()
        return self._problems()

    def _start(self) -> subprocess.Popen[bytes]:
        program = str(HERE / "java" / "WordCount.java")
        args = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", self._class_path]
        state = str(self._folder / "state")
        with (self._folder / "log").open("ab") as log:
            return subprocess.Popen(
                ["java", *args, program, self._broker.kafka_url, state], stdout=log, stderr=log
            )

    def _send(self, producer: Producer, count: int) -> None:
        for _ in range(count):
            words = self._chance.choices(WORDS, k=self._chance.randrange(1, 6))
            self._sent.update(words)
            producer.produce(LINES_TOPIC, " ".join(words).encode())
        producer.flush(60)

    def _until(self, count: int) -> None:
        """Wait until so many counts are committed."""
        while self._committed() < count:
            if time.monotonic() > self._deadline_s:
                log = (self._folder / "log").read_text(errors="replace")
                raise TimeoutError(f"no more counts come; the last of Streams' log:\n{log[-2000:]}")
            time.sleep(0.2)

    def _committed(self) -> int:
        return sum(map(len, self._read().values()))

    def _read(self) -> dict[str, list[int]]:
        """The counts of each word that are committed."""
        consumer = Consumer(
            {
                **self._to, "group.id": "reader", "isolation.level": "read_committed",
                "enable.auto.commit": False, "enable.partition.eof": True,
            }
        )  # fmt: skip
        places = [TopicPartition(COUNTS_TOPIC, n, OFFSET_BEGINNING) for n in range(PARTITIONS)]
        consumer.assign(places)
        counts, ended = defaultdict[str, list[int]](list), 0
        while ended < PARTITIONS:
            message = consumer.poll(1.0)
            if message is None:
                continue
            if message.error() is not None:
                ended += 1
            else:
                word = (message.key() or b"").decode()
                counts[word].append(int(message.value() or b""))
        consumer.close()
        return counts

    def _problems(self) -> list[str]:
        found = self._read()
        return [
            f"{word}: sent {count} times, counts {found[word]}"
            for word, count in self._sent.items()
            if found[word] != list(range(1, count + 1))
        ]


if __name__ == "__main__":
    sys.exit(main())

"""The clients of the Kafka round: producers that say where a message went, and readers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import confluent_kafka
import kafka
import pulsar
from demo.checks import CheckError

WAIT_S = 30
Acknowledged = Callable[[bytes, int | None], None]
"""Called with each acknowledged payload and its offset; Pulsar's clients give no offset."""


class Producer(Protocol):
    """Sends payloads, and tells which were acknowledged."""

    name: str

    def send(self, payloads: list[bytes], acknowledged: Acknowledged) -> None:
        """Send all, without waiting for each; returns when all are acknowledged or refused."""
        ...

    def close(self) -> None:
        """End."""
        ...


class Reader(Protocol):
    """Reads on from where it stopped."""

    name: str

    def read(self, payloads: list[bytes]) -> None:
        """Wait until it has got these payloads, too."""
        ...

    def close(self) -> None:
        """End."""
        ...


class KafkaPython:
    """kafka-python, as new as it is or in the manner of an old Kafka."""

    def __init__(self, url: str, topic: str, codec: str | None, version: Any = None) -> None:
        old = {} if version is None else {"api_version": version}
        self.name = f"kafka-python as of {'.'.join(map(str, version))}" if old else "kafka-python"
        self._topic = topic
        # Formats 0 and 1 have no place for the ids of idempotent producers.
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=url, compression_type=codec, enable_idempotence=False, linger_ms=20,
            retries=100, retry_backoff_ms=100, acks="all", **old,
        )  # fmt: skip

    def send(self, payloads: list[bytes], acknowledged: Acknowledged) -> None:
        """See `Producer`."""
        sent = [
            (payload, self._producer.send(self._topic, payload, key=b"k")) for payload in payloads
        ]
        for payload, future in sent:
            acknowledged(payload, future.get(WAIT_S).offset)

    def close(self) -> None:
        """See `Producer`."""
        self._producer.close(WAIT_S)


class Librdkafka:
    """confluent-kafka."""

    name = "librdkafka"

    def __init__(self, url: str, topic: str, codec: str) -> None:
        self._topic = topic
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": url, "compression.type": codec, "linger.ms": 20,
             "log_level": 0, "reconnect.backoff.max.ms": 500}
        )  # fmt: skip

    def send(self, payloads: list[bytes], acknowledged: Acknowledged) -> None:
        """See `Producer`."""

        def reported(error: Any, message: Any) -> None:
            if error is None:
                acknowledged(message.value(), message.offset())

        for payload in payloads:
            self._producer.produce(self._topic, payload, key=b"k", on_delivery=reported)
        self._producer.flush(WAIT_S)

    def close(self) -> None:
        """See `Producer`."""
        self._producer.flush(WAIT_S)


class PulsarProducer:
    """The official Pulsar client, in batches."""

    name = "Pulsar's client"

    def __init__(self, client: pulsar.Client, topic: str) -> None:
        self._producer = client.create_producer(
            f"{topic}-partition-0", block_if_queue_full=True, batching_max_publish_delay_ms=20
        )

    def send(self, payloads: list[bytes], acknowledged: Acknowledged) -> None:
        """See `Producer`."""

        def reported(payload: bytes) -> Callable[[Any, Any], None]:
            def answered(result: Any, _: Any) -> None:
                if result == pulsar.Result.Ok:
                    acknowledged(payload, None)

            return answered

        for payload in payloads:
            self._producer.send_async(payload, reported(payload), partition_key="k")
        self._producer.flush()

    def close(self) -> None:
        """See `Producer`."""
        self._producer.close()


class KafkaReader:
    """kafka-python's consumer, as new as it is or in the manner of an old Kafka."""

    def __init__(self, url: str, topic: str, version: Any = None) -> None:
        old = {} if version is None else {"api_version": version}
        self.name = f"a consumer as of {'.'.join(map(str, version))}" if old else "a new consumer"
        self.rows: list[tuple[int, bytes]] = []
        self._consumer = kafka.KafkaConsumer(
            bootstrap_servers=url, group_id=None, enable_auto_commit=False,
            auto_offset_reset="earliest", metadata_max_age_ms=1_000, **old,
        )  # fmt: skip
        partition = kafka.TopicPartition(topic, 0)
        self._consumer.assign([partition])
        self._consumer.seek(partition, 0)

    def read(self, payloads: list[bytes]) -> None:
        """See `Reader`."""
        missing = set(payloads) - {payload for _, payload in self.rows}
        until_s = time.monotonic() + WAIT_S
        while True:
            polled = self._consumer.poll(200)
            for message in (each for found in polled.values() for each in found):
                self.rows.append((message.offset, message.value))
                missing.discard(message.value)
            if not missing and not polled:
                return
            if time.monotonic() > until_s:
                raise CheckError(f"{self.name} misses {len(missing)} messages after {WAIT_S} s")

    def close(self) -> None:
        """See `Reader`."""
        self._consumer.close()


class PulsarReader:
    """The official Pulsar client's reader, which shows no offsets: only payloads are kept.

    A reader that connects again gets the batch before its first unread message once more, as from
    Apache Pulsar: the client asks for it without a place in the batch. So ids that came already
    are passed over.
    """

    name = "Pulsar's reader"

    def __init__(self, client: pulsar.Client, topic: str) -> None:
        self.payloads: list[bytes] = []
        self._ids: set[bytes] = set()
        self._reader = client.create_reader(f"{topic}-partition-0", pulsar.MessageId.earliest)

    def read(self, payloads: list[bytes]) -> None:
        """See `Reader`."""
        missing = set(payloads) - set(self.payloads)
        until_s = time.monotonic() + WAIT_S
        while missing or self._reader.has_message_available():
            if time.monotonic() > until_s:
                raise CheckError(f"{self.name} misses {len(missing)} messages after {WAIT_S} s")
            try:
                message = self._reader.read_next(500)
            except pulsar.Timeout:
                continue
            message_id = message.message_id().serialize()
            if message_id not in self._ids:
                self._ids.add(message_id)
                self.payloads.append(message.data())
                missing.discard(message.data())

    def close(self) -> None:
        """See `Reader`."""
        self._reader.close()

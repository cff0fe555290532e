"""Make tests/kafka/golden again: record sets of clients, and what a real Kafka makes of them.

    tools/make_kafka_golden.py HOST:PORT OUTPUT.json

needs an Apache Kafka 2.8.2 there (the last line that still converts formats), with
`log.message.format.version` 2.8, and kafka-python with its codecs: kafka-python==3.0.12, lz4,
python-snappy, xxhash, zstandard, confluent-kafka==2.16.1. Each case is a set as a client builds it,
produced to a topic of each format; the file has it beside what Kafka answers to a fetch of magic 0,
1 and 2. Then come sets of librdkafka, read back from a topic of their own format.

Nothing of pulsemark is used, so that its faults cannot get into the file.
"""

from __future__ import annotations

import base64
import itertools
import json
import socket
import struct
import sys
import time
from collections.abc import Iterator
from typing import Any

from kafka.record.memory_records import MemoryRecordsBuilder

FORMATS = {0: "0.9.0", 1: "0.10.2", 2: "2.8"}
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
FETCH_VERSIONS = {0: 1, 1: 3, 2: 10}
PRODUCE_VERSIONS = {0: 1, 1: 2, 2: 7}
LIBRDKAFKA = {0: "0.9.0", 1: "0.10.1", 2: "1.0.0"}
TIME_MS = 1_700_000_000_000

Row = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
MIXED: list[Row] = [
    (TIME_MS, b"key-0", b"value", []),
    (TIME_MS + 70, None, b"no key", [("name", b"\x00\xff"), ("null", None)]),
    (TIME_MS - 5, b"deleted", None, []),
    (TIME_MS + 2, b"", b"", [("", b"")]),
    (TIME_MS + 9, b"k" * 70, b"long " * 40, [("again", b"1"), ("again", b"2")]),
]
MANY: list[Row] = [(TIME_MS + n * 3, b"%d" % (n % 7), b"v%d" % n, []) for n in range(70)]
ONE: list[Row] = [(TIME_MS, b"k", b"v", [])]


class Connection:
    """Requests to one broker, byte by byte."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), 20)
        self._socket.settimeout(20)

    def ask(self, api: int, version: int, body: bytes) -> bytes:
        """The body of the answer."""
        head = struct.pack(">hhih", api, version, 7, 6) + b"golden"
        self._socket.sendall(struct.pack(">i", len(head) + len(body)) + head + body)
        (size,) = struct.unpack(">i", self._read(4))
        return self._read(size)[4:]

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            if not part:
                raise ConnectionError("the broker closed the connection")
            data += part
        return data


def text(value: str) -> bytes:
    """A string as Kafka writes it."""
    return struct.pack(">h", len(value)) + value.encode()


def create(broker: Connection, topic: str, magic: int, **configs: str) -> None:
    """A topic of one partition."""
    configs |= {"message.format.version": FORMATS[magic]}
    body = struct.pack(">i", 1) + text(topic) + struct.pack(">ihii", 1, 1, 0, len(configs))
    body += b"".join(text(name.replace("_", ".")) + text(value) for name, value in configs.items())
    broker.ask(19, 2, body + struct.pack(">ib", 20_000, 0))


def produce(broker: Connection, topic: str, version: int, records: bytes) -> tuple[int, int]:
    """Error code and base offset."""
    body = b"\xff\xff" if version >= 3 else b""
    body += (
        struct.pack(">hii", -1, 20_000, 1) + text(topic) + struct.pack(">iii", 1, 0, len(records))
    )
    answer = broker.ask(0, version, body + records)
    at = 4 + 2 + len(topic) + 4
    _, code, offset = struct.unpack_from(">ihq", answer, at)
    return code, offset


def fetch(broker: Connection, topic: str, version: int, offset: int) -> bytes:
    """The record set that the broker answers with."""
    body = struct.pack(">iii", -1, 500, 1)
    body += struct.pack(">i", 1 << 24) if version >= 3 else b""
    body += struct.pack(">bii", 0, 0, -1) if version >= 7 else b""
    body += struct.pack(">i", 1) + text(topic) + struct.pack(">ii", 1, 0)
    body += struct.pack(">i", -1) if version >= 9 else b""
    body += struct.pack(">q", offset) + (struct.pack(">q", 0) if version >= 5 else b"")
    body += struct.pack(">i", 1 << 24) + (struct.pack(">i", 0) if version >= 7 else b"")
    answer = broker.ask(1, version, body)
    at = 4 + (6 if version >= 7 else 0) + 4 + 2 + len(topic) + 4
    _, code = struct.unpack_from(">ih", answer, at)
    if code:
        raise RuntimeError(f"{topic}: a fetch of version {version} gets error {code}")
    at += 6 + 8
    if version >= 4:
        at += 16
        (aborted,) = struct.unpack_from(">i", answer, at)
        at += 4 + 16 * max(0, aborted)
    (size,) = struct.unpack_from(">i", answer, at)
    return answer[at + 4 : at + 4 + size]


def set_of(magic: int, codec: str, rows: list[Row]) -> bytes:
    """The rows as kafka-python sends them."""
    builder = MemoryRecordsBuilder(magic, CODECS.index(codec), 1 << 24)
    for time_ms, key, value, headers in rows:
        builder.append(time_ms, key, value, headers if magic == 2 else None)
    builder.close()
    return bytes(builder.buffer())


def encoded(data: bytes) -> str:
    """Bytes in JSON."""
    return base64.b64encode(data).decode()


def conversions(broker: Connection) -> Iterator[dict[str, Any]]:
    """Each magic, with each codec, to each format."""
    cases = itertools.product(FORMATS, CODECS, FORMATS, {"mixed": MIXED, "many": MANY}.items())
    for magic, codec, stored, (name, rows) in cases:
        if codec == "zstd" and magic < 2:
            continue
        case = f"{name}-{magic}-{codec}-to-{stored}"
        topic = f"golden-{case}-{time.time_ns()}"
        create(broker, topic, stored)
        sent = set_of(magic, codec, rows)
        filler = set_of(magic, "none", ONE)
        settle(broker, topic, PRODUCE_VERSIONS[magic], filler)
        error, base = produce(broker, topic, PRODUCE_VERSIONS[magic], sent)
        fetched = {}
        for client, version in FETCH_VERSIONS.items():
            if not error and not (codec == "zstd" and client < 2):
                fetched[str(client)] = encoded(fetch(broker, topic, version, base))
        yield {
            "name": case, "magic": magic, "codec": codec, "stored": stored, "sent": encoded(sent),
            "error": error, "base": base, "fetched": fetched,
        }  # fmt: skip


def settle(broker: Connection, topic: str, version: int, filler: bytes) -> None:
    """Produce until the new topic answers, so that no case begins at offset 0."""
    for _ in range(100):
        if produce(broker, topic, version, filler)[0] == 0:
            return
        time.sleep(0.1)
    raise TimeoutError(topic)


def of_librdkafka(broker: Connection, bootstrap: str) -> Iterator[dict[str, Any]]:
    """Sets as librdkafka builds them, from topics of their own format."""
    from confluent_kafka import Producer

    for magic, codec in itertools.product(FORMATS, CODECS):
        if codec == "zstd" and magic < 2:
            continue
        topic = f"golden-rdkafka-{magic}-{codec}-{time.time_ns()}"
        create(broker, topic, magic)
        settle(broker, topic, PRODUCE_VERSIONS[magic], set_of(magic, "none", ONE))
        settings = {
            "bootstrap.servers": bootstrap,
            "compression.codec": codec,
            "linger.ms": 200,
            "log_level": 0,
        }
        if magic < 2:
            settings |= {
                "api.version.request": False, "broker.version.fallback": LIBRDKAFKA[magic]
            }  # fmt: skip
        producer = Producer(settings)
        for time_ms, key, value, headers in MIXED:
            options: dict[str, Any] = {"headers": headers} if magic == 2 else {}
            options |= {"timestamp": time_ms} if magic else {}
            producer.produce(topic, value, key, **options)
        producer.flush(20)
        stored = fetch(broker, topic, FETCH_VERSIONS[2], 1)
        yield {
            "name": topic.rpartition("-")[0],
            "magic": magic,
            "codec": codec,
            "stored": encoded(stored),
        }


def main(bootstrap: str, output: str) -> None:
    """Write the file."""
    broker = Connection(bootstrap)
    golden = {
        "kafka": "2.8.2",
        "rows": {
            name: [
                [t, *(None if b is None else encoded(b) for b in (k, v)),
                 [[n, None if b is None else encoded(b)] for n, b in headers]]
                for t, k, v, headers in rows
            ]
            for name, rows in {"mixed": MIXED, "many": MANY}.items()
        },
        "conversions": list(conversions(broker)),
        "librdkafka": list(of_librdkafka(broker, bootstrap)),
    }  # fmt: skip
    with open(output, "w") as file:  # noqa: PTH123 - nothing else is done with paths
        json.dump(golden, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

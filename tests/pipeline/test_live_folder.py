"""Reads of a folder while a broker writes to it, rolls, trims, and is killed and started again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pulsemark.ledger import TopicNotFoundError
from pulsemark.pipeline.errors import DataLossError
from pulsemark.pipeline.options import StreamOptions
from pulsemark.pipeline.stream import LedgerStreamReader

pytestmark = pytest.mark.timeout(240)

COLUMNS = ("__index", "__ledgerId", "__entryId", "__batchIndex", "value")
LIVES = 3
MESSAGES_PER_LIFE = 200
LIMIT_S = 60
SETTINGS = """
managedLedgerMaxSizePerLedgerMbytes=1
defaultRetentionTimeInMinutes=-1
defaultRetentionSizeInMB=-1
"""
PAYLOAD_BYTES = 8_000
Place = tuple[int, int, int]


class Broker:
    """A broker process on one port, which is killed by `kill -9`."""

    def __init__(self, folder: Path, port: int) -> None:
        conf = folder.parent / "broker.conf"
        conf.write_text(SETTINGS)
        command = [sys.executable, "-m", "pulsemark", "standalone", "--data-dir", str(folder)]
        command += ["--port", str(port), "--http-port", "0", "--json", "--config", str(conf)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url: str = json.loads(self.process.stdout.readline())["service_url"]

    def kill(self) -> None:
        """Kill it, and wait until it has ended."""
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=30)


class Record:
    """What the client sent, and where the broker said that it is."""

    def __init__(self) -> None:
        self.sent: set[bytes] = set()
        self.places: dict[Place, bytes] = {}
        self._lock = threading.Lock()

    def send(self, producer: Any, payload: bytes) -> None:
        """Send a message; its place is put down once it is acknowledged."""
        self.sent.add(payload)

        def acknowledged(result: Any, message_id: Any) -> None:
            if result == pulsar.Result.Ok:
                number = max(0, message_id.batch_index())
                with self._lock:
                    self.places[message_id.ledger_id(), message_id.entry_id(), number] = payload

        producer.send_async(payload, acknowledged)

    def acknowledged(self) -> dict[Place, bytes]:
        """What is acknowledged now."""
        with self._lock:
            return dict(self.places)


def place_of(row: dict[str, Any]) -> Place:
    """A row's message id; a message that is alone in its entry is number 0."""
    return row["__ledgerId"], row["__entryId"], max(0, row["__batchIndex"])


def load(record: Record, url: str, messages: int) -> None:
    """Messages by two producers, one with batches; the client reconnects to a new broker."""
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
    client = pulsar.Client(url, logger=logger)
    try:
        producers = [
            client.create_producer(
                "live", batching_enabled=batching, batching_max_publish_delay_ms=1
            )
            for batching in (True, False)
        ]
        for number in range(messages):
            record.send(producers[number % 7 == 0], b"%d-" % number + bytes(PAYLOAD_BYTES))
            if number % 20 == 0:
                time.sleep(0.01)
        for producer in producers:
            producer.flush()
    finally:
        client.close()


def in_the_background(record: Record, url: str, messages: int) -> threading.Thread:
    """The load, in a thread."""
    thread = threading.Thread(target=load, args=(record, url, messages))
    thread.start()
    return thread


def check(rows: list[dict[str, Any]], record: Record, before: dict[Place, bytes]) -> None:
    """A read has each message once, without a gap, and all that was acknowledged before it."""
    indexes = [row["__index"] for row in rows]
    assert indexes == list(range(indexes[0], indexes[0] + len(indexes))) if rows else not before
    found = {place_of(row): row["value"] for row in rows}
    assert set(found.values()) <= record.sent
    first = min(found, default=(0, 0, 0))
    assert {p: payload for p, payload in before.items() if p >= first}.items() <= found.items()


def test_a_read_is_a_consistent_prefix(tmp_path: Path, tools: Any) -> None:
    """Of a growing topic with rolls and kills: each read goes on where the one before ended, and a
    stream has each row once, the same as a read at the end.
    """
    folder, record, port = tmp_path / "data", Record(), 0
    previous: list[dict[str, Any]] = []
    streamed: list[dict[str, Any]] = []
    stream, offset, loading = None, {}, None
    for life in range(LIVES):
        broker = Broker(folder, port)
        port = int(broker.url.rpartition(":")[2])
        loading = loading or in_the_background(record, broker.url, LIVES * MESSAGES_PER_LIFE)
        wanted = (life + 1) * MESSAGES_PER_LIFE if life + 1 < LIVES else sys.maxsize
        deadline = time.monotonic() + LIMIT_S
        try:
            while loading.is_alive() and len(record.acknowledged()) < wanted:
                assert time.monotonic() < deadline, f"no end of the load after {LIMIT_S} s"
                before = record.acknowledged()
                try:
                    rows = tools.rows_of(folder, topic="live", columns=",".join(COLUMNS))
                except TopicNotFoundError:
                    assert not before
                    continue
                check(rows, record, before)
                assert rows[: len(previous)] == previous
                previous = rows
                if stream is None:
                    stream = stream_of(folder, tools)
                    offset = stream.initialOffset()
                offset = advance(stream, offset, streamed)
        finally:
            broker.kill()
    assert stream is not None
    assert loading is not None
    loading.join(LIMIT_S)
    assert not loading.is_alive()
    advance(stream, offset, streamed)
    stream.stop()
    rows = tools.rows_of(folder, topic="live", columns=",".join(COLUMNS))
    check(rows, record, record.acknowledged())
    assert len(record.acknowledged()) == LIVES * MESSAGES_PER_LIFE
    assert len({row["__ledgerId"] for row in rows}) > LIVES
    assert streamed == rows


def stream_of(folder: Path, tools: Any) -> LedgerStreamReader:
    """A stream of the topic from its first message on."""
    options = {"path": str(folder), "topic": "live", "startingOffsets": "earliest"}
    parsed = StreamOptions.parse({**options, "columns": ",".join(COLUMNS)})
    return LedgerStreamReader(parsed, tools.spark_schema(COLUMNS))


def advance(stream: LedgerStreamReader, offset: Any, rows: list[dict[str, Any]]) -> Any:
    """One micro-batch, added to the rows; returns its end."""
    end = stream.latestOffset(offset, ReadAllAvailable())
    for part in stream.partitions(offset, end):
        for batch in stream.read(part):
            rows += batch.to_pylist()
    return end


def test_a_read_beside_trimming_has_no_gap(folder: Any, tools: Any) -> None:
    """While old ledgers are dropped a read is whole from its first message on, or says that the
    topic was trimmed meanwhile; never does it leave out a message in its middle.
    """
    topic, done = folder.topic("live"), threading.Event()

    def write_and_trim() -> None:
        for number in range(150):
            for _ in range(4):
                topic.single(b"%d" % number)
            topic.ledger.roll()
            topic.single(b"first of the next ledger")
            if number % 3 == 2:
                topic.ledger.trim(topic.ledger.end_position)
        done.set()

    thread = threading.Thread(target=write_and_trim)
    thread.start()
    firsts: set[int] = set()
    try:
        while not done.is_set():
            try:
                rows = tools.rows_of(folder.path, topic="live", columns=",".join(COLUMNS))
            except TopicNotFoundError:
                continue
            except DataLossError as error:
                assert error.first_index is not None or error.end_index is not None
                continue
            written = {row["__index"]: row["value"] for row in list(topic.rows)}
            assert [row["__index"] for row in rows] == list(
                range(rows[0]["__index"], rows[0]["__index"] + len(rows)) if rows else []
            )
            # The newest message may be durable before the writer has put its row down.
            assert all(written[row["__index"]] == row["value"] for row in rows[:-1])
            firsts |= {row["__index"] for row in rows[:1]}
    finally:
        thread.join(LIMIT_S)
    assert not thread.is_alive(), f"the writer has not ended after {LIMIT_S} s"
    assert len(firsts) > 1

"""The demo's requests: read the whole topic, read prefixes over gRPC, search by both times."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pulsar

from pulsemark.finder import SeekClient

from .publish import TOPIC

RECEIVE_TIMEOUT_MS = 10_000
LOG_LEVEL = pulsar.LoggerLevel.Warn


@dataclass(frozen=True, slots=True)
class ReadBack:
    """The messages of an official reader, in order."""

    payloads: list[bytes]
    client_times_ms: list[int]


@dataclass(frozen=True, slots=True)
class Stamps:
    """The stamps in the entries' prefixes, in the order of the log."""

    indexes: list[tuple[int, int]]
    entry_times_ms: list[int]

    def message_times_ms(self) -> list[int]:
        """The broker time of each message: that of its entry."""
        return [
            time_ms
            for (first, last), time_ms in zip(self.indexes, self.entry_times_ms, strict=True)
            for _ in range(first, last + 1)
        ]


@contextmanager
def official_client(service_url: str, log_path: Path) -> Iterator[pulsar.Client]:
    """An official client, closed at the end; its log goes to a file."""
    client = pulsar.Client(service_url, logger=pulsar.FileLogger(LOG_LEVEL, str(log_path)))
    try:
        yield client
    finally:
        client.close()


def read_everything(client: pulsar.Client) -> ReadBack:
    """Every message of the topic, through an official reader from the beginning."""
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest, receiver_queue_size=5_000)
    payloads, times_ms = [], []
    while reader.has_message_available():
        message = reader.read_next(RECEIVE_TIMEOUT_MS)
        payloads.append(message.data())
        times_ms.append(message.publish_timestamp())
    reader.close()
    return ReadBack(payloads, times_ms)


def read_stamps(finder: SeekClient) -> Stamps:
    """Every entry's stamp, without the payloads."""
    indexes, times_ms = [], []
    for entry in finder.read_entries(TOPIC, prefixes_only=True):
        indexes.append((entry.first_index, entry.index))
        times_ms.append(entry.time_ms)
    return Stamps(indexes, times_ms)


def search_by_time(finder: SeekClient, moment_ms: int) -> tuple[int, float]:
    """The index of the first message at or after a moment, over gRPC, and the time in ms."""
    started = time.perf_counter()
    found = finder.by_time(TOPIC, moment_ms)
    return found.first_index, (time.perf_counter() - started) * 1_000


def seek_with_client(client: pulsar.Client, moment_ms: int) -> bytes | None:
    """The first payload an official reader gets after seeking to a moment; None at the end."""
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest, receiver_queue_size=10)
    try:
        reader.seek(moment_ms)
        if not reader.has_message_available():
            return None
        return bytes(reader.read_next(RECEIVE_TIMEOUT_MS).data())
    finally:
        reader.close()

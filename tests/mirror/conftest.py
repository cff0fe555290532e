"""Sources and targets for mirrors: data folders, brokers, and a mirror in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pulsemark.broker import BrokerThread
from pulsemark.ledger import Entry, EntryKind, FolderReader, LocalStore, Position, StoreOptions
from pulsemark.metadata import StamperChain, peek
from pulsemark.metadata.source_stamp import SourceStamp, source_stamp_of
from pulsemark.mirror import (
    MirrorRun,
    Options,
    Pace,
    RateLimit,
    Report,
    Selection,
    open_source,
    open_target,
)
from pulsemark.testing import RawClient, running_broker
from pulsemark.testing.raw_messages import batched_message, unbatched_message

TOPIC = "persistent://public/default/orders"
CLUSTER = "west"


@dataclass
class Mirrored:
    """What a run said and counted."""

    complete: bool
    report: Report
    lines: list[str] = field(default_factory=list)

    @property
    def entries(self) -> int:
        """Entries that this run mirrored."""
        return self.report.sum().entries


Mirror = Callable[..., Mirrored]


@pytest.fixture
def mirror() -> Mirror:
    """Mirror from one endpoint to another, in this process, until caught up."""

    def run(
        source: object,
        target: object,
        *topics: str,
        regex: bool = False,
        limit: RateLimit | None = None,
        once: bool = True,
        is_stopped: Callable[[], bool] = lambda: False,
        reconnect_s: float = 30.0,
        lines: list[str] | None = None,
        **options: Any,
    ) -> Mirrored:
        chosen = Options(**{"source_cluster": CLUSTER, **options})
        lines = [] if lines is None else lines
        report = Report(lines.append)
        selection = Selection(topics or (TOPIC,), is_regex=regex)
        complete = MirrorRun(
            open_source(str(source), chosen),
            open_target(str(target), chosen),
            selection,
            Pace(limit),
            report,
            once=once,
            is_stopped=is_stopped,
            reconnect_s=reconnect_s,
        ).run()
        return Mirrored(complete, report, lines)

    return run


@pytest.fixture
def source() -> Iterator[BrokerThread]:
    """A broker to mirror from, which shows index and time to those who ask."""
    with running_broker(exposing_broker_entry_metadata_to_client_enabled=True) as broker:
        yield broker


@pytest.fixture
def target() -> Iterator[BrokerThread]:
    """A broker that accepts mirrors from `CLUSTER`."""
    with running_broker(mirror_sources=(CLUSTER,)) as broker:
        yield broker


def message(number: int) -> bytes:
    """One message with a number."""
    return unbatched_message(b"order %d" % number, publish_time_ms=number, sequence_id=number)


def publish(broker: BrokerThread, numbers: range, topic: str = TOPIC) -> None:
    """Publish messages to a broker, some of them in batches of three."""
    with RawClient.from_url(broker.service_url) as client:
        producer = client.create_producer(topic)
        for number in numbers:
            if number % 5 == 0:
                producer.send_batch([b"a", b"b", b"c"], publish_time_ms=number)
            else:
                producer.send_raw(message(number))


def fill(
    folder: Path, bodies: list[tuple[bytes, int]], *, topic: str = TOPIC, **store: Any
) -> None:
    """Append entries, each with its number of messages, to a folder's topic."""
    with LocalStore.open(folder, options=StoreOptions(**store)) as opened:
        ledger = opened.open_topic(topic)
        ledger.stampers = StamperChain.from_names(["broker-time", "index"])
        for body, count in bodies:
            ledger.append(body, message_count=count).commit.wait()


def entries_of(folder: Path, topic: str = TOPIC) -> list[Entry]:
    """All entries of a folder's topic that are not control entries."""
    found: list[Entry] = []
    with FolderReader(folder) as reader:
        log = reader.log(topic)
        at = Position(0, 0)
        while entries := log.read(at):
            found += entries
            at = Position(entries[-1].position.ledger_id, entries[-1].position.entry_id + 1)
    return [entry for entry in found if entry.kind is EntryKind.DATA]


def bodies_of(folder: Path, topic: str = TOPIC) -> list[bytes]:
    """The producers' bytes of a folder's topic."""
    return [bytes(entry.body) for entry in entries_of(folder, topic)]


def stamps_of(folder: Path, topic: str = TOPIC) -> list[SourceStamp | None]:
    """The source's facts of a folder's entries."""
    return [source_stamp_of(peek(entry.prefix)) for entry in entries_of(folder, topic)]


def batch(*payloads: bytes) -> tuple[bytes, int]:
    """A batch, and how many messages it has."""
    return batched_message(payloads, publish_time_ms=1), len(payloads)

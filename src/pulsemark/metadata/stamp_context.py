"""The interface of a stamper, the facts about an entry that it gets, and the clock.

A stamper is shared by topics and threads and keeps no state. It gets all facts from one
`StampContext`. A plugin writes its fields into an empty message; docs/stamps.md has its attributes.

**The clock.** A stamp is not simply the clock's time. Clocks can step back (NTP, a restored
snapshot, a second machine). Stamps within a topic must not step back, because a search by time
needs them in order. So: stamp = max(now, the topic's last stamp), which the ledger computes at an
append. After the clock steps back, new entries get the same stamp until the clock has caught up.
Every stamp is a time that the clock has shown.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from ..proto.broker_entry_pb2 import (
    CONTROL_UNSPECIFIED,
    DATA,
    SOURCE_PULSAR,
    BrokerEntryMetadata,
    ControlType,
    EntryKind,
    SourceFormat,
)
from ..proto.pulsar_api_pb2 import MessageMetadata
from ..records import record
from .crc import Buffer
from .message import MessageHeader


@record(frozen=True)
class Sender:
    """The producer of an entry, as the broker knows it from the connection."""

    producer_name: str
    properties: Mapping[str, str] = field(default_factory=dict)
    """The properties with which the producer was opened."""
    client_version: str = ""
    """The client's version in its words, such as "Pulsar-CPP-v3.7.2"."""
    address: str = ""
    """The peer's, as topic stats show it: "/127.0.0.1:40000"."""


@dataclass(frozen=True, slots=True)
class StampContext:
    """The facts about an entry that its stampers get.

    `now_ms` is its broker time, never before the topic's last; `index` that of its last message. A
    stamper must neither change nor keep `body`. `sender` is None if no producer's connection sent
    the entry, `broker_name` "" if the ledger has no broker.
    """

    topic: str
    now_ms: int
    index: int
    message_count: int
    body: Buffer
    sender: Sender | None = None
    broker_name: str = ""
    kind: EntryKind = DATA
    control_type: ControlType = CONTROL_UNSPECIFIED
    source_format: SourceFormat = SOURCE_PULSAR
    header: MessageHeader | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.header is None:
            object.__setattr__(self, "header", MessageHeader(self.body))

    @property
    def is_message(self) -> bool:
        """Whether `body` is a producer's message in Pulsar's format, that is, it has a header."""
        return self.kind == DATA and self.source_format == SOURCE_PULSAR

    def message_metadata(self) -> MessageMetadata:
        """The producer's metadata, parsed once. Raises MessageFormatError: it is no message."""
        assert self.header is not None
        return self.header.metadata()


@runtime_checkable
class Stamper(Protocol):
    """Writes fields of the broker entry metadata, without state: topics and threads share it."""

    @property
    def name(self) -> str:
        """The stamper's name; a chain holds each name once."""

    def stamp(self, context: StampContext, metadata: BrokerEntryMetadata) -> None:
        """Write its fields into `metadata`, without blocking. An exception fails the append."""


@runtime_checkable
class Clock(Protocol):
    """A source of wall-clock time. Called from any thread, once or more per entry: be quick."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch. May step back; callers allow for it."""


class SystemClock:
    """The operating system's wall clock."""

    __slots__ = ()

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch, rounded down."""
        return time.time_ns() // 1_000_000

    def __repr__(self) -> str:
        return "SystemClock()"

"""What a stamper is, and what it may know of the entry it stamps.

A stamper is shared by topics and threads and keeps no state. It is told everything through one
`StampContext`, and writes its fields into a message that is empty when it gets it. Which fields it
may write, and whether it wants to see the broker's own control entries, it says of itself:

===================  ==========================================  ===============================
attribute            meaning                                     if it is not there
===================  ==========================================  ===============================
``name``             its name; a chain holds each name once      (must be there)
``fields``           numbers of the fields that it writes        application tags (109) only
``stamps_control``   whether it is asked for control entries     it is not
===================  ==========================================  ===============================
"""

from __future__ import annotations

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
from .buffers import Buffer
from .message import MessageHeader


@dataclass(frozen=True, slots=True)
class Sender:
    """Who sends an entry, as the broker knows it from the connection.

    Attributes:
        producer_name: the producer's name, given by the client or by the broker.
        properties: the properties that the producer was opened with.
        client_version: what the client says it is, such as "Pulsar-CPP-v3.7.2".
        address: the peer's address, as topic stats show it: "/127.0.0.1:40000".
    """

    producer_name: str
    properties: Mapping[str, str] = field(default_factory=dict)
    client_version: str = ""
    address: str = ""


@dataclass(frozen=True, slots=True)
class StampContext:
    """What a stamper may know of the entry it stamps.

    Attributes:
        topic: the topic's full name.
        now_ms: the entry's broker time, never before the topic's last, in milliseconds.
        index: the index of the entry's last message.
        message_count: messages in the entry, at least 1.
        body: the producer's headers-and-payload; not to be written to or kept.
        sender: who sends it; None where no producer's connection is behind it.
        broker_name: the broker's advertised host and port; "" where no broker is behind it.
        kind: a producer's entry (DATA), or one of the broker's own (CONTROL).
        control_type: what a control entry says.
        source_format: the format of `body`.
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
        """Whether `body` is a producer's, in Pulsar's format: only then has it a header to read."""
        return self.kind == DATA and self.source_format == SOURCE_PULSAR

    def message_metadata(self) -> MessageMetadata:
        """The producer's metadata, parsed when first asked for, and once for the whole entry.

        Raises:
            MessageFormatError: the body is no message.
        """
        assert self.header is not None
        return self.header.metadata()


@runtime_checkable
class Stamper(Protocol):
    """Writes some fields of the broker entry metadata. Shared by topics and threads: no state.

    The module's head says which further attributes it may have.
    """

    @property
    def name(self) -> str:
        """The stamper's name; a chain holds each name once."""
        ...

    def stamp(self, context: StampContext, metadata: BrokerEntryMetadata) -> None:
        """Write this stamper's fields into `metadata`. On the append path: never block.

        An exception fails the append.
        """
        ...

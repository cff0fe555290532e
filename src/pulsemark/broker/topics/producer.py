"""A producer on a connection, as its topic and its session see it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ...metadata import Sender
from ...proto.pulsar_api_pb2 import CommandProducer, ProducerAccessMode
from ..subscriptions.consumer import ConsumerConnection
from .mirrors import Mirror

if TYPE_CHECKING:
    from ..memory import Reservation
    from .producers import TopicProducers

__all__ = ["NAME_SIZE_MAX_BYTES", "Producer", "ProducerConnection"]

#: The longest name of a producer, a consumer or a subscription.
NAME_SIZE_MAX_BYTES = 1024


class ProducerConnection(ConsumerConnection, Protocol):
    """The connection of a producer."""

    async def has_ended(self) -> bool:
        """Whether its client is gone, which is not noticed otherwise while it is not read."""
        ...

    def close_producer(self, producer: Producer) -> None:
        """Tell the client that the broker closed one of its producers."""
        ...

    def producer_fenced(self, producer: Producer) -> None:
        """Another producer took over the topic: refuse this one's next SEND."""
        ...

    def producer_ready(self, producer: Producer) -> None:
        """A waiting producer may publish now."""
        ...


@dataclass(slots=True, eq=False)
class Producer:
    """A producer on a connection."""

    connection: ProducerConnection
    producer_id: int
    request_id: int
    name: str
    access_mode: ProducerAccessMode
    epoch: int
    #: The epoch that it claims when it reconnects; later the epoch that it owns.
    topic_epoch: int | None
    schema_version: bytes = b""
    connected_since_ms: int = 0
    properties: dict[str, str] = field(default_factory=dict)
    messages_in: int = 0
    bytes_in: int = 0
    #: Whether it was added: it does not wait, and was not fenced.
    may_publish: bool = False
    is_waiting: bool = False
    #: Its latest publishes that wait for the disk: a `connection.receipts.Run`. Answers to later
    #: ones must come after them.
    run: Any = None
    #: Counts the memory that the broker needs for it.
    reservation: Reservation | None = None
    #: The facts about it that stampers get.
    sender: Sender | None = None
    #: Whether it encrypts its messages.
    is_encrypted: bool = False
    #: Whether one of its messages was refused that deduplication must find in its turn again.
    must_open_again: bool = False
    #: What it may do as a mirror; None: it is an ordinary producer.
    mirror: Mirror | None = None
    #: The topic's producers while this one is among them, added or waiting.
    home: TopicProducers | None = None
    #: Whether it was closed: it must not enter a topic again.
    has_left: bool = False
    #: Whether another producer took over the topic.
    is_fenced: bool = False
    #: The broker closed it, and notifies its client later.
    is_disconnected: bool = False

    def leave(self) -> None:
        """Leave: the client closed it, or its connection is lost. May be called twice."""
        self.has_left = True
        self.may_publish = False
        if self.home is not None:
            self.home.remove(self)

    def disconnect(self) -> None:
        """The broker closes it, and it is in no topic any more. The caller notifies its client."""
        self.home = None
        self.may_publish = False
        self.is_disconnected = True

    @classmethod
    def from_command(
        cls, connection: ProducerConnection, command: CommandProducer, name: str, now_ms: int
    ) -> Producer:
        """Make the producer for a PRODUCER command."""
        return cls(
            connection=connection,
            producer_id=command.producer_id,
            request_id=command.request_id,
            name=name,
            access_mode=command.producer_access_mode,
            epoch=command.epoch,
            topic_epoch=command.topic_epoch if command.HasField("topic_epoch") else None,
            connected_since_ms=now_ms,
            is_encrypted=command.encrypted,
            properties={pair.key: pair.value for pair in command.metadata},
        )

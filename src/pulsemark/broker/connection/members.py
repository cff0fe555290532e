"""The producers and consumers of a connection, and what its client gets when the broker ends one.

Topics and subscriptions call this class through `ProducerConnection` and `ConsumerConnection`.
"""

from __future__ import annotations

from ...proto.pulsar_api_pb2 import ServerError
from ...wire import commands
from ..errors import java_refusal
from ..security.identity import Credentials
from ..security.principal import UNAUTHENTICATED
from ..subscriptions.consumer import Consumer
from ..topics.producer import Producer
from ..topics.topic import Topic
from ..topics.topic_watchers import TopicWatcher
from .leaving import leave_together
from .memory import OutputMemory
from .outgoing import Outgoing

__all__ = ["Members"]


class Members(Outgoing):
    """A connection with producers and consumers."""

    def __init__(self, output: OutputMemory) -> None:
        super().__init__(output)
        #: Who the client is, and by which credentials. Set by CONNECT.
        self.principal = UNAUTHENTICATED
        self.credentials: Credentials | None = None
        self.producers: dict[int, tuple[Producer, Topic]] = {}
        self.consumers: dict[int, Consumer] = {}
        #: The topic lists that the client watches.
        self.watchers: dict[int, TopicWatcher] = {}
        #: Producers that the broker closed. SENDs that were in flight at that time are dropped.
        self.producers_closed_by_broker: set[int] = set()
        #: Producers and consumers that are being opened, by kind and id.
        self.opening: dict[tuple[str, int], Producer | Consumer] = {}

    def producer_fenced(self, producer: Producer) -> None:
        """Another producer took over the topic, so this one is fenced.

        A waiting producer gets an ERROR. A producer that was writing gets nothing: its next SEND
        closes the connection, as in Pulsar, and a reconnect with the old epoch is refused.
        """
        entry = self.producers.get(producer.producer_id)
        if producer.is_waiting and entry is not None and entry[0] is producer:
            del self.producers[producer.producer_id]
            self.refuse(
                producer.request_id,
                java_refusal(ServerError.ProducerFenced, "ProducerFencedException", "Fenced out"),
            )

    def producer_ready(self, producer: Producer) -> None:
        """Tell the client of a waiting producer that it may publish now."""
        self.write(
            commands.producer_success(
                producer.request_id,
                producer.name,
                schema_version=producer.schema_version,
                topic_epoch=producer.topic_epoch,
            )
        )

    def close_consumer(self, consumer: Consumer) -> None:
        """Close a consumer from the broker's side; its client will subscribe again."""
        if self.consumers.get(consumer.consumer_id) is consumer:
            del self.consumers[consumer.consumer_id]
            self.write(commands.close_consumer(consumer.consumer_id, commands.NO_REQUEST_ID))

    def close_producer(self, producer: Producer) -> None:
        """Close a producer from the broker's side; its client will open it again."""
        if self.forget_producer(producer):
            self.write(commands.close_producer(producer.producer_id, commands.NO_REQUEST_ID))

    def forget_producer(self, producer: Producer) -> bool:
        """The broker closes a producer: its client's SENDs are ignored. False if it was closed."""
        entry = self.producers.get(producer.producer_id)
        if entry is None or entry[0] is not producer:
            return False
        del self.producers[producer.producer_id]
        self.producers_closed_by_broker.add(producer.producer_id)
        return True

    def close_opening(self, kind: str, number: int) -> None:
        """Cancel the opening of a producer or consumer, if one with that id is being opened."""
        opened = self.opening.pop((kind, number), None)
        if opened is not None:
            opened.leave()

    def leave_all(self) -> None:
        """End every producer, consumer and watcher of this connection."""
        everything = [*self.opening.values(), *self.consumers.values()]
        everything += [producer for producer, _ in self.producers.values()]
        for watcher in self.watchers.values():
            watcher.leave()
        self.watchers.clear()
        self.opening.clear()
        self.producers.clear()
        self.consumers.clear()
        leave_together(everything)

"""The producers and consumers of a connection, and what its client hears when one is ended here.

Topics and subscriptions call this side by `ProducerOutlet` and `Outlet`.
"""

from __future__ import annotations

from ...proto.pulsar_api_pb2 import ServerError
from ...wire import commands
from ..errors import RefusedError
from ..subscriptions.consumer import Consumer
from ..topics.producers import Producer
from ..topics.topic import Topic
from .leaving import leave_together
from .memory import OutputMemory
from .outgoing import Outgoing

__all__ = ["Members"]


class Members(Outgoing):
    """A connection with producers and consumers."""

    def __init__(self, output: OutputMemory) -> None:
        super().__init__(output)
        self.producers: dict[int, tuple[Producer, Topic]] = {}
        self.consumers: dict[int, Consumer] = {}
        #: Producers the broker closed: what the client had sent before it knew is dropped.
        self.producers_closed_by_broker: set[int] = set()
        #: Producers and consumers that are being opened, by kind and id.
        self.opening: dict[tuple[str, int], Producer | Consumer] = {}

    def producer_fenced(self, producer: Producer) -> None:
        """Another producer took the topic over.

        One that waited is told so. One that was writing is not: its next SEND closes the
        connection, as in Pulsar, and its return with the old epoch is refused.
        """
        entry = self.producers.get(producer.producer_id)
        if producer.is_waiting and entry is not None and entry[0] is producer:
            del self.producers[producer.producer_id]
            self.refuse(
                producer.request_id,
                RefusedError(ServerError.ProducerFenced, "fenced out while waiting"),
            )

    def producer_ready(self, producer: Producer) -> None:
        """Tell a queued producer that the topic is its own now."""
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
        entry = self.producers.get(producer.producer_id)
        if entry is not None and entry[0] is producer:
            del self.producers[producer.producer_id]
            self.producers_closed_by_broker.add(producer.producer_id)
            self.write(commands.close_producer(producer.producer_id, commands.NO_REQUEST_ID))

    def close_opening(self, kind: str, number: int) -> None:
        """Give up a producer or consumer that is being opened, if there is one of that id."""
        opened = self.opening.pop((kind, number), None)
        if opened is not None:
            opened.leave()

    def leave_all(self) -> None:
        """Give up every producer and consumer of this connection."""
        everything = [*self.opening.values(), *self.consumers.values()]
        everything += [producer for producer, _ in self.producers.values()]
        self.opening.clear()
        self.producers.clear()
        self.consumers.clear()
        leave_together(everything)

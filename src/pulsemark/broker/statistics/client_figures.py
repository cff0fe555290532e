"""The metrics of single producers and consumers, where settings ask for them."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias

from ..subscriptions.subscription import Subscription
from ..topics.topic import Topic
from .exposition import labels_of

__all__ = ["CONSUMER_FIGURES", "PRODUCER_FIGURES", "ClientRow", "consumer_rows", "producer_rows"]

#: Labels, and the figures.
ClientRow: TypeAlias = tuple[str, tuple[float, ...]]

#: Figures that subscriptions have under the same name come last.
CONSUMER_FIGURES = (
    ("pulsar_consumer_unacked_messages", "Messages that the consumer has not acknowledged"),
    ("pulsar_consumer_blocked_on_unacked_messages", "1: the consumer holds too many of them"),
    ("pulsar_consumer_msg_rate_out", "Messages per second sent to the consumer"),
    ("pulsar_consumer_msg_throughput_out", "Bytes per second sent to the consumer"),
    ("pulsar_consumer_available_permits", "Messages that the consumer has room for"),
    ("pulsar_consumer_msg_rate_redeliver", "Not measured: 0"),
    ("pulsar_consumer_msg_ack_rate", "Not measured: 0"),
    ("pulsar_out_messages_total", ""),
    ("pulsar_out_bytes_total", ""),
)
PRODUCER_FIGURES = (
    ("pulsar_producer_msg_rate_in", "Messages per second from the producer"),
    ("pulsar_producer_msg_throughput_in", "Bytes per second from the producer"),
    ("pulsar_producer_msg_average_Size", "Bytes of a message of the producer, lately"),
)


def consumer_rows(
    subscription: Subscription, labels: str
) -> Generator[None, None, list[ClientRow]]:
    """The rows of a subscription's consumers; `labels` are those of the subscription."""
    rows: list[ClientRow] = []
    for consumer in tuple(subscription.consumers):
        flow = subscription.topic.flows.of(consumer)
        shown = labels_of(consumer_name=consumer.name, consumer_id=str(consumer.consumer_id))
        figures = (
            consumer.unacked_messages,
            int(subscription.is_blocked(consumer)),
            flow.messages_per_s,
            flow.bytes_per_s,
            consumer.permits,
            0,
            0,
            consumer.messages_out,
            consumer.bytes_out,
        )
        rows.append((f"{labels},{shown}", figures))
        yield
    return rows


def producer_rows(topic: Topic, labels: str) -> Generator[None, None, list[ClientRow]]:
    """The rows of a topic's producers; `labels` are those of the topic."""
    rows: list[ClientRow] = []
    for producer in tuple(topic.producers.by_name.values()):
        flow = topic.flows.of(producer)
        size_bytes = flow.bytes_per_s / flow.messages_per_s if flow.messages_per_s else 0
        shown = labels_of(producer_name=producer.name, producer_id=str(producer.producer_id))
        rows.append((f"{labels},{shown}", (flow.messages_per_s, flow.bytes_per_s, size_bytes)))
        yield
    return rows

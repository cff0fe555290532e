"""Notifies clients that the broker has closed their consumers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .consumer import Consumer

__all__ = ["CLOSED_AT_ONCE", "closing"]

#: Consumers that are closed in one piece.
CLOSED_AT_ONCE = 100


def closing(consumers: Sequence[Consumer], *, but: Consumer | None = None) -> Iterator[None]:
    """Forget the entries that disconnected consumers held, and send CLOSE_CONSUMER for each.

    `but` gets no CLOSE_CONSUMER: its client closed it itself.
    """
    for number, consumer in enumerate(consumers, start=1):
        consumer.release_all()
        if consumer is not but:
            consumer.connection.close_consumer(consumer)
        if number % CLOSED_AT_ONCE == 0:
            yield

"""Telling clients that the broker has disconnected their consumers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .consumer import Consumer

__all__ = ["TOLD_AT_ONCE", "telling"]

#: Consumers whose clients are told in one piece.
TOLD_AT_ONCE = 100


def telling(consumers: Sequence[Consumer], *, but: Consumer | None = None) -> Iterator[None]:
    """Let go what disconnected consumers held, and send CLOSE_CONSUMER; `but` knows already."""
    for number, consumer in enumerate(consumers, start=1):
        consumer.release_all()
        if consumer is not but:
            consumer.outlet.close_consumer(consumer)
        if number % TOLD_AT_ONCE == 0:
            yield

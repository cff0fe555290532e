"""Ends all producers and consumers of a connection.

A connection can have twenty thousand consumers. When it ends, its consumers get no more messages.
They leave their subscriptions in pieces, so that the event loop is not blocked.

The consumers of one subscription leave it in one step. So their entries are given to the other
consumers only once, however many leave. Code that reads a subscription's consumers earlier removes
the leaving ones first, so that it never sees a consumer whose connection has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..cooperative import LongWork
from ..subscriptions.consumer import Consumer
from ..subscriptions.subscription import Subscription
from ..topics.producer import Producer

__all__ = ["LEFT_AT_ONCE", "leave_together"]

#: Consumers that leave in one turn. More may leave if they are of one subscription.
LEFT_AT_ONCE = 200


def leave_together(everything: Iterable[Producer | Consumer]) -> None:
    """End producers and consumers. A second call for the same ones does nothing."""
    subscriptions: dict[Subscription, None] = {}
    ended = list(everything)
    for one in ended:
        if isinstance(one, Producer):
            one.leave()
            continue
        one.has_left = True
        if one.subscription is not None:
            one.subscription.mark_leaving(one)
            subscriptions[one.subscription] = None
    LongWork().add(_leaving(subscriptions, ended))


def _leaving(
    subscriptions: Iterable[Subscription], ended: list[Producer | Consumer]
) -> Iterator[None]:
    left = 0
    for subscription in subscriptions:
        left += subscription.remove_leaving()
        if left >= LEFT_AT_ONCE:
            left = 0
            yield
    # Their memory is freed in pieces, too.
    while ended:
        del ended[-LEFT_AT_ONCE:]
        yield

"""The end of everything a connection has.

A connection can have twenty thousand consumers. When it ends it takes no more data, so none of
them is sent anything from then on; they leave their subscriptions in pieces. The consumers of one
subscription leave it in one step: the others get their work once, however many leave. Who looks at
a subscription's consumers before their turn has come lets them leave at once, so that no one meets
a consumer whose connection has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..long_work import LongWork
from ..subscriptions.consumer import Consumer
from ..subscriptions.subscription import Subscription
from ..topics.producers import Producer

__all__ = ["LEFT_AT_ONCE", "leave_together"]

#: Consumers that leave in one turn, if they are not all of one subscription.
LEFT_AT_ONCE = 200


def leave_together(everything: Iterable[Producer | Consumer]) -> None:
    """End producers and consumers. Twice is once."""
    subscriptions: dict[Subscription, None] = {}
    ended = list(everything)
    for one in ended:
        if isinstance(one, Producer):
            one.leave()
            continue
        one.has_left = True
        if one.subscription is not None:
            one.subscription.leave_soon(one)
            subscriptions[one.subscription] = None
    LongWork().add(_leaving(subscriptions, ended))


def _leaving(
    subscriptions: Iterable[Subscription], ended: list[Producer | Consumer]
) -> Iterator[None]:
    left = 0
    for subscription in subscriptions:
        left += subscription.let_leave()
        if left >= LEFT_AT_ONCE:
            left = 0
            yield
    # What they kept is freed in pieces, too.
    while ended:
        del ended[-LEFT_AT_ONCE:]
        yield

"""The end of everything a connection has, in the step in which the connection ends."""

from __future__ import annotations

from collections.abc import Iterable

from ..subscriptions.consumer import Consumer
from ..subscriptions.subscription import Subscription
from ..topics.producers import Producer

__all__ = ["leave_together"]


def leave_together(everything: Iterable[Producer | Consumer]) -> None:
    """End producers and consumers. Twice is once.

    The consumers of a subscription leave it in one step: the others get their work once, however
    many leave, and those that are still to leave get none of it.
    """
    leaving: dict[Subscription, list[Consumer]] = {}
    for one in everything:
        if isinstance(one, Producer):
            one.leave()
            continue
        one.has_left = True
        if one.subscription is not None:
            leaving.setdefault(one.subscription, []).append(one)
    for subscription, consumers in leaving.items():
        subscription.consumers_left(consumers)

"""The handlers of requests: one table of functions for each subject.

A handler answers at once, or returns a coroutine that does, or keeps the request until something
happens (`KafkaSession.block`).
"""

from __future__ import annotations

from ..endpoint import Handler
from . import authenticating, cluster, fetching, grouping, offsets, producing, topics, transactions

HANDLERS: dict[int, Handler] = (
    authenticating.HANDLERS
    | cluster.HANDLERS
    | fetching.HANDLERS
    | grouping.HANDLERS
    | offsets.HANDLERS
    | producing.HANDLERS
    | topics.HANDLERS
    | transactions.HANDLERS
)

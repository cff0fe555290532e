"""The seek service inside a broker: it searches the broker's topics and resets their cursors.

The service searches on worker threads and asks for topics there. Topics are opened on the event
loop. Importing this module imports grpc, so the broker imports it only if a port is configured.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ..audit.errors import AuditInputError
from ..audit.report import Report
from ..finder.errors import (
    CursorBusyError,
    InvalidFieldError,
    NotPossibleError,
    SubscriptionNotFoundError,
)
from ..finder.server import SeekServer, ServerOptions
from ..finder.service import AuditReport
from ..ledger import Position, TopicLog, TopicNotFoundError
from ..wire import TopicName
from .errors import RefusedError
from .services import Services
from .subscriptions.seek import SeekTarget, reset_subscription
from .topics.registry import Topics

__all__ = ["make_seek_server"]


def make_seek_server(services: Services, host: str, port: int) -> SeekServer:
    """A seek server over the broker's topics, not started yet."""

    async def reset_cursor(topic_name: str, subscription_name: str, position: Position) -> None:
        try:
            topic = await services.topics.open(TopicName.parse(topic_name), create=False)
        except RefusedError as refusal:
            raise TopicNotFoundError(topic_name) from refusal
        subscription = topic.subscriptions.get(subscription_name)
        if subscription is None:
            raise SubscriptionNotFoundError(topic_name, subscription_name)
        try:
            target = SeekTarget(topic.clamp(position))
            await reset_subscription(subscription, target, then=lambda: None)
        except RefusedError as refusal:
            raise CursorBusyError(topic_name, subscription_name) from refusal

    return SeekServer(
        _BrokerTopics(services.topics, asyncio.get_running_loop()),
        ServerOptions(
            host=host,
            port=port,
            max_concurrent_calls=services.config.max_grpc_calls,
            max_streams=services.config.max_grpc_streams,
        ),
        normalise=lambda name: str(TopicName.parse(name)),
        reset_cursor=reset_cursor,
        audit=_audit_of(services),
    )


def _audit_of(services: Services) -> AuditReport:
    """The audit's call over the broker's auditor."""

    async def audit(
        topic_name: str, by: Sequence[str], from_ms: int | None, to_ms: int | None
    ) -> Report:
        auditor = services.auditor
        if not auditor.is_on:
            raise NotPossibleError("this broker keeps no audit (pulsemarkAuditEnabled)")
        try:
            topic = await services.topics.open(TopicName.parse(topic_name), create=False)
            return await auditor.report(topic, by, starting_time_ms=from_ms, ending_time_ms=to_ms)
        except RefusedError as refusal:
            raise TopicNotFoundError(topic_name) from refusal
        except AuditInputError as error:
            raise InvalidFieldError(error.field, str(error)) from error

    return audit


class _BrokerTopics:
    """`TopicSource` over the broker's topics; called on the service's worker threads."""

    def __init__(self, topics: Topics, loop: asyncio.AbstractEventLoop) -> None:
        self._topics = topics
        self._loop = loop

    def log(self, topic: str) -> TopicLog:
        """The topic's log. Raises TopicNotFoundError."""
        known = self._topics.open_topics.get(topic)
        if known is not None:  # the usual case: no call to the event loop is needed
            return known.ledger
        opening = asyncio.run_coroutine_threadsafe(
            self._topics.open(TopicName.parse(topic), create=False), self._loop
        )
        try:
            return opening.result().ledger
        except RefusedError as refusal:
            raise TopicNotFoundError(topic) from refusal

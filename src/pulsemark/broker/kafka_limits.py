"""The policies of Pulsar's topics that hold for the record sets of Kafka's clients, too.

====================  ==============================================================================
policy                a Kafka producer above it
====================  ==============================================================================
publishRate           is answered with the time to wait (``throttle_time_ms``), and its connection
                      is not read for so long, as with Kafka's quotas (KIP-219)
backlogQuota          ``producer_request_hold``: NOT_ENOUGH_REPLICAS (19), after which clients try
                      again; ``producer_exception``: POLICY_VIOLATION (44)
maxMessageSize        MESSAGE_TOO_LARGE (10)
encryptionRequired    POLICY_VIOLATION (44): Kafka's records are never encrypted
termination           POLICY_VIOLATION (44)
====================  ==============================================================================

Deduplication is Kafka's own, by the producer's id and sequence numbers.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

from ..kafka.errors import Code, KafkaError
from .backlogs import excess_of
from .policies.pulsar_policies import BACKLOG_QUOTAS, HOLD

if TYPE_CHECKING:
    from .backlogs import Excess
    from .services import Services
    from .topic_rates import Throttled
    from .topics.topic import Topic

__all__ = ["KafkaLimits"]


class KafkaLimits:
    """What topics take of Kafka's clients."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def check_backlog(self, topic: Topic) -> None:
        """Raise KafkaError if the topic's backlog is above its quota, and still is."""
        if not topic.has_full_backlog:
            return
        services = self._services
        quotas = services.topics.policies.applied(topic.topic_name, BACKLOG_QUOTAS)
        found: list[Excess] = []
        if quotas and services.config.backlog_quota_check_enabled:
            now_ms = services.config.clock.now_ms()
            found = await services.run_blocking(excess_of, topic, quotas, now_ms)
        refusing = [each for each in found if each.refuses_producers]
        topic.has_full_backlog = bool(refusing)
        if refusing:
            is_held = refusing[0].policy == HOLD
            raise KafkaError(
                Code.NOT_ENOUGH_REPLICAS if is_held else Code.POLICY_VIOLATION,
                f"the backlog of {topic.name} exceeds its quota",
            )

    def check(self, topic: Topic, size_bytes: int) -> None:
        """Raise KafkaError if the topic does not take a record set of so many bytes."""
        if topic.terminated_at is not None:
            raise KafkaError(Code.POLICY_VIOLATION, f"{topic.name} was terminated")
        if topic.admission is None:
            return
        limit_bytes = topic.rules.max_message_size_bytes
        if limit_bytes and size_bytes > limit_bytes:
            raise KafkaError(
                Code.MESSAGE_TOO_LARGE, f"{size_bytes} bytes: maxMessageSize is {limit_bytes}"
            )
        if topic.rules.needs_encryption:
            raise KafkaError(Code.POLICY_VIOLATION, f"{topic.name} takes encrypted messages only")

    def published(self, topic: Topic, connection: object, messages: int, size_bytes: int) -> int:
        """Count a set that was appended; how many milliseconds its connection is not read."""
        limit = None if topic.admission is None else topic.admission.publish_limit
        if limit is None:
            return 0
        limit.published(cast("Throttled", connection), messages, size_bytes)
        return math.ceil(limit.debt_ms()) if limit.is_exceeded() else 0

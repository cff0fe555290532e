"""The policies that decide whether a producer or a consumer may be opened.

Codes and texts are those of Apache Pulsar 4.0.8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...proto.pulsar_api_pb2 import CommandSubscribe, ServerError
from ..cleaning.backlog_quotas import Excess, excess_of
from ..errors import RefusedError
from ..policies.pulsar_policies import BACKLOG_QUOTAS, HOLD
from ..storage import durable

if TYPE_CHECKING:
    from ..services import Services
    from ..subscriptions.consumer import Consumer
    from ..topics.producer import Producer
    from ..topics.topic import Topic

__all__ = ["check_consumer", "check_producer", "last_stored"]

BACKLOG = (
    "org.apache.pulsar.broker.service.BrokerServiceException$TopicBacklogQuotaExceededException: "
    "Cannot create producer on topic with backlog quota exceeded"
)


async def check_producer(services: Services, topic: Topic, producer: Producer) -> None:
    """Raise `RefusedError` if the topic's policies do not allow this producer."""
    if topic.rules.needs_encryption and not producer.is_encrypted:
        reason = f"Encryption is required in {topic.name}"
        raise RefusedError(ServerError.MetadataError, reason)
    if not topic.is_persistent:
        return
    quotas = services.topics.policies.applied(topic.topic_name, BACKLOG_QUOTAS)
    if not quotas or not services.config.backlog_quota_check_enabled:
        return
    now_ms = services.config.clock.now_ms()
    found: list[Excess] = await services.run_blocking(excess_of, topic, quotas, now_ms)
    for excess in found:
        if excess.refuses_producers:
            is_held = excess.policy == HOLD
            code = (
                ServerError.ProducerBlockedQuotaExceededError
                if is_held
                else ServerError.ProducerBlockedQuotaExceededException
            )
            raise RefusedError(code, BACKLOG)


async def last_stored(topic: Topic, producer: Producer) -> int:
    """The producer's highest stored sequence id, -1 without one; what is on its way is awaited."""
    deduplication = topic.deduplication
    if deduplication is None:
        return -1
    # Bounded: the producer has just been opened, so that nothing more of its name arrives.
    while (last := deduplication.in_flight(producer.name)) is not None:
        try:
            await durable(last.commit)
        except RefusedError:
            break
    return deduplication.opened(producer.name)


def check_consumer(
    services: Services, topic: Topic, command: CommandSubscribe, consumer: Consumer
) -> None:
    """Raise `RefusedError` if the topic's policies do not allow this consumer."""
    rules = topic.rules
    kind = CommandSubscribe.SubType.Name(command.subType)
    if kind not in rules.subscription_types:
        reason = f"Topic[{{{topic.name}}}] doesn't support {kind} sub type!"
        raise RefusedError(ServerError.NotAllowedError, reason)
    exists = command.subscription in topic.subscriptions
    if command.durable and not exists and not rules.creates_subscriptions:
        raise RefusedError(ServerError.SubscriptionNotFound, "Subscription does not exist")
    place = (consumer.connection.address.rpartition(":")[0], consumer.name, consumer.consumer_id)
    if not topic.subscribe_limits.allows(rules.subscribe_rate, place, services.config.clock):
        reason = "Subscribe limited by subscribe rate limit per consumer."
        raise RefusedError(ServerError.NotAllowedError, reason)
    topic.check_consumers()

"""Checks whether a producer or consumer may be opened: limits of names and properties, policies.

Codes and texts of refusals are those of Apache Pulsar 4.0.8. Names and properties are kept as long
as the producer or consumer lives, and shown in stats and logs. Their memory is counted for the
connection (`memory.KeptMemory`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from ...proto.pulsar_api_pb2 import CommandProducer, CommandSubscribe, KeyValue, Schema, ServerError
from ...wire import TopicName
from ..errors import IncompatibleSchemaError, RefusedError
from ..ownership import NotOwnedError
from ..policies.pulsar_policies import HOLD
from ..storage import durable
from ..topics.producers import NAME_SIZE_MAX_BYTES

if TYPE_CHECKING:
    from ..connection.services import Services
    from ..connection.session import Session
    from ..subscriptions.consumer import Consumer
    from ..topics.producers import Producer
    from ..topics.topic import Topic


COMPACTED_READING = (CommandSubscribe.Exclusive, CommandSubscribe.Failover)
PROPERTIES_SIZE_MAX_BYTES = 64 * 1024

#: Memory of a producer or consumer without its texts, measured and rounded up.
STATE_BYTES = 2 * 1024
#: Memory of a property without its characters: two strings and a dictionary item.
PROPERTY_BYTES = 200
#: Memory of a Key_Shared hash range, measured and rounded up.
HASH_RANGE_BYTES = 64
#: Python needs up to four bytes for a character.
BYTES_PER_CHARACTER = 4
BACKLOG = (
    "org.apache.pulsar.broker.service.BrokerServiceException$TopicBacklogQuotaExceededException: "
    "Cannot create producer on topic with backlog quota exceeded"
)
#: Pulsar's name of the error; clients show it to their users.
EXCEPTION = "org.apache.pulsar.broker.service.schema.exceptions.IncompatibleSchemaException"


def parse_topic(session: Session, name: str) -> TopicName:
    """The topic that a producer or consumer names. Raises `RefusedError`.

    A client has looked the topic up before. So an absent namespace was deleted meanwhile: as in
    Pulsar the client is asked to look the topic up again.
    """
    topics = session.services.topics
    try:
        found = topics.parse(name)
        topics.check_owned(found)
        return found
    except NotOwnedError:
        raise
    except RefusedError as refusal:
        if refusal.code != ServerError.TopicNotFound:
            raise
    parsed = TopicName.parse(name)
    url = session.services.http_url or session.services.service_url
    bundle, address = f"{parsed.namespace}/0x00000000_0xffffffff", url.partition("://")[2]
    text = f"Namespace bundle ({bundle}) for topic ({parsed}) not served by this instance:{address}"
    raise RefusedError(ServerError.ServiceNotReady, f"{text}. Please redo the lookup.")


def check_name(what: str, name: str) -> None:
    """Refuse a name that is too long."""
    size_bytes = len(name.encode())
    if size_bytes > NAME_SIZE_MAX_BYTES:
        text = f"the {what} has {size_bytes} bytes; at most {NAME_SIZE_MAX_BYTES} are allowed"
        raise RefusedError(ServerError.NotAllowedError, text)


def check_properties(what: str, pairs: Iterable[KeyValue]) -> None:
    """Refuse properties whose total size is too large."""
    if sum(pair.ByteSize() for pair in pairs) > PROPERTIES_SIZE_MAX_BYTES:
        text = f"the {what} have more than {PROPERTIES_SIZE_MAX_BYTES} bytes"
        raise RefusedError(ServerError.NotAllowedError, text)


def producer_state_bytes(command: CommandProducer) -> int:
    """The most memory that the broker needs for a producer."""
    texts = (command.topic, command.producer_name)
    return STATE_BYTES + _texts_bytes(texts) + _properties_bytes(command.metadata)


def consumer_state_bytes(command: CommandSubscribe) -> int:
    """The most memory that the broker needs for a consumer."""
    texts = (command.topic, command.subscription, command.consumer_name)
    return (
        STATE_BYTES
        + _texts_bytes(texts)
        + _properties_bytes(command.metadata)
        + _properties_bytes(command.subscription_properties)
        + HASH_RANGE_BYTES * len(command.keySharedMeta.hashRanges)
    )


def _texts_bytes(texts: Iterable[str]) -> int:
    return sum(BYTES_PER_CHARACTER * len(text) for text in texts)


def _properties_bytes(pairs: Iterable[KeyValue]) -> int:
    return sum(PROPERTY_BYTES + _texts_bytes((pair.key, pair.value)) for pair in pairs)


def check_reading(command: CommandSubscribe) -> None:
    """Check `readCompacted`, which Pulsar does after the check of the schema."""
    if command.read_compacted and command.subType not in COMPACTED_READING:
        text = "readCompacted only allowed on failover or exclusive subscriptions"
        raise RefusedError(ServerError.NotAllowedError, text)
    if not command.subscription:
        raise RefusedError(ServerError.ProducerBusy, "Empty subscription name")


async def check_producer(services: Services, topic: Topic, producer: Producer) -> None:
    """Raise `RefusedError` if the topic's policies do not allow this producer."""
    if topic.rules.needs_encryption and not producer.is_encrypted:
        reason = f"Encryption is required in {topic.name}"
        raise RefusedError(ServerError.MetadataError, reason)
    if not topic.is_persistent:
        return
    excess = await services.lifetimes.backlogs.refusing(topic)
    if excess is not None:
        held = ServerError.ProducerBlockedQuotaExceededError
        refused = ServerError.ProducerBlockedQuotaExceededException
        raise RefusedError(held if excess.policy == HOLD else refused, BACKLOG)


async def last_stored(topic: Topic, producer: Producer) -> int:
    """The producer's highest stored sequence id, -1 without one. Waits for entries in flight."""
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


async def schema_version_for(session: Session, topic: Topic, schema: Schema | None) -> bytes:
    """The version of a producer's schema; b"" without one. Raises `RefusedError`."""
    try:
        return await session.services.schemas.for_producer(topic, schema)
    except IncompatibleSchemaError as error:
        full = f"{EXCEPTION}: {error.message}"
        raise RefusedError(error.code, f"{full} caused by {full}") from error


def is_in_use(topic: Topic) -> bool:
    """Whether a topic has data, producers, or consumers with a known choice of schema."""
    return bool(
        topic.producers.by_name
        or (topic.is_persistent and topic.ledger.last_position is not None)
        or any(
            not consumer.follows_schema
            for subscription in tuple(topic.subscriptions.values())
            for consumer in subscription.consumers
        )
    )


#: BaseCommand.Type -> a function of the session and the command's body. It must not block. A
#: `RefusedError` that it raises is answered with an ERROR.
CommandTable: TypeAlias = "dict[int, Callable[[Session, Any], None]]"

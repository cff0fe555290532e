"""Which topics are created when clients use them, and how many a namespace may have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...proto.pulsar_api_pb2 import ServerError
from ...wire import TopicName
from ..errors import LimitReachedError
from ..policies.pulsar_policies import AUTO_TOPIC_CREATION, MAX_TOPICS

if TYPE_CHECKING:
    from .registry import Topics

__all__ = ["check_room", "creates", "is_beyond_partitions", "partitions_created"]


def creates(topics: Topics, name: TopicName) -> bool:
    """Whether a topic is created when a client produces to it or subscribes."""
    return bool(topics.policies.applied(name, AUTO_TOPIC_CREATION)["allowAutoTopicCreation"])


def partitions_created(topics: Topics, name: TopicName) -> int:
    """With how many partitions a topic is created when a client uses it; 0: without partitions."""
    policy = topics.policies.applied(name, AUTO_TOPIC_CREATION)
    if name.partition_index >= 0 or policy.get("topicType") != "partitioned":
        return 0
    return int(policy.get("defaultNumPartitions") or 1)


def is_beyond_partitions(topics: Topics, name: TopicName) -> bool:
    """Whether this names a partition that its partitioned topic does not have."""
    count = topics.partitions_of(name.partitioned)
    return bool(count) and name.partition_index >= count


def check_room(topics: Topics, namespace: str, more: int) -> None:
    """Raise `LimitReachedError` if a namespace may not have so many more topics."""
    levels = topics.policies[MAX_TOPICS]
    most = levels.of_namespace(namespace)
    most = levels.default if most is None else most
    if most and topics.names.count_of(namespace) + more > most:
        reason = "Exceed maximum number of topics in namespace."
        raise LimitReachedError(ServerError.NotAllowedError, reason)

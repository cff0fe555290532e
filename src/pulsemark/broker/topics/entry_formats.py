"""Which topics may hold entries in Kafka's format: those with the policy `kafka`.

The policy's value are the topic's settings by Kafka's names. It is set when a Kafka client creates
the topic, or changes the settings of another one (`kafka_bridge`); after that Kafka's clients may
write to the topic. It stays until the topic is deleted, since entries in that format stay too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...wire import TopicName

if TYPE_CHECKING:
    from .partitioned_topics import PartitionedTopics
    from .policy_store import PolicyStore
    from .topic import Topic

__all__ = ["KAFKA_POLICY", "EntryFormats"]

KAFKA_POLICY = "kafka"


class EntryFormats:
    """Tells open topics whether they may hold entries in Kafka's format."""

    def __init__(
        self,
        store: PolicyStore,
        open_topics: Mapping[str, Topic],
        partitioned: PartitionedTopics,
    ) -> None:
        self._store = store
        self._open_topics = open_topics
        self._partitioned = partitioned
        store.of_topic_changed.append(self._changed)

    def apply_to(self, topic: Topic) -> None:
        """Tell a topic that was just opened."""
        topic.holds_kafka = self._store.in_topic(topic.topic_name, KAFKA_POLICY) is not None

    def _changed(self, policy: str, name: TopicName) -> None:
        """A topic's policy has changed: tell it and its partitions."""
        if policy != KAFKA_POLICY:
            return
        names = [str(name)]
        names += [str(name.partition(i)) for i in range(self._partitioned.count_of(name))]
        for full in names:
            topic = self._open_topics.get(full)
            if topic is not None:
                self.apply_to(topic)

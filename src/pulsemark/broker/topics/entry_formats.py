"""Which topics take Kafka's record sets: those with the policy `kafka`.

The policy's value are the topic's settings by Kafka's names. It is set when a Kafka client creates
the topic or changes its settings (`kafka_bridge`), or over REST (`http/entry_format`). After that
Kafka's clients may write to the topic. It stays until the topic is deleted, since entries in that
format stay too.

Some of the settings are also the broker's own policies: retention, in minutes and megabytes,
rounded up, and compaction, which a topic with the cleanup policy "compact" gets from time to time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...wire import TopicName
from ..policies.policy import INT_MAX
from ..policies.pulsar_policies import COMPACTION_THRESHOLD, MIB, MINUTE_MS, RETENTION

if TYPE_CHECKING:
    from .partitioned_topics import PartitionedTopics
    from .policy_store import PolicyStore
    from .registry import Topics
    from .topic import Topic

KAFKA_POLICY = "kafka"
TOMBSTONE_STAGE = "pulsemark.tombstone.stage"
#: A topic with the cleanup policy "compact" is compacted after so many new bytes.
COMPACTED_AFTER_BYTES = 16 * MIB


class EntryFormats:
    """Tells open topics what their policy says about deleting keys."""

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
        settings = self._store.in_topic(topic.topic_name, KAFKA_POLICY)
        topic.tombstone_stage = int((settings or {}).get(TOMBSTONE_STAGE, "1"))

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


async def set_entry_format(topics: Topics, name: TopicName, settings: Mapping[str, str]) -> None:
    """Replace the settings of a topic, which were checked; durable on return.

    A topic that had none takes Kafka's sets from then on, and keeps leader epochs. Raises
    `RefusedError`, `LedgerError`.
    """
    await topics.policy_store.change_in_topic(name, policies_of(settings))
    await topics.leader_epochs.begin_in_topic(name)


def policies_of(settings: Mapping[str, str]) -> dict[str, Any]:
    """The policies of a topic with these settings, which were checked; None: not set."""
    # Imported with the first topic of that kind: most brokers never have one.
    from ...kafka.topic_settings import CLEANUP_POLICY, RETENTION_BYTES, RETENTION_MS, value_of

    cleanup = value_of(settings, CLEANUP_POLICY)
    time_ms = size_bytes = -1
    if "delete" in cleanup:
        time_ms = int(value_of(settings, RETENTION_MS))
        size_bytes = int(value_of(settings, RETENTION_BYTES))
    retention = {
        "retentionTimeInMinutes": -1 if time_ms < 0 else _whole(time_ms, MINUTE_MS),
        "retentionSizeInMB": -1 if size_bytes < 0 else _whole(size_bytes, MIB),
    }
    return {
        KAFKA_POLICY: dict(settings),
        RETENTION.key: retention,
        COMPACTION_THRESHOLD.key: COMPACTED_AFTER_BYTES if "compact" in cleanup else None,
    }


def _whole(amount: int, unit: int) -> int:
    """So many whole units as hold an amount, one at least."""
    return min(max(-(-amount // unit), 1), INT_MAX)

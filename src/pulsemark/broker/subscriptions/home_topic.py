"""What a subscription needs of its topic: `HomeTopic`.

The topics are above the subscriptions: a topic makes its subscriptions, and hands itself to them.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ...compaction.compacted_log import CompactedLog
    from ...ledger import Commit, ManagedLedger, Position
    from ...wire import MessageId, TopicName
    from ..configuration.config import BrokerConfig
    from ..counters import Flows, TopicCounters
    from ..policies.rate_limits import DispatchLimit
    from ..policies.topic_rules import TopicRules
    from .consumer import Consumer
    from .delayed import DelayedTotal
    from .kafka_entries import Conversions
    from .subscription import Subscription


class HomeTopic(Protocol):
    """The topic of a subscription; `topics.topic.Topic` is one."""

    topic_name: TopicName
    name: str
    #: -1: it is no partition.
    partition_index: int
    config: BrokerConfig
    ledger: ManagedLedger
    counters: TopicCounters
    flows: Flows
    conversions: Conversions
    delayed_total: DelayedTotal
    rules: TopicRules
    dispatch_limit: DispatchLimit | None
    #: The last entry of a terminated topic; None: the topic goes on.
    terminated_at: Position | None
    #: The property that makes a message of Pulsar's a tombstone.
    tombstone_property: str | None
    #: Versions of its schemas by the ids of Kafka's serializers; None: no registry is served.
    schema_numbers: Mapping[int, int] | None
    #: Prefix fields that clients get in addition to time and index.
    delivered_fields: frozenset[int]
    is_persistent: bool
    is_open: bool
    #: When the broker opened it.
    opened_ms: int

    @property
    def subscriptions(self) -> MutableMapping[str, Subscription]:
        """The topic's subscriptions by name."""

    @property
    def read_log(self) -> ManagedLedger | CompactedLog:
        """What readers get: the log, or the compacted form of a log that is cleaned."""

    def check_is_open(self) -> None:
        """Raise `RefusedError` (ServiceNotReady) if the topic was closed."""

    def check_consumers(self, subscription: Subscription | None = None) -> None:
        """Raise `RefusedError` (ConsumerBusy) if there are all consumers that there may be."""

    def clamp(self, position: Position, compacted: CompactedLog | None = None) -> Position:
        """`position`, or the first or end position if it is outside of the topic."""

    def remove_subscription(
        self, subscription: Subscription, *, asked_by: Consumer | None = None
    ) -> Commit:
        """Disconnect and delete a subscription; the deletion is durable with the commit."""

    def finding_last_id(
        self, compacted: CompactedLog | None = None
    ) -> Generator[object, None, MessageId]:
        """The id of the last message consumers can get, in pieces."""

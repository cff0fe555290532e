"""The policy `brokerEntryMetadata` at its levels, and its effect on open topics.

`policies.own_policies` has its values. A change is durable when the call returns. It applies to all
later entries, in open topics and in others. Stored entries never change, so readers check each
entry for its stamps.

A stamper of a stored policy may be missing at the next start, if its plugin was uninstalled. Then
the topic can be read and the policy can be changed, but nothing can be appended (`StampingError`
has the reason). Otherwise entries would be stored without stamps that users rely on.

Everything here runs on the event loop, except functions that are documented as blocking.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ...metadata import StamperChain
from ...wire import TopicName
from ..cooperative import Turns
from ..policies.levels import Levels
from ..policies.own_policies import POLICY_NAME, STAMPS, InvalidPolicyError, StampPolicy
from .policy_store import PolicyStore

if TYPE_CHECKING:
    from .partitioned_topics import PartitionedTopics
    from .topic import Topic
    from .topic_names import TopicNames

__all__ = ["StampPolicies"]

log = logging.getLogger(__name__)


@lru_cache(maxsize=256)
def _at_broker(chain: StamperChain, broker_name: str) -> StamperChain:
    """One chain for all topics that have the same policy."""
    return chain.at_broker(broker_name)


class StampPolicies(Levels[StampPolicy]):
    """The policy at all levels, for the topics of one registry."""

    def __init__(
        self,
        default: StampPolicy,
        store: PolicyStore,
        open_topics: Mapping[str, Topic],
        names: TopicNames,
        partitioned: PartitionedTopics,
        turns: Turns,
        *,
        broker_name: str = "",
    ) -> None:
        super().__init__(STAMPS, default, store)
        self._open_topics = open_topics
        self._names = names
        self._partitioned = partitioned
        self._turns = turns
        self.broker_name = broker_name
        store.of_topic_changed.append(self._changed)

    def check_stored(self) -> None:
        """Import the stampers of all stored policies, and log those that are missing. Blocks."""
        for owner, settings in self._store.owners():
            if POLICY_NAME in settings:
                try:
                    StampPolicy.from_json(settings[POLICY_NAME])
                except InvalidPolicyError as error:
                    log.error(
                        "%s: nothing can be appended, because a stored policy is not valid: %s; "
                        "install the stamper or change the policy",
                        owner,
                        error,
                    )

    # -- reading --------------------------------------------------------------------------------

    def parse(self, stored: Any) -> StampPolicy:
        """The policy from its stored value."""
        return StampPolicy.stored(stored)

    def show(self, value: StampPolicy) -> Any:
        """The policy's JSON."""
        return value.to_json()

    def apply_to(self, topic: Topic) -> None:
        """Apply its policy to a topic: its stampers, delivered fields and tombstone property."""
        policy = self.applied(topic.topic_name)
        topic.ledger.stampers = _at_broker(policy.chain, self.broker_name)
        topic.delivered_fields = policy.delivered_fields
        topic.tombstone_property = policy.chain.tombstone_property

    # -- changing -------------------------------------------------------------------------------

    async def changed_in_namespace(self, namespace: str) -> None:
        """Apply the new policy to a namespace's topics."""
        # A topic that is opened meanwhile already gets the new policy.
        await self._turns.work(self._applying_in(namespace))

    def _changed(self, policy: str, name: TopicName) -> None:
        """A topic's policy has changed: a new one holds for it and its partitions."""
        if policy == POLICY_NAME:
            self._apply(str(name))
            for index in range(self._partitioned.count_of(name)):
                self._apply(str(name.partition(index)))

    def _apply(self, full: str) -> None:
        topic = self._open_topics.get(full)
        if topic is not None:
            self.apply_to(topic)

    def _applying_in(self, namespace: str) -> Iterator[None]:
        for full in self._names.of(namespace):
            self._apply(full)
            yield

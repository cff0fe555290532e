"""The policy `brokerEntryMetadata`: the stampers of a topic, and the stamps that consumers get.

Its value is `{"stampers": [...]}`, with names as `StamperChain.from_names` takes them. An empty
list switches stamps off. It may also have `"delivered": [...]`: consumers that ask for entry
metadata (PIP-90) get these fields in addition to time and index. A field is a registered name such
as `application_tags`, or the number of a third party's field in digits. The policy can be set at
three levels, and the most specific one counts:

==========  =============================================  =======================================
level       stored in                                      for
==========  =============================================  =======================================
broker      the configuration                              every topic
namespace   the namespace's settings in the catalog        every topic of the namespace
topic       the catalog, kind `topic-policy`, full name    the topic, and all of its partitions
==========  =============================================  =======================================

A change is durable when the call returns. It applies to all later entries, in open topics and in
others. Stored entries never change, so readers check each entry for its stamps. With and without
stamps every entry takes its indexes, so that later stamps have no gap.

A stamper of a stored policy may be missing at the next start, if its plugin was uninstalled. Then
the topic can be read and the policy can be changed, but nothing can be appended (`StampingError`
has the reason). Otherwise entries would be stored without stamps that users rely on.

Everything here runs on the event loop, except functions that are documented as blocking.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ...metadata import (
    BrokerEntryMetadata,
    StampContext,
    StamperChain,
    StampError,
    field_number_of,
)
from ...wire import TopicName
from ..cooperative import Turns
from ..policies.levels import Levels
from ..policies.policy import Place, Policy, PolicyValueError
from .policy_store import PolicyStore

if TYPE_CHECKING:
    from .partitioned_topics import PartitionedTopics
    from .topic import Topic
    from .topic_names import TopicNames

__all__ = ["POLICY_NAME", "STAMPS", "InvalidPolicyError", "StampPolicies", "StampPolicy"]

log = logging.getLogger(__name__)

POLICY_NAME = "brokerEntryMetadata"
MAX_STAMPERS = 32
MAX_DELIVERED = 64
#: One object for all topics that have the default policy.
_NO_FIELDS: frozenset[int] = frozenset()
MAX_NAME_LENGTH = 4_096
#: Control characters, and halves of characters that UTF-8 does not have.
_NOT_TEXT = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class InvalidPolicyError(PolicyValueError):
    """A value that the policy cannot have.

    `value` is the value given, `reason` says what is wrong, with the name of the stamper if one is
    the cause.
    """

    def __init__(self, value: object, reason: str) -> None:
        super().__init__(POLICY_NAME, value, reason)


@lru_cache(maxsize=256)
def _chain(names: tuple[str, ...]) -> StamperChain:
    """The chain with these stampers. Blocks if it imports a plugin. Raises `StampError`."""
    return StamperChain.from_names(names)


@lru_cache(maxsize=256)
def _at_broker(chain: StamperChain, broker_name: str) -> StamperChain:
    """One chain for all topics that have the same policy."""
    return chain.at_broker(broker_name)


@dataclass(frozen=True, slots=True)
class StampPolicy:
    """A value of the policy."""

    stampers: tuple[str, ...]
    chain: StamperChain = field(compare=False)
    #: Fields that clients get in addition to time and index, by name or number.
    delivered: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, value: Any) -> StampPolicy:
        """Make the policy from its JSON value. Blocks. Raises `InvalidPolicyError`."""
        names, delivered = _names(value), _delivered(value)
        try:
            return cls(names, _chain(names), delivered)
        except StampError as error:
            raise InvalidPolicyError(value, str(error)) from error

    @classmethod
    def stored(cls, value: Any) -> StampPolicy:
        """Make a policy from a stored value. If it is not valid any more, it refuses to stamp."""
        try:
            return cls.from_json(value)
        except InvalidPolicyError as error:
            return cls(("unavailable",), StamperChain([_Unavailable(error.reason)]))

    @property
    def delivered_fields(self) -> frozenset[int]:
        """The numbers of the fields that clients get in addition to time and index."""
        numbers = (field_number_of(name) for name in self.delivered)
        return frozenset(number for number in numbers if number is not None) or _NO_FIELDS

    def to_json(self) -> dict[str, list[str]]:
        """The value as the admin interface shows it."""
        shown = {"stampers": list(self.stampers)}
        if self.delivered:
            shown["delivered"] = list(self.delivered)
        return shown


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, dict) or set(value) - {"delivered"} != {"stampers"}:
        raise InvalidPolicyError(
            value, 'must be an object {"stampers": [names]}, and may have "delivered": [fields]'
        )
    names = value["stampers"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InvalidPolicyError(value, "stampers must be a list of names")
    if len(names) > MAX_STAMPERS:
        raise InvalidPolicyError(
            value, f"it has {len(names)} stampers; at most {MAX_STAMPERS} are allowed"
        )
    for name in names:
        if len(name) > MAX_NAME_LENGTH:
            raise InvalidPolicyError(
                value,
                f"the stamper name {name[:40]!r}... is longer than {MAX_NAME_LENGTH} characters",
            )
        if _NOT_TEXT.search(name):
            reason = f"the stamper name {ascii(name)[:80]} holds a control character or is not text"
            raise InvalidPolicyError(value, reason)
    return tuple(names)


def _delivered(value: dict[str, Any]) -> tuple[str, ...]:
    fields = value.get("delivered", [])
    if not isinstance(fields, list) or not all(isinstance(name, str) for name in fields):
        raise InvalidPolicyError(value, "delivered must be a list of fields")
    if len(fields) > MAX_DELIVERED:
        raise InvalidPolicyError(
            value, f"it has {len(fields)} delivered fields; at most {MAX_DELIVERED} are allowed"
        )
    for name in fields:
        if field_number_of(name) is None:
            raise InvalidPolicyError(value, f"delivered has an unknown field {name[:40]!r}")
    return tuple(fields)


class _Unavailable:
    """Replaces stampers that cannot be loaded, and refuses to stamp producers' entries.

    The broker's own control entries are stored without stamps: a missing plugin must not stop them.
    """

    __slots__ = ("_reason",)
    name = "unavailable"

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def stamp(self, context: StampContext, metadata: BrokerEntryMetadata) -> None:
        raise StampError(
            f"a stamper of the topic's policy cannot be loaded: {self._reason}; "
            "install it or change the policy"
        )


def _read(value: Any) -> Any:
    return StampPolicy.from_json(value).to_json()


STAMPS = Policy(
    name=POLICY_NAME,
    key=POLICY_NAME,
    what="the stampers of the entries, and the stamps that consumers get",
    read=_read,
    default=lambda config: {"stampers": list(config.stampers)},
    namespace=Place(POLICY_NAME, empty="null"),
    topic=Place(POLICY_NAME, empty="null"),
    is_ours=True,
    read_blocks=True,
)


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

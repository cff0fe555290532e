"""The policy `brokerEntryMetadata`: who stamps the entries of which topic, and who sees it.

Its value is `{"stampers": [...]}`, names as `StamperChain.from_names` takes them; an empty list
switches stamps off. With `"delivered": [...]` beside it, consumers that ask for entry metadata
(PIP-90) get these fields besides time and index: names of the registry, such as
`application_tags`, or numbers of third parties' fields in digits. It is kept at three levels, and
the most specific one that is set wins:

==========  =============================================  =======================================
level       kept in                                        for
==========  =============================================  =======================================
broker      the configuration                              every topic
namespace   the namespace's settings in the catalog        every topic of the namespace
topic       the catalog, kind `topic-policy`, full name    the topic, and all of its partitions
==========  =============================================  =======================================

A change is durable when the call returns, and holds for every entry appended from then on, on
topics that are open as on others. What is stored already is never touched: readers decide entry by
entry. Off or on, entries take their indexes, so that stamps go on without a gap.

A stamper that a stored policy names may be gone at the next start: a plugin was uninstalled. Then
the topic can be read, and the policy changed, but nothing can be appended (`StampingError` says
why): entries are not silently stored without what somebody relies on.

Everything here runs on the event loop, except where it says that it blocks.
"""

from __future__ import annotations

import json
import logging
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
from ...proto.pulsar_api_pb2 import ServerError
from ...wire import TopicName
from ..errors import BrokerError, RefusedError
from ..long_work import Turns
from .catalog_writer import CatalogWriter

if TYPE_CHECKING:
    from ...ledger.store import MetadataStore
    from .namespaces import Namespaces
    from .partitioned_topics import PartitionedTopics
    from .topic import Topic
    from .topic_names import TopicNames

__all__ = ["POLICY_NAME", "InvalidPolicyError", "StampPolicies", "StampPolicy"]

log = logging.getLogger(__name__)

POLICY_NAME = "brokerEntryMetadata"
TOPIC_POLICY_KIND = "topic-policy"
MAX_STAMPERS = 32
MAX_DELIVERED = 64
MAX_NAME_LENGTH = 4_096


class InvalidPolicyError(BrokerError, ValueError):
    """A value that the policy cannot have.

    `value` is what was given, `reason` says what is wrong with it, with the stamper's name if it is
    one of the stampers.
    """

    def __init__(self, value: object, reason: str) -> None:
        super().__init__(f"{POLICY_NAME}: {reason}")
        self.value = value
        self.reason = reason


@lru_cache(maxsize=256)
def _chain(names: tuple[str, ...]) -> StamperChain:
    """Blocks where a plugin has to be imported. Raises `StampError`."""
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
    #: Fields besides time and index that clients get, by name or number.
    delivered: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, value: Any) -> StampPolicy:
        """The policy that a JSON value means. Blocks. Raises `InvalidPolicyError`."""
        names, delivered = _names(value), _delivered(value)
        try:
            return cls(names, _chain(names), delivered)
        except StampError as error:
            raise InvalidPolicyError(value, str(error)) from error

    @classmethod
    def stored(cls, value: Any) -> StampPolicy:
        """A policy that was accepted once. Where it cannot be kept now, nothing can be stamped."""
        try:
            return cls.from_json(value)
        except InvalidPolicyError as error:
            return cls(("unavailable",), StamperChain([_Unavailable(error.reason)]))

    @property
    def delivered_fields(self) -> frozenset[int]:
        """The numbers of the fields besides time and index that clients get."""
        numbers = (field_number_of(name) for name in self.delivered)
        return frozenset(number for number in numbers if number is not None)

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
        raise InvalidPolicyError(value, f"{len(names)} stampers, at most {MAX_STAMPERS} may be")
    for name in names:
        if len(name) > MAX_NAME_LENGTH:
            raise InvalidPolicyError(value, f"stamper {name[:40]!r}... is too long a name")
    return tuple(names)


def _delivered(value: dict[str, Any]) -> tuple[str, ...]:
    fields = value.get("delivered", [])
    if not isinstance(fields, list) or not all(isinstance(name, str) for name in fields):
        raise InvalidPolicyError(value, "delivered must be a list of fields")
    if len(fields) > MAX_DELIVERED:
        raise InvalidPolicyError(
            value, f"{len(fields)} delivered fields, at most {MAX_DELIVERED} may be"
        )
    for name in fields:
        if field_number_of(name) is None:
            raise InvalidPolicyError(value, f"there is no field {name[:40]!r} to deliver")
    return tuple(fields)


class _Unavailable:
    """Stands for stampers that cannot be loaded, and refuses to stamp what producers send.

    The broker's own control entries go in unstamped: no policy's plugin may stop them.
    """

    __slots__ = ("_reason",)
    name = "unavailable"

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def stamp(self, context: StampContext, metadata: BrokerEntryMetadata) -> None:
        raise StampError(f"the topic's policy cannot be kept: {self._reason}")


class StampPolicies:
    """The policy at all levels, for the topics of one registry."""

    def __init__(
        self,
        default: StampPolicy,
        writer: CatalogWriter,
        namespaces: Namespaces,
        open_topics: Mapping[str, Topic],
        names: TopicNames,
        partitioned: PartitionedTopics,
        turns: Turns,
        *,
        broker_name: str = "",
    ) -> None:
        self.default = default
        self._writer = writer
        self._namespaces = namespaces
        self._open_topics = open_topics
        self._names = names
        self._partitioned = partitioned
        self._turns = turns
        self._broker_name = broker_name
        #: Settings of topics by full name; those of partitions are the partitioned topic's.
        self._of_topics: dict[str, dict[str, Any]] = {}

    def _exists(self, name: TopicName) -> bool:
        return str(name) in self._names or name in self._partitioned

    def load(self, catalog: MetadataStore) -> None:
        """Take over what the catalog has, and import the stampers that it names. Blocks."""
        for name, value in catalog.items(TOPIC_POLICY_KIND):
            if self._exists(TopicName.parse(name)):
                self._of_topics[name] = json.loads(value)
            else:
                # Left by a crash while the topic was being deleted.
                catalog.delete(TOPIC_POLICY_KIND, name)
        for owner, settings in (*self._namespaces.items(), *self._of_topics.items()):
            if POLICY_NAME in settings:
                try:
                    StampPolicy.from_json(settings[POLICY_NAME])
                except InvalidPolicyError as error:
                    log.error("%s: nothing can be appended: %s", owner, error)

    # -- asking ---------------------------------------------------------------------------------

    def of_namespace(self, namespace: str) -> StampPolicy | None:
        """What is set for a namespace; None: nothing."""
        return _in(self._namespaces.get(namespace, {}))

    def of_topic(self, name: TopicName) -> StampPolicy | None:
        """What is set for a topic; None: nothing."""
        return _in(self._of_topics.get(str(name.partitioned), {}))

    def applied(self, name: TopicName) -> StampPolicy:
        """What holds for a topic."""
        return self.of_topic(name) or self.of_namespace(name.namespace) or self.default

    def apply_to(self, topic: Topic) -> None:
        """Let a topic stamp, and deliver stamps, as its policy says from now on."""
        policy = self.applied(topic.topic_name)
        topic.ledger.stampers = _at_broker(policy.chain, self._broker_name)
        topic.delivered_fields = policy.delivered_fields

    # -- changing -------------------------------------------------------------------------------

    async def set_for_namespace(self, namespace: str, policy: StampPolicy | None) -> None:
        """Set a namespace's policy; None unsets it. Raises `RefusedError`, `LedgerError`."""
        await self._namespaces.change(namespace, lambda old: _with(old, policy))
        # A topic that is opened meanwhile is opened with the new policy.
        await self._turns.work(self._applying_in(namespace))

    async def set_for_topic(self, name: TopicName, policy: StampPolicy | None) -> None:
        """Set a topic's policy, not a partition's; None unsets it.

        Raises `RefusedError` for a topic that is not there, and `LedgerError`.
        """
        await self._writer.in_turn(lambda: self._set(name, policy))

    async def _set(self, name: TopicName, policy: StampPolicy | None) -> None:
        if not self._exists(name):
            raise RefusedError(ServerError.TopicNotFound, f"Topic {name} not found")
        full = str(name)
        settings = _with(self._of_topics.get(full, {}), policy)
        stored = json.dumps(settings, sort_keys=True).encode() if settings else None
        await self._writer.write((TOPIC_POLICY_KIND, full, stored))
        self._show(name, settings)

    def _show(self, name: TopicName, settings: dict[str, Any]) -> None:
        """From now on a topic has these settings, or none."""
        if settings:
            self._of_topics[str(name)] = settings
        else:
            self._of_topics.pop(str(name), None)
        self._apply(str(name))
        for index in range(self._partitioned.count_of(name)):
            self._apply(str(name.partition(index)))

    async def forget(self, name: TopicName) -> None:
        """A topic was deleted, and its policy with it; a partition has none of its own."""
        await self._writer.in_turn(lambda: self._forget(name))

    async def _forget(self, name: TopicName) -> None:
        if str(name) in self._of_topics:
            await self._writer.write((TOPIC_POLICY_KIND, str(name), None))
        # A producer may have made the topic anew already.
        self._show(name, {})

    def _apply(self, full: str) -> None:
        topic = self._open_topics.get(full)
        if topic is not None:
            self.apply_to(topic)

    def _applying_in(self, namespace: str) -> Iterator[None]:
        for full in self._names.of(namespace):
            self._apply(full)
            yield


def _in(settings: dict[str, Any]) -> StampPolicy | None:
    value = settings.get(POLICY_NAME)
    return None if value is None else StampPolicy.stored(value)


def _with(settings: dict[str, Any], policy: StampPolicy | None) -> dict[str, Any]:
    """The settings with the policy set, or without it."""
    changed = {name: value for name, value in settings.items() if name != POLICY_NAME}
    if policy is not None:
        changed[POLICY_NAME] = policy.to_json()
    return changed

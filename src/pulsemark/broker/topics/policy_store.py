"""The policies of namespaces and topics: how they are stored, and put in force on open topics.

In the catalog, the policies of a namespace are among its settings, and those of a topic are under
the kind `topic-policy`, by the topic's full name. Partitions have no own policies: those of the
partitioned topic apply. The caller checks a change, `PolicyStore` makes it durable, and only then
calls the listeners with the topics that the change concerns.

`RuleKeeping` applies policies when a topic is opened, and when one changes: that of a topic in the
step that shows it, that of a namespace to all its open topics, in pieces. `Admission` checks each
message by them.

`StampPolicies` does the same for `brokerEntryMetadata`. A change holds for all later entries. If a
stamper of a stored policy is missing at the next start, because its plugin was uninstalled, the
topic can be read and the policy changed, but nothing can be appended (`StampingError` has the
reason): entries without stamps would deceive users who rely on them.

Everything here runs on the event loop, except functions that are documented as blocking.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from ...ledger import Appended, LedgerError, ManagedLedger, Position
from ...metadata import Buffer, MessageFormatError, StamperChain, read_message_metadata
from ...proto.pulsar_api_pb2 import CommandSend, ServerError
from ...wire import TopicName
from ..cooperative import Background, Turns
from ..errors import RefusedError
from ..policies.own_policies import POLICY_NAME, STAMPS, InvalidPolicyError, StampPolicy
from ..policies.policy import Levels
from ..policies.rate_limits import dispatch_limit, publish_limit
from ..policies.topic_rules import RULED, TopicRules, rules_of
from ..subscriptions.delayed import deliver_at_ms
from ..subscriptions.seek import messages_in
from .catalog_writer import CatalogWriter
from .deduplication import SNAPSHOT_KIND, Deduplication, Snapshot, recovered

if TYPE_CHECKING:
    from ...connection_memory import Throttled
    from ...ledger.store import MetadataStore
    from ...metadata import Clock
    from ..policies.rate_limits import PublishLimit
    from .namespaces import Namespaces
    from .partitioned_topics import PartitionedTopics
    from .producers import Producer
    from .registry import Topics
    from .topic import Topic
    from .topic_names import TopicNames


log = logging.getLogger(__name__)

TOPIC_POLICY_KIND = "topic-policy"

_NO_POLICIES: Mapping[str, Any] = {}

Concerns = Callable[[TopicName], bool]
"""Whether a change concerns a topic."""


class PolicyStore:
    """The policies of one registry's namespaces and topics."""

    def __init__(
        self,
        namespaces: Namespaces,
        names: TopicNames,
        partitioned: PartitionedTopics,
        writer: CatalogWriter,
    ) -> None:
        self._namespaces = namespaces
        self._names = names
        self._partitioned = partitioned
        self._writer = writer
        #: Settings of topics by full name; those of partitions are the partitioned topic's.
        self.of_topics: dict[str, dict[str, Any]] = {}
        #: Called after each change with the policy's name and the topics that it concerns.
        self.listeners: list[Callable[[str, Concerns], None]] = []
        #: Called with the policy's name and the topic, in the same turn as the change.
        self.of_topic_changed: list[Callable[[str, TopicName], None]] = []

    def _exists(self, name: TopicName) -> bool:
        return str(name) in self._names or name in self._partitioned

    def load(self, catalog: MetadataStore) -> None:
        """Read the policies from the catalog. Blocks."""
        for name, value in catalog.items(TOPIC_POLICY_KIND):
            if self._exists(TopicName.parse(name)):
                self.of_topics[name] = json.loads(value)
            else:
                # Left by a crash while the topic was being deleted.
                catalog.delete(TOPIC_POLICY_KIND, name)

    # -- asking ---------------------------------------------------------------------------------

    def in_namespace(self, namespace: str, policy: str) -> Any:
        """The policy set for a namespace; None if none is set."""
        return self._namespaces.get(namespace, {}).get(policy)

    def in_topic(self, name: TopicName, policy: str) -> Any:
        """The policy set for a topic; None if none is set."""
        return self.of_topics.get(str(name.partitioned), {}).get(policy)

    def policies_of_topic(self, name: TopicName) -> Mapping[str, Any]:
        """All policies set for a topic; those of a partition are the partitioned topic's."""
        return self.of_topics.get(str(name.partitioned), _NO_POLICIES)

    def owners(self) -> Iterable[tuple[str, Mapping[str, Any]]]:
        """A copy of all namespaces and topics with their settings. Call it from any thread."""
        return (*self._namespaces.snapshot(), *tuple(self.of_topics.items()))

    def is_set(self, policy: str) -> bool:
        """Whether any namespace or topic has a value of this policy."""
        keys = (policy, f"global:{policy}")
        return any(key in values for _, values in self.owners() for key in keys)

    # -- changing -------------------------------------------------------------------------------

    async def set_in_namespace(self, namespace: str, policy: str, value: Any) -> None:
        """Set a namespace's policy; None unsets it. Raises `RefusedError`, `LedgerError`."""
        await self.revise_in_namespace(namespace, policy, lambda _: value)

    async def revise_in_namespace(
        self, namespace: str, policy: str, revise: Callable[[Any], Any]
    ) -> None:
        """As `revise_in_topic`, for a namespace's policy."""
        await self._namespaces.change(
            namespace, lambda old: _with(old, policy, revise(old.get(policy)))
        )
        self.announce(policy, lambda name: name.namespace == namespace)

    async def set_in_topic(self, name: TopicName, policy: str, value: Any) -> None:
        """Set a topic's policy, not a partition's; None unsets it.

        Raises `RefusedError` if the topic does not exist, and `LedgerError`.
        """
        await self.change_in_topic(name, lambda: {policy: value})

    async def change_in_topic(
        self, name: TopicName, changes: Callable[[], Mapping[str, Any]]
    ) -> None:
        """As `set_in_topic`, for several policies at once.

        Changes are made one after the other, and each is asked for when its turn has come. Raises
        also as `changes`.
        """
        await self._writer.revising(lambda: self._change(name, changes))

    async def revise_in_topic(
        self, name: TopicName, policy: str, revise: Callable[[Any], Any]
    ) -> None:
        """Set a topic's policy to what `revise` makes of its value, which may be None."""
        await self.change_in_topic(name, lambda: {policy: revise(self.in_topic(name, policy))})

    async def _change(self, name: TopicName, changes: Callable[[], Mapping[str, Any]]) -> None:
        if not self._exists(name):
            raise RefusedError(ServerError.TopicNotFound, f"Topic {name} not found")
        full, made = str(name), changes()
        settings = self.of_topics.get(full, {})
        for policy, value in made.items():
            settings = _with(settings, policy, value)
        await self._writer.write((TOPIC_POLICY_KIND, full, stored_policies(settings)))
        self.show(name, settings)
        self._announce_all(name, made)

    def show(self, name: TopicName, settings: dict[str, Any]) -> None:
        """Show a topic's new settings; empty settings are removed."""
        if settings:
            self.of_topics[str(name)] = settings
        else:
            self.of_topics.pop(str(name), None)

    def take(self, full: str, value: bytes | None) -> None:
        """Show the policies of a topic that another broker has stored; None: it has none now."""
        name = TopicName.parse(full)
        before, after = self.of_topics.get(full, {}), {} if value is None else json.loads(value)
        self.show(name, after)
        self._announce_all(name, _differing(before, after))

    def took_namespace(
        self, namespace: str, before: Mapping[str, Any], after: Mapping[str, Any]
    ) -> None:
        """Another broker has changed a namespace's policies, which are shown already."""
        for policy in _differing(before, after):
            self.announce(policy, lambda name: name.namespace == namespace)

    async def forget(self, name: TopicName) -> None:
        """Forget the policies of a deleted topic; a partition has none."""
        await self._writer.in_turn(lambda: self._forget(name))

    async def _forget(self, name: TopicName) -> None:
        settings = self.of_topics.get(str(name))
        if settings is not None:
            await self._writer.write((TOPIC_POLICY_KIND, str(name), None))
        self.show(name, {})
        # A producer may have created the topic again already.
        self._announce_all(name, settings or ())

    def _announce_all(self, name: TopicName, policies: Iterable[str]) -> None:
        for policy in policies:
            for changed in self.of_topic_changed:
                changed(policy, name)
            self.announce(policy, lambda other: other.partitioned == name)

    def announce(self, policy: str, concerns: Concerns) -> None:
        """Tell the listeners that a policy has another value for the topics that it concerns."""
        for listener in self.listeners:
            listener(policy, concerns)


def _differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    return [key for key in {**before, **after} if before.get(key) != after.get(key)]


def stored_policies(settings: Mapping[str, Any]) -> bytes | None:
    """A topic's policies as the catalog has them; None without any."""
    return json.dumps(settings, sort_keys=True).encode() if settings else None


def _with(settings: dict[str, Any], policy: str, value: Any) -> dict[str, Any]:
    """The settings with the policy set, or without it."""
    changed = {name: old for name, old in settings.items() if name != policy}
    if value is not None:
        changed[policy] = value
    return changed


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
                    text = "%s: nothing can be appended, as a stored policy is not valid: %s; %s"
                    log.error(text, owner, error, "install the stamper or change the policy")

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
        await self._turns.work(map(self._apply, self._names.of(namespace)))

    def _changed(self, policy: str, name: TopicName) -> None:
        """A topic's policy has changed: a new one holds for it and its partitions."""
        if policy == POLICY_NAME:
            for full in self._partitioned.with_partitions(name):
                self._apply(full)

    def _apply(self, full: str) -> None:
        topic = self._open_topics.get(full)
        if topic is not None:
            self.apply_to(topic)


class RuleKeeping:
    """The rules of one registry's open topics."""

    def __init__(self, topics: Topics, run_blocking: Callable[..., Awaitable[Any]]) -> None:
        self._topics = topics
        self._run_blocking = run_blocking
        self._background = Background()
        self._shared: dict[TopicRules, TopicRules] = {}
        self._loop = asyncio.get_running_loop()
        topics.policy_store.listeners.append(self._policy_changed)

    # -- opening and changing -------------------------------------------------------------------

    async def opened(self, topic: Topic) -> None:
        """Apply its rules to a topic that is being opened. Raises `RefusedError`."""
        topic.rules = self._rules(topic.topic_name)
        self._watch(topic.ledger)
        if topic.rules.deduplicates:
            topic.deduplication = await self._recovered(topic)
        self._show(topic)

    async def _recovered(self, topic: Topic) -> Deduplication:
        ledger, now_ms = topic.ledger, self._topics.config.clock.now_ms
        try:
            stored = await self._run_blocking(self._topics.catalog.get, SNAPSHOT_KIND, topic.name)
            found = await self._run_blocking(recovered, ledger, stored, now_ms())
            if stored is None:
                value = found.stored(ledger.topic_id)
                await self._topics.catalog_writer.put(SNAPSHOT_KIND, topic.name, value)
        except (LedgerError, OSError) as error:
            reason = f"{topic.name}: deduplication could not begin: {error}"
            raise RefusedError(ServerError.PersistenceError, reason) from error
        return self._deduplication(topic, found)

    def _deduplication(self, topic: Topic, snapshot: Snapshot) -> Deduplication:
        is_connected = topic.producers.by_name.__contains__
        return Deduplication(snapshot, self._topics.config.clock.now_ms, topic.name, is_connected)

    def _rules(self, name: TopicName) -> TopicRules:
        rules = rules_of(self._topics.policies, name)
        if len(self._shared) > 1_000:
            self._shared.clear()
        return self._shared.setdefault(rules, rules)

    def _policy_changed(self, policy: str, concerns: Concerns) -> None:
        if policy.removeprefix("global:") not in RULED:
            return
        opened = tuple(self._topics.open_topics.values())
        concerned = [topic for topic in opened if concerns(topic.topic_name)]
        if len(concerned) == 1:
            self._apply(concerned[0])
        elif concerned:
            self._background.start(self._topics.turns.work(map(self._apply, concerned)))

    def _apply(self, topic: Topic) -> None:
        rules = self._rules(topic.topic_name)
        if rules is topic.rules or not topic.is_open:
            return
        topic.rules = rules
        if rules.deduplicates != (topic.deduplication is not None):
            self._switch(topic)
        self._show(topic)

    def _switch(self, topic: Topic) -> None:
        """Switch deduplication on, from the log's end on as in Pulsar, or off."""
        value = topic.deduplication = None
        if topic.rules.deduplicates:
            snapshot = Snapshot(topic.ledger.end_position, {})
            value = snapshot.stored(topic.ledger.topic_id)
            topic.deduplication = self._deduplication(topic, snapshot)
        # Writes are made in the order in which they begin.
        self._background.start(self._topics.catalog_writer.put(SNAPSHOT_KIND, topic.name, value))

    def _show(self, topic: Topic) -> None:
        """Put a topic's rules in force."""
        rules, clock = topic.rules, self._topics.config.clock
        before = topic.admission
        if before is not None and before.publish_limit is not None:
            before.publish_limit.end()
        limit = publish_limit(dict(rules.publish_rate), clock)
        made = Admission(rules, topic.deduplication, limit, clock)
        topic.admission = made if made.checks_something else None
        topic.dispatch_limit = dispatch_limit(dict(rules.dispatch_rate), clock)
        for subscription in tuple(topic.subscriptions.values()):
            subscription.rules_changed()
        if rules.needs_encryption:
            topic.producers.disconnect_those(lambda producer: not producer.is_encrypted)

    # -- snapshots ------------------------------------------------------------------------------

    async def store_snapshot(self, topic: Topic) -> None:
        """Store the producers' highest sequence ids. Raises LedgerError."""
        deduplication, config = topic.deduplication, self._topics.config
        if deduplication is None or not topic.is_open:
            return
        snapshot = deduplication.snapshot(
            config.broker_deduplication_producer_inactivity_timeout_ms,
            config.broker_deduplication_max_number_of_producers,
        )
        value = snapshot.stored(topic.ledger.topic_id)
        await self._topics.catalog_writer.put(SNAPSHOT_KIND, topic.name, value)

    def _watch(self, ledger: ManagedLedger) -> None:
        hooks = ledger.before_removal
        # A topic that is closed and opened again has the same ledger.
        if self._before_removal not in [getattr(hook, "func", None) for hook in hooks]:
            hooks.append(partial(self._before_removal, ledger.name))

    def _before_removal(self, name: str, before: Position) -> None:
        """On a thread that removes entries: a snapshot has what they say."""
        topic = self._topics.open_topics.get(name)
        if topic is not None and topic.deduplication is not None:
            work = self.store_snapshot(topic)
            asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def settled(self) -> None:
        """Return when no change is being applied."""
        await self._background.settled()


class Admission:
    """The checks of one topic."""

    __slots__ = ("_clock", "_rules", "deduplication", "publish_limit")

    def __init__(
        self,
        rules: TopicRules,
        deduplication: Deduplication | None,
        publish_limit: PublishLimit | None,
        clock: Clock,
    ) -> None:
        self.deduplication = deduplication
        self.publish_limit = publish_limit
        self._rules = rules
        self._clock = clock

    @property
    def checks_something(self) -> bool:
        """Whether it has anything to do."""
        rules = self._rules
        return bool(
            self.deduplication is not None
            or self.publish_limit is not None
            or rules.max_message_size_bytes
            or rules.needs_encryption
            or rules.max_delay_ms
        )

    def admit(self, producer: Producer, command: CommandSend, body: Buffer) -> Appended | None:
        """Check a message; return the entry after which it must be stored, if there is one.

        Raises `RefusedError`, `DuplicateMessageError`.
        """
        rules = self._rules
        limit_bytes = rules.max_message_size_bytes
        if limit_bytes and len(body) > limit_bytes:
            raise RefusedError(ServerError.NotAllowedError, "Exceed maximum message size")
        if rules.needs_encryption and not _is_encrypted(body):
            raise RefusedError(ServerError.MetadataError, "Messages must be encrypted")
        if rules.max_delay_ms and deliver_at_ms(body) - self._clock.now_ms() > rules.max_delay_ms:
            reason = f"Exceeds max allowed delivery delay of {rules.max_delay_ms} milliseconds"
            raise RefusedError(ServerError.NotAllowedError, reason)
        if self.deduplication is None:
            return None
        return self.deduplication.admit(producer.name, command)

    def appended(
        self,
        connection: Throttled,
        producer: Producer,
        command: CommandSend,
        body: Buffer,
        appended: Appended,
    ) -> None:
        """An admitted message was appended."""
        if self.deduplication is not None:
            self.deduplication.appended(producer.name, command, body, appended)
        if self.publish_limit is not None:
            said = command.num_messages
            messages = messages_in(body, said) if said > 1 else said
            self.publish_limit.published(connection, messages, len(body))


def _is_encrypted(body: Buffer) -> bool:
    try:
        return bool(read_message_metadata(body).encryption_keys)
    except MessageFormatError:
        return False

"""The policies of namespaces and topics: how they are stored, and put in force on open topics.

A policy has a value as JSON at up to three levels: the broker's configuration, a namespace and a
topic. The most specific value that is set applies. In the catalog, the policies of a namespace are
among its settings, and those of a topic are under the kind `topic-policy`, by the topic's full
name. Partitions have no own policies: those of the partitioned topic apply. The caller checks a
change, `Policies` makes it durable, and only then calls the listeners with the topics that the
change concerns.

`RuleKeeping` applies all policies to a topic that is opened, and again when one of them changes:
at once while the loop's turn has time, and in later turns to the rest of many topics. The caller of
a change waits for that. `Admission` checks each message by them.

A change of the stampers holds for all later entries. If a stamper of a stored policy is missing at
the next start, because its plugin was uninstalled, the topic can be read and the policy changed,
but nothing can be appended (`StampingError` has the reason): entries without stamps would deceive
users who rely on them.

Everything here runs on the event loop, except functions that are documented as blocking.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from ...ledger import Appended, LedgerError, Position
from ...metadata import Buffer, MessageFormatError, StamperChain, read_message_metadata
from ...proto.pulsar_api_pb2 import CommandSend, ServerError
from ...wire import TopicName
from ..cooperative import Background
from ..errors import RefusedError
from ..policies import pulsar_policies as pulsars
from ..policies.own_policies import POLICY_NAME, STAMPS, InvalidPolicyError, StampPolicy
from ..policies.rate_limits import dispatch_limit, publish_limit
from ..policies.topic_rules import STANDALONE_BYTES, UNLIMITED, Rate, TopicRules
from ..subscriptions.delayed import deliver_at_ms
from ..subscriptions.seek import messages_in
from .catalog_writer import CatalogWriter
from .deduplication import SNAPSHOT_KIND, Deduplication, Snapshot, recovered
from .entry_formats import KAFKA_POLICY, apply_settings, open_cleaned_form

if TYPE_CHECKING:
    from ...connection_memory import Throttled
    from ...ledger.store import MetadataStore
    from ...metadata import Clock
    from ..configuration.config import BrokerConfig
    from ..policies.policy import Policy
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


class Policies:
    """The policies of one broker's namespaces and topics."""

    def __init__(
        self,
        config: BrokerConfig,
        namespaces: Namespaces,
        names: TopicNames,
        partitioned: PartitionedTopics,
        writer: CatalogWriter,
    ) -> None:
        self._levels = {
            each.key: Levels(each, each.default(config), self) for each in pulsars.POLICIES
        }
        self._namespaces = namespaces
        self._names = names
        self._partitioned = partitioned
        self._writer = writer
        #: Settings of topics by full name; those of partitions are the partitioned topic's.
        self.of_topics: dict[str, dict[str, Any]] = {}
        #: Called after each change with the policy's name and the topics that it concerns.
        self.listeners: list[Callable[[str, Concerns], None]] = []
        #: Work of the listeners that goes on after a change was announced.
        self.background = Background()

    def __getitem__(self, policy: Policy) -> Levels:
        return self._levels[policy.key]

    def _exists(self, name: TopicName) -> bool:
        return str(name) in self._names or name in self._partitioned

    def load(self, catalog: MetadataStore) -> None:
        """Read the policies from the catalog, and import the stampers that they name. Blocks."""
        for name, value in catalog.items(TOPIC_POLICY_KIND):
            if self._exists(TopicName.parse(name)):
                self.of_topics[name] = json.loads(value)
            else:
                # Left by a crash while the topic was being deleted.
                catalog.delete(TOPIC_POLICY_KIND, name)
        for owner, settings in self.owners():
            if POLICY_NAME in settings:
                try:
                    StampPolicy.from_json(settings[POLICY_NAME])
                except InvalidPolicyError as error:
                    text = "%s: nothing can be appended, as a stored policy is not valid: %s; %s"
                    log.error(text, owner, error, "install the stamper or change the policy")

    # -- asking ---------------------------------------------------------------------------------

    def value_of(self, place: str | TopicName, policy: str) -> Any:
        """The policy set for a namespace or topic; None if none is set."""
        if isinstance(place, str):
            return self._namespaces.get(place, {}).get(policy)
        return self.policies_of_topic(place).get(policy)

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

    def applied(self, name: TopicName, policy: Policy) -> Any:
        """The value that applies to a topic."""
        return self._levels[policy.key].applied(name)

    def is_used(self, policy: Policy) -> bool:
        """Whether the broker, a namespace or a topic has a value that is not 0, false or empty."""
        keys = (policy.key, f"global:{policy.key}")
        found = (values.get(key) for _, values in self.owners() for key in keys)
        return bool(self[policy].default) or any(found)

    # -- changing -------------------------------------------------------------------------------

    def use_defaults(self, config: BrokerConfig) -> None:
        """Use another configuration's values where no namespace and no topic has one."""
        for key, levels in self._levels.items():
            default = levels.policy.default(config)
            if default != levels.default:
                levels.default = default
                self.announce(key, lambda _: True)

    async def set(self, place: str | TopicName, policy: str, value: Any) -> None:
        """Set the policy of a namespace or topic, not a partition's; None unsets it.

        Raises `RefusedError` if the topic does not exist, and `LedgerError`.
        """
        await self.revise(place, policy, lambda _: value)

    async def revise(
        self, place: str | TopicName, policy: str, change: Callable[[Any], Any]
    ) -> None:
        """Change a policy with `change`, whose argument may be None; otherwise as `set`."""
        if isinstance(place, TopicName):
            name = place
            await self.change_in_topic(name, lambda: {policy: change(self.value_of(name, policy))})
            return
        await self._namespaces.change(
            place, lambda old: _with(old, policy, change(old.get(policy)))
        )
        self.announce(policy, lambda name: name.namespace == place)
        await self.background.settle_running()

    async def change_in_topic(
        self, name: TopicName, changes: Callable[[], Mapping[str, Any]]
    ) -> None:
        """As `set`, for several policies of a topic at once.

        `changes` is called in the turn of the change. Raises also as `changes`.
        """
        await self._writer.revising(lambda: self._change(name, changes))
        await self.background.settle_running()

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
        """Keep a topic's new settings, for all readers; empty settings are removed."""
        if settings:
            self.of_topics[str(name)] = settings
        else:
            self.of_topics.pop(str(name), None)

    def take(self, full: str, value: bytes | None) -> None:
        """Take over a topic's policies that another broker has stored; None: it has none."""
        name = TopicName.parse(full)
        before, after = self.of_topics.get(full, {}), {} if value is None else json.loads(value)
        self.show(name, after)
        self._announce_all(name, _differing(before, after))

    def took_namespace(
        self, namespace: str, before: Mapping[str, Any], after: Mapping[str, Any]
    ) -> None:
        """Announce the policies of a namespace that another broker has changed."""
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
            self.announce(policy, lambda other: other.partitioned == name)

    def announce(self, policy: str, concerns: Concerns) -> None:
        """Tell the listeners that a policy has changed for some topics."""
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


class Levels:
    """One policy with its values for the broker, namespaces and topics."""

    def __init__(self, policy: Policy, default: Any, policies: Policies) -> None:
        """`default` is the broker's value."""
        self.policy = policy
        self.default = default
        self._policies = policies

    def of(self, place: str | TopicName, *, is_global: bool = False) -> Any:
        """The value set for a namespace or topic; None if none is set.

        A topic may have a second, global value (PIP-92). It applies if the first one is not set.
        """
        return self._policies.value_of(place, self._key(is_global))

    def _key(self, is_global: bool) -> str:
        return f"global:{self.policy.key}" if is_global else self.policy.key

    def applied(self, name: TopicName) -> Any:
        """The value that applies to a topic."""
        policies = self._policies.policies_of_topic(name)
        key = self.policy.key
        stored = policies.get(key)
        if stored is None:
            stored = policies.get(f"global:{key}")
        if stored is None:
            stored = self.of(name.namespace)
        if stored is None and KAFKA_POLICY in policies:
            stored = self.policy.default_of_kafkas
        return self.default if stored is None else stored

    async def set(self, place: str | TopicName, value: Any, *, is_global: bool = False) -> None:
        """Set the value of a namespace or topic, not a partition's; None unsets it.

        Raises `RefusedError` if the topic does not exist, and `LedgerError`.
        """
        await self._policies.set(place, self._key(is_global), value)

    async def revise(
        self, place: str | TopicName, change: Callable[[Any], Any], *, is_global: bool = False
    ) -> None:
        """Change the value with `change`, one change after the other; otherwise as `set`."""
        await self._policies.revise(place, self._key(is_global), change)


@lru_cache(maxsize=256)
def _at_broker(chain: StamperChain, broker_name: str) -> StamperChain:
    """Make the chain with a broker's name, shared by all topics with the same policy."""
    return chain.at_broker(broker_name)


def rules_of(policies: Policies, name: TopicName) -> TopicRules:
    """The rules that apply to a topic."""
    applied = policies.applied
    delay = applied(name, pulsars.DELAYED_DELIVERY)
    quotas = applied(name, pulsars.BACKLOG_QUOTAS) or {}
    creation = applied(name, pulsars.AUTO_SUBSCRIPTION_CREATION)
    return TopicRules(
        max_producers=applied(name, pulsars.MAX_PRODUCERS),
        max_consumers=applied(name, pulsars.MAX_CONSUMERS),
        max_consumers_per_subscription=applied(name, pulsars.MAX_CONSUMERS_PER_SUBSCRIPTION),
        max_subscriptions=applied(name, pulsars.MAX_SUBSCRIPTIONS),
        max_unacked_per_consumer=applied(name, pulsars.MAX_UNACKED_PER_CONSUMER) or UNLIMITED,
        max_unacked_per_subscription=applied(name, pulsars.MAX_UNACKED_PER_SUBSCRIPTION)
        or UNLIMITED,
        max_message_size_bytes=applied(name, pulsars.MAX_MESSAGE_SIZE),
        needs_encryption=applied(name, pulsars.ENCRYPTION),
        deduplicates=applied(name, pulsars.DEDUPLICATION),
        creates_subscriptions=creation["allowAutoSubscriptionCreation"],
        subscription_types=_types(policies, name),
        delays_delivery=delay["active"],
        max_delay_ms=max(delay["maxDeliveryDelayInMillis"], 0),
        backlog_limit_bytes=quotas.get(pulsars.STORAGE, {}).get("limitSize") or STANDALONE_BYTES,
        backlog_limit_s=quotas.get(pulsars.MESSAGE_AGE, {}).get("limitTime") or -1,
        publish_rate=_rate(applied(name, pulsars.PUBLISH_RATE)),
        dispatch_rate=_rate(applied(name, pulsars.DISPATCH_RATE)),
        subscription_dispatch_rate=_rate(applied(name, pulsars.SUBSCRIPTION_DISPATCH_RATE)),
        subscription_rates=_rates_of_subscriptions(policies, name),
        subscribe_rate=_rate(applied(name, pulsars.SUBSCRIBE_RATE)),
    )


def _types(policies: Policies, name: TopicName) -> tuple[str, ...]:
    """The allowed subscription types; an empty list counts as not set."""
    levels = policies[pulsars.SUBSCRIPTION_TYPES]
    found = levels.of(name) or levels.of(name.namespace) or levels.default
    return tuple(found) or pulsars.TYPES


def _rates_of_subscriptions(policies: Policies, name: TopicName) -> tuple[tuple[str, Rate], ...]:
    rates: dict[str, Any] = {}
    for key in (f"global:{pulsars.SUBSCRIPTION_RATES}", pulsars.SUBSCRIPTION_RATES):
        rates |= policies.value_of(name, key) or {}
    return tuple((each, _rate(rate)) for each, rate in sorted(rates.items()))


def _rate(rate: dict[str, Any]) -> Rate:
    return tuple(rate.items())


class RuleKeeping:
    """Applies the policies to one registry's open topics."""

    def __init__(self, topics: Topics, broker_name: str) -> None:
        """`broker_name`: the name that stampers write."""
        self._topics = topics
        self._run_blocking = topics.run_blocking
        self._broker_name = broker_name
        self._background = topics.policies.background
        self._shared: dict[TopicRules, TopicRules] = {}
        self._loop = asyncio.get_running_loop()
        topics.policies.listeners.append(self._policy_changed)

    # -- opening and changing -------------------------------------------------------------------

    async def opened(self, topic: Topic) -> None:
        """Apply the policies to an opening topic. Raises `RefusedError`."""
        self._format(topic)
        if KAFKA_POLICY in self._topics.policies.policies_of_topic(topic.topic_name):
            await open_cleaned_form(topic, self._run_blocking)
        topic.rules = self._rules(topic.topic_name)
        topic.ledger.before_removal["deduplication"] = partial(self._before_removal, topic.name)
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
        opened, turns = tuple(self._topics.open_topics.values()), self._topics.turns
        pieces = map(self._apply, [topic for topic in opened if concerns(topic.topic_name)])
        if not turns.run_now(pieces):
            self._background.start(turns.work(pieces))

    def _format(self, topic: Topic) -> None:
        """Apply the topic's policies `stamps` and `kafka` to the open topic."""
        policies = self._topics.policies
        stamps = StampPolicy.stored(policies.applied(topic.topic_name, STAMPS))
        topic.ledger.stampers = _at_broker(stamps.chain, self._broker_name)
        topic.delivered_fields = stamps.delivered_fields
        topic.tombstone_property = stamps.chain.tombstone_property
        apply_settings(topic, policies.value_of(topic.topic_name, KAFKA_POLICY) or {})

    def _apply(self, topic: Topic) -> None:
        self._format(topic)
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
        """Put a topic's rules into force."""
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

    def _before_removal(self, name: str, before: Position) -> None:
        """Store a snapshot that includes entries about to be removed, in that thread."""
        topic = self._topics.open_topics.get(name)
        if topic is not None and topic.deduplication is not None:
            work = self.store_snapshot(topic)
            asyncio.run_coroutine_threadsafe(work, self._loop).result()


class Admission:
    """The checks of one topic's messages by its policies."""

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
        """Whether any check applies."""
        rules = self._rules
        return bool(
            self.deduplication is not None
            or self.publish_limit is not None
            or rules.max_message_size_bytes
            or rules.needs_encryption
            or rules.max_delay_ms
        )

    def admit(self, producer: Producer, command: CommandSend, body: Buffer) -> Appended | None:
        """Check a message. Return the entry after which it must be stored, if there is one.

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
        """Count an admitted message that was appended."""
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

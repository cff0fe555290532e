"""The policies of namespaces and topics over HTTP: six routes for each description of a policy.

Routes, statuses and bodies are those of Apache Pulsar 4.0.8: the answer is 200 with the value, or
with an empty body if none is set, and 204 for a change. With `applied=true` the answer for a topic
is the policy that applies to it. A number that is out of range is answered with 400, not 500.

Three kinds of values have routes of their own: the rates of single subscriptions, the settings for
Kafka's record sets (`entryFormat`, docs/kafka.md), which cannot be unset, and properties.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from ...records import record
from ...wire import TopicName
from ..handlers.checks import check_name
from ..metrics.internal_stats import stored_index
from ..policies.policy import Place, Policy
from ..policies.pulsar_policies import (
    BACKLOG_QUOTAS,
    DISPATCH_RATE,
    POLICIES,
    PROPERTIES,
    RETENTION,
    SUBSCRIPTION_DISPATCH_RATE,
    SUBSCRIPTION_RATES,
    exceeds_retention,
)
from ..security import needs
from ..topics.entry_formats import KAFKA_POLICY, revise_entry_format
from ..topics.policy_store import Levels
from .messages import JSON_TYPE, HttpError, Json, Request, Response
from .paths import check_stored, existing_namespace, existing_topic, int_value
from .route import NAMESPACE, TOPIC, Route, Routes, TopicPath

if TYPE_CHECKING:
    from ..topics.registry import Topics

routes = Routes()
RATE = f"{TOPIC}/{{subscription}}/dispatchRate"
ENTRY_FORMAT = "/admin/v2/persistent/{tenant}/{namespace}/{topic}/entryFormat"

TOO_SMALL = (
    "Retention Quota must exceed configured backlog quota for {}. Please increase retention quota "
    "and retry"
)


@record(frozen=True)
class PolicyOf:
    """One policy of a namespace, or of a topic."""

    levels: Levels
    namespace: str
    #: None: it is the namespace's.
    topic: TopicName | None = None
    #: Whether it is the topic's second, global value.
    is_global: bool = False

    @property
    def value(self) -> Any:
        """The value that is set; None: it is not."""
        return self.levels.of(self._place, is_global=self.is_global)

    @property
    def _place(self) -> str | TopicName:
        return self.topic or self.namespace

    async def set(self, value: Any) -> None:
        """Set the value; None unsets it."""
        await self.levels.set(self._place, value, is_global=self.is_global)

    async def revise(self, change: Callable[[Any], Any]) -> None:
        """Set the value to what `change` makes of the one that is set then."""
        await self.levels.revise(self._place, change, is_global=self.is_global)


def policy_of(
    request: Request, policy: Policy, where: TopicPath | str, *, has_global: bool = True
) -> PolicyOf:
    """The policy of a topic or a namespace that a path names. Raises `HttpError`.

    `has_global`: a topic has a second value, which `isGlobal=true` asks for.
    """
    levels = request.topics.policies[policy]
    if isinstance(where, str):
        return PolicyOf(levels, existing_namespace(request, where))
    name = policy_topic(request, where)
    return PolicyOf(levels, name.namespace, name, has_global and request.flag("isGlobal"))


async def show(policy: Policy, place: Place, request: Request, where: TopicPath | str) -> Json:
    """The policy that is set; with applied=true the one that applies to a topic."""
    found = policy_of(request, policy, where, has_global=place.has_global)
    value = found.value
    if found.topic is not None and place.shows_applied and request.flag("applied"):
        value = found.levels.applied(found.topic)
    if value is None and place.shows_default:
        value = found.levels.default
    if value is not None:
        return value
    return Response(place.unset_status) if place.unset is None else place.unset


async def change(policy: Policy, place: Place, request: Request, where: TopicPath | str) -> Json:
    """Set the policy."""
    # Pulsar reads the query before it looks for the topic.
    text = request.query.get(place.query, "")
    given = int_value(text) if text else None
    found = policy_of(request, policy, where, has_global=place.has_global)
    value = None
    if not place.query:
        value = await _value(request, policy, place)
        if value is None and place.empty == "ignored":
            return None
    elif given is not None:
        value = await _read(request, policy, place, given)
    if policy is RETENTION and value is not None:
        quotas = request.topics.policies[BACKLOG_QUOTAS]
        if found.topic is None:
            _check_retention(value, quotas.of(found.namespace) or {}, "namespace")
        else:
            _check_retention(value, quotas.applied(found.topic), "topic")
    await found.set(value)
    return Response(place.set_status)


async def remove(policy: Policy, place: Place, request: Request, where: TopicPath | str) -> None:
    """Remove the policy; that of the level above applies again."""
    await policy_of(request, policy, where, has_global=place.has_global).set(None)


def _check_retention(retention: Any, quotas: dict[str, Any], level: str) -> None:
    if any(exceeds_retention(quota, retention) for quota in quotas.values()):
        raise HttpError(412, TOO_SMALL.format(level))


def policy_topic(request: Request, path: TopicPath) -> TopicName:
    """An existing topic that can have policies. Raises `HttpError` 404, and 412 for a partition."""
    try:
        name = TopicName.parse(str(path))
    except ValueError:
        return existing_topic(request, path)  # which says what is wrong with it
    if name.partition_index >= 0:
        raise HttpError(412, "Not allowed to set/get topic policy for a partition")
    if not request.services.config.topic_level_policies_enabled:
        text = "Topic level policies is disabled, to enable the topic level policy and retry."
        raise HttpError(405, text)
    return existing_topic(request, path)


async def _value(request: Request, policy: Policy, place: Place) -> Any:
    """The value in the request's body; None removes it."""
    value = request.json()
    if value is None and place.empty in ("removes", "ignored"):
        return None
    if place.empty == "refused":
        request.required_json()
    return await _read(request, policy, place, value)


async def _read(request: Request, policy: Policy, place: Place, value: Any) -> Any:
    if policy.read_blocks:
        stored = await request.services.run_blocking(policy.read, value)
    else:
        stored = policy.read(value)
    if policy.check is not None and stored is not None:
        policy.check(stored, request.services.config, place is policy.topic)
    return stored


def _add_routes(policy: Policy) -> None:
    levels = (
        (policy.namespace, NAMESPACE, needs.namespace_policy),
        (policy.topic, TOPIC, needs.topic_policy),
    )
    for place, base, right in levels:
        if place is None:
            continue
        path = f"{base}/{place.path}"
        read, write = (right(policy.right, operation) for operation in ("READ", "WRITE"))
        routes.get(path, read)(partial(show, policy, place))
        routes.append(Route(place.method, path, write, partial(change, policy, place)))
        # Without this route the path is that of a bundle to be deleted, as in Pulsar.
        if place.is_removable:
            routes.delete(path, write)(partial(remove, policy, place))


for _policy in POLICIES:
    _add_routes(_policy)

#: Rates for single subscriptions that one topic can have.
MAX_SUBSCRIPTION_RATES = 1_000


@routes.get(RATE, needs.topic_policy("RATE", "READ"))
async def rate_of(request: Request, path: TopicPath, subscription: str) -> Json:
    """The dispatch rate set for a subscription; with applied=true the one that applies to it."""
    name, topics = policy_topic(request, path), request.topics
    is_applied, keys = request.flag("applied"), [_key(request)]
    if is_applied:
        keys = [SUBSCRIPTION_RATES, f"global:{SUBSCRIPTION_RATES}"]
    for key in keys:
        found = (topics.policies.value_of(name, key) or {}).get(subscription)
        if found is not None:
            return found
    if is_applied:
        return topics.policies.applied(name, SUBSCRIPTION_DISPATCH_RATE)
    return Response(200)


@routes.post(RATE, needs.topic_policy("RATE", "WRITE"))
async def set_rate(request: Request, path: TopicPath, subscription: str) -> None:
    """Set the dispatch rate of a subscription; an empty body changes nothing."""
    name, value = policy_topic(request, path), request.json()
    check_name("subscription's name", subscription)
    if value is None:
        return
    await _revise(request, name, subscription, DISPATCH_RATE.read(value))


@routes.delete(RATE, needs.topic_policy("RATE", "WRITE"))
async def unset_rate(request: Request, path: TopicPath, subscription: str) -> None:
    """Remove the dispatch rate of a subscription; the topic's applies again."""
    await _revise(request, policy_topic(request, path), subscription, None)


async def _revise(request: Request, name: Any, subscription: str, rate: Any) -> None:
    def revise(rates: dict[str, Any] | None) -> dict[str, Any] | None:
        left = without(rates, subscription) or {}
        if rate is not None:
            if len(left) >= MAX_SUBSCRIPTION_RATES:
                reason = f"a topic has rates for at most {MAX_SUBSCRIPTION_RATES} subscriptions"
                raise HttpError(412, reason)
            left[subscription] = rate
        return left or None

    await request.topics.policies.revise(name, _key(request), revise)


def _key(request: Request) -> str:
    return f"global:{SUBSCRIPTION_RATES}" if request.flag("isGlobal") else SUBSCRIPTION_RATES


@routes.delete(f"{TOPIC}/policies", needs.namespace("DELETE_TOPIC"))
async def delete_policies(request: Request, path: TopicPath) -> None:
    """Remove all policies of a topic that Pulsar has, also with isGlobal; its properties stay."""
    topics = request.topics
    if path.full_namespace not in topics.namespaces:
        return
    name = topics.parse(str(path))
    if name.partition_index >= 0 or not topics.exists(name):
        return
    theirs = (each.key for each in POLICIES if not each.is_ours and each is not PROPERTIES)
    keys = {SUBSCRIPTION_RATES, *theirs}
    stored = topics.policies.policies_of_topic(name)
    gone = [key for key in stored if key.removeprefix("global:") in keys]
    if gone:
        await topics.policies.change_in_topic(name, lambda: dict.fromkeys(gone))


@routes.get(ENTRY_FORMAT, needs.topic_policy("ENTRY_FORMAT", "READ"))
async def entry_format(request: Request, path: TopicPath) -> Json:
    """A topic's settings of its own."""
    name = policy_topic(request, path)
    settings = request.topics.policies.value_of(name, KAFKA_POLICY)
    return Response(200) if settings is None else settings


@routes.post(ENTRY_FORMAT, needs.topic_policy("ENTRY_FORMAT", "WRITE"))
async def set_entry_format(request: Request, path: TopicPath) -> None:
    """Change some of a topic's settings; from then on it takes Kafka's record sets."""
    name = policy_topic(request, path)
    revise = partial(_changed_settings, request)
    await revise_entry_format(request.topics, name, revise)


def _changed_settings(request: Request, before: Mapping[str, str]) -> dict[str, str]:
    """Settings of Kafka's with the changes of the request. Raises `HttpError` 400."""
    from ...kafka.errors import KafkaError
    from ...kafka.topic_settings import check_settings

    changes: Any = request.json()
    if not isinstance(changes, dict) or not all(
        value is None or isinstance(value, str) for value in changes.values()
    ):
        raise HttpError(400, "entryFormat must be an object with settings as text")
    try:
        return check_settings({**before, **changes})
    except KafkaError as error:
        raise HttpError(400, error.message) from error


@routes.get(f"{NAMESPACE}/entryFormat", needs.namespace_policy("ENTRY_FORMAT", "READ"))
@routes.post(f"{NAMESPACE}/entryFormat", needs.namespace_policy("ENTRY_FORMAT", "WRITE"))
@routes.delete(f"{NAMESPACE}/entryFormat", needs.namespace_policy("ENTRY_FORMAT", "WRITE"))
async def default_entry_format(request: Request, namespace: str) -> Json:
    """Ask for, change or remove the settings of topics that Kafka clients create in a namespace."""
    existing_namespace(request, namespace)
    store = request.topics.policies
    settings = store.value_of(namespace, KAFKA_POLICY)
    if request.method in ("GET", "HEAD"):
        return Response(200) if settings is None else settings

    def revise(before: Mapping[str, str] | None) -> Mapping[str, str] | None:
        gone = request.method == "DELETE"
        return None if gone else _changed_settings(request, before or {}) or None

    await store.revise(namespace, KAFKA_POLICY, revise)
    return None


@routes.get(f"{NAMESPACE}/properties", needs.tenant_admin())
async def properties_of_namespace(request: Request, namespace: str) -> Json:
    """All properties of a namespace."""
    return policy_of(request, PROPERTIES, namespace).value or {}


@routes.put(f"{NAMESPACE}/properties", needs.tenant_admin())
async def add_to_namespace(request: Request, namespace: str) -> None:
    """Add properties to a namespace, or replace some."""
    found, given = policy_of(request, PROPERTIES, namespace), _checked(request.json()) or {}
    await found.revise(partial(_added, given=given))


@routes.delete(f"{NAMESPACE}/properties", needs.tenant_admin())
async def clear_namespace(request: Request, namespace: str) -> None:
    """Remove all properties of a namespace."""
    await policy_of(request, PROPERTIES, namespace).set(None)


@routes.get(f"{NAMESPACE}/property/{{key}}", needs.tenant_admin())
async def one_of_namespace(request: Request, namespace: str, key: str) -> Response:
    """A property's value; without a body if it is not set."""
    return _text((policy_of(request, PROPERTIES, namespace).value or {}).get(key))


@routes.put(f"{NAMESPACE}/property/{{key}}/{{value}}", needs.tenant_admin())
async def set_in_namespace(request: Request, namespace: str, key: str, value: str) -> None:
    """Set one property of a namespace."""
    found = policy_of(request, PROPERTIES, namespace)
    await found.revise(partial(_added, given={key: value}))


@routes.delete(f"{NAMESPACE}/property/{{key}}", needs.tenant_admin())
async def remove_from_namespace(request: Request, namespace: str, key: str) -> Response:
    """Remove one property; the answer is its value."""
    found = policy_of(request, PROPERTIES, namespace)
    removed = (found.value or {}).get(key)
    await found.revise(partial(without, key=key))
    return _text(removed)


@routes.get(f"{TOPIC}/properties", needs.topic("GET_METADATA"))
async def properties_of_topic(request: Request, path: TopicPath) -> Json:
    """All properties of a topic."""
    check_stored(path)
    name = existing_topic(request, path)
    topics = request.topics
    shown = properties_of(topics, name)
    if topics.partitioned.count_of(name):
        return shown or Response(200)
    # Pulsar keeps the index of the last closed ledger among the properties.
    index = stored_index((await topics.open(name, create=False)).ledger)
    return {"index": str(index), **shown}


def properties_of(topics: Topics, name: TopicName) -> dict[str, str]:
    """A topic's properties."""
    return topics.policies[PROPERTIES].of(name) or {}


def text_properties(value: object) -> dict[str, str]:
    """Properties from JSON; none for null. Raises `HttpError` 400."""
    return {} if value is None else _checked(value) or {}


@routes.put(f"{TOPIC}/properties", needs.topic("UPDATE_METADATA"))
async def add_to_topic(request: Request, path: TopicPath) -> None:
    """Add properties to a topic, or replace some."""
    check_stored(path)
    if not request.json_object():  # As in Pulsar: without properties the topic is not looked for.
        return
    name = existing_topic(request, path)
    levels = request.topics.policies[PROPERTIES]
    await levels.revise(name, partial(_added, given=_checked(request.json()) or {}))


@routes.delete(f"{TOPIC}/properties", needs.topic("DELETE_METADATA"))
async def remove_from_topic(request: Request, path: TopicPath) -> None:
    """Remove the property that the query names."""
    check_stored(path)
    name = existing_topic(request, path)
    levels, key = request.topics.policies[PROPERTIES], request.query.get("key")
    await levels.revise(name, partial(without, key=key))


def _added(before: Any, given: dict[str, str]) -> Any:
    return _checked({**(before or {}), **given})


def without(before: Any, key: str | None) -> Any:
    """The value of a policy that is a map without one of its members; None: nothing is left."""
    return {each: text for each, text in (before or {}).items() if each != key} or None


def _checked(value: Any) -> Any:
    return PROPERTIES.read(value) or None


def _text(value: str | None) -> Response:
    return Response(200) if value is None else Response(200, value.encode(), JSON_TYPE)

"""Who may do what: Pulsar's rules, decided from tenants and permissions in memory."""

from __future__ import annotations

from typing import Any

import pytest

from pulsemark.broker.configuration.security_config import SecurityConfig
from pulsemark.broker.security.authentication import UNAUTHENTICATED, Principal
from pulsemark.broker.security.authorization import Authorizer, Target
from pulsemark.broker.security.needs import (
    AUTHENTICATED,
    LOOKUPS,
    OPEN,
    OWN,
    READS,
    SUPER_USER,
    Need,
    Scope,
    broker,
    namespace,
    namespace_policy,
    tenant,
    tenant_admin,
    topic,
    topic_policy,
)
from pulsemark.broker.security.permissions import Action
from pulsemark.wire import TopicName

TOPIC = TopicName.parse("persistent://acme/ns/orders")
PARTITION = TOPIC.partition(3)
FOREIGN = TopicName.parse("persistent://other/ns/orders")


class Tenants:
    """Tenants and namespaces in memory."""

    def __init__(self) -> None:
        self.tenants: dict[str, dict[str, Any]] = {
            "acme": {"adminRoles": ["boss", "proxy"]},
            "other": {"adminRoles": ["stranger"]},
        }
        self.namespaces: dict[str, dict[str, Any]] = {
            "acme/ns": {
                "auth_policies": {
                    "namespace_auth": {
                        "reader": ["consume"],
                        "writer": ["produce"],
                        "packer": ["packages"],
                        "ops.*": ["consume"],
                    },
                    "destination_auth": {str(TOPIC): {"narrow": ["consume"]}},
                    "subscription_auth_roles": {"mine": ["reader"], "open": []},
                }
            },
            "other/ns": {},
        }

    def get(self, name: str, /) -> dict[str, Any] | None:
        """A namespace's policies."""
        return self.namespaces.get(name)


def authorizer(tenants: Tenants | None = None, **settings: Any) -> Authorizer:
    """Authorisation with two super users and a proxy."""
    config = SecurityConfig(
        **{
            "authentication_enabled": True,
            "authorization_enabled": True,
            "super_user_roles": ("admin", "superproxy"),
            "proxy_roles": ("proxy", "superproxy"),
            **settings,
        }
    )
    return Authorizer(config, tenants or Tenants())


def allowed(role: str | None, need: Need, name: TopicName = TOPIC, sub: str | None = None) -> bool:
    """The decision for a role."""
    return authorizer().allows(Principal(role), need, Target.of_topic(name, sub))


@pytest.mark.parametrize("operation", sorted(READS))
def test_operations_of_consumers_need_consume(operation: str) -> None:
    """A role that may consume has each of them, and one that may only produce has none."""
    assert allowed("reader", topic(operation))
    assert not allowed("writer", topic(operation))


@pytest.mark.parametrize("operation", sorted(LOOKUPS))
def test_lookups_need_produce_or_consume(operation: str) -> None:
    """Both kinds of roles may look a topic up, others may not."""
    assert allowed("reader", topic(operation))
    assert allowed("writer", topic(operation))
    assert not allowed("packer", topic(operation))


def test_produce_needs_produce() -> None:
    """A role that may consume may not publish."""
    assert allowed("writer", topic("PRODUCE"))
    assert not allowed("reader", topic("PRODUCE"))


def test_a_permission_on_a_topic_holds_for_its_partitions_and_for_no_other_topic() -> None:
    """A grant on a partitioned topic reaches its partitions, and no neighbour of them."""
    assert allowed("narrow", topic("CONSUME"))
    assert allowed("narrow", topic("CONSUME"), PARTITION)
    for other in ("orders2", "orders-partition-x", "Orders", "orders-partition-01"):
        name = TopicName.parse(f"persistent://acme/ns/{other}")
        assert not allowed("narrow", topic("CONSUME"), name)
    assert not allowed("narrow", topic("CONSUME"), TopicName.parse(f"non-{TOPIC}"))
    assert not allowed("narrow", topic("PRODUCE"))
    assert not allowed("narrow", namespace("GET_TOPICS"))


@pytest.mark.parametrize(
    "need",
    [
        *(topic(name) for name in ("TERMINATE", "COMPACT", "UNLOAD", "NO_SUCH_OPERATION", "")),
        *(namespace(name) for name in ("CREATE_TOPIC", "DELETE_TOPIC", "GRANT_PERMISSION", "NEW")),
        topic_policy("RETENTION", "READ"),
        namespace_policy("RETENTION", "WRITE"),
        tenant("CREATE_NAMESPACE"),
        tenant_admin(),
    ],
    ids=str,
)
def test_administration_needs_an_administrator_of_the_tenant(need: Need) -> None:
    """Also what no rule names is for the tenant's administrators and super users only."""
    assert allowed("boss", need)
    assert allowed("admin", need)
    for role in ("reader", "writer", "packer", "stranger", "nobody", None):
        assert not allowed(role, need)
    assert not allowed("boss", need, FOREIGN)


@pytest.mark.parametrize("need", [SUPER_USER, broker("X"), Need(Scope.CLUSTER)], ids=str)
def test_the_broker_itself_is_for_super_users(need: Need) -> None:
    """No administrator of a tenant may do it."""
    assert allowed("admin", need)
    assert not allowed("boss", need)
    assert not allowed(None, need)


def test_open_and_own_and_authenticated() -> None:
    """Only what is open needs no role."""
    for role in (None, "nobody"):
        assert allowed(role, OPEN)
    for need in (OWN, AUTHENTICATED):
        assert allowed("nobody", need)
        assert not allowed(None, need)


def test_a_subscription_can_be_restricted_to_roles() -> None:
    """The roles of a subscription exclude others that may consume; an empty list excludes none."""
    assert allowed("reader", topic("CONSUME"), sub="mine")
    assert not allowed("narrow", topic("CONSUME"), sub="mine")
    assert not allowed("narrow", topic("SKIP"), sub="mine")
    assert allowed("narrow", topic("CONSUME"), sub="open")
    assert allowed("narrow", topic("CONSUME"), sub="other")
    assert allowed("boss", topic("CONSUME"), sub="mine")
    everywhere = topic("EXPIRE_MESSAGES", all_subscriptions=True)
    assert allowed("reader", everywhere)
    assert not allowed("narrow", everywhere)


def test_operations_on_the_subscriptions_of_a_namespace() -> None:
    """Clearing and removing them takes the right to the one that is named, or to all."""
    decide, who = authorizer(), Principal("reader")
    tenants = Tenants()
    roles = tenants.namespaces["acme/ns"]["auth_policies"]["subscription_auth_roles"]
    for operation in ("CLEAR_BACKLOG", "UNSUBSCRIBE"):
        need = namespace(operation)
        assert decide.allows(who, need, Target("acme", "acme/ns", subscription="mine"))
        assert decide.allows(who, need, Target.of_namespace("acme/ns"))
        roles["theirs"] = ["x"]
        stricter = authorizer(tenants)
        assert not stricter.allows(who, need, Target("acme", "acme/ns", subscription="theirs"))
        assert not stricter.allows(who, need, Target.of_namespace("acme/ns"))
        assert stricter.allows(who, need, Target("acme", "acme/ns", subscription="mine"))


def test_names_of_subscriptions_can_have_to_begin_with_the_role() -> None:
    """The mode Prefix refuses a subscription that is named otherwise."""
    tenants = Tenants()
    tenants.namespaces["acme/ns"]["subscription_auth_mode"] = "Prefix"
    decide = authorizer(tenants)
    everything = topic("EXPIRE_MESSAGES", all_subscriptions=True)
    assert not decide.allows(Principal("reader"), everything, Target.of_topic(TOPIC))
    for name, may in (("reader-1", True), ("reader", True), ("read", False), ("x-reader", False)):
        target = Target.of_topic(TOPIC, name)
        assert decide.allows(Principal("reader"), topic("CONSUME"), target) is may


def test_a_proxy_and_the_role_it_asks_for_must_both_be_allowed() -> None:
    """Neither a proxy's rights nor those of the role that it names are enough alone."""
    decide = authorizer()

    def may(role: str, original: str | None, need: Need = topic("CONSUME")) -> bool:  # noqa: B008
        return decide.allows(Principal(role, original), need, Target.of_topic(TOPIC))

    assert may("proxy", "reader")
    assert may("superproxy", "reader")
    assert may("superproxy", "admin", SUPER_USER)
    assert not may("proxy", "admin", SUPER_USER)
    assert not may("superproxy", "reader", SUPER_USER)
    assert not may("superproxy", "nobody")
    for original in (None, "", " ", "proxy", "superproxy"):
        assert not may("superproxy", original)
        assert not may("superproxy", original, AUTHENTICATED)
    # A client that is no proxy cannot name a role, not even its own.
    for original in ("admin", "reader"):
        assert not may("reader", original)


def test_wildcards_are_off_unless_switched_on() -> None:
    """`ops.*` is a role's name by default, and all names that begin so with the setting."""
    need, target = topic("CONSUME"), Target.of_topic(TOPIC)
    for role, plain, wild in (
        ("ops.night", False, True),
        ("ops.*", True, True),
        ("xops.", False, False),
    ):
        assert authorizer().allows(Principal(role), need, target) is plain
        wildcards = authorizer(authorization_allow_wildcards_matching=True)
        assert wildcards.allows(Principal(role), need, target) is wild


def test_absent_tenants_and_namespaces_are_refused() -> None:
    """Only a super user gets to a namespace that does not exist."""
    for name in ("persistent://acme/absent/t", "persistent://absent/ns/t"):
        absent = TopicName.parse(name)
        assert not allowed("reader", topic("CONSUME"), absent)
        assert allowed("admin", topic("CONSUME"), absent)
    assert not authorizer().allows(Principal("boss"), tenant_admin(), Target())


def test_a_permission_anywhere_in_a_namespace() -> None:
    """Groups of Kafka's clients belong to a namespace: one topic is enough, another tenant not."""
    decide = authorizer()

    def may(role: str | None, subscription: str | None = None) -> bool:
        who = Principal(role)
        return decide.allows_somewhere(who, Action.CONSUME, "acme/ns", subscription)

    assert [may(role) for role in ("admin", "boss", "reader", "narrow")] == [True] * 4
    assert [may(role) for role in ("writer", "stranger", None)] == [False] * 3
    assert may("reader", "mine")
    assert not may("narrow", "mine")


def test_damaged_or_foreign_settings_grant_nothing() -> None:
    """Settings that an earlier version stored without a check are no permissions."""
    tenants = Tenants()
    tenants.tenants["acme"] = {"adminRoles": "boss"}
    parts = ({"namespace_auth": None}, {"namespace_auth": ["reader"]})
    values: tuple[Any, ...] = (None, [], "x", *parts)
    for value in values:
        tenants.namespaces["acme/ns"] = {"auth_policies": value}
        decide = authorizer(tenants)
        for role in ("boss", "b", "reader"):
            assert not decide.allows(Principal(role), topic("CONSUME"), Target.of_topic(TOPIC))


def test_without_authorisation_everything_is_allowed() -> None:
    """The switch is `authorization_enabled`."""
    decide = authorizer(authorization_enabled=False)
    assert decide.allows(UNAUTHENTICATED, SUPER_USER)
    assert decide.allows_somewhere(UNAUTHENTICATED, Action.CONSUME, "acme/ns")


def test_a_change_is_counted_and_reported() -> None:
    """A cache of decisions is notified when a decision may have changed."""
    decide, calls = authorizer(), list[str | None]()
    decide.on_change.append(calls.append)
    decide.changed("acme/ns")
    decide.changed()
    assert decide.generation == 2
    assert calls == ["acme/ns", None]

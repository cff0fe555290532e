"""The permission that a command, route, call or request needs, in Pulsar's operations.

A `Need` has a scope and Pulsar's name of the operation. Who may do it follows from both:

====================  ==========================================================================
scope                 allowed to
====================  ==========================================================================
open                  everyone, also without credentials
authenticated         every client that is authenticated
super                 super users
tenant                the tenant's administrators
namespace             the tenant's administrators; GET_TOPICS and GET_BUNDLE also to roles that may
                      produce or consume in the namespace; CLEAR_BACKLOG and UNSUBSCRIBE to those
                      that may consume; PACKAGES to those with `packages`
namespace policy      the tenant's administrators
topic                 the tenant's administrators; an operation of `LOOKUPS` also to roles that may
                      produce or consume, PRODUCE to those that may produce, one of `READS` to those
                      that may consume (and that the subscription's roles do not exclude)
topic policy          the tenant's administrators
own                   the connection that has the producer or consumer: decided when it was made
another broker        brokers that share the topics, by their signature
====================  ==========================================================================

Super users may do everything. A scope or an operation that is not named here is for super users or
administrators only.
"""

from __future__ import annotations

from enum import Enum
from functools import partial

from ...records import record

#: Operations on a topic for roles that may produce or consume.
LOOKUPS = frozenset({"LOOKUP", "GET_STATS", "GET_METADATA"})
#: Operations on a topic for roles that may consume.
READS = frozenset(
    {
        "GET_SUBSCRIPTIONS",
        "CONSUME",
        "SUBSCRIBE",
        "UNSUBSCRIBE",
        "SKIP",
        "EXPIRE_MESSAGES",
        "PEEK_MESSAGES",
        "RESET_CURSOR",
        "GET_BACKLOG_SIZE",
        "SET_REPLICATED_SUBSCRIPTION_STATUS",
        "GET_REPLICATED_SUBSCRIPTION_STATUS",
    }
)


class Scope(Enum):
    """The kind of object that an operation is about."""

    OPEN = "open"
    AUTHENTICATED = "authenticated"
    SUPER = "super user"
    CLUSTER = "super user, of a cluster"
    BROKER = "super user, of a broker"
    TENANTS = "tenant, or all tenants"
    TENANT = "tenant"
    TENANT_ADMIN = "tenant administrator"
    NAMESPACE = "namespace"
    NAMESPACE_POLICY = "namespace policy"
    TOPIC = "topic"
    TOPIC_POLICY = "topic policy"
    OWN = "own producer or consumer"
    PEER = "another broker"


@record(frozen=True)
class Need:
    """A needed permission. `policy` is Pulsar's name of a policy that is read or written."""

    scope: Scope
    operation: str = ""
    policy: str = ""
    #: The operation concerns every subscription of the topic.
    all_subscriptions: bool = False

    def __str__(self) -> str:
        return " ".join(filter(None, (self.scope.value, self.policy, self.operation)))


OPEN = Need(Scope.OPEN)
AUTHENTICATED = Need(Scope.AUTHENTICATED)
SUPER_USER = Need(Scope.SUPER)
OWN = Need(Scope.OWN)
PEER = Need(Scope.PEER)


#: Operations on a cluster or a broker, for super users.
cluster, broker = partial(Need, Scope.CLUSTER), partial(Need, Scope.BROKER)
#: Operations on one tenant, for its administrators; on all tenants, for super users.
tenants = partial(Need, Scope.TENANTS)
#: An operation on a tenant's namespaces.
tenant = partial(Need, Scope.TENANT)
#: An operation for which Pulsar asks for an administrator and names no operation.
tenant_admin = partial(Need, Scope.TENANT_ADMIN)
namespace, topic = partial(Need, Scope.NAMESPACE), partial(Need, Scope.TOPIC)


def namespace_policy(policy: str, operation: str) -> Need:
    """READ or WRITE a namespace's policy."""
    return Need(Scope.NAMESPACE_POLICY, operation, policy)


def topic_policy(policy: str, operation: str) -> Need:
    """READ or WRITE a topic's policy."""
    return Need(Scope.TOPIC_POLICY, operation, policy)

"""Authenticates and authorizes Kafka's clients, by the broker's users and permissions.

Kafka's operations become the broker's permissions:

==========  ===================================================================================
operation   allowed to
==========  ===================================================================================
WRITE       roles that may produce to the topic
READ        roles that may consume from it
DESCRIBE    both
ADMINISTER  administrators of the namespace's tenant: create, delete, alter, settings
==========  ===================================================================================

They see one namespace, whose permissions and those of its topics hold for them. A group is a
subscription of the namespace: a role may use it that may consume from one of its topics at least,
unless the subscription's roles exclude it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

from ...kafka.errors import Code, KafkaError
from ...kafka.sasl import BASIC, OAUTHBEARER, PLAIN, TOKEN
from ...wire import TopicName, check_namespace
from ..security.authentication import AuthenticationFailed, Authenticator, Principal
from ..security.authorization import Authorizer, Target
from ..security.needs import SUPER_USER, tenant_admin, topic
from ..security.permissions import Action

TLS = "tls"
#: The number of decisions that a connection remembers, and the longest name to remember.
MAX_REMEMBERED = 1_000
MAX_NAME_LENGTH = 255


class Operation(Enum):
    """A client's operation on a topic, and the permission that it needs."""

    READ = topic("CONSUME")
    WRITE = topic("PRODUCE")
    DESCRIBE = topic("LOOKUP")
    ADMINISTER = tenant_admin()


class Access:
    """The permissions of one connection's client."""

    def __init__(self, authorizer: Authorizer, namespace: str, role: str | None) -> None:
        """`namespace`: the namespace whose topics Kafka's clients see."""
        self._authorizer = authorizer
        self._is_on = authorizer.is_on
        self._namespace = namespace
        self._tenant, self._local = check_namespace(namespace)
        self.role = role
        self._principal = Principal(role)
        self._generation = authorizer.generation
        self._known: dict[tuple[Operation | None, str], bool] = {}

    def may(self, operation: Operation, topic: str) -> bool:
        """Whether the client may do this with a topic, existing or not, of any name."""
        if not self._is_on:
            return True

        def decide() -> bool:
            target = Target.of_topic(TopicName("persistent", self._tenant, self._local, topic))
            return self._authorizer.allows(self._principal, operation.value, target)

        return self._remembered((operation, topic), decide)

    def may_use_group(self, group: str) -> bool:
        """Whether the client may use a group, or see it."""
        if not self._is_on:
            return True
        return self._remembered(
            (None, group), lambda: self._may_somewhere(Action.CONSUME, subscription=group)
        )

    def _may_somewhere(self, action: Action, subscription: str | None = None) -> bool:
        return self._authorizer.allows_somewhere(
            self._principal, action, self._namespace, subscription
        )

    def _remembered(self, key: tuple[Operation | None, str], decide: Callable[[], bool]) -> bool:
        generation = self._authorizer.generation
        if generation != self._generation or len(self._known) >= MAX_REMEMBERED:
            self._generation = generation
            self._known.clear()
        known = self._known.get(key)
        if known is None:
            known = decide()
            if len(key[1]) <= MAX_NAME_LENGTH:
                self._known[key] = known
        return known

    @property
    def generation(self) -> int:
        """Counts the changes after which decisions may be others."""
        return self._authorizer.generation

    @property
    def remembered(self) -> int:
        """The number of remembered decisions."""
        return len(self._known)

    def check(self, operation: Operation, topic: str | None) -> None:
        """Raise KafkaError (29) if the client may not do this with a topic."""
        if not self.may(operation, topic or ""):
            raise KafkaError(Code.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed.")

    def group_code(self, group: str) -> Code:
        """GROUP_AUTHORIZATION_FAILED (30) if the client may not use a group, else NONE."""
        return Code.NONE if self.may_use_group(group) else Code.GROUP_AUTHORIZATION_FAILED

    def check_broker(self) -> None:
        """Raise KafkaError (31) if the client may not see the broker's settings."""
        if not self._authorizer.allows(self._principal, SUPER_USER):
            raise KafkaError(Code.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")

    def check_writes_somewhere(self) -> None:
        """Raise KafkaError (31) if the client may write to no topic at all."""
        if not self._may_somewhere(Action.PRODUCE):
            raise KafkaError(Code.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")

    def check_transactional_id(self) -> None:
        """Raise KafkaError (53) if the client may write nowhere, so to no transaction."""
        if not self._may_somewhere(Action.PRODUCE):
            raise KafkaError(
                Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "Transactional id authorization failed."
            )


class Admitted(NamedTuple):
    """An authenticated client: its role, and until when (Unix time; None: no limit)."""

    role: str | None = None
    expires_at_ms: int | None = None


def mechanisms(authenticator: Authenticator | None) -> tuple[str, ...]:
    """The SASL mechanisms for which the broker has a provider."""
    methods = () if authenticator is None else authenticator.methods
    plain = (PLAIN,) if TOKEN in methods or BASIC in methods else ()
    return (*plain, OAUTHBEARER) if TOKEN in methods else plain


def without_sasl(authenticator: Authenticator | None, peer_certificate: Any) -> Admitted | None:
    """The client of a connection without SASL; None if it has to authenticate with SASL.

    Without authentication everyone is admitted, else the role of the certificate or the anonymous
    role.
    """
    if authenticator is None:
        return Admitted()
    method = TLS if peer_certificate and TLS in authenticator.methods else "none"
    try:
        found = authenticator.authenticate(method, b"", peer_certificate)
    except AuthenticationFailed:
        return None
    return Admitted(found.role, found.expires_at_ms)

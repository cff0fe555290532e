"""Who Kafka's clients are, and what they may do: the broker's authentication and permissions.

Kafka's clients see one namespace. Its permissions, and those of its topics, hold for them; a group
is a subscription of that name (`kafka.access` says which operation needs what).
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ...kafka.ports import Admitted
from ...kafka.sasl import OAUTHBEARER, PLAIN, TOKEN, Claim, SaslError
from ...wire import TopicName, check_namespace
from ..security.authentication import (
    UNAUTHENTICATED,
    Authenticated,
    AuthenticationFailed,
    Authenticator,
    Principal,
)
from ..security.authorization import Authorizer, Target
from ..security.needs import SUPER_USER, tenant_admin, topic
from ..security.permissions import Action

__all__ = ["BrokerAccess", "BrokerAdmission"]

NEEDS = {
    "read": topic("CONSUME"),
    "write": topic("PRODUCE"),
    "describe": topic("LOOKUP"),
    "administer": tenant_admin(),
}
BASIC, TLS = "basic", "tls"


class BrokerAccess:
    """`AccessPort` over the broker's authorizer."""

    def __init__(self, authorizer: Authorizer, namespace: str) -> None:
        """`namespace`: the one whose topics Kafka's clients see."""
        self._authorizer = authorizer
        self._namespace = namespace
        self._tenant, self._local = check_namespace(self._namespace)

    @property
    def is_on(self) -> bool:
        """Whether anything is refused at all."""
        return self._authorizer.is_on

    @property
    def generation(self) -> int:
        """Counts the changes after which decisions may be others."""
        return self._authorizer.generation

    def topic(self, principal: Principal, operation: str, name: str) -> bool:
        """Whether a client may do this with a topic. The name need not be a valid one."""
        target = Target.of_topic(TopicName("persistent", self._tenant, self._local, name))
        return self._authorizer.allows(principal, NEEDS[operation], target)

    def group(self, principal: Principal, group: str) -> bool:
        """Whether a client may use a group."""
        return self._authorizer.allows_somewhere(principal, Action.CONSUME, self._namespace, group)

    def writes_somewhere(self, principal: Principal) -> bool:
        """Whether a client may write to at least one topic."""
        return self._authorizer.allows_somewhere(principal, Action.PRODUCE, self._namespace)

    def broker(self, principal: Principal) -> bool:
        """Whether a client may see the broker's own settings."""
        return self._authorizer.allows(principal, SUPER_USER)


class BrokerAdmission:
    """`AdmissionPort` over the broker's authenticator."""

    def __init__(self, authenticator: Authenticator | None) -> None:
        """None: the broker has no authentication."""
        self._authenticator = authenticator

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """The SASL mechanisms for which the broker has a provider."""
        methods = () if self._authenticator is None else self._authenticator.methods
        plain = (PLAIN,) if TOKEN in methods or BASIC in methods else ()
        return (*plain, OAUTHBEARER) if TOKEN in methods else plain

    def without_sasl(self, peer_certificate: Any) -> Admitted | None:
        """Everyone without authentication; else who the certificate says, or the anonymous role."""
        authenticator = self._authenticator
        if authenticator is None:
            return Admitted(UNAUTHENTICATED)
        method = TLS if peer_certificate and TLS in authenticator.methods else "none"
        try:
            return _admitted(authenticator.authenticate(method, b"", peer_certificate))
        except AuthenticationFailed:
            return None

    async def with_sasl(self, claim: Claim, peer_certificate: Any) -> Admitted:
        """Check credentials by the provider of their method. Raises SaslError."""
        authenticator = self._authenticator
        if authenticator is None or claim.method not in authenticator.methods:
            raise SaslError(f"this broker has no provider for {claim.method}")
        check = partial(
            authenticator.authenticate, claim.method, claim.credentials, peer_certificate
        )
        try:
            if authenticator.is_slow_for(claim.method):
                return _admitted(await authenticator.in_thread(check))
            return _admitted(check())
        except AuthenticationFailed as failure:
            raise SaslError(str(failure)) from failure


def _admitted(found: Authenticated) -> Admitted:
    return Admitted(Principal(found.role), found.role, found.expires_at_ms)

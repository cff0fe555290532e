"""Who may make which gRPC call: the broker's roles and permissions, for the seek service.

A call is authenticated as an HTTP request is: `authorization: Bearer TOKEN` or `Basic ...`, or the
client's certificate. Then it needs what `NEEDS` says, about the topic that its request names. A
call is ended when its token expires: gRPC has no way to ask for a new one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import grpc

from ...finder.server import Admit, Caller, CallRefusedError
from ...wire import InvalidTopicNameError, TopicName
from ..configuration.config import BrokerConfig
from ..security.authentication import Authenticated, AuthenticationFailed, Authenticator
from ..security.authorization import Authorizer, Target
from ..security.identity import InvalidRoles, Principal, check_roles
from ..security.needs import AUTHENTICATED, Need, topic

__all__ = ["NEEDS", "admitting"]

log = logging.getLogger(__name__)

_READ = topic("PEEK_MESSAGES")
#: What each call needs. Others, such as reflection, need only a role.
NEEDS: Mapping[str, Need] = {
    "SeekByTime": _READ,
    "SeekByIndex": _READ,
    "Range": _READ,
    "ReadEntries": _READ,
    "Epochs": _READ,
    "Audit": topic("GET_STATS"),
    "ResetCursor": topic("RESET_CURSOR"),
    # It begins leader epochs, so it is for the tenant's administrators.
    "AppendControl": topic("APPEND_CONTROL"),
}
ORIGINAL_HEADER = "x-original-principal"


def admitting(authenticator: Authenticator, authorizer: Authorizer, config: BrokerConfig) -> Admit:
    """Checks a call before it begins."""

    async def admit(caller: Caller, request: Any) -> float | None:
        principal, expires_at_ms = await _identity_of(authenticator, config, caller)
        need = NEEDS.get(caller.method, AUTHENTICATED)
        if not authorizer.allows(principal, need, _target(request)):
            text = f"this role may not call {caller.method} for this topic"
            raise CallRefusedError(grpc.StatusCode.PERMISSION_DENIED, text)
        if expires_at_ms is None:
            return None
        return max(0.0, (expires_at_ms - config.clock.now_ms()) / 1000)

    return admit


async def _identity_of(
    authenticator: Authenticator, config: BrokerConfig, caller: Caller
) -> tuple[Principal, int | None]:
    """Who calls, and when its credentials expire, in Unix time. Raises CallRefusedError."""
    name = caller.common_name
    certificate = None if name is None else {"subject": ((("commonName", name),),)}

    def check() -> Authenticated:
        return authenticator.authenticate_http(caller.headers, certificate)

    original_role = caller.headers.get(ORIGINAL_HEADER) or None
    try:
        if authenticator.is_slow and "authorization" in caller.headers:
            own = await authenticator.in_thread(check)
        else:
            own = check()
        check_roles(config.security, own.role, original_role)
    except (AuthenticationFailed, InvalidRoles) as refusal:
        log.info("%s: gRPC call refused: %s", caller.method, refusal)
        text = "credentials are needed in 'authorization', or wrong"
        raise CallRefusedError(grpc.StatusCode.UNAUTHENTICATED, text) from refusal
    return Principal(own.role, original_role), own.expires_at_ms


def _target(request: Any) -> Target:
    """The topic that a request names. Without a valid name only super users are let in."""
    try:
        name = TopicName.parse(getattr(request, "topic", ""))
    except InvalidTopicNameError:
        return Target()
    return Target.of_topic(name, getattr(request, "subscription", None) or None)

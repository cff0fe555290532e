"""Who a connection of the binary protocol is: its role, and the role for which a proxy asks.

A client whose role is in `proxyRoles` is a proxy. It must name the original role, which must not be
a proxy's, too. Any other client must not name one. With `authenticateOriginalAuthData` the
proxy must pass on the original client's credentials, and these are checked.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...proto.pulsar_api_pb2 import AuthMethod, CommandConnect
from ..configuration.security_config import SecurityConfig
from .authentication import Authenticated, AuthenticationFailed, Authenticator, PeerCertificate

__all__ = [
    "UNAUTHENTICATED",
    "Credentials",
    "Identity",
    "InvalidRoles",
    "Principal",
    "check_roles",
    "identify",
    "method_of",
]

NO_METHOD = "none"


class InvalidRoles(Exception):  # noqa: N818 - it is no error of the program
    """A client may not claim this role: a proxy without an original role, or the reverse."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A connection's principal, and the credentials that have to stay valid.

    `checked` are the original client's credentials if these were checked, else the connection's.
    """

    principal: Principal
    checked: Authenticated
    #: Whether `checked` can be checked again: not those of a client that a proxy only names.
    can_refresh: bool

    def refreshed(self, again: Authenticated) -> Identity:
        """The identity with newer credentials. Raises AuthenticationFailed for another role."""
        if again.role != self.checked.role or again.method != self.checked.method:
            raise AuthenticationFailed(again.method, "a refresh must not change the role")
        return replace(self, checked=again)


@dataclass(slots=True)
class Credentials:
    """Who a connection is, and what is under way to find out."""

    identity: Identity | None = None
    supports_refresh: bool = False
    #: A password is being checked.
    is_checking: bool = False
    #: An AUTH_CHALLENGE was sent and not answered yet.
    is_challenged: bool = False
    #: AUTH_RESPONSEs since the last look that answered no challenge.
    unasked: int = 0
    #: When the credentials are looked at next, by the event loop's clock.
    next_check_s: float = 0.0


def method_of(command: CommandConnect) -> str:
    """The method that CONNECT names, by its name or (very old clients) by its number."""
    if command.HasField("auth_method_name"):
        return command.auth_method_name
    if command.HasField("auth_method"):
        return AuthMethod.Name(command.auth_method).removeprefix("AuthMethod").lower()
    return NO_METHOD


def identify(
    authenticator: Authenticator,
    config: SecurityConfig,
    command: CommandConnect,
    peer_certificate: PeerCertificate | None,
) -> Identity:
    """Who sends a CONNECT. Raises AuthenticationFailed, InvalidRoles."""
    own = authenticator.authenticate(method_of(command), command.auth_data, peer_certificate)
    checked, original_role = own, command.original_principal or None
    if config.authenticate_original_auth_data and command.HasField("original_auth_data"):
        method = command.original_auth_method or NO_METHOD
        checked = authenticator.authenticate(method, command.original_auth_data.encode(), None)
        original_role = checked.role
    check_roles(config, own.role, original_role)
    can_refresh = original_role is None or checked is not own
    return Identity(Principal(own.role, original_role), checked, can_refresh)


def check_roles(config: SecurityConfig, role: str, original_role: str | None) -> None:
    """Raise InvalidRoles if a client may not ask for this original role."""
    if role in config.proxy_roles:
        if not original_role:
            raise InvalidRoles("a proxy must name the original principal")
        if original_role in config.proxy_roles:
            raise InvalidRoles("the original principal must not be a proxy")
    elif original_role:
        raise InvalidRoles("only a proxy may name an original principal")


@dataclass(frozen=True, slots=True)
class Principal:
    """The roles that a client was authenticated for.

    `role` is the client's own; None without authentication. `original_role` is set if the client
    is a proxy (`proxyRoles`): the role for which the proxy asks.
    """

    role: str | None = None
    original_role: str | None = None


#: A client of a broker without authentication, and every client before it is authenticated.
UNAUTHENTICATED = Principal()

"""Authentication: its methods, and the roles that follow from them.

An `Authenticator` has a list of providers, as in Pulsar's `authenticationProviders`. Each answers
for one `auth_method_name`: `token`, `basic`, `tls`, or that of another package's provider. A
provider's library is imported only if the configuration names it.

Rules, as in Pulsar:

1. The client names the method. Without a name it is "none".
2. Credentials of a method that has a provider must be right, also if there is an anonymous role.
3. A method without a provider gets the anonymous role, if one is configured.
4. An HTTP request need not name the method. Then all providers are asked for which it has
   credentials, in order. If none of them accepts, the request is refused. A request without
   credentials gets the anonymous role.

Passwords are slow to check, so this is done on one thread. At most MAX_WAITING checks wait for it.
No error and no log line holds a token or a password.

A client whose role is in `proxyRoles` is a proxy. It must name the original role, which must not be
a proxy's, too. Any other client must not name one. With `authenticateOriginalAuthData` the proxy
must pass on the original client's credentials, and these are checked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

from ...proto.pulsar_api_pb2 import AuthMethod, CommandConnect
from ...records import FactsError, record
from ..configuration.security_config import SecurityConfig

T = TypeVar("T")

#: The method in `Authenticated` of a client with the anonymous role.
ANONYMOUS = "anonymous"
#: Pulsar's header with the method's name.
METHOD_HEADER = "x-pulsar-auth-method-name"
#: The header in which a proxy names the original role.
ORIGINAL_HEADER = "x-original-principal"
MAX_WAITING = 256

#: A peer's certificate, as `ssl.SSLSocket.getpeercert` returns it.
PeerCertificate: TypeAlias = dict[str, Any]


@record(frozen=True)
class Authenticated:
    """A client's role, and until when its credentials are valid.

    `expires_at_ms` is in Unix time; None: they do not expire. `method` is the provider's.
    """

    role: str
    expires_at_ms: int | None
    method: str


class AuthenticationFailed(FactsError, text="{method}: {reason}"):  # noqa: N818 - no program's
    """Credentials were refused: `method` and `reason`, without the credentials."""

    method: str
    reason: str


@runtime_checkable
class Provider(Protocol):
    """One way to authenticate."""

    #: Pulsar's `auth_method_name`.
    method: str
    #: Whether `authenticate` may take milliseconds.
    is_slow: bool

    def authenticate(self, data: bytes, peer_certificate: PeerCertificate | None) -> Authenticated:
        """The role. Raises AuthenticationFailed."""
        ...

    def http_credentials(
        self, headers: Mapping[str, str], peer_certificate: PeerCertificate | None
    ) -> bytes | None:
        """A request's credentials for this provider, or None. Header names are in lower case."""
        ...


class Authenticator:
    """Authenticates clients by the provider of their method."""

    def __init__(self, providers: Sequence[Provider], anonymous_role: str | None = None) -> None:
        self._providers = {provider.method: provider for provider in reversed(providers)}
        #: The methods that have a provider, in the configured order.
        self.methods = tuple(dict.fromkeys(provider.method for provider in providers))
        self._anonymous_role = anonymous_role
        self._thread: ThreadPoolExecutor | None = None
        self._waiting = 0

    @property
    def admits_anonymous(self) -> bool:
        """Whether clients without credentials get a role."""
        return self._anonymous_role is not None

    @property
    def is_slow(self) -> bool:
        """Whether any provider is slow."""
        return any(provider.is_slow for provider in self._providers.values())

    def is_slow_for(self, method: str) -> bool:
        """Whether `authenticate` for this method may take milliseconds."""
        provider = self._providers.get(method)
        return provider is not None and provider.is_slow

    def authenticate(
        self, method: str, data: bytes, peer_certificate: PeerCertificate | None
    ) -> Authenticated:
        """The role of a client. Raises AuthenticationFailed."""
        provider = self._providers.get(method)
        if provider is None:
            return self._anonymous(method)
        return provider.authenticate(data, peer_certificate)

    def authenticate_http(
        self, headers: Mapping[str, str], peer_certificate: PeerCertificate | None
    ) -> Authenticated:
        """The role of a request. Raises AuthenticationFailed."""
        named = headers.get(METHOD_HEADER)
        if named is not None:
            provider = self._providers.get(named)
            if provider is None:
                raise AuthenticationFailed(named[:40], "this method has no provider")
            credentials = provider.http_credentials(headers, peer_certificate)
            return provider.authenticate(credentials or b"", peer_certificate)
        failure: AuthenticationFailed | None = None
        for method in self.methods:
            provider = self._providers[method]
            credentials = provider.http_credentials(headers, peer_certificate)
            if credentials is None:
                continue
            try:
                return provider.authenticate(credentials, peer_certificate)
            except AuthenticationFailed as refusal:
                failure = refusal
        if failure is None and "authorization" not in headers:
            return self._anonymous("none")
        raise failure or AuthenticationFailed("none", "Authorization is of an unknown kind")

    async def in_thread(self, check: Callable[[], T]) -> T:
        """Run a slow check in the thread. Raises its errors, and AuthenticationFailed if busy."""
        if self._waiting >= MAX_WAITING:
            raise AuthenticationFailed("basic", "too many passwords wait to be checked")
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "pulsemark-passwords")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, check)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _anonymous(self, method: str) -> Authenticated:
        if self._anonymous_role is None:
            raise AuthenticationFailed(method[:40], "this method has no provider")
        return Authenticated(self._anonymous_role, None, ANONYMOUS)


NO_METHOD = "none"


class InvalidRoles(Exception):  # noqa: N818 - it is no error of the program
    """A client may not claim a role: a proxy without an original role, or the reverse."""


@record(frozen=True)
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


@record
class Credentials:
    """A connection's identity, and the state of its checks."""

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
    """Authenticate the sender of a CONNECT. Raises AuthenticationFailed, InvalidRoles."""
    own = authenticator.authenticate(method_of(command), command.auth_data, peer_certificate)
    checked, original_role = own, command.original_principal or None
    if config.authenticate_original_auth_data and command.HasField("original_auth_data"):
        method = command.original_auth_method or NO_METHOD
        checked = authenticator.authenticate(method, command.original_auth_data.encode(), None)
        original_role = checked.role
    check_roles(config, own.role, original_role)
    can_refresh = original_role is None or checked is not own
    return Identity(Principal(own.role, original_role), checked, can_refresh)


async def identify_request(
    authenticator: Authenticator,
    config: SecurityConfig,
    headers: Mapping[str, str],
    peer_certificate: PeerCertificate | None,
) -> tuple[Principal, int | None]:
    """The principal of an HTTP or gRPC request, and its credentials' end in Unix time.

    Header names are in lower case. Raises AuthenticationFailed, InvalidRoles.
    """

    def check() -> Authenticated:
        return authenticator.authenticate_http(headers, peer_certificate)

    is_slow = authenticator.is_slow and "authorization" in headers
    own = await authenticator.in_thread(check) if is_slow else check()
    original_role = headers.get(ORIGINAL_HEADER) or None
    check_roles(config, own.role, original_role)
    return Principal(own.role, original_role), own.expires_at_ms


def check_roles(config: SecurityConfig, role: str, original_role: str | None) -> None:
    """Raise InvalidRoles if a client may not ask for this original role."""
    if role in config.proxy_roles:
        if not original_role:
            raise InvalidRoles("a proxy must name the original principal")
        if original_role in config.proxy_roles:
            raise InvalidRoles("the original principal must not be a proxy")
    elif original_role:
        raise InvalidRoles("only a proxy may name an original principal")


@record(frozen=True)
class Principal:
    """The roles that a client was authenticated for.

    `role` is the client's own; None without authentication. `original_role` is set if the client
    is a proxy (`proxyRoles`): the role for which the proxy asks.
    """

    role: str | None = None
    original_role: str | None = None


#: A client of a broker without authentication, and every client before it is authenticated.
UNAUTHENTICATED = Principal()

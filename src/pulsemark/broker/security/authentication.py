"""Checks credentials: which role a client has.

An `Authenticator` has a list of providers, as in Pulsar's `authenticationProviders`. Each answers
for one `auth_method_name`: `token`, `basic`, `tls`, or that of another package's provider
(`plugins`). The providers are modules of their own, and are imported only if the configuration
names them.

Rules, as in Pulsar:

1. The client names the method. Without a name it is "none".
2. Credentials of a method that has a provider must be right, also if there is an anonymous role.
3. A method without a provider gets the anonymous role, if one is configured.
4. An HTTP request need not name the method. Then all providers are asked for which it has
   credentials, in order. If none of them accepts, the request is refused. A request without
   credentials gets the anonymous role.

Passwords are slow to check, so this is done on one thread. At most MAX_WAITING checks wait for it.

No error and no log line holds a token or a password.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

__all__ = [
    "ANONYMOUS",
    "Authenticated",
    "AuthenticationFailed",
    "Authenticator",
    "PeerCertificate",
    "Provider",
]

T = TypeVar("T")

#: The method in `Authenticated` of a client with the anonymous role.
ANONYMOUS = "anonymous"
#: Pulsar's header with the method's name.
METHOD_HEADER = "x-pulsar-auth-method-name"
MAX_WAITING = 256

#: A peer's certificate, as `ssl.SSLSocket.getpeercert` returns it.
PeerCertificate: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Authenticated:
    """A client's role, and until when its credentials are valid.

    `expires_at_ms` is in Unix time; None: they do not expire. `method` is the provider's.
    """

    role: str
    expires_at_ms: int | None
    method: str


class AuthenticationFailed(Exception):  # noqa: N818 - it is no error of the program
    """Credentials were refused: `method` and `reason`, without the credentials."""

    def __init__(self, method: str, reason: str) -> None:
        super().__init__(f"{method}: {reason}")
        self.method = method
        self.reason = reason


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
        self._order = tuple(dict.fromkeys(provider.method for provider in providers))
        self._anonymous_role = anonymous_role
        self._thread: ThreadPoolExecutor | None = None
        self._waiting = 0

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that have a provider, in the configured order."""
        return self._order

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
        for method in self._order:
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
        """What a slow check returns. Raises what it raises, and AuthenticationFailed if busy."""
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

"""Checks credentials: which role a client has.

An `Authenticator` has a list of providers, as in Pulsar's `authenticationProviders`. Each answers
for one `auth_method_name`: `token`, `basic` or `tls`. The providers are modules of their own, and
import their libraries with the first configuration that names them.

Rules, as in Pulsar:

1. The client names the method. Without a name it is "none".
2. Credentials of a known method must be right, also if there is an anonymous role.
3. A method that the broker does not have gets the anonymous role, if one is configured.
4. HTTP requests name no method, except by `X-Pulsar-Auth-Method-Name`. All providers are tried
   (`authenticate_http`).

No error and no log line holds a token or a password.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["ANONYMOUS", "Authenticated", "AuthenticationFailed", "Authenticator", "Provider"]

#: The method in `Authenticated` of a client with the anonymous role.
ANONYMOUS = "anonymous"

#: A peer's certificate, as `ssl.SSLSocket.getpeercert` returns it.
PeerCertificate = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Authenticated:
    """A client's role, and until when its credentials are valid.

    `expires_at_ms` is in Unix time; None: they do not expire. `method` is the provider's.
    """

    role: str
    expires_at_ms: int | None
    method: str


class AuthenticationFailed(Exception):  # noqa: N818 - the name that the interface has
    """Credentials were refused: `method` and `reason`, without the credentials."""

    def __init__(self, method: str, reason: str) -> None:
        super().__init__(f"{method}: {reason}")
        self.method = method
        self.reason = reason


class Provider(Protocol):
    """One way to authenticate."""

    #: Pulsar's `auth_method_name`.
    method: str

    def authenticate(self, data: bytes, peer_certificate: PeerCertificate | None) -> Authenticated:
        """The role. Raises AuthenticationFailed."""
        ...

    def http_credentials(self, headers: Mapping[str, str]) -> bytes | None:
        """The credentials in an HTTP request's headers; None: it has none of this kind."""
        ...


class Authenticator:
    """Authenticates clients by the first provider that serves their method."""

    def __init__(self, providers: Sequence[Provider], anonymous_role: str | None = None) -> None:
        self._providers = {provider.method: provider for provider in reversed(providers)}
        self._anonymous_role = anonymous_role

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that have a provider."""
        return tuple(self._providers)

    def authenticate(
        self, method: str, data: bytes, peer_certificate: PeerCertificate | None
    ) -> Authenticated:
        """The role of a client. Raises AuthenticationFailed."""
        provider = self._providers.get(method)
        if provider is None:
            return self._anonymous(method)
        return provider.authenticate(data, peer_certificate)

    def _anonymous(self, method: str) -> Authenticated:
        if self._anonymous_role is None:
            raise AuthenticationFailed(method[:40], "no provider for this method is configured")
        return Authenticated(self._anonymous_role, None, ANONYMOUS)

"""Makes a broker's authenticator: the built-in providers, and those of other packages.

A broker imports only the providers that `authenticationProviders` names. Client certificates are
checked here (`CertificateProvider`), tokens in `token`, passwords in `basic`.

An authentication provider of another package is an entry point of the group
`pulsemark.authentication`. It is called with the `SecurityConfig` and a function that returns the
broker's time in milliseconds, and returns a `Provider`. `authenticationProviders` names it.

An authorisation provider is an entry point of the group `pulsemark.authorization`. It is called
with the `SecurityConfig`, and returns an `AuthorizationProvider`. `authorizationProvider` names it.

docs/embedding.md has an example of each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...extras import install_command
from ..configuration.security_config import (
    AUTHENTICATION,
    AUTHORIZATION,
    PROVIDERS,
    SecurityConfig,
    installed,
)
from ..errors import ConfigError
from .authentication import (
    Authenticated,
    AuthenticationFailed,
    Authenticator,
    PeerCertificate,
    Provider,
)
from .authorization import AuthorizationProvider


def authentication_plugin(
    name: str, known: tuple[str, ...], config: SecurityConfig, now_ms: Callable[[], int]
) -> Provider:
    """The authentication provider of another package.

    Args:
        name: the entry point's name.
        known: names that are built in, for the error.
        config: the broker's settings.
        now_ms: the broker's time.

    Raises:
        ConfigError: it is not installed, cannot be imported or made, or is not a provider.
    """
    made = _make("authentication_providers", AUTHENTICATION, name, known, config, now_ms)
    method = getattr(made, "method", None)
    if not (isinstance(method, str) and method and isinstance(made, Provider)):
        reason = f"{type(made).__name__} has no method, is_slow, authenticate or http_credentials"
        raise ConfigError("authentication_providers", name, reason)
    return made


def authorization_plugin(config: SecurityConfig) -> AuthorizationProvider | None:
    """The authorisation provider of another package; None: only Pulsar's rules decide.

    Raises:
        ConfigError: it is not installed, cannot be imported or made, or is not a provider.
    """
    name = config.authorization_provider
    if name is None:
        return None
    if not config.authorization_enabled:
        reason = "needs authorization_enabled: without it everything is allowed"
        raise ConfigError("authorization_provider", name, reason)
    made = _make("authorization_provider", AUTHORIZATION, name, (), config)
    if not isinstance(made, AuthorizationProvider):
        reason = f"{type(made).__name__} has no method allows"
        raise ConfigError("authorization_provider", name, reason)
    return made


def _make(field: str, group: str, name: str, known: tuple[str, ...], *arguments: Any) -> Any:
    plugins = installed(group)
    found = plugins.select(name=name)
    if not found:
        names = ", ".join([*known, *sorted(plugins.names)])
        there = f"there are {names}" if names else "none is installed"
        raise ConfigError(field, name, f"unknown; {there}")
    if len(found) > 1:
        offers = ", ".join(sorted(plugin.value for plugin in found))
        raise ConfigError(field, name, f"several packages have this name: {offers}")
    (plugin,) = found
    try:
        return plugin.load()(*arguments)
    except Exception as error:
        reason = f"{plugin.value} failed: {type(error).__name__}: {error}"
        raise ConfigError(field, name, reason) from error


class CertificateProvider:
    """Pulsar's AuthenticationProviderTls."""

    method = "tls"
    is_slow = False

    def http_credentials(
        self, headers: Mapping[str, str], peer_certificate: PeerCertificate | None
    ) -> bytes | None:
        """Empty: the certificate is the credential."""
        return b"" if peer_certificate else None

    def authenticate(self, data: bytes, peer_certificate: PeerCertificate | None) -> Authenticated:
        """The last common name, which is the most specific one. Raises AuthenticationFailed."""
        if not peer_certificate:
            raise AuthenticationFailed(self.method, "the client has no trusted certificate")
        names = [
            value
            for attributes in peer_certificate.get("subject", ())
            for name, value in attributes
            if name == "commonName" and value.strip()
        ]
        if not names:
            raise AuthenticationFailed(self.method, "the certificate has no common name")
        return Authenticated(names[-1], None, self.method)


def make_authenticator(config: SecurityConfig, now_ms: Callable[[], int]) -> Authenticator | None:
    """The authenticator; None without authentication.

    Raises ConfigError for an unknown provider, a wrong key, or a library that is not installed.
    """
    if not config.authentication_enabled:
        if config.authorization_enabled:
            reason = "needs authentication_enabled: without it no client has a role"
            raise ConfigError("authorization_enabled", True, reason)
        return None
    methods = dict.fromkeys(PROVIDERS.get(name, name) for name in config.authentication_providers)
    providers = [_provider(method, config, now_ms) for method in methods]
    return Authenticator(providers, config.anonymous_user_role)


def _provider(method: str, config: SecurityConfig, now_ms: Callable[[], int]) -> Provider:
    if method not in PROVIDERS.values():
        return authentication_plugin(method, tuple(PROVIDERS), config, now_ms)
    try:
        if method == "token":
            from .token import TokenProvider

            return TokenProvider(config, now_ms)
        if method == "basic":
            from .basic import BasicProvider

            return BasicProvider(config)
    except ImportError as error:
        reason = f"needs a library ({install_command('security')}): {error}"
        raise ConfigError("authentication_providers", method, reason) from error
    return CertificateProvider()

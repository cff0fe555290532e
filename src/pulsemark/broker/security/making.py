"""Makes the authenticator from a configuration. A provider's libraries are imported here."""

from __future__ import annotations

from collections.abc import Callable

from ...extras import install_command
from ..configuration.security_config import PROVIDERS, SecurityConfig
from ..errors import ConfigError
from .authentication import Authenticator, Provider
from .plugins import authentication_plugin

__all__ = ["make_authenticator"]


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
    from .certificate import CertificateProvider

    return CertificateProvider()

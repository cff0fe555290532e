"""Providers of other packages: own ways to authenticate, and own rules of what a role may do.

An authentication provider is an entry point of the group `pulsemark.authentication`. It is called
with the `SecurityConfig` and a function that returns the broker's time in milliseconds, and returns
a `Provider`. `authenticationProviders` names it.

An authorisation provider is an entry point of the group `pulsemark.authorization`. It is called
with the `SecurityConfig`, and returns an `AuthorizationProvider`. `authorizationProvider` names it.

docs/embedding.md has an example of each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..configuration.provider_names import AUTHENTICATION, AUTHORIZATION, installed
from ..configuration.security_config import SecurityConfig
from ..errors import ConfigError
from .authentication import Provider
from .authorization import AuthorizationProvider

__all__ = ["authentication_plugin", "authorization_plugin"]


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

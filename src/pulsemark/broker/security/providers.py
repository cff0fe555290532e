"""Makes a broker's authenticator: the built-in providers, and those of other packages.

Client certificates and passwords are checked here, tokens in `token`. A provider's library is
imported only if `authenticationProviders` names the provider.

An authentication provider of another package is an entry point of the group
`pulsemark.authentication`. It is called with the `SecurityConfig` and a function that returns the
broker's time in milliseconds, and returns a `Provider`. `authenticationProviders` names it.

An authorisation provider is an entry point of the group `pulsemark.authorization`. It is called
with the `SecurityConfig`, and returns an `AuthorizationProvider`. `authorizationProvider` names it.

docs/embedding.md has an example of each.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
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

MAX_CREDENTIALS_BYTES = 4 * 1024
MAX_REMEMBERED = 10_000
BASIC = "basic "
SCHEMES = (
    *("apr_md5_crypt", "bcrypt", "sha512_crypt", "sha256_crypt"),
    *("md5_crypt", "ldap_sha1", "des_crypt"),
)


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


class BasicProvider:
    """Pulsar's AuthenticationProviderBasic: an `.htpasswd` file with lines `user:hash`.

    Hashes are those of Apache's htpasswd and crypt(3): `$apr1$`, bcrypt, SHA-256 and SHA-512 crypt,
    MD5 crypt, DES crypt, and `{SHA}`. Empty lines and those that begin with `#` are skipped; any
    other line stops the start.

    Good hashes are slow on purpose, so passwords are checked on a thread (`is_slow`). A password
    that was right is remembered as long as the broker runs, as a keyed hash: HTTP requests send it
    each time. An unknown user costs the same time as a wrong password.
    """

    method = "basic"
    is_slow = True

    def __init__(self, config: SecurityConfig) -> None:
        """Raises ConfigError for a file that is missing or has a broken line."""
        from passlib.context import CryptContext

        from .token import read_source

        if config.basic_auth_conf is None:
            reason = "must be given: the provider for passwords needs an .htpasswd"
            raise ConfigError("basic_auth_conf", None, reason)
        #: The kinds of hashes.
        self.context: Any = CryptContext(schemes=list(SCHEMES))
        self._hashes = self._read(read_source("basic_auth_conf", config.basic_auth_conf))
        self._salt = secrets.token_bytes(32)
        self._right: dict[str, bytes] = {}

    def _read(self, content: bytes) -> dict[str, str]:
        found: dict[str, str] = {}
        for number, line in enumerate(content.split(b"\n"), start=1):
            if not line.strip() or line.lstrip().startswith(b"#"):
                continue
            try:
                user, _, password_hash = line.decode().strip().partition(":")
                is_known = self._is_hash(password_hash)
            except ValueError:
                is_known = False
            if not is_known or not user or user in found:
                reason = f"line {number} is not user:hash, or the user is there twice"
                raise ConfigError("basic_auth_conf", "(not shown)", reason)
            found[user] = password_hash
        return found

    def _is_hash(self, text: str) -> bool:
        """Whether it is a whole hash of a known kind. Raises ValueError for a broken one."""
        kind = self.context.identify(text, resolve=True)
        return kind is not None and kind.from_string(text).checksum is not None

    def http_credentials(
        self, headers: Mapping[str, str], peer_certificate: PeerCertificate | None
    ) -> bytes | None:
        """The user and the password of `Authorization: Basic`; b"" if they are not base64."""
        value = headers.get("authorization", "")
        if value[: len(BASIC)].lower() != BASIC:
            return None
        try:
            return base64.b64decode(value[len(BASIC) :].strip(), validate=True)
        except (binascii.Error, ValueError):
            return b""

    def authenticate(self, data: bytes, peer_certificate: PeerCertificate | None) -> Authenticated:
        """The user. Blocks. Raises AuthenticationFailed."""
        if len(data) > MAX_CREDENTIALS_BYTES:
            raise self._failed(f"more than {MAX_CREDENTIALS_BYTES} bytes")
        try:
            user, colon, password = data.decode().partition(":")
        except UnicodeDecodeError:
            raise self._failed("user and password are not UTF-8") from None
        if not colon:
            raise self._failed("not of the form user:password")
        mark = hashlib.blake2b(data, key=self._salt, digest_size=32).digest()
        if not (user in self._right and secrets.compare_digest(self._right[user], mark)):
            self.check_password(user, password)
            if len(self._right) < MAX_REMEMBERED:
                self._right[user] = mark
        return Authenticated(user, None, self.method)

    def check_password(self, user: str, password: str) -> None:
        """Compare with the hash. Blocks. Raises AuthenticationFailed."""
        known = self._hashes.get(user)
        hashed = known if known is not None else next(iter(self._hashes.values()), None)
        try:
            is_right = hashed is not None and self.context.verify(password, hashed)
        except (ValueError, TypeError):  # a NUL, or longer than the method's longest password
            is_right = False
        if known is None or not is_right:
            raise self._failed("unknown user or wrong password")

    def _failed(self, reason: str) -> AuthenticationFailed:
        return AuthenticationFailed(self.method, reason)


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
            return BasicProvider(config)
    except ImportError as error:
        reason = f"needs a library ({install_command('security')}): {error}"
        raise ConfigError("authentication_providers", method, reason) from error
    return CertificateProvider()

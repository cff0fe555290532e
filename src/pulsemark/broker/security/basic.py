"""User names and passwords, checked against an `.htpasswd` file.

A line is `user:hash`. Hashes are those of Apache's htpasswd and crypt(3): `$apr1$`, bcrypt, SHA-256
and SHA-512 crypt, MD5 crypt, DES crypt, and `{SHA}`. Empty lines and those that begin with `#` are
skipped; any other line stops the start.

Good hashes are slow on purpose, so passwords are checked on a thread (`is_slow`). A password that
was right is remembered as long as the broker runs, as a keyed hash: HTTP requests send it each
time. An unknown user costs the same time as a wrong password.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
from collections.abc import Mapping
from typing import Any

from ..configuration.security_config import SecurityConfig
from ..errors import ConfigError
from .authentication import Authenticated, AuthenticationFailed, PeerCertificate
from .token import read_source

MAX_CREDENTIALS_BYTES = 4 * 1024
MAX_REMEMBERED = 10_000
BASIC = "basic "
SCHEMES = (
    *("apr_md5_crypt", "bcrypt", "sha512_crypt", "sha256_crypt"),
    *("md5_crypt", "ldap_sha1", "des_crypt"),
)


class BasicProvider:
    """Pulsar's AuthenticationProviderBasic."""

    method = "basic"
    is_slow = True

    def __init__(self, config: SecurityConfig) -> None:
        """Raises ConfigError for a file that is missing or has a broken line."""
        from passlib.context import CryptContext

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

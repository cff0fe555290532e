"""Tokens (JWT), and where keys and passwords are read from.

What is accepted is fixed by the broker's key, never by the token:

1. A secret key allows HS256, and HS384 and HS512 if it is long enough for them (RFC 7518, 3.2). An
   RSA key allows RS* and PS*, an elliptic curve the one algorithm of its curve. So "none" and a
   public key taken for a secret are not possible.
2. A secret must have 32 bytes at least, an RSA key 2,048 bits.
3. `kid`, `jku`, `x5u` and `jwk` in a token's header are not looked at. A token with `crit` is
   refused, since it asks for an extension.
4. `exp` and `nbf` hold, with the configured clock skew. A token without `exp` does not expire.
5. The role is the configured claim, a text, or the first of a list of texts.

Times come from the broker's clock.

A setting that names a key or a password file holds a `file:` URL or a path; or a `data:` URL, such
as `data:;base64,aGVsbG8=`; or base64, if no file has that name.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, unquote_to_bytes, urlsplit

import jwt

from ..configuration.security_config import SecurityConfig
from ..errors import ConfigError
from .authentication import Authenticated, AuthenticationFailed, PeerCertificate

MAX_TOKEN_BYTES = 16 * 1024
MIN_RSA_BITS = 2048
#: The algorithms of secrets, with the shortest secret in bytes.
HMAC = {"HS256": 32, "HS384": 48, "HS512": 64}
RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
#: The algorithm of each elliptic curve.
CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}

BEARER = "bearer "
#: Checks of PyJWT's that are made here, with the broker's clock and Pulsar's rules.
_MADE_HERE = ("exp", "nbf", "iat", "aud", "iss", "sub", "jti")
_OPTIONS: Any = {"verify_signature": True, **{f"verify_{each}": False for each in _MADE_HERE}}


class TokenProvider:
    """Pulsar's AuthenticationProviderToken."""

    method = "token"
    is_slow = False

    def __init__(self, config: SecurityConfig, now_ms: Callable[[], int]) -> None:
        """Raises ConfigError for a key that is missing, broken or too short."""
        self._now_ms = now_ms
        self._claim = config.token_auth_claim
        self._audience_claim = config.token_audience_claim
        self._audience = config.token_audience
        self._skew_s = config.token_allowed_clock_skew_s
        if self._audience_claim is not None and self._audience is None:
            reason = "must be given, since token_audience_claim is given"
            raise ConfigError("token_audience", None, reason)
        self._key, self._algorithms = _key_of(config)

    def http_credentials(
        self, headers: Mapping[str, str], peer_certificate: PeerCertificate | None
    ) -> bytes | None:
        """The token of `Authorization: Bearer`."""
        value = headers.get("authorization", "")
        if value[: len(BEARER)].lower() != BEARER:
            return None
        return value[len(BEARER) :].strip().encode()

    def authenticate(self, data: bytes, peer_certificate: PeerCertificate | None) -> Authenticated:
        """The role in a token. Raises AuthenticationFailed."""
        claims = self._claims(data)
        expires_at_s = self._check_times(claims)
        self._check_audience(claims)
        expires_at_ms = None if expires_at_s is None else int(expires_at_s * 1000)
        return Authenticated(self._role(claims), expires_at_ms, self.method)

    def _claims(self, data: bytes) -> dict[str, Any]:
        if len(data) > MAX_TOKEN_BYTES:
            raise self._failed(f"the token has more than {MAX_TOKEN_BYTES} bytes")
        try:
            # Pulsar's library strips white space around a token: files end with a newline.
            found = jwt.decode_complete(
                data.strip(), self._key, algorithms=self._algorithms, options=_OPTIONS
            )
        except jwt.InvalidSignatureError:
            raise self._failed("the token's signature is wrong") from None
        except jwt.InvalidAlgorithmError:
            raise self._failed("the token's algorithm does not fit the broker's key") from None
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            # Their texts may quote the token.
            raise self._failed("it is not a token (JWT)") from None
        if "crit" in found["header"]:
            raise self._failed("the token's header asks for an extension (crit)")
        return dict(found["payload"])

    def _check_times(self, claims: dict[str, Any]) -> float | None:
        """When the token expires, in seconds. Raises AuthenticationFailed if it already has."""
        now_s = self._now_ms() / 1000
        begins_at_s, expires_at_s = self._time(claims, "nbf"), self._time(claims, "exp")
        if expires_at_s is not None and now_s >= expires_at_s + self._skew_s:
            raise self._failed("the token has expired")
        if begins_at_s is not None and now_s < begins_at_s - self._skew_s:
            raise self._failed("the token is not valid yet")
        return None if expires_at_s is None else expires_at_s + self._skew_s

    def _time(self, claims: dict[str, Any], name: str) -> float | None:
        value = claims.get(name)
        if value is None:
            return None
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or abs(value) >= 1e12:
            raise self._failed(f"the token's {name} is not a time")
        return float(value)

    def _check_audience(self, claims: dict[str, Any]) -> None:
        if self._audience_claim is None:
            return
        value = claims.get(self._audience_claim)
        audiences = value if isinstance(value, list) else [value]
        if self._audience not in audiences:
            raise self._failed("the token is for another audience")

    def _role(self, claims: dict[str, Any]) -> str:
        value = claims.get(self._claim)
        if isinstance(value, list) and value:
            value = value[0]
        if not isinstance(value, str) or not value.strip():
            raise self._failed(f"the token has no role in its claim {self._claim!r}")
        return value

    def _failed(self, reason: str) -> AuthenticationFailed:
        return AuthenticationFailed(self.method, reason)


def _key_of(config: SecurityConfig) -> tuple[Any, list[str]]:
    """The key, and the algorithms that it allows. Raises ConfigError."""
    if config.token_secret_key is not None:
        secret = read_source("token_secret_key", config.token_secret_key)
        algorithms = [name for name, size in HMAC.items() if len(secret) >= size]
        if not algorithms:
            reason = f"the secret has {len(secret)} bytes; it must have at least {HMAC['HS256']}"
            raise ConfigError("token_secret_key", "(not shown)", reason)
        return secret, algorithms
    if config.token_public_key is None:
        reason = "must be given, or token_public_key: the provider for tokens needs one"
        raise ConfigError("token_secret_key", None, reason)
    data = read_source("token_public_key", config.token_public_key)
    key, algorithms = load_public_key("token_public_key", data)
    if config.token_public_alg not in algorithms:
        reason = f"does not fit the key, which is for {', '.join(algorithms)}"
        raise ConfigError("token_public_alg", config.token_public_alg, reason)
    return key, algorithms


def load_public_key(field: str, data: bytes) -> tuple[Any, list[str]]:
    """A public key (DER or PEM), and the algorithms that it allows. Raises ConfigError."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    try:
        if data.lstrip().startswith(b"-----BEGIN"):
            key = serialization.load_pem_public_key(data)
        else:
            key = serialization.load_der_public_key(data)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ConfigError(field, "(not shown)", "is not a public key (DER or PEM)") from None
    if isinstance(key, rsa.RSAPublicKey):
        if key.key_size < MIN_RSA_BITS:
            reason = f"has {key.key_size} bits; it must have at least {MIN_RSA_BITS}"
            raise ConfigError(field, "(not shown)", reason)
        return key, list(RSA)
    if isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name in CURVES:
        return key, [CURVES[key.curve.name]]
    raise ConfigError(field, "(not shown)", "is neither an RSA key nor on a curve of RFC 7518")


MAX_SOURCE_BYTES = 1024 * 1024
_DATA_URL = re.compile(r"data:[^,]*?(;base64)?,(.*)", re.DOTALL)


def read_source(field: str, text: str) -> bytes:
    """The bytes that a setting names. Raises ConfigError with `field`, and without the key."""
    if text.startswith("data:"):
        return _read_data_url(field, text)
    path = Path(_path_of(text))
    try:
        with path.open("rb") as file:
            content = file.read(MAX_SOURCE_BYTES + 1)
    except (OSError, ValueError) as error:
        decoded = None if text.startswith("file:") else _base64(text)
        if isinstance(error, FileNotFoundError | ValueError) and decoded:
            return decoded
        reason = getattr(error, "strerror", None) or "is not a path"
        # A key that was given in a wrong way must not get into a log.
        shown = text if text.startswith(("file:", "/", "./")) else "(not shown)"
        raise ConfigError(field, shown, f"cannot be read: {reason}") from None
    if len(content) > MAX_SOURCE_BYTES:
        raise ConfigError(field, text, f"the file has more than {MAX_SOURCE_BYTES} bytes")
    return content


def _path_of(text: str) -> str:
    if not text.startswith("file:"):
        return text
    parts = urlsplit(text)
    return unquote(parts.netloc + parts.path)


def _read_data_url(field: str, text: str) -> bytes:
    match = _DATA_URL.fullmatch(text)
    if match is None:
        raise ConfigError(field, "data:...", "is not a data: URL, such as data:;base64,aGVsbG8=")
    if match[1] is None:
        return unquote_to_bytes(match[2])
    decoded = _base64(match[2])
    if decoded is None:
        raise ConfigError(field, "data:...", "its data is not base64")
    return decoded


def _base64(text: str) -> bytes | None:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        return None

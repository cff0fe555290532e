"""SASL messages, without I/O: the credentials that a Kafka client sends. The broker checks them.

PLAIN (RFC 4616) is `authzid NUL user NUL password`. A password `token:T` is a token T whose role
must be the user; any other one is checked with the user as a password of the method `basic`.

OAUTHBEARER (RFC 7628, KIP-255) is `n,a=authzid,^Aauth=Bearer T^A^A` with a token T. A client whose
token is refused gets a JSON object as a challenge, answers with one byte ^A, and is then refused.

In both, an authzid must be the role that was authenticated. A token is checked as one of Pulsar's
clients, with signature: Kafka's unsecured tokens are refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field

PLAIN, OAUTHBEARER = "PLAIN", "OAUTHBEARER"
#: Pulsar's methods by which the credentials are checked.
TOKEN, BASIC = "token", "basic"
PREFIX = f"{TOKEN}:"
SEPARATOR = "\x01"
#: The challenge for a token that is refused (RFC 7628, 3.2.2).
TOKEN_REFUSED = '{"status":"invalid_token"}'  # noqa: S105 - no password


class SaslError(Exception):
    """A client could not be authenticated. The text holds no credentials."""


class RefusedTokenError(SaslError):
    """The token of OAUTHBEARER is well formed, and is refused."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Credentials, the method that checks them, and the role that must result; None: any."""

    method: str
    credentials: bytes = field(repr=False)
    role: str | None


def parse_claim(mechanism: str, data: bytes) -> Claim:
    """Parse a client's message for a mechanism. Raises SaslError."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise SaslError("the credentials are not UTF-8") from None
    return _plain(text) if mechanism == PLAIN else _bearer(text)


def _plain(text: str) -> Claim:
    parts = text.split("\0")
    if len(parts) != 3 or not parts[1] or not parts[2]:
        raise SaslError("PLAIN needs a user and a password")
    authzid, user, password = parts
    if authzid and authzid != user:
        raise SaslError("the authorization id must be empty, or the user")
    if password.startswith(PREFIX):
        return Claim(TOKEN, password.removeprefix(PREFIX).encode(), user)
    return Claim(BASIC, f"{user}:{password}".encode(), user)


def _bearer(text: str) -> Claim:
    header, separator, rest = text.partition(SEPARATOR)
    parts = header.split(",")
    if not separator or len(parts) != 3 or parts[0] not in ("n", "y") or parts[2]:
        raise SaslError("OAUTHBEARER needs a GS2 header without channel binding")
    if parts[1] and not parts[1].startswith("a="):
        raise SaslError("OAUTHBEARER has a wrong authorization id")
    authzid = parts[1].removeprefix("a=").replace("=2C", ",").replace("=3D", "=")
    values = [pair for pair in rest.split(SEPARATOR) if pair.startswith("auth=")]
    if len(values) != 1:
        raise SaslError("OAUTHBEARER needs one bearer token")
    kind, _, token = values[0].removeprefix("auth=").partition(" ")
    if kind.lower() != "bearer" or not token.strip():
        raise SaslError("OAUTHBEARER needs one bearer token")
    return Claim(TOKEN, token.strip().encode(), authzid or None)

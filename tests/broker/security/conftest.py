"""Keys, tokens and certificates for the tests of security."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.certificates import Certificates

SECRET = bytes(range(32))
SECRET_URL = "data:;base64," + base64.b64encode(SECRET).decode()


def part(value: Any) -> bytes:
    """A part of a token: JSON, or bytes as they are."""
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def signed(claims: Any, *, key: bytes = SECRET, digest: str = "sha256", **header: Any) -> bytes:
    """A token with any header and any claims, signed by HMAC."""
    head = part({"alg": "HS256", "typ": "JWT", **header})
    text = head + b"." + part(claims)
    return text + b"." + part(hmac.new(key, text, digest).digest())


@pytest.fixture
def secret_url() -> str:
    """The broker's secret, as a setting names it."""
    return SECRET_URL


@pytest.fixture
def token() -> Callable[..., bytes]:
    """Make a token with any header and any claims."""
    return signed


def password_line(user: str, password: str) -> str:
    """A line of an .htpasswd, with a hash that is quick to check."""
    return f"{user}:{{SHA}}{base64.b64encode(hashlib.sha1(password.encode()).digest()).decode()}"


@pytest.fixture
def passwords(tmp_path: Path) -> str:
    """An .htpasswd with the user `ann`, whose password is `secret:1`."""
    path = tmp_path / ".htpasswd"
    path.write_text("# users\n\n" + password_line("ann", "secret:1") + "\n")
    return str(path)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, certificates of a broker and of clients, and a stranger's.

    The clients' certificates are of X.509 version 1, as old ones are.
    """
    folder = tmp_path_factory.mktemp("certificates")
    made = Certificates(folder)
    made.authority("ca")
    made.authority("other")
    for name in ("broker", "renewed"):
        made.issue(name, "ca", "DNS:localhost,IP:127.0.0.1")
    made.issue("client", "ca", subject="/C=DE/CN=unit/CN=client-role")
    made.issue("nameless", "ca", subject="/C=DE/O=nobody")
    made.issue("stranger", "other", subject="/CN=client-role")
    return folder

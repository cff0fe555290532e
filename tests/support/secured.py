"""A broker with authentication and authorisation, and tokens for its roles.

    with secured_broker() as broker:
        answer = rest(broker, "GET", "/admin/v2/tenants", token_of("admin"))

Super user is `admin`, proxy is `proxy`. `set_up` makes a tenant `acme` with the administrator
`boss` and the namespace `acme/ns`, where `reader` may consume, `writer` may produce and `both` may
do both, and a tenant `other` with the administrator `stranger`.
"""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import jwt

from pulsemark.broker import BrokerThread
from pulsemark.broker.configuration.security_config import SecurityConfig
from pulsemark.testing.broker import running_broker

__all__ = ["SECRET", "RestAnswer", "rest", "secured_broker", "security", "set_up", "token_of"]

SECRET = b"a secret of thirty-two bytes....."
AUDIENCE = "pulsemark"
FAR_S = 4_102_444_800
"""A time in the year 2100."""


def token_of(role: str, *, key: Any = SECRET, algorithm: str = "HS256", **claims: Any) -> str:
    """A token that the broker accepts, unless `claims` or `key` say otherwise."""
    values = {"sub": role, "aud": AUDIENCE, "exp": FAR_S, **claims}
    return jwt.encode(values, key, algorithm=algorithm)


def security(**settings: Any) -> SecurityConfig:
    """Authentication by tokens, and authorisation."""
    secret = "data:;base64," + base64.b64encode(SECRET).decode()
    return SecurityConfig(
        **{
            "authentication_enabled": True,
            "authorization_enabled": True,
            "authentication_providers": ("token",),
            "token_secret_key": secret,
            "token_audience_claim": "aud",
            "token_audience": AUDIENCE,
            "super_user_roles": ("admin",),
            "proxy_roles": ("proxy",),
            **settings,
        }
    )


@contextmanager
def secured_broker(
    settings: Mapping[str, Any] | None = None, **config: Any
) -> Iterator[BrokerThread]:
    """A broker with these settings of security, and `config` of `BrokerConfig`."""
    with running_broker(security=security(**(settings or {})), **config) as broker:
        yield broker


@dataclass(frozen=True, slots=True)
class RestAnswer:
    """An HTTP answer."""

    status: int
    body: bytes
    headers: Mapping[str, str]

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


def rest(
    broker: BrokerThread,
    method: str,
    path: str,
    token: str | None = None,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
) -> RestAnswer:
    """One request over HTTP, with a path that is sent as it is."""
    address = urlsplit(broker.http_url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=20)
    sent = dict(headers or {})
    if token is not None:
        sent["Authorization"] = f"Bearer {token}"
    data = None if body is None else json.dumps(body)
    if data is not None:
        sent.setdefault("Content-Type", "application/json")
    try:
        connection.request(method, path, body=data, headers=sent)
        answer = connection.getresponse()
        return RestAnswer(answer.status, answer.read(), dict(answer.getheaders()))
    finally:
        connection.close()


def set_up(broker: BrokerThread, admin: str | None = None) -> None:
    """Make the tenants, namespaces and permissions that the module's docstring names.

    What is there already stays. `admin` is a super user's token.
    """
    admin = token_of("admin") if admin is None else admin
    steps: list[tuple[str, str, Any]] = [
        ("PUT", "/admin/v2/tenants/acme", {"adminRoles": ["boss"]}),
        ("PUT", "/admin/v2/tenants/other", {"adminRoles": ["stranger"]}),
        ("PUT", "/admin/v2/namespaces/acme/ns", None),
        ("PUT", "/admin/v2/namespaces/other/ns", None),
        ("POST", "/admin/v2/namespaces/acme/ns/permissions/reader", ["consume"]),
        ("POST", "/admin/v2/namespaces/acme/ns/permissions/writer", ["produce"]),
        ("POST", "/admin/v2/namespaces/acme/ns/permissions/both", ["produce", "consume"]),
    ]
    for method, path, body in steps:
        answer = rest(broker, method, path, admin, body)
        if answer.status not in (200, 204, 409):
            raise RuntimeError(f"{method} {path}: {answer.status} {answer.body!r}")

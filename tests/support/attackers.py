"""Who tries to do what they may not: kinds of credentials, and a broker's state to compare.

    with attacked_broker() as broker:
        before = state_of(broker)
        ... for kind, token in FORGED.items(): try it ...
        assert state_of(broker) == before

The broker takes tokens that are signed with an RSA key. Everything that tests of authorisation try
is tried with each kind of `FORGED`, and with the roles that are valid and may not do it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from pulsemark.broker import Broker, BrokerThread
from pulsemark.broker.security.needs import LOOKUPS, READS, Need, Scope

from .secured import secured_broker, token_of

__all__ = ["attacked_broker", "forged", "role_with", "roles_without", "signed", "state_of"]

SMALL_SCOPES = (Scope.SUPER, Scope.CLUSTER, Scope.BROKER)
#: Operations on a namespace for roles that may produce or consume in it.
NAMESPACE_LOOKUPS = frozenset({"GET_TOPIC", "GET_TOPICS", "GET_BUNDLE"})
#: Those for roles that may consume in it.
NAMESPACE_READS = frozenset({"CLEAR_BACKLOG", "UNSUBSCRIBE", "TRIM_TOPIC"})


@cache
def _key(number: int) -> rsa.RSAPrivateKey:
    """The broker's key (0), and another one."""
    return rsa.generate_private_key(public_exponent=65_537, key_size=2_048)


def _public_pem() -> bytes:
    return (
        _key(0)
        .public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )


@contextmanager
def attacked_broker(**config: Any) -> Iterator[BrokerThread]:
    """A broker that takes tokens signed with an RSA key."""
    public = "data:;base64," + base64.b64encode(_public_pem()).decode()
    settings = {"token_secret_key": None, "token_public_key": public}
    with secured_broker(settings, **config) as broker:
        yield broker


@cache
def signed(role: str, *, number: int = 0, **claims: Any) -> str:
    """A token of a role that this broker accepts, unless arguments say otherwise."""
    return token_of(role, key=_key(number), algorithm="RS256", **claims)


def _by_hand(header: dict[str, str], role: str, key: bytes | None) -> str:
    """A token that no library would make: its key and algorithm do not belong together."""

    def part(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    claims = {"sub": role, "aud": "pulsemark", "exp": 4_102_444_800}
    text = f"{part(json.dumps(header).encode())}.{part(json.dumps(claims).encode())}"
    if key is None:
        return f"{text}."
    return f"{text}.{part(hmac.new(key, text.encode(), hashlib.sha256).digest())}"


@cache
def forged(role: str = "admin") -> dict[str, str | None]:
    """Credentials of each kind that must not be accepted, for a role that may do everything."""
    return {
        "none": None,
        "garbage": "a.b.c",
        "bad signature": signed(role)[:-6] + "AAAAAA",
        "another key": signed(role, number=1),
        "alg none": _by_hand({"alg": "none", "typ": "JWT"}, role, None),
        "alg None": _by_hand({"alg": "None", "typ": "JWT"}, role, b""),
        "HS256 with the public key": _by_hand({"alg": "HS256", "typ": "JWT"}, role, _public_pem()),
        "expired": signed(role, exp=1_000_000_000),
        "not valid yet": signed(role, nbf=4_000_000_000),
        "wrong audience": signed(role, aud="another"),
        "no audience": signed(role, aud=None),
        "no role": signed(role, sub=""),
    }


def role_with(need: Need) -> str:
    """A role of `secured.set_up` that may do it, with no more rights than it takes."""
    if need.scope in SMALL_SCOPES or need.operation == "LIST_TENANTS":
        return "admin"
    if need.scope in (Scope.OPEN, Scope.AUTHENTICATED, Scope.OWN):
        return "nobody"
    if need.scope is Scope.NAMESPACE and need.operation in NAMESPACE_LOOKUPS | NAMESPACE_READS:
        return "reader"
    if need.scope is Scope.TOPIC and need.operation in READS:
        return "reader"
    if need.scope is Scope.TOPIC and (need.operation in LOOKUPS or need.operation == "PRODUCE"):
        return "writer"
    return "boss"


def roles_without(need: Need) -> tuple[str, ...]:
    """Roles that are valid and may not do it: of no tenant, of another one, with other rights."""
    strangers = ("nobody", "stranger")
    if need.scope in (Scope.OPEN, Scope.AUTHENTICATED, Scope.OWN):
        return ()
    with_all = role_with(need)
    if with_all == "admin":
        return (*strangers, "boss", "both")
    if with_all == "boss":
        return (*strangers, "both")
    if need.operation in LOOKUPS | NAMESPACE_LOOKUPS:
        return strangers
    return (*strangers, "writer" if with_all == "reader" else "reader")


def state_of(broker: BrokerThread) -> dict[str, Any]:
    """What a broker holds: tenants, policies, topics with their ends, subscriptions, schemas."""

    async def look(running: Broker) -> dict[str, Any]:
        topics, kafka = running.services.topics, running.kafka
        opened = topics.open_topics
        return {
            "tenants": json.dumps(topics.namespaces.tenants, sort_keys=True),
            "namespaces": json.dumps(dict(topics.namespaces.snapshot()), sort_keys=True),
            "policies": json.dumps(topics.policies.of_topics, sort_keys=True),
            "topics": topics.names.snapshot(),
            "partitioned": {
                name: topics.partitioned.in_namespace(name) for name in topics.namespaces
            },
            "ends": {name: topic.ledger.end_position for name, topic in sorted(opened.items())},
            "starts": {name: topic.ledger.first_position for name, topic in opened.items()},
            "cursors": {
                (name, each.name): each.cursor.mark_delete
                for name, topic in opened.items()
                for each in topic.subscriptions.values()
            },
            "producers": {name: len(topic.producers.by_name) for name, topic in opened.items()},
            "schemas": sorted(topics.catalog.items("schema")),
            "groups": [] if kafka is None else sorted(kafka.groups.names()),
            "offsets": [] if kafka is None else sorted(map(str, kafka.offsets.of_group("g"))),
        }

    return broker.call(look)

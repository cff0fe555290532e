"""Which broker of a cluster answers a gRPC call about a topic, and how the others reach it.

A broker that does not have the topic looks its owner up, as for any other client, and sends the
call on to the gRPC port that the owner has registered. Importing this module imports grpc.
"""

from __future__ import annotations

from pathlib import Path

import grpc

from ..finder.errors import ServerUnavailableError
from ..finder.forwarding import Forwarding, Owner
from ..ledger import TopicNotFoundError
from ..proto.pulsar_api_pb2 import ServerError
from ..wire import TopicName
from .configuration.security_config import SecurityConfig
from .errors import RefusedError
from .services import Services

__all__ = ["forwarding_of", "refused_topic"]

#: Refusals that say nothing about the topic: the same call may succeed a moment later.
PASSING = frozenset(
    {ServerError.ServiceNotReady, ServerError.PersistenceError, ServerError.MetadataError}
)


def refused_topic(topic: str, refusal: RefusedError) -> Exception:
    """What callers get if a topic cannot be opened."""
    if refusal.code in PASSING:
        return unavailable(refusal.message)
    return TopicNotFoundError(topic)


def unavailable(text: str) -> ServerUnavailableError:
    """The error that asks a caller to try again."""
    return ServerUnavailableError(grpc.StatusCode.UNAVAILABLE.name, text)


def forwarding_of(services: Services) -> Forwarding:
    """Sends the calls on that other brokers of the cluster have to answer."""

    async def find(topic: str, authoritative: bool) -> Owner | None:
        if services.cluster is None:
            raise unavailable("this broker is being started")
        try:
            return await _owner(services, topic, authoritative=authoritative)
        except RefusedError as refusal:
            raise refused_topic(topic, refusal) from refusal

    security = services.config.security
    return Forwarding(
        find,
        roots=lambda: _roots(security),
        asks_for_certificates=security.tls_require_trusted_client_cert_on_connect,
    )


async def _owner(services: Services, topic: str, *, authoritative: bool) -> Owner | None:
    """The broker of a topic; None: this one. Raises RefusedError, ServerUnavailableError."""
    cluster = services.cluster
    assert cluster is not None, "a broker alone answers every call"
    name: TopicName = services.topics.parse(topic)
    if cluster.owns(name):
        return None
    found = await cluster.find(name, authoritative=authoritative)
    if found.broker_id == cluster.broker_id:
        return None
    place = await cluster.grpc_place(found.broker_id)
    if place is None:
        raise unavailable(f"{found.broker_id}, which served {topic}, has ended")
    chosen = found.redirect and found.authoritative
    return Owner(found.broker_id, place.target, place.tls_target, authoritative=chosen)


def _roots(config: SecurityConfig) -> bytes | None:
    """By what other brokers' certificates are checked: as the brokers' own HTTP calls do."""
    files = (config.tls_certificate_file, config.tls_trust_certs_file)
    found = [Path(file).read_bytes() for file in files if file is not None]
    return b"\n".join(found) if found else None

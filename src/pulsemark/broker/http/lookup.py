"""Topic lookup over HTTP: which broker serves a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import RefusedError
from ..security import needs
from .bundles import boundaries_of, bundle_of
from .elsewhere import found_topic
from .messages import HttpError, Request, Response
from .names import topic_name
from .route import Route

if TYPE_CHECKING:
    from ..ownership import Found
    from ..services import Services

__all__ = ["ROUTES"]


async def lookup(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """Answer with the broker that serves the topic: without a cluster this one.

    The empty `brokerUrlSsl` is there because old C++ clients fail without it.
    """
    services = request.services
    listener = request.query.get("listenerName")
    if listener:
        # Pulsar has the same text, with status 500.
        raise HttpError(404, f"the broker do not have {listener} listener")
    try:
        name = topic_name(request, domain, tenant, namespace, topic)
    except RefusedError as refusal:
        raise HttpError(404, refusal.message) from refusal
    owner: Services | Found = services
    if services.cluster is not None:
        found = await found_topic(request, name)
        if isinstance(found, Response):
            return found
        owner = found
    url = owner.service_url
    shown = {
        "brokerUrl": url,
        "httpUrl": owner.http_url,
        "nativeUrl": url or owner.service_url_tls,
        "brokerUrlSsl": "",
    }
    if owner.service_url_tls:
        shown["brokerUrlTls"] = shown["brokerUrlSsl"] = owner.service_url_tls
    if owner.http_url_tls:
        shown["httpUrlTls"] = owner.http_url_tls
    return Response.of_json(shown)


async def bundle(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """The bundle of a topic; one range of all hashes if the namespace is absent."""
    settings = request.services.topics.namespaces.get(f"{tenant}/{namespace}")
    if settings is None:
        return Response.of_word("0x00000000_0xffffffff")
    name = topic_name(request, domain, tenant, namespace, topic)
    return Response.of_word(bundle_of(boundaries_of(settings), str(name)))


TOPIC = "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}"

ROUTES = (
    Route("GET", TOPIC, needs.topic("LOOKUP"), None, lookup),
    Route("GET", f"{TOPIC}/bundle", needs.topic("LOOKUP"), None, bundle),
)

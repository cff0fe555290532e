"""Topic lookup over HTTP: which broker serves a topic."""

from __future__ import annotations

from ..errors import RefusedError
from .bundles import boundaries_of, bundle_of
from .messages import HttpError, Request, Response
from .names import topic_name
from .table import Route

__all__ = ["ROUTES"]


async def lookup(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """Answer with this broker, which serves every topic.

    The empty `brokerUrlSsl` is there because old C++ clients fail without it.
    """
    services = request.services
    try:
        topic_name(request, domain, tenant, namespace, topic)
    except RefusedError as refusal:
        raise HttpError(404, refusal.message) from refusal
    url = services.service_url
    found = {
        "brokerUrl": url,
        "httpUrl": services.http_url,
        "nativeUrl": url or services.service_url_tls,
        "brokerUrlSsl": "",
    }
    if services.service_url_tls:
        found["brokerUrlTls"] = found["brokerUrlSsl"] = services.service_url_tls
    if services.http_url_tls:
        found["httpUrlTls"] = services.http_url_tls
    return Response.of_json(found)


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
    Route("GET", TOPIC, lookup, (404, 412)),
    Route("GET", f"{TOPIC}/bundle", bundle, (412,)),
)

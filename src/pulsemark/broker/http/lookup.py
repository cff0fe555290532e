"""Topic lookup over HTTP: which broker serves a topic."""

from __future__ import annotations

from ..errors import RefusedError
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
        "brokerUrlSsl": "",
        "httpUrl": services.http_url,
        "nativeUrl": url or services.service_url_tls,
    }
    if services.service_url_tls:
        found["brokerUrlTls"] = found["brokerUrlSsl"] = services.service_url_tls
    if services.http_url_tls:
        found["httpUrlTls"] = services.http_url_tls
    return Response.of_json(found)


ROUTES = (Route("GET", "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}", lookup),)

"""Finds the handler of a request's path, in a table.

A template's `{name}` matches one segment of the path. Each segment is percent-decoded on its own,
so an encoded slash in a name never makes another segment.
"""

from __future__ import annotations

from ...ledger import LedgerError
from ...proto.pulsar_api_pb2 import ServerError
from ..errors import RefusedError
from . import (
    absent_services,
    audit,
    broker_stats,
    brokers,
    cleaning,
    cleaning_policies,
    clusters,
    entries,
    entry_format,
    leader_epochs,
    lookup,
    mirror_policies,
    namespace_policies,
    namespace_topics,
    namespaces,
    partitions,
    policies,
    properties,
    resources,
    schemas,
    subscriptions,
    tenants,
    topics,
)
from .messages import HttpError, Request, Response, UnservedError
from .pages import (
    JSON_CLASSES,
    accepts_json,
    allow_header,
    error_page,
    has_json_body,
    options,
)
from .table import Handler, Route

__all__ = ["ROUTES", "answer"]

ROUTES: tuple[Route, ...] = (
    *brokers.ROUTES,
    *broker_stats.ROUTES,
    *clusters.ROUTES,
    *resources.ROUTES,
    *absent_services.ROUTES,
    *lookup.ROUTES,
    *tenants.ROUTES,
    *namespaces.ROUTES,
    *namespace_policies.ROUTES,
    *namespace_topics.ROUTES,
    *policies.ROUTES,
    *mirror_policies.ROUTES,
    *cleaning_policies.ROUTES,
    *entry_format.ROUTES,
    *entries.ROUTES,
    *leader_epochs.ROUTES,
    *topics.ROUTES,
    *properties.ROUTES,
    *partitions.ROUTES,
    *subscriptions.ROUTES,
    *cleaning.ROUTES,
    *audit.ROUTES,
    *schemas.ROUTES,
)

#: The HTTP status of a `RefusedError`, by its code.
STATUS_OF = {
    ServerError.TopicNotFound: 404,
    ServerError.SubscriptionNotFound: 404,
    ServerError.InvalidTopicName: 412,
    ServerError.NotAllowedError: 405,
    ServerError.IncompatibleSchema: 409,
    ServerError.PersistenceError: 503,
    ServerError.ServiceNotReady: 503,
}


def _by_size(routes: tuple[Route, ...]) -> dict[int, tuple[Route, ...]]:
    sizes = {route.size for route in routes}
    return {
        size: tuple(sorted((r for r in routes if r.size == size), key=lambda route: route.rank))
        for size in sizes
    }


BY_SIZE = _by_size(ROUTES)


async def answer(request: Request) -> Response:
    """Find the handler and run it. Raises `HttpError`."""
    accept = request.headers.get("accept", "")
    try:
        if request.method == "OPTIONS":
            return options(_allowed(request))
        handler, values = _find(request)
        _check_media_types(request, accept)
        return await handler(request, *values)
    except UnservedError as error:
        path = request.target.partition("?")[0]
        page = error_page(request.method, path, accept, error.status)
        page.headers = allow_header(error.allowed) if error.status == 405 else ()
        return page
    except RefusedError as refusal:
        raise HttpError(STATUS_OF.get(refusal.code, 409), refusal.message) from refusal
    except LedgerError as error:
        raise HttpError(503, str(error)) from error


def _allowed(request: Request) -> frozenset[str]:
    """The methods of the request's path. Raises `UnservedError` 404."""
    routes = BY_SIZE.get(len(request.segments), ())
    found = frozenset(r.method for r in routes if r.match(request.segments) is not None)
    if not found:
        raise UnservedError(404)
    return found


def _find(request: Request) -> tuple[Handler, tuple[str, ...]]:
    method = "GET" if request.method == "HEAD" else request.method
    for route in BY_SIZE.get(len(request.segments), ()):
        if route.method == method:
            values = route.match(request.segments)
            if values is not None:
                return route.handler, values
    raise UnservedError(405, _allowed(request))


def _check_media_types(request: Request, accept: str) -> None:
    """Raise `UnservedError`: 406 or 415, where Pulsar takes and gives only JSON."""
    if request.segments[0] not in ("admin", "lookup"):
        return
    if not accepts_json(accept):
        raise UnservedError(406)
    part = request.segments[2] if len(request.segments) > 2 else ""
    kind = request.headers.get("content-type", "")
    if request.body and part in JSON_CLASSES and not has_json_body(kind):
        raise UnservedError(415)

"""Finds the handler of a request's path, in a table.

A template's `{name}` matches one segment of the path. Each segment is percent-decoded on its own,
so an encoded slash in a name never makes another segment.
"""

from __future__ import annotations

from ...ledger import LedgerError
from ...proto.pulsar_api_pb2 import ServerError
from ..errors import LimitReachedError, RefusedError
from ..security.needs import Need
from . import (
    audit,
    backlog_quotas,
    cleaning,
    cluster,
    entries,
    entry_format,
    leader_epochs,
    lookup,
    namespaces,
    non_persistent,
    partitions,
    permissions,
    policies,
    properties,
    schemas,
    stored_messages,
    subscriptions,
    termination,
    topics,
)
from .authorizing import authorize
from .messages import HttpError, Request, Response
from .needs import need_of
from .table import Route

__all__ = ["answer"]

ROUTES: tuple[Route, ...] = (
    *cluster.ROUTES,
    *lookup.ROUTES,
    *namespaces.ROUTES,
    *permissions.ROUTES,
    *policies.ROUTES,
    *backlog_quotas.ROUTES,
    *properties.ROUTES,
    *entry_format.ROUTES,
    *entries.ROUTES,
    *leader_epochs.ROUTES,
    *non_persistent.ROUTES,
    *topics.ROUTES,
    *partitions.ROUTES,
    *subscriptions.ROUTES,
    *cleaning.ROUTES,
    *audit.ROUTES,
    *schemas.ROUTES,
    *stored_messages.ROUTES,
    *termination.ROUTES,
)

#: Each route with what it needs. The import fails for a route of which this is not stated.
NEEDED = tuple((route, need_of(route)) for route in ROUTES)

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


async def answer(request: Request) -> Response:
    """Find the handler and run it. Raises `HttpError`."""
    route, need, values = _find(request)
    authorize(request, route, need, values)
    try:
        return await route.handler(request, *values)
    except RefusedError as refusal:
        is_limit = isinstance(refusal, LimitReachedError)
        status = 409 if is_limit else STATUS_OF.get(refusal.code, 409)
        raise HttpError(status, refusal.message) from refusal
    except LedgerError as error:
        raise HttpError(503, str(error)) from error


def _find(request: Request) -> tuple[Route, Need, tuple[str, ...]]:
    method = "GET" if request.method == "HEAD" else request.method
    known_path = False
    for route, need in NEEDED:
        values = route.match(request.segments)
        if values is None:
            continue
        known_path = True
        if route.method == method:
            return route, need, values
    if known_path:
        raise HttpError(405, f"{request.method} is not served here")
    raise HttpError(404, "no such resource")

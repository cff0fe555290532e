"""Finds the handler of a request's path, in a table.

A template's `{name}` matches one segment of the path. Each segment is percent-decoded on its own,
so an encoded slash in a name never makes another segment.
"""

from __future__ import annotations

from ...ledger import LedgerError
from ...proto.pulsar_api_pb2 import ServerError
from ..errors import LimitReachedError, RefusedError
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
    policies,
    properties,
    schemas,
    stored_messages,
    subscriptions,
    termination,
    topics,
)
from .messages import HttpError, Request, Response
from .table import Handler, Route

__all__ = ["answer"]

ROUTES: tuple[Route, ...] = (
    *cluster.ROUTES,
    *lookup.ROUTES,
    *namespaces.ROUTES,
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
    handler, values = _find(request)
    try:
        return await handler(request, *values)
    except RefusedError as refusal:
        is_limit = isinstance(refusal, LimitReachedError)
        status = 409 if is_limit else STATUS_OF.get(refusal.code, 409)
        raise HttpError(status, refusal.message) from refusal
    except LedgerError as error:
        raise HttpError(503, str(error)) from error


def _find(request: Request) -> tuple[Handler, tuple[str, ...]]:
    method = "GET" if request.method == "HEAD" else request.method
    known_path = False
    for route in ROUTES:
        values = route.match(request.segments)
        if values is None:
            continue
        known_path = True
        if route.method == method:
            return route.handler, values
    if known_path:
        raise HttpError(405, f"{request.method} is not served here")
    raise HttpError(404, "no such resource")

"""Finds the handler of a request's path, in a table.

A template's `{name}` matches one segment of the path. Each segment is percent-decoded on its own,
so an encoded slash in a name never makes another segment.
"""

from __future__ import annotations

from ...ledger import LedgerError
from ...ledger.errors import ChangedElsewhereError
from ...proto.pulsar_api_pb2 import ServerError
from ..errors import LimitReachedError, RefusedError
from ..ownership import NotOwnedError
from . import (
    audit,
    backlogs,
    brokers,
    cleaning,
    namespaces,
    non_persistent,
    permissions,
    policies,
    schemas,
    stored_messages,
    subscriptions,
    tenants,
    topic_stats,
    topics,
    web_page,
)
from .authorization import authorize
from .bodies import check_body
from .messages import (
    JSON_CLASSES,
    HttpError,
    Request,
    Response,
    UnservedError,
    accepts_json,
    allow_header,
    error_page,
    has_json_body,
    options,
)
from .peer_proxy import elsewhere
from .route import Route

__all__ = ["ROUTES", "answer"]

ROUTES: tuple[Route, ...] = (
    *audit.ROUTES,
    *backlogs.ROUTES,
    *brokers.ROUTES,
    *cleaning.ROUTES,
    *namespaces.ROUTES,
    *non_persistent.ROUTES,
    *permissions.ROUTES,
    *policies.ROUTES,
    *schemas.ROUTES,
    *stored_messages.ROUTES,
    *subscriptions.ROUTES,
    *tenants.ROUTES,
    *topic_stats.ROUTES,
    *topics.ROUTES,
    *web_page.ROUTES,
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


#: Where Pulsar's web server has its parts: without a slash it sends clients to the path with one.
MOUNTS = frozenset({"/admin", "/admin/v2", "/admin/v3", "/lookup"})


def _by_size() -> dict[int, tuple[Route, ...]]:
    """The routes by the number of segments; among those of one size, literal ones go first."""
    found: dict[int, list[Route]] = {}
    for route in sorted(ROUTES, key=lambda route: route.rank):
        found.setdefault(route.size, []).append(route)
    return {size: tuple(routes) for size, routes in found.items()}


BY_SIZE = _by_size()


async def answer(request: Request) -> Response:
    """Find the handler and run it. Raises `HttpError`."""
    accept = request.headers.get("accept", "")
    try:
        if "{" in request.target.partition("?")[0]:
            # Pulsar's web server takes it for the beginning of a template.
            raise UnservedError(400)
        if request.method == "OPTIONS":
            return options(_allowed(request))
        route, values = _find(request)
        authorize(request, route, values)
        _check_media_types(request, accept)
        check_body(request, route.body)
        try:
            return await route.handler(request, *values)
        except NotOwnedError as error:
            return await elsewhere(request, route, values, error)
    except UnservedError as error:
        path = request.target.partition("?")[0]
        if path in MOUNTS:
            return Response(302, headers=(("location", f"{_origin(request)}{path}/"),))
        page = error_page(request.method, path, accept, error.status)
        if error.status == 405:
            page.headers += allow_header(error.allowed)
        return page
    except RefusedError as refusal:
        is_limit = isinstance(refusal, LimitReachedError)
        status = 409 if is_limit else STATUS_OF.get(refusal.code, 409)
        raise HttpError(status, refusal.message) from refusal
    except ChangedElsewhereError as error:
        raise HttpError(409, "Concurrent modification") from error
    except LedgerError as error:
        raise HttpError(503, str(error)) from error


def _origin(request: Request) -> str:
    """What goes before the path in the URL that the client used; "" if it named no host."""
    host = request.headers.get("host", "")
    scheme = "https" if request.is_secure else "http"
    return f"{scheme}://{host}" if host else ""


def _allowed(request: Request) -> frozenset[str]:
    """The methods of the request's path. Raises `UnservedError` 404.

    They are those of the first template that fits, as in JAX-RS: others that fit do not count.
    """
    routes = BY_SIZE.get(len(request.segments), ())
    fitting = [route for route in routes if route.match(request.segments) is not None]
    if not fitting:
        raise UnservedError(404)
    first = fitting[0].shape
    return frozenset(route.method for route in fitting if route.shape == first)


def _find(request: Request) -> tuple[Route, tuple[str, ...]]:
    method = "GET" if request.method == "HEAD" else request.method
    for route in BY_SIZE.get(len(request.segments), ()):
        if route.method == method:
            values = route.match(request.segments)
            if values is not None:
                return route, values
    raise UnservedError(405, _allowed(request))


def _check_media_types(request: Request, accept: str) -> None:
    """Raise `UnservedError`: 406 or 415, where Pulsar takes and gives only JSON."""
    if not request.segments or request.segments[0] not in ("admin", "lookup"):
        return
    if not accepts_json(accept):
        raise UnservedError(406)
    part = request.segments[2] if len(request.segments) > 2 else ""
    kind = request.headers.get("content-type", "")
    if request.body and part in JSON_CLASSES and not has_json_body(kind):
        raise UnservedError(415 if "/" in kind else 400)

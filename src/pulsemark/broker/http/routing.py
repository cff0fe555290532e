"""Finds the handler of a request's path in a table, and checks whether the client may call it.

A template's `{name}` matches one segment of the path. Each segment is percent-decoded on its own,
so an encoded slash in a name never makes another segment.

Statuses are those of Apache Pulsar 4.0.8: 403 for operations on namespaces and for policies, 401
for all others, and 404 for a tenant that does not exist. The text names what is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from ...ledger import LedgerError
from ...ledger.errors import ChangedElsewhereError
from ...proto.pulsar_api_pb2 import ServerError
from ...wire import InvalidTopicNameError, TopicName
from ..errors import InvalidSchemaError, LimitReachedError, RefusedError
from ..ownership import NotOwnedError
from ..policies.policy import PolicyValueError
from ..security.authorization import Target
from ..security.needs import Scope
from ..security.permissions import InvalidPermissionError
from . import brokers, messages
from .route import Route


@cache
def all_routes() -> tuple[Route, ...]:
    """The routes of the whole interface. Imports their modules, which takes a while."""
    from . import (
        backlogs,
        namespaces,
        non_persistent,
        permissions,
        policies,
        schemas,
        stored_messages,
        subscriptions,
        topics,
        transactions,
        web_page,
    )

    return (
        *backlogs.routes,
        *brokers.routes,
        *namespaces.routes,
        *non_persistent.routes,
        *permissions.routes,
        *policies.routes,
        *schemas.routes,
        *stored_messages.routes,
        *subscriptions.routes,
        *topics.routes,
        *transactions.routes,
        *web_page.routes,
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


#: What paths of the broker itself begin with. Only `brokers` has routes there, so that a check of
#: the broker's health needs no other module.
OF_THE_BROKER = frozenset({"brokers", "broker-stats", "clusters", "metrics", "status.html"})


def part_of(segments: Sequence[str]) -> str:
    """The part of the interface that a path is in: what follows the version, or its beginning."""
    admin = tuple(segments[:1]) == ("admin",) and len(segments) > 2
    return segments[2] if admin else (segments[0] if segments else "")


@cache
def _by_size(*, whole: bool) -> dict[int, tuple[Route, ...]]:
    """The routes by the number of segments; among those of one size, literal ones go first."""
    found: dict[int, list[Route]] = {}
    for route in sorted(all_routes() if whole else brokers.routes, key=lambda route: route.rank):
        found.setdefault(len(route.parts), []).append(route)
    return {size: tuple(routes) for size, routes in found.items()}


async def _routes_for(request: messages.Request) -> tuple[Route, ...]:
    """The routes among which the request's is, if there is one."""
    whole = part_of(request.segments) not in OF_THE_BROKER
    if whole and not all_routes.cache_info().currsize:
        await request.services.run_blocking(all_routes)
    return _by_size(whole=whole).get(len(request.segments), ())


async def answer(request: messages.Request) -> messages.Response:
    """Find the handler and run it. Raises `HttpError`."""
    accept = request.headers.get("accept", "")
    try:
        if "{" in request.target.partition("?")[0]:
            # Pulsar's web server takes it for the beginning of a template.
            raise messages.UnservedError(400)
        routes = await _routes_for(request)
        if request.method == "OPTIONS":
            return messages.options(_allowed(request, routes))
        route, values = find(request, routes)
        authorize(request, route, values)
        _check_media_types(request, accept)
        try:
            found = await route.run(request, values)
        except NotOwnedError as error:
            from .peer_proxy import elsewhere

            found = await elsewhere(request, route, values, error)
        return await messages.Response.of(found, request.topics.turns)
    except messages.UnservedError as error:
        response = error.response
        if error.status == 405:
            response.headers += messages.allow_header(error.allowed)
        return response
    except RefusedError as refusal:
        raise messages.HttpError(_status_of(refusal), refusal.message) from refusal
    except PolicyValueError as error:
        raise messages.HttpError(error.status, str(error)) from error
    except InvalidPermissionError as error:
        raise messages.HttpError(400, str(error)) from error
    except ChangedElsewhereError as error:
        raise messages.HttpError(409, "Concurrent modification") from error
    except LedgerError as error:
        raise messages.HttpError(503, str(error)) from error


def _status_of(refusal: RefusedError) -> int:
    if isinstance(refusal, InvalidSchemaError):
        return 422
    return 409 if isinstance(refusal, LimitReachedError) else STATUS_OF.get(refusal.code, 409)


def _allowed(request: messages.Request, routes: Sequence[Route]) -> frozenset[str]:
    """The methods of the request's path. Raises `UnservedError` 404.

    They are those of the first template that fits, as in JAX-RS: others that fit do not count.
    """
    fitting = [route for route in routes if route.match(request.segments) is not None]
    if not fitting:
        raise messages.UnservedError(404)
    first = fitting[0].shape
    return frozenset(route.method for route in fitting if route.shape == first)


def find(request: messages.Request, routes: Sequence[Route]) -> tuple[Route, tuple[str, ...]]:
    """The first route that matches, and the values of its names. Raises `UnservedError`."""
    method = "GET" if request.method == "HEAD" else request.method
    for route in routes:
        if route.method == method:
            values = route.match(request.segments)
            if values is not None:
                return route, values
    raise messages.UnservedError(405, _allowed(request, routes))


def _check_media_types(request: messages.Request, accept: str) -> None:
    """Raise `UnservedError`: 406 or 415, where Pulsar takes and gives only JSON."""
    if not request.segments or request.segments[0] not in ("admin", "lookup"):
        return
    if not messages.accepts_json(accept):
        raise messages.UnservedError(406)
    part = request.segments[2] if len(request.segments) > 2 else ""
    kind = request.headers.get("content-type", "")
    if request.body and part in messages.JSON_CLASSES and not messages.has_json_body(kind):
        raise messages.UnservedError(415 if "/" in kind else 400)


def authorize(request: messages.Request, route: Route, values: tuple[str, ...]) -> None:
    """Raise HttpError if the client may not use the route with these values of its template."""
    authorizer, principal = request.services.authorizer, request.principal
    need = route.permission
    if not authorizer.is_on or need.scope in (Scope.OPEN, Scope.PEER):
        return
    if not authorizer.is_valid(principal):
        raise messages.HttpError(
            401, "a proxy must name the role for which it asks, and nobody else may"
        )
    named = dict(zip(route.names, values, strict=True))
    if route.path.startswith("/admin/v2/non-persistent/"):
        named["domain"] = "non-persistent"
    target = _target(named)
    if authorizer.allows(principal, need, target):
        return
    tenants = request.topics.namespaces.tenants
    if need.scope is not Scope.TENANTS and target.tenant and target.tenant not in tenants:
        raise messages.HttpError(404, "Tenant does not exist")
    status = 403 if need.scope in FORBIDDEN else 401
    place = target.topic or target.namespace or target.tenant
    raise messages.HttpError(status, f"not permitted: {need}{place and f' of {place}'}")


#: The scopes whose refusals are answered with 403.
FORBIDDEN = frozenset({Scope.NAMESPACE, Scope.NAMESPACE_POLICY, Scope.TOPIC_POLICY})


def _target(named: dict[str, str]) -> Target:
    tenant, local = named.get("tenant", ""), named.get("namespace")
    if local is None:
        return Target(tenant)
    namespace = f"{tenant}/{local}"
    if "topic" not in named:
        return Target(tenant, namespace, subscription=named.get("subscription"))
    domain = named.get("domain", "persistent")
    try:
        topic = TopicName.parse(f"{domain}://{namespace}/{named['topic']}")
    except InvalidTopicNameError as error:
        raise messages.HttpError(412, str(error)) from error
    return Target.of_topic(topic, named.get("subscription"))

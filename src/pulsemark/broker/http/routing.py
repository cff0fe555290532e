"""Finds the handler of a request's path in a table, and checks whether the client may call it.

A template's `{name}` matches one segment of the path. Each segment is percent-decoded on its own,
so an encoded slash in a name never makes another segment.

Statuses and texts are those of Apache Pulsar 4.0.8: 403 for operations on namespaces and for
policies, 401 for all others, and 404 for a tenant that does not exist.
"""

from __future__ import annotations

from ...ledger import LedgerError
from ...ledger.errors import ChangedElsewhereError
from ...proto.pulsar_api_pb2 import ServerError
from ...wire import InvalidTopicNameError, TopicName
from ..errors import LimitReachedError, RefusedError
from ..ownership import NotOwnedError
from ..policies.policy import PolicyValueError
from ..security.authentication import Principal
from ..security.authorization import Target
from ..security.needs import Need, Scope
from ..security.permissions import InvalidPermissionError
from . import (
    audit,
    backlogs,
    brokers,
    namespaces,
    non_persistent,
    permissions,
    policies,
    schemas,
    stored_messages,
    subscriptions,
    topics,
    web_page,
)
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

ROUTES: tuple[Route, ...] = (
    *audit.routes,
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
        try:
            return await route.run(request, values)
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
    except PolicyValueError as error:
        raise HttpError(error.status, str(error)) from error
    except InvalidPermissionError as error:
        raise HttpError(400, str(error)) from error
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


def authorize(request: Request, route: Route, values: tuple[str, ...]) -> None:
    """Raise HttpError if the client may not use the route with these values of its template."""
    authorizer, principal = request.services.authorizer, request.principal
    need = route.permission
    if not authorizer.is_on or need.scope is Scope.OPEN:
        return
    if not authorizer.is_valid(principal):
        raise HttpError(
            401,
            "Invalid combination of Original principal cannot be empty if the request is via "
            "proxy.",
        )
    named = dict(zip(route.names, values, strict=True))
    if route.path.startswith("/admin/v2/non-persistent/"):
        named["domain"] = "non-persistent"
    target = _target(named)
    if authorizer.allows(principal, need, target):
        return
    tenants = request.services.topics.namespaces.tenants
    if need.scope is not Scope.TENANTS and target.tenant and target.tenant not in tenants:
        raise HttpError(404, "Tenant does not exist")
    status = 403 if need.scope in FORBIDDEN else 401
    raise HttpError(status, _text(request, principal, need, target, named))


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
        raise HttpError(412, str(error)) from error
    return Target.of_topic(topic, named.get("subscription"))


def _text(
    request: Request, principal: Principal, need: Need, target: Target, named: dict[str, str]
) -> str:
    operation = f"[{need.operation}]"
    match need.scope:
        case Scope.TOPIC:
            where = f"on topic [{target.topic}]"
            return f"Unauthorized to validateTopicOperation for operation {operation} {where}"
        case Scope.TOPIC_POLICY:
            where = f"on topic [{target.topic}] on policy [{need.policy}]"
            return f"Unauthorized to validateTopicPolicyOperation for operation {operation} {where}"
        case Scope.NAMESPACE:
            where = f"on namespace [{target.namespace}]"
            return f"Unauthorized to validateNamespaceOperation for operation {operation} {where}"
        case Scope.NAMESPACE_POLICY:
            where = f"on namespace [{target.namespace}] on policy [{need.policy}]"
            return (
                f"Unauthorized to validateNamespacePolicyOperation for operation {operation} "
                f"{where}"
            )
        case Scope.TENANT_ADMIN:
            return "Don't have permission to administrate resources on this tenant"
        case Scope.TENANT:
            return _of_client(
                principal, "validateTenantOperation", need, f"tenant [{target.tenant}]"
            )
        case Scope.TENANTS:
            return _of_client(principal, "validateBothTenantOperationAndSuperUser", need, "")
        case Scope.CLUSTER:
            name = f"cluster [{named.get('cluster', '')}]"
            return _of_client(principal, "validateBothSuperuserAndClusterOperation", need, name)
        case Scope.BROKER:
            address = request.services.http_url.partition("://")[2]
            name = f"broker [{address}]"
            return _of_client(principal, "validateBothSuperuserAndBrokerOperation", need, name)
        case Scope.AUTHENTICATED:
            return "Need to authenticate to perform the request"
    return "This operation requires super-user access"


def _of_client(principal: Principal, check: str, need: Need, where: str) -> str:
    original = "null" if principal.original_role is None else principal.original_role
    return (
        f"Unauthorized to {check} for originalPrincipal [{original}] and clientAppId "
        f"[{principal.role}] about operation [{need.operation}] {where and f'on {where}'}"
    )

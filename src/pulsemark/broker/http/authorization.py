"""Refuses a request whose client may not do what the route does, before its handler runs.

Statuses and texts are those of Apache Pulsar 4.0.8: 403 for operations on namespaces and for
policies, 401 for all others, and 404 for a tenant that does not exist.
"""

from __future__ import annotations

from ...wire import InvalidTopicNameError, TopicName
from ..security.authorization import Target
from ..security.identity import Principal
from ..security.needs import Need, Scope
from .messages import HttpError, Request
from .route import Route

__all__ = ["authorize"]


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

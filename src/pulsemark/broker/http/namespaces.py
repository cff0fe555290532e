"""Tenants and namespaces."""

from __future__ import annotations

from typing import Any

from ..policies.catalogue import read_settings, shown_settings
from ..policies.policy import PolicyValueError
from ..security.permissions import (
    AUTH_MODE,
    AUTH_POLICIES,
    InvalidPermissionError,
    check_auth_mode,
    check_auth_policies,
    check_roles,
)
from .messages import HttpError, Request, Response
from .names import check_new_namespace, namespace_name
from .table import Route

__all__ = ["ROUTES"]


async def tenants(request: Request) -> Response:
    """All tenants."""
    return Response.of_json(sorted(request.services.topics.namespaces.tenants))


async def tenant(request: Request, name: str) -> Response:
    """One tenant's settings."""
    settings = _tenant(request, name)
    return Response.of_json(
        {
            "adminRoles": settings.get("adminRoles", []),
            "allowedClusters": settings.get("allowedClusters", [request.services.config.cluster]),
        }
    )


async def create_tenant(request: Request, name: str) -> Response:
    """Create a tenant."""
    check_new_namespace(name, "any")
    if name in request.services.topics.namespaces.tenants:
        raise HttpError(409, f"Tenant {name} already exists")
    settings = _tenant_settings(request)
    await request.services.topics.namespaces.put_tenant(name, settings)
    return Response()


async def update_tenant(request: Request, name: str) -> Response:
    """Change a tenant's settings."""
    _tenant(request, name)
    settings = _tenant_settings(request)
    await request.services.topics.namespaces.put_tenant(name, settings)
    return Response()


async def delete_tenant(request: Request, name: str) -> Response:
    """Delete a tenant without namespaces."""
    _tenant(request, name)
    if request.services.topics.namespaces.of(name):
        raise HttpError(409, f"Tenant {name} still has namespaces")
    await request.services.topics.namespaces.delete_tenant(name)
    return Response()


async def namespaces(request: Request, tenant_name: str) -> Response:
    """A tenant's namespaces."""
    _tenant(request, tenant_name)
    return Response.of_json(request.services.topics.namespaces.of(tenant_name))


async def namespace(request: Request, tenant_name: str, name: str) -> Response:
    """A namespace's policies."""
    full = namespace_name(request, tenant_name, name)
    settings, cluster = request.services.topics.namespaces[full], request.services.config.cluster
    return Response.of_json(shown_settings(settings, cluster))


async def create_namespace(request: Request, tenant_name: str, name: str) -> Response:
    """Create a namespace."""
    _tenant(request, tenant_name)
    full = check_new_namespace(tenant_name, name)
    if full in request.services.topics.namespaces:
        raise HttpError(409, f"Namespace {full} already exists")
    settings = _settings(request)
    try:
        # In the executor, since a policy may import a plugin.
        settings = await request.services.run_blocking(
            read_settings, _checked_permissions(settings), request.services.config.cluster
        )
    except InvalidPermissionError as error:
        raise HttpError(400, str(error)) from error
    except PolicyValueError as error:
        raise HttpError(error.status, str(error)) from error
    await request.services.topics.namespaces.put(full, settings)
    return Response()


def _checked_permissions(settings: dict[str, Any]) -> dict[str, Any]:
    checked = dict(settings)
    if checked.get(AUTH_POLICIES) is not None:
        checked[AUTH_POLICIES] = check_auth_policies(checked[AUTH_POLICIES])
    else:
        checked.pop(AUTH_POLICIES, None)
    if checked.get(AUTH_MODE) is not None:
        checked[AUTH_MODE] = check_auth_mode(checked[AUTH_MODE])
    return checked


async def delete_namespace(request: Request, tenant_name: str, name: str) -> Response:
    """Delete a namespace without topics; with force=true its topics, too."""
    topics = request.services.topics
    full = namespace_name(request, tenant_name, name)
    names = [*topics.partitioned_in(full), *topics.names_in(full)]
    if names and not request.flag("force"):
        raise HttpError(409, "Cannot delete non empty namespace")
    for topic in names:
        parsed = topics.parse(topic)
        if topics.partitions_of(parsed):
            await topics.delete_partitioned(parsed, force=True)
        elif topics.exists(parsed):
            await topics.delete(parsed, force=True)
    await topics.delete_namespace(full)
    return Response()


async def namespace_topics(request: Request, tenant_name: str, name: str) -> Response:
    """Every topic of a namespace, with each partition; `mode` chooses the domain."""
    names = request.services.topics.names_in(namespace_name(request, tenant_name, name))
    mode = request.query.get("mode", "PERSISTENT").upper()
    if mode != "ALL":
        domain = mode.lower().replace("_", "-")
        names = [topic for topic in names if topic.startswith(f"{domain}:")]
    return await Response.of_long_json(names, request.services.topics.turns)


def _tenant(request: Request, name: str) -> dict[str, Any]:
    settings = request.services.topics.namespaces.tenants.get(name)
    if settings is None:
        raise HttpError(404, f"Tenant {name} does not exist")
    return settings


def _tenant_settings(request: Request) -> dict[str, Any]:
    settings = _settings(request)
    if settings.get("adminRoles") is not None:
        try:
            settings["adminRoles"] = check_roles(settings["adminRoles"])
        except InvalidPermissionError as error:
            raise HttpError(400, f"adminRoles: {error}") from error
    return settings


def _settings(request: Request) -> dict[str, Any]:
    settings = request.json()
    if settings is None:
        return {}
    if not isinstance(settings, dict):
        raise HttpError(400, "the body must be a JSON object")
    return settings


ROUTES = (
    Route("GET", "/admin/v2/tenants", tenants),
    Route("GET", "/admin/v2/tenants/{tenant}", tenant),
    Route("PUT", "/admin/v2/tenants/{tenant}", create_tenant),
    Route("POST", "/admin/v2/tenants/{tenant}", update_tenant),
    Route("DELETE", "/admin/v2/tenants/{tenant}", delete_tenant),
    Route("GET", "/admin/v2/namespaces/{tenant}", namespaces),
    Route("GET", "/admin/v2/namespaces/{tenant}/{namespace}", namespace),
    Route("PUT", "/admin/v2/namespaces/{tenant}/{namespace}", create_namespace),
    Route("DELETE", "/admin/v2/namespaces/{tenant}/{namespace}", delete_namespace),
    Route("GET", "/admin/v2/namespaces/{tenant}/{namespace}/topics", namespace_topics),
)

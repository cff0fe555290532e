"""Tenants, and the one cluster in which they are: this broker's own.

The broker replicates nothing, so no other cluster can be described, and a tenant is allowed in this
one only.
"""

from __future__ import annotations

from typing import Any

from ..policies.policy import names
from ..security import needs
from ..security.permissions import InvalidPermissionError, check_roles
from . import bodies
from .messages import HttpError, Request, Response
from .names import is_valid_name
from .route import Route

__all__ = ["ROUTES"]


async def clusters(request: Request) -> Response:
    """The name of this broker's cluster, in a list."""
    return Response.of_json([request.services.config.cluster])


async def cluster(request: Request, name: str) -> Response:
    """The URLs of this broker's cluster."""
    services = request.services
    if name != services.config.cluster:
        raise HttpError(404, "Cluster does not exist")
    urls = {
        "serviceUrl": services.http_url,
        "serviceUrlTls": services.http_url_tls,
        "brokerServiceUrl": services.service_url,
        "brokerServiceUrlTls": services.service_url_tls,
    }
    return Response.of_json(
        {
            **{key: url for key, url in urls.items() if url or not key.endswith("Tls")},
            "brokerClientTlsEnabled": False,
            "tlsAllowInsecureConnection": False,
            "brokerClientTlsEnabledWithKeyStore": False,
            "brokerClientTlsTrustStoreType": "JKS",
            "brokerClientTlsKeyStoreType": "JKS",
            "brokerClientSslFactoryPlugin": "org.apache.pulsar.common.util.DefaultPulsarSslFactory",
        }
    )


async def tenants(request: Request) -> Response:
    """All tenants."""
    return Response.of_json(sorted(request.services.topics.namespaces.tenants))


async def tenant(request: Request, name: str) -> Response:
    """One tenant's administrators and clusters."""
    settings = request.services.topics.namespaces.tenants.get(name)
    if settings is None:
        raise HttpError(404, "Tenant does not exist")
    # The tenants of a new broker have nothing stored: Pulsar shows them with empty lists.
    roles = settings.get("adminRoles") if settings else []
    shown = {} if roles is None else {"adminRoles": sorted(roles)}
    clusters = settings.get("allowedClusters", [request.services.config.cluster])
    return Response.of_json({**shown, "allowedClusters": clusters})


async def create_tenant(request: Request, name: str) -> Response:
    """Create a tenant."""
    if not is_valid_name(name):
        raise HttpError(412, "Tenant name is not valid")
    settings = _settings(request)
    if name in request.services.topics.namespaces.tenants:
        raise HttpError(409, "Tenant already exist")
    most = request.services.config.max_tenants
    if 0 < most <= len(request.services.topics.namespaces.tenants):
        raise HttpError(412, "Exceed the maximum number of tenants")
    await request.services.topics.namespaces.put_tenant(name, settings)
    return Response()


async def update_tenant(request: Request, name: str) -> Response:
    """Change a tenant's settings."""
    settings = _settings(request)
    if name not in request.services.topics.namespaces.tenants:
        raise HttpError(404, f"Tenant {name} not found")
    await request.services.topics.namespaces.put_tenant(name, settings)
    return Response()


async def delete_tenant(request: Request, name: str) -> Response:
    """Delete a tenant without namespaces."""
    topics = request.services.topics
    if request.flag("force"):
        raise HttpError(405, "Broker doesn't allow forced deletion of tenants")
    if name not in topics.namespaces.tenants:
        raise HttpError(404, "Tenant doesn't exist")
    if topics.namespaces.of(name):
        raise HttpError(409, "The tenant still has active namespaces")
    await topics.namespaces.delete_tenant(name)
    return Response()


def _settings(request: Request) -> dict[str, Any]:
    """The settings in the body; unknown fields are left out. Raises `HttpError` 400, 412."""
    body = request.json()
    if body is None:
        raise HttpError(412, "TenantInfo is null")
    roles, clusters = _names(body, "adminRoles"), _names(body, "allowedClusters")
    if clusters is None and roles is not None:
        clusters = [request.services.config.cluster]  # more generous than Pulsar
    if clusters is None:
        raise HttpError(412, "Clusters cannot be null")
    if not clusters or any(not name.strip() for name in clusters):
        raise HttpError(412, "Clusters cannot be empty or blank")
    if not set(clusters) <= {request.services.config.cluster}:
        raise HttpError(412, "Clusters do not exist")
    if any(role != role.strip() for role in roles or ()):
        raise HttpError(412, "AdminRoles contains whitespace in the beginning or end.")
    if roles is None:
        return {"allowedClusters": clusters}
    try:
        return {"adminRoles": check_roles(roles), "allowedClusters": clusters}
    except InvalidPermissionError as error:
        raise HttpError(400, f"adminRoles: {error}") from error


def _names(body: dict[str, Any], field: str) -> list[str] | None:
    value = body.get(field)
    return None if value is None else sorted(set(names(field, value)))


ONE = "/admin/v2/tenants/{tenant}"

ROUTES = (
    Route("GET", "/admin/v2/clusters", needs.AUTHENTICATED, None, clusters),
    Route("GET", "/admin/v2/clusters/{cluster}", needs.cluster("GET_CLUSTER"), None, cluster),
    Route("GET", "/admin/v2/tenants", needs.tenants("LIST_TENANTS"), None, tenants),
    Route("GET", ONE, needs.tenants("GET_TENANT"), None, tenant),
    Route("PUT", ONE, needs.tenants("CREATE_TENANT"), bodies.TENANT, create_tenant),
    Route("POST", ONE, needs.tenants("UPDATE_TENANT"), bodies.TENANT, update_tenant),
    Route("DELETE", ONE, needs.tenants("DELETE_TENANT"), None, delete_tenant),
)

"""Tenants and namespaces over HTTP.

The broker replicates nothing, so no other cluster can be described, and a tenant is allowed in this
one only.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ..policies.policy import names
from ..policies.pulsar_policies import read_settings, shown_settings
from ..security import needs
from ..security.permissions import AUTH_POLICIES, check_auth_policies, check_roles
from . import paths
from .messages import HttpError, Json, Request, Response, UnservedError
from .peer_proxy import redirect, send_on
from .route import BUNDLE, NAMESPACE, Routes

if TYPE_CHECKING:
    from ..ownership import Cluster

routes = Routes()
ONE = "/admin/v2/tenants/{tenant}"


@routes.get("/admin/v2/namespaces/{tenant}", needs.tenant("LIST_NAMESPACES"))
async def namespaces(request: Request, tenant_name: str) -> Json:
    """A tenant's namespaces."""
    if tenant_name not in request.topics.namespaces.tenants:
        raise HttpError(404, "Tenant not found")
    return request.topics.namespaces.of(tenant_name)


@routes.get(NAMESPACE, needs.namespace_policy("ALL", "READ"))
async def namespace(request: Request, name: str) -> Json:
    """A namespace's policies."""
    settings = paths.settings_of(request, name)
    shown = shown_settings(settings, request.services.config.cluster)
    return {**shown, paths.BUNDLES: paths.bundles_of(paths.boundaries_of(settings))}


@routes.put(NAMESPACE, needs.tenant("CREATE_NAMESPACE"))
async def create_namespace(request: Request, name: str) -> None:
    """Create a namespace; the body may have policies."""
    settings, tenant_name = request.json_object() or {}, name.partition("/")[0]
    if tenant_name not in request.topics.namespaces.tenants:
        raise HttpError(404, "Tenant does not exist")
    paths.check_valid(name)
    _check_clusters(request, settings, tenant_name)
    _check_room(request, tenant_name)
    if name in request.topics.namespaces:
        raise HttpError(409, "Namespace already exists")
    # In the executor, since a policy may import a plugin.
    settings = await request.services.run_blocking(
        read_settings, _checked_permissions(settings), request.services.config.cluster
    )
    async with request.topics.creating(name):
        if name in request.topics.namespaces:  # created meanwhile
            raise HttpError(409, "Namespace already exists")
        await request.topics.namespaces.put(name, settings)


def _check_room(request: Request, tenant: str) -> None:
    """Raise `HttpError` 412 if the tenant has all its namespaces. Pulsar lets one more be made."""
    most = request.services.config.max_namespaces_per_tenant
    if 0 < most <= len(request.topics.namespaces.of(tenant)):
        raise HttpError(412, f"Exceed the maximum number of namespace in tenant :{tenant}")


def _checked_permissions(settings: dict[str, Any]) -> dict[str, Any]:
    checked = dict(settings)
    if checked.get(AUTH_POLICIES) is not None:
        checked[AUTH_POLICIES] = check_auth_policies(checked[AUTH_POLICIES])
    else:
        checked.pop(AUTH_POLICIES, None)
    return checked


@routes.delete(NAMESPACE, needs.tenant("DELETE_NAMESPACE"))
async def delete_namespace(request: Request, name: str) -> None:
    """Delete a namespace without topics; with force=true its topics, too, if settings allow it."""
    topics = request.topics
    force = request.flag("force")
    if force and not request.services.config.force_delete_namespace_allowed:
        raise HttpError(405, "Broker doesn't allow forced deletion of namespaces")
    if name not in topics.namespaces:
        raise HttpError(404, f"Namespace {name} does not exist.")
    names = [*topics.partitioned.in_namespace(name), *topics.names_in(name)]
    if names and not force:
        raise HttpError(409, "Cannot delete non empty namespace")
    for topic in names:
        parsed = topics.parse(topic)
        if topics.partitioned.count_of(parsed):
            await topics.delete_partitioned(parsed, force=True)
        elif topics.exists(parsed):
            await topics.delete(parsed, force=True)
    await topics.delete_namespace(name)


@routes.get(f"{NAMESPACE}/topics", needs.namespace("GET_TOPICS"))
async def namespace_topics(request: Request, name: str) -> Json:
    """Every topic of a namespace, with each partition; `mode` chooses the domain."""
    paths.settings_of(request, name)
    names = request.topics.names_in(name)
    mode = request.query.get("mode", "PERSISTENT")
    if mode not in ("PERSISTENT", "NON_PERSISTENT", "ALL"):
        raise UnservedError(404)
    if mode != "ALL":
        domain = mode.lower().replace("_", "-")
        names = [topic for topic in names if topic.startswith(f"{domain}:")]
    return names


def _check_clusters(request: Request, settings: dict[str, Any], tenant: str) -> None:
    """Check `replication_clusters` and `bundles` of a new namespace, and complete the bundles.

    Raises `HttpError` 403, 412.
    """
    clusters = names("replication_clusters", settings.get("replication_clusters"))
    if clusters and clusters != [request.services.config.cluster]:
        text = f"Cluster [{', '.join(clusters)}] is not in the list of allowed clusters list for "
        raise HttpError(403, f"{text}tenant [{tenant}]")
    settings.pop("replication_clusters", None)
    bundles = settings.pop(paths.BUNDLES, None)
    if isinstance(bundles, dict):
        count = bundles.get("numBundles", 0)
        if isinstance(count, bool) or not isinstance(count, int):
            raise HttpError(400, "numBundles must be a number", text_type="text/plain")
        settings[paths.BUNDLES] = paths.bundles_of(paths.with_count(count))


ALGORITHMS = (
    "range_equally_divide",
    "topic_count_equally_divide",
    "specified_positions_divide",
    "flow_or_qps_equally_divide",
)


@routes.get(f"{NAMESPACE}/bundles", needs.namespace("GET_BUNDLE"))
async def bundles(request: Request, name: str) -> Json:
    """A namespace's bundles."""
    return paths.bundles_of(paths.boundaries_of(paths.settings_of(request, name)))


@routes.put(f"{BUNDLE}/split", needs.SUPER_USER)
async def split_bundle(request: Request, name: str, bundle: str) -> None:
    """Split a bundle in the middle."""
    low, high = paths.check_bundle(request, name, bundle)
    if request.services.cluster is not None:
        raise HttpError(412, "a broker of a cluster does not split bundles")
    algorithm = request.query.get("splitAlgorithmName", ALGORITHMS[0])
    if algorithm not in ALGORITHMS:
        known = f"supported algorithms are [{', '.join(ALGORITHMS)}]"
        raise HttpError(412, f"Unsupported namespace bundle split algorithm, {known}")
    await paths.split(request, name, low, high)


@routes.delete(BUNDLE, needs.namespace("DELETE_BUNDLE"))
async def delete_bundle(request: Request, name: str, bundle: str) -> None:
    """Answered if the bundle has no topics. Bundles cover all hashes, so it stays."""
    if paths.topics_in_bundle(request, name, bundle):
        raise HttpError(409, "Cannot delete non empty bundle")


@routes.get(f"{BUNDLE}/topicHashPositions", needs.namespace_policy("PERSISTENCE", "READ"))
async def topic_hashes(request: Request, name: str, bundle: str) -> Json:
    """The hashes of the bundle's topics, or of those that `topics` names."""
    from zlib import crc32

    found = paths.topics_in_bundle(request, name, bundle)
    wanted = request.query.get("topics")
    if wanted is not None:
        chosen = set(re.split(r",\s*", wanted))
        found = [topic for topic in found if topic in chosen]
    hashes = {topic: crc32(topic.encode()) for topic in found}
    return {"namespace": name, "bundle": bundle, "topicHashPositions": hashes}


@routes.put(f"{NAMESPACE}/unload", needs.SUPER_USER)
async def unload(request: Request, name: str) -> None:
    """Disconnect all clients of a namespace; they reconnect by themselves."""
    paths.settings_of(request, name)
    if request.services.cluster is not None:
        await _unload_bundles(request, request.services.cluster, name)
    else:
        await _disconnect(request, request.topics.names_in(name))


async def _unload_bundles(request: Request, cluster: Cluster, namespace: str) -> None:
    shown = paths.bundles_of(paths.boundaries_of(request.topics.namespaces[namespace]))
    for low, high in pairwise(shown["boundaries"]):
        bundle = f"{namespace}/{low}_{high}"
        owner = await cluster.owner_of(bundle)
        if owner is not None and owner.broker_id == cluster.broker_id:
            await cluster.unload(bundle)
        elif owner is not None:
            target = f"/admin/v2/namespaces/{bundle}/unload"
            await send_on(request, owner, "PUT", target)


@routes.put(f"{BUNDLE}/unload", needs.SUPER_USER)
async def unload_bundle(request: Request, name: str, bundle: str) -> Response | None:
    """Disconnect all clients of a bundle; they reconnect by themselves."""
    cluster = request.services.cluster
    if cluster is None:
        await _disconnect(request, paths.topics_in_bundle(request, name, bundle))
        return None
    paths.check_bundle(request, name, bundle)
    owner = await cluster.owner_of(f"{name}/{bundle}")
    if owner is not None and owner.broker_id != cluster.broker_id:
        return redirect(request, owner)
    await cluster.unload(f"{name}/{bundle}")
    return None


async def _disconnect(request: Request, names: list[str]) -> None:
    topics = request.topics
    for name in names:
        opened = topics.open_topics.get(name)
        if opened is not None:
            await topics.turns.work(opened.disconnect())


@routes.get("/admin/v2/tenants", needs.tenants("LIST_TENANTS"))
async def tenants(request: Request) -> Json:
    """All tenants."""
    return sorted(request.topics.namespaces.tenants)


@routes.get(ONE, needs.tenants("GET_TENANT"))
async def tenant(request: Request, name: str) -> Json:
    """One tenant's administrators and clusters."""
    settings = request.topics.namespaces.tenants.get(name)
    if settings is None:
        raise HttpError(404, "Tenant does not exist")
    # The tenants of a new broker have nothing stored: Pulsar shows them with empty lists.
    roles = settings.get("adminRoles") if settings else []
    shown = {} if roles is None else {"adminRoles": sorted(roles)}
    clusters = settings.get("allowedClusters", [request.services.config.cluster])
    return {**shown, "allowedClusters": clusters}


@routes.put(ONE, needs.tenants("CREATE_TENANT"))
async def create_tenant(request: Request, name: str) -> None:
    """Create a tenant."""
    paths.check_valid(f"{name}/any", "Tenant")
    settings = _tenant_settings(request)
    async with request.topics.creating("tenants"):
        if name in request.topics.namespaces.tenants:
            raise HttpError(409, "Tenant already exist")
        most = request.services.config.max_tenants
        if 0 < most <= len(request.topics.namespaces.tenants):
            raise HttpError(412, "Exceed the maximum number of tenants")
        await request.topics.namespaces.put_tenant(name, settings)


@routes.post(ONE, needs.tenants("UPDATE_TENANT"))
async def update_tenant(request: Request, name: str) -> None:
    """Change a tenant's settings."""
    settings = _tenant_settings(request)
    if name not in request.topics.namespaces.tenants:
        raise HttpError(404, f"Tenant {name} not found")
    await request.topics.namespaces.put_tenant(name, settings)


@routes.delete(ONE, needs.tenants("DELETE_TENANT"))
async def delete_tenant(request: Request, name: str) -> None:
    """Delete a tenant without namespaces."""
    topics = request.topics
    if request.flag("force"):
        raise HttpError(405, "Broker doesn't allow forced deletion of tenants")
    if name not in topics.namespaces.tenants:
        raise HttpError(404, "Tenant doesn't exist")
    if topics.namespaces.of(name):
        raise HttpError(409, "The tenant still has active namespaces")
    await topics.namespaces.delete_tenant(name)


def _tenant_settings(request: Request) -> dict[str, Any]:
    """The settings in the body; unknown fields are left out. Raises `HttpError` 400, 412."""
    body = request.json_object()
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
    return {"adminRoles": check_roles(roles), "allowedClusters": clusters}


def _names(body: dict[str, Any], field: str) -> list[str] | None:
    value = body.get(field)
    return None if value is None else sorted(set(names(field, value)))

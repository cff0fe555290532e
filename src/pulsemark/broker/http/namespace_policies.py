"""A namespace's policies as Pulsar shows them, and those that only describe its surroundings.

Policies that the broker goes by (retention, quotas, limits...) have modules of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from .bundles import BUNDLES, boundaries_of, bundles_of
from .documents import get
from .messages import HttpError, Request, Response
from .names import namespace_name
from .table import Route

__all__ = ["ROUTES", "shown_policies"]

PROPERTIES, AFFINITY, BOOKIES = "properties", "namespaceAntiAffinityGroup", "bookieAffinity"
GROUP, PERSISTENCE = "resource_group_name", "persistence"
#: Pulsar's limits of a namespace's properties are those of its metadata; these are this broker's.
MAX_PROPERTIES = 1000

QUORUMS = ("bookkeeperEnsemble", "bookkeeperWriteQuorum", "bookkeeperAckQuorum")


def shown_policies(settings: Mapping[str, Any], cluster: str) -> dict[str, Any]:
    """All policies of a namespace: what is set, and Pulsar's values for what must be there."""
    empty: dict[str, Any] = {}
    shown: dict[str, Any] = {
        "auth_policies": {
            "namespace_auth": empty,
            "destination_auth": empty,
            "subscription_auth_roles": empty,
        },
        "replication_clusters": [cluster],
        "allowed_clusters": [],
        "bundles": bundles_of(boundaries_of(settings)),
        "backlog_quota_map": empty,
        "clusterDispatchRate": empty,
        "topicDispatchRate": empty,
        "subscriptionDispatchRate": empty,
        "replicatorDispatchRate": empty,
        "clusterSubscribeRate": empty,
        "publishMaxMessageRate": empty,
        "latency_stats_sample_rate": empty,
        "deleted": False,
        "encryption_required": False,
        "subscription_auth_mode": "None",
        "offload_threshold": -1,
        "offload_threshold_in_seconds": -1,
        "schema_compatibility_strategy": "UNDEFINED",
        "is_allow_auto_update_schema": True,
        "schema_validation_enforced": False,
        "subscription_types_enabled": [],
        PROPERTIES: empty,
        "migrated": False,
        "clusterThatCanDeleteNamespace": cluster,
    }
    hidden = (BUNDLES, BOOKIES)
    return {**shown, **{name: value for name, value in settings.items() if name not in hidden}}


# -- values of their own --------------------------------------------------------------------------


async def value_of(key: str, unset: int, request: Request, tenant: str, name: str) -> Response:
    """The value set for a namespace; an empty body if none is set."""
    full = namespace_name(request, tenant, name)
    value = request.services.topics.namespaces[full].get(key)
    return Response(unset) if value is None else Response.of_json(value)


async def remove(key: str, request: Request, tenant: str, name: str) -> Response:
    """Remove the value."""
    await _change(request, tenant, name, key, None)
    return Response()


async def _change(request: Request, tenant: str, name: str, key: str, value: Any) -> None:
    full = namespace_name(request, tenant, name)

    def changed(settings: Any) -> dict[str, Any]:
        rest = {other: kept for other, kept in settings.items() if other != key}
        return rest if value is None else {**rest, key: value}

    await request.services.topics.namespaces.change(full, changed)


async def set_persistence(request: Request, tenant: str, name: str) -> Response:
    """Set how often entries are copied. It has no effect: the broker keeps one copy."""
    body = request.json()
    if body is None:
        raise HttpError(400, "persistence policies should not be null")
    if not isinstance(body, dict):
        raise HttpError(400, "the body must be a JSON object", as_text=True)
    copies = [_int(body, quorum) for quorum in QUORUMS]
    for label, count in zip(("Ensemble", "WriteQuorum", "AckQuorum"), copies, strict=True):
        if not 0 < count <= 5:
            raise HttpError(400, f"Bookkeeper-{label} must be <= 5 and > 0.")
    ensemble, write, ack = copies
    if not ensemble >= write >= ack:
        raise HttpError(
            400, f"Bookkeeper Ensemble ({ensemble}) >= WriteQuorum ({write}) >= AckQuorum ({ack})"
        )
    rate = body.get("managedLedgerMaxMarkDeleteRate", 0.0)
    if isinstance(rate, bool) or not isinstance(rate, int | float):
        raise HttpError(400, "managedLedgerMaxMarkDeleteRate must be a number", as_text=True)
    shown = {**dict(zip(QUORUMS, copies, strict=True)), "managedLedgerMaxMarkDeleteRate": rate}
    await _change(request, tenant, name, PERSISTENCE, shown)
    return Response()


def _int(body: dict[str, Any], name: str) -> int:
    value = body.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int):
        raise HttpError(400, f"{name} must be a number", as_text=True)
    return value


async def set_bookie_affinity(request: Request, tenant: str, name: str) -> Response:
    """Set the groups of bookies for a namespace. It has no effect: there are no bookies."""
    body = request.json()
    fields = ("bookkeeperAffinityGroupPrimary", "bookkeeperAffinityGroupSecondary")
    if not isinstance(body, dict):
        raise HttpError(400, "the body must be a JSON object", as_text=True)
    shown = {field: str(body[field]) for field in fields if body.get(field) is not None}
    await _change(request, tenant, name, BOOKIES, shown)
    return Response()


async def set_anti_affinity(request: Request, tenant: str, name: str) -> Response:
    """Set the anti-affinity group. It has no effect: there is one broker."""
    # The body is the name itself, not JSON.
    group = request.body.decode(errors="replace").strip()
    await _change(request, tenant, name, AFFINITY, group or None)
    return Response()


async def anti_affinity(request: Request, tenant: str, name: str) -> Response:
    """The anti-affinity group of a namespace."""
    full = namespace_name(request, tenant, name)
    group = request.services.topics.namespaces[full].get(AFFINITY)
    return Response(204) if group is None else Response.of_word(group)


async def anti_affine(request: Request, cluster: str, group: str) -> Response:
    """The namespaces of a tenant that are in an anti-affinity group."""
    tenant = request.query.get("tenant")
    if not tenant:
        raise HttpError(400, "Tenant should not be null")
    namespaces = request.services.topics.namespaces
    found = [name for name in namespaces.of(tenant) if namespaces[name].get(AFFINITY) == group]
    return Response.of_json(found)


async def replication(request: Request, tenant: str, name: str) -> Response:
    """The clusters of a namespace: only this broker's own."""
    namespace_name(request, tenant, name)
    return Response.of_json([request.services.config.cluster])


async def set_replication(request: Request, tenant: str, name: str) -> Response:
    """Accepted for this broker's own cluster alone: it replicates nothing."""
    wanted = request.json()
    if not wanted:
        raise HttpError(412, "ClusterIds should not be null or empty")
    if not isinstance(wanted, list):
        raise HttpError(400, "the body must be a list of clusters", as_text=True)
    if "global" in wanted:
        raise HttpError(412, "Cannot specify global in the list of replication clusters")
    for cluster in wanted:
        if cluster != request.services.config.cluster:
            raise HttpError(403, f"Invalid cluster id: {cluster}")
    namespace_name(request, tenant, name)
    return Response(200)


async def allowed_clusters(request: Request, tenant: str, name: str) -> Response:
    """The clusters that a namespace may be replicated to: none are named."""
    namespace_name(request, tenant, name)
    return Response.of_json([])


async def set_group(request: Request, tenant: str, name: str, group: str) -> Response:
    """Put a namespace into a resource group. It has no effect."""
    if await get(request, "resource-group", group) is None:
        raise HttpError(412, "ResourceGroup does not exist")
    await _change(request, tenant, name, GROUP, group)
    return Response()


# -- properties -----------------------------------------------------------------------------------


def _properties(request: Request, tenant: str, name: str) -> dict[str, str]:
    full = namespace_name(request, tenant, name)
    found: dict[str, str] = request.services.topics.namespaces[full].get(PROPERTIES, {})
    return found


async def properties(request: Request, tenant: str, name: str) -> Response:
    """A namespace's properties."""
    return Response.of_json(_properties(request, tenant, name))


async def set_properties(request: Request, tenant: str, name: str) -> Response:
    """Add properties, or change their values."""
    body = request.json()
    if not isinstance(body, dict) or any(isinstance(v, dict | list) for v in body.values()):
        raise HttpError(400, "the body must be an object with texts", as_text=True)
    texts = {key: _text(value) for key, value in body.items()}
    await _set_properties(request, tenant, name, {**_properties(request, tenant, name), **texts})
    return Response()


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


async def _set_properties(request: Request, tenant: str, name: str, value: dict[str, str]) -> None:
    if len(value) > MAX_PROPERTIES:
        raise HttpError(412, f"a namespace has at most {MAX_PROPERTIES} properties")
    await _change(request, tenant, name, PROPERTIES, value)


async def clear_properties(request: Request, tenant: str, name: str) -> Response:
    """Remove all properties."""
    await _set_properties(request, tenant, name, {})
    return Response()


async def one_property(request: Request, tenant: str, name: str, key: str) -> Response:
    """A property's value; an empty body if there is none."""
    found = _properties(request, tenant, name).get(key)
    return Response(200) if found is None else Response.of_word(found)


async def set_property(request: Request, tenant: str, name: str, key: str, value: str) -> Response:
    """Add one property, or change its value."""
    before = _properties(request, tenant, name)
    await _set_properties(request, tenant, name, {**before, key: value})
    return Response()


async def remove_property(request: Request, tenant: str, name: str, key: str) -> Response:
    """Remove one property; the answer is its value."""
    before = _properties(request, tenant, name)
    if key not in before:
        return Response(200)
    rest = {other: value for other, value in before.items() if other != key}
    await _set_properties(request, tenant, name, rest)
    return Response.of_word(before[key])


NS = "/admin/v2/namespaces/{tenant}/{namespace}"
PROPERTY = f"{NS}/property/{{key}}"
BOOKIE_AFFINITY = f"{NS}/persistence/bookieAffinity"

ROUTES = (
    Route("GET", f"{NS}/persistence", partial(value_of, PERSISTENCE, 200), (404,)),
    Route("POST", f"{NS}/persistence", set_persistence, (400, 404)),
    Route("DELETE", f"{NS}/persistence", partial(remove, PERSISTENCE), (404,)),
    Route("GET", BOOKIE_AFFINITY, partial(value_of, BOOKIES, 204), (204, 404)),
    Route("POST", BOOKIE_AFFINITY, set_bookie_affinity, (400, 404)),
    Route("DELETE", BOOKIE_AFFINITY, partial(remove, BOOKIES), (404,)),
    Route("GET", f"{NS}/antiAffinity", anti_affinity, (204, 404)),
    Route("POST", f"{NS}/antiAffinity", set_anti_affinity, (400, 404)),
    Route("DELETE", f"{NS}/antiAffinity", partial(remove, AFFINITY), (404,)),
    Route("GET", "/admin/v2/namespaces/{cluster}/antiAffinity/{group}", anti_affine, (400,)),
    Route("GET", f"{NS}/replication", replication, (404,)),
    Route("POST", f"{NS}/replication", set_replication, (200, 400, 403, 404, 412)),
    Route("GET", f"{NS}/allowedClusters", allowed_clusters, (404,)),
    Route("GET", f"{NS}/resourcegroup", partial(value_of, GROUP, 200), (404,)),
    Route("POST", f"{NS}/resourcegroup/{{group}}", set_group, (404, 412)),
    Route("DELETE", f"{NS}/resourcegroup", partial(remove, GROUP), (404,)),
    Route("GET", f"{NS}/properties", properties, (404,)),
    Route("PUT", f"{NS}/properties", set_properties, (400, 404, 412)),
    Route("DELETE", f"{NS}/properties", clear_properties, (404,)),
    Route("GET", PROPERTY, one_property, (404,)),
    Route("PUT", f"{PROPERTY}/{{value}}", set_property, (404, 412)),
    Route("DELETE", PROPERTY, remove_property, (200, 404)),
)

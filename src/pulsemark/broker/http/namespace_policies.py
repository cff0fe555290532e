"""What only describes a namespace's surroundings: groups of brokers, bookies and resources.

It is kept and shown, without effect: there is one broker, without bookies.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from .documents import get
from .messages import HttpError, Request, Response
from .names import check_new_namespace, namespace_name
from .table import Route

__all__ = ["ROUTES"]

AFFINITY, BOOKIES, GROUP = "namespaceAntiAffinityGroup", "bookieAffinity", "resource_group_name"


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


def _check_namespace(request: Request, tenant: str, name: str) -> None:
    if f"{tenant}/{name}" not in request.services.topics.namespaces:
        raise HttpError(404, "Namespace not found")


async def bookie_affinity(request: Request, tenant: str, name: str) -> Response:
    """The groups of bookies that were set for a namespace."""
    _check_namespace(request, tenant, name)
    return await value_of(BOOKIES, 204, request, tenant, name)


async def remove_bookie_affinity(request: Request, tenant: str, name: str) -> Response:
    """Remove the groups of bookies."""
    _check_namespace(request, tenant, name)
    return await remove(BOOKIES, request, tenant, name)


async def set_bookie_affinity(request: Request, tenant: str, name: str) -> Response:
    """Set the groups of bookies for a namespace. It has no effect: there are no bookies."""
    body = request.json()
    fields = ("bookkeeperAffinityGroupPrimary", "bookkeeperAffinityGroupSecondary")
    _check_namespace(request, tenant, name)
    if body is None:  # As in Pulsar: the namespace has none then.
        await _change(request, tenant, name, BOOKIES, None)
        return Response()
    if not isinstance(body, dict):
        raise HttpError(400, "the body must be a JSON object", text_type="text/plain")
    shown = {field: str(body[field]) for field in fields if body.get(field) is not None}
    await _change(request, tenant, name, BOOKIES, shown)
    return Response()


async def set_anti_affinity(request: Request, tenant: str, name: str) -> Response:
    """Set the anti-affinity group. It has no effect: there is one broker."""
    # The body is the name itself, not JSON.
    group = request.body.decode(errors="replace").strip()
    if not request.body:
        raise HttpError(412, "antiAffinityGroup can't be empty")
    await _change(request, tenant, name, AFFINITY, group or None)
    return Response()


async def anti_affinity(request: Request, tenant: str, name: str) -> Response:
    """The anti-affinity group of a namespace; an absent one is in none, as in Pulsar."""
    settings = request.services.topics.namespaces.get(check_new_namespace(tenant, name), {})
    group = settings.get(AFFINITY)
    return Response(204) if group is None else Response.of_word(group)


async def anti_affine(request: Request, cluster: str, group: str) -> Response:
    """The namespaces of a tenant that are in an anti-affinity group."""
    tenant = request.query.get("tenant" if "v2" in request.segments else "property")
    if not tenant:
        raise HttpError(400, "Tenant should not be null")
    namespaces = request.services.topics.namespaces
    found = [name for name in namespaces.of(tenant) if namespaces[name].get(AFFINITY) == group]
    return Response.of_json(found)


async def remove_group(request: Request, tenant: str, name: str) -> Response:
    """Take a namespace out of its resource group."""
    if f"{tenant}/{name}" not in request.services.topics.namespaces:
        raise HttpError(404, "Namespace policies does not exist")
    return await remove(GROUP, request, tenant, name)


async def set_group(request: Request, tenant: str, name: str, group: str) -> Response:
    """Put a namespace into a resource group. It has no effect."""
    if await get(request, "resource-group", group) is None:
        raise HttpError(412, "ResourceGroup does not exist")
    await _change(request, tenant, name, GROUP, group)
    return Response()


NS = "/admin/v2/namespaces/{tenant}/{namespace}"
BOOKIE_AFFINITY = f"{NS}/persistence/bookieAffinity"

ROUTES = (
    Route("GET", BOOKIE_AFFINITY, bookie_affinity, (204, 404)),
    Route("POST", BOOKIE_AFFINITY, set_bookie_affinity, (400, 404)),
    Route("DELETE", BOOKIE_AFFINITY, remove_bookie_affinity, (404,)),
    Route("GET", f"{NS}/antiAffinity", anti_affinity, (204, 412)),
    Route("POST", f"{NS}/antiAffinity", set_anti_affinity, (404, 412)),
    Route("DELETE", f"{NS}/antiAffinity", partial(remove, AFFINITY), (404,)),
    Route("GET", "/admin/v2/namespaces/{cluster}/antiAffinity/{group}", anti_affine, (400,)),
    # pulsar-admin asks by the path of Pulsar's first interface.
    Route("GET", "/admin/namespaces/{cluster}/antiAffinity/{group}", anti_affine, (400,)),
    Route("GET", f"{NS}/resourcegroup", partial(value_of, GROUP, 200), (404,)),
    Route("POST", f"{NS}/resourcegroup/{{group}}", set_group, (404, 412)),
    Route("DELETE", f"{NS}/resourcegroup", remove_group, (404,)),
)

"""Resource groups, resource quotas, bookies and their racks.

They describe what this broker does not have: several brokers and bookies. An administrator can set
them and read them again, and they have no effect.
"""

from __future__ import annotations

from typing import Any

from .bundles import check_bundle
from .documents import delete, documents, get, put
from .messages import HttpError, Request, Response
from .names import namespace_name
from .table import Route

__all__ = ["ROUTES"]

GROUP, QUOTA, RACK = "resource-group", "resource-quota", "bookie-rack"
RATES = {
    "publishRateInMsgs": -1,
    "publishRateInBytes": -1,
    "dispatchRateInMsgs": -1,
    "dispatchRateInBytes": -1,
}
QUOTAS = ("msgRateIn", "msgRateOut", "bandwidthIn", "bandwidthOut", "memory")
DEFAULT_QUOTA = {
    "msgRateIn": 40.0,
    "msgRateOut": 120.0,
    "bandwidthIn": 100000.0,
    "bandwidthOut": 300000.0,
    "memory": 80.0,
    "dynamic": True,
}


def _object(request: Request) -> dict[str, Any]:
    body = request.json()
    if not isinstance(body, dict):
        raise HttpError(400, "the body must be a JSON object", text_type="text/plain")
    return body


def _number(body: dict[str, Any], name: str) -> float:
    value = body.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise HttpError(400, f"{name} must be a number", text_type="text/plain")
    return value


# -- resource groups ------------------------------------------------------------------------------


async def groups(request: Request) -> Response:
    """The names of the resource groups."""
    return Response.of_json(list(await documents(request, GROUP)))


async def group(request: Request, name: str) -> Response:
    """A resource group's rates."""
    found = await get(request, GROUP, name)
    if found is None:
        raise HttpError(404, "ResourceGroup does not exist")
    return Response.of_json(found)


async def put_group(request: Request, name: str) -> Response:
    """Create a resource group, or change the rates that the body names."""
    body = _object(request)
    given = {rate: int(_number(body, rate)) for rate in RATES if body.get(rate) is not None}
    before = await get(request, GROUP, name) or RATES
    await put(request, GROUP, name, {**before, **given})
    return Response()


async def delete_group(request: Request, name: str) -> Response:
    """Delete a resource group."""
    if not await delete(request, GROUP, name):
        raise HttpError(404, "ResourceGroup does not exist")
    return Response()


# -- resource quotas ------------------------------------------------------------------------------


async def default_quota(request: Request) -> Response:
    """The quota of bundles without their own."""
    return Response.of_json(await get(request, QUOTA, "") or DEFAULT_QUOTA)


async def set_default_quota(request: Request) -> Response:
    """Change the quota of bundles without their own."""
    await put(request, QUOTA, "", _quota(request))
    return Response()


async def quota(request: Request, tenant: str, name: str, bundle: str) -> Response:
    """A bundle's quota."""
    key = await _bundle_key(request, tenant, name, bundle)
    default = await get(request, QUOTA, "") or DEFAULT_QUOTA
    return Response.of_json(await get(request, QUOTA, key) or default)


async def set_quota(request: Request, tenant: str, name: str, bundle: str) -> Response:
    """Set a bundle's own quota."""
    key = await _bundle_key(request, tenant, name, bundle)
    # Without a body Pulsar stores a quota without values.
    await put(request, QUOTA, key, _quota(request) if request.body else DEFAULT_QUOTA)
    return Response()


async def delete_quota(request: Request, tenant: str, name: str, bundle: str) -> Response:
    """Remove a bundle's own quota."""
    key = await _bundle_key(request, tenant, name, bundle)
    if not await delete(request, QUOTA, key):
        raise HttpError(404, f"path /loadbalance/resource-quota/{key} not found.")
    return Response()


async def _bundle_key(request: Request, tenant: str, name: str, bundle: str) -> str:
    full = namespace_name(request, tenant, name)
    check_bundle(request, full, bundle)
    return f"{full}/{bundle}"


def _quota(request: Request) -> dict[str, Any]:
    body = _object(request)
    return {
        **{name: float(_number(body, name)) for name in QUOTAS},
        "dynamic": bool(body.get("dynamic", True)),
    }


# -- bookies --------------------------------------------------------------------------------------


async def bookies(request: Request) -> Response:
    """The bookies: none, the broker stores entries itself."""
    return Response.of_json({"bookies": []})


async def racks(request: Request) -> Response:
    """The racks of bookies, by group."""
    found: dict[str, dict[str, Any]] = {}
    for bookie, value in (await documents(request, RACK)).items():
        found.setdefault(value["group"], {})[bookie] = value["info"]
    return Response.of_json(found)


async def rack(request: Request, bookie: str) -> Response:
    """The rack of one bookie."""
    found = await get(request, RACK, bookie)
    if found is None:
        raise _no_rack(bookie)
    return Response.of_json(found["info"])


async def set_rack(request: Request, bookie: str) -> Response:
    """Set the rack of a bookie."""
    group_name = request.query.get("group")
    if group_name is None:
        raise HttpError(412, "Bookie 'group' parameters is missing")
    body = _object(request)
    info = {name: str(body[name]) for name in ("rack", "hostname") if body.get(name) is not None}
    await put(request, RACK, bookie, {"group": group_name, "info": info})
    return Response()


async def delete_rack(request: Request, bookie: str) -> Response:
    """Remove the rack of a bookie."""
    if not await delete(request, RACK, bookie):
        raise _no_rack(bookie)
    return Response()


def _no_rack(bookie: str) -> HttpError:
    return HttpError(404, f"Bookie rack placement configuration not found: {bookie}")


GROUPS = "/admin/v2/resourcegroups"
QUOTA_PATH = "/admin/v2/resource-quotas"
BUNDLE_QUOTA = f"{QUOTA_PATH}/{{tenant}}/{{namespace}}/{{bundle}}"
RACKS = "/admin/v2/bookies/racks-info"

ROUTES = (
    Route("GET", GROUPS, groups),
    Route("GET", f"{GROUPS}/{{group}}", group, (404,)),
    Route("PUT", f"{GROUPS}/{{group}}", put_group, (400,)),
    Route("DELETE", f"{GROUPS}/{{group}}", delete_group, (404,)),
    Route("GET", QUOTA_PATH, default_quota),
    Route("POST", QUOTA_PATH, set_default_quota, (400,)),
    Route("GET", BUNDLE_QUOTA, quota, (404, 412)),
    Route("POST", BUNDLE_QUOTA, set_quota, (400, 404, 412)),
    Route("DELETE", BUNDLE_QUOTA, delete_quota, (404, 412)),
    Route("GET", "/admin/v2/bookies/all", bookies),
    Route("GET", RACKS, racks),
    Route("GET", f"{RACKS}/{{bookie}}", rack, (404,)),
    Route("POST", f"{RACKS}/{{bookie}}", set_rack, (400, 412)),
    Route("DELETE", f"{RACKS}/{{bookie}}", delete_rack, (404,)),
)

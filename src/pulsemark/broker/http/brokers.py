"""The broker itself: health, settings, metrics, status."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from ...ledger import LedgerError
from ..configuration.dynamic_settings import DYNAMIC_NAMES
from ..configuration.settings import runtime_settings
from ..security import needs
from ..version import SERVER_VERSION
from .bundles import boundaries_of, bundle_of
from .messages import HttpError, Request, Response
from .route import Route
from .standard_headers import accepts_gzip

__all__ = ["ROUTES"]

#: A bundle without isolation policy, as Pulsar shows it.
OWNED = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}


async def brokers(request: Request, name: str = "") -> Response:
    """The active brokers, whatever cluster is asked for; without a cluster only this one."""
    if request.services.cluster is not None:
        return Response.of_json(await request.services.cluster.brokers())
    return Response.of_json([_address(request)])


async def owned_namespaces(request: Request, cluster: str, broker: str) -> Response:
    """The bundles that a broker serves; of a broker alone, those of its open topics."""
    if request.services.cluster is not None:
        owned = await request.services.cluster.bundles_of(broker)
        if owned is None:
            raise HttpError(404, f"Broker id '{broker}' not found in available brokers.")
        return Response.of_json(dict.fromkeys(owned, OWNED))
    if broker != _address(request):
        raise HttpError(404, f"Broker id '{broker}' not found in available brokers.")
    topics = request.services.topics

    def pieces() -> Generator[None, None, dict[str, Any]]:
        found: dict[str, Any] = {}
        for name, opened in tuple(topics.open_topics.items()):
            namespace = opened.topic_name.namespace
            boundaries = boundaries_of(topics.namespaces.get(namespace, {}))
            found[f"{namespace}/{bundle_of(boundaries, name)}"] = OWNED
            yield
        return found

    return await Response.of_long_json(pieces(), topics.turns)


async def leader(request: Request) -> Response:
    """The leader among the brokers; without a cluster this one."""
    if request.services.cluster is not None:
        found = await request.services.cluster.leader()
        if found is None:
            raise HttpError(404, "Couldn't find leader broker")
        return Response.of_json({"serviceUrl": found.http_url, "brokerId": found.broker_id})
    address = _address(request)
    return Response.of_json({"serviceUrl": request.services.http_url, "brokerId": address})


async def health(request: Request) -> Response:
    """Check that the disk accepts writes, with a write to the catalog."""
    key = "health" if request.services.cluster is None else f"health {_address(request)}"
    try:
        await request.services.topics.catalog_writer.put("broker", key, b"ok")
    except (OSError, LedgerError) as error:
        raise HttpError(503, f"the broker cannot write to its data folder: {error}") from error
    return Response.of_word("ok")


async def ready(request: Request) -> Response:
    """Answer "ok": a broker that answers is ready."""
    return Response.of_word("ok")


async def version(request: Request) -> Response:
    """The broker's version."""
    return Response.of_word(SERVER_VERSION)


async def configuration(request: Request) -> Response:
    """The broker's settings, by their names in a configuration file."""
    return Response.of_json(runtime_settings(request.services.config))


async def dynamic_names(request: Request) -> Response:
    """The names of settings that can be changed while the broker runs."""
    return Response.of_json(sorted(DYNAMIC_NAMES))


async def dynamic_values(request: Request) -> Response:
    """The settings that were changed while the broker runs, with their values."""
    return Response.of_json(request.services.settings.changed)


async def change_setting(request: Request, name: str, value: str) -> Response:
    """Change a setting; the change is durable. As in Pulsar the value is a part of the path."""
    try:
        await request.services.settings.change(name, value)
    except KeyError as error:
        raise HttpError(412, "Can't update non-dynamic configuration") from error
    return Response(200)


async def unset_setting(request: Request, name: str) -> Response:
    """Take back the change of a setting."""
    try:
        await request.services.settings.change(name, None)
    except KeyError as error:
        raise HttpError(412, "Can't delete non-dynamic configuration") from error
    return Response(200)


async def internal_configuration(request: Request) -> Response:
    """Where metadata are kept: in the broker's own catalog, which has no address."""
    names = (
        "zookeeperServers",
        "configurationStoreServers",
        "metadataStoreUrl",
        "configurationMetadataStoreUrl",
    )
    return Response.of_json({**dict.fromkeys(names, ""), "ledgersRootPath": "/ledgers"})


async def backlog_quota_check(request: Request) -> Response:
    """Check the backlog quotas of all open topics now."""
    await request.services.lifetimes.backlogs.check_all()
    return Response()


async def status(request: Request) -> Response:
    """Answer "OK", for load balancers."""
    return Response.of_text("OK")


async def metrics(request: Request) -> Response:
    """The metrics in Prometheus' text format; gzipped for clients that accept it, as in Pulsar."""
    from ..statistics.metrics import CONTENT_TYPE, current_page

    gzipped = accepts_gzip(request.headers.get("accept-encoding", ""))
    page = await current_page(request.services, gzipped=gzipped)
    headers = (("vary", "Accept-Encoding"), *((("content-encoding", "gzip"),) if gzipped else ()))
    return Response(200, page[0], CONTENT_TYPE, headers, more=page[1:])


def _address(request: Request) -> str:
    services = request.services
    return (services.http_url or services.http_url_tls).partition("://")[2]


BROKERS = "/admin/v2/brokers"

ROUTES = (
    Route("GET", BROKERS, needs.broker("LIST_BROKERS"), None, brokers),
    Route("GET", f"{BROKERS}/{{cluster}}", needs.broker("LIST_BROKERS"), None, brokers),
    Route(
        "GET",
        f"{BROKERS}/{{cluster}}/{{broker}}/ownedNamespaces",
        needs.broker("LIST_OWNED_NAMESPACES"),
        None,
        owned_namespaces,
    ),
    Route("GET", f"{BROKERS}/leaderBroker", needs.broker("GET_LEADER_BROKER"), None, leader),
    Route("GET", f"{BROKERS}/health", needs.broker("HEALTH_CHECK"), None, health),
    Route("GET", f"{BROKERS}/ready", needs.AUTHENTICATED, None, ready),
    Route("GET", f"{BROKERS}/version", needs.AUTHENTICATED, None, version),
    Route(
        "GET",
        f"{BROKERS}/configuration",
        needs.broker("LIST_DYNAMIC_CONFIGURATIONS"),
        None,
        dynamic_names,
    ),
    Route(
        "GET",
        f"{BROKERS}/configuration/values",
        needs.broker("LIST_DYNAMIC_CONFIGURATIONS"),
        None,
        dynamic_values,
    ),
    Route(
        "GET",
        f"{BROKERS}/configuration/runtime",
        needs.broker("LIST_RUNTIME_CONFIGURATIONS"),
        None,
        configuration,
    ),
    Route(
        "POST",
        f"{BROKERS}/configuration/{{name}}/{{value}}",
        needs.broker("UPDATE_DYNAMIC_CONFIGURATION"),
        None,
        change_setting,
    ),
    Route(
        "DELETE",
        f"{BROKERS}/configuration/{{name}}",
        needs.broker("DELETE_DYNAMIC_CONFIGURATION"),
        None,
        unset_setting,
    ),
    Route(
        "GET",
        f"{BROKERS}/internal-configuration",
        needs.broker("GET_INTERNAL_CONFIGURATION_DATA"),
        None,
        internal_configuration,
    ),
    Route(
        "GET",
        f"{BROKERS}/backlog-quota-check",
        needs.broker("CHECK_BACKLOG_QUOTA"),
        None,
        backlog_quota_check,
    ),
    Route("GET", "/metrics", needs.OPEN, None, metrics),
    Route("GET", "/status.html", needs.OPEN, None, status),
)

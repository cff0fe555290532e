"""The broker itself: health, clusters, brokers, metrics, status."""

from __future__ import annotations

from ...ledger import LedgerError
from ..configuration.settings import runtime_settings
from ..version import SERVER_VERSION
from .messages import HttpError, Request, Response
from .table import Route

__all__ = ["ROUTES"]


async def clusters(request: Request) -> Response:
    """The list of clusters, which has only this one."""
    return Response.of_json([request.services.config.cluster])


async def cluster(request: Request, name: str) -> Response:
    """The URLs of a cluster."""
    _check_cluster(request, name)
    services = request.services
    urls = {"serviceUrl": services.http_url, "brokerServiceUrl": services.service_url}
    if services.http_url_tls:
        urls["serviceUrlTls"] = services.http_url_tls
    if services.service_url_tls:
        urls["brokerServiceUrlTls"] = services.service_url_tls
    return Response.of_json(urls)


async def brokers(request: Request, name: str) -> Response:
    """The active brokers of a cluster: only this one."""
    _check_cluster(request, name)
    services = request.services
    return Response.of_json([(services.http_url or services.http_url_tls).partition("://")[2]])


async def health(request: Request) -> Response:
    """Check that the disk accepts writes, with a write to the catalog."""
    try:
        await request.services.topics.catalog_writer.put("broker", "health", b"ok")
    except (OSError, LedgerError) as error:
        raise HttpError(503, f"the broker cannot write to its data folder: {error}") from error
    return Response.of_text("ok")


async def ready(request: Request) -> Response:
    """Answer "ok": a broker that answers is ready."""
    return Response.of_text("ok")


async def version(request: Request) -> Response:
    """The broker's version."""
    return Response.of_text(SERVER_VERSION)


async def configuration(request: Request) -> Response:
    """The broker's settings, by their names in a configuration file."""
    return Response.of_json(runtime_settings(request.services.config))


async def status(request: Request) -> Response:
    """Answer "OK", for load balancers."""
    return Response.of_text("OK")


async def metrics(request: Request) -> Response:
    """The metrics in Prometheus' text format."""
    from ..statistics.metrics import CONTENT_TYPE, current_page

    return Response(200, await current_page(request.services), CONTENT_TYPE)


def _check_cluster(request: Request, name: str) -> None:
    if name != request.services.config.cluster:
        raise HttpError(404, f"cluster {name!r} does not exist")


async def check_backlog_quotas(request: Request) -> Response:
    """Check the backlog quotas of all open topics now."""
    await request.services.lifetimes.backlogs.check_all()
    return Response()


ROUTES = (
    Route("GET", "/admin/v2/brokers/backlog-quota-check", check_backlog_quotas),
    Route("GET", "/admin/v2/clusters", clusters),
    Route("GET", "/admin/v2/clusters/{cluster}", cluster),
    Route("GET", "/admin/v2/brokers/health", health),
    Route("GET", "/admin/v2/brokers/ready", ready),
    Route("GET", "/admin/v2/brokers/version", version),
    Route("GET", "/admin/v2/brokers/configuration/runtime", configuration),
    Route("GET", "/admin/v2/brokers/{cluster}", brokers),
    Route("GET", "/metrics", metrics),
    Route("GET", "/status.html", status),
)

"""The figures of the whole process on the metrics page: connections, version, memory."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from prometheus_client.process_collector import ProcessCollector

from ..services import Services
from ..version import SERVER_VERSION

__all__ = ["broker_figures"]

#: Without a registry: its figures are asked for here, and are shown with the cluster's label.
_PROCESS = ProcessCollector(registry=None)

Figure = tuple[str, str, dict[str, str], float]


def broker_figures(services: Services) -> Iterator[Figure]:
    """Name, text, labels beside the cluster's, and value."""
    broker = {"broker": urlsplit(services.http_url).hostname or "localhost"}
    connections = {**broker, "metric": "broker_connection"}
    active, made = len(services.sessions), services.sessions_made
    yield "pulsar_active_connections", "Client connections", connections, active
    yield (
        "pulsar_connection_created_total_count",
        "Client connections since the start",
        connections,
        made,
    )
    yield (
        "pulsar_connection_closed_total_count",
        "Client connections that have ended",
        connections,
        made - active,
    )
    health = 1 if services.storage.is_healthy else 0
    yield "pulsar_health", "1: well", {**broker, "metric": "broker_health"}, health
    version = {"version": SERVER_VERSION, "commit": ""}
    yield "pulsar_version_info", "The broker's version", version, 1
    for metric in _PROCESS.collect():
        for sample in metric.samples:
            yield sample.name, metric.documentation, {}, sample.value

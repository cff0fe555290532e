"""REST calls of pulsar-admin and dashboards, and wrong calls, by subject."""

from __future__ import annotations

from . import (
    administration,
    basics,
    brokers,
    matrix,
    raw_http,
    routes,
    statistics,
    topics,
    web,
)
from .registry import CLUSTER_WIDE, REST_SCENARIOS

__all__ = [
    "CLUSTER_WIDE",
    "REST_SCENARIOS",
    "administration",
    "basics",
    "brokers",
    "matrix",
    "raw_http",
    "routes",
    "statistics",
    "topics",
    "web",
]

"""Figures of the endpoint for Kafka's clients, for the metrics page."""

from __future__ import annotations

from ..services import Services

__all__ = ["kafka_figures"]


def kafka_figures(services: Services) -> tuple[tuple[str, str, float], ...]:
    """Name, text and value of each; nothing without a port for Kafka's clients."""
    if services.kafka is None:
        return ()
    groups = len(services.kafka.groups.groups)
    return (
        ("pulsemark_kafka_connections", "Kafka clients", services.kafka_connections),
        ("pulsemark_kafka_groups", "Consumer groups with members", groups),
        (
            "pulsemark_kafka_fetch_sessions",
            "Fetch sessions of Kafka clients",
            len(services.kafka.fetch_sessions),
        ),
        (
            "pulsemark_kafka_fetch_session_partitions",
            "Partitions of all fetch sessions",
            services.kafka.fetch_sessions.partitions,
        ),
        (
            "pulsemark_kafka_fetch_sessions_begun",
            "Fetch sessions that began since the broker was started",
            services.kafka.fetch_sessions.begun,
        ),
        (
            "pulsemark_kafka_fetch_sessions_evicted",
            "Fetch sessions that made room for others",
            services.kafka.fetch_sessions.evictions,
        ),
        *services.kafka.figures.rows(),
    )

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
        *services.kafka.figures.rows(),
    )

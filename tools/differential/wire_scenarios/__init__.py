"""Raw command sequences, by subject. Each scenario gets a broker and its own topic name."""

from __future__ import annotations

from . import (
    access_modes,
    acknowledging,
    connections,
    consumer_rules,
    consumers,
    discovery,
    dispatch,
    key_shared,
    names_and_properties,
    positions,
    producers,
    topics,
    transactions,
)
from .common import (
    SCENARIOS,
    SUB,
    Scenario,
    batch,
    fill,
    lookup,
    message,
    produce,
    received,
    send,
    subscribe,
)

__all__ = [
    "SCENARIOS",
    "SUB",
    "Scenario",
    "access_modes",
    "acknowledging",
    "batch",
    "connections",
    "consumer_rules",
    "consumers",
    "discovery",
    "dispatch",
    "fill",
    "key_shared",
    "lookup",
    "message",
    "names_and_properties",
    "positions",
    "produce",
    "producers",
    "received",
    "send",
    "subscribe",
    "topics",
    "transactions",
]

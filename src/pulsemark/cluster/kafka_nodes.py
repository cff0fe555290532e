"""The numbers that brokers have in Kafka's protocol.

A worker's number is its own plus 1. Other brokers get theirs when they first join, and keep it: the
shared catalog has them all in one value, by the brokers' ids.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..broker.services import Services

KIND, KEY = "kafka", "node-ids"
KEPT_NUMBERS = 1_000
"""So many brokers' numbers are remembered; those that joined first are forgotten."""


async def kafka_node_id(services: Services, broker_id: str, worker: int | None) -> int:
    """This broker's number. Raises CatalogError."""
    if worker is not None:
        return worker + 1
    writer = services.topics.catalog_writer

    async def take() -> int:
        stored = await writer.read(KIND, KEY)
        numbers: dict[str, int] = {} if stored is None else json.loads(stored)
        if broker_id not in numbers:
            numbers[broker_id] = max(numbers.values(), default=0) + 1
            kept = dict(list(numbers.items())[-KEPT_NUMBERS:])
            await writer.write((KIND, KEY, json.dumps(kept).encode()))
        return numbers[broker_id]

    return await writer.revising(take)

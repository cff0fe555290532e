"""Where the logs of partitions begin inside an entry, because DeleteRecords named such an offset.

A log is cut at entries. What a Kafka client deletes of the entry that stays is kept here, as the
partition's first offset, in the catalog:

    kind "kafka-log-start", the topic's full name    {"topicId": 7, "offset": 1234}

A deleted topic's record has another topic's id, so it means nothing to a new topic of that name.
It is removed at the next start.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from ..ledger import ManagedLedger
from .topics.catalog_writer import CatalogWriter

__all__ = ["LOG_START_KIND", "LogStarts"]

LOG_START_KIND = "kafka-log-start"


class LogStarts:
    """The first offsets of all partitions of which a part of an entry was deleted."""

    def __init__(self, writer: CatalogWriter) -> None:
        self._writer = writer
        #: By topic's id.
        self._offsets: dict[int, int] = {}

    async def load(self, exists: Callable[[str], bool]) -> None:
        """Take over what the catalog has, and remove it for topics that are gone.

        Raises CatalogError.
        """

        async def take() -> None:
            gone = []
            for name, value in await self._writer.items(LOG_START_KIND):
                if exists(name):
                    record = json.loads(value)
                    self._offsets[record["topicId"]] = record["offset"]
                else:
                    gone.append((LOG_START_KIND, name, None))
            if gone:
                await self._writer.write(*gone)

        await self._writer.in_turn(take)

    def of(self, ledger: ManagedLedger) -> int:
        """A partition's first offset; 0 if it begins with the log's first entry."""
        return self._offsets.get(ledger.topic_id, 0)

    async def move(self, ledger: ManagedLedger, offset: int) -> None:
        """Let a partition begin at an offset, durably. It never moves back. Raises CatalogError."""
        topic_id = ledger.topic_id

        async def change() -> None:
            known = self._offsets.get(topic_id)
            if offset <= max(ledger.first_index, known or 0):
                # The log's own start says it, so nothing has to be kept.
                if known is not None and known <= ledger.first_index:
                    await self._writer.write((LOG_START_KIND, ledger.name, None))
                    self._offsets.pop(topic_id, None)
                return
            record = json.dumps({"topicId": topic_id, "offset": offset}).encode()
            await self._writer.write((LOG_START_KIND, ledger.name, record), frees=True)
            self._offsets[topic_id] = offset

        await self._writer.in_turn(change)

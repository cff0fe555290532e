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
        #: By topic's name; with its id.
        self._offsets: dict[str, tuple[int, int]] = {}

    async def load(self, exists: Callable[[str], bool]) -> None:
        """Take over what the catalog has, and remove it for topics that are gone.

        Raises CatalogError.
        """

        async def take() -> None:
            gone = []
            for name, value in await self._writer.items(LOG_START_KIND):
                if exists(name):
                    self.take(name, value)
                else:
                    gone.append((LOG_START_KIND, name, None))
            if gone:
                await self._writer.write(*gone)

        await self._writer.in_turn(take)

    def take(self, name: str, value: bytes | None) -> None:
        """Know what the catalog has of a topic."""
        if value is None:
            self._offsets.pop(name, None)
        else:
            record = json.loads(value)
            self._offsets[name] = record["topicId"], record["offset"]

    def of(self, ledger: ManagedLedger) -> int:
        """A partition's first offset; 0 if it begins with the log's first entry."""
        topic_id, offset = self._offsets.get(ledger.name, (-1, 0))
        return offset if topic_id == ledger.topic_id else 0

    async def move(self, ledger: ManagedLedger, offset: int) -> None:
        """Let a partition begin at an offset, durably. It never moves back. Raises CatalogError."""
        name = ledger.name

        async def change() -> None:
            known = self.of(ledger)
            if offset <= max(ledger.first_index, known):
                # The log's own start says it, so nothing has to be kept.
                if name in self._offsets and known <= ledger.first_index:
                    await self._writer.write((LOG_START_KIND, name, None))
                    self._offsets.pop(name, None)
                return
            record = json.dumps({"topicId": ledger.topic_id, "offset": offset}).encode()
            await self._writer.write((LOG_START_KIND, name, record), frees=True)
            self._offsets[name] = ledger.topic_id, offset

        await self._writer.in_turn(change)

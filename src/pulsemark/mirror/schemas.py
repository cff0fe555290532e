"""Brings a topic's schemas to the target, so that versions mean the same there.

A message names its schema by the topic's version number, in bytes that a mirror does not change.
So the target must have the same schemas under the same numbers. Before the first entry with a
version goes, all versions up to it are registered in the target, in their order, and the number
that the target gives is compared. If it differs, mirroring stops: consumers would decode messages
with another schema.

Pulsar's own replication registers the schema and writes the target's number into the message, which
needs a new header and checksum.
"""

from __future__ import annotations

from .entries import TopicSource, TopicTarget
from .errors import SchemaVersionError

__all__ = ["SchemaCarrier"]

_VERSION_SIZE_BYTES = 8


class SchemaCarrier:
    """The schemas of one topic."""

    def __init__(self, topic: str, source: TopicSource, target: TopicTarget) -> None:
        self._topic = topic
        self._source = source
        self._target = target
        self._carried = -1

    def carry(self, version: bytes) -> None:
        """Bring the schema of this version, and those before it.

        Bytes that name no version are left as they are. Raises SchemaVersionError.
        """
        if len(version) != _VERSION_SIZE_BYTES:
            return
        wanted = int.from_bytes(version, "big", signed=True)
        while self._carried < wanted:
            number = self._carried + 1
            schema = self._source.schema(number)
            if schema is None:
                raise SchemaVersionError(self._topic, number, "the source does not have it")
            given = self._target.add_schema(number, schema)
            if given != number:
                raise SchemaVersionError(self._topic, number, f"it is {given} in the target")
            self._carried = number

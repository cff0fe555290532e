"""Brings a topic's schemas to the target, so that the versions in untouched entries mean the same.

A message names its schema by the topic's version number, in bytes that do not change. So before the
first entry with a version goes, all versions up to it are registered in the target, in their order,
and the numbers that the target gives are compared. If one differs, its consumers would decode with
another schema: then the replay stops.
"""

from __future__ import annotations

from pathlib import Path

from ...client import RequestRefusedError, Service
from ...metadata import MessageFormatError, read_message_metadata
from ..errors import ReplayError
from ..values.stored_schemas import schema_key, stored_schemas
from .checkpoint import Part

__all__ = ["SchemaCarrier"]

_VERSION_SIZE_BYTES = 8


class SchemaCarrier:
    """The schemas of one topic, whose versions are registered when an entry needs them."""

    def __init__(self, folder: Path, part: Part, service: Service) -> None:
        self._folder = folder
        self._part = part
        self._service = service
        self._carried = -1

    def carry(self, body: bytes) -> None:
        """Bring the schema that an entry names, and those before it. Raises ReplayError."""
        try:
            version = read_message_metadata(body).schema_version
        except MessageFormatError:
            return
        if len(version) != _VERSION_SIZE_BYTES:
            return  # bytes that name no version are left as they are
        wanted = int.from_bytes(version, "big", signed=True)
        if wanted > self._carried:
            self._register(wanted)

    def _register(self, wanted: int) -> None:
        topic = self._part.topic
        schemas = stored_schemas(self._folder, [topic]).get(schema_key(topic), [])
        for number in range(self._carried + 1, wanted + 1):
            if number >= len(schemas):
                raise self._error(number, "the source's catalog does not have it")
            connection = self._service.connection(self._part.target_topic)
            try:
                given = connection.register_schema(self._part.target_topic, schemas[number])
            except RequestRefusedError as error:
                raise self._error(number, f"the target does not take it: {error}") from error
            if int.from_bytes(given, "big") != number:
                reason = f"it has the number {int.from_bytes(given, 'big')} in the target"
                raise self._error(number, reason)
            self._carried = number

    def _error(self, number: int, reason: str) -> ReplayError:
        return ReplayError(self._part.topic, f"schema version {number}: {reason}")

"""GET_SCHEMA and GET_OR_CREATE_SCHEMA."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...proto.pulsar_api_pb2 import BaseCommand, CommandGetOrCreateSchema, CommandGetSchema
from ...wire import commands
from ..errors import RefusedError
from .table import CommandTable

if TYPE_CHECKING:
    from ..connection.session import Session

__all__ = ["COMMANDS"]


def get_schema(session: Session, command: CommandGetSchema) -> None:
    """Answer with a topic's schema: the given version, or the latest."""
    session.run(command.request_id, _get_schema(session, command))


async def _get_schema(session: Session, command: CommandGetSchema) -> None:
    services = session.services
    try:
        name = services.topics.parse(command.topic)
        version = command.schema_version if command.HasField("schema_version") else None
        schema, found = await services.schemas.find(name, version)
    except RefusedError as refusal:
        answer = commands.get_schema_error(command.request_id, refusal.code, refusal.message)
    else:
        answer = commands.get_schema_response(command.request_id, schema, found)
    session.write(answer)


def get_or_create_schema(session: Session, command: CommandGetOrCreateSchema) -> None:
    """Register a schema for an existing topic."""
    session.run(command.request_id, _get_or_create_schema(session, command))


async def _get_or_create_schema(session: Session, command: CommandGetOrCreateSchema) -> None:
    services = session.services
    try:
        name = services.topics.parse(command.topic)
        topic = await services.topics.open(name, create=False)
        version = await services.schemas.register(topic, command.schema)
    except RefusedError as refusal:
        answer = commands.get_or_create_schema_error(
            command.request_id, refusal.code, refusal.message
        )
    else:
        answer = commands.get_or_create_schema_response(command.request_id, version)
    session.write(answer)


COMMANDS: CommandTable = {
    BaseCommand.GET_SCHEMA: get_schema,
    BaseCommand.GET_OR_CREATE_SCHEMA: get_or_create_schema,
}

"""GET_SCHEMA and GET_OR_CREATE_SCHEMA, and the schemas of producers and consumers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...proto.pulsar_api_pb2 import (
    BaseCommand,
    CommandGetOrCreateSchema,
    CommandGetSchema,
    Schema,
    ServerError,
)
from ...wire import commands
from ..errors import IncompatibleSchemaError, RefusedError
from ..topics.schemas import schema_id, version_bytes
from .checks import CommandTable

if TYPE_CHECKING:
    from ..services import Session
    from ..topics.topic import Topic

VERSION_SIZE_BYTES = 8
#: Pulsar's name of the error; clients show it to their users.
#: What begins a refusal of other commands; Pulsar's answer to GET_SCHEMA has only the rest.
INVALID = "Invalid topic name: "
EXCEPTION = "org.apache.pulsar.broker.service.schema.exceptions.IncompatibleSchemaException"


def get_schema(session: Session, command: CommandGetSchema) -> None:
    """Answer with a topic's schema: the given version, or the latest."""
    if 0 < len(command.schema_version) < VERSION_SIZE_BYTES:
        # As in Pulsar.
        session.close_because(f"GET_SCHEMA with the version {command.schema_version!r}")
        return
    session.run(command.request_id, _get_schema(session, command))


async def _get_schema(session: Session, command: CommandGetSchema) -> None:
    services = session.services
    try:
        name = services.topics.parse(command.topic)
        version = command.schema_version if command.HasField("schema_version") else None
        if version == b"":
            raise RefusedError(ServerError.IncompatibleSchema, "Empty schema version")
        found = await services.schemas.find(name, version)
    except RefusedError as refusal:
        text = refusal.message.removeprefix(INVALID)
        if refusal.code == ServerError.TopicNotFound:
            text = f"Topic not found or no-schema {command.topic}"
        answer = commands.get_schema_error(command.request_id, refusal.code, text)
    else:
        shown = Schema()
        shown.CopyFrom(found.schema)
        shown.name = schema_id(name)
        answer = commands.get_schema_response(
            command.request_id, shown, version_bytes(found.number)
        )
    session.write(answer)


def get_or_create_schema(session: Session, command: CommandGetOrCreateSchema) -> None:
    """Register a schema for an existing topic."""
    session.run(command.request_id, _get_or_create_schema(session, command))


async def _get_or_create_schema(session: Session, command: CommandGetOrCreateSchema) -> None:
    services = session.services
    try:
        name = services.topics.parse(command.topic)
        if not services.topics.exists(name):
            raise RefusedError(ServerError.TopicNotFound, f"Topic not found {name}")
        topic = await services.topics.open(name, create=False)
        # As in Pulsar: the type NONE asks for no schema.
        schema = command.schema if command.schema.type else None
        version = await schema_version_for(session, topic, schema)
    except RefusedError as refusal:
        answer = commands.get_or_create_schema_error(
            command.request_id, refusal.code, refusal.message
        )
    else:
        answer = commands.get_or_create_schema_response(command.request_id, version)
    session.write(answer)


async def schema_version_for(session: Session, topic: Topic, schema: Schema | None) -> bytes:
    """The version of a producer's schema; b"" without one. Raises `RefusedError`."""
    try:
        return await session.services.schemas.for_producer(topic, schema)
    except IncompatibleSchemaError as error:
        full = f"{EXCEPTION}: {error.message}"
        raise RefusedError(error.code, f"{full} caused by {full}") from error


def is_in_use(topic: Topic) -> bool:
    """Whether a topic has data, producers, or consumers that have chosen a schema, or none."""
    return bool(
        topic.producers.by_name
        or (topic.is_persistent and topic.ledger.last_position is not None)
        or any(
            not consumer.follows_schema
            for subscription in tuple(topic.subscriptions.values())
            for consumer in subscription.consumers
        )
    )


COMMANDS: CommandTable = {
    BaseCommand.GET_SCHEMA: get_schema,
    BaseCommand.GET_OR_CREATE_SCHEMA: get_or_create_schema,
}

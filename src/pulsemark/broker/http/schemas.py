"""A topic's schemas."""

from __future__ import annotations

from ...proto.pulsar_api_pb2 import Schema
from ..errors import RefusedError
from ..topics.schemas import version_bytes
from .messages import HttpError, Request, Response
from .names import topic_name
from .table import Route

__all__ = ["ROUTES"]

#: The admin interface's names of schema types, for names that are not only upper-cased.
TYPE_NAMES = {
    "ProtobufNative": "PROTOBUF_NATIVE",
    "KeyValue": "KEY_VALUE",
    "LocalDate": "LOCAL_DATE",
    "LocalTime": "LOCAL_TIME",
    "LocalDateTime": "LOCAL_DATE_TIME",
}


async def latest(request: Request, tenant: str, namespace: str, topic: str) -> Response:
    """The latest schema."""
    return await _schema(request, tenant, namespace, topic, None)


async def by_version(
    request: Request, tenant: str, namespace: str, topic: str, version: str
) -> Response:
    """The schema of one version."""
    if not version.isascii() or not version.isdigit() or len(version) > 18:
        raise HttpError(400, f"{version[:40]!r} is not a schema version")
    return await _schema(request, tenant, namespace, topic, version_bytes(int(version)))


async def _schema(
    request: Request, tenant: str, namespace: str, topic: str, version: bytes | None
) -> Response:
    name = topic_name(request, "persistent", tenant, namespace, topic)
    try:
        schema, found = await request.services.schemas.find(name, version)
    except RefusedError as refusal:
        raise HttpError(404, "Schema not found") from refusal
    type_name = Schema.Type.Name(schema.type)
    return Response.of_json(
        {
            "version": int.from_bytes(found, "big"),
            "type": TYPE_NAMES.get(type_name, type_name.upper()),
            "data": schema.schema_data.decode(errors="replace"),
            "properties": {pair.key: pair.value for pair in schema.properties},
        }
    )


SCHEMA = "/admin/v2/schemas/{tenant}/{namespace}/{topic}/schema"

ROUTES = (
    Route("GET", SCHEMA, latest),
    Route("GET", f"{SCHEMA}/{{version}}", by_version),
)

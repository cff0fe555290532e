"""The schemas of topics: register, find, compare, delete. As in Pulsar a topic needs not exist."""

from __future__ import annotations

from functools import partial
from typing import Any

from ...proto.pulsar_api_pb2 import KeyValue, Schema
from ...wire import InvalidTopicNameError, TopicName
from ..errors import IncompatibleSchemaError, InvalidSchemaError, RefusedError
from ..security import needs
from ..topics import schema_definitions as definitions
from ..topics.schemas import SchemaVersion, version_bytes
from .messages import HttpError, Json, Request, Response
from .paths import long_value
from .policies import text_properties
from .route import Routes, TopicPath

routes = Routes()
BASE = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"


@routes.get(f"{BASE}/schema", needs.topic("GET_METADATA"))
async def latest(request: Request, path: TopicPath) -> Json:
    """The latest schema."""
    name = _name(path)
    versions = await request.services.schemas.live(name)
    if not versions:
        raise HttpError(404, "Schema not found")
    return _shown(versions[-1])


@routes.get(f"{BASE}/schema/{{version}}", needs.topic("GET_METADATA"))
async def by_version(request: Request, path: TopicPath, version: str) -> Json:
    """The schema of one version."""
    name = _name(path)
    number = long_value(version)
    try:
        if number < 0:
            raise HttpError(404, "Schema not found")
        found = await request.services.schemas.find(name, version_bytes(number))
    except RefusedError as refusal:
        raise HttpError(404, "Schema not found") from refusal
    return _shown(found)


@routes.get(f"{BASE}/schemas", needs.topic("GET_METADATA"))
async def all_versions(request: Request, path: TopicPath) -> Response:
    """All versions since the last deletion, oldest first."""
    versions = await request.services.schemas.live(_name(path))
    shown = {"getSchemaResponses": [_shown(one) for one in versions]}
    return await Response.of_long_json(shown, request.topics.turns)


@routes.get(f"{BASE}/metadata", needs.topic("GET_METADATA"))
async def metadata(request: Request, path: TopicPath) -> Json:
    """Which versions there are. They are in the catalog, so their places are all the same."""
    versions = await request.services.schemas.versions(_name(path))
    if not versions:
        return Response(200)
    rows = [{"entryId": -1, "ledgerId": -1, "version": one.number} for one in versions]
    return {"index": rows, "info": rows[-1]}


@routes.post(f"{BASE}/schema", needs.topic("PRODUCE"))
async def register(request: Request, path: TopicPath) -> Json:
    """Register the schema of the body, and answer with its version."""
    name = _name(path)
    if name.namespace not in request.topics.namespaces:
        raise HttpError(404, "Namespace does not exist")
    try:
        schema = _posted(request, checks_type_first=False)
        number = await request.services.schemas.register(name, schema)
    except InvalidSchemaError as error:
        raise HttpError(422, error.summary) from error
    except IncompatibleSchemaError as error:
        text = error.message
        if request.json().get("type") == "BYTES":
            # It has no number of its own, and is stored as NONE.
            text = text.replace("new schema type NONE", "new schema type BYTES")
        raise HttpError(409, text) from error
    return {"version": {"version": number}}


@routes.delete(f"{BASE}/schema", needs.tenant_admin())
async def delete(request: Request, path: TopicPath) -> Json:
    """Delete the schema; with force=true all its versions, as if there had never been one."""
    name = _name(path)
    _check_tenant(request, path.tenant)
    number = await request.services.schemas.delete(name, force=request.flag("force"))
    return {"version": number}


@routes.post(f"{BASE}/compatibility", needs.topic("GET_METADATA"))
async def compatibility(request: Request, path: TopicPath) -> Response:
    """Whether the schema of the body could be registered now."""
    name, services = _name(path), request.services
    _check_tenant(request, path.tenant)
    if name.namespace not in services.topics.namespaces:
        raise HttpError(404, "Namespace does not exist")
    strategy = services.schemas.rules.strategy(name)
    schema = _posted(request)
    existing = [one.schema for one in await services.schemas.live(name)]
    check = partial(definitions.check_compatible, existing, schema, strategy)
    await services.schemas.compare(check)
    answer = {"compatibility": True, "schemaCompatibilityStrategy": strategy}
    return Response.of_json(answer, 202)


@routes.post(f"{BASE}/version", needs.topic("GET_METADATA"))
async def version_of(request: Request, path: TopicPath) -> Json:
    """The version of the schema of the body; -1 if the topic does not have it."""
    name = _name(path)
    number = await request.services.schemas.version_of(name, _posted(request))
    return {"version": -1 if number is None else number}


def _name(path: TopicPath) -> TopicName:
    try:
        return TopicName.parse(str(path))
    except InvalidTopicNameError as error:
        raise HttpError(412, str(error)) from error


def _check_tenant(request: Request, tenant: str) -> None:
    if tenant not in request.topics.namespaces.tenants:
        raise HttpError(404, "Tenant does not exist")


def _posted(request: Request, *, checks_type_first: bool = True) -> Schema:
    """The schema of the body: {"type": ..., "schema": ..., "properties": {...}}.

    Raises `HttpError` 400, `InvalidSchemaError`.
    """
    body = request.json_object()
    if body is None:
        raise HttpError(400, "the body is missing")
    text, kind = body.get("schema"), body.get("type")
    properties = text_properties(body.get("properties"))
    if kind is None and (checks_type_first or text is not None):
        raise HttpError(400, "type is missing")
    if text is None:
        raise HttpError(400, "schema is missing")
    if kind in definitions.CLIENT_SIDE:
        raise InvalidSchemaError(f"Schema {kind} is a client-side schema type")
    number = definitions.parse_kind(str(kind))
    if number is None:
        raise HttpError(400, f"unknown type: {str(kind)[:40]}")
    schema = Schema(name="", schema_data=definitions.stored_data(number, str(text)))
    schema.type = number  # type: ignore[assignment]
    schema.properties.extend(KeyValue(key=k, value=str(v)) for k, v in properties.items())
    return schema


def _shown(found: SchemaVersion) -> dict[str, Any]:
    return {
        "version": found.number,
        "type": definitions.kind_of(found.schema),
        "timestamp": found.registered_ms,
        "data": definitions.shown_data(found.schema),
        "properties": {pair.key: pair.value for pair in found.schema.properties},
    }

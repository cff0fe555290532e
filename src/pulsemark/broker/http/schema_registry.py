"""The schema registry for Kafka's serializers: Confluent's REST interface over the topics' schemas.

It has a port of its own (`schema_registry_port`). Paths, bodies, content type and error codes are
those of Confluent's registry. Its subjects are those of one namespace, `kafka_namespace`:
`T-value` is the schema of the topic T, which Pulsar's clients use, too (`topics.schema_ids`).

Compatibility is Pulsar's policy `schemaCompatibilityStrategy`, of the namespace and of the topic;
NONE is ALWAYS_COMPATIBLE. The mode READONLY is `isAllowAutoUpdateSchema` false. A subject that is
no topic's has both under `CONFIG_KIND`.

Avro is compared by Avro's rules. JSON Schema and Protobuf are not: of them the type counts.

Versions count from 1: a version is Pulsar's, plus one. A version that was deleted is kept and
listed with `deleted=true`, until it is deleted with `permanent=true`.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, cast

from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message import DecodeError

from ...kafka.sasl import BASIC, TOKEN, SaslError, parse_claim
from ...ledger import LedgerError
from ...proto.pulsar_api_pb2 import KeyValue, Schema
from ...wire import TopicName
from ..errors import IncompatibleSchemaError, InvalidSchemaError, RefusedError
from ..policies.pulsar_policies import ALLOWS_AUTO_UPDATE, COMPATIBILITY_STRATEGY
from ..security import needs
from ..security.authentication import PeerCertificate, Principal
from ..security.authorization import Target
from ..security.permissions import Action
from ..topics.schema_definitions import (
    ALWAYS_COMPATIBLE,
    TRANSITIVE,
    AvroDefinition,
    Steps,
    check_compatible,
)
from ..topics.schema_ids import (
    SUBJECT,
    TYPE_PROPERTY,
    VALUE,
    Reference,
    mark_of,
    registry_type,
    subject_place,
)
from ..topics.schemas import (
    MAX_DEFINITION_BYTES,
    Facts,
    SchemaRules,
    SchemaVersion,
    examine,
    live_of,
    place_of,
)
from .authentication import UnauthenticatedError
from .connection import HttpConnection
from .messages import HttpError, Json, Request, Response, UnservedError, allow_header
from .route import Routes
from .routing import authorize, find

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
CONFIG_KIND = "schema-subject"
AVRO, JSON, PROTOBUF = "AVRO", "JSON", "PROTOBUF"
LEVELS = {
    "NONE": ALWAYS_COMPATIBLE,
    **{
        name: name
        for kind in ("BACKWARD", "FORWARD", "FULL")
        for name in (kind, f"{kind}{TRANSITIVE}")
    },
}
SHOWN_LEVELS = {
    **{strategy: level for level, strategy in LEVELS.items()},
    # There is no level that refuses every schema.
    "ALWAYS_INCOMPATIBLE": "FULL_TRANSITIVE",
}
MODES = {"READWRITE": True, "READONLY": False}
MAX_SUBJECT_CHARACTERS = 512
MAX_REFERENCES = 100
MAX_VERSION = 2**31 - 1
#: The types of Avro's that have names.
NAMED = ("record", "error", "enum", "fixed")
#: Schemas in one list, unless another limit is named, and their bytes.
MAX_LISTED, MAX_LISTED_BYTES = 1_000, 32 << 20
#: A larger body is parsed in a thread.
PARSED_AT_ONCE_BYTES = 16 * 1024
routes = Routes()
_SUBJECT = "/subjects/{subject}"
_VERSION = f"{_SUBJECT}/versions/{{version}}"
_ID = "/schemas/ids/{id}"
_COMPATIBILITY = "/compatibility/subjects/{subject}/versions"
_NEED = needs.AUTHENTICATED
NEEDS = {
    "Read": needs.topic("GET_METADATA"),
    "Write": needs.topic("PRODUCE"),
    "Administer": needs.tenant_admin(),
}


class RegistryError(HttpError):
    """A request is refused; the registry's codes begin with the status."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code // 100 if code >= 10_000 else code, reason)
        self.code = code

    @property
    def response(self) -> Response:
        """The answer to the request."""
        response = Response.of_json({"error_code": self.code, "message": self.reason}, self.status)
        response.content_type = CONTENT_TYPE
        return response


class RegistryConnection(HttpConnection):
    """A client of the registry's port."""

    async def principal(
        self, target: str, headers: dict[str, str], certificate: PeerCertificate | None
    ) -> Principal:
        """The principal of a request; also by `user:token:T`, as with SASL PLAIN."""
        headers, user = _with_token(headers)
        found = await super().principal(target, headers, certificate)
        if user is not None and found.role not in (None, user):
            raise UnauthenticatedError("the user is not the token's role")
        return found

    async def answer(self, request: Request) -> Response:
        """The answer to a request. Raises RegistryError."""
        try:
            return await _routed(request)
        except RegistryError:
            raise
        except UnservedError as error:
            response = self.error(error.status, error.reason)
            response.headers += allow_header(error.allowed) if error.allowed else ()
            return response
        except HttpError as error:
            raise RegistryError(error.status, error.reason) from error
        except IncompatibleSchemaError as error:
            reason = f"Schema being registered is incompatible with an earlier schema: {error}"
            raise RegistryError(409, reason) from error
        except RefusedError as error:
            raise RegistryError(42201, error.message) from error
        except LedgerError as error:
            raise RegistryError(50001, f"Error in the backend data store: {error}") from error

    def error(self, status: int, reason: str) -> Response:
        """The answer to a request that no handler has answered."""
        return RegistryError(status, reason).response


def _with_token(headers: dict[str, str]) -> tuple[dict[str, str], str | None]:
    """Credentials `user:token:T` become the token T of that user."""
    kind, _, text = headers.get("authorization", "").partition(" ")
    if kind.lower() != BASIC:
        return headers, None
    try:
        user, _, password = base64.b64decode(text.strip(), validate=True).decode().partition(":")
        claim = parse_claim("PLAIN", f"\0{user}\0{password}".encode())
    except (SaslError, ValueError):  # the provider says what is wrong
        return headers, None
    if claim.method != TOKEN:
        return headers, None
    return {**headers, "authorization": f"Bearer {claim.credentials.decode()}"}, user


async def _routed(request: Request) -> Response:
    route, values = find(request, sorted(routes, key=lambda route: route.rank))
    authorize(request, route, values)
    response = await Response.of(await route.run(request, values), request.topics.turns)
    response.content_type = CONTENT_TYPE
    return response


# -- subjects -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Subject:
    """A subject: where its schemas are, and those of its versions that the registry shows."""

    name: str
    #: The topic whose schema it is; None: it is no topic's.
    topic: TopicName | None
    place: TopicName
    stored: list[SchemaVersion]

    @property
    def versions(self) -> list[SchemaVersion]:
        """All registered versions, deleted ones too."""
        return [one for one in self.stored if one.id]

    @property
    def live(self) -> list[SchemaVersion]:
        """The versions that were not deleted."""
        return [one for one in live_of(self.stored) if one.id]

    def shown(self, *, deleted: bool) -> list[SchemaVersion]:
        """Its versions. Raises RegistryError if it has none."""
        found = self.versions if deleted else self.live
        if not found:
            raise RegistryError(40401, f"Subject '{self.name}' not found.")
        return found

    def version(self, text: str, *, deleted: bool) -> SchemaVersion:
        """One version. Raises RegistryError."""
        wanted = _number(text)
        found = self.shown(deleted=deleted)
        for one in reversed(found):
            if wanted in (None, one.number + 1):
                return one
        raise RegistryError(40402, f"Version {text} not found.")


def _number(text: str) -> int | None:
    """A version's number; None: the latest."""
    if text in ("latest", "-1"):
        return None
    if not re.fullmatch(r"[0-9]{1,10}", text) or not 1 <= int(text) <= MAX_VERSION:
        text = f"The specified version '{text[:40]}' is not a valid version id. Allowed values are "
        raise RegistryError(42202, f'{text}between [1, 2^31-1] and the string "latest"')
    return int(text)


def _namespace(request: Request) -> str:
    return request.services.config.kafka_namespace


def _topic_of(request: Request, subject: str, *suffixes: str) -> TopicName | None:
    """The topic of a subject with one of these suffixes."""
    for suffix in suffixes:
        local = subject.removesuffix(suffix)
        if local not in ("", subject):
            tenant, _, namespace = _namespace(request).partition("/")
            found = TopicName("persistent", tenant, namespace, local)
            return found if found.partition_index < 0 and "/" not in local else None
    return None


async def _subject(request: Request, operation: str, name: str, kind: str = "") -> _Subject:
    """A subject that a client may use. `kind`: of a schema that is to be added."""
    if not 0 < len(name) <= MAX_SUBJECT_CHARACTERS or not name.isprintable():
        raise RegistryError(42208, f"The specified subject '{name[:40]}' is not a valid subject.")
    if not _allows(request, operation, name):
        raise RegistryError(40301, f"User is denied operation {operation} on Subject: {name}")
    schemas = request.services.schemas
    topic, place = _topic_of(request, name, VALUE), subject_place(_namespace(request), name)
    stored = await schemas.identified(place)
    if topic is not None and not any(one.id for one in stored):
        of_topic = await schemas.identified(topic)
        if kind == AVRO or live_of(of_topic) or (of_topic and not kind):
            place, stored = topic, of_topic
    return _Subject(name, topic, place, stored)


def _allows(request: Request, operation: str, subject: str) -> bool:
    authorizer, principal = request.services.authorizer, request.principal
    topic, namespace = _topic_of(request, subject, VALUE, "-key"), _namespace(request)
    if topic is not None:
        return authorizer.allows(principal, NEEDS[operation], Target.of_topic(topic))
    if operation == "Administer":
        return authorizer.allows(principal, NEEDS[operation], Target.of_namespace(namespace))
    actions = (Action.PRODUCE,) if operation == "Write" else (Action.PRODUCE, Action.CONSUME)
    return any(authorizer.allows_somewhere(principal, each, namespace) for each in actions)


def _subject_of(place: TopicName) -> str:
    return place.local if place.domain == SUBJECT else f"{place.local}{VALUE}"


@routes.get("/subjects", _NEED)
async def subjects(request: Request) -> Json:
    """The names of all subjects."""
    return (await _names(request))[_asked(request, -1)]


async def _names(request: Request) -> list[str]:
    """The subjects that are asked for, and that the caller may read."""
    prefix = request.query.get("subjectPrefix", "")

    def names(everything: Iterable[tuple[str, Facts]]) -> list[str]:
        shown = (
            _subject_of(place_of(key)) for key, facts in everything if _is_shown(facts, request)
        )
        return sorted({name for name in shown if name.startswith(prefix)})

    services = request.services
    found = request.topics.turns.each(await services.schemas.over_all(names))
    return [name async for name in found if _allows(request, "Read", name)]


@routes.get("/schemas", _NEED)
async def schemas(request: Request) -> Json:
    """The schemas of all subjects; with a format, Avro's have their references in them."""
    listed: list[Any] = []
    size_bytes, deleted = 0, request.flag("deleted")
    asked = _asked(request, MAX_LISTED)
    is_stored = request.query.get("format") in ("serialized", "resolved")
    for name in await _names(request):
        found = await _subject(request, "Read", name)
        shown = found.versions if deleted else found.live
        for one in shown[-1:] if request.flag("latestOnly") else shown:
            row = _registered(name, replace(one, text="") if is_stored else one)
            listed.append(row)
            size_bytes += len(row["schema"]) if len(listed) > asked.start else 0
        if asked.stop is not None and len(listed) >= asked.stop:
            break
        if size_bytes > MAX_LISTED_BYTES:
            raise RegistryError(413, f"more than {MAX_LISTED_BYTES} bytes: name a limit")
    return listed[asked]


def _is_shown(facts: Facts, request: Request) -> bool:
    after = max((at for at, each in enumerate(facts) if each.get("is_deletion")), default=-1)
    live = any(each.get("id") and not each.get("is_hidden") for each in facts[after + 1 :])
    if request.flag("deletedOnly"):
        return not live and any(each.get("id") for each in facts)
    return live or (request.flag("deleted") and any(each.get("id") for each in facts))


def _asked(request: Request, most: int) -> slice:
    """The part of a list that is asked for; `most`: the limit if none is named. -1: no limit."""
    start, most = _count(request, "offset", 0), _count(request, "limit", most)
    return slice(start, start + most if most >= 0 else None)


def _count(request: Request, name: str, default: int) -> int:
    text = request.query.get(name, str(default))
    # A limit of -1 means that there is no limit.
    if not re.fullmatch("[0-9]{1,9}", text) and (name, text) != ("limit", "-1"):
        raise RegistryError(400, f"{name} must be a whole number, not {text[:40]!r}")
    return int(text)


@routes.get(f"{_SUBJECT}/versions", _NEED)
async def versions(request: Request, subject: str) -> Json:
    """The numbers of a subject's versions."""
    found = await _subject(request, "Read", subject)
    shown = found.shown(deleted=request.flag("deleted") or request.flag("deletedOnly"))
    if request.flag("deletedOnly"):
        shown = [one for one in shown if one not in found.live]
    return [one.number + 1 for one in shown]


@routes.get(_VERSION, _NEED)
async def version_of(request: Request, subject: str, version: str) -> Json:
    """A version of a subject, with its schema and id."""
    found = await _subject(request, "Read", subject)
    one = found.version(version, deleted=request.flag("deleted"))
    return _registered(subject, one)


@routes.get(f"{_VERSION}/schema", _NEED)
async def schema_of_version(request: Request, subject: str, version: str) -> Response:
    """The definition alone."""
    found = await _subject(request, "Read", subject)
    one = found.version(version, deleted=request.flag("deleted"))
    return Response(200, _text(one).encode(), CONTENT_TYPE)


@routes.get(f"{_VERSION}/referencedby", _NEED)
async def referenced_by(request: Request, subject: str, version: str) -> Json:
    """The ids of the schemas that use a version."""
    found = await _subject(request, "Read", subject)
    one = found.version(version, deleted=True)
    return await _users_of(request, subject, [one])


async def _users_of(request: Request, subject: str, used: list[SchemaVersion]) -> list[int]:
    """The ids of the schemas that use one of these versions."""
    numbers = {one.number + 1 for one in used}

    def users(everything: Iterable[tuple[str, Facts]]) -> list[int]:
        return sorted(
            {
                each["id"]
                for _, facts in everything
                for each in facts
                if not each.get("is_hidden")
                for _, name, version in each.get("references", ())
                if name == subject and version in numbers
            }
        )

    return await request.services.schemas.over_all(users)


def _text(one: SchemaVersion) -> str:
    return one.text or one.schema.schema_data.decode(errors="replace")


def _definition(one: SchemaVersion) -> dict[str, Any]:
    kind = registry_type(one.schema)
    shown: dict[str, Any] = {} if kind == AVRO else {"schemaType": kind}
    if one.references:
        shown["references"] = [each._asdict() for each in one.references]
    return {**shown, "schema": _text(one)}


def _registered(subject: str, one: SchemaVersion) -> dict[str, Any]:
    return {"subject": subject, "version": one.number + 1, "id": one.id, **_definition(one)}


# -- registering ----------------------------------------------------------------------------------


async def _body(request: Request) -> dict[str, Any]:
    if len(request.body) <= PARSED_AT_ONCE_BYTES:
        return request.json_object() or {}
    parsed: dict[str, Any] = await request.services.run_blocking(request.json_object)
    return parsed or {}


async def _posted(request: Request) -> SchemaVersion:
    """The schema of the body. Raises RegistryError."""
    body = await _body(request)
    text, kind = body.get("schema"), body.get("schemaType") or AVRO
    if not isinstance(text, str) or not text.strip():
        raise RegistryError(42201, "Empty schema")
    if kind not in (AVRO, JSON, PROTOBUF):
        raise RegistryError(42201, f"Invalid schema type {str(kind)[:40]!r}")
    for name in ("metadata", "ruleSet"):
        if body.get(name):
            raise RegistryError(42201, f"Invalid schema: {name} is not supported")
    listed = body.get("references") or []
    if not isinstance(listed, list) or len(listed) > MAX_REFERENCES:
        raise RegistryError(42201, f"references must be a list of at most {MAX_REFERENCES}")
    found = [await _used(request, _reference(each)) for each in listed]
    references = tuple(each for each, _ in found)
    used = [(each.name, data) for each, data in found]
    if sum(len(data) for _, data in used) > MAX_DEFINITION_BYTES:
        raise RegistryError(42201, f"references of more than {MAX_DEFINITION_BYTES} bytes")
    try:
        schema = await request.services.schemas.compare(_parsed, kind, text, used)
    except InvalidSchemaError as error:
        raise RegistryError(42201, f"Invalid schema: {error.message}") from error
    except (ValueError, RecursionError) as error:
        raise RegistryError(42201, f"Invalid schema: {str(error)[:1000]}") from error
    return SchemaVersion(0, schema, text=text if references else "", references=references)


def _reference(value: Any) -> Reference:
    if isinstance(value, dict):
        name, subject, version = (value.get(each) for each in ("name", "subject", "version"))
        if isinstance(name, str) and isinstance(subject, str) and isinstance(version, int):
            return Reference(name, subject, version)
    raise RegistryError(42201, "a reference must have a name, a subject and a version")


async def _used(request: Request, reference: Reference) -> tuple[Reference, bytes]:
    """A reference with its version's number, and the definition that it stands for."""
    found = await _subject(request, "Read", reference.subject)
    version = "latest" if reference.version == -1 else str(reference.version)
    try:
        one = found.version(version, deleted=False)
    except RegistryError as error:
        reason = f"Invalid schema: reference {reference.name}: {error}"
        raise RegistryError(42201, reason) from error
    return reference._replace(version=one.number + 1), one.schema.schema_data


def _parsed(kind: str, text: str, used: list[tuple[str, bytes]]) -> Schema:
    """In a thread: the schema as it is stored. Raises InvalidSchemaError, ValueError."""
    data = text.encode()
    if kind == AVRO:
        if used:
            known = {name: json.loads(each) for name, each in used}
            data = json.dumps(_inlined(json.loads(text), known, set(), "")).encode()
        AvroDefinition(data, AVRO)
        return Schema(name="", type=Schema.Avro, schema_data=data)
    if kind == JSON:
        if not isinstance(json.loads(text), dict | bool):
            raise ValueError("a JSON schema must be an object or a boolean")
    elif not _is_protobuf(text):
        raise ValueError("neither a .proto file nor a FileDescriptorProto in base64")
    # Pulsar has no type for it: its clients get bytes.
    properties = [KeyValue(key=TYPE_PROPERTY, value=kind)]
    schema = Schema(name="", schema_data=data, properties=properties)
    schema.type = Schema.Type.Value("None")  # type: ignore[assignment]
    return schema


def _is_protobuf(text: str) -> bool:
    if re.search(r"\b(message|enum|extend|service)\s+[\w.]+\s*\{", text) or "syntax" in text:
        return True
    try:
        file = FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (DecodeError, binascii.Error, ValueError):
        return False
    return bool(file.name or file.message_type or file.enum_type)


def _inlined(value: Any, known: Mapping[str, Any], defined: set[str], namespace: str) -> Any:
    """An Avro definition with the referenced types in it, each where it is used first."""
    if isinstance(value, str):
        full = value if "." in value or not namespace else f"{namespace}.{value}"
        name = full if full in known else value
        if name not in known or name in defined:
            return value
        used = known[name]
        if isinstance(used, dict) and "." not in used.get("name", ".") and "namespace" not in used:
            used = {**used, "namespace": ""}
        return _inlined(used, known, defined, "")
    if isinstance(value, list):
        return [_inlined(each, known, defined, namespace) for each in value]
    if not isinstance(value, dict):
        return value
    if isinstance(value.get("name"), str) and value.get("type") in NAMED:
        own, _, _ = value["name"].rpartition(".")
        namespace = own or value.get("namespace", namespace)
        short = value["name"].rpartition(".")[2]
        full = f"{namespace}.{short}" if namespace else short
        if full in defined:
            return full
        defined.add(full)
    changed = {
        part: _inlined(value[part], known, defined, namespace)
        for part in ("type", "items", "values")
        if part in value
    }
    if isinstance(value.get("fields"), list):
        changed["fields"] = [
            {**each, "type": _inlined(each.get("type"), known, defined, namespace)}
            if isinstance(each, dict)
            else each
            for each in value["fields"]
        ]
    return {**value, **changed}


async def _find(
    request: Request, posted: SchemaVersion, among: list[SchemaVersion]
) -> SchemaVersion | None:
    """The version that has the posted definition."""

    def same() -> SchemaVersion | None:
        mark = mark_of(posted)
        for one in among:
            if mark_of(one) == mark:
                return one
        number = examine(among, posted.schema, Steps())[1]
        return next((one for one in among if one.number == number), None)

    known: SchemaVersion | None = await request.services.schemas.compare(same)
    return known


@routes.post(_SUBJECT, _NEED)
async def lookup(request: Request, subject: str) -> Json:
    """The version that has the schema of the body."""
    posted = await _posted(request)
    found = await _subject(request, "Read", subject)
    among = found.shown(deleted=request.flag("deleted"))
    one = await _find(request, posted, among)
    if one is None:
        raise RegistryError(40403, "Schema not found")
    return _registered(subject, one)


async def _check_writable(request: Request, found: _Subject) -> None:
    if not await MODE.in_force(request, found):
        raise RegistryError(42205, f"Subject {found.name} is in read-only mode")


@routes.post(f"{_SUBJECT}/versions", _NEED)
async def register(request: Request, subject: str) -> Json:
    """Register the schema of the body, and answer with its id."""
    posted = await _posted(request)
    found = await _subject(request, "Write", subject, registry_type(posted.schema))
    known = await _find(request, posted, found.live)
    if known is not None:
        return {"id": known.id}
    await _check_writable(request, found)
    strategy = await COMPATIBILITY.in_force(request, found)
    _check_types(found, posted, strategy)
    schemas = request.services.schemas
    number = await schemas.register(
        found.place,
        posted.schema,
        strategy=strategy,
        text=posted.text,
        references=posted.references,
    )
    stored = await schemas.identified(found.place)
    return {"id": stored[number].id}


def _check_types(found: _Subject, posted: SchemaVersion, strategy: str) -> None:
    """Raise IncompatibleSchemaError for another type of schema."""
    live = live_of(found.stored)
    kinds = [registry_type(one.schema) for one in live]
    kind, is_topics = registry_type(posted.schema), found.place is found.topic
    if live and kinds[-1] != kind and (is_topics or strategy != ALWAYS_COMPATIBLE):
        before = kinds[-1] or "of Pulsar only"
        raise IncompatibleSchemaError(f"{found.name} has schemas of the type {before}, not {kind}")


# -- compatibility and mode -----------------------------------------------------------------------


async def _own(request: Request, found: _Subject) -> dict[str, Any]:
    """The policies set for a subject itself, by Pulsar's names."""
    if found.topic is not None:
        return dict(request.topics.policies.policies_of_topic(found.topic))
    writer = request.topics.catalog_writer
    stored = await writer.in_turn(lambda: writer.read(CONFIG_KIND, str(found.place)))
    return cast("dict[str, Any]", json.loads(stored or b"{}"))


async def _set(request: Request, found: _Subject | None, policy: str, value: Any) -> None:
    """Set a policy of a subject, or of the namespace. Raises RegistryError."""
    services = request.services
    if found is None:
        namespace, need = _namespace(request), NEEDS["Administer"]
        if not services.authorizer.allows(request.principal, need, Target.of_namespace(namespace)):
            raise RegistryError(40301, "User is denied operation Administer on all subjects")
        await request.topics.policies.set(namespace, policy, value)
    elif found.topic is not None:
        try:
            await request.topics.policies.set(found.topic, policy, value)
        except RefusedError as error:
            raise RegistryError(40401, f"Subject '{found.name}': {error.message}") from error
    else:
        found.shown(deleted=True)
        catalog_writer, place = request.topics.catalog_writer, str(found.place)

        async def revise() -> None:
            own = json.loads(await catalog_writer.read(CONFIG_KIND, place) or b"{}")
            left = {k: each for k, each in {**own, policy: value}.items() if each is not None}
            text = json.dumps(left).encode() if left else None
            await catalog_writer.write((CONFIG_KIND, place, text))

        await catalog_writer.revising(revise)


class _Setting(NamedTuple):
    """A policy of Pulsar's that the namespace has, and each subject may override."""

    policy: str
    in_namespace: Callable[[SchemaRules, TopicName], Any]
    #: The field of an answer, and of a request and the answer to that.
    shown_as: str
    posted_as: str
    #: The policy's values by the registry's names, and the reverse.
    values: Mapping[str, Any]
    names: Mapping[Any, str]
    invalid_code: int
    absent_code: int

    async def of(self, request: Request, found: _Subject | None) -> Any:
        """The value of a subject, or of the namespace; None: it is not set there."""
        if found is not None:
            return (await _own(request, found)).get(self.policy)
        place = subject_place(_namespace(request), "-")
        return self.in_namespace(request.services.schemas.rules, place)

    async def in_force(self, request: Request, found: _Subject) -> Any:
        """The value that applies to a subject."""
        own = await self.of(request, found)
        return await self.of(request, None) if own is None else own

    async def show(self, request: Request, subject: str | None = None) -> Json:
        """The value of a subject, or of the namespace for subjects without one."""
        found = None if subject is None else await _subject(request, "Read", subject)
        own = await self.of(request, found)
        if own is None:
            if not request.flag("defaultToGlobal"):
                what = f"subject-level {self.posted_as}"
                reason = f"Subject '{subject}' does not have {what} configured"
                raise RegistryError(self.absent_code, reason)
            own = await self.of(request, None)
        return {self.shown_as: self.names[own]}

    async def set(self, request: Request, subject: str | None = None) -> Json:
        """Set it for a subject, or for the namespace."""
        given = (await _body(request)).get(self.posted_as)
        name = given.upper() if isinstance(given, str) else ""
        if name not in self.values:
            reason = f"Invalid {self.posted_as}. Valid values are {', '.join(self.values)}"
            raise RegistryError(self.invalid_code, reason)
        found = None if subject is None else await _subject(request, "Administer", subject)
        await _set(request, found, self.policy, self.values[name])
        return {self.posted_as: name}

    async def unset(self, request: Request, subject: str | None = None) -> Json:
        """Unset it; the answer has what was set, or in force in the namespace."""
        found = None if subject is None else await _subject(request, "Administer", subject)
        before = await self.of(request, found)
        if before is None:
            raise RegistryError(40401, f"Subject '{subject}' not found.")
        await _set(request, found, self.policy, None)
        return {self.shown_as: self.names[before]}


COMPATIBILITY = _Setting(
    COMPATIBILITY_STRATEGY.key, SchemaRules.strategy, "compatibilityLevel", "compatibility",
    LEVELS, SHOWN_LEVELS,
    invalid_code=42203, absent_code=40408,
)  # fmt: skip
MODE = _Setting(
    ALLOWS_AUTO_UPDATE.key, SchemaRules.allows_update, "mode", "mode", MODES,
    {allowed: name for name, allowed in MODES.items()}, invalid_code=42204, absent_code=40409,
)  # fmt: skip
for _path, _setting in (("/config", COMPATIBILITY), ("/mode", MODE)):
    for _place in (_path, f"{_path}/{{subject}}"):
        routes.get(_place, _NEED)(_setting.show)
        routes.put(_place, _NEED)(_setting.set)
        if _place != "/mode":
            routes.delete(_place, _NEED)(_setting.unset)


@routes.post(f"{_COMPATIBILITY}/{{version}}", _NEED)
@routes.post(_COMPATIBILITY, _NEED)
async def compatibility(request: Request, subject: str, version: str = "") -> Json:
    """Whether the schema of the body could be registered now, or is compatible with a version."""
    posted = await _posted(request)
    found = await _subject(request, "Read", subject)
    among = [found.version(version, deleted=False)] if version else found.live
    strategy = await COMPATIBILITY.in_force(request, found)
    existing = [one.schema for one in among]
    messages: list[str] = []
    try:
        _check_types(replace(found, stored=among), posted, strategy)
        check = partial(check_compatible, existing, posted.schema, strategy)
        await request.services.schemas.compare(check)
    except IncompatibleSchemaError as error:
        messages.append(error.message)
    verbose = {"messages": messages} if request.flag("verbose") else {}
    return {"is_compatible": not messages, **verbose}


# -- deleting -------------------------------------------------------------------------------------


@routes.delete(_SUBJECT, _NEED)
async def delete(request: Request, subject: str) -> Json:
    """Delete all versions of a subject, and answer with their numbers."""
    found = await _subject(request, "Administer", subject)
    await _check_writable(request, found)
    schemas = request.services.schemas
    gone = found.shown(deleted=True)
    if request.flag("permanent"):
        check = partial(_check_deleted, subject)
        check(found.stored)
        await _check_unused(request, subject, gone)
        await schemas.forget(found.place, check)
        if found.topic is None:
            writer = request.topics.catalog_writer
            await writer.put(CONFIG_KIND, str(found.place), None)
    else:
        gone = found.live
        if not gone:
            text = f"Subject '{subject}' was soft deleted. Set permanent=true to delete permanently"
            raise RegistryError(40404, text)
        await _check_unused(request, subject, gone)
        await schemas.revise(found.place, partial(_hidden, gone))
    return [one.number + 1 for one in gone]


@routes.delete(_VERSION, _NEED)
async def delete_version(request: Request, subject: str, version: str) -> Json:
    """Delete one version, and answer with its number."""
    found = await _subject(request, "Administer", subject)
    await _check_writable(request, found)
    one = found.version(version, deleted=_number(version) is not None)
    is_live = one in found.live
    what = f"Subject '{subject}' Version {one.number + 1} was"
    if request.flag("permanent") and is_live:
        raise RegistryError(40407, f"{what} not deleted first before being permanently deleted")
    if not request.flag("permanent") and not is_live:
        reason = f"{what} soft deleted. Set permanent=true to delete permanently"
        raise RegistryError(40406, reason)
    await _check_unused(request, subject, [one])
    change = _hidden if is_live else _emptied
    await request.services.schemas.revise(found.place, partial(change, [one]))
    return one.number + 1


def _check_deleted(subject: str, stored: list[SchemaVersion]) -> None:
    """Raise RegistryError if a version is live: also one that only Pulsar's clients see."""
    if live_of(stored):
        text = f"Subject '{subject}' was not deleted first before being permanently deleted"
        raise RegistryError(40405, text)


async def _check_unused(request: Request, subject: str, gone: list[SchemaVersion]) -> None:
    users = await _users_of(request, subject, gone)
    if users:
        reason = f"One or more references exist to the schema of {subject}: ids {users[:10]}"
        raise RegistryError(42206, reason)


def _hidden(gone: list[SchemaVersion], stored: list[SchemaVersion]) -> list[SchemaVersion]:
    numbers = {one.number for one in gone}
    return [replace(one, is_hidden=True) if one.number in numbers else one for one in stored]


def _emptied(gone: list[SchemaVersion], stored: list[SchemaVersion]) -> list[SchemaVersion]:
    """The versions without the definitions in `gone`; the numbers of the others stay."""
    numbers = {one.number for one in gone}
    nothing = Schema(name="", schema_data=b"")
    nothing.type = Schema.Type.Value("None")  # type: ignore[assignment]
    return [
        SchemaVersion(one.number, nothing, one.registered_ms, is_hidden=True)
        if one.number in numbers
        else one
        for one in stored
    ]


# -- schemas by id --------------------------------------------------------------------------------


@routes.get("/schemas/types", _NEED)
async def types(request: Request) -> Json:
    """The types of schemas."""
    return [JSON, PROTOBUF, AVRO]


async def _with_id(request: Request, text: str) -> list[tuple[str, SchemaVersion, bool]]:
    """The subjects that have a schema with an id, its versions, and whether they are live."""
    number = int(text) if re.fullmatch(r"[0-9]{1,10}", text) else 0
    schemas = request.services.schemas
    places = await schemas.with_id(number) if number else []
    if not places:
        raise RegistryError(40403, f"Schema {text[:40]} not found")
    found = []
    for place, one in places:
        is_live = one in await schemas.live(place)
        found.append((_subject_of(place), one, is_live))
    allowed = [each for each in found if _allows(request, "Read", each[0])]
    if not allowed:
        raise RegistryError(40301, f"User is denied operation Read on Subject: {found[0][0]}")
    return allowed


@routes.get(_ID, _NEED)
async def by_id(request: Request, number: str) -> Json:
    """The schema with an id."""
    found = await _with_id(request, number)
    shown = _definition(found[0][1])
    schemas = request.services.schemas
    if request.flag("fetchMaxId") and schemas.ids is not None:
        shown["maxId"] = await request.topics.catalog_writer.in_turn(schemas.ids.highest)
    return shown


@routes.get(f"{_ID}/schema", _NEED)
async def schema_by_id(request: Request, number: str) -> Response:
    """The definition alone."""
    found = await _with_id(request, number)
    return Response(200, _text(found[0][1]).encode(), CONTENT_TYPE)


@routes.get(f"{_ID}/subjects", _NEED)
async def subjects_of_id(request: Request, number: str) -> Json:
    """The subjects that have a schema."""
    deleted = request.flag("deleted")
    found = await _with_id(request, number)
    return sorted({name for name, _, is_live in found if is_live or deleted})


@routes.get(f"{_ID}/versions", _NEED)
async def versions_of_id(request: Request, number: str) -> Json:
    """The versions that have a schema."""
    deleted = request.flag("deleted")
    found = await _with_id(request, number)
    shown = [(name, one.number + 1) for name, one, is_live in found if is_live or deleted]
    return [{"subject": name, "version": version} for name, version in shown]

"""Schemas of a Confluent-style registry, from its own answers in files, and values in its format.

A value in that format begins with a zero byte and the schema's id, four bytes, big-endian. The file
is what the registry answers to ``GET /schemas`` (with ``?format=serialized`` for Protobuf): a list
of ``{"subject", "version", "id", "schemaType", "schema"}``. A folder of such files, or of single
answers to ``GET /subjects/SUBJECT/versions/N``, is taken too. So no task needs the registry itself.

A topic's own subject is ``<topic>-value``, as clients name it by default (TopicNameStrategy).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf import timestamp_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from ...proto.pulsar_api_pb2 import Schema
from ..decode.batches import Decoder, Reasons
from ..decode.gather import gather, registry_ids
from ..decode.protoscan import ABSENT
from ..errors import OptionError

OPTION = "registrySchemas"


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """One schema of the registry, in the words of Pulsar's own."""

    subject: str
    version: int
    id: int
    kind: int
    """``Schema.Avro``, ``Json`` (then the definition is Avro's, too) or ``ProtobufNative``."""
    definition: str


def registered_schemas(place: str) -> list[RegisteredSchema]:
    """The schemas of a file or folder. Raises OptionError for what is not a registry's answer."""
    path = Path(place)
    try:
        files = sorted(path.glob("*.json")) if path.is_dir() else [path]
        found = [schema for file in files for schema in _of_file(file)]
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}"
        raise OptionError(OPTION, place, reason) from error
    except (KeyError, TypeError, ValueError, RecursionError, DecodeError) as error:
        reason = f"is not a registry's answer to GET /schemas: {error!r}"
        raise OptionError(OPTION, place, reason) from error
    if not found:
        raise OptionError(OPTION, place, "has no schemas")
    return found


def _of_file(file: Path) -> Iterator[RegisteredSchema]:
    content = json.loads(file.read_bytes())
    for each in content if isinstance(content, list) else [content]:
        text = each["schema"]
        kind, definition = _CONVERSIONS[each.get("schemaType", "AVRO")](text)
        version, number = int(each["version"]), int(each["id"])
        yield RegisteredSchema(str(each["subject"]), version, number, kind, definition)


def _native(text: str) -> tuple[int, str]:
    """A FileDescriptorProto in base64, with its first message as the root."""
    try:
        file = FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (ValueError, DecodeError) as error:
        raise ValueError("a Protobuf schema is text; ask with ?format=serialized") from error
    known = FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(known)
    files = FileDescriptorSet(file=[known, file])
    root = ".".join(filter(None, (file.package, file.message_type[0].name)))
    packed = base64.b64encode(files.SerializeToString()).decode()
    value = {"fileDescriptorSet": packed, "rootMessageTypeName": root}
    return Schema.ProtobufNative, json.dumps(value)


_JSON_KINDS = {"integer": "long", "number": "double", "boolean": "boolean", "string": "string"}


def _of_json_schema(schema: Any, name: str = "value") -> Any:
    """A JSON Schema's type in Avro's words, as far as it is one type for each field."""
    kinds = schema.get("type")
    several = schema.get("oneOf") or schema.get("anyOf")
    if several is None and isinstance(kinds, list):
        several = [{**schema, "type": kind} for kind in kinds]
    if several is not None:
        kept = [each for each in several if each.get("type") != "null"]
        if len(kept) != 1:
            raise ValueError(f"{name}: {len(kept)} types other than null are not one column")
        return _of_json_schema(kept[0], name)
    if kinds == "object" and "properties" in schema:
        fields = [
            {"name": key, "type": _of_json_schema(each, f"{name}_{key}")}
            for key, each in schema["properties"].items()
        ]
        return {"type": "record", "name": name, "fields": fields}
    if kinds == "object":
        return {"type": "map", "values": _of_json_schema(schema["additionalProperties"], name)}
    if kinds == "array":
        return {"type": "array", "items": _of_json_schema(schema["items"], f"{name}_item")}
    return _JSON_KINDS[kinds]


_CONVERSIONS = {
    "AVRO": lambda text: (Schema.Avro, text),
    "JSON": lambda text: (Schema.Json, json.dumps(_of_json_schema(json.loads(text)))),
    "PROTOBUF": _native,
}


class RegistryDecoder:
    """Values with an id in front, whose rest another decoder reads; ids take versions' place."""

    def __init__(self, inner: Decoder, *, is_protobuf: bool) -> None:
        self._inner = inner
        self._is_protobuf = is_protobuf

    def decode(self, values: pa.Array, versions: Sequence[int | None]) -> tuple[pa.Array, Reasons]:
        """The values of these rows."""
        del versions
        ids, starts, ends = registry_ids(values)
        data = values.buffers()[2]
        if self._is_protobuf:
            # One zero stands for the path of the file's first message, the only root here.
            octets = np.append(np.frombuffer(data or b"", np.uint8), 1)
            rooted = (starts < ends) & (octets[np.maximum(starts, 0)] == 0) & (ids >= 0)
            ids, starts = np.where(rooted, ids, -1), np.where(rooted, starts + 1, ABSENT)
        bodies = gather(data, starts, ends)
        strange = np.flatnonzero((ids < 0) & values.is_valid().to_numpy(zero_copy_only=False))
        found, reasons = self._inner.decode(bodies, ids.tolist())
        why = "it does not begin with a zero byte, a schema's id"
        why += " and its file's first message" if self._is_protobuf else ""
        return found, reasons | dict.fromkeys(strange.tolist(), why)

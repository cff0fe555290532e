"""The schema by which the values of a read are decoded: the option ``valueSchema``.

It is chosen once per load, so the DataFrame's type is fixed: each topic's newest schema, or the
version with a number. A producer's later versions are resolved against it. A topic that a stream
finds later has its own newest schema, which must have the same type.

A topic's versions are under its name without domain and partition, so all partitions share them. A
deletion of the schema is a version of type None; the versions before it are not valid any more for
new producers, but entries with them may still be stored.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, StructField, StructType

from ...ledger.local.io.folder import CATALOG_NAME
from ...ledger.store import SCHEMA_KIND
from ...maintenance.verify_catalog import read_properties
from ...metadata.partition_names import partition_of
from ...metadata.schema_list import unpack_schemas
from ...proto.pulsar_api_pb2 import Schema
from ..decode.batches import Decoder
from ..errors import OptionError
from ..options import LATEST_SCHEMA
from .decoding import AvroDecoder, AvroType, JsonDecoder, avro_type
from .registry import RegisteredSchema, RegistryDecoder, registered_schemas

OPTION = "valueSchema"
DECODED_TYPES = {
    Schema.Avro: "avro",
    Schema.Json: "json",
    Schema.ProtobufNative: "protobuf_native",
}


@dataclass(frozen=True, slots=True)
class Reader:
    """A schema by which values are decoded."""

    kind: int
    """One of `DECODED_TYPES`."""
    definition: str
    """As Pulsar stores it."""

    def avro_type(self) -> AvroType:
        """Its type. Raises ValueError: Spark has none for it."""
        if self.kind != Schema.ProtobufNative:
            return avro_type(json.loads(self.definition))
        from . import protobuf

        message = protobuf.native_descriptor(self.definition)
        return avro_type(protobuf.avro_definition(message))

    def spark_type(self) -> DataType:
        """Spark's type of the column ``value``."""
        return self.avro_type().spark_type()

    def arrow_type(self) -> pa.DataType:
        """The same as Arrow's type."""
        fields = [StructField("value", self.spark_type())]
        return to_arrow_schema(StructType(fields), timezone="UTC").field(0).type


@dataclass(frozen=True, slots=True)
class ValueForm:
    """How values are decoded. It is made on the driver and sent to the workers."""

    folder: str
    wanted: str
    """The option's value."""
    readers: Mapping[str, Reader]
    """By the key of a topic's schemas."""
    registry: tuple[RegisteredSchema, ...] | None = None
    """The registry's schemas, if values have their ids in front."""

    def spark_type(self) -> DataType:
        """Spark's type of the column ``value``."""
        return next(iter(self.readers.values())).spark_type()

    def decoder(self, topic: str, final: pa.DataType) -> Decoder:
        """The decoder of a topic's values, with the versions that are stored now.

        Raises:
            OptionError: a topic that is new to a stream has no schema, or one of another type.
        """
        reader = self.readers.get(schema_key(topic))
        if reader is None:
            reader = readers_of(self.folder, topic, self.wanted, self.registry)[0]
            _check_same(self, topic, reader)
        versions = _versions(self.folder, topic, self.registry)
        decoder = _decoder_of(reader, versions, final)
        if self.registry is None:
            return decoder
        return RegistryDecoder(decoder, is_protobuf=reader.kind == Schema.ProtobufNative)


def _decoder_of(reader: Reader, versions: Mapping[int, Reader], final: pa.DataType) -> Decoder:
    if reader.kind == Schema.Json:
        return JsonDecoder(json.loads(reader.definition), final)
    definitions = {n: each.definition for n, each in versions.items() if each.kind == reader.kind}
    if reader.kind == Schema.Avro:
        return AvroDecoder(definitions, json.loads(reader.definition), final)
    from .protobuf import ProtobufDecoder

    return ProtobufDecoder(definitions, reader.definition, final)


def value_form(
    folder: Path, topics: Collection[str], wanted: str, registry_schemas: str | None = None
) -> ValueForm:
    """The form of these topics' values, which have one type.

    Raises:
        OptionError: a topic has no such schema, or Spark has no type for it, or the topics' types
            differ.
        CatalogError: the catalog cannot be read.
    """
    registry = None if registry_schemas is None else tuple(registered_schemas(registry_schemas))
    readers: dict[str, Reader] = {}
    for topic in topics:
        key = schema_key(topic)
        if key not in readers:
            readers[key] = readers_of(str(folder), topic, wanted, registry)[0]
    if not readers:
        raise OptionError(OPTION, wanted, "there is no topic whose schema could be used")
    form = ValueForm(str(folder), wanted, readers, registry)
    for topic in topics:
        _check_same(form, topic, readers[schema_key(topic)])
    return form


def readers_of(
    folder: str, topic: str, wanted: str, registry: Sequence[RegisteredSchema] | None
) -> list[Reader]:
    """The schemas that a topic's values can be read by: the wanted one, then those before it.

    Raises OptionError: the topic has no such schema, or Spark has no type for it.
    """
    versions = _versions(folder, topic, registry)
    numbers = sorted(versions)
    if registry is not None:
        subject = f"{schema_key(topic).rpartition('/')[2]}-value"
        own = sorted((each.version, each.id) for each in registry if each.subject == subject)
        numbers = [number for _, number in own]
    if wanted != LATEST_SCHEMA:
        if int(wanted) not in versions:
            reason = f"{topic} has no AVRO, JSON or PROTOBUF_NATIVE schema with this number"
            raise OptionError(OPTION, wanted, reason)
        numbers = [*(number for number in numbers if number < int(wanted)), int(wanted)]
    if not numbers:
        where = "the catalog" if registry is None else f"the registry as {subject}"
        reason = f"{topic} has no AVRO, JSON or PROTOBUF_NATIVE schema in {where}"
        raise OptionError(OPTION, wanted, reason)
    found = [versions[number] for number in reversed(numbers)]
    try:
        found[0].spark_type()
    except (ValueError, RecursionError) as error:
        reason = f"version {numbers[-1]} of {topic}: {error}"
        raise OptionError(OPTION, wanted, reason) from error
    return found


def _versions(
    folder: str, topic: str, registry: Sequence[RegisteredSchema] | None
) -> dict[int, Reader]:
    """By version, or by the registry's id: the schemas that can be decoded."""
    if registry is not None:
        return {each.id: Reader(each.kind, each.definition) for each in registry}
    stored = stored_schemas(Path(folder), [topic]).get(schema_key(topic), [])
    return {
        number: Reader(schema.type, schema.schema_data.decode(errors="replace"))
        for number, schema in enumerate(stored)
        if schema.type in DECODED_TYPES
    }


def _check_same(form: ValueForm, topic: str, reader: Reader) -> None:
    expected = form.spark_type().simpleString()
    own = reader.spark_type().simpleString()
    if own != expected:
        reason = f"the values of {topic} have the type {own}, others {expected}"
        raise OptionError(OPTION, form.wanted, reason)


def schema_key(topic: str) -> str:
    """The catalog's name of a topic's schemas."""
    return f"persistent://{partition_of(topic)[0].partition('://')[2]}"


def stored_schemas(folder: Path, topics: Collection[str]) -> dict[str, list[Schema]]:
    """By key: all versions of each topic's schema, from 0 on; topics without schemas are left out.

    Raises CatalogError: the catalog cannot be read.
    """
    keys = {schema_key(topic) for topic in topics}
    stored = read_properties(folder / CATALOG_NAME, SCHEMA_KIND, keys)
    return {key: unpack_schemas(value) for key, value in stored.items()}

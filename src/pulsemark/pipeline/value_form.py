"""Which schema the values of a read are decoded by: the option ``valueSchema``.

It is chosen once per load, so the DataFrame's type is fixed: each topic's newest schema, the
version with a number, or an Avro schema as JSON text. A producer's later versions are resolved
against it. A topic that a stream finds later has its own newest schema, which must have the same
type.

A topic's versions are under its name without domain and partition, so all partitions share them. A
deletion of the schema is a version of type None; the versions before it are not valid any more for
new producers, but entries with them may still be stored.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import DataType

from ..ledger.local.io.folder import CATALOG_NAME
from ..ledger.store import SCHEMA_KIND
from ..maintenance.verify_catalog import read_properties
from ..metadata.partition_names import partition_of
from ..metadata.schema_list import unpack_schemas
from ..proto.pulsar_api_pb2 import Schema
from .errors import OptionError
from .options import LATEST_SCHEMA, DecodeMode
from .value_decoding import AvroDecoder, Decoder, JsonDecoder, avro_type

OPTION = "valueSchema"


@dataclass(frozen=True, slots=True)
class Reader:
    """The schema that a topic's values are read by."""

    is_json: bool
    definition: str


@dataclass(frozen=True, slots=True)
class ValueForm:
    """How values are decoded. It is made on the driver and sent to the workers."""

    folder: Path
    wanted: str
    """The option's value."""
    mode: DecodeMode
    readers: Mapping[str, Reader]
    """By the key of a topic's schemas."""

    def spark_type(self) -> DataType:
        """Spark's type of the column ``value``."""
        reader = next(iter(self.readers.values()))
        return avro_type(json.loads(reader.definition)).spark_type()

    def decoder(self, topic: str, final: pa.DataType) -> Decoder:
        """The decoder of a topic's values, with the versions that are stored now.

        Raises:
            OptionError: a topic that is new to a stream has no schema, or one of another type.
        """
        key = schema_key(topic)
        stored = stored_schemas(self.folder, [topic]).get(key, [])
        reader = self.readers.get(key)
        if reader is None:
            reader = _reader_of(topic, stored, self.wanted)
            _check_same(self, topic, reader)
        definition = json.loads(reader.definition)
        if reader.is_json:
            return JsonDecoder(definition, final)
        return AvroDecoder([_avro_definition(schema) for schema in stored], definition, final)


def value_form(folder: Path, topics: Collection[str], wanted: str, mode: DecodeMode) -> ValueForm:
    """The form of these topics' values.

    Raises:
        OptionError: a topic has no such schema, or Spark has no type for it, or the topics' types
            differ.
        CatalogError: the catalog cannot be read.
    """
    stored = stored_schemas(folder, topics)
    readers: dict[str, Reader] = {}
    for topic in topics:
        key = schema_key(topic)
        if key not in readers:
            readers[key] = _reader_of(topic, stored.get(key, []), wanted)
    if not readers:
        raise OptionError(OPTION, wanted, "there is no topic whose schema could be used")
    form = ValueForm(folder, wanted, mode, readers)
    for topic in topics:
        _check_same(form, topic, readers[schema_key(topic)])
    return form


def _reader_of(topic: str, stored: list[Schema], wanted: str) -> Reader:
    version: int | None
    if wanted.isdigit():
        version = int(wanted)
        if version >= len(stored):
            raise OptionError(OPTION, wanted, f"{topic} has {len(stored)} schema versions")
        if stored[version].type not in DECODED_TYPES:
            raise OptionError(OPTION, wanted, f"that schema of {topic} is neither AVRO nor JSON")
    else:
        version = newest_version(stored)
        if version is None:
            raise OptionError(OPTION, wanted, f"{topic} has no AVRO or JSON schema in the catalog")
    schema = stored[version]
    given = wanted != LATEST_SCHEMA and not wanted.isdigit()
    definition = wanted if given else schema.schema_data.decode(errors="replace")
    try:
        avro_type(json.loads(definition))
    except (ValueError, RecursionError) as error:
        where = "" if given else f"version {version} of {topic}: "
        raise OptionError(OPTION, wanted, f"{where}{error}") from error
    return Reader(schema.type == Schema.Json, definition)


def _check_same(form: ValueForm, topic: str, reader: Reader) -> None:
    expected = form.spark_type().simpleString()
    own = avro_type(json.loads(reader.definition)).spark_type().simpleString()
    if own != expected:
        raise OptionError(
            OPTION, form.wanted, f"the values of {topic} have the type {own}, others {expected}"
        )


def _avro_definition(schema: Schema) -> Any:
    if schema.type != Schema.Avro:
        return None
    try:
        return json.loads(schema.schema_data)
    except ValueError:
        return None


DECODED_TYPES = {Schema.Avro: "avro", Schema.Json: "json"}


def schema_key(topic: str) -> str:
    """The catalog's name of a topic's schemas."""
    return f"persistent://{partition_of(topic)[0].partition('://')[2]}"


def stored_schemas(folder: Path, topics: Collection[str]) -> dict[str, list[Schema]]:
    """By key: all versions of each topic's schema, from 0 on; topics without schemas are left out.

    Raises:
        CatalogError: the catalog cannot be read.
    """
    keys = {schema_key(topic) for topic in topics}
    stored = read_properties(folder / CATALOG_NAME, SCHEMA_KIND, keys)
    return {key: unpack_schemas(value) for key, value in stored.items()}


def newest_version(schemas: list[Schema]) -> int | None:
    """The newest version that can be decoded; None if there is none."""
    for version in reversed(range(len(schemas))):
        if schemas[version].type in DECODED_TYPES:
            return version
    return None

"""The schemas of topics, as the broker stored them in the folder's catalog.

A topic's versions are under its name without domain and partition, so all partitions share them. A
deletion of the schema is a version of type None; the versions before it are not valid any more for
new producers, but entries with them may still be stored.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from ...ledger.local.io.folder import CATALOG_NAME
from ...ledger.store import SCHEMA_KIND
from ...maintenance.verify_catalog import read_properties
from ...metadata.partition_names import partition_of
from ...metadata.schema_list import unpack_schemas
from ...proto.pulsar_api_pb2 import Schema

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

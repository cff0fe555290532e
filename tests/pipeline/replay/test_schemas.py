"""Schemas that untouched entries name: the same number means the same schema in the target."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pulsemark.broker import BrokerThread
from pulsemark.client import RawProducer, Service
from pulsemark.metadata.schema_list import pack_schemas
from pulsemark.pipeline.errors import ReplayError
from pulsemark.proto.pulsar_api_pb2 import Schema

TOPIC = "persistent://public/default/a"


def avro(*fields: str) -> Schema:
    """An Avro schema of optional texts."""
    listed = [{"name": name, "type": ["null", "string"], "default": None} for name in fields]
    record = {"type": "record", "name": "R", "fields": listed}
    return Schema(name="R", type=Schema.Avro, schema_data=json.dumps(record).encode())


@pytest.fixture
def source(folder: Any) -> Any:
    """Entries of versions 0 and 1; partition 0 has the schemas of its topic."""
    topic = folder.topic("a", partition=0)
    schemas = pack_schemas([avro("x"), avro("x", "y")])
    folder.store.catalog.put("schema", TOPIC, schemas)
    for version in (0, 0, 1):
        topic.single(b"x", schema_version=version.to_bytes(8, "big"))
    topic.single(b"without")
    topic.single(b"strange", schema_version=b"abc")
    return folder


def test_schemas_come_along(source: Any, target: BrokerThread, kit: Any, tmp_path: Path) -> None:
    """They are registered in their order, before the entries that need them."""
    done = kit.replayed(source.path, target.service_url, tmp_path / "cp")
    assert done.messages == 5
    with Service(target.service_url) as service:
        connection = service.connection(f"{TOPIC}-partition-0")
        for number, expected in enumerate((avro("x"), avro("x", "y"))):
            found, _ = connection.schema(TOPIC, number.to_bytes(8, "big"))
            assert found.schema_data == expected.schema_data


@pytest.mark.parametrize(
    ("there", "reason"),
    [
        (avro("x", "y"), "schema version 0: it has the number 1 in the target"),
        (
            Schema(name="s", type=Schema.String, schema_data=b""),
            "schema version 0: the target does not take it",
        ),
    ],
)
def test_another_schema_in_the_target(
    source: Any, target: BrokerThread, kit: Any, tmp_path: Path, there: Schema, reason: str
) -> None:
    """The replay stops before an entry that consumers would read with the wrong one."""
    with RawProducer(target.service_url, f"{TOPIC}-partition-0", schema=there):
        pass
    with pytest.raises(ReplayError, match=reason):
        kit.replayed(source.path, target.service_url, tmp_path / "cp")
    target.close()
    with pytest.raises(Exception, match="partition-0"):
        kit.bodies(tmp_path / "target", f"{TOPIC}-partition-0")


def test_a_schema_that_the_source_has_not(
    folder: Any, target: BrokerThread, kit: Any, tmp_path: Path
) -> None:
    """Without it the number has no meaning."""
    folder.topic("a").single(b"x", schema_version=(3).to_bytes(8, "big"))
    with pytest.raises(ReplayError, match="schema version 0: the source's catalog does not have"):
        kit.replayed(folder.path, target.service_url, tmp_path / "cp")

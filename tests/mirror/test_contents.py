"""What is inside the entries does not matter, and stays what it is."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pulsar.schema import Integer, JsonSchema, Record, String

from pulsemark.broker import BrokerThread
from pulsemark.client import Service
from pulsemark.mirror import SchemaVersionError
from pulsemark.proto.pulsar_api_pb2 import MessageMetadata, Schema
from pulsemark.testing import RawClient, running_broker
from pulsemark.testing.raw_messages import seal, unbatched_message

from .conftest import CLUSTER, TOPIC, Mirror, bodies_of, fill

MakeClient = Callable[[str], pulsar.Client]


@pytest.fixture
def connect() -> MakeClient:
    """An official client."""
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    return lambda url: pulsar.Client(url, logger=quiet)


def header(**fields: Any) -> MessageMetadata:
    """A message's header."""
    return MessageMetadata(producer_name="p", sequence_id=1, publish_time=5, **fields)


STRANGE = {
    "a null value": unbatched_message(None, publish_time_ms=1, key="k"),
    "encrypted": seal(
        header(encryption_keys=[{"key": "k", "value": b"v"}]).SerializeToString(), b"\0\1" * 40
    ),
    "unknown compression": seal(header().SerializeToString() + b"\x40\x09", b"\xff" * 30),
    "a marker": seal(header(marker_type=10).SerializeToString(), b""),
    "no checksum": unbatched_message(b"old", publish_time_ms=1, checksum=False),
    "another compacted": seal(
        header(num_messages_in_batch=3, compacted_batch_indexes=[0, 2]).SerializeToString(), b"x"
    ),
    "a chunk": seal(
        header(uuid="u", num_chunks_from_msg=2, total_chunk_msg_size=9, chunk_id=0)
        .SerializeToString(), b"123"
    ),
}  # fmt: skip


def test_strange_entries_go_over_untouched(
    tmp_path: Path, target: BrokerThread, mirror: Mirror
) -> None:
    """Null values, encrypted, unknown, old, chunked: byte for byte the same, in order."""
    fill(tmp_path / "a", [(body, 1) for body in STRANGE.values()])
    assert mirror(tmp_path / "a", target.service_url).entries == len(STRANGE)
    assert bodies_of(target.data_dir) == list(STRANGE.values())
    mirror(tmp_path / "a", tmp_path / "b")
    assert bodies_of(tmp_path / "b") == list(STRANGE.values())


def test_bytes_that_are_no_message(tmp_path: Path, mirror: Mirror) -> None:
    """Between folders even bytes in no known format go over."""
    fill(tmp_path / "a", [(b"anything at all", 1), (b"\x00\x00\x00\xff", 1)])
    assert mirror(tmp_path / "a", tmp_path / "b").entries == 2
    assert bodies_of(tmp_path / "b") == [b"anything at all", b"\x00\x00\x00\xff"]


def test_official_clients_read_the_mirror(
    source: BrokerThread, target: BrokerThread, mirror: Mirror, connect: MakeClient
) -> None:
    """Chunked and compressed messages with keys arrive at the target's consumers as they were."""
    big = bytes(range(256)) * 30_000
    client = connect(source.service_url)
    chunked = client.create_producer(TOPIC, batching_enabled=False, chunking_enabled=True)
    chunked.send(big, partition_key="big")
    zipped = client.create_producer(
        TOPIC, compression_type=pulsar.CompressionType.ZLib, properties={"app": "shop"}
    )
    for number in range(50):
        zipped.send_async(
            b"m%d" % number, None, partition_key=f"k{number}", event_timestamp=number + 1
        )
    zipped.flush()
    client.close()
    mirror(source.service_url, target.service_url)
    reading = connect(target.service_url)
    consumer = reading.subscribe(TOPIC, "s", initial_position=pulsar.InitialPosition.Earliest)
    first = consumer.receive(20_000)
    assert (first.data(), first.partition_key()) == (big, "big")
    rest = [consumer.receive(20_000) for _ in range(50)]
    assert [(m.data(), m.partition_key(), m.event_timestamp()) for m in rest] == [
        (b"m%d" % n, f"k{n}", n + 1) for n in range(50)
    ]
    reading.close()


class Old(Record):  # type: ignore[misc]
    """The first schema."""

    name = String()


class New(Record):  # type: ignore[misc]
    """The second schema."""

    name = String()
    age = Integer(required_default=True)


class Other(Record):  # type: ignore[misc]
    """A schema that does not fit the first one."""

    name = Integer(required=True)


def publish_records(client: pulsar.Client) -> None:
    """Publish with two schemas that fit."""
    publish_with(client, (Old, Old(name="a")), (New, New(name="b", age=3)))


def publish_with(client: pulsar.Client, *records: tuple[type[Record], Record]) -> None:
    """Publish each record with its schema."""
    for schema, record in records:
        producer = client.create_producer(TOPIC, schema=JsonSchema(schema))
        producer.send(record)
        producer.close()


def test_schemas_keep_their_versions(
    source: BrokerThread, target: BrokerThread, tmp_path: Path, mirror: Mirror, connect: MakeClient
) -> None:
    """Every version is registered in the target, in order, by each way."""
    client = connect(source.service_url)
    publish_records(client)
    client.close()
    mirror(source.service_url, target.service_url)
    mirror(source.service_url, tmp_path / "b")
    with running_broker(mirror_sources=(CLUSTER,)) as second:
        mirror(tmp_path / "b", second.service_url)
        for broker in (target, second):
            wanted = [schema_of(source, version) for version in (0, 1)]
            assert [schema_of(broker, version) for version in (0, 1)] == wanted
    reading = connect(target.service_url)
    consumer = reading.subscribe(
        TOPIC, "s", schema=JsonSchema(New), initial_position=pulsar.InitialPosition.Earliest
    )
    assert consumer.receive(20_000) is not None
    assert consumer.receive(20_000).value().age == 3
    reading.close()


def schema_of(broker: BrokerThread, version: int) -> tuple[int, bytes]:
    """A version of the topic's schema."""
    with Service(broker.service_url) as service:
        schema, _ = service.first().schema(TOPIC, version.to_bytes(8, "big"))
    return schema.type, schema.schema_data


def set_strategy(broker: BrokerThread, strategy: str) -> None:
    """Set the compatibility strategy of the default namespace."""
    path = "/admin/v2/namespaces/public/default/schemaCompatibilityStrategy"
    request = urllib.request.Request(
        f"{broker.http_url}{path}",
        data=json.dumps(strategy).encode(),
        headers={"Content-Type": "application/json"},
        method="PUT",
    )
    with urllib.request.urlopen(request, timeout=30):
        pass


def test_versions_that_do_not_fit_each_other(
    source: BrokerThread, target: BrokerThread, tmp_path: Path, mirror: Mirror, connect: MakeClient
) -> None:
    """The target's strategy decides: what it refuses is named, and goes over once it is allowed."""
    set_strategy(source, "ALWAYS_COMPATIBLE")
    client = connect(source.service_url)
    publish_with(client, (Old, Old(name="a")), (Other, Other(name=1)), (New, New(name="b", age=3)))
    client.close()
    with pytest.raises(SchemaVersionError, match="version 1 of the source's schema: the target"):
        mirror(source.service_url, target.service_url)
    assert target.data_dir is not None
    assert len(bodies_of(target.data_dir)) == 1
    set_strategy(target, "ALWAYS_COMPATIBLE")
    assert mirror(source.service_url, target.service_url).entries == 2
    mirror(source.service_url, tmp_path / "b")
    with running_broker(data_dir=tmp_path / "b") as opened:
        for version in (0, 1, 2):
            wanted = schema_of(source, version)
            assert schema_of(target, version) == schema_of(opened, version) == wanted


def test_another_schema_in_the_target_is_refused(
    source: BrokerThread, target: BrokerThread, mirror: Mirror, connect: MakeClient
) -> None:
    """If a version would mean another schema, nothing that names it goes over."""
    client = connect(source.service_url)
    publish_records(client)
    client.close()
    set_strategy(target, "ALWAYS_COMPATIBLE")
    with RawClient.from_url(target.service_url) as raw:
        other = Schema(name="x", type=Schema.Json, schema_data=b'{"type":"int"}')
        raw.create_producer(TOPIC, schema=other)
    with pytest.raises(SchemaVersionError, match="version 0 of the source's schema: it is 1"):
        mirror(source.service_url, target.service_url)
    assert target.data_dir is not None
    with RawClient.from_url(target.service_url) as raw:
        assert raw.subscribe(TOPIC, "s").get_last_message_id()[0].entry_id == -1

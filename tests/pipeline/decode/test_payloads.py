"""Record sets of Kafka's clients in the source and in the audit's counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.metadata import MetadataRequest
from kafka.record.memory_records import MemoryRecordsBuilder

from pulsemark.ledger import FolderReader
from pulsemark.pipeline.audit_source import counts
from pulsemark.pipeline.columns import COLUMNS
from pulsemark.pipeline.decode.entries import table_of_entries
from pulsemark.pipeline.errors import DecodeError
from pulsemark.testing import running_broker
from pulsemark.testing.raw_kafka import RawKafka

TOPIC = "persistent://public/default/t-partition-0"
RECORDS = [
    (b"k0", b"v0", [("h", b"x")]),
    (b"\xff", b"v1", []),
    (None, b"v2", []),
    (b"k3", None, []),
]


def record_set(magic: int, codec: int) -> bytes:
    """A set of the records."""
    builder = MemoryRecordsBuilder(magic=magic, compression_type=codec, batch_size=1 << 20)
    for number, (key, value, headers) in enumerate(RECORDS):
        more = {"headers": headers} if magic == 2 else {}
        builder.append(timestamp=1_000 + number, key=key, value=value, **more)
    builder.close()
    return bytes(builder.buffer())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sets of all formats, plain and compressed, written by a broker."""
    path = tmp_path_factory.mktemp("kafka")
    with (
        running_broker(data_dir=path, kafka_port=0, http_port=None) as broker,
        RawKafka.from_url(broker.kafka_url) as raw,
    ):
        raw.call(MetadataRequest, 1, topics=[MetadataRequest.MetadataRequestTopic(name="t")])
        for magic, version in ((0, 1), (1, 2), (2, 7)):
            for codec in (0, 1):
                answer = raw.produce("t", record_set(magic, codec), version=version)
                assert not answer.error_code
    return path


def test_each_record_is_a_row(folder: Path, tools: Any) -> None:
    """As Pulsar's consumers get it: value, key, event time, properties; offsets are indexes."""
    rows = tools.rows_of(folder, topic=TOPIC)
    assert [row["__index"] for row in rows] == list(range(24))
    for first in range(0, 24, 4):
        part = rows[first : first + 4]
        assert [row["value"] for row in part] == [b"v0", b"v1", b"v2", None]
        assert [row["__key"] for row in part] == [b"k0", b"\xff", None, b"k3"]
        assert [row["__batchIndex"] for row in part] == [0, 1, 2, 3]
    assert dict(rows[-4]["__messageProperties"]) == {"h": "x"}


@pytest.mark.parametrize("name", COLUMNS)
def test_each_column_has_all_rows(folder: Path, tools: Any, name: str) -> None:
    """Whatever is read: only prefixes, headers or payloads."""
    assert len(tools.rows_of(folder, topic=TOPIC, columns=name)) == 24


def test_a_set_above_the_limit_is_refused_with_the_reason(folder: Path, tools: Any) -> None:
    """Not with what its bytes would mean as a message of Pulsar's."""
    with pytest.raises(DecodeError, match="its record set cannot be read: more than 20 bytes"):
        tools.rows_of(folder, topic=TOPIC, maxUncompressedBytes=20)


def test_the_audit_counts_records(folder: Path) -> None:
    """Each record is a message, and indexes have no gap."""
    with FolderReader(folder) as reader:
        log = reader.log(TOPIC)
        first = log.first_position
        assert first is not None
        found = counts(table_of_entries(log.read(first, max_entries=100)), 60_000)
    assert sum(found["count"].tolist()) == 24
    assert (min(found["min_index"].tolist()), max(found["max_index"].tolist())) == (0, 23)

"""Record sets for the tests: as Kafka's clients build them, as they read them, and golden ones."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from aiokafka.record.memory_records import MemoryRecords as AiokafkaRecords
from kafka.record.memory_records import MemoryRecords as KafkaPythonRecords
from kafka.record.memory_records import MemoryRecordsBuilder

from pulsemark.kafka.records import (
    Codec,
    EntryRules,
    Headers,
    Produced,
    StoredSet,
    Work,
    batch,
    fetch,
    legacy,
    validate_produced,
)
from pulsemark.kafka.records.layout import Record, spans

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "kafka-2.8.2.json"
TIME_MS = 1_700_000_000_000
OLD_CODECS = (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)
CELLS = [(magic, codec) for magic in (0, 1) for codec in OLD_CODECS] + [(2, c) for c in Codec]
"""Each magic with each codec that it has."""

Seen = tuple[int, int | None, bytes | None, bytes | None, list[Any]]
"""A record as a client reads it: offset, time, key, value, headers."""


@dataclass(frozen=True)
class Row:
    """A record to be built."""

    key: bytes | None
    value: bytes | None
    time_ms: int = TIME_MS
    headers: Headers = ()
    attributes: int = 0


ROWS = [
    Row(b"key-0", b"value"),
    Row(None, b"no key", TIME_MS + 70, ((b"name", b"\x00\xff"), (b"null", None))),
    Row(b"deleted", None, TIME_MS - 5),
    Row(b"", b"", TIME_MS + 2, ((b"", b""),)),
    Row(b"k" * 70, b"long " * 40, TIME_MS + 9),
]


def produce_version(magic: int) -> int:
    """The version of Produce that brings sets of this magic, zstd too."""
    return (1, 2, 7)[magic]


def records_of(rows: Iterable[Row], offsets: Sequence[int] | None = None) -> list[Record]:
    """The rows, numbered or with these offsets."""
    return [
        Record(n if offsets is None else offsets[n], r.time_ms, r.key, r.value, r.headers,
               r.attributes)
        for n, r in enumerate(rows)
    ]  # fmt: skip


def build_set(
    magic: int,
    codec: int = Codec.NONE,
    rows: Iterable[Row] = ROWS,
    offsets: Sequence[int] | None = None,
    **fields: Any,
) -> bytes:
    """A set as a producer sends it; ``fields`` are those of a batch of magic 2."""
    records = records_of(rows, offsets)
    if magic == 2:
        return batch.build(records, batch.BatchFields(codec=codec, **fields), Work())
    if codec:
        return legacy.pack_wrapper(records, magic, codec, Work())
    return b"".join(legacy.plain_message(record, magic) for record in records)


def kafka_python_set(magic: int, codec: int, rows: Iterable[Row] = ROWS) -> bytes:
    """A set as kafka-python builds it; without further libraries it knows only gzip."""
    builder = MemoryRecordsBuilder(magic, codec, 1 << 24)
    for row in rows:
        headers = [(name.decode(), value) for name, value in row.headers]
        builder.append(row.time_ms, row.key, row.value, headers if magic == 2 else None)
    builder.close()
    return bytes(builder.buffer())


def stored(records: bytes, magic: int, version: int | None = None, **rules: Any) -> Produced:
    """What is stored of a set on a topic of format ``magic``."""
    if version is None:
        version = produce_version(records[16])
    produced = validate_produced(records, version, EntryRules(magic=magic, **rules))
    assert produced is not None
    return produced


def sent_on(body: bytes, base: int, client: int, **options: Any) -> bytes:
    """What a client of magic ``client`` gets of a stored set."""
    return b"".join(fetch(StoredSet(body, base), client, **options).parts)


def seen_by_kafka_python(records: bytes) -> list[Seen]:
    """The records that kafka-python sees, checksums checked."""
    seen: list[Seen] = []
    for part in KafkaPythonRecords(records):
        assert part.validate_crc()
        seen += [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in part]
    return seen


def seen_by_aiokafka(records: bytes) -> list[Seen]:
    """The records that aiokafka sees, checksums checked."""
    seen: list[Seen] = []
    parts = AiokafkaRecords(records)
    while parts.has_next():
        part = parts.next_batch()
        assert part is not None
        assert part.validate_crc()
        seen += [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in part]
    return seen


def seen_by_clients(records: bytes, magic: int, codec: int) -> list[list[Seen]]:
    """What the clients see that know the codec; aiokafka has no lz4 of magic 0."""
    views = []
    if codec in (Codec.NONE, Codec.GZIP):
        views.append(seen_by_kafka_python(records))
    if (magic, codec) != (0, Codec.LZ4):
        views.append(seen_by_aiokafka(records))
    return views


def whole(records: bytes) -> bytes:
    """A set without the part of a message that Kafka ends its answers with."""
    return records[: max((span.end for span in spans(records)), default=0)]


@cache
def golden() -> dict[str, Any]:
    """The golden file, its bytes decoded."""
    content: dict[str, Any] = json.loads(GOLDEN.read_text())
    for case in content["conversions"]:
        case["sent"] = base64.b64decode(case["sent"])
        case["codec"] = Codec[case["codec"].upper()]
        case["fetched"] = {
            int(client): whole(base64.b64decode(records))
            for client, records in case["fetched"].items()
        }
    for case in content["librdkafka"]:
        case["stored"] = base64.b64decode(case["stored"])
        case["codec"] = Codec[case["codec"].upper()]
    return content

"""Record sets: every magic and codec to every entry format, good and bad, read by every client."""

from __future__ import annotations

import base64
import itertools
import json
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# aiokafka's C extension takes the first batch's magic for all.
os.environ["AIOKAFKA_NO_EXTENSIONS"] = "1"
from aiokafka.errors import KafkaError, UnsupportedCodecError
from aiokafka.record.memory_records import MemoryRecords
from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest
from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest
from kafka.record.memory_records import MemoryRecordsBuilder

from pulsemark.kafka.records import Work
from pulsemark.kafka.records.legacy import read_records
from pulsemark.testing.raw_kafka import fetch_fields, produce_fields

from .admin_scenarios import make_topic
from .peers import Peer
from .record_sets import CODECS, FETCH_VERSIONS, FORMATS, MANY, ONE, Case, batch, set_of

_GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "kafka" / "golden"
GOLDEN, REFUSALS = _GOLDEN / "kafka-2.8.2.json", _GOLDEN / "refusals.json"
"""Sets as kafka-python sends them, with each codec; bad sets."""
PRODUCE_VERSIONS = {0: (0, 1), 1: (2, 2), 2: (3, 8)}
#: Formats of topics that a broker without conversions can have.
ONLY_NEW = (2,)
SETTLED_S = 1.0
"""Kafka's brokers learn of a changed setting after it was answered."""


def complete(data: bytes) -> bytes:
    """A fetched set without the cut message that Kafka fills an answer up with."""
    at = 0
    while at + 17 <= len(data):
        end = at + 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        if end > len(data):
            break
        at = end
    return data[:at]


def records_of(data: bytes) -> list[Any]:
    """Offset, time, key, value and headers of each record."""
    found: list[Any] = []
    records = MemoryRecords(complete(data))
    try:
        while records.has_next():
            found.extend(
                [each.offset, each.timestamp, *_hex(each.key, each.value), str(each.headers)]
                for each in records.next_batch()
            )
    except UnsupportedCodecError:
        # lz4 of magic 0, with its wrong checksum: no Python client reads it.
        found = [
            [record.offset, None, *_hex(record.key, record.value), "[]"]
            for record in read_records(complete(data), 1 << 24, Work())
        ]
    except (struct.error, ValueError, IndexError, KafkaError) as error:
        found.append([0, type(error).__name__])
    return found


def _hex(*fields: bytes | None) -> list[str | None]:
    return [None if field is None else bytes(field).hex() for field in fields]


def without_offsets(data: bytes) -> bytes:
    """A plain set without the bytes that say its offset and leader epoch."""
    kept, at = b"", 0
    while at < len(data):
        end = at + 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        kept += data[at + 8 : end] if data[at + 16] < 2 else data[at + 16 : end]
        at = end
    return kept


def head_of(data: bytes, base: int) -> str:
    """The header of the first batch or message, without checksums and leader epoch.

    What is compressed anew has other bytes and lengths, with the same records.
    """
    if len(data) < 17:
        return ""
    offset = int.from_bytes(data[:8], "big") - base
    if data[16] < 2:
        return f"magic {data[16]} attributes {data[17]} offset {offset:+}"
    return f"magic 2 offset {offset:+} {data[21:61].hex()}"


def send(peer: Peer, label: str, topic: str, version: int, sent: bytes | None) -> int | None:
    """Produce one set; the base offset if it was stored. What is recorded is relative to the end.

    So one set that only one of the brokers takes makes no difference in later answers.
    """
    if version not in peer.versions(ProduceRequest):
        return None
    end = end_of(peer, topic)
    try:
        fields = produce_fields([(topic, 0, sent)], -1)
        answer = peer.main.call(ProduceRequest, version, **fields)
    except OSError:
        peer.record(f"{label} (v{version})", "<closed>")
        peer.forget()
        return None
    part = answer.responses[0].partition_responses[0]
    base = int(part.base_offset)
    seen = answer.to_dict()
    if part.error_code == 0 and base >= 0:
        seen["responses"][0]["partition_responses"][0]["base_offset"] = f"end {base - end:+}"
    peer.record(f"{label} (v{version})", seen)
    return base if part.error_code == 0 else None


def end_of(peer: Peer, topic: str) -> int:
    """The offset of the next record."""
    part = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
        partition_index=0, current_leader_epoch=-1, timestamp=-1
    )
    asked = ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[part])
    answer = peer.quietly(ListOffsetsRequest, 1, replica_id=-1, isolation_level=0, topics=[asked])
    return int(answer.topics[0].partitions[0].offset)


def read(peer: Peer, label: str, topic: str, offset: int, *, same_bytes: bool = False) -> None:
    """Fetch with a client of each magic and record what it sees."""
    for magic, version in FETCH_VERSIONS.items():
        if version not in peer.versions(FetchRequest):
            continue
        fields = fetch_fields([(topic, 0, offset, 1 << 24, -1)], 500, 1, 1 << 24)
        answer = peer.main.call(FetchRequest, version, **fields)
        part = answer.responses[0].partitions[0]
        data = complete(bytes(part.records or b""))
        records = [[at - offset, *rest] for at, *rest in records_of(data)]
        seen = {"error": part.error_code, "head": head_of(data, offset), "records": records}
        if same_bytes and data and not data[17 if data[16] < 2 else 22] & 7:
            seen["bytes"] = without_offsets(data).hex()
        peer.record(f"{label}: client of magic {magic}", seen)


def conversion_matrix(peer: Peer) -> None:
    """Each magic with each codec to each format, fetched by each client."""
    formats = FORMATS if peer.converts else ONLY_NEW
    golden = json.loads(GOLDEN.read_text())["conversions"]
    sets = {case["name"].rpartition("-to-")[0]: base64.b64decode(case["sent"]) for case in golden}
    for stored in formats:
        topic = make_topic(peer, f"matrix-{stored}", stored)
        for magic, codec, name in itertools.product(PRODUCE_VERSIONS, CODECS, ("mixed", "many")):
            if codec == "zstd" and magic < 2:
                continue
            sent = sets[f"{name}-{magic}-{codec}"]
            for version in dict.fromkeys(PRODUCE_VERSIONS[magic]):
                label = f"{name} magic {magic} {codec} to format {stored} by v{version}"
                base = send(peer, label, topic, version, sent)
                if base is not None:
                    read(peer, label, topic, base, same_bytes=True)


def bad_sets(peer: Peer) -> None:
    """Every set of tests/kafka/golden/refusals.json, and what is stored of it."""
    kinds = [(m, c) for m in (FORMATS if peer.converts else ONLY_NEW) for c in (False, True)]
    policy: Any = {"cleanup.policy": "compact"}
    topics = {
        (magic, compacted): make_topic(
            peer, f"bad-{magic}-{compacted}", magic, **(policy if compacted else {})
        )
        for magic, compacted in kinds
    }
    for case in (*golden_cases(), *further_cases()):
        topic = topics.get((case.magic, case.compacted))
        if topic is None or case.version not in peer.versions(ProduceRequest):
            continue
        label = f"{case.name} to format {case.magic}"
        base = send(peer, label, topic, case.version, case.sent)
        if base is not None and base >= 0 and len(case.sent) < 10_000:
            read(peer, label, topic, base)


def golden_cases() -> Iterator[Case]:
    """Those of the file."""
    for each in json.loads(REFUSALS.read_text()):
        sent = base64.b64decode(each["sent"]) + bytes(each["zeros"])
        name = each["name"].rpartition(" to ")[0]
        yield Case(name, each["version"], sent, each["magic"], each["compacted"])


def further_cases() -> Iterator[Case]:
    """More sets: no records at all, all versions for one batch, odd fields that are allowed."""
    good = set_of(2, "none", ONE)
    for version in range(3, 9):
        yield Case(f"magic 2: good in version {version}", version, good)
    for name, changes in {
        "base time negative": {27: ("q", -1), 35: ("q", -1)},
        "producer epoch without id": {51: ("h", 3)},
        "sequence without id": {53: ("i", 3)},
        "negative sequence with id": {43: ("q", 7), 51: ("h", 0), 53: ("i", -2)},
        "negative epoch with id": {43: ("q", 7), 51: ("h", -1), 53: ("i", 0)},
        "id -2": {43: ("q", -2)},
        "length 0": {},
    }.items():
        yield Case(f"magic 2: {name}", 7, batch(good, changes) if changes else good[:8] + bytes(4))


def missing_sets(peer: Peer) -> None:
    """Null and absent records, no partitions, the same partition twice, odd acks."""
    topic = make_topic(peer, "missing", 2)
    good = set_of(2, "none", ONE)
    for version in peer.versions(ProduceRequest):
        fields: dict[str, Any] = {"transactional_id": None, "acks": -1, "timeout_ms": 1_000}
        peer.ask("no topics", ProduceRequest, version, peer.connect(), **fields, topic_data=[])
    for partition in (-1, 1, 2**31 - 1):
        peer.ask(
            f"partition {partition}", ProduceRequest, 7,
            **produce_fields([(topic, partition, good)], -1),
        )  # fmt: skip
    for acks in (1, 2, -2, 32767):
        peer.ask(f"acks {acks}", ProduceRequest, 7, **produce_fields([(topic, 0, good)], acks))
    for name in ("", ".", "..", "a/b", "a b", "x" * 249, "x" * 250, "ä", "no-such-topic"):
        fields = produce_fields([(name, 0, good)], -1)
        peer.ask(f"topic {name[:5]!r} of {len(name)}", ProduceRequest, 7, **fields)
    fields = produce_fields([(topic, 0, good)], -1) | {"transactional_id": "tx"}
    peer.ask("a transactional id", ProduceRequest, 7, **fields)
    fields = produce_fields([(topic, 0, good), ("no-such-topic", 0, good)], -1)
    peer.ask("one of two topics is missing", ProduceRequest, 7, **fields)
    read(peer, "what is stored", topic, 0)
    for version in peer.versions(ProduceRequest):
        # Some Kafkas answer and then close the connection.
        peer.forget()
        send(peer, "null records", topic, version, None)


def idempotence(peer: Peer) -> None:
    """Sequence numbers: repeated, missed, wrapped, of an older and a newer epoch."""
    for version in peer.versions(InitProducerIdRequest)[:2]:
        peer.ask(
            "a new id", InitProducerIdRequest, version,
            transactional_id=None, transaction_timeout_ms=1_000,
        )  # fmt: skip
    topic = make_topic(peer, "sequences", 2)
    last = 2**31 - 1
    steps = {
        "first at 7": (70, 0, 7, 1), "next": (70, 0, 8, 2), "repeated": (70, 0, 8, 2),
        "first repeated": (70, 0, 7, 1), "a gap": (70, 0, 12, 1), "overlapping": (70, 0, 9, 2),
        "after that": (70, 0, 10, 1), "new epoch at 5": (70, 1, 5, 1),
        "new epoch at 0": (70, 1, 0, 1), "old epoch again": (70, 0, 11, 1),
        "near the end": (71, 0, last - 1, 2), "wraps": (71, 0, 0, 1), "wrapped on": (71, 0, 1, 1),
        "wraps inside": (72, 0, last, 3), "after the wrap": (72, 0, 2, 1),
    }  # fmt: skip
    for name, (producer, epoch, sequence, count) in steps.items():
        send(peer, name, topic, 7, with_id(producer, epoch, sequence, count))
    for number in range(6):
        send(peer, f"batch {number} of six", topic, 7, with_id(73, 0, number, 1))
    for number in range(6):
        send(peer, f"batch {number} of six again", topic, 7, with_id(73, 0, number, 1))
    read(peer, "what is stored", topic, 0)


def with_id(producer: int, epoch: int, sequence: int, count: int) -> bytes:
    """A batch of an idempotent producer."""
    builder = MemoryRecordsBuilder(2, 0, 1 << 20)
    builder.set_producer_state(producer, epoch, sequence, False)
    for number in range(count):
        builder.append(1_700_000_000_000 + number, b"k", b"v%d" % (sequence % 100 + number), [])
    builder.close()
    return bytes(builder.buffer())


def mixed_log(peer: Peer) -> None:
    """A topic whose format goes 0, 1, 2, 1, 0: sets of every magic in one log, read by all."""
    if not peer.converts:
        return
    from .admin_scenarios import alter

    topic = make_topic(peer, "mixed", 0)
    for stored in (0, 1, 2, 1, 0):
        alter(peer, f"to format {stored}", topic, {"message.format.version": FORMATS[stored]})
        time.sleep(SETTLED_S)
        for magic, codec in itertools.product(range(3), ("none", "gzip")):
            send(
                peer,
                f"magic {magic} {codec}",
                topic,
                (1, 2, 7)[magic],
                set_of(magic, codec, MANY[:5]),
            )
    for offset in (0, 2, 31, 77, 100, 149):
        for magic, version in FETCH_VERSIONS.items():
            fields = fetch_fields([(topic, 0, offset, 1 << 24, -1)], 500, 1, 1 << 24)
            answer = peer.main.call(FetchRequest, version, **fields)
            seen = records_of(bytes(answer.responses[0].partitions[0].records or b""))
            peer.record(
                f"client of magic {magic} from {offset}",
                [record for record in seen if record[0] >= offset],
            )


RECORD_SCENARIOS = {
    "conversion-matrix": conversion_matrix,
    "bad-sets": bad_sets,
    "missing-sets": missing_sets,
    "idempotence": idempotence,
    "mixed-log": mixed_log,
}

"""Make tests/kafka/golden/refusals.json again: how real Kafkas answer to bad record sets.

    tools/make_kafka_refusals.py OUTPUT.json 2.8.2=HOST:PORT 3.9.2=HOST:PORT

with the libraries of tools/make_kafka_golden.py. Each case is a set, the version of the Produce
request that brings it and what the topic asks for; the file has it beside the error code of each
Kafka. 3.9.2 stores magic 2 only, so cases of topics with an older format go to 2.8.2 alone.
"""

from __future__ import annotations

import gzip
import json
import struct
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from crc32c import crc32c
from make_kafka_golden import ONE, Connection, Row, create, encoded, produce, set_of, settle

ROWS: list[Row] = [(1_700_000_000_000 + n, b"k%d" % n, b"v%d" % n, []) for n in range(2)]
# kafka-python leaves a set plain that does not get smaller.
LONG: list[Row] = [(row_time, key, bytes(200), []) for row_time, key, _, _ in ROWS]


class Case(NamedTuple):
    """A set, and where it goes."""

    name: str
    version: int
    sent: bytes
    magic: int = 2
    compacted: bool = False


def message(
    magic: int, value: bytes | None, attributes: int = 0, offset: int = 0, key: bytes | None = b"k"
) -> bytes:
    """A message of magic 0 or 1."""
    covered = bytes((magic, attributes)) + (struct.pack(">q", 1_700_000_000_000) if magic else b"")
    for field in (key, value):
        covered += struct.pack(">i", -1 if field is None else len(field)) + (field or b"")
    crc = struct.pack(">I", zlib.crc32(covered))
    return struct.pack(">qi", offset, 4 + len(covered)) + crc + covered


def wrapper(magic: int, inner: bytes, codec: int = 1) -> bytes:
    """A wrapper around a set."""
    return message(magic, gzip.compress(inner), codec, key=None)


def batch(
    sent: bytes, changes: dict[int, tuple[str, int]] | None = None, records: bytes | None = None
) -> bytes:
    """A batch of magic 2 with some fields changed, by offset, and the checksum made right."""
    data = bytearray(sent if records is None else sent[:61] + records)
    struct.pack_into(">i", data, 8, len(data) - 12)
    for at, (kind, value) in (changes or {}).items():
        struct.pack_into(">" + kind, data, at, value)
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    return bytes(data)


def flipped(data: bytes, at: int) -> bytes:
    """The bytes with one of them changed."""
    return data[:at] + bytes((data[at] ^ 0x40,)) + data[at + 1 :]


def record(delta: int, attributes: int = 0, key: bytes = b"\x02k") -> bytes:
    """A record of magic 2 with a small offset delta."""
    body = bytes((attributes, 0, delta << 1)) + key + b"\x02v\x00"
    return bytes((len(body) << 1,)) + body


def old_cases() -> Iterator[Case]:
    """Sets of magic 0 and 1, and versions of Produce that bring them."""
    for magic, version in ((0, 1), (1, 2)):
        one, two = message(magic, b"v"), message(magic, b"w", offset=1)
        holes = one + message(magic, b"w", offset=5)
        plain = one + two
        sets = {
            "wrong crc": flipped(plain, len(plain) - 1),
            "wrong inner crc": wrapper(magic, flipped(plain, len(plain) - 1)),
            "unknown magic": flipped(plain, 16),
            "size 13": struct.pack(">qi", 0, 13) + one[12:25],
            "nested": wrapper(magic, wrapper(magic, plain)),
            "inner magic differs": wrapper(magic, message(1 - magic, b"v")),
            "wrapper without value": message(magic, None, 1),
            "wrapper with empty value": message(magic, b"", 1),
            "wrapper of an empty set": wrapper(magic, b""),
            "wrapper of a cut set": wrapper(magic, plain[:-3]),
            "two wrappers": wrapper(magic, one) + wrapper(magic, one),
            "plain, then wrapper": one + wrapper(magic, one),
            "wrapper, then plain": wrapper(magic, one) + one,
            "mixed magics": one + message(1 - magic, b"v"),
            "zstd": message(magic, b"v" * 20, 4),
            "codec 5": message(magic, b"v" * 20, 5),
            "undecompressible": message(magic, b"v" * 20, 1),
            "empty": b"",
            "cut last message": plain[:-3],
            "only a cut message": one[:-3],
            "wrapper with holes": wrapper(magic, holes),
            "LogAppendTime": message(magic, b"v", 8),
            "unknown bits": message(magic, b"v", 0xC0),
            "a batch of magic 2": set_of(2, "none", ROWS),
            "good": plain,
        }  # fmt: skip
        for name, sent in sets.items():
            for topic in (magic, 2):
                yield Case(f"magic {magic}: {name}", version, sent, topic)
        keyless = message(magic, b"v", key=None)
        yield Case(f"magic {magic}: no key", version, keyless, magic, compacted=True)
        yield Case(f"magic {magic}: in version 3", 3, plain)
        yield Case(f"magic {magic}: too large", version, message(magic, bytes(1_048_600)), magic)


def new_cases() -> Iterator[Case]:
    """Batches of magic 2."""
    good, packed = set_of(2, "none", ROWS), set_of(2, "gzip", LONG)
    two = good[:61] + record(0) + record(1)
    with_id = {43: ("q", 7), 51: ("h", 0), 53: ("i", 0)}
    changed: dict[str, bytes] = {
        "good": good,
        "empty": b"",
        "cut": good[:-3],
        "only a header": good[:61],
        "two batches": good + good,
        "a cut batch after it": good + good[:40],
        "base offset 1": batch(good, {0: ("q", 1)}),
        "control": batch(good, {21: ("h", 0x20)}),
        "transactional": batch(good, {21: ("h", 0x10), **with_id}),
        "LogAppendTime": batch(good, {21: ("h", 0x08)}),
        "unknown bits": batch(good, {21: ("h", 0x700)}),
        "count 3 of 2": batch(good, {57: ("i", 3)}),
        "count 1 of 2": batch(good, {57: ("i", 1), 23: ("i", 0)}),
        "count 0": batch(good, {57: ("i", 0), 23: ("i", -1)}, b""),
        "count -1": batch(good, {57: ("i", -1)}),
        "huge count": batch(good, {57: ("i", 2**31 - 1), 23: ("i", 2**31 - 2)}),
        "last delta 5": batch(good, {23: ("i", 5)}),
        "id without sequence": batch(good, {43: ("q", 7), 51: ("h", 0)}),
        "id": batch(good, with_id),
        "wrong crc": flipped(good, len(good) - 1),
        "unknown magic": flipped(good, 16),
        "size 13": struct.pack(">qi", 0, 13) + good[12:25],
        "size 20": struct.pack(">qi", 0, 20) + good[12:32],
        "codec 5": batch(good, {21: ("h", 5)}),
        "undecompressible": batch(good, {21: ("h", 1)}),
        "deltas 0, 2": batch(two, None, record(0) + record(2)),
        "deltas 5, 6": batch(two, None, record(5) + record(6)),
        "gzip": packed,
        "deltas 0, 2, gzip": batch(packed, None, gzip.compress(record(0) + record(2))),
        "deltas 5, 6, gzip": batch(packed, None, gzip.compress(record(5) + record(6))),
        "flag of KIP-87": batch(two, None, record(0, 0x20) + record(1)),
        "time 0": batch(good, {27: ("q", 0), 35: ("q", 0)}),
        "wrong latest time": batch(good, {35: ("q", 5)}),
        "bytes after the records": batch(good, None, good[61:] + b"\x00"),
        "a record is cut": batch(good, None, good[61:-1]),
        "key beyond its record": batch(two, None, record(0, 0, b"\x7ek") + record(1)),
        "too large": set_of(2, "none", [(0, b"k", bytes(1_048_600), [])]),
        "leader epoch 9": batch(good, {12: ("i", 9)}),
    }  # fmt: skip
    for name, sent in changed.items():
        yield Case(f"magic 2: {name}", 7, sent)
    yield Case("magic 2: empty batch in version 2", 2, b"")
    yield Case("magic 2: cut in version 2", 2, good[:-3])
    yield Case("magic 2: two batches in version 2", 2, good + good)
    yield Case("magic 2: base offset 1 in version 2", 2, batch(good, {0: ("q", 1)}))
    yield Case("magic 2: no key", 7, set_of(2, "none", [(0, None, b"v", [])]), compacted=True)
    yield Case("magic 2: zstd in version 6", 6, set_of(2, "zstd", LONG))
    yield Case("magic 2: zstd in version 2", 2, set_of(2, "zstd", LONG))
    for topic in (0, 1):
        yield Case(f"magic 2: id, to format {topic}", 7, changed["id"], topic)


def answers(
    case: Case, brokers: dict[str, Connection], reconnect: Callable[[str], Connection]
) -> dict[str, int | None]:
    """Each Kafka's error code; None: it closed the connection."""
    codes: dict[str, int | None] = {}
    for version, broker in brokers.items():
        if version != "2.8.2" and case.magic < 2:
            continue
        topic = f"bad-{time.time_ns()}"
        policy = {"cleanup_policy": "compact"} if case.compacted else {}
        create(broker, topic, case.magic, **policy)
        settle(broker, topic, 3, set_of(2, "none", ONE))
        try:
            codes[version] = produce(broker, topic, case.version, case.sent)[0]
        except (ConnectionError, struct.error):
            codes[version] = None
            brokers[version] = reconnect(version)
    return codes


def main(output: str, *peers: str) -> None:
    """Write the file."""
    addresses = dict(peer.split("=", 1) for peer in peers)
    brokers = {version: Connection(address) for version, address in addresses.items()}
    cases: list[dict[str, Any]] = []
    for case in [*old_cases(), *new_cases()]:
        codes = answers(case, brokers, lambda version: Connection(addresses[version]))
        sent = case.sent
        # A megabyte of zeros needs no place in the repository.
        rest = sent.rstrip(b"\0") if len(sent) > 100_000 else sent
        cases.append({
            "name": f"{case.name} to {case.magic}", "version": case.version, "magic": case.magic,
            "compacted": case.compacted, "sent": encoded(rest), "zeros": len(sent) - len(rest),
            "codes": codes,
        })  # fmt: skip
    with open(output, "w") as file:  # noqa: PTH123 - nothing else is done with paths
        json.dump(cases, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

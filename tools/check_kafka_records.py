"""Let Kafka's own Java classes read the record sets that pulsemark makes, cell by cell.

    tools/check_kafka_records.py --new 'JARS/*' [--old 'JARS/*']

The jars are those of kafka-clients with its codecs: any version from 0.11 on for `--new` (all
magics), 0.8.2 or 0.9 for `--old` (magic 0, whose lz4 they check by their own wrong checksum). For
example with Maven: `dependency:copy-dependencies` of org.apache.kafka:kafka-clients:0.9.0.1.

Each set is produced on a topic of each format, whole and with holes, and fetched by clients of each
magic. The classes have to see the offsets, sizes and times that went in. Exit code 1 if not.
"""

from __future__ import annotations

import argparse
import base64
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from pulsemark.kafka.records import (
    Codec,
    EntryRules,
    Record,
    StoredSet,
    Work,
    control_batch,
    empty_batch,
    fetch,
    keep,
    validate_produced,
)
from pulsemark.kafka.records import batch as batches
from pulsemark.kafka.records.convert import to_legacy

READERS = Path(__file__).resolve().parent / "kafka_readers"
TIME_MS = 1_700_000_000_000
BASE = 1000
RECORDS = [
    Record(0, TIME_MS, b"key", b"value"),
    Record(1, TIME_MS + 70, None, b"no key", ((b"name", None),)),
    Record(2, TIME_MS - 5, b"deleted", None),
    Record(3, TIME_MS + 2, b"", b""),
    Record(4, TIME_MS + 9, b"k" * 70, b"long " * 300),
]


def sent(magic: int, codec: Codec) -> bytes:
    """The records as a producer's set."""
    if magic == 2:
        return batches.build(RECORDS, batches.BatchFields(codec=codec), Work())
    return to_legacy(RECORDS, magic, codec, Work())


def cases() -> Iterator[tuple[str, int, bytes, str]]:
    """Name, the magic on the wire, the set, and what has to be seen of it."""
    for magic, codec, topic, client in product(range(3), Codec, range(3), range(3)):
        if codec is Codec.ZSTD and min(magic, topic, client) < 2:
            continue
        made = validate_produced(sent(magic, codec), (1, 2, 7)[magic], EntryRules(magic=topic))
        assert made is not None
        timed = min(magic, topic, client) > 0
        for kept in (range(5), (1, 3)):
            body = keep(made.body, kept, Work())
            data = b"".join(fetch(StoredSet(body, BASE), client).parts)
            seen = " ".join(described(RECORDS[n], timed=timed) for n in kept)
            name = f"magic {magic}, {codec.name.lower()}, format {topic}, client {client}, {kept}"
            yield name, data[16], data, seen
    for control_type in range(5):
        yield f"control entry {control_type}", 2, control_batch(BASE, control_type, TIME_MS, 2), ""
    yield "empty batch", 2, empty_batch(BASE, 10, 2), ""


def described(record: Record, *, timed: bool) -> str:
    """A record as the readers print it."""
    sizes = [-1 if field is None else len(field) for field in (record.key, record.value)]
    return f"{BASE + record.offset}:{sizes[0]}:{sizes[1]}:{record.time_ms if timed else -1}"


def read(reader: str, jars: str, sets: list[bytes]) -> list[str]:
    """What a Java program sees of the sets."""
    lines = "".join(base64.b64encode(data).decode() + "\n" for data in sets)
    command = ["java", "-cp", jars, str(READERS / f"{reader}.java")]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=300)  # noqa: PLW1510
    if done.returncode:
        sys.exit(done.stderr)
    return [line.strip() for line in done.stdout.splitlines()]


def main() -> int:
    """Run, and print what is different."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--new", metavar="JARS")
    parser.add_argument("--old", metavar="JARS")
    options = parser.parse_args()
    wrong = 0
    for reader, jars, most in (("ReadBatches", options.new, 2), ("ReadMessages", options.old, 0)):
        if not jars:
            continue
        chosen = [case for case in cases() if case[1] <= most]
        answers = read(reader, jars, [data for _, _, data, _ in chosen])
        for (name, _, _, expected), seen in zip(chosen, answers, strict=True):
            if seen != expected:
                wrong += 1
                print(f"{name}\n  expected {expected}\n  seen     {seen}")
        print(f"{reader}: {len(chosen)} sets read")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

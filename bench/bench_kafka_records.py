"""What Kafka's record formats cost: in place, converted, and what KIP-31 saves.

    python bench/bench_kafka_records.py [--rounds N] [--records N]

A set of text records of 80 to 120 bytes is produced and fetched through the cells of the matrix,
plain and with each codec. "Ours" is nanoseconds for one record, the median of all rounds with the
lowest and the highest. Its limit, measured in the same rounds, is the same set with absolute
offsets inside, as magic 0 has them: decompressed, each offset written, compressed again. That is
what a broker had to do for each produced set before KIP-31, in the same language and with the same
libraries; so the ratio of the in-place rows is the document's reason in figures.

The last rows are memory: the most that one call held while it converted an entry of a megabyte,
measured once.
"""

from __future__ import annotations

import argparse
import random
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial

from report import Figure, lower, show
from rounds import add_rounds, in_turns, ns_of

from pulsemark.kafka.records import (
    Codec,
    EntryRules,
    Record,
    StoredSet,
    Work,
    fetch,
    legacy,
    read,
    validate_produced,
)
from pulsemark.kafka.records import batch as batches
from pulsemark.kafka.records.convert import to_legacy
from pulsemark.kafka.records.layout import spans

START_MS = 1_700_000_000_000
BASE = 5_000_000
VERSIONS = (1, 2, 7)
WORDS = [b"alpha", b"beta", b"gamma", b"delta", b"order", b"item", b"price", b"status", b"done"]


def rows(count: int, *, alike: bool = False) -> list[Record]:
    """Records of some 100 bytes, as compressible as text, of different sizes or of one."""
    rng = random.Random(31)
    return [
        Record(n, START_MS + n, b"key-%06d" % rng.randrange(10**6), value(rng, alike))
        for n in range(count)
    ]


def value(rng: random.Random, alike: bool) -> bytes:
    """Some 90 bytes of words and digits."""
    parts = [rng.choice(WORDS) + b"=%d" % rng.randrange(10**5) for _ in range(12)]
    return b",".join(parts)[: 90 if alike else rng.randrange(70, 110)]


def sent(records: list[Record], magic: int, codec: int) -> bytes:
    """The records as a producer's set."""
    if magic == 2:
        return batches.build(records, batches.BatchFields(codec=codec), Work())
    return to_legacy(records, magic, codec, Work())


def record_ns(rounds: int, count: int, *jobs: Callable[[], object]) -> list[list[float]]:
    """Nanoseconds for one of `count` records by each job, in all rounds; the jobs in turns."""
    return in_turns(rounds, *(partial(ns_of, job, count) for job in jobs))


def absolute(data: bytes, magic: int, codec: int) -> object:
    """The set with absolute offsets inside: what each produced set cost before KIP-31."""
    if magic == 2:
        header = batches.read_header(data)
        raw = batches.raw_records(data, header, 1 << 30, Work())
        return batches.build(batches.read_records(header, raw), batches.BatchFields(codec), Work())
    wrapper = legacy.read_message(data, next(spans(data)))
    raw = legacy.open_wrapper(wrapper, 1 << 30, Work())
    return legacy.pack_wrapper(legacy.wrapped_records(wrapper, raw), magic, codec, Work(), 1000)


def produced(records: list[Record], rounds: int) -> Iterator[Figure]:
    """Each cell of the produce matrix that has a meaning for its codec."""
    newest = EntryRules(max_batch_bytes=1 << 30)
    for codec in Codec:
        alike = sent(rows(len(records), alike=True), 2, codec)
        (ours,) = record_ns(rounds, len(records), partial(validate_produced, alike, 7, newest))
        name = f"produce {codec.name.lower()}: magic 2 in place, records of one size"
        yield lower(name, ours, None, "ns/record")
        for magic in (1, 2):
            if codec is Codec.ZSTD and magic < 2:
                continue
            data = sent(records, magic, codec)
            rules = EntryRules(magic=magic, max_batch_bytes=1 << 30)
            jobs: list[Callable[[], object]]
            jobs = [partial(validate_produced, data, 7 if magic == 2 else 2, rules)]
            if codec:
                jobs.append(partial(absolute, data, magic, codec))
            ours, *limits = record_ns(rounds, len(records), *jobs)
            limit, note = (limits[0], "absolute offsets") if limits else (None, "")
            name = f"produce {codec.name.lower()}: magic {magic} in place"
            yield lower(name, ours, limit, "ns/record", note)
        for magic, topic in ((0, 0), (0, 2), (1, 2), (1, 0), (2, 1), (2, 0)):
            if codec is Codec.ZSTD:
                continue
            data = sent(records, magic, codec)
            rules = EntryRules(magic=topic, max_batch_bytes=1 << 30, base_offset=BASE)
            version = VERSIONS[magic]
            job = partial(validate_produced, data, version, rules)
            (ours,) = record_ns(rounds, len(records), job)
            way = "up" if topic > magic else "down" if topic < magic else "offsets written"
            yield lower(f"produce {codec.name.lower()}: {way}, {magic} to {topic}", ours, None,
                        "ns/record")  # fmt: skip


def fetched(records: list[Record], rounds: int) -> Iterator[Figure]:
    """What a consumer of each magic costs."""
    for codec in Codec:
        for magic, client in ((0, 0), (1, 1), (2, 2), (1, 0), (2, 1), (2, 0)):
            if codec is Codec.ZSTD and client < 2:
                continue
            rules = EntryRules(magic=magic, max_batch_bytes=1 << 30, base_offset=BASE)
            made = validate_produced(sent(records, magic, codec), VERSIONS[magic], rules)
            assert made is not None
            stored = StoredSet(made.body, BASE, inner_base_offset=made.inner_base_offset)
            (ours,) = record_ns(rounds, len(records), partial(fetch, stored, client))
            way = "in place" if magic <= client else "down"
            name = f"fetch {codec.name.lower()}: magic {magic} for {client}, {way}"
            yield lower(name, ours, None, "ns/record")


def memory(records: list[Record]) -> Iterator[Figure]:
    """The most that a conversion holds, of an entry of about a megabyte."""
    many = [records[n % len(records)]._replace(offset=n) for n in range(40_000)]
    for codec in (Codec.NONE, Codec.GZIP, Codec.LZ4):
        data = sent(many[: 10_000 if codec is Codec.NONE else 40_000], 2, codec)
        made = validate_produced(data, 7, EntryRules(max_batch_bytes=1 << 30))
        assert made is not None
        for client in (2, 1):
            tracemalloc.start()
            answer = fetch(StoredSet(made.body, 0), client)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            name = f"memory {codec.name.lower()}: fetch of {len(data) >> 10} KiB, 2 for {client}"
            yield lower(name, peak / 2**20, answer.size_bytes / 2**20, "MiB", "the answer")


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_rounds(parser, 15)
    parser.add_argument("--records", type=int, default=150)
    options = parser.parse_args()
    records = rows(options.records)
    for magic, codec in ((2, Codec.GZIP), (1, Codec.LZ4)):
        assert [r.value for r in read(sent(records, magic, codec))] == [r.value for r in records]
    figures = [*produced(records, options.rounds), *fetched(records, options.rounds)]
    show("kafka records", [*figures, *memory(records)])


if __name__ == "__main__":
    main()

"""The cost of each tag at append, and of the alternatives that PIP-70 rejected.

    python bench/bench_stampers.py [--rounds N] [--entries N] [--folder DIR]

There are four tables. Each is measured with its limit or peer in the same run, alternating, and
shows the median of the rounds with the lowest and the highest. Times are CPU times, so that other
programs on the machine have little effect:

- the time to make an entry's prefix, by stamper, compared with the two default stampers;
- appends to a ledger per second, by chain, compared with the two default stampers;
- rewriting the producer's metadata and its checksum at every append (the rejected alternative),
  compared with the stamp before the entry, by size of the entry. The rewritten payload is not even
  copied;
- reading an entry's time from the producer's header, with protobuf's C parser and with a
  hand-written parser that stops at the field (the gain of a faster parser alone), compared with
  reading it from the stamp; with two properties in the header, and with twenty.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path

from report import Figure, higher, lower, show
from rounds import add_rounds, in_turns

from pulsemark.ledger import LocalStore, StoreOptions
from pulsemark.metadata import (
    Buffer,
    MessageMetadata,
    Sender,
    StamperChain,
    crc32c,
    entry_time_ms,
    pack_stamp,
    payload_of,
    peek,
    read_message_metadata,
)
from pulsemark.testing.raw_messages import unbatched_message

START_MS = 1_700_000_000_000
FIRST_INDEX = 5_000_000
OPERATIONS = 2_000
TOPIC = "persistent://public/default/bench"
DEFAULT = ("broker-time", "index")
SYSTEM_TAGS = ("message-count", "has-keys", "raw-size", "producer", "send-time", "broker")
PROPERTY_TAGS = "property-tags:region,service"
TOMBSTONE = "tombstone:gone"
SENDER = Sender("standalone-0-17", {"service": "shop", "team": "tills"})
SIZES_BYTES = (100, 1024, 16 * 1024, 128 * 1024)
_CHECKSUM_AT = 6


def body_of(size_bytes: int, more_properties: int = 0) -> bytes:
    """A client's single message with two properties or more, of about this size in all."""
    properties = {"region": "eu-west", "trace": "4bf92f3577b34da6"}
    properties |= {f"property-{number}": "some value" for number in range(more_properties)}
    empty = unbatched_message(b"", publish_time_ms=START_MS, properties=properties)
    payload = bytes(max(0, size_bytes - len(empty)))
    return unbatched_message(payload, publish_time_ms=START_MS, properties=properties)


def cpu_ns(work: Callable[[int], object]) -> float:
    """CPU nanoseconds of one call, which gets the number of the call."""
    start = time.thread_time_ns()
    for number in range(OPERATIONS):
        work(number)
    return (time.thread_time_ns() - start) / OPERATIONS


def all_cpu_ns(rounds: int, *works: Callable[[int], object]) -> list[list[float]]:
    """CPU nanoseconds of one call of each, in all rounds; in turns."""
    return in_turns(rounds, *(partial(cpu_ns, work) for work in works))


def prefix_of(names: Sequence[str], body: bytes) -> Callable[[int], bytes]:
    """Making the prefix of an entry by a chain of these names."""
    chain = StamperChain.from_names(names).at_broker("broker-1.example.com:6650")

    def work(number: int) -> bytes:
        return chain.prefix(
            TOPIC, START_MS + number // 100, FIRST_INDEX + number, 1, body, sender=SENDER
        )

    return work


def stamper_figures(rounds: int) -> list[Figure]:
    """Each stamper beside the default two."""
    body = body_of(1024)
    chains = {
        "broker-time, index (the default)": DEFAULT,
        **{f"+ {name}": (*DEFAULT, name) for name in (*SYSTEM_TAGS, TOMBSTONE, PROPERTY_TAGS)},
        "+ all system tags": (*DEFAULT, *SYSTEM_TAGS),
        "+ all of them": (*DEFAULT, *SYSTEM_TAGS, PROPERTY_TAGS),
    }
    taken = all_cpu_ns(rounds, *(prefix_of(names, body) for names in chains.values()))
    sizes = [len(prefix_of(names, body)(0)) for names in chains.values()]
    return [
        lower(f"{name} ({size} bytes)", ns, taken[0], "ns/entry", "default")
        for name, ns, size in zip(chains, taken, sizes, strict=True)
    ]


def appends_per_s(store: LocalStore, label: str, names: Sequence[str], entries: int) -> float:
    """Appends of 1 KiB to a fresh topic in a second of the appending thread's CPU time."""
    topic = store.open_topic(f"{TOPIC}-{label}")
    topic.stampers = StamperChain.from_names(names).at_broker("broker-1.example.com:6650")
    body = body_of(1024)
    gc.collect()
    start = time.thread_time()
    for _ in range(entries):
        appended = topic.append(body, sender=SENDER)
    taken = time.thread_time() - start
    appended.commit.wait()
    return entries / taken


def append_figures(folder: Path | None, rounds: int, entries: int) -> list[Figure]:
    """Chains beside the default two, in a ledger that syncs in the background."""
    chains = {
        "broker-time, index (the default)": DEFAULT,
        "no stampers": (),
        "+ message-count, producer, broker": (*DEFAULT, "message-count", "producer", "broker"),
        "+ all of them": (*DEFAULT, *SYSTEM_TAGS, PROPERTY_TAGS),
    }
    with tempfile.TemporaryDirectory(dir=folder) as place:
        store = LocalStore.open(Path(place) / "data", options=StoreOptions(sync_interval_ms=100))
        fresh = count()

        def rate(names: Sequence[str]) -> float:
            return appends_per_s(store, str(next(fresh)), names, entries)

        rates = in_turns(rounds, *(partial(rate, names) for names in chains.values()))
        store.close()
    return [
        higher(name, ours, rates[0], "entries/s", "default")
        for name, ours in zip(chains, rates, strict=True)
    ]


def rewrite(body: bytes, time_ms: int) -> tuple[bytes, Buffer]:
    """The rejected way: the broker's time inside the producer's metadata, and a new checksum."""
    metadata = read_message_metadata(body)
    metadata.publish_time = time_ms
    packed = metadata.SerializeToString()
    payload = payload_of(body)
    sized = len(packed).to_bytes(4, "big") + packed
    checksum = crc32c(payload, crc32c(sized))
    return b"\x0e\x01" + checksum.to_bytes(4, "big") + sized, payload


def rewrite_figures(rounds: int) -> list[Figure]:
    """The stamp in front beside rewriting, by size."""
    figures = []
    for size_bytes in SIZES_BYTES:
        body = body_of(size_bytes)
        changed, payload = rewrite(body, START_MS + 1)
        joined = changed + bytes(payload)
        checksum = int.from_bytes(joined[2:_CHECKSUM_AT], "big")
        assert crc32c(joined[_CHECKSUM_AT:]) == checksum
        assert read_message_metadata(joined).publish_time == START_MS + 1
        stamped, rewritten = all_cpu_ns(
            rounds,
            lambda number: pack_stamp(START_MS + number // 100, FIRST_INDEX + number),
            lambda number, body=body: rewrite(body, START_MS + number // 100),  # type: ignore[misc]
        )
        name = f"stamp in front of {len(body):,} bytes"
        figures.append(lower(name, stamped, rewritten, "ns/entry", "rewriting and new checksum"))
    return figures


def publish_time_by_hand(body: bytes) -> int:
    """A parser for one field: it skips the fields before it, and stops there."""
    at, end = 10, 10 + int.from_bytes(body[6:10], "big")
    while at < end:
        tag = body[at]
        at += 1
        value = shift = 0
        while True:
            group = body[at]
            at += 1
            value |= (group & 127) << shift
            if group < 128:
                break
            shift += 7
        if tag == MessageMetadata.PUBLISH_TIME_FIELD_NUMBER << 3:
            return value
        if tag & 7 == 2:
            at += value
    raise ValueError("no publish time")


def parser_figures(rounds: int) -> list[Figure]:
    """Reading the time from the stamp beside reading it from the producer's header."""
    figures = []
    for properties in (2, 20):
        body = body_of(1024, properties - 2)
        entry = pack_stamp(START_MS, FIRST_INDEX) + body
        assert entry_time_ms(peek(entry), body) == publish_time_by_hand(body) == START_MS
        stamp_ns, header_ns, hand_ns = all_cpu_ns(
            rounds,
            lambda _, entry=entry: entry_time_ms(peek(entry), b""),  # type: ignore[misc]
            lambda _, body=body: entry_time_ms(None, body),  # type: ignore[misc]
            lambda _, body=body: publish_time_by_hand(body),  # type: ignore[misc]
        )
        name = f"broker time from the stamp, {properties} properties"
        peers = {"protobuf's C parser": header_ns, "a walk to the field by hand": hand_ns}
        figures += [
            lower(name, stamp_ns, peer_ns, "ns/entry", f"publish time, {peer}")
            for peer, peer_ns in peers.items()
        ]
    return figures


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description="Measure stampers and their alternatives.")
    add_rounds(parser, 25)
    parser.add_argument("--entries", type=int, default=20_000, help="appends of a round (20000)")
    parser.add_argument("--folder", type=Path, help="where the ledger is written")
    options = parser.parse_args()
    if options.entries < 1:
        parser.error("--entries must be at least 1")
    show("stampers: making a prefix", stamper_figures(options.rounds))
    show("stampers: appending", append_figures(options.folder, options.rounds, options.entries))
    show("rejected: rewriting the producer's metadata", rewrite_figures(options.rounds))
    show("rejected: a faster parser alone", parser_figures(options.rounds))


if __name__ == "__main__":
    main()

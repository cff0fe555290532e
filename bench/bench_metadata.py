"""The cost of a stamp: this project's prefix codec compared with protobuf's C parser (upb) alone.

    python bench/bench_metadata.py [--rounds N]

Each row does one job in two ways in the same run, alternating: with `pulsemark.metadata`, and with
the shortest code that uses upb's own classes and checks no bounds. The ratio is upb's time divided
by ours: above 1 ours is faster. Times are the median of all rounds with the lowest and the highest,
in nanoseconds, including the loop itself. Before the measurement the results of both sides are
compared.
"""

from __future__ import annotations

import argparse
import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import google.protobuf
from report import Figure, lower, show
from rounds import add_rounds, in_turns, ns_of

from pulsemark.metadata import (
    BrokerEntryMetadata,
    StamperChain,
    pack,
    pack_stamp,
    peek,
    split,
    strip,
)

START_MS = 1_700_000_000_000
FIRST_INDEX = 5_000_000
OPERATIONS = 20_000
# As in a topic under load: so many entries have the same millisecond.
ENTRIES_PER_MS = 100
BODY = b"\x0e\x01" + bytes(1022)

_HEADER = struct.Struct(">HI")


@dataclass(frozen=True, slots=True)
class Job:
    """One job for both sides; `inputs` holds a column for each of their arguments."""

    name: str
    ours: Callable[..., object]
    theirs: Callable[..., object]
    inputs: tuple[Sequence[object], ...]


def upb_pack(time_ms: int, index: int) -> bytes:
    """A prefix by upb."""
    body = BrokerEntryMetadata(broker_timestamp=time_ms, index=index).SerializeToString()
    return _HEADER.pack(0x0E02, len(body)) + body


def upb_peek(entry: bytes) -> BrokerEntryMetadata:
    """A prefix read by upb, trusting its size."""
    return BrokerEntryMetadata.FromString(entry[6 : 6 + _HEADER.unpack_from(entry)[1]])


def upb_split(entry: bytes) -> tuple[BrokerEntryMetadata, memoryview]:
    """An entry taken apart by upb, trusting its size."""
    end = 6 + _HEADER.unpack_from(entry)[1]
    return BrokerEntryMetadata.FromString(entry[6:end]), memoryview(entry)[end:]


def upb_pack_given(metadata: BrokerEntryMetadata) -> bytes:
    """A prefix by upb from existing metadata."""
    body = metadata.SerializeToString()
    return _HEADER.pack(0x0E02, len(body)) + body


def upb_strip(entry: bytes) -> memoryview:
    """The body after a prefix, as readers find it that parse the prefix first."""
    return upb_split(entry)[1]


def jobs() -> list[Job]:
    """Every job, each with the same OPERATIONS inputs for both sides."""
    indexes = [FIRST_INDEX + n for n in range(OPERATIONS)]
    busy = [START_MS + n // ENTRIES_PER_MS for n in range(OPERATIONS)]
    idle = [START_MS + 7 * n for n in range(OPERATIONS)]
    metadatas = [BrokerEntryMetadata(broker_timestamp=START_MS, index=index) for index in indexes]
    entries = [pack_stamp(*stamp) + BODY for stamp in zip(busy, indexes, strict=True)]
    chain = StamperChain.from_names(["broker-time", "index"])

    def by_chain(time_ms: int, index: int) -> bytes:
        return chain.prefix("topic", time_ms, index, 1, BODY)

    def upb_by_chain(time_ms: int, index: int) -> bytes:
        return upb_pack(time_ms, index)

    stamps = f"pack_stamp, {ENTRIES_PER_MS} entries per ms"
    return [
        Job(stamps, pack_stamp, upb_pack, (busy, indexes)),
        Job("pack_stamp, every entry at a new ms", pack_stamp, upb_pack, (idle, indexes)),
        Job("StamperChain.prefix, time and index", by_chain, upb_by_chain, (busy, indexes)),
        Job("pack, metadata given", pack, upb_pack_given, (metadatas,)),
        Job("peek", peek, upb_peek, (entries,)),
        Job("split", split, upb_split, (entries,)),
        Job("strip", strip, upb_strip, (entries,)),
    ]


def measure(job: Job, rounds: int) -> Figure:
    """Both sides in turns; results are dropped at once, as a broker would."""
    if list(map(job.ours, *job.inputs)) != list(map(job.theirs, *job.inputs)):
        raise SystemExit(f"{job.name}: the two sides disagree")
    ours, theirs = in_turns(
        rounds,
        lambda: ns_of(lambda: deque(map(job.ours, *job.inputs), maxlen=0), OPERATIONS),
        lambda: ns_of(lambda: deque(map(job.theirs, *job.inputs), maxlen=0), OPERATIONS),
    )
    return lower(job.name, ours, theirs, "ns", "upb")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure the prefix codec beside protobuf's.")
    add_rounds(parser, 15)
    rounds = parser.parse_args().rounds
    title = f"metadata, protobuf {google.protobuf.__version__}"
    show(title, [measure(job, rounds) for job in jobs()])


if __name__ == "__main__":
    main()

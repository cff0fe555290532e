"""Planning of reads and streams over many topics and many ledgers: processor time and file calls.

    python bench/bench_spark_plan.py --topics 2000 --ledgers 2000

No JVM is started: plans are made by the source's own Python. Processor time is given, because other
programs on the machine make wall-clock time say little. Each step runs once.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StructField, StructType
from report import Figure, lower, show

from pulsemark.ledger import LocalStore
from pulsemark.ledger.local.io.files import Files
from pulsemark.metadata import StamperChain
from pulsemark.pipeline.options import ReadOptions, StreamOptions
from pulsemark.pipeline.source import LedgerReader
from pulsemark.pipeline.stream import LedgerStreamReader
from pulsemark.testing.raw_messages import unbatched_message

CALLS: Counter[str] = Counter()


def count_calls() -> None:
    """Count listings and openings of all file access."""
    for name in ("listdir", "open"):
        whole: Callable[..., Any] = getattr(Files, name)

        def counting(*args: Any, name: str = name, whole: Callable[..., Any] = whole) -> Any:
            CALLS[name] += 1
            return whole(*args)

        setattr(Files, name, counting)


def fill(path: Path, topics: int, ledgers: int) -> None:
    """So many topics of so many ledgers of one message."""
    body = unbatched_message(bytes(100), publish_time_ms=1)
    with LocalStore.open(path) as store:
        for number in range(topics):
            topic = store.open_topic(f"persistent://public/default/t{number:06}")
            topic.stampers = StamperChain.from_names(["broker-time", "index"])
            for _ in range(ledgers):
                done = topic.append(body)
                if ledgers > 1:
                    done.commit.wait()
                    topic.roll()
        done.commit.wait()


def measure(shape: str, path: Path) -> list[Figure]:
    """A plan, a read, and an idle and a busy step of a stream."""
    figures: list[Figure] = []

    def step(name: str, call: Callable[[], Any]) -> Any:
        CALLS.clear()
        start_s = time.process_time()
        result = call()
        figures.append(lower(f"{shape}: {name}", time.process_time() - start_s, None, "s of CPU"))
        figures.extend(
            lower(f"{shape}: {name}, {what}", CALLS[what], None, "calls")
            for what in ("listdir", "open")
        )
        return result

    given = {"path": str(path), "topicsPattern": ".*", "columns": "__index"}
    schema = StructType([StructField("__index", LongType())])
    reader = LedgerReader(ReadOptions.parse(given), schema)
    parts = step("plan of a batch", reader.partitions)
    step("read", lambda: sum(batch.num_rows for part in parts for batch in reader.read(part)))
    options = StreamOptions.parse({**given, "startingOffsets": "earliest"})
    stream = LedgerStreamReader(options, schema)
    first = step("first offset of a stream", stream.initialOffset)
    end = step("next offset", lambda: stream.latestOffset(first, ReadAllAvailable()))
    step("plan of a micro-batch", lambda: stream.partitions(first, end))
    stream.stop()
    return figures


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=2000)
    parser.add_argument("--ledgers", type=int, default=2000, help="of one topic")
    args = parser.parse_args()
    count_calls()
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as temporary:
        for shape, topics, ledgers in (("topics", args.topics, 1), ("ledgers", 1, args.ledgers)):
            fill(Path(temporary) / shape, topics, ledgers)
            figures += measure(shape, Path(temporary) / shape)
    show("spark plan", figures)


if __name__ == "__main__":
    main()

"""The broker's audit beside Spark's: the same rows, also after kills and restarts."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pulsemark.audit import count_log, report
from pulsemark.ledger import FolderReader, LocalStore, StoreOptions
from pulsemark.metadata import BrokerEntryMetadata, StamperChain
from pulsemark.pipeline import OptionError, audit
from pulsemark.testing import RawClient
from pulsemark.testing.raw_messages import unbatched_message

NAME = "persistent://public/default/orders"
ROWS_PATH = "/admin/v2/persistent/public/default/orders/audit"
BUCKET_MS = 250
BUCKET = "250 milliseconds"
TAGS = ("producer_name", "service")
WAIT_S = 60
START_MS = 1_700_000_000_000

# A busy machine takes a minute for a session, and long for each query.
pytestmark = pytest.mark.timeout(400)

PROGRAM = """
import asyncio, json, pathlib, sys
from pulsemark.broker import Broker, BrokerConfig
from pulsemark.ledger import StoreOptions
from pulsemark.proto.broker_entry_pb2 import CONTROL_TXN_COMMIT
from pulsemark.wire import TopicName

async def main():
    config = BrokerConfig(
        data_dir=pathlib.Path(sys.argv[1]), port=0, http_port=0, audit_enabled=True,
        audit_tags=("producer", "service"), audit_bucket_ms=250, audit_save_interval_ms=50,
        stampers=("broker-time", "index", "producer", "property-tags:service"),
        store_options=StoreOptions(segment_size_bytes=4_000),
    )
    async with Broker(config) as broker:
        name = TopicName.parse("persistent://public/default/orders")
        topic = await broker.services.topics.open(name, create=True)
        control = topic.ledger.append_control(CONTROL_TXN_COMMIT, "7", tags={"service": b"broker"})
        await asyncio.to_thread(control.commit.wait)
        print(json.dumps([broker.service_url, broker.http_url]), flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@contextmanager
def broker(folder: Path) -> Iterator[tuple[str, str]]:
    """A broker's process, which has appended one control entry; killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, "the broker did not start"
        service_url, http_url = json.loads(line)
        yield service_url, http_url
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(WAIT_S)
        if process.stdout is not None:
            process.stdout.close()


def publish(url: str) -> None:
    """Messages of three producers: alone, in batches, with and without the property."""
    with RawClient.from_url(url) as client:
        for name, properties in (("till-1", {"service": "shop"}), ("till-2", {}), ("büro", {})):
            producer = client.create_producer(NAME, producer_name=name, properties=properties)
            for number in range(20):
                if number % 3:
                    producer.send(b"x" * number)
                else:
                    producer.send_batch([b"y" * size for size in range(number % 5 + 2)])
            producer.close()


def ask(http_url: str, query: str = "") -> dict[str, Any]:
    """The broker's audit."""
    with urllib.request.urlopen(f"{http_url}{ROWS_PATH}{query}", timeout=WAIT_S) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


COUNTS = (
    *("count", "doubtful_count", "control_count", "bytes", "min_index", "max_index"),
    *("missing", "missing_before", "missing_after", "out_of_order", "tier"),
)


def of_broker(answer: dict[str, Any]) -> list[tuple[Any, ...]]:
    """The broker's rows, as tuples."""
    return sorted(
        (
            (row["bucket_start_ms"], *row["tags"].values(), *(row[name] for name in COUNTS))
            for row in answer["rows"]
        ),
        key=repr,
    )


def of_spark(spark: Any, folder: Path, by: tuple[str, ...]) -> list[tuple[Any, ...]]:
    """What Spark counts from the ledgers, as tuples."""
    rows = audit(spark, folder, NAME, bucket=BUCKET, by=by, min_partitions=2).collect()
    return sorted(
        (
            (
                round(row["bucket_start"].timestamp() * 1000),
                *(row[name] for name in by),
                *(row[name] for name in COUNTS),
            )
            for row in rows
        ),
        key=repr,
    )


def stored(folder: Path) -> bool:
    """Whether counts of the topic are in the catalog."""
    import sqlite3

    db = sqlite3.connect(f"file:{folder}/catalog.sqlite?mode=ro", uri=True)
    try:
        rows = db.execute("SELECT 1 FROM property WHERE kind='audit' AND key=?", (NAME,)).fetchall()
    finally:
        db.close()
    return bool(rows)


def test_the_broker_counts_what_spark_counts(spark: Any, tmp_path: Path) -> None:
    """By bucket and by tags, over kill -9: with what was stored, and the rest counted again."""
    folder = tmp_path / "data"
    for life in range(3):
        with broker(folder) as (service_url, http_url):
            publish(service_url)
            if life == 1:
                deadline_s = time.monotonic() + WAIT_S
                while not stored(folder):
                    assert time.monotonic() < deadline_s, "no counts were stored"
                    time.sleep(0.05)
                publish(service_url)
    with broker(folder) as (_, http_url):
        total, by_tags = ask(http_url, "?by="), ask(http_url)
        assert of_broker(total) == of_spark(spark, folder, ())
        assert of_broker(by_tags) == of_spark(spark, folder, TAGS)
    assert total["uncounted"] == total["dropped_rows"] == total["left"] == total["recounts"] == 0
    assert sum(row["control_count"] for row in total["rows"]) == 4
    assert sum(row["missing"] for row in total["rows"]) == 0
    values = {tuple(row["tags"].values()) for row in by_tags["rows"]}
    assert values == {("till-1", "shop"), ("till-2", None), ("büro", None), (None, "broker")}


def test_a_folder_is_counted_without_a_broker(spark: Any, tmp_path: Path) -> None:
    """`count_log` over a folder's reader finds what Spark finds."""
    with broker(tmp_path / "data") as (service_url, _):
        publish(service_url)
    with FolderReader(tmp_path / "data") as reader:
        trail = count_log(reader.log(NAME), TAGS, BUCKET_MS)
    ours = sum(tally.count for rows in trail.counts.buckets.values() for tally in rows.values())
    theirs = of_spark(spark, tmp_path / "data", ())
    assert ours == sum(row[1] for row in theirs) > 60


@pytest.mark.parametrize("by", ["count", "producer,producer_name", "a,,b"])
def test_bad_tags_are_refused_with_their_name(spark: Any, tmp_path: Path, by: str) -> None:
    """A column's name, a tag named twice, and an empty name."""
    with pytest.raises(OptionError) as raised:
        audit(spark, tmp_path, by=by)
    assert raised.value.option == "by"


def test_times_that_fall_are_out_of_order_for_both(spark: Any, tmp_path: Path) -> None:
    """Messages after an entry of a later bucket, by bucket and by producer, over several tasks."""
    folder = tmp_path / "data"
    with LocalStore.open(folder, options=StoreOptions(segment_size_bytes=1_000)) as store:
        ledger = store.open_topic(NAME)
        ledger.stampers = StamperChain()
        for number, second in enumerate((5, 6, 7, 6, 6, 8, 5, 9, 9, 3, 9, 10) * 3):
            base = BrokerEntryMetadata(
                broker_timestamp=START_MS + second * BUCKET_MS, producer_name="ab"[number % 2]
            )
            body = unbatched_message(b"x" * 100, publish_time_ms=1)
            ledger.append(body, message_count=1 + number % 3, base=base).commit.wait(WAIT_S)
        for by in ((), ("producer_name",)):
            made = report(NAME, count_log(ledger, by, BUCKET_MS), by, log_first_index=0)
            ours = of_broker({"rows": [row.to_json() for row in made.rows]})
            assert ours == of_spark(spark, folder, by)
            assert sum(row.out_of_order for row in made.rows) > 20

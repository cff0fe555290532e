"""Jobs as commands, in one Spark session, compared with plain Python over the ledgers."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import socket
import threading
from collections import Counter
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PythonException
from pyspark.sql.functions import udf

from pulsemark.broker import BrokerConfig, BrokerThread
from pulsemark.ledger import EntryKind, FolderReader, LocalStore, Position
from pulsemark.ledger.local.segment.segment import as_segment
from pulsemark.metadata import peek, read_message_metadata
from pulsemark.pipeline import run_job, verify_offload

pytestmark = pytest.mark.timeout(300)

T = "persistent://public/default/"


@pytest.fixture(scope="module")
def data(spark: Any, tools: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Crashes' ledgers, batches, compressions, mixed formats, wrong clocks, a trimmed head."""
    folder = tools.Folder(tmp_path_factory.mktemp("jobs") / "data")
    for generation in range(3):
        topics = [folder.topic("a"), folder.topic("b", partition=1)]
        for topic in topics:
            tools.fill(topic, folder.clock)
            for number in range(40):
                folder.clock.advance(by_ms=700)
                now = folder.clock.now_ms()
                skew = (number % 7 - 3) * 1000 * (generation + 1)
                name = f"producer-{number % 3}"
                topic.single(b"x%d" % number, publish_time_ms=now + skew, producer_name=name)
        folder.store.close()
        folder.store = LocalStore.open(folder.path, clock=folder.clock)
    ledger = folder.topic("a").ledger
    first = ledger.first_position
    ledger.truncate_head(Position(first.ledger_id, first.entry_id + 9))
    folder.store.close()
    path: Path = folder.path
    return path


def entries(path: Path, topic: str) -> list[Any]:
    """All entries, read one by one."""
    with FolderReader(path) as reader:
        log, place, found = reader.log(topic), Position(0, 0), []
        while got := log.read(place, max_entries=500, max_bytes=1 << 24):
            found += got
            last = got[-1].position
            place = Position(last.ledger_id, last.entry_id + 1)
    return found


def run(name: str, *arguments: object) -> tuple[int, list[dict[str, Any]], str]:
    """Exit code, rows, and what was said."""
    out, err = io.StringIO(), io.StringIO()
    code = run_job(name, [*map(str, arguments), "--json"], out=out, err=err)
    return code, [json.loads(line) for line in out.getvalue().splitlines()], err.getvalue()


def moment(time_ms: int) -> str:
    """As the jobs print it."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def test_clock_errors_of_all_kinds_of_entries(data: Path, tmp_path: Path) -> None:
    """Counts are those of plain Python by producer, and the largest errors; the page plots them."""
    page = tmp_path / "audit.html"
    options = ("--by", "producer", "--clock-errors", "--bucket", "366 days", "--html", page)
    code, rows, said = run("audit", "--data-dir", data, *options)
    assert (code, said) == (0, "")
    assert "error of producers' clocks, ms, of the worst producer" in page.read_text()
    sizes: dict[tuple[str, str], list[int]] = {}
    counts: Counter[tuple[str, str]] = Counter()
    for topic in (f"{T}a", f"{T}b-partition-1"):
        for entry in entries(data, topic):
            if entry.kind is not EntryKind.DATA:
                continue
            header, stamp = read_message_metadata(entry.body), peek(entry.prefix)
            counts[topic, header.producer_name] += entry.message_count
            if stamp is not None:
                size_ms = abs(header.publish_time - stamp.broker_timestamp)
                sizes.setdefault((topic, header.producer_name), []).append(size_ms)
    found: Counter[tuple[str, str]] = Counter()
    most: dict[tuple[str, str], int] = {}
    for row in rows:
        key = row["topic"], row["producer_name"]
        found[key] += row["count"]
        if row["clock_error_most_ms"] is not None:
            most[key] = max(most.get(key, 0), row["clock_error_most_ms"])
    assert {key: found[key] for key in counts} == counts
    assert most == {key: max(values) for key, values in sizes.items()}


def test_what_is_missing_is_an_exit_code(data: Path, spark: Any, tmp_path: Path) -> None:
    """1 from the audit and from an offload; in one line."""
    hurt, lake = tmp_path / "hurt", tmp_path / "lake"
    shutil.copytree(data, hurt)
    assert run("offload", "--data-dir", hurt, lake)[0] == 0
    with FolderReader(hurt) as reader:
        lost = as_segment(reader.log(f"{T}a").segments()[-1]).path
    lost.unlink()
    lost.with_suffix(".idx").unlink()
    code, rows, said = run("audit", "--data-dir", hurt, "--bucket", "1 hour")
    assert code == 1
    assert lost.name in said
    assert {row["topic"] for row in rows if row["loss"] is not None} == {f"{T}a"}
    code, _, said = run("offload", "--data-dir", hurt, lake)
    assert (code, said.count("\n")) == (1, 1)
    assert lost.name in said


def test_a_follower_ends_in_order_at_sigterm(tools: Any, spark: Any, tmp_path: Path) -> None:
    """When its metrics say that it has caught up with a broker that goes on writing."""
    folder = tools.Folder(tmp_path / "data")
    topic = folder.topic("a")
    topic.single(b"x")
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        port = probe.getsockname()[1]

    def lag() -> float | None:
        with suppress(OSError), urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            found = re.search(
                r"^pulsemark_offload_lag_messages\S+ (\S+)$", answer.read().decode(), re.MULTILINE
            )
            return None if found is None else float(found[1])
        return None

    def caught_up() -> None:
        for _ in range(2):
            while lag() != 0:
                threading.Event().wait(0.05)
            topic.single(b"y")
        while lag() != 0:
            threading.Event().wait(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=caught_up, daemon=True)
    thread.start()
    before = signal.getsignal(signal.SIGTERM)
    code, rows, said = run(
        "offload", tmp_path / "lake", "--data-dir", folder.path,
        "--follow", "--every", "50ms", "--metrics-port", port,
    )  # fmt: skip
    thread.join(60)
    folder.store.close()
    assert (code, said) == (0, "")
    assert [(row["files"], row["rows"]) for row in rows] == [(3, 3)]
    assert signal.getsignal(signal.SIGTERM) == before
    assert all(check.good for check in verify_offload(folder.path, tmp_path / "lake"))


def test_messages_are_mapped_and_published_again(tools: Any, spark: Any, tmp_path: Path) -> None:
    """By source and sink with a `writeId`: a worker is killed, and the same job goes on.

    Each topic keeps its order, and nothing is doubled.
    """
    folder = tools.Folder(tmp_path / "data")
    topics = [folder.topic("a"), folder.topic("b")]
    for number in range(400):
        topics[number % 2].single(b"%d" % number, key="k")
    folder.store.close()
    mark = tmp_path / "mark"

    def mapped(value: bytes, index: int) -> bytes:
        if index == 150 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return value + b"!"

    def publish(url: str) -> None:
        read = spark.read.format("pulsemark").options(topicsPattern=".*")
        rows = read.option("columns", "value,__key,__topic,__index").load(str(folder.path))
        ordered = rows.repartition("__topic").sortWithinPartitions("__index")
        changed = udf(mapped, "binary", useArrow=False)("value", "__index")
        writer = ordered.withColumn("value", changed).write.format("pulsemark")
        writer.options(serviceUrl=url, writeId="again").mode("append").save()

    config = BrokerConfig(
        data_dir=tmp_path / "target", port=0, http_port=0, broker_deduplication_enabled=True
    )
    with BrokerThread(config) as broker:
        with pytest.raises((PythonException, Py4JJavaError)):
            publish(broker.service_url)
        publish(broker.service_url)
    for topic in topics:
        columns = {"columns": "value,__key"}
        found = tools.rows_of(tmp_path / "target", topic=topic.name, **columns)
        assert found == [
            {"value": row["value"] + b"!", "__key": row["__key"]} for row in topic.rows
        ]


def test_jobs_on_nothing(spark: Any, tools: Any, tmp_path: Path) -> None:
    """A folder without topics: no rows, no errors, from every job that reads one."""
    folder = tools.Folder(tmp_path / "data")
    folder.store.close()
    more: dict[str, tuple[object, ...]] = {
        "audit": ("--html", tmp_path / "x.html"),
        "offload": (tmp_path / "lake",),
    }
    for name in ("audit", "offload"):
        assert run(name, "--data-dir", tmp_path / "data", *more.get(name, ())) == (0, [], ""), name

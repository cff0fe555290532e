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


def test_an_audit_against_other_tiers(data: Path, spark: Any, tmp_path: Path) -> None:
    """Offloads of each format, a damaged one, and another folder."""
    assert run("offload", "--data-dir", data, tmp_path / "lake", "--rows-per-file", 60)[0] == 0
    page = tmp_path / "audit.html"
    code, rows, said = run(
        "audit", "--data-dir", data, "--against", tmp_path / "lake", "--html", page
    )
    assert (code, rows, said) == (0, [], "")
    assert "Both have the same messages" in page.read_text()
    gone = sorted((tmp_path / "lake").glob("topic=*/hour=*/*.parquet"))[2]
    first, end = (int(part) for part in gone.stem.split("-")[1:])
    gone.unlink()
    code, rows, said = run(
        "audit", "--data-dir", data, "--against", tmp_path / "lake", "--bucket", "1 hour"
    )
    topic = f"{T}a"
    lost = [
        index
        for entry in entries(data, topic)
        if entry.kind is EntryKind.DATA
        for index in range(entry.index - entry.message_count + 1, entry.index + 1)
        if first <= index < end
    ]
    assert code == 1
    assert f"differ in {len(lost)} messages" in said
    assert {(row["topic"], row["what"]) for row in rows} == {(topic, "missing")}
    assert sum(row["messages"] for row in rows) == len(lost)
    assert sorted(_indexes(",".join(row["indexes"] for row in rows))) == lost
    delta = ("--format", "delta", "--columns", "value,__topic,__index")
    assert run("offload", "--data-dir", data, tmp_path / "delta", *delta)[0] == 0
    assert run("audit", "--data-dir", data, "--against", tmp_path / "delta") == (0, [], "")
    (tmp_path / "warehouse").mkdir()
    catalog = (f"uri=sqlite:///{tmp_path}/catalog.db", f"warehouse=file://{tmp_path}/warehouse")
    named = ("--format", "iceberg", "--table", "lake.orders", *delta[2:])
    pairs = [text for pair in catalog for text in ("--catalog-property", pair)]
    assert run("offload", "--data-dir", data, *named, *pairs)[0] == 0
    pairs = [text for pair in catalog for text in ("--against-catalog-property", pair)]
    assert run("audit", "--data-dir", data, "--against-table", "lake.orders", *pairs) == (0, [], "")
    shutil.copytree(data, tmp_path / "copy")
    assert run("audit", "--data-dir", data, "--against", tmp_path / "copy")[:2] == (0, [])


def test_what_is_missing_is_an_exit_code(data: Path, spark: Any, tmp_path: Path) -> None:
    """1 from the audit, alone and against a whole copy, and from an offload; in one line."""
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
    code, rows, said = run("audit", "--data-dir", hurt, "--against", lake, "--bucket", "1 hour")
    assert code == 1
    assert ("lost", f"{T}a") in {(row["what"], row["topic"]) for row in rows}
    code, _, said = run("offload", "--data-dir", hurt, lake)
    assert (code, said.count("\n")) == (1, 1)
    assert lost.name in said


def _indexes(text: str) -> list[int]:
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


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


def test_a_killed_worker(tools: Any, spark: Any, tmp_path: Path) -> None:
    """Its task fails, and with it the job here; the same command goes on, and doubles nothing."""
    folder = tools.Folder(tmp_path / "data")
    topic = folder.topic("a")
    for number in range(400):
        topic.single(b"%d" % number)
    folder.store.close()
    (tmp_path / "deadly_maps.py").write_text(
        "import os, pathlib\n"
        f"MARK = pathlib.Path({str(tmp_path / 'mark')!r})\n"
        "def once(message):\n"
        "    if message.index == 250 and not MARK.exists():\n"
        "        MARK.touch(); os.kill(os.getpid(), 9)\n"
        "    return message\n"
    )
    config = BrokerConfig(
        data_dir=tmp_path / "target", port=0, http_port=0, broker_deduplication_enabled=True
    )
    import sys

    sys.path.insert(0, str(tmp_path))
    try:
        with BrokerThread(config) as broker:
            command = (
                *("replay", "--data-dir", tmp_path / "data", "--service-url", broker.service_url),
                *("--checkpoint", tmp_path / "cp", "--function", "deadly_maps:once"),
            )
            code, rows, said = run(*command)
            assert (code, rows) == (1, [])
            assert said.count("\n") == 1
            code, rows, said = run(*command)
            assert (code, said) == (0, "")
            assert [row["messages"] for row in rows] == [400]
    finally:
        sys.path.remove(str(tmp_path))
    found = tools.rows_of(tmp_path / "target", topic="a", columns="value")
    assert [row["value"] for row in found] == [row["value"] for row in topic.rows]


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

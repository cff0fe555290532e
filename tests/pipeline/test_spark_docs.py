"""Every example of docs/spark.md is run: Python as it stands, commands through the same parser."""

from __future__ import annotations

import io
import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pulsemark.broker import BrokerConfig, BrokerThread
from pulsemark.compaction.current_view import newest_view
from pulsemark.finder.server import ServerOptions, ServerTls
from pulsemark.ledger import FolderReader
from pulsemark.metadata.schema_list import pack_schemas
from pulsemark.pipeline import JOBS, run_job
from pulsemark.proto.pulsar_api_pb2 import Schema

pytestmark = pytest.mark.timeout(600)

PRICES = "persistent://public/default/prices"
PRICE_KEYS = 7
DOCUMENT = Path(__file__).parents[2] / "docs" / "spark.md"
FIRST_MS = int(datetime(2026, 3, 1, 10, tzinfo=UTC).timestamp() * 1000)
COMMAND = "pulsemark pipeline "
GRPC = "Without the folder: over gRPC"
TOKEN = "s3cret"
ORDER = Schema(
    name="order",
    type=Schema.Json,
    schema_data=b"""{"type": "record", "name": "Order", "fields": [
        {"name": "id", "type": "long"}, {"name": "price", "type": "long"}]}""",
)


@dataclass(frozen=True)
class Block:
    """A block of code: its section, its language, its lines."""

    section: str
    language: str
    text: str


def blocks() -> list[Block]:
    """All blocks of the document, in order."""
    found, section = [], ""
    pattern = r"^##+ ([^\n]+)$|^```(\w+)\n(.*?)^```$"
    for match in re.finditer(pattern, DOCUMENT.read_text(), re.MULTILINE | re.DOTALL):
        section = match[1] or section
        if match[2]:
            found.append(Block(section, match[2], match[3]))
    return found


@dataclass
class World:
    """What the examples are about, at places of this test."""

    spark: Any
    path: Path
    data: Path
    url: str
    http_url: str
    grpc_url: str
    """Of a service over the data folder, with TLS, that asks for the token."""

    def placed(self, text: str) -> str:
        """The text with this test's places instead of the document's."""
        text = text.replace("/var/lib/pulsemark", str(self.data))
        text = text.replace("pulsar://127.0.0.1:6650", self.url)
        text = text.replace("http://127.0.0.1:8080", self.http_url)
        text = text.replace("grpcs://broker:6680", self.grpc_url)
        text = text.replace("/etc/pulsemark/", f"{self.path}/etc/")
        return text.replace("/mnt/", f"{self.path}/mnt/")

    def run_python(self, block: Block, names: dict[str, Any]) -> None:
        """A block of Python; streams are run until they have all that is there."""
        names |= {"spark": self.spark, "__name__": "__main__", **self.given(block.section)}
        code = compile(self.placed(block.text), f"<{block.section}>", "exec")
        for attempt in range(5):
            try:
                exec(code, names)
                for query in self.spark.streams.active:
                    query.processAllAvailable()
                    query.stop()
            except Exception as error:
                # On a machine with much else to do Spark gives a stream's worker only 10 s.
                if attempt == 4 or "connect back" not in str(error):
                    raise
            else:
                return

    def given(self, section: str) -> dict[str, Any]:
        """Names that a section takes for granted."""
        if section == "Errors as rows":
            reader = self.spark.read.format("pulsar-ledger").option("topic", "orders")
            return {"reader": reader, "folder": str(self.data)}
        if section != "Writing":
            return {}
        rows = self.spark.createDataFrame([("k", b"written")], "key string, value binary")
        stream = self.spark.readStream.format("pulsar-ledger").option("topic", "orders")
        return {"frame": rows, "stream": stream.load(str(self.data))}

    def run_commands(self, block: Block) -> list[str]:
        """The jobs and the Python of a block of shell commands; what the jobs print."""
        printed = []
        for line in block.text.replace("\\\n", " ").splitlines():
            if not line.startswith(COMMAND):
                assert line.startswith(("pip install", "curl")), line
                continue
            if "--follow" in line:  # it does not end by itself: see test_spark_jobs.py
                continue
            name, *arguments = shlex.split(self.placed(line.removeprefix(COMMAND)), comments=True)
            out, err = io.StringIO(), io.StringIO()
            code = run_job(name, arguments, out=out, err=err)
            assert (code, err.getvalue()) == (0, ""), line
            printed.append(out.getvalue())
        return printed


@pytest.fixture(scope="module")
def world(
    spark: Any, tools: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], World]]:
    """A folder with orders of two days and with prices, and a deduplicating broker with a copy."""
    path = tmp_path_factory.mktemp("docs")
    (path / "mnt").mkdir()
    folder = tools.Folder(path / "data")
    folder.clock.set(FIRST_MS)
    topic = folder.topic("orders")
    for number in range(300):
        folder.clock.advance(by_ms=300_000)
        topic.single(b'{"id": %d, "price": %d}' % (number, number), key=f"k{number % 5}")
    prices = folder.topic("prices")
    for number in range(60):
        prices.single(b"%d" % number, key=f"share {number % PRICE_KEYS}")
    folder.store.catalog.put("schema", topic.name, pack_schemas([ORDER]))
    registered(folder, path / "mnt" / "schemas.json")
    folder.store.close()
    shutil.copytree(path / "data", path / "broker")
    config = BrokerConfig(
        data_dir=path / "broker", port=0, http_port=0, broker_deduplication_enabled=True
    )
    (path / "etc").mkdir()
    tools.make_certificate(path / "etc")
    (path / "etc" / "token").write_text(f"{TOKEN}\n")
    tls = ServerTls(certificate=path / "etc" / "ca.pem", key=path / "etc" / "key.pem")
    options = ServerOptions(tls=tls, token=TOKEN)
    with BrokerThread(config) as broker, tools.serving(path / "data", options) as target:
        places = path, path / "data"
        urls = broker.service_url, broker.http_url, f"grpcs://{target}"
        yield lambda: World(spark, *places, *urls)


def registered(folder: Any, answer: Path) -> None:
    """A topic whose values have the ids of a registry, and what that answers."""
    topic = folder.topic("sold")
    for number in range(10):
        topic.single(b'\0\0\0\0\7{"id": %d}' % number, key=f"k{number % 3}")
    schema = {"type": "object", "properties": {"id": {"type": "integer"}}}
    listed = {"subject": "sold-value", "version": 1, "id": 7, "schemaType": "JSON"}
    answer.write_text(json.dumps([{**listed, "schema": json.dumps(schema)}]))


def test_every_example_runs(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the document, with one session and the names of the blocks before."""
    here: World = world()
    monkeypatch.chdir(here.path)
    names: dict[str, Any] = {}
    commands = 0
    for block in blocks():
        if block.language == "python":
            here.run_python(block, names)
            if not block.section:
                assert names["orders"].count() == 167
            if block.section == GRPC:
                assert names["orders"].count() == 300
        elif block.language == "sh":
            commands += len(here.run_commands(block))
    assert commands >= len(JOBS)
    streamed = here.spark.read.parquet(str(here.path / "mnt" / "parquet"))
    assert streamed.count() == 300
    typed = here.spark.read.parquet(str(here.path / "mnt" / "typed-parquet"))
    assert typed.selectExpr("sum(id)").first()[0] == sum(range(300))
    assert (here.path / "mnt" / "checkpoints" / "to-broker" / "commits").is_dir()
    with FolderReader(here.path / "broker") as reader:
        assert reader.log("persistent://public/default/orders-mapped").next_index == 167
    compacted(here)


def compacted(here: World) -> None:
    """The tables and the views of the latest messages have one of each key."""
    from deltalake import DeltaTable

    rows = DeltaTable(str(here.path / "mnt" / "latest")).to_pyarrow_table()
    values = sorted(map(int, rows["value"].to_pylist()))
    assert values == list(range(60 - PRICE_KEYS, 60))
    orders = DeltaTable(str(here.path / "mnt" / "latest-orders")).to_pyarrow_table()
    assert sorted(orders["id"].to_pylist()) == list(range(295, 300))
    with FolderReader(here.data) as reader:
        view = newest_view(reader, PRICES, reader.log(PRICES).topic_id)
    assert view is not None
    assert view.summary.entry_count == PRICE_KEYS


def test_every_section_has_an_example() -> None:
    """Python (`py`: run by another test) or commands, but where others' examples are explained."""
    sections = set(re.findall(r"^##+ (.+)$", DOCUMENT.read_text(), re.MULTILINE))
    shown = {block.section for block in blocks() if block.language in ("python", "py", "sh")}
    assert sections - shown == {"How it counts", "A cluster on one machine"}


def test_every_job_has_an_example() -> None:
    """Every job has a command line that the test above runs, and no other job is shown."""
    lines = [
        line for block in blocks() if block.language == "sh" for line in block.text.split("\n")
    ]
    shown = {line.removeprefix(COMMAND).split()[0] for line in lines if line.startswith(COMMAND)}
    assert shown == set(JOBS)

"""The example plugin is built, installed and used as a third party's would be."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from grpc_tools import protoc

from pulsemark.finder import SeekClient
from pulsemark.finder.messages import RemoteEntry
from pulsemark.finder.server import folder_server

ROOT = Path(__file__).resolve().parent.parent
PLUGIN = ROOT / "examples" / "stamper_plugin"
TOPIC = "persistent://public/default/billed"

PUBLISH = """
import json, sys
from pathlib import Path
import pulsar
from pulsemark.finder import SeekClient
from pulsemark.testing import running_broker

topic, folder = sys.argv[1], Path(sys.argv[2])
stampers = ("broker-time", "index", "cost-centre:overheads")
with running_broker(data_dir=folder, stampers=stampers, grpc_port=0) as broker:
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(broker.service_url, logger=quiet)
    billed = client.create_producer(topic, properties={"cost-centre": "shop"},
                                    batching_enabled=True, batching_max_publish_delay_ms=500)
    for number in range(3):
        billed.send_async(b"in a batch", None)
    billed.flush()
    client.create_producer(topic).send(b"alone")
    client.close()
    with SeekClient(broker.grpc_url) as seek:
        entries = list(seek.read_entries(topic))
print(json.dumps([[entry.tags, entry.index, entry.body_size_bytes] for entry in entries]))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package in it, built from a copy and installed without a network."""
    source = tmp_path_factory.mktemp("source") / "stamper_plugin"
    shutil.copytree(PLUGIN, source)
    target = tmp_path_factory.mktemp("site")
    options = ["--no-build-isolation", "--no-deps", "--no-index", "--quiet"]
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        *options,
        "--target",
        str(target),
        str(source),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return target


def run(*arguments: object, path: Path | None) -> str:
    """A Python process with the project and, where given, the plugin on its path; its output."""
    places = [str(ROOT / "src"), *([] if path is None else [str(path)])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    ran = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def published(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A data folder that a broker with the plugin wrote, and its answers over gRPC."""
    folder = tmp_path_factory.mktemp("data") / "broker"
    return folder, json.loads(run("-c", PUBLISH, TOPIC, folder, path=installed))


def dumped(folder: Path, *, path: Path | None) -> list[dict[str, Any]]:
    """The prefixes' fields beyond time and index, as `pulsemark dump --json` shows them."""
    out = run("-m", "pulsemark", "dump", TOPIC, "--data-dir", folder, "--json", path=path)
    rows = [json.loads(line)["prefix"] for line in out.splitlines()]
    return [
        {name: value for name, value in row.items() if name not in ("broker_timestamp", "index")}
        for row in rows
    ]


def test_a_broker_stamps_with_it(published: tuple[Path, Any]) -> None:
    """Batches and single entries are billed by the producer's property, or by the policy's word."""
    _, answers = published
    (batch, batch_index, batch_bytes), (single, single_index, single_bytes) = answers
    assert batch == {"acme.cost_centre": "shop", "acme.billed_size_bytes": batch_bytes}
    assert single == {"acme.cost_centre": "overheads", "acme.billed_size_bytes": single_bytes}
    assert (batch_index, single_index) == (2, 3)


def test_dump_names_its_fields_where_it_is(published: tuple[Path, Any], installed: Path) -> None:
    """With the plugin its fields go by their names, without it by their numbers."""
    folder, answers = published
    sizes = [size for _, _, size in answers]
    centres = ["shop", "overheads"]
    assert dumped(folder, path=installed) == [
        {"acme.cost_centre": centre, "acme.billed_size_bytes": size}
        for centre, size in zip(centres, sizes, strict=True)
    ]
    assert dumped(folder, path=None) == [
        {"1000": centre, "1001": size} for centre, size in zip(centres, sizes, strict=True)
    ]


async def test_grpc_without_it(published: tuple[Path, Any]) -> None:
    """A server without the plugin gives the same values by number."""
    folder, answers = published

    def ask(target: str) -> list[RemoteEntry]:
        with SeekClient(target) as seek:
            return list(seek.read_entries(TOPIC))

    async with folder_server(folder) as server:
        entries = await asyncio.to_thread(ask, server.target)
    assert [list(entry.tags.values()) for entry in entries] == [
        list(tags.values()) for tags, _, _ in answers
    ]
    assert all(set(entry.tags) == {"1000", "1001"} for entry in entries)


def test_its_generated_code_is_committed(tmp_path: Path) -> None:
    """The command in the .proto file's head gives the committed files."""
    (tmp_path / "acme_stamps").mkdir()
    arguments = [f"-I{PLUGIN}", f"-I{ROOT / 'src'}", f"--python_out={tmp_path}"]
    proto = PLUGIN / "acme_stamps" / "fields.proto"
    assert protoc.main(["protoc", *arguments, f"--pyi_out={tmp_path}", str(proto)]) == 0
    for name in ("fields_pb2.py", "fields_pb2.pyi"):
        made = (tmp_path / "acme_stamps" / name).read_bytes()
        assert made == (PLUGIN / "acme_stamps" / name).read_bytes(), name

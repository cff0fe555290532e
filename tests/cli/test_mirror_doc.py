"""docs/mirror.md: its commands run, and do what the page says."""

from __future__ import annotations

import re
import shlex
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsemark.broker import BrokerThread
from pulsemark.cli import _parser
from pulsemark.metadata.source_stamp import MIRROR_PRODUCER_PREFIX, MIRROR_PROPERTY
from pulsemark.proto.broker_entry_pb2 import BrokerEntryMetadata
from pulsemark.testing import RawClient, running_broker
from pulsemark.testing.raw_messages import batched_message

Command = Any
TEXT = (Path(__file__).parents[2] / "docs" / "mirror.md").read_text(encoding="utf-8")
TOPIC = "persistent://public/default/orders"


@pytest.fixture
def west(tmp_path: Path) -> Iterator[BrokerThread]:
    """The page's first broker, with 30 entries of 42 messages."""
    with running_broker(
        data_dir=tmp_path / "west", exposing_broker_entry_metadata_to_client_enabled=True
    ) as broker:
        with RawClient.from_url(broker.service_url) as client:
            producer = client.create_producer(TOPIC)
            for number in range(24):
                producer.send(b"%d" % number)
            for _ in range(6):
                producer.send_batch([b"a", b"b", b"c"])
        yield broker


@pytest.fixture
def east(tmp_path: Path) -> Iterator[BrokerThread]:
    """The page's second broker."""
    with running_broker(data_dir=tmp_path / "east", mirror_sources=("west",)) as broker:
        yield broker


def lines(program: str, *first: str) -> list[list[str]]:
    """The page's command lines of a program, as words."""
    blocks = re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)
    words = [shlex.split(line) for block in blocks for line in block.splitlines()]
    return [line for line in words if line[0] == program and (not first or line[1] in first)]


def test_its_brokers_have_these_options() -> None:
    """The two commands that start brokers are accepted by the command line."""
    brokers = lines("pulsemark", "standalone")
    assert len(brokers) == 2
    for line in brokers:
        args = _parser("standalone").parse_args(line[1:])
        assert args.port in (6650, 6651)
    assert args.mirror_sources == ("west",)


def test_its_commands_do_what_the_page_says(
    pulsemark: Command,
    west: BrokerThread,
    east: BrokerThread,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In their order, with the brokers' real addresses."""
    monkeypatch.chdir(tmp_path)
    places = {
        "pulsar://127.0.0.1:6650": west.service_url,
        "pulsar://127.0.0.1:6651": east.service_url,
    }
    said = []
    for _, *arguments in lines("pulsemark", "mirror", "dump", "verify"):
        ran = pulsemark(*(places.get(argument, argument) for argument in arguments))
        assert (ran.status, ran.err) == (0, ""), (arguments, ran)
        said.append(ran.out)
    once, again, folder, dumped, verified = said
    shown = re.search(r"```text\n(topics: 1.*?)```", TEXT, re.DOTALL)
    assert shown is not None
    assert re.sub(r"bytes: \d+|parsed: \d+", "", once) == re.sub(
        r"bytes: \d+|parsed: \d+", "", shown[1]
    )
    assert again.startswith("topics: 1, entries: 0")
    assert "30 entries are equal" in folder
    assert dumped.count("source_cluster=west") == 30
    assert verified


def test_its_policies(pulsemark: Command, east: BrokerThread) -> None:
    """The policy's commands and requests are answered as for every policy."""
    with RawClient.from_url(east.service_url) as client:
        client.create_producer(TOPIC)
    said = []
    for _, *arguments in lines("pulsemark", "policies"):
        ran = pulsemark(*arguments, "--admin-url", east.http_url)
        assert (ran.status, ran.err) == (0, ""), arguments
        said.append(ran.out.strip())
    assert said == ["", "west", "", "", ""]
    for _, _, method, url, *rest in lines("curl"):
        body = rest[1].encode() if rest else None
        address = url.replace("http://127.0.0.1:8081", east.http_url)
        request = urllib.request.Request(address, data=body, method=method)
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.status == (200 if method == "GET" else 204)


def test_its_python_runs(west: BrokerThread) -> None:
    """The example publishes an entry, with the broker's real address."""
    (example,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    names: dict[str, Any] = {"entry": batched_message([b"a", b"b", b"c"], publish_time_ms=1)}
    exec(example.replace("pulsar://127.0.0.1:6650", west.service_url), names)
    assert [receipt.entry_id for receipt in names["receipts"]] == [30]


def test_its_names_are_those_of_the_code() -> None:
    """Tags, property, name and exit codes are written as they are in the code."""
    section = TEXT[TEXT.index("## What the target keeps") : TEXT.index("## How it goes on")]
    named = set(re.findall(r"`(source_\w+)`", section))
    fields = {name for name in BrokerEntryMetadata.DESCRIPTOR.fields_by_name if "source_" in name}
    assert named == fields
    assert f"`{MIRROR_PROPERTY}`" in TEXT
    assert f"`{MIRROR_PRODUCER_PREFIX}CLUSTER`" in TEXT

"""docs/control-entries.md: its commands run and do what the page says."""

from __future__ import annotations

import argparse
import re
import shlex
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsemark.broker import BrokerConfig, BrokerThread
from pulsemark.broker.configuration.settings import runtime_settings
from pulsemark.cli import standalone
from pulsemark.finder import SeekClient
from pulsemark.ledger import FolderReader, common_point
from pulsemark.metadata import control
from pulsemark.testing import RawClient, running_broker

Command = Any
TEXT = (Path(__file__).parents[2] / "docs" / "control-entries.md").read_text(encoding="utf-8")
TOPIC = "persistent://public/default/orders"
TOKEN = "page-token"


@pytest.fixture(scope="module")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's control.token."""
    path = tmp_path_factory.mktemp("page") / "control.token"
    path.write_text(TOKEN)
    return path


@pytest.fixture(scope="module")
def broker(token_file: Path) -> Iterator[BrokerThread]:
    """The page's broker, with its topic."""
    with (
        running_broker(grpc_port=0, grpc_control_token_file=token_file) as running,
        RawClient.from_url(running.service_url) as client,
    ):
        client.create_producer(TOPIC).send(b"x")
        yield running


def lines(program: str) -> list[list[str]]:
    """The page's command lines of a program, as words."""
    blocks = re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)
    words = [shlex.split(line) for block in blocks for line in block.splitlines()]
    return [line for line in words if line[0] == program]


def test_each_command_does_what_the_page_says(
    pulsemark: Command, broker: BrokerThread, token_file: Path
) -> None:
    """In their order; only the addresses and paths are the test's own."""
    places = {
        "127.0.0.1:6680": broker.grpc_url,
        "control.token": str(token_file),
        "pulsemark-data": str(broker.data_dir),
    }
    said, ran_count = {}, 0
    for _, *arguments in lines("pulsemark"):
        if arguments[0] == "standalone":
            parser = argparse.ArgumentParser()
            standalone.add_arguments(parser)
            parsed = parser.parse_args(arguments[1:])
            assert parsed.grpc_control_token_file == Path("control.token")
            continue
        more = ["--admin-url", broker.http_url] if arguments[0] == "policies" else []
        given = [places.get(word, word) for word in arguments]
        ran = pulsemark(*given, *more)
        assert (ran.status, ran.err) == (0, ""), arguments
        said[" ".join(arguments[:4])] = ran.out
        ran_count += 1
    assert ran_count == len(lines("pulsemark")) - 1
    assert said["control append orders txn-start"].startswith("txn-start at ")
    listed = said["control list orders --url"]
    assert [line.split()[-2:] for line in listed.splitlines()[2:]] == [
        ["txn-start", "4711"], ["4711", "coordinator=c1"], ["checkpoint", "nightly-17"],
        ["by=till-3", "region=eu"],
    ]  # fmt: skip
    assert said["dump orders --data-dir pulsemark-data"] == listed
    assert "4 control entries" in said["verify pulsemark-data"]
    assert said["policies get orders leaderEpochs"] == "on\n"
    assert said["control append orders leader-change"].rstrip().endswith("epoch 7")
    with SeekClient(broker.grpc_url) as client, FolderReader(broker.data_dir) as reader:
        history = reader.log(TOPIC).epoch_history()
        assert common_point(history, client.epochs(TOPIC)) == 7
        assert [(s.epoch, s.first_index, s.leader) for s in history.starts] == [
            (0, 0, ""), (7, 6, "broker-b")
        ]  # fmt: skip


def test_its_requests_are_answered(broker: BrokerThread) -> None:
    """204 for what changes something, 200 for what is asked."""
    for _, _, method, url, *rest in lines("curl"):
        data = rest[1].encode() if rest else None
        asked = urllib.request.Request(
            url.replace("http://127.0.0.1:8080", broker.http_url), data=data, method=method
        )
        with urllib.request.urlopen(asked, timeout=10) as answer:
            assert answer.status == (200 if method == "GET" else 204), url


def test_its_settings_and_limits_are_those_of_the_code() -> None:
    """Settings, types and limits that the page names."""
    assert {"pulsemarkGrpcControlTokenFile", "pulsemarkLeaderEpochsEnabled"} <= set(
        runtime_settings(BrokerConfig())
    )
    for name in set(control.CONTROL_TYPES) - {"replicated-subscription"}:
        assert f"`{name}`" in TEXT
    assert f"1 to {control.MAX_CONTROL_NAME_BYTES} bytes of printable text" in TEXT
    assert f"| {control.MAX_CONTROL_TAGS} in an entry;" in TEXT
    assert f"| {control.MAX_CONTROL_TAG_BYTES:,} bytes |" in TEXT

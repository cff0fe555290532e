"""docs/stamps.md: its commands run, and its lists are complete."""

from __future__ import annotations

import json
import re
import shlex
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsemark.broker import BrokerConfig, BrokerThread
from pulsemark.broker.configuration.config import INTERCEPTORS
from pulsemark.broker.configuration.settings import pulsar_settings, runtime_settings
from pulsemark.broker.policies.own_policies import StampPolicy
from pulsemark.metadata import BrokerEntryMetadata, application_tags
from pulsemark.testing import RawClient, running_broker

Command = Any
TEXT = (Path(__file__).parents[2] / "docs" / "stamps.md").read_text(encoding="utf-8")
ADMIN_URL = "http://127.0.0.1:8080"


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    """A broker with the page's topic, a message in it, and the page's subscription."""
    with running_broker(grpc_port=0) as running, RawClient.from_url(running.service_url) as client:
        producer = client.create_producer("persistent://public/default/orders")
        client.subscribe("persistent://public/default/orders", "audit").close()
        producer.send(b"the first message")
        yield running


def lines(program: str) -> list[list[str]]:
    """The page's command lines of a program, as words."""
    blocks = re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)
    whole = [block.replace("\\\n", " ") for block in blocks]
    words = [shlex.split(line) for block in whole for line in block.splitlines()]
    return [line for line in words if line[0] == program]


def test_its_commands_say_what_the_page_says(pulsemark: Command, broker: BrokerThread) -> None:
    """In their order: set, look, unset, and a subscription with a filter by a last policy."""
    said = []
    for _, *arguments in lines("pulsemark"):
        ran = pulsemark(*arguments, "--admin-url", broker.http_url)
        assert (ran.status, ran.err) == (0, "")
        said.append(ran.out.strip())
    chosen = "broker-time,index,property-tags:region,app"
    delivering = "broker-time,index,property-tags:app\ndelivered: application_tags"
    created = "created europe on persistent://public/default/orders, at latest"
    assert said == ["", "", chosen, chosen, "", delivering, "", "", "", "", "", created]
    pulsemark("policies", "unset", "orders", "brokerEntryMetadata", "--admin-url", broker.http_url)
    for target in ("orders", "public/default"):
        asked = ("policies", "get", target, "brokerEntryMetadata")
        assert pulsemark(*asked, "--admin-url", broker.http_url).out == "not set\n"


def test_its_requests_are_answered_as_the_page_says(broker: BrokerThread) -> None:
    """204 for changes, 200 with the value for what is asked."""
    answers = []
    for _, _, method, url, *rest in lines("curl"):
        assert url.startswith(ADMIN_URL)
        body = rest[1].encode() if rest else None
        request = urllib.request.Request(
            broker.http_url + url.removeprefix(ADMIN_URL), body, method=method
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            answers.append((answer.status, answer.read()))
    gone = (204, b"")
    *changes, (_, stamp), (status, metrics) = answers
    assert (json.loads(stamp)["index"], json.loads(stamp)["messageCount"]) == (0, 1)
    assert changes == [gone, gone, (200, b'{"stampers":["index"]}'), gone, gone]
    assert (status, b"pulsemark_message_headers_parsed_total" in metrics) == (200, True)


def test_its_programs_run(broker: BrokerThread, capsys: pytest.CaptureFixture[str]) -> None:
    """Each Python block does what the text before it says; the last one prints index and time."""
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(blocks) == 4
    for block in blocks:
        names: dict[str, Any] = {}
        program = (
            block.replace("pulsar://127.0.0.1:6650", broker.service_url)
            .replace("127.0.0.1:6680", broker.grpc_url)
            .replace("receive()", "receive(20_000)")
        )
        exec(compile(program, "docs/stamps.md", "exec"), names)
        if "RackStamper" in names:
            metadata = BrokerEntryMetadata()
            names["RackStamper"]().stamp(None, metadata)
            assert application_tags(metadata) == {"rack": b"r17"}
        if "producer" in names:
            names["producer"].flush()
        if "client" in names:
            names["client"].close()
    index, broker_time_ms = capsys.readouterr().out.split()[-2:]
    assert int(index) == 0
    assert int(broker_time_ms) > 1_700_000_000_000


def test_its_settings_are_all_there_are() -> None:
    """Every setting of Pulsar's that is known is on the page, and none that is not."""
    _, _, section = TEXT.partition("## The configuration file")
    named = set(re.findall(r"`([a-z][A-Za-z._]+)`", section))
    assert set(pulsar_settings()) <= named
    assert set(INTERCEPTORS) <= named
    settings = {*runtime_settings(BrokerConfig()), *INTERCEPTORS}
    files_and_values = {"broker.conf", "standalone.conf", "index", "sync", "files", "memory"}
    ours_in_general = {"pulsemark", "pulsemark..."}
    assert named <= settings | files_and_values | ours_in_general


def test_its_values_are_policies() -> None:
    """Each JSON value on the page is one."""
    values = re.findall(r'\{"stampers": \[.*?\]\}', TEXT)
    assert len(values) >= 3
    for value in values:
        assert StampPolicy.from_json(json.loads(value)).to_json() == json.loads(value)

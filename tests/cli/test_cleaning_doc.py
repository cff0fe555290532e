"""docs/cleaning.md: its commands run, and its names and defaults are those of the code."""

from __future__ import annotations

import re
import shlex
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsemark.broker import BrokerConfig, BrokerThread
from pulsemark.broker.configuration.settings import runtime_settings
from pulsemark.testing import RawClient, running_broker

Command = Any
TEXT = (Path(__file__).parents[2] / "docs" / "cleaning.md").read_text(encoding="utf-8")
ADMIN_URL = "http://127.0.0.1:8080"
TOPIC = "persistent://public/default/prices"


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    """A broker with the page's topic and subscription."""
    with running_broker() as running, RawClient.from_url(running.service_url) as client:
        client.create_producer(TOPIC).send(b"x", key="k")
        client.subscribe(TOPIC, "shop", earliest=True)
        yield running


def lines(program: str) -> list[list[str]]:
    """The page's command lines of a program, as words."""
    blocks = re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)
    words = [shlex.split(line) for block in blocks for line in block.splitlines()]
    return [line for line in words if line[0] == program]


def test_its_commands_do_what_the_page_says(pulsemark: Command, broker: BrokerThread) -> None:
    """In their order: set, look, unset."""
    said = []
    for _, *arguments in lines("pulsemark"):
        ran = pulsemark(*arguments, "--admin-url", broker.http_url)
        assert (ran.status, ran.err) == (0, ""), arguments
        said.append(ran.out.strip())
    assert said == ["", "", "", "time: 10080 minutes, size: -1 MB", "3600", "", ""]


def test_its_requests_are_answered_as_the_page_says(broker: BrokerThread) -> None:
    """204 for what changes something, 200 for what is asked; nothing has expired yet (409)."""
    answers = []
    for _, _, method, url, *rest in lines("curl"):
        assert url.startswith(ADMIN_URL)
        body = rest[1].encode() if rest else None
        request = urllib.request.Request(
            url.replace(ADMIN_URL, broker.http_url), data=body, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                status = answer.status
        except urllib.error.HTTPError as error:
            with error:
                status = error.code
        answers.append((method, status))
    expected = {"GET": {200}, "PUT": {204}, "DELETE": {204}, "POST": {204, 409}}
    assert len(answers) == 15
    assert all(status in expected[method] for method, status in answers), answers


def test_its_settings_have_these_defaults() -> None:
    """Each row of the settings' table names settings of the broker, with their defaults."""
    shown = runtime_settings(BrokerConfig())
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| ([\d, ]+) \|", TEXT, re.MULTILINE)
    found: dict[str, str] = {}
    for names, defaults in rows:
        found.update(zip(re.findall(r"`(\w+)`", names), defaults.split(", "), strict=True))
    assert len(found) == 8
    assert found == {name: shown[name] for name in found}


def test_its_metrics_are_on_the_page_of_metrics(broker: BrokerThread) -> None:
    """Every metric that the page names is served."""
    with urllib.request.urlopen(f"{broker.http_url}/metrics", timeout=10) as answer:
        served = set(re.findall(r"^# TYPE (\w+) ", answer.read().decode(), re.MULTILINE))
    section = TEXT[TEXT.index("## What can be seen") :]
    named = set(re.findall(r"`((?:pulsar|pulsemark)_\w+)`", section))
    named |= {f"pulsar_compaction{tail}" for tail in re.findall(r"`(_\w+)`", section)}
    assert len(named) == 17
    assert named <= served

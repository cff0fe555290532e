"""docs/audit.md: its commands and programs run, and its names are those of the code."""

from __future__ import annotations

import json
import re
import shlex
import urllib.request
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from pulsemark.audit.report import Report
from pulsemark.audit.rows import AuditRow
from pulsemark.broker import BrokerConfig, BrokerThread
from pulsemark.broker.configuration.settings import runtime_settings
from pulsemark.cli.standalone import add_arguments
from pulsemark.testing import RawClient, running_broker

Command = Any
TEXT = (Path(__file__).parents[2] / "docs" / "audit.md").read_text(encoding="utf-8")
TOPIC = "persistent://public/default/orders"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    """A broker with the options of the page's first command, and the page's topic."""
    settings: dict[str, Any] = {
        "audit_enabled": True,
        "audit_tags": ("producer", "service"),
        "stampers": ("broker-time", "index", "producer", "property-tags:service"),
        "grpc_port": 0,
        "data_dir": tmp_path_factory.mktemp("audited"),
    }
    with running_broker(**settings) as running, RawClient.from_url(running.service_url) as client:
        for name in ("till-1", "till-2"):
            producer = client.create_producer(TOPIC, producer_name=name)
            producer.send_batch([b"x", b"y"])
            producer.close()
        yield running


def blocks(language: str) -> list[str]:
    """The page's programs in a language."""
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def lines(program: str) -> list[list[str]]:
    """The page's command lines of a program, as words."""
    words = [shlex.split(line) for block in blocks("sh") for line in block.splitlines()]
    return [line for line in words if line[0] == program]


def at(broker: BrokerThread, text: str) -> str:
    """The text with this broker's addresses."""
    text = text.replace("http://127.0.0.1:8080", broker.http_url)
    text = text.replace("pulsar://127.0.0.1:6650", broker.service_url)
    return text.replace("127.0.0.1:6680", broker.grpc_url)


def test_the_broker_takes_its_options() -> None:
    """The page's first command is one that `standalone` knows."""
    import argparse

    (command,) = [shlex.split(line[2:]) for line in "".join(blocks("console")).splitlines()]
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    given = parser.parse_args(command[2:])
    assert given.audit_tags == ("producer", "service")


def test_its_commands_and_programs_do_what_the_page_says(
    pulsemark: Command, broker: BrokerThread
) -> None:
    """The rows are looked at; a consumer receives three of four messages; the tiers differ."""
    asked = [line for line in lines("pulsemark") if line[1] == "audit"]
    for _, *arguments in asked:
        if "compare" in arguments:
            continue
        place = () if "--data-dir" in arguments else ("--admin-url", broker.http_url)
        words = [str(broker.data_dir) if word == "./data" else word for word in arguments]
        ran = pulsemark(*words, *place)
        assert (ran.status, ran.err) == (0, ""), arguments
        assert "till-1" in ran.out or "--by" not in arguments
    for program in blocks("python"):
        exec(compile(at(broker, program), "docs/audit.md", "exec"), {})
    for _, *arguments in asked:
        if "compare" in arguments:
            ran = pulsemark(*arguments, "--admin-url", broker.http_url)
            # The bucket has not ended, so that nothing is judged; or it has, and one was lost.
            assert ran.status in (0, 1), ran.err
            assert "billing" in ran.out
    assert len(asked) == 6


def test_its_requests_are_answered(broker: BrokerThread) -> None:
    """Each with 200."""
    for _, url in lines("curl"):
        with urllib.request.urlopen(at(broker, url), timeout=30) as answer:
            assert answer.status == 200
    assert len(lines("curl")) == 3


def first_cells(heading: str) -> list[str]:
    """The names in the first cells of the table with this heading."""
    start = TEXT.index(f"| {heading} |")
    table = TEXT[start : TEXT.index("\n\n", start)].splitlines()[2:]
    return [name for line in table for name in re.findall(r"`(\w+)`", line.split("|")[1])]


def test_its_rows_and_facts_are_those_of_the_code(broker: BrokerThread) -> None:
    """Every field of a row and of a report, and no other; JSON has the same."""
    assert set(first_cells("field")) == {field.name for field in fields(AuditRow)}
    facts = {field.name for field in fields(Report)} - {"topic", "bucket_ms", "tags", "rows"}
    assert set(first_cells("fact")) == facts
    url = f"{broker.http_url}/admin/v2/persistent/public/default/orders/audit"
    with urllib.request.urlopen(url, timeout=30) as answer:
        found = json.load(answer)
    assert set(found) == {*facts, "topic", "bucket_ms", "tags", "rows"}
    assert set(found["rows"][0]) == set(first_cells("field"))


def test_its_settings_have_these_defaults() -> None:
    """Each row of the settings' table."""
    shown = runtime_settings(BrokerConfig())
    rows = dict(re.findall(r"^\| `(pulsemark\w+)` \| (\w+) \|", TEXT, re.MULTILINE))
    assert len(rows) == 4
    assert rows == {name: shown[name] for name in rows}


def test_its_metrics_are_served(broker: BrokerThread) -> None:
    """Every metric that the page names, and no other of the audit."""
    with urllib.request.urlopen(f"{broker.http_url}/metrics", timeout=30) as answer:
        page = answer.read().decode()
    served = set(re.findall(r"^# TYPE (pulsemark_audit\w+) ", page, re.MULTILINE))
    section = TEXT[TEXT.index("## Metrics") :]
    assert set(re.findall(r"`(pulsemark_audit_\w+)`", section)) == served

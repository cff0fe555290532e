"""The files of deploy/: dashboard and alerts use metrics that exist; unit and image are sound."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from pulsemark.testing import RawClient, running_broker

DEPLOY = Path(__file__).resolve().parent.parent / "deploy"
TOPIC = "persistent://public/default/orders"
#: What Prometheus adds to each series of a target.
OF_PROMETHEUS = {"job", "instance"}
WAIT_S = 60


@pytest.fixture(scope="module")
def exposed() -> dict[str, set[str]]:
    """The labels of each metric of a broker with a topic, a subscription, Kafka and an audit."""
    with running_broker(audit_enabled=True, kafka_port=0) as broker:
        with RawClient.from_url(broker.service_url) as client:
            client.subscribe(TOPIC, "billing")
            client.create_producer(TOPIC, producer_name="shop").send(b"an order")
            broker.wait_for_messages("orders", 1)
        for _ in range(WAIT_S * 10):
            with urllib.request.urlopen(f"{broker.http_url}/metrics", timeout=30) as answer:
                page = answer.read().decode()
            if "pulsemark_audit_missing{" in page:
                break
            time.sleep(0.1)
        else:
            pytest.fail("the audit counted nothing")
    found: dict[str, set[str]] = {}
    for name, labels in re.findall(r"^(\w+)\{(.*)\} \S+$", page, re.MULTILINE):
        found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    return found


def used_in(expression: str) -> list[tuple[str, set[str]]]:
    """Each metric of an expression, with the labels by which it is chosen."""
    bare = re.sub(r'"[^"]*"', '""', expression)
    found = re.findall(r"\b((?:pulsar|pulsemark|process)_\w+)(?:\{([^}]*)\})?", bare)
    return [(name, set(re.findall(r"(\w+)\s*[=!]", labels))) for name, labels in found]


def wrong_in(expression: str, shown: str, exposed: dict[str, set[str]]) -> list[str]:
    """Metrics and labels that no broker has: of an expression, and of the text shown with it."""
    wrong = []
    metrics = used_in(expression)
    for name, labels in metrics:
        there = exposed.get(name)
        if there is None:
            wrong.append(f"no metric {name}")
        else:
            wrong += [f"{name} has no label {one}" for one in labels - there - OF_PROMETHEUS]
    named = set(re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", shown))
    named |= set(re.findall(r"by \((\w+)\)", expression))
    for name, _ in metrics:
        there = exposed.get(name, set()) | OF_PROMETHEUS
        wrong += [f"{name} has no label {one} to show" for one in named - there]
    return wrong


def test_what_is_wrong_is_noticed() -> None:
    """A metric, a chosen label and a shown label that do not exist are each reported."""
    exposed = {"pulsar_rate_in": {"topic"}}
    assert wrong_in('sum(rate(pulsar_rate_in{topic=~"a"}[5m]))', "{{topic}}", exposed) == []
    assert wrong_in("pulsar_rate_up", "", exposed) == ["no metric pulsar_rate_up"]
    assert wrong_in('pulsar_rate_in{tenant="a"}', "", exposed)
    assert wrong_in("pulsar_rate_in", "{{ $labels.tenant }}", exposed)
    assert wrong_in("sum by (tenant) (pulsar_rate_in)", "", exposed)


def test_the_dashboard_uses_metrics_that_exist(exposed: dict[str, set[str]]) -> None:
    """Every query of every panel and variable names metrics and labels of a real broker."""
    dashboard = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    queries: list[dict[str, Any]] = [
        target for panel in dashboard["panels"] for target in panel.get("targets", [])
    ]
    assert len(queries) >= 20
    for query in queries:
        assert used_in(query["expr"]), query
        assert wrong_in(query["expr"], query["legendFormat"], exposed) == []
    for variable in dashboard["templating"]["list"][1:]:
        asked = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"])
        assert asked
        assert wrong_in(asked[1], f"{{{{{asked[2]}}}}}", exposed) == []


def test_panels_have_places_and_ids_of_their_own() -> None:
    """No panel covers another one."""
    panels = json.loads((DEPLOY / "grafana-dashboard.json").read_text())["panels"]
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len({panel["id"] for panel in panels}) == len(panels)


def test_the_alerts_use_metrics_that_exist(exposed: dict[str, set[str]]) -> None:
    """Every rule's expression and summary names metrics and labels of a real broker."""
    text = (DEPLOY / "prometheus-alerts.yml").read_text()
    rules = text.split("- alert: ")[1:]
    assert len(rules) >= 5
    for rule in rules:
        expression = re.search(r"expr: (?:>-\n\s+)?(.+)", rule)
        summary = re.search(r'summary: "(.+)"', rule)
        assert expression, rule
        assert summary, rule
        assert wrong_in(expression[1], summary[1], exposed) == []


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """The unit has no setting that systemd does not know, and is hardened."""
    text = (DEPLOY / "pulsemark.service").read_text()
    assert "\nDynamicUser=yes\n" in text
    unit = tmp_path / "pulsemark.service"
    # The program need not be installed where this test runs.
    unit.write_text(re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", text))
    command = ["systemd-analyze", "verify", str(unit)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert "pulsemark.service" not in checked.stderr, checked.stderr


def test_the_commands_of_unit_and_image_are_taken(capsys: pytest.CaptureFixture[str]) -> None:
    """Both start `pulsemark standalone` with options that it has."""
    unit = re.search(
        r"^ExecStart=\S+ (.+)$", (DEPLOY / "pulsemark.service").read_text(), re.MULTILINE
    )
    image = re.search(
        r'^ENTRYPOINT \["\S+", (.+)\]$', (DEPLOY / "Dockerfile").read_text(), re.MULTILINE
    )
    assert unit
    assert image
    from pulsemark import cli

    for arguments in (unit[1].split(), re.findall(r'"([^"]+)"', image[1])):
        assert cli.main([*arguments, "--no-such-option"]) == cli.EXIT_BAD_INPUT
        assert "there is no option --no-such-option" in capsys.readouterr().err


def test_the_image_is_not_run_by_root() -> None:
    """The last user of the Dockerfile is a number above 0, and there is a health check."""
    text = (DEPLOY / "Dockerfile").read_text()
    users = re.findall(r"^USER (\S+)$", text, re.MULTILINE)
    assert users
    assert int(users[-1]) > 0
    assert re.search(r"^HEALTHCHECK .*CMD \[", text, re.MULTILINE)


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="hadolint is not here")
def test_hadolint_has_nothing_to_say() -> None:
    """The Dockerfile is linted where hadolint is installed."""
    linted = subprocess.run(
        ["hadolint", str(DEPLOY / "Dockerfile")],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert linted.returncode == 0, linted.stdout

"""The files of deploy/: dashboard and alerts use metrics that exist; unit and image are sound."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.metadata import MetadataRequest

from pulsemark import __version__
from pulsemark.testing import RawClient, RawKafka, running_broker

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
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
        r'^    exec "\$pulsemark" (standalone .+) "\$@"$',
        (DEPLOY / "entrypoint").read_text(),
        re.MULTILINE,
    )
    assert unit
    assert image
    from pulsemark import cli

    for arguments in (unit[1].split(), image[1].split()):
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


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ("vendor.compose-spec", "deploy/compose.yml"),
        ("vendor.github-actions", "action.yml"),
        ("vendor.github-workflows", ".github/workflows/release.yml"),
    ],
)
def test_the_schemas_of_others_take_our_files(schema: str, path: str) -> None:
    """Compose file, action and workflow have what their readers know, and nothing else."""
    pytest.importorskip("check_jsonschema", reason="check-jsonschema comes with the extra `test`")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, path]
    checked = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_kubernetes_takes_the_statefulset() -> None:
    """Service and StatefulSet have no property that Kubernetes does not know."""
    validator = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate is not installed (108 MB)"
    )
    yaml = pytest.importorskip("yaml")
    for each in yaml.safe_load_all((DEPLOY / "statefulset.yml").read_text()):
        validator.validate(each, "1.37", strict=True)


def test_the_workflow_runs_scripts_that_are_here() -> None:
    """Each step that is no action of others is a script or a make target of this repository."""
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    steps = re.findall(r"- run: (.+)", text)
    assert len(steps) == 5
    for step in steps:
        program, *rest = step.split()
        assert (program, *rest) == ("make", "docs") or os.access(ROOT / program, os.X_OK), step


def released(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run .ci/release."""
    return subprocess.run(
        [str(ROOT / ".ci" / "release"), *arguments], capture_output=True, text=True, check=False
    )


def test_a_release_has_the_version_of_its_tag() -> None:
    """Package, changelog and tag name one version; another tag is refused."""
    assert released("check", f"v{__version__}").returncode == 0
    wrong = released("check", "v0.9.9")
    assert wrong.returncode == 1
    assert "v0.9.9" in wrong.stderr


@pytest.fixture
def program(tmp_path: Path) -> dict[str, str]:
    """The environment with the program of this checkout, as an image has it."""
    started = tmp_path / "installed" / "pulsemark"
    started.parent.mkdir()
    path = os.pathsep.join(filter(None, sys.path))
    started.write_text(f'#!/bin/sh\nPYTHONPATH={path} exec {sys.executable} -m pulsemark "$@"\n')
    started.chmod(0o755)
    return {**os.environ, "PULSEMARK": str(started)}


@contextmanager
def called_as(name: Path, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """The entry point under another name, as a module of testcontainers calls it in the image."""
    name.parent.mkdir(parents=True, exist_ok=True)
    name.symlink_to(DEPLOY / "entrypoint")
    process = subprocess.Popen(
        [str(name), *arguments], env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert process.stdout is not None
        process.stdout.close()


def test_a_suite_for_pulsars_image_starts_this_one(tmp_path: Path, program: dict[str, str]) -> None:
    """As the module PulsarContainer: settings by variables, the command, and what it waits for."""
    pulsar = tmp_path / "pulsar"
    (pulsar / "conf").mkdir(parents=True)
    (pulsar / "conf" / "standalone.conf").touch()
    settings = {"clusterName": "mine", "brokerServicePort": "0", "webServicePort": "0"}
    environment = program | {f"PULSAR_PREFIX_{name}": value for name, value in settings.items()}
    apply = pulsar / "bin" / "apply-config-from-env.py"
    apply.parent.mkdir()
    apply.symlink_to(DEPLOY / "entrypoint")
    subprocess.run([apply, pulsar / "conf" / "standalone.conf"], env=environment, check=True)
    options = ("standalone", "--no-functions-worker", "-nss")
    with called_as(pulsar / "bin" / "pulsar", *options, **environment) as process:
        assert process.stdout is not None
        ready = process.stdout.readline()
        service, http = re.findall(r"(pulsar://\S+?),? (http://\S+?)(?:,|\s)", ready)[0]
        port, http_port = service.rpartition(":")[2], http.rpartition(":")[2]
        with urllib.request.urlopen(f"http://127.0.0.1:{http_port}/admin/v2/clusters") as answer:
            assert answer.read() == b'["mine"]'
        # Clients of a mapped port are not sent to another address: lookups go through it.
        with RawClient.from_url(f"pulsar://127.0.0.1:{port}") as client:
            client.create_producer(TOPIC).send(b"an order")


@pytest.mark.parametrize(
    ("called", "waited_for"),
    [
        ("kafka/docker/run", r".*Transitioning from RECOVERY to RUNNING.*"),
        ("confluent/docker/launch", r".*\[KafkaServer id=\d+\] started.*"),
    ],
)
def test_a_suite_for_kafkas_image_starts_this_one(
    tmp_path: Path, program: dict[str, str], called: str, waited_for: str
) -> None:
    """As the modules KafkaContainer: clients are told the mapped port, once the log says it."""
    with socket.socket() as mapped:
        mapped.bind(("127.0.0.1", 0))
        told = mapped.getsockname()[1]
        environment = program | {
            "KAFKA_LISTENERS": "PLAINTEXT://:0,BROKER://:9093,CONTROLLER://:9094",
            "KAFKA_ADVERTISED_LISTENERS": f"PLAINTEXT://localhost:{told},BROKER://x:9093",
            "PULSEMARK_PORT": "0",
            "PULSEMARK_HTTP_PORT": "0",
        }
        with called_as(tmp_path / called, **environment) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(4)]
            assert any(re.fullmatch(waited_for, line.strip()) for line in lines)
            own = int(re.findall(r"kafka \S+:(\d+)", lines[0])[0])
            with RawKafka("127.0.0.1", own) as client:
                brokers = client.call(MetadataRequest, 1, topics=[]).brokers
                assert [(each.host, each.port) for each in brokers] == [("localhost", told)]


def test_the_action_starts_a_broker_and_names_its_addresses(
    tmp_path: Path, program: dict[str, str]
) -> None:
    """What action.yml runs leaves a broker that answers, and its addresses as outputs."""
    output = tmp_path / "output"
    environment = program | {
        "RUNNER_TEMP": str(tmp_path), "GITHUB_OUTPUT": str(output),
        "OPTIONS": "--test-controls", "KAFKA": "true",
    }  # fmt: skip
    subprocess.run([ROOT / ".ci" / "start-broker"], env=environment, check=True, timeout=60)
    found = dict(line.split("=", 1) for line in output.read_text().splitlines())
    try:
        with urllib.request.urlopen(f"{found['http_url']}/pulsemark/test/clock") as answer:
            assert answer.status == 200
        assert found["service_url"].startswith("pulsar://")
        assert ":" in found["kafka_url"]
    finally:
        os.kill(int(found["pid"]), signal.SIGTERM)


def test_the_action_says_why_no_broker_started(tmp_path: Path, program: dict[str, str]) -> None:
    """A wrong option ends the step with the broker's own words."""
    environment = program | {"RUNNER_TEMP": str(tmp_path), "OPTIONS": "--no-such-option"}
    failed = subprocess.run(
        [ROOT / ".ci" / "start-broker"],
        env=environment, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert failed.returncode == 1
    assert "there is no option --no-such-option" in failed.stderr

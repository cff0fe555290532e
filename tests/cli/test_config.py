"""`pulsemark config`, and settings of `pulsemark standalone` from all sources; SIGHUP."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest

from pulsemark.client.admin import AdminClient


def test_check(pulsemark, tmp_path):
    """Remarks with their lines and a summary; 1 if there are errors, 0 if there are warnings."""
    path = tmp_path / "p.toml"
    path.write_text('portt = 1\nhost = "0.0.0.0"\n')
    ran = pulsemark("config", "check", path)
    assert ran.status == 1
    first, second, summary = ran.out.splitlines()
    assert first == f"{path}:1: error: portt=1: there is no such setting; did you mean port?"
    assert second.startswith(f"{path}:2: warning: host=0.0.0.0: ")
    assert summary == f"{path}: 1 error, 1 warning; used: 1 setting"
    path.write_text('host = "0.0.0.0"\n')
    ran = pulsemark("config", "check", path, "--json")
    assert ran.status == 0
    assert [row["level"] for row in ran.json()] == ["warning", "summary"]
    assert "p2.toml" in pulsemark("config", "check", tmp_path / "p2.toml").error()


def test_show(pulsemark, tmp_path, monkeypatch):
    """Each setting with its source; secrets are hidden; a misspelt variable is warned of."""
    path = tmp_path / "p.toml"
    path.write_text('port = 7000\ntoken_secret_key = "data:;base64,c2VjcmV0"\n')
    monkeypatch.setenv("PULSEMARK_HTTP_PORT", "8099")
    monkeypatch.setenv("PULSEMARK_PROT", "1")
    monkeypatch.setenv("PULSEMARK_CONFIG", str(path))
    ran = pulsemark("config", "show", "--json")
    rows = {row["setting"]: row for row in ran.json()}
    assert rows["http_port"]["source"] == "PULSEMARK_HTTP_PORT in the environment"
    assert (rows["port"]["value"], rows["token_secret_key"]["value"]) == (7000, "***")
    assert "did you mean PULSEMARK_PORT?" in ran.err
    assert "7000" in pulsemark("config", "show").out
    assert len(pulsemark("config", "show", "--all", "--json").json()) > 150
    monkeypatch.setenv("PULSEMARK_HTTP_PORT", "x")
    assert "PULSEMARK_HTTP_PORT=x" in pulsemark("config", "show").error()
    assert "PULSEMARK_HTTP_PORT=x" in pulsemark("standalone", "--port", "0").error()


@pytest.fixture
def broker(tmp_path):
    """A broker process with a TOML file; its stderr is a file."""
    path = tmp_path / "p.toml"
    path.write_text('port = 0\nhttp_port = 0\nstorage = "memory"\nlog_format = "json"\n')
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "pulsemark", "standalone", "--json", "--config", str(path)],
            stdout=subprocess.PIPE, stderr=log,
        )  # fmt: skip
        assert process.stdout is not None
        try:
            ready = json.loads(process.stdout.readline())
            yield process, ready, path, tmp_path / "log"
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
            process.stdout.close()


def logged(log, text: str) -> dict[str, str]:
    """The first object of the log with this text, once it is there."""
    limit_s = time.monotonic() + 30
    while time.monotonic() < limit_s:
        for line in log.read_text().splitlines():
            if text in line and line.endswith("}"):
                return dict(json.loads(line))
        time.sleep(0.02)
    raise AssertionError(f"{text!r} was not logged: {log.read_text()}")


def test_reload(broker):
    """SIGHUP puts rates in force, names what needs a restart, and survives a wrong file."""
    process, ready, path, log = broker
    admin = AdminClient(ready["http_url"])
    admin.create_topic("persistent://public/default/t")
    text = path.read_text()
    path.write_text(text + "dispatch_throttling_rate_per_topic_in_msg = 77\nmax_topics = 5\n")
    process.send_signal(signal.SIGHUP)
    said = logged(log, "need a restart")
    assert said["message"].endswith(": max_topics")
    assert (said["level"], said["logger"]) == ("warning", "pulsemark.cli.standalone")
    assert "dispatch_throttling_rate" in logged(log, "was read again")["message"]
    rate = admin.request("GET", "persistent/public/default/t/dispatchRate", applied="true")
    assert rate["dispatchThrottlingRateInMsg"] == 77
    path.write_text("max_topics = no\n")
    process.send_signal(signal.SIGHUP)
    assert "no setting was changed" in logged(log, "the configuration has an error")["message"]
    rate = admin.request("GET", "persistent/public/default/t/dispatchRate", applied="true")
    assert rate["dispatchThrottlingRateInMsg"] == 77

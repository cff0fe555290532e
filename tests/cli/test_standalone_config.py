"""`pulsemark standalone --config` and `--durability`: files of Pulsar's, our own, wrong ones."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any, Self

import pytest

from pulsemark.testing import RawClient

Command = Any
TOPIC = "persistent://public/default/orders"
FREE = "brokerServicePort=0\nwebServicePort=0\n"


class Standalone:
    """`pulsemark standalone ARGUMENTS` for the length of a with block."""

    def __init__(self, *arguments: str | Path, cwd: Path) -> None:
        command = [sys.executable, "-m", "pulsemark", "standalone", "--json", *map(str, arguments)]
        self._process = subprocess.Popen(
            command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.said: str = ""

    def __enter__(self) -> Self:
        """Wait until it is ready."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self._process.communicate()
        self.ready = json.loads(line)
        return self

    def __exit__(self, *what: object) -> None:
        """Stop it in order, and keep what it said on stderr."""
        self._process.send_signal(signal.SIGTERM)
        _, self.said = self._process.communicate(timeout=30)
        assert self._process.returncode == 0

    def get(self, path: str) -> Any:
        """A JSON answer of the admin interface."""
        with urllib.request.urlopen(self.ready["http_url"] + path, timeout=10) as answer:
            return json.load(answer)


def test_a_file_of_pulsars_starts_a_broker(pulsemark: Command, tmp_path: Path) -> None:
    """Its settings count, and the rest is listed once."""
    config = tmp_path / "standalone.conf"
    config.write_text(
        FREE + "# --- General --- #\nmetadataStoreUrl=\nbindAddress=127.0.0.1\nclusterName=café\n"
        "numIOThreads=8\nauthenticationEnabled=false\nbrokerEntryMetadataInterceptors=\n"
        "maxMessageSize=2000\npulsemarkDataDir=kept here\npulsemarkSyncIntervalMs=40\n",
        encoding="utf-8",
    )
    broker = Standalone("--config", config, cwd=tmp_path)
    with broker:
        assert broker.ready["data_dir"] == str(tmp_path / "kept here")
        assert broker.get("/admin/v2/clusters") == ["café"]
        shown = broker.get("/admin/v2/brokers/configuration/runtime")
        assert (shown["maxMessageSize"], shown["pulsemarkSyncIntervalMs"]) == ("2000", "40")
        with RawClient.from_url(broker.ready["service_url"]) as client:
            client.create_producer(TOPIC).send(b"x")
        stats = broker.get(f"/admin/v2/{TOPIC.replace('://', '/')}/stats?ownFigures=true")
        assert stats["durability"] == {"mode": "interval", "syncIntervalMs": 40}
    (ignored,) = broker.said.splitlines()
    assert ignored == (f"pulsemark: {config}: settings that this broker ignores: numIOThreads")
    (row,) = pulsemark("dump", tmp_path / "kept here", "--json").json()
    assert row["prefix_size_bytes"] == 0


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    """Also where it says no; what neither says is the default."""
    config = tmp_path / "broker.conf"
    config.write_text(
        "\ufeff"
        + FREE.replace("brokerServicePort=0", "brokerServicePort=1")
        + "clusterName=one\nexposingBrokerEntryMetadataToClientEnabled=true\n"
        "acknowledgmentAtBatchIndexLevelEnabled=true\npulsemarkSyncIntervalMs=40\n"
        "brokerEntryMetadataInterceptors=\npulsemarkDataDir=from file\n",
        encoding="utf-8",
    )
    options = [
        *("--port", "0", "--cluster", "two", "--no-expose-broker-entry-metadata"),
        *("--stampers", "index,property-tags:a,b", "--durability", "sync"),
        *("--data-dir", "from line"),
    ]
    broker = Standalone("--config", config, *options, cwd=tmp_path)
    with broker:
        assert broker.ready["data_dir"] == str(tmp_path / "from line")
        shown = broker.get("/admin/v2/brokers/configuration/runtime")
    assert broker.said == ""
    expected = {
        "clusterName": "two",
        "exposingBrokerEntryMetadataToClientEnabled": "false",
        "acknowledgmentAtBatchIndexLevelEnabled": "true",
        "pulsemarkStampers": "index,property-tags:a,b",
        "pulsemarkSyncIntervalMs": "0",
        "maxMessageSize": str(5 * 1024 * 1024),
    }
    assert {key: shown[key] for key in expected} == expected


def test_durability_by_interval(tmp_path: Path) -> None:
    """Acknowledged before it is synced, shown by stats and metrics, there after an orderly end."""
    arguments = ("--port", "0", "--http-port", "0", "--durability", "interval=60000")
    for expected in (0, 1):
        with Standalone(*arguments, cwd=tmp_path) as broker:
            with RawClient.from_url(broker.ready["service_url"]) as client:
                assert client.create_producer(TOPIC).send(b"x")
            path = f"/admin/v2/{TOPIC.replace('://', '/')}"
            assert (
                broker.get(f"{path}/stats?ownFigures=true")["durability"]["syncIntervalMs"]
                == 60_000
            )
            assert broker.get(f"{path}/internalStats?ownFigures=true")["nextIndex"] == expected + 1


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("brokerServicePort=many", "brokerServicePort=many"),
        ("maxMessageSize=12", "maxMessageSize=12"),
        ("pulsemarkFrobnicate=1", "pulsemarkFrobnicate=1"),
        ("brokerEntryMetadataInterceptors=a.B", "brokerEntryMetadataInterceptors=a.B"),
        ("pulsemarkStampers=sundial", "sundial"),
        ("tlsEnabledWithKeyStore=true", "tlsEnabledWithKeyStore=true"),
        ("authenticationProviders=com.example.Own", "com.example.Own"),
        ("brokerServicePortTls=0", "tls_certificate_file"),
        (
            "authenticationEnabled=true\nauthenticationProviders=token",
            "token_secret_key",
        ),
        ("a=\\u12", "line 1"),
        (b"a=\xe9\xff", "UTF-8"),
    ],
)
def test_wrong_files(pulsemark: Command, tmp_path: Path, text: Any, named: str) -> None:
    """One line with key and value, exit code 2, nothing started."""
    config = tmp_path / "broker.conf"
    config.write_bytes(text if isinstance(text, bytes) else text.encode())
    options = ("--data-dir", tmp_path / "data", "--port", "0", "--http-port", "0")
    assert named in pulsemark("standalone", "--config", config, *options).error()
    assert not (tmp_path / "data").exists()


def test_a_file_that_is_not_there(pulsemark: Command, tmp_path: Path) -> None:
    """It is named."""
    assert "nowhere.conf" in pulsemark("standalone", "--config", tmp_path / "nowhere.conf").error()
    assert "directory" in pulsemark("standalone", "--config", tmp_path).error()


@pytest.mark.parametrize(
    "mode", ["", "async", "interval", "interval=", "interval=0", "interval=-1", "sync=5", "5"]
)
def test_wrong_durability(pulsemark: Command, mode: str) -> None:
    """Neither sync nor interval=N with N of at least 1."""
    assert "--durability" in pulsemark("standalone", f"--durability={mode}").error()


def test_a_too_long_interval(pulsemark: Command, tmp_path: Path) -> None:
    """More than a minute of exposed entries is refused."""
    ran = pulsemark("standalone", "--data-dir", tmp_path / "d", "--durability", "interval=60001")
    assert "60000" in ran.error()

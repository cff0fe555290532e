"""`pulsemark standalone` and `pulsemark finder serve` as processes: ready, served, stopped."""

from __future__ import annotations

import json
import logging
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsemark.cli.standalone import JsonFormatter
from pulsemark.finder import SeekClient
from pulsemark.testing import RawClient

Folder = Any
Command = Any
Start = Callable[..., subprocess.Popen[str]]
FREE_PORTS = ("--port", "0", "--http-port", "0")
TOPIC = "persistent://public/default/orders"


@pytest.fixture
def start() -> Iterator[Start]:
    """Start `pulsemark ...` in the background; whatever still runs at the end is killed."""
    processes = []

    def launch(*arguments: str | Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "pulsemark", *map(str, arguments)]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield launch
    for process in processes:
        process.kill()
        process.communicate()


def ready(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The line that says where it serves; the test fails with what it said instead."""
    assert process.stdout is not None
    assert process.stderr is not None
    line = process.stdout.readline()
    assert line, process.stderr.read()
    facts: dict[str, Any] = json.loads(line)
    return facts


def stop(process: subprocess.Popen[str], number: signal.Signals = signal.SIGTERM) -> None:
    """Stop it as an init system does: exit code 0, and not a word more."""
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "", "")


def test_standalone_in_memory(start: Start, tmp_path: Path) -> None:
    """With `--storage memory` it serves, makes no folder, and says that it has none."""
    process = start("standalone", "--json", "--storage", "memory", *FREE_PORTS)
    places = ready(process)
    assert places["data_dir"] is None
    with RawClient.from_url(places["service_url"]) as client:
        client.create_producer(TOPIC).send(b"one")
    stop(process)
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_served_is_null(start: Start, tmp_path: Path) -> None:
    """Also the addresses that most brokers have."""
    config = tmp_path / "broker.conf"
    config.write_text("brokerServicePort=0\nwebServicePort=\n")
    process = start("standalone", "--json", "--storage", "memory", "--config", config)
    assert ready(process)["http_url"] is None
    stop(process)


def test_an_open_broker_is_warned_of(start: Start) -> None:
    """An address that other machines reach, without authentication, gives a warning."""
    arguments = ("standalone", "--json", "--storage", "memory", *FREE_PORTS)
    process = start(*arguments, "--host", "0.0.0.0")
    ready(process)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=30)
    assert "all who can reach 0.0.0.0 may use this broker" in errors
    assert process.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_standalone_serves_and_stops(start: Start, tmp_path: Path, number: Any) -> None:
    """The JSON line tells where all three doors are, they are open, and a signal ends it well."""
    data_dir = tmp_path / "data"
    process = start("standalone", "--json", "--data-dir", data_dir, *FREE_PORTS, "--grpc-port", "0")
    places = ready(process)
    assert places.keys() == {
        "service_url", "http_url", "grpc_url", "kafka_url", "schema_registry_url",
        "data_dir", "pid",
        "service_url_tls", "http_url_tls", "grpc_url_tls", "kafka_url_tls",
    }  # fmt: skip
    assert places["pid"] == process.pid
    assert places["data_dir"] == str(data_dir)
    with urllib.request.urlopen(f"{places['http_url']}/admin/v2/clusters") as reply:
        assert json.load(reply) == ["standalone"]
    with RawClient.from_url(places["service_url"]) as client:
        client.create_producer(TOPIC).send(b"one")
    with SeekClient(places["grpc_url"]) as finder:
        assert finder.by_time(TOPIC, 0).index == 0
    stop(process, number)


def test_it_ends_with_whoever_started_it(start: Start) -> None:
    """With `--exit-on-stdin-close` the end of standard input stops it in order.

    However the parent ends, the system closes its end of the pipe.
    """
    process = start(
        "standalone", "--json", "--storage", "memory", *FREE_PORTS, "--exit-on-stdin-close"
    )
    ready(process)
    assert process.stdin is not None
    process.stdin.write("more input does not end it")
    process.stdin.flush()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)
    process.stdin.close()
    process.stdin = None
    assert process.wait(30) == 0


def test_data_outlives_the_process(start: Start, pulsemark: Command, tmp_path: Path) -> None:
    """What was acknowledged before a stop, and before a kill, is there after the next start."""
    for expected in (1, 2, 3):
        process = start("standalone", "--json", "--data-dir", tmp_path / "data", *FREE_PORTS)
        with RawClient.from_url(ready(process)["service_url"]) as client:
            client.create_producer(TOPIC).send(b"one more")
        if expected == 2:
            process.kill()
            process.wait()
        else:
            stop(process)
        rows = pulsemark("dump", "orders", "--data-dir", tmp_path / "data", "--json").json()
        assert [row["index"] for row in rows] == list(range(expected))


def test_ready_line_for_people(start: Start, tmp_path: Path) -> None:
    """Without --json the one line names the URLs and the folder."""
    process = start("standalone", "--data-dir", tmp_path / "data", *FREE_PORTS)
    assert process.stdout is not None
    line = process.stdout.readline()
    for part in ("ready", "pulsar://127.0.0.1:", "http://127.0.0.1:", str(tmp_path / "data")):
        assert part in line
    assert "grpc" not in line
    stop(process)


def test_stampers_can_be_chosen(start: Start, pulsemark: Command, tmp_path: Path) -> None:
    """An empty list of stampers stores entries without prefix."""
    process = start("standalone", "--json", "--data-dir", tmp_path, *FREE_PORTS, "--stampers", "")
    with RawClient.from_url(ready(process)["service_url"]) as client:
        client.create_producer(TOPIC).send(b"bare")
    stop(process)
    (row,) = pulsemark("dump", tmp_path, "--json").json()
    assert row["prefix_size_bytes"] == 0


def test_locked_folder(start: Start, pulsemark: Command, tmp_path: Path) -> None:
    """A second broker on the same folder is refused, the first goes on."""
    first = start("standalone", "--json", "--data-dir", tmp_path, *FREE_PORTS)
    ready(first)
    second = pulsemark.process("standalone", "--data-dir", tmp_path, *FREE_PORTS)
    assert f"{first.pid}" in second.error()
    stop(first)


@pytest.mark.parametrize("option", ["--port", "--http-port", "--grpc-port"])
def test_occupied_port(pulsemark: Command, tmp_path: Path, option: str) -> None:
    """A port that is in use is named, for every protocol."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ports = {"--port": "0", "--http-port": "0", "--grpc-port": "0", option: port}
        arguments = [part for pair in ports.items() for part in pair]
        ran = pulsemark.process("standalone", "--data-dir", tmp_path / "data", *arguments)
    assert port in ran.error()


def test_bad_input(pulsemark: Command, tmp_path: Path, folder: Folder) -> None:
    """Folders that cannot be one, unknown stampers and bad names are one line each."""
    (tmp_path / "file").write_text("")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "holiday.jpg").write_bytes(b"\xff\xd8")
    marker = folder.path / "PULSEMARK"
    marker.write_text(marker.read_text().replace('"version": 1', '"version": 2'))
    for arguments, named in [
        (["--data-dir", tmp_path / "file"], "file"),
        (["--data-dir", tmp_path / "file" / "below"], "file"),
        (["--data-dir", tmp_path / "foreign"], "holiday.jpg"),
        (["--data-dir", folder.path], "not supported"),
        (["--data-dir", tmp_path / "new", "--stampers", "sundial"], "sundial"),
        (["--data-dir", tmp_path / "new", "--cluster", "a b"], "a b"),
        (["--data-dir", tmp_path / "new", "--host", "nobody.invalid"], "nobody.invalid"),
        (["--data-dir", tmp_path / "new", "--max-message-size-bytes", "10"], "1024"),
    ]:
        assert named in pulsemark("standalone", *FREE_PORTS, *arguments).error()
    assert (tmp_path / "foreign" / "holiday.jpg").exists()


def test_finder_serves_a_folder(start: Start, folder: Folder) -> None:
    """The standalone finder answers over a folder at rest, by short names too."""
    process = start("finder", "serve", "--json", "--data-dir", folder.path, "--port", "0")
    places = ready(process)
    assert places.keys() == {"grpc_url", "data_dir", "pid"}
    with SeekClient(places["grpc_url"]) as finder:
        assert finder.is_serving()
        found = finder.by_time("orders", folder.start_ms + 1)
        assert found.first_index == folder.first_indexes[1]
    stop(process)


def test_finder_beside_a_broker(start: Start, tmp_path: Path) -> None:
    """The standalone finder sees what a running broker makes durable, as soon as it is."""
    broker = start("standalone", "--json", "--data-dir", tmp_path, *FREE_PORTS)
    service_url = ready(broker)["service_url"]
    process = start("finder", "serve", "--json", "--data-dir", tmp_path, "--port", "0")
    with (
        SeekClient(ready(process)["grpc_url"]) as finder,
        RawClient.from_url(service_url) as client,
    ):
        producer = client.create_producer(TOPIC)
        for index in range(5):
            producer.send(b"x")
            assert finder.by_index(TOPIC, index).index == index
    stop(process)
    stop(broker)


def test_finder_wants_its_token(
    start: Start, pulsemark: Command, tmp_path: Path, folder: Folder
) -> None:
    """With a token file only callers with the token are answered."""
    token_file = tmp_path / "token"
    token_file.write_text("open-sesame\n")
    process = start(
        "finder", "serve", "--json", "--data-dir", folder.path, "--port", "0",
        "--token-file", token_file,
    )  # fmt: skip
    target = ready(process)["grpc_url"]
    asked = ("seek", "orders", "0", "--grpc", target)
    assert "UNAUTHENTICATED" in pulsemark(*asked).error()
    assert pulsemark(*asked, "--token-file", token_file).status == 0
    stop(process)


def test_finder_bad_input(pulsemark: Command, tmp_path: Path, folder: Folder) -> None:
    """What the finder cannot use is one line that names it."""
    (tmp_path / "empty").write_text("")
    (tmp_path / "spaced").write_text("open sesame")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for arguments, named in [
            (["--data-dir", tmp_path / "nowhere"], "nowhere"),
            (["--data-dir", folder.path, "--port", port], port),
            (["--data-dir", folder.path, "--tls-cert", tmp_path / "empty"], "--tls-key"),
            (["--data-dir", folder.path, "--tls-client-ca", tmp_path / "empty"], "--tls-cert"),
            (["--data-dir", folder.path, "--token-file", tmp_path / "empty"], "not hold a token"),
            (["--data-dir", folder.path, "--token-file", tmp_path / "spaced"], "without spaces"),
            (["--data-dir", folder.path, "--token-file", tmp_path / "none"], "none"),
            (
                ["--data-dir", folder.path, "--tls-cert", tmp_path / "empty",
                 "--tls-key", tmp_path / "empty"],
                "empty",
            ),
        ]:  # fmt: skip
            assert named in pulsemark("finder", "serve", "--port", "0", *arguments).error()


def test_a_record_of_a_json_log():
    """Time, level, logger and message; line feeds stay inside of the object."""
    record = logging.LogRecord("pulsemark.x", logging.WARNING, "", 0, "a %s\nb", ("é",), None)
    record.created, record.msecs = 1_700_000_000.25, 250.0
    line = JsonFormatter().format(record)
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "warning",
        "logger": "pulsemark.x",
        "message": "a é\nb",
    }


def test_a_traceback_in_a_json_log():
    """It is a field of the same object."""
    try:
        raise ValueError("wrong")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "", 0, "m", (), sys.exc_info())
    line = JsonFormatter().format(record)
    assert "\n" not in line
    assert json.loads(line)["exception"].endswith("ValueError: wrong")

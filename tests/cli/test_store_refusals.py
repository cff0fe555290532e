"""`pulsemark standalone` as one of several brokers where it cannot work: one line says why."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--store", "zk://127.0.0.1:1/ledgers"], "no server of 127.0.0.1:1 answered"),
        (
            ["--store", "zk://127.0.0.1:1/ledgers", "--data-dir", "/nowhere"],
            "--data-dir does not go with --store",
        ),
        (
            ["--store", "zk://127.0.0.1:1/ledgers", "--storage", "memory"],
            "--storage does not go with --store",
        ),
        (
            ["--store", "zk://127.0.0.1:1/ledgers", "--durability", "interval=50"],
            "--durability interval (pulsemarkSyncIntervalMs) does not go with --store",
        ),
        (
            ["--store", "zk://127.0.0.1:1/ledgers", "--session-timeout-ms", "100"],
            "--session-timeout-ms 100: must be from 1000 to 600000",
        ),
        (["--session-timeout-ms", "5000"], "--session-timeout-ms is for brokers with --store"),
        (
            ["--workers", "2", "--session-timeout-ms", "5000"],
            "--session-timeout-ms is for brokers with --store",
        ),
        (["--store", "127.0.0.1:1"], "--store: "),
        (["--store", ""], "--store: store address '': it must begin with zk://"),
        (["--store", "zk://127.0.0.1:1/ledgers", "--workers", "2"], "--workers does not go with"),
    ],
)
def test_a_store_that_cannot_be_used(options, reason):
    """An address without a server, a wrong address and settings that do not go with it end the
    start with exit code 2, one line and no traceback.
    """
    assert reason in refused(*options)


def test_a_broker_that_others_are_sent_to_and_cannot_reach():
    """It is warned about at the start: lookups name an address on which it does not listen."""
    store = ["--store", "zk://127.0.0.1:1/ledgers", "--durability", "sync", "--advertised-address"]
    reachable = (["localhost"], ["broker1.example.com", "--host", "0.0.0.0"])
    with ThreadPoolExecutor() as threads:  # each of them waits 10 s for the server
        lines = threads.map(
            lambda options: said(*store, *options), (["broker1.example.com"], *reachable)
        )
    (warned, _), *others = lines
    assert "clients are sent to broker1.example.com, but this broker listens on 127.0.0.1" in warned
    assert [len(each) for each in others] == [1, 1]


def refused(*options):
    """The last line that the command says."""
    return said(*options)[-1]


def said(*options):
    """The lines that the command says."""
    command = [sys.executable, "-m", "pulsemark", "standalone", "--port", "0", "--http-port", "0"]
    done = subprocess.run(
        [*command, *options], capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()


def test_ports_that_meet_those_of_the_next_worker(tmp_path):
    """Each worker has ports that are higher by 1 than those of the one before."""
    for name in ("kafka", "grpc"):
        ports = [f"--{name}-port", "9092", f"--{name}-tls-port", "9093"]
        said = refused("--workers", "2", "--data-dir", str(tmp_path / "data"), *ports)
        assert "ports [9092, 9093]: each of 2 workers needs its own" in said


def test_the_folder_of_one_worker(tmp_path):
    """A broker alone does not start on one worker's part of the data."""
    (tmp_path / "workers.json").write_text('{"workers": 2}')
    said = refused("--data-dir", str(tmp_path / "worker-0"))
    assert f"{tmp_path} has the topics of several workers" in said
    assert not (tmp_path / "worker-0").exists()

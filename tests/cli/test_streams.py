"""Streams that the caller closed, that are full, or that have few letters."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys

import pytest

from pulsemark.testing import running_broker

COMMAND = f"{sys.executable} -m pulsemark"


def shell(line: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run a line of shell; `pulsemark` is the command."""
    return subprocess.run(
        ["/bin/sh", "-c", line.replace("pulsemark ", f"{COMMAND} ", 1)],
        env={**os.environ, **environment}, capture_output=True, timeout=100, check=False,
    )  # fmt: skip


def test_closed_streams(folder):
    """The command does its work, and its exit code is what it would be."""
    for closed in (">&-", "2>&-", "<&-", "<&- >&- 2>&-"):
        ran = shell(f"pulsemark verify {folder.path} {closed}")
        assert (ran.returncode, ran.stderr) == (0, b""), closed
    folder.damage(3)
    assert shell(f"pulsemark verify {folder.path} >&- 2>&-").returncode == 1


def test_a_closed_stream_is_no_other_file(tmp_path):
    """Nothing else gets its number: what a C library writes there does not land in a file."""
    program = (
        "import os; from pulsemark.cli import main; main(['completion', 'bash']);"
        f"file = os.open({str(tmp_path / 'data')!r}, os.O_CREAT | os.O_RDWR);"
        "os.write(1, b'x'); os.write(2, b'x'); os._exit(file)"
    )
    ran = shell(f'{sys.executable} -c "{program}" >&- 2>&- <&-')
    assert ran.returncode >= 3
    assert (tmp_path / "data").read_bytes() == b""


def test_a_full_disk_under_the_output(folder):
    """One line that says so, also where the command works on a folder or only prints help."""
    for command in (f"verify {folder.path} --json", f"dump {folder.path}", "--version", "--help"):
        ran = shell(f"pulsemark {command} > /dev/full")
        assert ran.returncode == 2
        reason = b"the output cannot be written: No space left on device"
        assert ran.stderr == b"pulsemark: error: " + reason + b"\n"


def test_no_half_of_a_key_is_left(tmp_path, monkeypatch, pulsemark):
    """A key that could not be written whole leaves no file, which would be taken for a key."""

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    pytest.importorskip("jwt")
    monkeypatch.setattr(os, "fdopen", full)
    target = tmp_path / "key"
    error = pulsemark("token", "create-secret-key", "--output", target).error()
    assert error == f"{target}: No space left on device"
    assert not target.exists()


def test_errors_that_no_one_reads():
    """The exit code is that of the error, also where the reader of stderr has gone."""
    reading, writing = os.pipe()
    os.close(reading)
    ran = subprocess.run(
        [sys.executable, "-m", "pulsemark", "verify", "/nowhere"],
        stderr=writing, check=False, timeout=100,
    )  # fmt: skip
    os.close(writing)
    assert ran.returncode == 2


def test_arguments_are_utf_8():
    """Also where Python was told to take them as something else."""
    name = "persistent://public/default/注文"
    few = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    with running_broker(storage="memory") as broker:
        ran = shell(f"pulsemark topics create 注文 --admin-url {broker.http_url}", **few)
        assert ran.returncode == 0, ran.stderr
        assert broker.admin.topics() == [name]


def test_few_letters():
    """An output without the letters of a name gets escapes, and JSON stays JSON."""
    name = "persistent://public/default/zoë-注"
    with running_broker(storage="memory") as broker:
        broker.admin.create_topic(name)
        line = f"pulsemark topics list --admin-url {broker.http_url}"
        ran = shell(line, PYTHONIOENCODING="ascii")
        assert rb"zo\xeb-\u6ce8" in ran.stdout
        ran = shell(f"{line} --json", PYTHONIOENCODING="latin-1")
        assert json.loads(ran.stdout)["topic"] == name


@pytest.mark.parametrize("option", ["-k", "-p"])
def test_bytes_that_are_no_text(pulsemark, option):
    """A key and a property are text; the error names the value."""
    with running_broker(storage="memory") as broker:
        call = ("produce", "orders", "-m", "b\udcff", "--service-url", broker.service_url)
        assert pulsemark(*call).status == 0
        assert r"\udcff" in pulsemark(*call, option, "a=\udcff").error()
        assert len(broker.messages("orders")) == 1

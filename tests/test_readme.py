"""The README's programs run as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pulsemark.testing import RawClient, running_broker

README = (Path(__file__).resolve().parent.parent / "README.md").read_text(encoding="utf-8")
PART = README[README.index("### In your program") : README.index("### From the command line")]
PROGRAMS = re.findall(r"```python\n(.*?)```", PART, re.DOTALL)
EMBED, LEDGER, SEEK = PROGRAMS


def run(program, folder):
    """What a program prints; it must end well, and without warnings."""
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize(("program", "shown"), [(EMBED, "pulsar://"), (LEDGER, "1:0")])
def test_embedding_runs_when_copied(program, shown, tmp_path):
    """In an empty folder, without a line more."""
    assert shown in run(program, tmp_path)


def test_the_seek_over_grpc_runs_when_copied(tmp_path):
    """Beside a broker with a gRPC port; only the port is another one here."""
    with running_broker(grpc_port=0) as broker:
        with RawClient.from_url(broker.service_url) as client:
            client.create_producer("persistent://public/default/orders").send(b"paid")
        assert run(SEEK.replace("127.0.0.1:6680", broker.grpc_url), tmp_path) == "0 1:0 False\n"

"""`pulsemark standalone --store` where it cannot work: one line says why."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--store", "zk://127.0.0.1:1/ledgers"], "no server of 127.0.0.1:1 answered"),
        (["--store", "zk://127.0.0.1:1/ledgers", "--grpc-port", "0"], "gRPC does not go with"),
        (["--store", "127.0.0.1:1"], "--store: "),
    ],
)
def test_a_store_that_cannot_be_used(options, reason):
    """An address without a server, a wrong address and settings that do not go with it end the
    start with exit code 2, one line and no traceback.
    """
    command = [sys.executable, "-m", "pulsemark", "standalone", "--port", "0", "--http-port", "0"]
    done = subprocess.run(
        [*command, *options], capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 2, done.stderr
    assert reason in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr

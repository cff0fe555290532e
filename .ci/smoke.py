"""Smoke test of an installed pulsemark, run by the Python of an otherwise empty environment.

It imports every room of the package, starts the broker through the console script, publishes and
finds a message through the test kit's own client, and stops the broker as an init system would.
Standard library and pulsemark only: needing more than the core dependencies is a packaging error.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import signal
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

ROOMS = ("broker", "cli", "finder", "ledger", "metadata", "pipeline", "proto", "testing", "wire")
HEAVY = ("pyspark", "pyarrow", "matplotlib", "pulsar", "pytest", "grpc_tools")
CHECKOUT = Path(__file__).resolve().parent.parent


def check_import(kind: str) -> None:
    """The package comes from where `kind` says, with its types, and without the heavy extras."""
    import pulsemark

    home = Path(pulsemark.__file__).resolve().parent
    if (home == CHECKOUT / "src" / "pulsemark") != (kind == "editable"):
        raise SystemExit(f"smoke: {kind}: imported from {home}")
    if not (home / "py.typed").is_file():
        raise SystemExit("smoke: py.typed is missing")
    page = Path(sys.prefix, "share", "man", "man1", "pulsemark.1")
    if page.is_file() != (kind != "editable"):
        raise SystemExit(f"smoke: {kind}: {page}")
    for room in ROOMS:
        importlib.import_module(f"pulsemark.{room}")
    present = [name for name in HEAVY if importlib.util.find_spec(name)]
    if present:
        raise SystemExit(f"smoke: not an empty environment: {present}")


def check_broker(script: Path) -> None:
    """`pulsemark standalone` serves HTTP, wire and gRPC, and ends in order on SIGTERM."""
    from pulsemark.finder import SeekClient
    from pulsemark.testing import RawClient

    topic = "persistent://public/default/smoke"
    with tempfile.TemporaryDirectory() as folder:
        command = [script, "standalone", "--json", "--data-dir", folder]
        command += ["--port", "0", "--http-port", "0", "--grpc-port", "0"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            with urllib.request.urlopen(
                f"{ready['http_url']}/admin/v2/clusters", timeout=10
            ) as reply:
                if json.load(reply) != ["standalone"]:
                    raise SystemExit("smoke: the broker does not call itself standalone")
            with RawClient.from_url(ready["service_url"]) as client:
                client.create_producer(topic).send(b"smoke", publish_time_ms=1)
            with SeekClient(ready["grpc_url"]) as finder:
                found = finder.by_time(topic, 0)
                if found.end or found.index != 0:
                    raise SystemExit(f"smoke: the message was not found: {found}")
        finally:
            process.send_signal(signal.SIGTERM)
            status = process.wait(30)
    if status:
        raise SystemExit(f"smoke: standalone ended with {status} on SIGTERM")


def main() -> None:
    """Run the checks; `kind` is how the package was installed: wheel or editable."""
    (kind,) = sys.argv[1:]
    check_import(kind)
    script = Path(sys.executable).parent / "pulsemark"
    said = subprocess.run([script, "--version"], check=True, capture_output=True, text=True).stdout
    version = importlib.metadata.version("pulsemark")
    if not said.startswith(f"pulsemark {version}, "):
        raise SystemExit(f"smoke: --version says {said!r}, the package {version!r}")
    check_broker(script)
    print(f"smoke: {kind}: pulsemark {version} imports, serves, finds and stops")


if __name__ == "__main__":
    main()

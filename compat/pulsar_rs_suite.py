"""The Rust client's own suite (pulsar-rs), against this broker.

    git clone https://github.com/streamnative/pulsar-rs
    make pulsar-rs-suite SUITE=pulsar-rs

The suite's folder is only read: its tests are built and run in a copy, in which the addresses of a
local Pulsar are replaced by those of a broker of this project (or of another one: --service-url
and --admin-url). All tests run in one process, one after the other: some count on the ids that the
tests before them have used.

It needs cargo, protoc, and the crates that the client needs (from the registry). `--build` names a
folder that keeps what cargo has built, for the next run.

It prints each test that did not pass; the exit code is 1 if there was one.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pulsemark.broker import BrokerConfig, BrokerThread

#: What the suite's sources say, and the attribute of this program's options that replaces it.
ADDRESSES = {"pulsar://127.0.0.1:6650": "service_url", "http://127.0.0.1:8080": "admin_url"}
#: `admin-api` adds the client of the admin REST and its tests.
FEATURES = "admin-api"
LIMIT_S = 1200.0
RESULT = re.compile(r"^test (\S+) \.\.\. (ok|FAILED|ignored)$", re.MULTILINE)


def main() -> int:
    """Run the suite, print the tests that did not pass."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("suite", type=Path, help="folder of a clone of pulsar-rs")
    parser.add_argument("--tests", default="", help="a part of the names")
    parser.add_argument("--build", type=Path, help="keep what cargo builds here")
    parser.add_argument("--log", type=Path, help="write the output here")
    parser.add_argument("--service-url", help="a broker that runs already")
    parser.add_argument("--admin-url", help="the same one's REST address")
    args = parser.parse_args()
    if not (args.suite / "src" / "connection_manager.rs").is_file():
        parser.error(f"{args.suite} is not the folder of the Rust client")
    if (args.service_url is None) != (args.admin_url is None):
        parser.error("--service-url and --admin-url belong together")
    with tempfile.TemporaryDirectory(prefix="pulsar-rs-suite-") as folder:
        home = Path(folder)
        if args.service_url is not None:
            return run_suite(args, home)
        with BrokerThread(BrokerConfig(data_dir=home / "data", port=0, http_port=0)) as broker:
            args.service_url, args.admin_url = broker.service_url, broker.http_url
            return run_suite(args, home)


def run_suite(args: argparse.Namespace, home: Path) -> int:
    """Build the tests and run them; the exit code."""
    source = home / "source"
    shutil.copytree(args.suite, source, ignore=shutil.ignore_patterns(".git", "target"))
    for path in (source / "src").rglob("*.rs"):
        text = path.read_text()
        for address, option in ADDRESSES.items():
            text = text.replace(address, getattr(args, option))
        path.write_text(text)
    binary = build(source, args.build or home / "build")
    text = run_tests(binary, source, args.tests)
    if args.log is not None:
        args.log.write_text(text)
    results = dict(RESULT.findall(text))
    bad = [name for name, result in results.items() if result == "FAILED"]
    bad += [name for name in tests_of(binary) if args.tests in name and name not in results]
    if bad:
        print(text[-3000:])
    print(f"{sum(result == 'ok' for result in results.values())} of {len(results)} tests passed")
    for name in bad:
        print(f"  {name}: {results.get(name, 'did not end')}")
    return 1 if bad or not results else 0


def build(source: Path, target: Path) -> Path:
    """Compile the tests. Raises SystemExit if they cannot be compiled."""
    command = ["cargo", "test", "--lib", "--no-run", "--features", FEATURES]
    done = subprocess.run(
        [*command, "--message-format", "json-render-diagnostics"],
        cwd=source,
        env={**os.environ, "CARGO_TARGET_DIR": str(target.resolve())},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    found = [Path(one["executable"]) for one in said if one.get("executable")]
    if done.returncode or not found:
        raise SystemExit("the suite could not be built")
    return found[-1]


def tests_of(binary: Path) -> list[str]:
    """The names of the tests."""
    listing = subprocess.run([binary, "--list"], capture_output=True, text=True, check=True)
    return re.findall(r"^(\S+): test$", listing.stdout, re.MULTILINE)


def run_tests(binary: Path, folder: Path, part: str) -> str:
    """Run the tests; their output, as far as it came in time."""
    try:
        done = subprocess.run(
            [binary, "--test-threads", "1", *([part] if part else [])],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        return (expired.stdout or b"").decode(errors="replace")
    return done.stdout.decode(errors="replace")


if __name__ == "__main__":
    sys.exit(main())

"""The official Python client's own suite, against this broker.

    git clone -b branch-3.13 https://github.com/apache/pulsar-client-python
    make pulsar-client-suite SUITE=pulsar-client-python

Each file of the suite runs in a process of its own, against a broker of its own with fresh data.
The broker is set up as the suite's own scripts do: its `standalone-ssl.conf`, certificates
and passwords, a new key for tokens, the tenants and namespaces with their permissions. The ports
are fixed in the suite: 6650, 6651, 8080 and 8443 must be free. The suite's folder is only read.

The Python that runs the suite needs pulsar-client, pytest, pytest-timeout, fastavro and requests.

It prints a row for each file, then each test that did not pass. Tests that need Docker or the
internet are expected to fail (`OUTSIDE`). The exit code is 1 if any other one failed.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ADMIN_URL = "http://localhost:8080/admin/v2/"
#: Tests that fail for reasons outside of a broker: the internet, Docker.
OUTSIDE = {
    "oauth2_test.py::Oauth2Test::test_key_file",
    "oauth2_test.py::Oauth2Test::test_base64",
    "pulsar_test.py::PulsarTest::test_connect_timeout",
}
TEST_TIMEOUT_S = 120
FILE_TIMEOUT_S = 1_200

#: What the suite's scripts create: tenants with their administrators, and namespaces with the role
#: that may produce and consume.
TENANTS: dict[str, list[str]] = {"public": ["anonymous"], "private": []}
NAMESPACES = {
    "public/default": "anonymous",
    "public/default-2": "anonymous",
    "private/auth": "token-principal",
}


@dataclass
class Result:
    """What became of one file's tests, by their names."""

    name: str
    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def unexpected(self) -> list[str]:
        """Failures that are the broker's."""
        return [name for name in self.failed if name not in OUTSIDE]


def main() -> int:
    """Run the suite, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("suite", type=Path, help="folder of a clone of pulsar-client-python")
    parser.add_argument("--files", nargs="*", help="only these files, such as reader_test.py")
    parser.add_argument("--python", default=sys.executable, help="the Python that runs the suite")
    parser.add_argument("--tests", default="", help="pytest's -k")
    args = parser.parse_args()
    source = args.suite / "tests"
    if not (source / "pulsar_test.py").is_file():
        parser.error(f"{source} is not the folder of the suite's tests")
    names = args.files or sorted(path.name for path in source.glob("*_test.py"))
    results = []
    with tempfile.TemporaryDirectory(prefix="pulsar-client-suite-") as folder:
        for name in names:
            results.append(run_file(name, source, Path(folder), args.python, args.tests))
            print_row(results[-1])
    return report(results)


def run_file(name: str, source: Path, folder: Path, python: str, expression: str) -> Result:
    """Run one file against a fresh broker."""
    home = folder / name.removesuffix(".py")
    tests = home / "tests"
    shutil.copytree(source, tests)
    secret = secrets.token_bytes(32)
    (tests / ".test-token.txt").write_text(token("token-principal", secret))
    began_s = time.monotonic()
    with running_broker(home, tests / "test-conf", secret):
        set_up(token("superUser", secret))
        found = run_pytest(name, tests, python, expression)
    found.seconds = time.monotonic() - began_s
    return found


def token(subject: str, secret: bytes) -> str:
    """A token that is signed with the secret."""
    import jwt

    return jwt.encode({"sub": subject}, secret, algorithm="HS256")


@contextmanager
def running_broker(home: Path, conf: Path, secret: bytes) -> Iterator[None]:
    """A broker with the suite's configuration."""
    key = base64.b64encode(secret).decode()
    ours = {
        "bindAddress": "127.0.0.1",
        "tokenSecretKey": f"data:;base64,{key}",
        "basicAuthConf": conf / ".htpasswd",
        "tlsCertificateFilePath": conf / "broker-cert.pem",
        "tlsKeyFilePath": conf / "broker-key.pem",
        "tlsTrustCertsFilePath": conf / "cacert.pem",
    }
    lines = "".join(f"{name}={value}\n" for name, value in ours.items())
    with standalone(home, (conf / "standalone-ssl.conf").read_text() + "\n" + lines):
        yield


@contextmanager
def standalone(home: Path, settings: str, *options: str) -> Iterator[None]:
    """A broker with these settings and options, and its data and log in a folder."""
    config = home / "broker.conf"
    config.write_text(settings)
    command = [sys.executable, "-m", "pulsemark", "standalone", "--json", "--config", str(config)]
    command += [*options, "--data-dir", str(home / "data")]
    with (home / "broker.log").open("w") as log:
        broker = subprocess.Popen(
            [*command, *options, "--data-dir", str(home / "data")],
            stdout=subprocess.PIPE,
            stderr=log,
        )
    try:
        assert broker.stdout is not None
        if not broker.stdout.readline():
            raise SystemExit(f"the broker did not start:\n{(home / 'broker.log').read_text()}")
        yield
        if broker.poll() is not None:
            print(f"the broker ended by itself:\n{(home / 'broker.log').read_text()[-5000:]}")
    finally:
        broker.terminate()
        broker.wait(30)


def set_up(super_user_token: str) -> None:
    """Create tenants and namespaces as the suite's scripts do. Some exist in a fresh broker."""
    for tenant, admins in TENANTS.items():
        body = {"adminRoles": admins, "allowedClusters": ["standalone"]}
        if call("PUT", f"tenants/{tenant}", body, super_user_token) == 409:
            call("POST", f"tenants/{tenant}", body, super_user_token)
    for namespace, role in NAMESPACES.items():
        call("PUT", f"namespaces/{namespace}", {}, super_user_token)
        rights = ["produce", "consume"]
        call("POST", f"namespaces/{namespace}/permissions/{role}", rights, super_user_token)


def call(method: str, path: str, body: object, super_user_token: str) -> int:
    """One request; its status. Ends the program for a status that is not expected."""
    request = urllib.request.Request(ADMIN_URL + path, json.dumps(body).encode(), method=method)
    request.add_header("Authorization", f"Bearer {super_user_token}")
    request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        if error.code == 409:
            return error.code
        raise SystemExit(f"{method} {path}: {error.code} {error.read()!r}") from error


def run_pytest(name: str, tests: Path, python: str, expression: str) -> Result:
    """Run a file in a process of its own."""
    report_file = tests.parent / "report.xml"
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report_file}"]
    command += [
        "-p",
        "no:pulsemark",
        f"--timeout={TEST_TIMEOUT_S}",
        *(["-k", expression] if expression else []),
        name,
    ]
    # The suite is no test of this project: its settings and sources must not be found.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    with (tests.parent / "suite.log").open("w") as log:
        suite = subprocess.Popen(
            command,
            cwd=tests,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            # A shell's background job ignores SIGINT, which one of the tests needs.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
        )
        try:
            suite.wait(FILE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            suite.kill()
            suite.wait()
    log_text = (tests.parent / "suite.log").read_text(errors="replace")
    if not report_file.is_file():
        return Result(name, failed={f"{name}::(the process)": log_text[-3000:]})
    return read_report(name, report_file)


def read_report(name: str, path: Path) -> Result:
    """The results in a JUnit file."""
    result = Result(name)
    for case in ET.parse(path).getroot().iter("testcase"):
        test = f"{name}::{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        problems = [child for child in case if child.tag in ("failure", "error")]
        skips = [child for child in case if child.tag == "skipped"]
        if problems:
            result.failed[test] = problems[0].text or problems[0].get("message") or ""
        elif skips:
            result.skipped[test] = skips[0].get("message") or ""
        else:
            result.passed.append(test)
    return result


def print_row(result: Result) -> None:
    """One line of the table."""
    counts = (len(result.passed), len(result.failed), len(result.skipped))
    text = "{:4d} passed {:3d} failed {:3d} skipped".format(*counts)
    print(f"{result.name:32} {text} {result.seconds:7.1f} s", flush=True)


def report(results: list[Result]) -> int:
    """Print what did not pass, and the sum."""
    for result in results:
        for name, text in result.failed.items():
            kind = "outside" if name in OUTSIDE else "FAILED"
            print(f"\n{kind} {name}\n{text.strip()[-1500:] if kind == 'FAILED' else ''}")
        for name, text in result.skipped.items():
            print(f"\nskipped {name}: {text}")
    passed = sum(len(result.passed) for result in results)
    total = passed + sum(len(result.failed) + len(result.skipped) for result in results)
    print(f"\n{passed} of {total} tests passed")
    return 1 if any(result.unexpected for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())

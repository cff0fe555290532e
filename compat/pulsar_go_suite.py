"""The Go client's own suite, against this broker.

    git clone https://github.com/apache/pulsar-client-go
    make pulsar-go-suite SUITE=pulsar-client-go

The broker is set up as the suite's own scripts do: its `standalone.conf`, certificates, tokens and
passwords, the tenants and namespaces with their permissions. The ports are fixed in the suite:
6650, 6651, 8080 and 8443 must be free. The suite's folder is only read: its tests run in a copy.
Each test runs in a process of its own, so that one that hangs takes no other with it.

It needs Go, and the modules that the client needs (from the module proxy).

It prints each test that did not pass. Those of `OUTSIDE` are expected to fail, with their reasons.
The exit code is 1 if any other one failed.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from pulsar_client_suite import call, standalone

DOCKER = "starts brokers in Docker"
#: Tests that may fail, by their name, and why.
OUTSIDE: dict[str, str] = {
    **dict.fromkeys(
        (
            "TestConsumerKeepReconnectingAndThenCallClose",
            "TestConsumerOnCloseInterceptorOnMaxReconnect",
            "TestReconnectConsumer",
            "TestReconnectedBrokerSendPermits",
            "TestProducerKeepReconnectingAndThenCallClose",
            "TestSendAsyncCouldTimeoutWhileReconnecting",
        ),
        DOCKER,
    ),
}
TEST_TIMEOUT_S = 180
#: What the suite's script creates: tenants, and namespaces with the role that may use them.
TENANTS: dict[str, list[str]] = {"public": ["anonymous"], "private": []}
NAMESPACES = {"public/default": "anonymous", "private/auth": "token-principal"}
FAILURE = re.compile(r"^\s*--- FAIL: (\S+)", re.MULTILINE)
SKIP = re.compile(r"^--- SKIP: (\S+)", re.MULTILINE)


@dataclass
class Results:
    """What became of the tests, by their names."""

    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def unexpected(self) -> list[str]:
        """Failures without a reason that is outside of the broker."""
        return [name for name in self.failed if reason_of(name) is None]


def reason_of(test: str) -> str | None:
    """Why a test may fail; None: it must not."""
    return OUTSIDE.get(test)


def main() -> int:
    """Run the suite, print the tests that did not pass."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("suite", type=Path, help="folder of a clone of pulsar-client-go")
    parser.add_argument(
        "--tests", default=".", help="a regular expression of names, as go test's -run"
    )
    parser.add_argument("--log", type=Path, help="write the output of tests that fail here")
    parser.add_argument("--binary", type=Path, help="the suite, built before by go test -c")
    parser.add_argument("--peer", action="store_true", help="a broker runs on those ports already")
    parser.add_argument(
        "--workers",
        type=int,
        help="so many workers, whose second port is taken: the first is 6640",
    )
    args = parser.parse_args()
    if not (args.suite / "pulsar" / "helper_for_test.go").is_file():
        parser.error(f"{args.suite} is not the folder of the Go client")
    with tempfile.TemporaryDirectory(prefix="pulsar-go-suite-") as folder:
        home = Path(folder)
        source = home / "source"
        shutil.copytree(args.suite, source, ignore=shutil.ignore_patterns(".git"))
        binary = args.binary.resolve() if args.binary else build(source, home / "pulsar.test")
        tests = source / "pulsar"
        if args.peer:
            results = run_tests(binary, tests, args.tests, args.log)
        else:
            configuration, options = settings(source / "integration-tests"), []
            if args.workers:
                configuration = configuration.replace(
                    "brokerServicePort=6650", "brokerServicePort=6640"
                )
                options = ["--workers", str(args.workers)]
            with standalone(home, configuration, *options):
                set_up((source / "integration-tests/tokens/admin-token").read_text().strip())
                results = run_tests(binary, tests, args.tests, args.log)
    return report(results)


def build(source: Path, binary: Path) -> Path:
    """Compile the tests."""
    command = ["go", "test", "-c", "-o", str(binary), "./pulsar"]
    if subprocess.run(command, cwd=source, check=False).returncode:
        raise SystemExit("the suite could not be built")
    return binary


def settings(folder: Path) -> str:
    """The suite's configuration, with its files where they are."""
    text = (folder / "conf/standalone.conf").read_text()
    text = text.replace("/pulsar/certs", f"{folder}/certs").replace(
        "/pulsar/tokens", f"{folder}/tokens"
    )
    ours = {"bindAddress": "127.0.0.1", "basicAuthConf": folder / "conf/.htpasswd"}
    return text + "".join(f"\n{name}={value}" for name, value in ours.items()) + "\n"


def set_up(super_user_token: str) -> None:
    """Create tenants and namespaces as the suite's script does. Some exist in a fresh broker."""
    for tenant, admins in TENANTS.items():
        body = {"adminRoles": admins, "allowedClusters": ["standalone"]}
        if call("PUT", f"tenants/{tenant}", body, super_user_token) == 409:
            call("POST", f"tenants/{tenant}", body, super_user_token)
    for namespace, role in NAMESPACES.items():
        call("PUT", f"namespaces/{namespace}", {}, super_user_token)
        rights = ["produce", "consume"]
        call("POST", f"namespaces/{namespace}/permissions/{role}", rights, super_user_token)


def run_tests(binary: Path, folder: Path, expression: str, log: Path | None) -> Results:
    """Run each test in a process of its own."""
    listing = subprocess.run(
        [binary, "-test.list", expression], cwd=folder, capture_output=True, text=True, check=True
    )
    results = Results()
    names = [name for name in listing.stdout.split() if name.startswith("Test")]
    for number, name in enumerate(names):
        began_s = time.monotonic()
        text = run_test(binary, folder, name, results)
        seconds = time.monotonic() - began_s
        if name in results.failed:
            why = reason_of(name)
            print(f"{number + 1}/{len(names)} FAILED {name} {seconds:.1f} s: {why}", flush=True)
            if log is not None:
                with log.open("a") as out:
                    out.write(f"===== {name}\n{text}\n")
    return results


def run_test(binary: Path, folder: Path, name: str, results: Results) -> str:
    """Run one test; its output."""
    command = [str(binary), "-test.run", f"^{name}$", "-test.v", f"-test.timeout={TEST_TIMEOUT_S}s"]
    process = subprocess.run(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=TEST_TIMEOUT_S + 30,
        check=False,
    )
    if process.returncode:
        parts = ", ".join(FAILURE.findall(process.stdout)) or "the process"
        results.failed[name] = f"{parts}\n{cause(process.stdout)}"
    elif SKIP.search(process.stdout):
        results.skipped[name] = process.stdout.strip()[-300:]
    else:
        results.passed.append(name)
    return process.stdout


def cause(output: str) -> str:
    """The lines of an assertion that failed, or the last ones of a process that ended."""
    found = re.findall(r"Error Trace:.*?(?=\n\s*Test:|\Z)", output, re.DOTALL)
    return "\n".join(found[:3])[:2000] or output.strip()[-1000:]


def report(results: Results) -> int:
    """Print what did not pass, and the sum."""
    for name, text in results.failed.items():
        why = reason_of(name)
        print(f"\n{'FAILED' if why is None else why} {name}" + (f"\n{text}" if why is None else ""))
    for name, text in results.skipped.items():
        print(f"\nskipped {name}: {text}")
    total = len(results.passed) + len(results.failed) + len(results.skipped)
    print(
        f"\n{len(results.passed)} of {total} tests passed, {len(results.failed)} failed, ", end=""
    )
    print(f"{len(results.unexpected)} of them unexpectedly")
    return 1 if results.unexpected else 0


if __name__ == "__main__":
    sys.exit(main())

"""Runs the integration tests of Kafka's Python clients against pulsemark.

    python compat/client_suites/run.py kafka-python|confluent-kafka|aiokafka FOLDER
        [--peer HOST:PORT] [--only TESTS ...] [-- PYTEST ARGUMENT ...]

FOLDER is a checkout of the client's sources, whose tests are run as they are: nothing of it is in
this repository. A broker is started for the run, and the tests get its address. With --peer they
run against a broker that is running already, for example a real Apache Kafka, so that what fails
there too can be told from our faults.

Tests that need what pulsemark does not have (`reasons.py`) are skipped with the reason. The end of
the output is the number of tests that passed, failed and were skipped, with the names of those that
failed and the reasons of those that were skipped. Exit code 1 if a test failed.

The kafka-python and aiokafka suites test the client in FOLDER (aiokafka's without its compiled
extension), the confluent-kafka suite the one that is installed. Packages that only tests of other
things than the broker need (a Schema Registry, Docker) are replaced by empty stand-ins where they
are not installed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

COMPAT = Path(__file__).resolve().parents[1]
PLUGIN = "client_suites.suite_plugin"
#: The Kafka whose requests have the highest versions that pulsemark serves.
KAFKA_VERSION = "2.4.0"
STOP_S = 60
#: A test that takes longer has failed.
TEST_S = 90


@dataclass(frozen=True)
class Suite:
    """How one client's tests are run; {host}, {port} and {folder} are replaced."""

    tests: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    #: Files that cannot be loaded or have nothing to do with a broker, and why.
    left_out: dict[str, str] = field(default_factory=dict)
    #: What a test without a word on it expects of a new topic.
    partitions: int = 1


SHARE_GROUPS = "needs share groups (KIP-932)"

SUITES = {
    "kafka-python": Suite(
        ("test/integration",),
        {
            "KAFKA_VERSION": KAFKA_VERSION,
            "KAFKA_URI": "kafka://{host}:{port}",
            "KAFKA_ROOT": "{folder}",
        },
        partitions=4,
    ),
    "confluent-kafka": Suite(
        ("tests/integration",),
        {"BROKERS": "{host}:{port}"},
        ("-o", "asyncio_mode=auto"),
        {
            "tests/integration/schema_registry": "needs a Schema Registry",
            "tests/integration/share_consumer": SHARE_GROUPS,
            "tests/integration/share_consumer_sasl": SHARE_GROUPS,
            "tests/integration/share_consumer_oauth": SHARE_GROUPS,
        },
    ),
    "aiokafka": Suite(
        ("tests",),
        {"PULSEMARK_SUITE_BROKER": "{host}:{port}", "AIOKAFKA_NO_EXTENSIONS": "1"},
        (f"--docker-image=none:kafka_{KAFKA_VERSION}", "--no-pull"),
        {"tests/coordinator": "uses no broker, and needs pytest-mock"},
        partitions=2,
    ),
}


@contextmanager
def broker(folder: Path, partitions: int) -> Iterator[str]:
    """Run pulsemark; its Kafka address."""
    settings = folder / "broker.conf"
    settings.write_text(
        f"pulsemarkKafkaDefaultPartitions={partitions}\n"
        "pulsemarkKafkaGroupInitialRebalanceDelayMs=0\n"
        "pulsemarkKafkaGroupMinSessionTimeoutMs=1000\n"
    )
    command = [
        *(sys.executable, "-m", "pulsemark", "standalone", "--json", "--config", str(settings)),
        *("--port", "0", "--http-port", "0", "--kafka-port", "0", "--data-dir", str(folder / "d")),
    ]
    with (folder / "broker.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"pulsemark does not start:\n{(folder / 'broker.log').read_text()}")
        yield json.loads(line)["kafka_url"]
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def run(name: str, folder: Path, address: str, report: Path, arguments: list[str]) -> None:
    """Run pytest in the checkout; the plugin writes each test's outcome to `report`."""
    suite = SUITES[name]
    host, _, port = address.rpartition(":")
    environment = {
        **os.environ,
        **{
            key: value.format(host=host, port=port, folder=folder)
            for key, value in suite.environment.items()
        },
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": os.pathsep.join([str(COMPAT), os.environ.get("PYTHONPATH", "")]),
        "PULSEMARK_SUITE": name,
        "PULSEMARK_SUITE_REPORT": str(report),
    }
    command = [
        *(
            sys.executable,
            "-m",
            "pytest",
            "-p",
            PLUGIN,
            "-p",
            "no:cacheprovider",
            "-q",
        ),
        # Warnings about the client's own tests are no failures here.
        *("-W", "ignore::pytest.PytestDeprecationWarning"),
        *("-W", "ignore::pytest.PytestUnraisableExceptionWarning", "--timeout", str(TEST_S)),
        *("--timeout-method", "signal", *suite.arguments, *arguments),
        *(f"--ignore={path}" for path in suite.left_out),
    ]
    subprocess.run(command, cwd=folder, env=environment, check=False)


def show(name: str, report: Path) -> bool:
    """Print the outcomes. Return whether no test failed."""
    lines = report.read_text().splitlines() if report.exists() else []
    outcomes: dict[str, tuple[str, str]] = {}
    for line in lines:
        test, outcome, why = json.loads(line)
        # A test has a setup, a call and a teardown: what failed in one of them has failed.
        if outcomes.get(test, ("", ""))[0] != "failed":
            outcomes[test] = (outcome, why)
    counts = Counter(outcome for outcome, _ in outcomes.values())
    print(f"\n{name}: {', '.join(f'{counts[each]} {each}' for each in counts) or 'no tests'}")
    for test, (outcome, why) in outcomes.items():
        if outcome == "failed":
            print(f"  failed: {test}: {why[:200]}")
    reasons = Counter(why for outcome, why in outcomes.values() if outcome == "skipped")
    for why, count in reasons.most_common():
        print(f"  skipped {count}: {why}")
    for path, why in SUITES[name].left_out.items():
        print(f"  left out {path}: {why}")
    return bool(outcomes) and not counts["failed"]


def main() -> None:
    """Parse arguments, run, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("suite", choices=list(SUITES))
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--peer", metavar="HOST:PORT")
    parser.add_argument("--only", nargs="+", metavar="TESTS", help="files of the suite")
    given = sys.argv[1:]
    cut = given.index("--") if "--" in given else len(given)
    arguments, more = parser.parse_args(given[:cut]), given[cut + 1 :]
    folder = arguments.folder.resolve()
    if not (folder / SUITES[arguments.suite].tests[0]).is_dir():
        raise SystemExit(f"{folder} is no checkout of {arguments.suite}")
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        partitions = SUITES[arguments.suite].partitions
        address = arguments.peer or stack.enter_context(broker(scratch, partitions))
        tests = arguments.only or SUITES[arguments.suite].tests
        run(arguments.suite, folder, address, scratch / "report", [*tests, *more])
        if not show(arguments.suite, scratch / "report"):
            raise SystemExit(1)


if __name__ == "__main__":
    main()

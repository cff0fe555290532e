r"""Run the Java client and PulsarAdmin against this broker, and compare with Apache Pulsar.

    python compat/compare_java_client.py --pulsar-home ~/apache-pulsar-4.0.8 \
        [--peer-admin-url http://127.0.0.1:8080 --peer-service-url pulsar://127.0.0.1:6650]

Compiles `pulsar_java/` with the jars of an unpacked Apache Pulsar, starts a broker, and runs the
scenarios against it: producers, consumers, readers, table views, schemas, and PulsarAdmin. The
program prints one line for each step: what it got, or the class and text of the exception. With a
peer's addresses the same is done there, and each difference is printed; without them all lines are
printed. `KNOWN` of `differential/known_java.py` has the intended differences, each with its reason.

Needs a Java 17 or newer with its compiler. Exit code 1 if something differs without a reason, or if
the program does not come to its end.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pulsemark.broker import BrokerConfig, BrokerThread

sys.path.insert(0, str(Path(__file__).parent))
from differential.known_java import KNOWN

LIMIT_S = 1500.0
SOURCES = Path(__file__).parent / "pulsar_java"
MARK = "= "


def main() -> int:
    """Run the program against one broker or two."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pulsar-home", type=Path, required=True)
    parser.add_argument("--peer-admin-url")
    parser.add_argument("--peer-service-url")
    parser.add_argument("--only", default=".*", help="a regular expression: only these scenarios")
    parser.add_argument("--threads", type=int, default=4, help="scenarios that run at a time")
    parser.add_argument("--log", type=Path, help="write all lines to LOG-ours and LOG-peer")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        # Some choices depend on the topic's name, so both brokers get the same names.
        tenant = f"j{int(time.time()):x}"
        program = Program(args.pulsar_home, Path(folder), tenant, args.only, args.threads)
        program.compile()
        config = BrokerConfig(
            data_dir=Path(folder) / "data",
            port=0,
            http_port=0,
            exposing_broker_entry_metadata_to_client_enabled=True,
            transaction_coordinator_enabled=True,
        )
        with BrokerThread(config) as broker:
            ours = program.run(broker.service_url, broker.http_url)
        keep(args.log, "ours", ours)
        if args.peer_admin_url is None or args.peer_service_url is None:
            print(*ours, sep="\n")
            print(f"{len(ours)} steps")
            return 0
        theirs = program.run(args.peer_service_url, args.peer_admin_url)
        keep(args.log, "peer", theirs)
    return report(ours, theirs)


def keep(log: Path | None, name: str, lines: list[str]) -> None:
    """Write all lines to a file, if that is wanted."""
    if log is not None:
        log.with_name(f"{log.name}-{name}").write_text("\n".join(lines) + "\n")


@dataclass(frozen=True, slots=True)
class Program:
    """The Java program."""

    home: Path
    folder: Path
    tenant: str
    only: str
    threads: int

    @property
    def _jars(self) -> str:
        return f"{self.home / 'lib'}/*"

    def compile(self) -> None:
        """Compile it. Raises SystemExit if it cannot be compiled."""
        sources = sorted(str(path) for path in SOURCES.glob("*.java"))
        command = ["javac", "-proc:none", "-nowarn", "-cp", self._jars, "-d", str(self.folder)]
        done = subprocess.run([*command, *sources], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{SOURCES} could not be compiled:\n{done.stderr[-3000:]}")

    def run(self, service_url: str, admin_url: str) -> list[str]:
        """Its lines. Raises SystemExit if it does not come to its end."""
        command = [
            *("java", "-Xmx700m", "-Dorg.apache.logging.log4j.level=OFF"),
            *("-cp", f"{self.folder}:{self._jars}", "PulsarClients"),
            *(service_url, admin_url, self.tenant, str(self.threads), self.only),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        said = [line[len(MARK) :] for line in done.stdout.splitlines() if line.startswith(MARK)]
        lines = [normalized(line) for line in said]
        if done.returncode or lines[-1:] != ["end"]:
            raise SystemExit(f"the program failed:\n{(done.stdout + done.stderr)[-3000:]}")
        return lines[:-1]


#: What differs from run to run: generated names, numbers of ledgers, addresses, times.
CHANGING = (
    (re.compile(r"\bstandalone-\d+-\d+"), "standalone-N-N"),
    (re.compile(r"[\d.]+ seconds ago"), "N seconds ago"),
    (re.compile(r"(ORIGIN_MESSAGE_ID\w*=)\d+"), r"\1L"),
    (re.compile(r"address=(\[[^\]]*\] \[[^\]]*\]|[^}]*)"), "address=A"),
    (re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:N"),
    (re.compile(r"\(0,\d+\)"), "(0,N)"),
    (re.compile(r"\[0:\d+\]"), "[0:N]"),
    (re.compile(r"((?:message|[pP]osition): ?)\d+(:-?\d+)"), r"\1L\2"),
)


def normalized(line: str) -> str:
    """A line without what differs from run to run."""
    for pattern, text in CHANGING:
        line = pattern.sub(text, line)
    return line


def report(ours: list[str], theirs: list[str]) -> int:
    """Print the differences, those without a reason last."""
    unknown: list[tuple[str, str]] = []
    for left, right in differences(ours, theirs):
        why = reason(left or right)
        if why is None:
            unknown.append((left, right))
        else:
            print(f"{left or right}\n    peer: {right}\n    known: {why}")
    for left, right in unknown:
        print(f"ours: {left}\npeer: {right}")
    known = sum(1 for _ in differences(ours, theirs)) - len(unknown)
    print(f"{len(ours)} steps, {known + len(unknown)} differ, {len(unknown)} without a reason")
    return 1 if unknown else 0


def differences(ours: list[str], theirs: list[str]) -> Iterator[tuple[str, str]]:
    """Lines that differ, in pairs of the same step."""
    left, right = by_step(ours), by_step(theirs)
    for step in [*left, *(step for step in right if step not in left)]:
        if left.get(step) != right.get(step):
            yield left.get(step, ""), right.get(step, "")


def by_step(lines: list[str]) -> dict[tuple[str, int], str]:
    """Each line by its step, and which one of that name it is."""
    seen: Counter[str] = Counter()
    found: dict[tuple[str, int], str] = {}
    for line in lines:
        step = step_of(line)
        found[step, seen[step]] = line
        seen[step] += 1
    return found


def step_of(line: str) -> str:
    """Scenario and step of a line, without the outcome."""
    return line.partition(": ")[0]


def reason(line: str) -> str | None:
    """Why a line may differ; None: it must not."""
    return next((why for pattern, why in KNOWN.items() if re.search(pattern, line)), None)


if __name__ == "__main__":
    sys.exit(main())

"""Load by the tools of Apache Kafka: ProducerPerformance and ConsumerPerformance.

They count from their first message to their last one, so the start of the JVM is not in their
rates. A consumer's rate is that of its fetches: joining its group is not in it.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

_SENT = re.compile(r"^(\d+) records sent, ([\d.]+) records/sec .* 99.9th\.?$", re.MULTILINE)


class JavaLoad:
    """The tools of one folder of jars."""

    def __init__(self, jars: Path, wait_s: float) -> None:
        self._java = ["java", "-Xmx512m", "-cp", f"{jars}/*"]
        self._wait_s = wait_s

    def produce(self, url: str, topic: str, size_bytes: int, count: int) -> float:
        """Send messages with acks=all; messages per second."""
        said = self._run(
            "ProducerPerformance",
            *("--topic", topic, "--num-records", str(count), "--record-size", str(size_bytes)),
            *("--throughput", "-1", "--producer-props", f"bootstrap.servers={url}", "acks=all"),
            "linger.ms=5",
        )
        totals = _SENT.findall(said)
        if not totals or int(totals[-1][0]) != count:
            raise SystemExit(f"ProducerPerformance did not send {count} messages:\n{said[-2000:]}")
        return float(totals[-1][1])

    def fetch(self, url: str, topic: str, count: int) -> float:
        """Read all messages; messages per second of fetching."""
        said = self._run(
            "ConsumerPerformance",
            *("--bootstrap-server", url, "--topic", topic, "--messages", str(count)),
            *("--hide-header", "--timeout", str(int(self._wait_s * 1000))),
        )
        rows = [line.split(", ") for line in said.splitlines() if line.count(", ") == 9]
        if not rows or int(rows[-1][4]) < count:
            raise SystemExit(f"ConsumerPerformance did not read {count} messages:\n{said[-2000:]}")
        return float(rows[-1][9])

    def _run(self, name: str, *arguments: str) -> str:
        """What a tool prints. Raises SystemExit if it fails."""
        done = subprocess.run(
            [*self._java, f"org.apache.kafka.tools.{name}", *arguments],
            capture_output=True,
            text=True,
            timeout=self._wait_s + 60,
            env={**os.environ, "LC_ALL": "C"},
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{name} failed:\n{(done.stdout + done.stderr)[-3000:]}")
        return done.stdout

"""What an audit costs the broker that keeps it, and how fast it counts.

    python bench/bench_audit.py [--messages N] [--rounds N]

A broker process with `--audit producer` and one without it, both with the producer's name in the
stamps, take the same SEND frames from a sender that only counts receipts, in turns. CPU is the time
of all threads of the broker's process while it takes them. What is counted after that is measured
apart: the time from the last receipt until a report is complete, and the CPU of it. Shown are the
median of the rounds, the lowest and the highest.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench_produce import cpu_s, run_sender
from bench_startup import broker, start, stop
from report import higher, lower, show
from rounds import add_rounds, in_turns

STAMPERS = "broker-time,index,producer"
WINDOW = 8_000


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of one broker."""

    rate: float
    cpu_us: float
    #: Of it, that of the auditor's thread.
    auditor_us: float = 0.0
    #: Of counting what was left after the last receipt; 0 without an audit.
    rest_s: float = 0.0
    rest_cpu_us: float = 0.0


@contextmanager
def running_broker(*, audit: bool) -> Iterator[tuple[int, dict[str, str]]]:
    """A broker's process id, and its addresses."""
    with tempfile.TemporaryDirectory() as folder:
        command = broker("--data-dir", str(Path(folder) / "data"), "--stampers", STAMPERS)
        process, ready, _ = start([*command, *(("--audit", "producer") if audit else ())])
        try:
            yield process.pid, ready
        finally:
            stop(process)


def measure(messages: int, *, audit: bool) -> Measured:
    """A new broker, one topic, messages of 100 bytes, no batching."""
    with running_broker(audit=audit) as (pid, ready):
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.Process(
            target=run_sender, args=(ready["service_url"], 1, messages, WINDOW, theirs)
        )
        process.start()
        ours.recv()
        counting = auditor_cpu_s(ready["http_url"]) if audit else 0.0
        before = cpu_s(pid)
        taken = ours.recv()
        used = cpu_s(pid) - before
        counting = auditor_cpu_s(ready["http_url"]) - counting if audit else 0.0
        process.join()
        rate, cpu_us = messages / taken, used / messages * 1e6
        if not audit:
            return Measured(rate, cpu_us)
        topic = f"of1-0-{process.pid}"
        before, began = cpu_s(pid), time.perf_counter()
        counted = report(ready["http_url"], topic)
        rest_s, rest_cpu = time.perf_counter() - began, cpu_s(pid) - before
        if counted < messages:
            raise SystemExit(f"the audit counts {counted} of {messages} messages")
        return Measured(rate, cpu_us, counting / messages * 1e6, rest_s, rest_cpu / messages * 1e6)


def auditor_cpu_s(http_url: str) -> float:
    """Processor time of the thread that counts."""
    with urllib.request.urlopen(f"{http_url}/metrics", timeout=60) as answer:
        page = answer.read().decode()
    found = re.search(r"^pulsemark_audit_cpu_seconds_total\S* (\S+)$", page, re.MULTILINE)
    return float(found[1]) if found else 0.0


def report(http_url: str, topic: str) -> int:
    """The messages in a topic's report, when it is complete."""
    url = f"{http_url}/admin/v2/persistent/public/default/{topic}/audit"
    while True:
        with urllib.request.urlopen(url, timeout=120) as answer:
            found = json.load(answer)
        if not found["left"]:
            return sum(row["count"] for row in found["rows"])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=300_000)
    add_rounds(parser, 5)
    arguments = parser.parse_args()
    on, off = in_turns(
        arguments.rounds,
        partial(measure, arguments.messages, audit=True),
        partial(measure, arguments.messages, audit=False),
    )
    pairs = list(zip(on, off, strict=True))
    rates, plain_rates = ([one.rate for one in runs] for runs in (on, off))
    cpus_us, plain_cpus_us = ([one.cpu_us for one in runs] for runs in (on, off))
    counting_us = [one.auditor_us for one in on]
    ratios = [one.rate / other.rate for one, other in pairs]
    cpu_ratios = [one.cpu_us / other.cpu_us for one, other in pairs]
    show(
        f"audit ({os.cpu_count()} cores)",
        [
            higher("publish 100 B, no batching, audited", rates, plain_rates, "messages/s", "none"),
            lower("CPU of the broker meanwhile", cpus_us, plain_cpus_us, "us/message", "none"),
            lower("of it the thread that counts", counting_us, None, "us/message"),
            higher("rate, the ratios of the pairs", ratios, 1.0, "x"),
            lower("CPU, the ratios of the pairs", cpu_ratios, 1.0, "x"),
            lower("counting the rest: time", [one.rest_s for one in on], None, "s"),
            lower("counting the rest: CPU", [o.rest_cpu_us for o in on], None, "us/message"),
        ],
    )


if __name__ == "__main__":
    main()

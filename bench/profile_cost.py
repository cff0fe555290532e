"""What a published message's CPU time goes to, under the load of ``bench_cost.py``.

    python bench/profile_cost.py [--rates N ...] [--seconds N] [--sources FOLDER]

Needs Linux's ``perf``. Every sample of the broker's process is counted for the system call that it
was in, or for the thread whose Python (and C) code ran. The shares are given in microseconds per
message, from one run for each rate. ``--sources`` profiles the broker of another checkout. TMPDIR
says on which disk the data is.
"""

from __future__ import annotations

import argparse
import multiprocessing
import signal
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path

from bench_cost import RATES, run_sender, thread_use
from bench_produce import run_first, running_broker
from report import Figure, lower, show

SAMPLES_PER_S = 5_000
CALLS = {
    "x64_sys_fdatasync": "sync of the journal",
    "do_pwritev": "writes to journal and segment",
    "x64_sys_epoll_pwait": "the loop sleeps and wakes",
    "x64_sys_setsockopt": "the low-water mark",
    "x64_sys_futex": "threads wait for and wake each other",
    "ksys_read": "reads of the socket and of wake-ups",
    "ksys_write": "writes of receipts and of wake-ups",
}
"""What a sample is counted for, by a function of the kernel in its stack."""


def part_of(thread: int, pid: int, stack: list[str]) -> str:
    """What one sample is counted for; the stack's innermost function comes first."""
    for line in stack:
        name = line.split()[1].lstrip("_").partition("+")[0]
        if name in CALLS:
            return CALLS[name]
    if stack and "kernel" in stack[0]:
        return "interrupts, and the rest of the kernel"
    return f"Python in the {'loop' if thread == pid else 'committer'}'s thread"


def parts(data: Path, pid: int) -> Counter[str]:
    """The number of samples by part."""
    command = ["perf", "script", "-i", str(data), "-F", "tid,ip,sym,dso"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    counts: Counter[str] = Counter()
    for sample in text.split("\n\n"):
        lines = sample.strip().splitlines()
        if lines:
            counts[part_of(int(lines[0].split()[0]), pid, lines[1:])] += 1
    return counts


def measure(rate: int, seconds: float, sources: Path | None) -> dict[str, float]:
    """Microseconds per message by part, and in all."""
    with running_broker(sources) as (pid, url), tempfile.TemporaryDirectory() as folder:
        ours, theirs = multiprocessing.Pipe()
        sender = multiprocessing.Process(target=run_sender, args=(url, rate, seconds, theirs))
        sender.start()
        assert sender.pid is not None
        run_first(pid, 1)
        run_first(sender.pid, 2)
        ours.recv()
        data = Path(folder) / "perf.data"
        command = ["perf", "record", "-q", "-g", "-F", str(SAMPLES_PER_S), "-p", str(pid)]
        profiler = subprocess.Popen([*command, "-o", str(data)])
        before = sum(spent.total_s for spent in thread_use(pid).values())
        messages = ours.recv()[0]
        used_s = sum(spent.total_s for spent in thread_use(pid).values()) - before
        time.sleep(0.1)
        profiler.send_signal(signal.SIGINT)
        profiler.wait(60)
        sender.join()
        counts = parts(data, pid)
    total = sum(counts.values())
    each_us = used_s / messages * 1e6
    shares = {name: count / total * each_us for name, count in counts.most_common()}
    return {"all": each_us, **shares}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rates", type=int, nargs="+", default=RATES, help="messages per second")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--sources", type=Path, metavar="FOLDER", help="another checkout")
    arguments = parser.parse_args()
    figures: list[Figure] = []
    for rate in arguments.rates:
        for name, value in measure(rate, arguments.seconds, arguments.sources).items():
            figures.append(lower(f"{rate:,}/s: {name}", value, None, "us/message"))
    show("what a published message's CPU time goes to", figures)


if __name__ == "__main__":
    main()

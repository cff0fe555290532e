"""What gathering publishes costs in latency, and what it saves: ``pulsemarkPublishGatheringMs``.

    python bench/bench_gathering.py [--settings MS ...] [--rates N ...] [--seconds N] [--rounds N]

Each setting in turns, with a new broker each time: a client that waits for every receipt (window 1,
which gathering must leave alone), and streams of publishes at fixed rates, each frame in a write of
its own. Latency is from the write of a SEND to its receipt, CPU is that of the whole broker. The
peer of each row is the setting 0. Shown are the median of the rounds, the lowest and the highest.
TMPDIR says on which disk the data is.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Sequence
from functools import partial

from bench_produce import Sender, cpu_s, run_first, running_broker, send_frame
from report import Figure, lower, quantile, show
from rounds import add_rounds, in_turns

WARM_UP_S = 1.0
PREPARED = 20_000
SHARES = {"p50": 0.5, "p99": 0.99}


class TimedSender(Sender):
    """A sender that notes when each receipt comes."""

    def one_by_one(self, frames: Sequence[bytes], seconds: float) -> list[float]:
        """Send each frame after the receipt of the one before; latencies in milliseconds."""
        taken = []
        until_s = time.perf_counter() + seconds
        sent = 0
        while (began := time.perf_counter()) < until_s:
            self.send(frames[sent % len(frames)])
            self.receive()
            taken.append((time.perf_counter() - began) * 1_000)
            sent += 1
        return taken

    def stream(self, frames: Sequence[bytes], rate: int, seconds: float) -> list[float]:
        """Send each frame at its due time; latencies in milliseconds."""
        total = int(rate * seconds)
        sent_at: list[float] = []
        taken: list[float] = []
        start = time.perf_counter()
        while len(taken) < total:
            now = time.perf_counter()
            due = min(total, int((now - start) * rate) + 1)
            if due > len(sent_at):
                first = len(sent_at)
                self.send(b"".join(frames[n % len(frames)] for n in range(first, due)))
                sent_at += [time.perf_counter()] * (due - first)
            pause_s = start + len(sent_at) / rate - time.perf_counter()
            wait_s = max(0.0, pause_s) if len(sent_at) < total else 10.0
            if received := self.received_already(wait_s):
                now = time.perf_counter()
                first = len(taken)
                taken += [(now - sent_at[n]) * 1_000 for n in range(first, first + received)]
        return taken


def run_sender(url: str, rate: int, seconds: float, pipe: object) -> None:
    """The sender's process; rate 0 stands for window 1. Sends when it is warm, then latencies."""
    sender = TimedSender(url)
    sender.open_producers([f"persistent://public/default/gathering-{os.getpid()}"])
    frames = [send_frame(0, n) for n in range(PREPARED)]
    for part_s in (WARM_UP_S, seconds):
        taken = sender.stream(frames, rate, part_s) if rate else sender.one_by_one(frames, part_s)
        pipe.send(taken)  # type: ignore[attr-defined]


def measure(setting_ms: int, rate: int, seconds: float) -> tuple[float, dict[str, float]]:
    """CPU of the broker per message in microseconds, and latencies in milliseconds."""
    with running_broker(settings=f"pulsemarkPublishGatheringMs={setting_ms}\n") as (pid, url):
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.Process(target=run_sender, args=(url, rate, seconds, theirs))
        process.start()
        assert process.pid is not None
        run_first(pid, 1)
        run_first(process.pid, 2)
        ours.recv()
        before = cpu_s(pid)
        taken = ours.recv()
        used = cpu_s(pid) - before
        process.join()
    return used / len(taken) * 1e6, {name: quantile(taken, at) for name, at in SHARES.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--settings", type=int, nargs="+", default=[0, 1, 2], metavar="MS")
    parser.add_argument("--rates", type=int, nargs="+", default=[0, 3_000, 15_000])
    parser.add_argument("--seconds", type=float, default=4.0)
    add_rounds(parser)
    arguments = parser.parse_args()
    cells = [(rate, setting_ms) for rate in arguments.rates for setting_ms in arguments.settings]
    runs = (partial(measure, setting_ms, rate, arguments.seconds) for rate, setting_ms in cells)
    got = dict(zip(cells, in_turns(arguments.rounds, *runs), strict=True))
    figures: list[Figure] = []
    for (rate, setting_ms), taken in got.items():
        name = f"{f'{rate:,}/s' if rate else 'window 1'}, {setting_ms} ms"
        others = got[rate, arguments.settings[0]] if setting_ms != arguments.settings[0] else None
        figures += figures_of(name, taken, others)
    show("gathering publishes", figures)


def figures_of(
    name: str,
    runs: Sequence[tuple[float, dict[str, float]]],
    others: Sequence[tuple[float, dict[str, float]]] | None,
) -> list[Figure]:
    """The rounds of one cell, beside those of the first setting."""
    cpus_us = [run[0] for run in others] if others else None
    rows = [lower(f"{name}: CPU", [run[0] for run in runs], cpus_us, "us/message")]
    for share in SHARES:
        peer = [run[1][share] for run in others] if others else None
        rows.append(lower(f"{name}: {share}", [run[1][share] for run in runs], peer, "ms"))
    return rows


if __name__ == "__main__":
    main()

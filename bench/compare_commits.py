"""The default stamp's costs in this tree, compared with an earlier commit, in one run.

    python bench/compare_commits.py COMMIT [--rounds N] [--messages N]

Shows whether a feature that is switched off costs anything: appends, searches by time, publishing
and delivering, all with the default stamp. The sources of COMMIT are unpacked into a temporary
folder. In every round each of the two trees is measured in a process of its own, first one and then
the other, and in the next round the other way round. All figures are CPU times, so that other
programs on the machine have little effect; for publishing and delivering it is the time of all
threads of the broker's process. Each row has the median of the rounds, in brackets the lowest and
the highest.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from bench_cost import thread_use
from bench_produce import measure, running_broker
from bench_seek import PER_MS, START_MS, fill
from report import Figure, lower, show
from rounds import Sample, add_rounds, in_turns

from pulsemark.finder import Finder, SearchMethod
from pulsemark.ledger import LocalStore, StoreOptions
from pulsemark.testing import RawClient, SettableClock
from pulsemark.testing.raw_messages import batched_message, unbatched_message

ROOT = Path(__file__).resolve().parent.parent
TOPIC = "persistent://public/default/compared"
ENTRIES = 50_000
SEARCHES = 2_000
WINDOW = 4_000
BATCH = 10
COUNTED = 101
UNITS = {
    "append 100 B, one topic": "us/entry",
    "append 100 B, the interpreter's steps": "steps/entry",
    "seek by time, by index": "us/search",
    "seek by time, by prefixes": "us/search",
    "seek by time, the interpreter's steps": "steps/search",
    "publish 100 B, no batching": "us/message",
    "deliver 100 B to an Exclusive consumer": "us/message",
    f"deliver batches of {BATCH} to an Exclusive consumer": "us/entry",
}


def steps_of(function: Callable[[], object]) -> int:
    """How many bytecode instructions a call runs in this thread."""
    steps = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal steps
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        steps += event == "opcode"
        return trace

    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(None)
    return steps


def append_costs(folder: Path) -> list[float]:
    """CPU of the appending thread for one entry, and its steps."""
    with LocalStore.open(folder, options=StoreOptions(sync_interval_ms=100)) as store:
        topic = store.open_topic(TOPIC)
        body = unbatched_message(bytes(100), publish_time_ms=START_MS)
        start = time.thread_time()
        for _ in range(ENTRIES):
            appended = topic.append(body)
        taken = time.thread_time() - start
        appended.commit.wait()
        steps = [steps_of(lambda: topic.append(body)) for _ in range(COUNTED)]
    return [taken / ENTRIES * 1e6, Sample.of(steps).median]


def seek_costs(folder: Path) -> list[float]:
    """CPU of one search, by index and by prefixes, and the steps of one by index."""
    clock = SettableClock(START_MS)
    with LocalStore.open(folder, clock=clock) as store:
        topic = store.open_topic(TOPIC)
        fill(topic, clock, ENTRIES)
        finder = Finder(topic)
        taken = []
        for method in (SearchMethod.INDEX, SearchMethod.PREFIXES):
            times = [START_MS + number * 7919 % (ENTRIES // PER_MS) for number in range(SEARCHES)]
            start = time.thread_time()
            for time_ms in times:
                finder.by_time(time_ms, method=method)
            taken.append((time.thread_time() - start) / SEARCHES * 1e6)
        steps = [steps_of(partial(finder.by_time, time_ms)) for time_ms in times[:COUNTED]]
    return [*taken, Sample.of(steps).median]


def cpu_s(pid: int) -> float:
    """What all threads of a process have used, exactly."""
    return sum(spent.total_s for spent in thread_use(pid).values())


def deliver_us(messages: int, body: bytes, count: int) -> float:
    """CPU of the broker for one stored entry that an Exclusive consumer gets."""
    with running_broker() as (pid, url), RawClient.from_url(url) as client:
        producer = client.create_producer(TOPIC)
        for start in range(0, messages, WINDOW):
            part = min(WINDOW, messages - start)
            for _ in range(part):
                producer.post(body, num_messages=count)
            producer.receipts(part)
        consumer = client.subscribe(TOPIC, "s", earliest=True)
        before = cpu_s(pid)
        for start in range(0, messages, WINDOW):
            part = min(WINDOW, messages - start)
            consumer.flow(part * count)
            consumer.receive_many(part)
        return (cpu_s(pid) - before) / messages * 1e6


def measure_tree(messages: int) -> list[float]:
    """All rows, in the order of UNITS, with the sources that this process imports."""
    with tempfile.TemporaryDirectory() as folder:
        appended = append_costs(Path(folder) / "append")
        searched = seek_costs(Path(folder) / "seek")
    # More of them, because this time is counted in hundredths of a second.
    published = measure(1, 4 * messages, WINDOW)[1]
    single = unbatched_message(bytes(100), publish_time_ms=START_MS)
    batch = batched_message([bytes(100)] * BATCH, publish_time_ms=START_MS)
    delivered = [deliver_us(messages, single, 1), deliver_us(messages, batch, BATCH)]
    return [*appended, *searched, published, *delivered]


def measured(sources: Path, messages: int) -> list[float]:
    """The rows of a tree, from a process that imports it."""
    command = [sys.executable, __file__, "--measure", "--messages", str(messages)]
    environment = {**os.environ, "PYTHONPATH": str(sources)}
    ran = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    printed = json.loads(ran.stdout.splitlines()[-1])
    if Path(printed["package"]).parent != sources:
        raise SystemExit(f"{printed['package']} was measured instead of {sources}")
    rows: list[float] = printed["rows"]
    return rows


def unpack(commit: str, folder: Path) -> Path:
    """The sources of a commit."""
    command = ["git", "-C", str(ROOT), "archive", commit, "src"]
    ran = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    with tarfile.open(fileobj=io.BytesIO(ran.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


def compare(commit: str, rounds: int, messages: int) -> list[Figure]:
    """Both trees, in turns."""
    with tempfile.TemporaryDirectory() as folder:
        trees = [(ROOT / "src").resolve(), unpack(commit, Path(folder).resolve())]
        runs = in_turns(rounds, *(partial(measured, tree, messages) for tree in trees))
    figures = []
    for row, (name, unit) in enumerate(UNITS.items()):
        ours, theirs = ([taken[row] for taken in column] for column in runs)
        figures.append(lower(name, ours, theirs, unit, commit[:12]))
    return figures


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Compare this tree's costs with a commit's.")
    parser.add_argument("commit", nargs="?", help="the commit to compare with")
    add_rounds(parser, 5)
    parser.add_argument("--messages", type=int, default=40_000, help="messages of a job (40000)")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.messages < 1:
        parser.error("--messages must be at least 1")
    if options.measure:
        import pulsemark

        package = str(Path(pulsemark.__file__).resolve().parent)
        print(json.dumps({"package": package, "rows": measure_tree(options.messages)}))
    elif options.commit is None:
        parser.error("give the commit to compare with")
    else:
        figures = compare(options.commit, options.rounds, options.messages)
        show("this tree and an earlier one", figures)


if __name__ == "__main__":
    main()

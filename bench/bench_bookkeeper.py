"""This package's broker beside Apache Pulsar's, on the same three bookies, 3/3/2.

    python bench/bench_bookkeeper.py [HOME] [--rounds 3] [--seconds 4] [--failovers 2]
                                     [--limit-minutes 9] [--perf] [--only ROW ...]

HOME is an unpacked Apache Pulsar (default: ~/.cache/pulsar-peer/apache-pulsar-4.0.8). ZooKeeper and
the bookies are its own (`bookkeeper_peer`). Both brokers run all the time, and only one is loaded.
After a warm-up of both the rounds alternate. Shown are the median, the lowest and the highest
figure of all rounds; a ratio above 1 says that pulsemark is better.

Messages come from a sender of prepared frames (`raw_publisher`), which costs little; reads and
waiting sends are the official Python client's. At the end a second broker joins each, and the owner
of a topic that gets a message every 10 ms is killed. ``--perf`` adds Pulsar's own pulsar-perf,
about 17 s for each of its rows in each round.

Without arguments it takes some 8 minutes on two cores without other work. A row that fails is
reported, and the others go on; after ``--limit-minutes`` no further round begins.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import compare_pulsar
import pulsar
import pulsar_client_jobs
from bench_client import connect, consume, seek_ms, window_1_ms
from bookkeeper_brokers import Side
from bookkeeper_brokers import pulsar as pulsar_side
from bookkeeper_brokers import pulsemark as pulsemark_side
from bookkeeper_failover import failovers
from compare_pulsar import Row
from pulsar_client_jobs import ClientJobs, moments
from raw_publisher import Blobs, Published, Publisher, batch_frames, plain_frames

from pulsemark.finder import Finder
from pulsemark.ledger.bookkeeper.reader import BookKeeperReader

sys.path.append(str(Path(__file__).resolve().parent.parent / "campaigns"))
from bookkeeper_peer import BookKeeperPeer

BOOKIE_MEMORY_MB = 1_024
"""With less a bookie can end under this load, and Apache Pulsar then writes no more."""
HOME = Path.home() / ".cache" / "pulsar-peer" / "apache-pulsar-4.0.8"
SMALL_BYTES, LARGE_BYTES, BATCH, TOPICS = 100, 131_072, 100, 1_000
LARGE_MB = LARGE_BYTES / 1e6
MOST_LARGE, MOST_BATCHES, MOST_READ = 1_000, 10_000, 200_000
WINDOW_1, SEEKS, SEARCHES = 300, 10, 60
ROWS = {
    "unbatched": Row("publish 100 B, unbatched", "/s", goal=0.5),
    "topics": Row("publish 100 B, unbatched, 1,000 topics", "/s", goal=0.5),
    "batched": Row("publish 100 B, batches of 100", " messages/s", goal=0.5),
    "large": Row("publish 128 KiB", " MB/s", goal=0.5),
    "cpu unbatched": Row("broker's CPU a message, unbatched", " us", is_higher_better=False),
    "cpu topics": Row("broker's CPU a message, 1,000 topics", " us", is_higher_better=False),
    "cpu batched": Row("broker's CPU a batch of 100", " us", is_higher_better=False),
    "cpu large": Row("broker's CPU a message, 128 KiB", " us", is_higher_better=False),
    "open topics": Row("look up 1,000 topics and open a producer of each", " s", False),
    "window_1": Row("durable send, window 1, p50", " ms", is_higher_better=False),
    "catch_up_batched": Row("catch-up, batches of 100 x 100 B", " messages/s"),
    "catch_up_large": Row("catch-up, 128 KiB", " MB/s", goal=1),
    "seek": Row("client.seek(time) to the first message, p50", " ms", False),
    "search": Row("search by time over REST, less an empty request, p50", " ms", False, 20),
    "search library": Row("search by time: library; Pulsar's REST, p50", " ms", False, 20),
    "failover": Row("longest pause after the owner's SIGKILL", " s", is_higher_better=False),
    **{
        f"perf {name}": Row(compare_pulsar.ROWS[f"perf {name}"].title, unit, goal=0.5)
        for name, unit in (("unbatched", "/s"), ("batched", "/s"), ("large", " MB/s"))
    },
}
JOBS = (
    *("unbatched", "topics", "batched", "large", "window_1", "catch_up_batched", "catch_up_large"),
    *("seek", "search", "search library"),
)
PERF_JOBS = ("perf unbatched", "perf batched", "perf large")


class Frames:
    """What the sender sends, prepared once."""

    def __init__(self) -> None:
        self.unbatched = Blobs.of(plain_frames(1, 8_000, SMALL_BYTES), 250)
        self.topics = Blobs.of(plain_frames(TOPICS, 8_000, SMALL_BYTES), 250)
        self.batched = Blobs.of(batch_frames(400, BATCH, SMALL_BYTES), 10)
        self.large = Blobs.of(plain_frames(1, 50, LARGE_BYTES), 5)


class Round:
    """The jobs of one round for one side; a job notes its figures."""

    def __init__(
        self, side: Side, store: str, number: int | str, seconds: float, frames: Frames, home: Path
    ) -> None:
        self._side, self._store, self._seconds, self._frames = side, store, seconds, frames
        self._home = home
        self._broker = side.brokers[0]
        self._name = f"persistent://public/default/round-{number}"
        self._published: dict[str, Published] = {}

    def run(self, job: str) -> None:
        """Do one job. What it needs of another one that has failed is a KeyError."""
        perf = job.removeprefix("perf ")
        if perf != job:
            self._perf(perf)
        else:
            getattr(self, job.replace(" ", "_"))()

    def _publish(
        self, name: str, blobs: Blobs, window: int, most: int, topics: list[str]
    ) -> Published:
        publisher = Publisher(self._broker.service_url)
        try:
            began_s = time.perf_counter()
            publisher.open_producers(topics)
            if len(topics) > 1:
                self._side.note("open topics", time.perf_counter() - began_s)
            before_s = self._broker.cpu_s()
            done = publisher.publish(blobs, window=window, seconds=self._seconds, most=most)
            used_s = self._broker.cpu_s() - before_s
        finally:
            publisher.close()
        self._side.note(f"cpu {name}", used_s / done.frames * 1e6)
        self._published[name] = done
        return done

    def _topic(self, name: str) -> str:
        return f"{self._name}-{name}"

    def unbatched(self) -> None:
        """100 B, each an entry."""
        topics = [self._topic("unbatched")]
        done = self._publish("unbatched", self._frames.unbatched, 4_000, sys.maxsize, topics)
        self._side.note("unbatched", done.rate)

    def topics(self) -> None:
        """The same, to 1,000 topics in turns."""
        topics = [f"persistent://public/default/many-{number}" for number in range(TOPICS)]
        done = self._publish("topics", self._frames.topics, 4_000, sys.maxsize, topics)
        self._side.note("topics", done.rate)

    def batched(self) -> None:
        """100 messages of 100 B are an entry."""
        topics = [self._topic("batched")]
        done = self._publish("batched", self._frames.batched, 400, MOST_BATCHES, topics)
        self._side.note("batched", done.rate * BATCH)

    def large(self) -> None:
        """128 KiB, each an entry."""
        topics = [self._topic("large")]
        done = self._publish("large", self._frames.large, 100, MOST_LARGE, topics)
        self._side.note("large", done.rate * LARGE_MB)

    def _with_client(self, work: Callable[[pulsar.Client], float]) -> float:
        client = connect(self._broker.service_url)
        try:
            return work(client)
        finally:
            client.close()

    def window_1(self) -> None:
        """A send that waits for its receipt."""
        self._side.note(
            "window_1",
            self._with_client(
                lambda client: statistics.median(
                    window_1_ms(client, self._topic("window-1"), WINDOW_1)
                )
            ),
        )

    def catch_up_batched(self) -> None:
        """A reader of what `batched` has stored."""
        count = min(MOST_READ, self._published["batched"].frames * BATCH)
        topic = self._topic("batched")
        self._side.note(
            "catch_up_batched", self._with_client(lambda client: consume(client, topic, count))
        )

    def catch_up_large(self) -> None:
        """A reader of what `large` has stored."""
        count = self._published["large"].frames
        topic = self._topic("large")
        rate = self._with_client(lambda client: consume(client, topic, count))
        self._side.note("catch_up_large", rate * LARGE_MB)

    def _moments(self, count: int) -> list[int]:
        done = self._published["unbatched"]
        return moments(done.first_ms, done.last_ms, count)

    def seek(self) -> None:
        """A consumer seeks in what `unbatched` has stored."""
        topic, times = self._topic("unbatched"), self._moments(SEEKS)
        taken = self._with_client(lambda client: statistics.median(seek_ms(client, topic, times)))
        self._side.note("seek", taken)

    def search(self) -> None:
        """A search by time over REST."""
        done = self._published["unbatched"]
        jobs = ClientJobs(self._broker.service_url, self._broker.http_url, "search")
        try:
            taken = jobs.search(self._topic("unbatched"), done.first_ms, done.last_ms)
        finally:
            jobs.close()
        self._side.note("search", taken)
        if self._side.name != "pulsemark":
            self._side.note("search library", taken)

    def search_library(self) -> None:
        """A search by time without a broker, in ledgers of ours."""
        if self._side.name == "pulsemark":
            with BookKeeperReader.open(self._store) as reader:
                finder = Finder(reader.log(self._topic("unbatched")))
                taken = compare_pulsar.median_ms(finder.by_time, self._moments(SEARCHES))
            self._side.note("search library", taken)

    def _perf(self, name: str) -> None:
        broker, figures = self._broker, dict[str, list[float]]()
        assert broker.process is not None
        side = compare_pulsar.Side(
            self._side.name, broker.service_url, broker.http_url, broker.process.pid,
            self._home, figures=figures,
        )  # fmt: skip
        compare_pulsar.produce(self._home, side, name, self._topic(f"perf-{name}"), 14)
        self._side.note(f"perf {name}", figures[f"perf {name}"][0])


class Run:
    """The whole: what failed is kept, and the rest goes on."""

    def __init__(self, arguments: argparse.Namespace, store: str, sides: tuple[Side, Side]) -> None:
        self._arguments, self._store, self._sides = arguments, store, sides
        self._frames = Frames()
        self._began_s = time.monotonic()
        self.failures: list[str] = []

    def attempt(self, what: str, work: Callable[[], None]) -> None:
        """Do something, and keep why it failed."""
        try:
            work()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the other rows go on
            self.failures.append(f"{what}: {type(error).__name__}: {error}")
            print(f"FAILED {self.failures[-1]}", file=sys.stderr)

    def say(self, what: str) -> None:
        """Say how far it is."""
        print(f"{what} after {time.monotonic() - self._began_s:.0f} s", file=sys.stderr)

    def is_late(self) -> bool:
        """Whether no further round is to begin."""
        return time.monotonic() - self._began_s > 60 * float(self._arguments.limit_minutes)

    def measure(self) -> None:
        """Warm both up, then all rounds and the failovers."""
        jobs = [job for job in self._arguments.jobs if job != "failover"]
        for side in self._sides:
            self._round(side, "warm-up", jobs)
            side.figures.clear()
        for number in range(self._arguments.rounds):
            if self.is_late():
                self.failures.append(f"round {number} and later ones were left out: too late")
                break
            for side in self._sides if number % 2 == 0 else reversed(self._sides):
                self._round(side, number, jobs)
        count = self._arguments.failovers if "failover" in self._arguments.jobs else 0
        for side in self._sides if count else ():
            self.attempt(f"failovers of {side.name}", partial(failovers, side, count))
            self.say(f"failovers of {side.name} done")

    def _round(self, side: Side, number: int | str, jobs: list[str]) -> None:
        arguments = self._arguments
        one = Round(side, self._store, number, arguments.seconds, self._frames, arguments.home)
        for job in jobs:
            self.attempt(f"round {number}, {side.name}, {job}", partial(one.run, job))
        self.say(f"round {number} of {side.name} done")


def table(ours: Side, peer: Side) -> Iterator[str]:
    """The lines of the table, in Markdown."""
    yield "| job | pulsemark | Apache Pulsar | ratio | at least |"
    yield "|---|---|---|---|---|"
    for name, row in ROWS.items():
        mine, theirs = ours.figures.get(name), peer.figures.get(name)
        if mine or theirs:
            goal = f"{row.goal:g}x" if row.goal else ""
            shown = f"{spread(mine, row.unit)} | {spread(theirs, row.unit)}"
            yield f"| {row.title} | {shown} | {ratio(row, mine, theirs)} | {goal} |"


def ratio(row: Row, ours: list[float] | None, theirs: list[float] | None) -> str:
    """Above 1 ours is better."""
    if not ours or not theirs:
        return "-"
    value = statistics.median(ours) / statistics.median(theirs)
    return f"{value if row.is_higher_better else 1 / value:.3g}x"


def spread(values: list[float] | None, unit: str) -> str:
    """The median, and the lowest and highest value."""
    if not values:
        return "failed"
    middle, low, high = (
        f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
        for value in (statistics.median(values), min(values), max(values))
    )
    return f"{middle}{unit} ({low} to {high})"


def parsed() -> argparse.Namespace:
    """The arguments."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("home", type=Path, nargs="?", default=HOME, metavar="HOME")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4, help="of each publishing job")
    parser.add_argument("--failovers", type=int, default=2, help="of each side")
    parser.add_argument("--limit-minutes", type=float, default=9)
    parser.add_argument("--perf", action="store_true", help="pulsar-perf's rows, too")
    parser.add_argument("--only", nargs="+", choices=(*JOBS, *PERF_JOBS, "failover"))
    parser.add_argument("--folder", type=Path, help="of the bookies (default: a temporary one)")
    arguments = parser.parse_args()
    rows = [*JOBS, *(PERF_JOBS if arguments.perf else ()), "failover"]
    arguments.jobs = arguments.only or rows
    return arguments


def main() -> int:
    """Measure, print; 1 if a row failed."""
    arguments = parsed()
    if not (arguments.home / "bin" / "pulsar").exists():
        print(f"skipped: no Apache Pulsar in {arguments.home}")
        return 0
    pulsar_client_jobs.SEARCHES = SEARCHES
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        bookies = BookKeeperPeer(
            arguments.folder or folder / "bookies", bookie_memory_mb=BOOKIE_MEMORY_MB
        )
        stack.callback(bookies.stop)
        bookies.start(3)
        ours = pulsemark_side(bookies, folder)
        peer = pulsar_side(arguments.home, bookies, folder)
        for side in (ours, peer):
            stack.callback(side.stop)
            side.add_broker()
        run = Run(arguments, bookies.store, (ours, peer))
        run.measure()
    print("\n".join(table(ours, peer)))
    for failure in run.failures:
        print(f"failed: {failure}")
    figures = {"ours": ours.figures, "peer": peer.figures, "failures": run.failures}
    print(json.dumps({"bench": "bench_bookkeeper", **figures}))
    return 1 if run.failures else 0


if __name__ == "__main__":
    raise SystemExit(main())

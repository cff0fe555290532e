"""Following a broker beside publishing to it, and what a follower's look at the source costs.

    python bench/bench_follow.py [--messages N] [--topics N] [--rounds N]

A broker, a publisher (this process) and `pulsemark follow` are processes of their own. Messages of
1 KB are published alone and beside a follower, in turns; the lag is the time from the last receipt
until the follower has everything durably. Then a follower with an empty folder brings all of it.
The last rows are one `FollowState` call to a broker with that many open topics, by gRPC, and of a
follower that reads the same folder itself.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from bench_kafka import WAIT_S, ended
from report import Figure, higher, lower, show
from rounds import add_rounds

from pulsemark.client import RawProducer
from pulsemark.finder import SeekClient
from pulsemark.ledger import FolderReader, LedgerError
from pulsemark.mirror import Options, open_followed
from pulsemark.testing.raw_messages import unbatched_message

TOPIC = "persistent://public/default/bench"
BODY = unbatched_message(bytes(1000), publish_time_ms=1)


def publish(url: str, topic: str, count: int) -> float:
    """Publish messages; seconds until all have their receipts."""
    with RawProducer(url, topic) as producer:
        began_s = time.perf_counter()
        for _ in range(count):
            producer.publish(BODY, num_messages=1)
        producer.flush()
        return time.perf_counter() - began_s


def end_of(folder: Path) -> int:
    """How many messages a folder has of the topic."""
    try:
        with FolderReader(folder) as reader:
            return reader.log(TOPIC).next_index
    except (LedgerError, OSError):
        return 0


def follow(grpc_url: str, folder: Path, *more: str) -> subprocess.Popen[bytes]:
    """Start a follower."""
    command = ["follow", f"grpc://{grpc_url}", "--data-dir", str(folder), *more]
    return subprocess.Popen([sys.executable, "-m", "pulsemark", *command],
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip


def until(folder: Path, count: int) -> float:
    """Seconds until a follower's folder has so many messages."""
    began_s = time.perf_counter()
    while end_of(folder) < count:
        if time.perf_counter() - began_s > WAIT_S:
            raise SystemExit(f"{folder} does not get {count} messages")
        time.sleep(0.002)
    return time.perf_counter() - began_s


def rates(urls: dict[str, str], folder: Path, count: int, rounds: int) -> list[Figure]:
    """Publishing alone and beside a follower, and following from the beginning."""
    alone, beside, lags_ms, whole = [], [], [], []
    sent = 0
    for number in range(rounds):
        alone.append(count / publish(urls["service_url"], TOPIC, count))
        sent += count
        began_s = time.perf_counter()
        with ended(follow(urls["grpc_url"], folder / f"f{number}")):
            until(folder / f"f{number}", 1)
            first_s = time.perf_counter() - began_s
            began_s = time.perf_counter()
            until(folder / f"f{number}", sent)
            whole.append(sent / max(time.perf_counter() - began_s, 1e-3))
            print(f"round {number}: started in {first_s:.1f} s", file=sys.stderr)
            beside.append(count / publish(urls["service_url"], TOPIC, count))
            sent += count
            lags_ms.append(1000 * until(folder / f"f{number}", sent))
    return [
        higher("published beside a follower", beside, alone, "/s", "alone"),
        higher("followed from an empty folder", whole, alone, "/s", "published alone"),
        lower("lag after the last receipt", lags_ms, None, "ms"),
    ]


def states(urls: dict[str, str], folder: Path, topics: int, rounds: int) -> list[Figure]:
    """One call for the state of many topics."""
    for number in range(topics):
        publish(urls["service_url"], f"{TOPIC}-{number}", 1)
    by_grpc, known, by_folder = [], [], []
    source = open_followed(str(folder / "data"), Options())
    with SeekClient(urls["grpc_url"]) as client:
        for _ in range(rounds * 5):
            began_s = time.perf_counter()
            digest = client.follow_state(timeout_s=WAIT_S).digest
            middle_s = time.perf_counter()
            client.follow_state(digest, timeout_s=WAIT_S)
            after_s = time.perf_counter()
            source.state(digest)
            by_grpc.append(1000 * (middle_s - began_s))
            known.append(1000 * (after_s - middle_s))
            by_folder.append(1000 * (time.perf_counter() - after_s))
    source.close()
    return [
        lower(f"state of {topics} topics, gRPC, the first", by_grpc, None, "ms"),
        lower(f"state of {topics} topics, gRPC, as in each round", known, None, "ms"),
        lower(f"state of {topics} topics, a folder", by_folder, None, "ms"),
    ]


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--topics", type=int, default=1_000)
    add_rounds(parser)
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        command = [sys.executable, "-m", "pulsemark", "standalone", "--json", "--port", "0",
                   "--http-port", "0", "--grpc-port", "0", "--data-dir",
                   str(folder / "data")]  # fmt: skip
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        stack.enter_context(ended(process))
        assert process.stdout is not None
        urls = json.loads(process.stdout.readline())
        figures = rates(urls, folder, arguments.messages, arguments.rounds)
        figures += states(urls, folder, arguments.topics, arguments.rounds)
    show("Following a broker", figures)


if __name__ == "__main__":
    main()

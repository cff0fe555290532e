"""Failovers under load: several brokers on Apache BookKeeper, one of which ends again and again.

    python campaigns/failover_campaign.py [--failovers 10] [--brokers 3] [--topics 8] [--seed 1]
        [--store zk://HOST:PORT/ledgers] [--json FILE]

Apache Pulsar's Python client publishes to all topics without a pause. On a seeded schedule a broker
is killed (SIGKILL), ended in good order (SIGTERM), or paused for longer than its session (SIGSTOP);
what was killed or ended is started again. Measured is the longest time for which one of its topics
had no acknowledgement. A client notices a paused broker only when it wakes up, or by its own
keep-alive; a lookup lets another broker take its topics over before that, so that what it stores
when it wakes up must be refused. At the end all topics are read:

1. every acknowledged message is there, and first copies are in the order of sending;
2. indexes have no gap and do not repeat; broker times never decrease;
3. with leader epochs, each takeover has begun one;
4. no message was stored once more after its receipt.

Without --store a ZooKeeper and three bookies are started (campaigns/bookkeeper_peer.py).
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pulsar
from bookkeeper_peer import BookKeeperPeer, free_port

from pulsemark.client import RawReader, Service
from pulsemark.client.errors import ClientError
from pulsemark.proto import pulsar_api_pb2 as pb

SESSION_TIMEOUT_MS = 4_000
TAKEN_S = 6.2
"""After this time the session of a paused broker has ended: ZooKeeper looks every 2 s."""
PAUSE_S = 7.5
"""Until then another broker has taken the topics over, since a lookup has asked for them."""
START_LIMIT_S = 90.0
FAILOVER_LIMIT_S = 60.0
READ_TRIES = 10
"""The leader moves bundles while topics are read."""
INTERVAL_S = 0.02
"""Between two messages to one topic."""


class BrokerProcess:
    """One broker, on the same ports each time."""

    def __init__(self, number: int, store: str, folder: Path, *options: str) -> None:
        self.number = number
        self.port, self.http_port = free_port(), free_port()
        self._log = folder / f"broker-{number}.log"
        self._command = [
            *(sys.executable, "-m", "pulsemark", "standalone", "--json", "--store", store),
            *("--port", str(self.port), "--http-port", str(self.http_port)),
            *("--session-timeout-ms", str(SESSION_TIMEOUT_MS), "--log-level", "info"),
            *("--expose-broker-entry-metadata", "--leader-epochs", *options),
        ]
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """What lookups answer."""
        return f"pulsar://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and return when it is ready."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=log)
        assert self.process.stdout is not None
        if not self.process.stdout.readline():
            raise SystemExit(
                f"broker {self.number} does not start: {self._log.read_text()[-3000:]}"
            )

    def signal(self, number: int) -> None:
        """Send a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def ended(self) -> None:
        """Wait for its end."""
        assert self.process is not None
        self.process.wait(START_LIMIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def kill(self) -> None:
        """End it, if it runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def rest(self, method: str, path: str, body: Any = None) -> Any:
        """A REST call."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.http_port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text else None


class Load:
    """One topic's producer: a message every few milliseconds."""

    def __init__(self, client: pulsar.Client, topic: str) -> None:
        self.topic = topic
        self.acknowledged: dict[int, float] = {}
        """When each message was acknowledged, by its sequence id."""
        self.acknowledged_ms: dict[int, int] = {}
        """The same by the clock of this machine, which is the brokers' clock, too."""
        self.places: dict[int, str] = {}
        """What its receipt said."""
        self.sent_s: list[float] = []
        self.refused = 0
        self._lock = threading.Lock()
        self._producer = client.create_producer(
            topic,
            producer_name=f"load-{topic.rpartition('/')[2]}",
            send_timeout_millis=0,
            batching_enabled=False,
            max_pending_messages=20_000,
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            number = len(self.sent_s)
            self.sent_s.append(time.monotonic())
            self._producer.send_async(b"%d" % number, lambda r, i, n=number: self._done(n, r, i))

    def _done(self, number: int, result: pulsar.Result, place: Any) -> None:
        with self._lock:
            if result == pulsar.Result.Ok:
                self.acknowledged[number] = time.monotonic()
                self.acknowledged_ms[number] = time.time_ns() // 1_000_000
                self.places[number] = f"{place.ledger_id()}:{place.entry_id()}"
            else:
                self.refused += 1

    def gap_s(self, event_s: float, since_s: float) -> float | None:
        """The longest time without an acknowledgement since an event.

        None: no message has been acknowledged yet that was sent after ``since_s``.
        """
        with self._lock:
            items = list(self.acknowledged.items())
        if not any(self.sent_s[number] >= since_s for number, _ in items):
            return None
        times = sorted(done_s for _, done_s in items)
        pairs = [(a, b) for a, b in pairwise(times) if b >= event_s]
        return max((b - max(a, event_s) for a, b in pairs), default=0.0)

    def stop(self) -> None:
        """Send no more, and wait for what was sent."""
        self._stop.set()
        self._thread.join()
        self._producer.flush()
        self._producer.close()


def owners_of(brokers: list[BrokerProcess], topics: list[str]) -> dict[str, str]:
    """The broker's URL of each topic."""
    asked = next(one for one in brokers if one.process is not None and one.process.poll() is None)
    found = {}
    for topic in topics:
        path = f"/lookup/v2/topic/{topic.replace('://', '/')}"
        for _ in range(100):
            try:
                found[topic] = asked.rest("GET", path)["brokerUrl"]
                break
            except OSError:
                time.sleep(0.2)  # its bundle is on the way to another broker
    return found


class Pause:
    """A paused broker: another one is asked for its topics, and then it wakes up."""

    def __init__(
        self, chosen: BrokerProcess, others: list[BrokerProcess], topics: list[str]
    ) -> None:
        self.taken: dict[str, str] = {}
        """The topics' owners when it woke up."""
        self._chosen = chosen
        self._asking = threading.Timer(TAKEN_S, self._ask, (others, topics))
        self._waking = threading.Timer(PAUSE_S, chosen.signal, (signal.SIGCONT,))
        self._asking.start()
        self._waking.start()

    def _ask(self, others: list[BrokerProcess], topics: list[str]) -> None:
        self.taken = owners_of(others, topics)

    def wait(self) -> None:
        """Return when it is awake."""
        self._waking.join()
        self._asking.join()


def failover(
    random_: random.Random,
    brokers: list[BrokerProcess],
    loads: list[Load],
    kinds: dict[str, int],
) -> dict[str, Any]:
    """One event, and what it took."""
    owners = owners_of(brokers, [load.topic for load in loads])
    chosen = random_.choice([one for one in brokers if one.url in owners.values()])
    kind = random_.choices(list(kinds), list(kinds.values()))[0]
    mine = [load for load in loads if owners[load.topic] == chosen.url]
    number = {"kill": signal.SIGKILL, "end": signal.SIGTERM, "pause": signal.SIGSTOP}[kind]
    event_s = time.monotonic()
    chosen.signal(number)
    pause = None
    if kind == "pause":
        others = [one for one in brokers if one is not chosen]
        pause = Pause(chosen, others, [load.topic for load in mine])
    if kind == "end":
        chosen.ended()
    over_s = time.monotonic()
    taken: dict[str, float] = {}
    while len(taken) < len(mine) and time.monotonic() - event_s < FAILOVER_LIMIT_S:
        time.sleep(0.05)
        for load in mine:
            gap_s = load.gap_s(event_s, over_s)
            if gap_s is not None:
                taken.setdefault(load.topic, gap_s)
    if pause is not None:
        pause.wait()
    else:
        if kind == "kill":
            chosen.ended()
        chosen.start()
    return {
        "kind": kind,
        "at_s": round(event_s, 2),
        "broker": chosen.number,
        "topics": len(mine),
        "missing": [load.topic for load in mine if load.topic not in taken],
        "longest_s": round(max(taken.values(), default=0.0), 2),
        "taken_in_pause": 0
        if pause is None
        else sum(u != chosen.url for u in pause.taken.values()),
    }


def check_all(service: Service, first: BrokerProcess, loads: list[Load]) -> dict[str, Any]:
    """Read all topics: counts, and what is wrong. A reader begins again if its topic moves."""
    names = ("acknowledged", "entries", "copies", "copies_after_receipt", "refused")
    total: dict[str, Any] = dict.fromkeys(names, 0)
    epochs, wrong = [], []
    for load in loads:
        begins, found = [], []
        for _ in range(READ_TRIES):
            seen = dict.fromkeys(names, 0)
            try:
                begins = _epochs(first, load.topic)
                found = check(service, load, begins, seen)
                break
            except (ClientError, OSError) as error:
                found = [f"{load.topic} cannot be read: {error}"]
                time.sleep(2)
        wrong += found
        epochs.append(len(begins))
        for name in names:
            total[name] += seen[name]
    return {**total, "epochs": epochs, "wrong": wrong}


def check(service: Service, load: Load, epochs: list[int], seen: dict[str, Any]) -> list[str]:
    """Read one topic; what is wrong. ``epochs`` are the indexes of its leader epochs' entries."""
    wrong: list[str] = []
    first: dict[int, int] = {}
    index, time_ms, entries, controls, late = 0, 0, 0, set(epochs), []
    with RawReader(service, load.topic, timeout_s=60) as reader:
        for entry in reader.entries():
            entries += 1
            stamp = entry.stamp
            if stamp is None:
                wrong.append(f"{entry.position}: no stamp, {entry.header}")
                continue
            while index in controls and stamp.index > index:
                index += 1  # an entry that begins an epoch, which clients do not get
            if stamp.index != index + entry.message_count - 1:
                wrong.append(f"{entry.position}: index {stamp.index} after {index - 1}")
            if stamp.broker_timestamp < time_ms:
                wrong.append(f"{entry.position}: time {stamp.broker_timestamp} after {time_ms}")
            index, time_ms = stamp.index + 1, stamp.broker_timestamp
            if entry.header is not None:
                number = entry.header.sequence_id
                if first.setdefault(number, entries) != entries and (
                    stamp.broker_timestamp > load.acknowledged_ms.get(number, sys.maxsize)
                ):
                    late.append((number, str(entry.position)))
    lost = sorted(set(load.acknowledged) - set(first))
    if lost:
        shown = [(n, load.places[n], round(load.acknowledged[n], 2)) for n in lost[:5]]
        wrong.append(f"{len(lost)} acknowledged messages are lost, such as {shown}")
    if late:
        wrong.append(f"{len(late)} copies were stored after the receipt, such as {late[:5]}")
    order = sorted(first, key=first.__getitem__)
    if order != sorted(order):
        wrong.append("first copies are not in the order of sending")
    seen["acknowledged"] += len(load.acknowledged)
    seen["entries"] += entries
    seen["copies"] += entries - len(first)
    seen["copies_after_receipt"] += len(late)
    seen["refused"] += load.refused
    return [f"{load.topic}: {text}" for text in wrong]


def campaign(arguments: argparse.Namespace, store: str, folder: Path) -> dict[str, Any]:
    """The whole run."""
    random_ = random.Random(arguments.seed)
    brokers = [BrokerProcess(number, store, folder) for number in range(arguments.brokers)]
    namespace = f"failover/run-{time.time_ns() // 1_000_000}"
    with ExitStack() as at_end:
        for one in brokers:
            one.start()
            at_end.callback(one.kill)
        first = brokers[0]
        if "failover" not in first.rest("GET", "/admin/v2/tenants"):
            first.rest("PUT", "/admin/v2/tenants/failover", {"allowedClusters": ["standalone"]})
        first.rest("PUT", f"/admin/v2/namespaces/{namespace}", {})
        time.sleep(1)
        logger = logging.getLogger("pulsar")
        logger.setLevel(logging.ERROR)
        url = "pulsar://" + ",".join(one.url.removeprefix("pulsar://") for one in brokers)
        client = pulsar.Client(url, logger=logger, operation_timeout_seconds=60)
        at_end.callback(client.close)
        names = [f"persistent://{namespace}/t-{number}" for number in range(arguments.topics)]
        loads = [Load(client, name) for name in names]
        events = []
        try:
            for _ in range(arguments.failovers):
                time.sleep(random_.uniform(1.0, 3.0))
                events.append(failover(random_, brokers, loads, arguments.kinds))
                print(json.dumps(events[-1]), flush=True)
        finally:
            for load in loads:
                load.stop()
        flags = pb.FeatureFlags(supports_broker_entry_metadata=True)
        service = Service(url, feature_flags=flags)
        result = check_all(service, first, loads)
        service.close()
    times = sorted(one["longest_s"] for one in events)
    return {
        "failovers": len(events),
        "longest_s": times[-1],
        "median_s": times[len(times) // 2],
        "above_10_s": sum(one > 10 for one in times),
        "kinds": {
            kind: [e["longest_s"] for e in events if e["kind"] == kind]
            for kind in ("kill", "end", "pause")
        },
        "not_back": [e for e in events if e["missing"]],
        **result,
    }


def _epochs(broker: BrokerProcess, topic: str) -> list[int]:
    """The index of each leader epoch's first entry."""
    path = f"/admin/v2/{topic.replace('://', '/')}/epochs"
    return [one["firstIndex"] for one in broker.rest("GET", path)["epochs"]]


def _weights(text: str) -> dict[str, int]:
    """`kill=5,end=3` as numbers."""
    return {name: int(weight) for name, _, weight in (p.partition("=") for p in text.split(","))}


def parser_of(text: str | None, brokers: int = 3) -> argparse.ArgumentParser:
    """What each campaign on bookies may be told; `text`: its docstring."""
    parser = argparse.ArgumentParser(description=(text or "").partition("\n")[0])
    parser.add_argument("--brokers", type=int, default=brokers)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--logs", type=Path, help="copy all logs into this folder")
    return parser


@contextmanager
def on_bookies(logs: Path | None) -> Iterator[tuple[Path, BookKeeperPeer]]:
    """A folder for the brokers' logs, and in it bookies, to be started; they end with it."""
    with tempfile.TemporaryDirectory(prefix="failover-") as name:
        folder = Path(name)
        peer = BookKeeperPeer(folder / "peer")
        try:
            yield folder, peer
        except BaseException:
            for log in sorted(folder.glob("broker-*.log")):
                print(f"--- {log.name}\n{log.read_text()[-4000:]}", file=sys.stderr)
            raise
        finally:
            peer.stop()
            if logs is not None:
                logs.mkdir(parents=True, exist_ok=True)
                for log in (*folder.glob("broker-*.log"), *folder.glob("peer/*/log")):
                    shutil.copy(log, logs / f"{log.parent.name}-{log.name}")


def run(
    parser: argparse.ArgumentParser,
    campaign: Callable[[argparse.Namespace, str, Path], dict[str, Any]],
) -> int:
    """Run a campaign of failovers, and print what it found; 0 if nothing is wrong."""
    parser.add_argument("--store", help="zk://HOST:PORT/ledgers (default: one is started)")
    parser.add_argument("--failovers", type=int, default=10)
    parser.add_argument("--json", type=Path, help="write the result into this file, too")
    arguments = parser.parse_args()
    with on_bookies(arguments.logs) as (folder, peer):
        if arguments.store is None:
            peer.start(3)
        result = campaign(arguments, arguments.store or peer.store, folder)
    print(json.dumps(result, indent=1))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result))
    return 1 if result["wrong"] or result.get("not_back") else 0


def main() -> int:
    """Run it; 0 if nothing is wrong."""
    parser = parser_of(__doc__)
    parser.add_argument("--topics", type=int, default=8)
    parser.add_argument(
        "--kinds",
        type=_weights,
        default=_weights("kill=5,end=3,pause=2"),
        help="how often each is chosen (default: kill=5,end=3,pause=2)",
    )
    return run(parser, campaign)


if __name__ == "__main__":
    raise SystemExit(main())

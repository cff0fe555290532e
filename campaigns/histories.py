"""Random work of real clients under faults, judged by what the clients saw.

    python campaigns/histories.py [--minutes 10] [--faults kill,pause] [--seed 1] [--mutant NAME]
    python campaigns/histories.py --on workers | cluster
    python campaigns/histories.py --virtual 600 [--seed 1] [--on cluster]
    python campaigns/histories.py --service-url pulsar://HOST:6650 --http-url http://HOST:8080
    python campaigns/histories.py --kafka-url HOST:9092

Official Python clients of Pulsar and kafka-python publish to a topic for each lane, consume, seek
and acknowledge (`histories_clients.py`), while what they talk to is killed, paused, filled and
moved in time (`histories_systems.py`). Each step goes into a history. At the end every topic is
read from its first message, and `pulsemark.testing.histories` finds what cannot have happened.

`--virtual` makes histories of so many minutes of virtual time (`tests/support/simulated_history`),
ten minutes for each seed: raw clients, a real broker on a simulated disk, kills and power cuts, all
in this process without sockets and sleeping. A seed repeats exactly. With `--on cluster` the broker
is a member of a cluster on simulated bookies, which fail; while it is paused, another one takes its
topics over (`tests/support/simulated_cluster`).

With `--service-url` the same work is done on another broker, a real Pulsar for example, and with
`--kafka-url` alone on a Kafka; with `--pid`, its process, it is disturbed, too. `--mutant` runs a
broker with a fault of its own (`mutants.py`), which must be found; `--all-mutants` runs each of
them until it is found, for at most the minutes. Prints a table, the first anomalies, and what of
the broker's interfaces was used; keeps the history in `--out`, and beside it a picture of each kind
of anomaly. A client that does not end, its library's call for example, is named and left: what it
cannot have seen is no anomaly. Exit code 1 for an anomaly, a client that was left, or a mutant not
found.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

from histories_clients import Left, Run, begin, prepare, read_logs, start
from histories_movers import move, movers
from histories_systems import Cluster, Foreign, OneBroker, System, Workers
from mutants import FAULTS_OF, MUTANTS, NO_MUTANT, ON_BOOKIES, served

from pulsemark.testing import BrokerProcessError
from pulsemark.testing.histories import Anomaly, History, Step, check, picture, table
from tests.support.simulated_history import On, simulated_history

SHOWN = 3
#: A mutant's histories.
ROUND_S = 25.0
#: A client is left when no client has done anything for so long, or all of them are not at their
#: end after the longest time.
ENDED_S, LONGEST_S = 150.0, 900.0
#: So many messages are acknowledged before each fault of `--times`.
RECEIPTS = 100
#: Of each virtual history; and those tried for a shorter one of the same seed.
VIRTUAL_MINUTES, SHORTER = 10.0, (0.5, 1, 2, 4)


def disturb(run: Run, system: System, faults: list[str], until_s: float, times: int | None) -> None:
    """Make one fault after the other, for some time, and not more than so many."""
    unknown = set(faults) - set(system.faults)
    if unknown:
        raise SystemExit(f"--faults: there is no {unknown}; there are {', '.join(system.faults)}")
    done = 0
    while faults and time.monotonic() < until_s and done != times:
        if times is not None and not has_receipts(run):
            run.left.append(Left("all producers", "wait for receipts", ENDED_S, ""))
            return
        time.sleep(run.random.uniform(2, 5) if times is None else run.random.uniform(0.2, 1.5))
        name, begin_ns = run.random.choice(faults), run.now_ns()
        system.faults[name]()
        run.note("fault", begin_ns, client="faults", value=name)
        done += 1
    if times is None:
        time.sleep(max(0.0, until_s - time.monotonic()))


def has_receipts(run: Run) -> bool:
    """Wait until some messages that were sent after now are acknowledged: a fault might lose them.

    False: that takes too long.
    """
    since_ns, until_s = run.now_ns(), time.monotonic() + ENDED_S
    place, left = len(run.steps), RECEIPTS
    while left > 0:
        if time.monotonic() > until_s:
            return False
        time.sleep(0.1)
        steps = run.steps[place:]
        place += len(steps)
        left -= sum(s.what == "send" and bool(s.ok) and s.begin_ns >= since_ns for s in steps)
    return True


def add_moves(run: Run, used: Path) -> None:
    """Note when brokers have given topics to others, whose clients had to connect again then."""
    for line in used.read_text(encoding="utf-8").splitlines():
        kind, _, at = line.partition(" ")
        if kind == "moved":
            begin_ns = int(at) - run.began_ns
            about: dict[str, Any] = {"what": "fault", "value": "balance", "client": "balancer"}
            run.steps.append(Step(begin_ns=begin_ns, end_ns=begin_ns, **about))


def join(run: Run, threads: list[threading.Thread]) -> None:
    """Wait for their ends, for as long as clients do anything; what does not end is left."""
    seen, began_s = len(run.steps), time.monotonic()
    since_s = began_s
    while alive := [thread for thread in threads if thread.is_alive()]:
        alive[0].join(0.1)
        now_s = time.monotonic()
        if len(run.steps) != seen:
            seen, since_s = len(run.steps), now_s
        if now_s - since_s > ENDED_S or now_s - began_s > LONGEST_S:
            run.left += [_left(thread, now_s - began_s) for thread in alive]
            return


def _left(thread: threading.Thread, seconds: float) -> Left:
    """Where a client is, in its own code and in a library's."""
    frames = traceback.extract_stack(sys._current_frames().get(thread.ident or 0))
    ours = (
        each for each in reversed(frames) if Path(__file__).parent in Path(each.filename).parents
    )
    own = next(ours, frames[0])
    call = f"{own.line}, in {frames[-1].name}"
    return Left(thread.name, call, seconds, thread.name.split()[-1].removesuffix("-mover"))


def system_of(
    arguments: argparse.Namespace, stack: ExitStack, mutant: str | None, faults: list[str] | None
) -> System:
    """What is judged."""
    random, has_power = Random(arguments.seed), "power" in (faults or ())
    if arguments.service_url or arguments.kafka_url:
        urls = arguments.service_url, arguments.http_url, arguments.kafka_url
        return Foreign(random, *urls, arguments.pid)
    used = used_file(arguments, mutant)
    if arguments.on == "workers":
        return Workers(random, stack, used, mutant=mutant or NO_MUTANT)
    if arguments.on == "cluster":
        return Cluster(random, stack, used, has_power=has_power)
    return OneBroker(random, stack, used, mutant=mutant or NO_MUTANT, has_power=has_power)


def used_file(arguments: argparse.Namespace, mutant: str | None) -> Path:
    """Where brokers note what of them is used."""
    return Path(arguments.out / f"{mutant or arguments.on}-{arguments.seed}.used").absolute()


def print_use(path: Path) -> None:
    """How much of the interfaces the clients used, and what they did not."""
    if not path.exists():
        print("\nWhat of its interfaces was used only a broker of ours notes, so it is not known")
        return
    used = set(path.read_text(encoding="utf-8").splitlines())
    for kind, names in served().items():
        there = sorted(name for name in names if f"{kind} {name}" in used)
        left = sorted(names.difference(there))
        is_short = len(there) < len(left)
        which = f"these: {', '.join(there)}" if is_short else f"not: {', '.join(left)}"
        print(f"\n{len(there)} of {len(names)} {kind} were used; {which}")


def history_of(
    arguments: argparse.Namespace, mutant: str | None, faults: list[str] | None, seconds: float
) -> tuple[History, list[Left]]:
    """Work for some time, and return what was seen, and the clients that did not end."""
    with ExitStack() as stack:
        system = system_of(arguments, stack, mutant, faults)
        faults = list(system.DEFAULT) if faults is None else faults
        run = Run(
            system.service_url, system.kafka_url, system.http_urls, system.random,
            "clock" in faults, system.has_transactions,
        )  # fmt: skip
        prepare(run)
        consumers, producers = begin(run)
        moving = [start(move, mover) for mover in movers(run)]
        disturb(run, system, faults, time.monotonic() + seconds, arguments.times)
        run.stop.set()
        join(run, producers)
        run.is_produced.set()
        join(run, moving)
        run.is_sent.set()
        join(run, consumers)
        read_logs(run)
        print(system.report())
    if (used := used_file(arguments, mutant)).exists():
        add_moves(run, used)
    return History(run.seen()), run.left


def judge(
    arguments: argparse.Namespace, mutant: str | None, faults: list[str] | None, seconds: float
) -> bool:
    """Make a history, print what is wrong in it; whether something is."""
    arguments.out.mkdir(parents=True, exist_ok=True)
    used_file(arguments, mutant).unlink(missing_ok=True)
    history, left = history_of(arguments, mutant, faults, seconds)
    for topic in sorted({step.topic for step in history.steps if step.what == "send"}):
        if not any(step.ok for step in history.of(topic, "send")):
            raise SystemExit(f"{topic}: no message was acknowledged, so nothing was judged")
    found = check(history)
    name = f"{mutant or arguments.on}-{arguments.seed}"
    history.save(arguments.out / f"{name}.jsonl")
    print(f"\n{mutant or 'The broker'}: {arguments.out / name}.jsonl\n")
    done = Counter(fault.value for fault in history.faults)
    print("Faults:", ", ".join(f"{count} {fault}" for fault, count in done.items()) or "none")
    print("\n".join(table(history, found)))
    print_use(used_file(arguments, mutant))
    for anomaly in {each.name: each for each in reversed(found)}.values():
        path = arguments.out / f"{name}-{anomaly.name}.svg"
        path.write_text(picture(history, anomaly), encoding="utf-8")
        print(f"picture: {path}")
    for anomaly in found[:SHOWN]:
        print(f"\n{anomaly}", flush=True)
    if left:
        print("\nLeft, and on its topic nobody is said to have seen all:")
    for each in left:
        where = f"topic {each.topic}" if each.topic else "all was seen without it"
        print(f"- {each.client} after {each.seconds:.0f} s in {each.call}; {where}")
    return bool(found or left)


def judge_virtually(seed: int, minutes: float, mutant: str | None, on: On) -> bool:
    """Make histories in virtual time, and print what is wrong in them; whether something is."""
    began_s, seen, faults, bad = time.process_time(), 0, Counter[str | None](), 0
    seeds = range(seed, seed + max(1, round(minutes / VIRTUAL_MINUTES)))
    if mutant is not None:
        MUTANTS[mutant]()
    for each in seeds:
        history, found = _virtual(each, min(minutes, VIRTUAL_MINUTES), on)
        seen += len(history.steps)
        faults.update(fault.value for fault in history.faults)
        if found:
            bad += 1
            shortest = next((m for m in SHORTER if _virtual(each, m, on)[1]), VIRTUAL_MINUTES)
            print(f"\nseed {each}, with --virtual {shortest}: {found[0]}", flush=True)
        if found and mutant is not None:
            break
    spent_s = time.process_time() - began_s
    hours = (each - seed + 1) * min(minutes, VIRTUAL_MINUTES) / 60
    print(f"{hours:.2f} virtual hours in {spent_s / 3600:.3f} hours of a core: "
          f"{hours * 3600 / spent_s:.0f} in one; {seen:,} steps, faults: {dict(faults)}; "
          f"{bad} of {each - seed + 1} histories have an anomaly")  # fmt: skip
    return bool(bad)


def _virtual(seed: int, minutes: float, on: On) -> tuple[History, list[Anomaly]]:
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        history = simulated_history(Path(folder) / "data", seed, minutes=minutes, on=on)
    return history, check(history)


def finds(arguments: argparse.Namespace, mutant: str, seconds: float) -> bool:
    """Make short histories of a mutant, with other seeds, until one shows it or time is over."""
    began_s, is_found = time.monotonic(), False
    while time.monotonic() < began_s + seconds:
        try:
            is_found = judge(arguments, mutant, FAULTS_OF.get(mutant, []), ROUND_S)
        except BrokerProcessError as error:
            is_found = True
            print(error)
        if is_found:
            print(f"FOUND {mutant} after {time.monotonic() - began_s:.0f} s", flush=True)
            return True
        arguments.seed += 1
    print(f"MISSED {mutant}", flush=True)
    return False


def main() -> int:
    """Parse the arguments, work, judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, help="10, or as long as --times takes")
    parser.add_argument("--times", type=int, help="so many faults at most")
    parser.add_argument("--faults", type=lambda text: text.split(",") if text else [])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("build/histories"))
    parser.add_argument("--on", choices=("broker", "workers", "cluster"), default="broker")
    parser.add_argument("--virtual", type=float, metavar="MINUTES", help="in virtual time")
    parser.add_argument("--mutant", choices=MUTANTS)
    in_real_time = [name for name in MUTANTS if name not in ON_BOOKIES]
    parser.add_argument("--only", nargs="*", default=in_real_time, choices=MUTANTS)
    parser.add_argument("--all-mutants", action="store_true")
    parser.add_argument("--service-url", default="", help="of another broker")
    parser.add_argument("--http-url", default="", help="its admin interface")
    parser.add_argument("--kafka-url", default="", help="for Kafka's clients, of it or of a Kafka")
    parser.add_argument("--pid", type=int, help="its process, to be killed and paused")
    arguments = parser.parse_args()
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    if arguments.service_url and not urlsplit(arguments.http_url).netloc:
        parser.error("--service-url needs --http-url")
    if arguments.virtual:
        logging.disable()
        if arguments.on == "workers":
            parser.error("--virtual has no workers")
        if os.environ.get("PYTHONHASHSEED") != "0":  # a seed says it all, also the order of sets
            fixed = {**os.environ, "PYTHONHASHSEED": "0"}
            os.execve(sys.executable, [sys.executable, *sys.argv], fixed)
        is_wrong = judge_virtually(
            arguments.seed, arguments.virtual, arguments.mutant, arguments.on
        )
        return int(is_wrong is (arguments.mutant is None))
    seconds = 60 * (arguments.minutes or (10 if arguments.times is None else math.inf))
    if not arguments.all_mutants:
        is_wrong = judge(arguments, arguments.mutant, arguments.faults, seconds)
        return int(is_wrong is (arguments.mutant is None))
    missed = [name for name in arguments.only if not finds(arguments, name, seconds)]
    found = len(arguments.only) - len(missed)
    print(f"\n{found} of {len(arguments.only)} mutants found; missed: {missed}")
    return int(bool(missed))


if __name__ == "__main__":
    try:
        code = main()
    except Exception:  # noqa: BLE001 - whatever it is: the end must not wait for clients
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    os._exit(code)  # clients that wait for something have threads that would abort the process

"""Kills the pipeline's writing jobs (kill -9) at seeded points, runs them again, and compares.

    python campaigns/pipeline_kill_campaign.py --cycles 200 --seed 1
    python campaigns/pipeline_kill_campaign.py --cycles 5 --spark

Without ``--spark``, the jobs' tasks run in the driver's process, which is forked for each run: a
run takes part of a second, and dies at a chosen change of the file system or after a chosen time.
With ``--spark``, they run in a real Spark, and its driver, or one of its Python workers, dies after
a chosen time; two cycles of a job kill both. After each kill the table shows nothing
half-written; after the last one the job is repeated, and must have given what an undisturbed run
gives. Prints a table and one line of JSON. Exit code 1 if something differs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from pipeline_kills.jobs import JOBS, Job, fill
from pipeline_kills.spark_kills import SPARK_JOBS, VICTIMS, Campaign

KILLS_MAX = 3
CHILD_S = 100
_CHANGES = ("open", "os.rename", "os.remove", "os.mkdir", "os.link", "sqlite3.connect")


def die_at(change: int) -> None:
    """Let this process die at its n-th change of the file system."""
    left = [change]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _CHANGES or (event == "open" and not _writes(arguments)):
            return
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def _writes(arguments: tuple[Any, ...]) -> bool:
    return bool(int(arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR))


def in_fork(
    run: Callable[[], object], *, change: int | None = None, after_s: float | None = None
) -> int:
    """Run in a child; returns its wait status. It dies at a change, or after a time."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(CHILD_S)
            if change is not None:
                die_at(change)
            run()
            code = 0
        except BaseException as error:  # noqa: BLE001 - a fork must never return
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)
    if after_s is not None:
        time.sleep(after_s)
        os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def asked(question: Callable[[], list[str]]) -> list[str]:
    """The answer of a child. This process runs nothing itself: threads do not survive a fork."""
    with tempfile.NamedTemporaryFile() as file:
        answer = Path(file.name)
        status = in_fork(lambda: answer.write_text(json.dumps(question())))
        if status:
            return [f"a check ended with status {status}"]
        return [str(problem) for problem in json.loads(answer.read_text())]


def cycle(job: Job, data: Path, folder: Path, made: random.Random) -> tuple[int, list[str]]:
    """Kill a job some times, repeat it, and compare; returns how many died, and what is wrong."""
    run = job(data, folder)
    in_fork(run.prepare)
    died, problems = 0, []
    for _ in range(made.randrange(1, KILLS_MAX + 1)):
        if made.random() < 0.6:
            status = in_fork(run.run, change=made.randrange(60))
        else:
            status = in_fork(run.run, after_s=made.random() * 1.5)
        died += os.WIFSIGNALED(status)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status):
            problems.append(f"a run failed with {os.WEXITSTATUS(status)}")
        problems += asked(run.problems_after_kill)
    status = in_fork(run.run)
    if status:
        problems.append(f"the last run ended with status {status}")
    return died, problems + asked(run.problems_at_end)


def campaign(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All cycles; returns the report."""
    data = folder / "data"
    in_fork(lambda: fill(data))
    names = arguments.jobs.split(",") if arguments.jobs else [*JOBS]
    problems: list[dict[str, object]] = []
    died = 0
    for number in range(arguments.cycles):
        seed = arguments.seed + number
        name = names[number % len(names)]
        place = folder / f"cycle-{seed}"
        place.mkdir()
        dead, found = cycle(JOBS[name], data, place, random.Random(seed))
        died += dead
        for problem in found:
            problems.append({"seed": seed, "job": name, "problem": problem})
            print(f"seed {seed}, {name}: {problem}", file=sys.stderr)
    counts = {"cycles": arguments.cycles, "died": died}
    return {"campaign": "pipeline kill -9", **counts, "found": problems}


def spark_campaign(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All cycles with Spark's own processes; returns the report."""
    data = folder / "data"
    fill(data, hours=8)
    names = arguments.jobs.split(",") if arguments.jobs else list(SPARK_JOBS)
    problems: list[dict[str, object]] = []
    kills: Counter[str] = Counter()
    with closing(Campaign(data, folder)) as running:
        for number in range(arguments.cycles):
            seed = arguments.seed + number
            name = names[number % len(names)]
            victim = arguments.victim or VICTIMS[sum(divmod(number, len(names))) % 2]
            began = time.monotonic()
            killed, found = running.cycle(name, seed, victim)
            taken_s = time.monotonic() - began
            print(f"seed {seed}, {name}: {killed} ({taken_s:.0f} s)", file=sys.stderr, flush=True)
            kills[killed] += 1
            for problem in found:
                problems.append({"seed": seed, "job": name, "problem": problem})
                print(f"seed {seed}, {name}: {problem}", file=sys.stderr)
    counts = {"cycles": arguments.cycles, **kills}
    return {"campaign": "pipeline kill -9, Spark", **counts, "found": problems}


def main() -> int:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cycles", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1, help="the first cycle's; then one more each")
    parser.add_argument("--spark", action="store_true", help="with Spark's drivers and workers")
    parser.add_argument("--jobs", help="only these, separated by commas")
    parser.add_argument("--victim", choices=VICTIMS, help="with --spark: only this one")
    arguments = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        run = spark_campaign if arguments.spark else campaign
        report = run(arguments, Path(temporary))
    report |= {"problems": len(report["found"]), "seconds": round(time.monotonic() - began, 1)}
    for name, value in report.items():
        if name != "found":
            print(f"{name:18} {value}")
    print(json.dumps({**report, "found": report["found"][:20]}))
    return 1 if report["found"] else 0


if __name__ == "__main__":
    sys.exit(main())

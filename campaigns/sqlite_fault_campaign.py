"""Every call of SQLite on the catalog's files fails once; then the process is killed.

    python campaigns/sqlite_fault_campaign.py              # needs strace, and no privileges

A child process opens a store, publishes, changes values, and deletes a topic. strace lets the k-th
call of one kind on `catalog.sqlite`, its WAL or its shared memory fail with EIO or ENOSPC, or all
calls from the k-th on. After a change that failed the child publishes once more, writes down what
its memory has, and ends by SIGKILL. Then the folder is opened here, and both must be the same; if
the child's store had stopped, all that was acknowledged before. Exit code 1 if they are not.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from itertools import count
from pathlib import Path
from typing import Any

from pulsemark.ledger import EARLIEST, LedgerError, LocalStore

TOPICS = ["persistent://public/default/a", "persistent://public/default/b"]
CALLS = "pwrite64", "pread64", "fdatasync", "fsync", "ftruncate"
ERRORS = "EIO", "ENOSPC"
KILLED = 137, -signal.SIGKILL


def content_of(store: LocalStore) -> dict[str, Any]:
    """Values, and each topic's entries."""
    topics: dict[str, Any] = {}
    for name in store.topic_names():
        entries = store.open_topic(name).read(EARLIEST, max_entries=1000)
        topics[name] = [bytes(entry.body).decode() for entry in entries]
    return {"topics": topics, "values": dict(map(_text, store.catalog.items("value")))}


def _text(item: tuple[str, bytes]) -> tuple[str, str]:
    return item[0], item[1].decode()


def live(folder: Path) -> None:
    """The child: until a change fails, or all are made. Its memory goes to standard output."""
    store = LocalStore.open(folder)
    has_failed = has_stopped = False
    try:
        for name in TOPICS:
            store.open_topic(name).append(b"first").commit.wait()
        for number in range(3):
            store.catalog.put("value", str(number), b"x" * 2000 * number)
        store.delete_topic(TOPICS[0])
        store.catalog.put("value", "last", b"x")
    except (LedgerError, OSError):
        has_failed = True
    try:
        for name in store.topic_names():
            store.open_topic(name, create=False).append(b"after").commit.wait()
        print(json.dumps({"failed": has_failed, **content_of(store)}), flush=True)
    except LedgerError:
        has_stopped = store.state.has_failed
        print(json.dumps({"stopped": has_stopped}), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def problem_of(folder: Path, call: str, error: str, when: str) -> tuple[str, bool]:
    """What is wrong after this fault, or nothing; and whether the fault came at all."""
    files = [f"-P{folder / 'catalog.sqlite'}{suffix}" for suffix in ("", "-wal", "-shm")]
    inject = f"inject={call}:error={error}:when={when}"
    trace = folder.with_suffix(".trace")
    command = ["strace", "-f", "-qq", "-o", str(trace), *files, "-e", inject]
    child = [sys.executable, __file__, "--child", str(folder)]
    done = subprocess.run([*command, *child], capture_output=True, text=True, check=False)
    is_hit = "INJECTED" in trace.read_text(encoding="utf-8", errors="replace")
    lines = done.stdout.splitlines()
    if not lines:  # the store did not open, which is an answer
        return ("" if "Error" in done.stderr else done.stderr[-500:]), is_hit
    memory = json.loads(lines[-1])
    with LocalStore.open(folder) as store:
        found = content_of(store)
    if memory.get("stopped"):
        return ("" if found["topics"].get(TOPICS[1]) else f"lost: {found}"), is_hit
    memory.pop("failed", None)
    return ("" if memory == found else f"memory {memory}, folder {found}"), is_hit


def main() -> int:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--calls", nargs="*", default=CALLS, help="the kinds of calls that fail")
    arguments = parser.parse_args()
    if arguments.child is not None:
        live(arguments.child)
    if shutil.which("strace") is None:
        parser.error("strace is not installed")
    runs = 0
    problems = []
    for call in arguments.calls:
        for error in ERRORS:
            for ending in ("", "+"):
                for number in count(1):
                    with tempfile.TemporaryDirectory() as temporary:
                        when = f"{number}{ending}"
                        problem, is_hit = problem_of(Path(temporary) / "d", call, error, when)
                    if not is_hit:
                        break
                    runs += 1
                    if problem:
                        problems.append(f"{call} {error} {when}: {problem}")
                        print(problems[-1], file=sys.stderr)
    print(json.dumps({"runs": runs, "problems": len(problems)}))
    return 1 if problems or not runs else 0


if __name__ == "__main__":
    sys.exit(main())

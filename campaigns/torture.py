"""The torture campaigns: `make torture SEED=1 CYCLES=500`.

    python campaigns/torture.py --seed 7 --cycles 1        # one failing cycle again
    python campaigns/torture.py --no-sync                  # the control: must report losses

The store runs on simulated disks that fail, tear writes and lose power, and a model checks it.
Prints a table and one line of JSON for each campaign. Exit code 1 if a campaign found a problem, or
if the control campaign found none.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))
from tests.support.torture import TortureReport, torture


def show(name: str, report: TortureReport) -> None:
    """Print the table, the problems and the line of JSON."""
    print(f"# {name}")
    for key, value in report.figures().items():
        print(f"{key:14} {value}")
    for problem in report.problems[:20]:
        print(f"seed {problem}", file=sys.stderr)
    print(json.dumps({"campaign": name, **report.figures(), "found": report.problems[:20]}))
    sys.stdout.flush()


def main() -> int:
    """Run the campaigns."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cycles", type=int, default=100)
    parser.add_argument("--no-sync", action="store_true", help="only the control campaign")
    parser.add_argument("--log", action="store_true", help="show what the store logs, too")
    arguments = parser.parse_args()
    if not arguments.log:
        logging.disable()
    memory = Path("/dev/shm")  # a catalog in memory needs no time for syncs
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as temporary:
        folder = Path(temporary)
        seed, cycles = arguments.seed, arguments.cycles
        good = True
        if not arguments.no_sync:
            report = torture(seed, cycles, folder, faults=False)
            show("power cuts and kills", report)
            good = good and not report.problems
            report = torture(seed, cycles, folder)
            show("power cuts, kills and failing calls", report)
            good = good and not report.problems
            report = torture(seed, cycles, folder, interval=True)
            show("interval mode, with failing calls of the catalog", report)
            good = good and not report.problems
        report = torture(seed, min(cycles, 20), folder, syncs=False, faults=False, survival="none")
        show("control: without syncs", report)
        if not report.problems:
            print("the control campaign found no losses: the checks do not work", file=sys.stderr)
            good = False
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

"""Kills a writing process (kill -9) at random points, many times on one data folder.

    python campaigns/kill_campaign.py --cycles 1000 --seed 1

Each cycle starts a process that writes to a store, kills it, opens the folder again and compares it
with the acknowledged entries. Prints a table and one line of JSON. Exit code 1 if an entry was
lost, duplicated or out of order.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))
from tests.support.kill_store import KillCampaign


def main() -> int:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cycles", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1, help="the first cycle's; then one more each")
    parser.add_argument(
        "--folder", type=Path, help="where to work; a temporary folder if not given"
    )
    arguments = parser.parse_args()
    began = time.monotonic()
    acknowledged, problems, ready_ms = 0, [], []
    with tempfile.TemporaryDirectory() as temporary:
        campaign = KillCampaign(arguments.folder or Path(temporary) / "data")
        for number in range(arguments.cycles):
            seed = arguments.seed + number
            result = campaign.cycle(seed)
            acknowledged += result.acknowledged
            ready_ms.append(result.ready_ms)
            for problem in result.problems:
                problems.append({"seed": seed, "problem": problem})
                print(f"seed {seed}: {problem}", file=sys.stderr)
    ready_ms.sort()
    report = {
        "campaign": "kill -9",
        "cycles": arguments.cycles,
        "first_seed": arguments.seed,
        "acknowledged": acknowledged,
        "problems": len(problems),
        "ready_ms_median": round(ready_ms[len(ready_ms) // 2], 1),
        "ready_ms_max": round(ready_ms[-1], 1),
        "seconds": round(time.monotonic() - began, 1),
    }
    for name, value in report.items():
        print(f"{name:18} {value}")
    print(json.dumps({**report, "found": problems[:20]}))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

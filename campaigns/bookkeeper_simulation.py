"""Thousands of seeded histories of the BookKeeper client against fake bookies, in virtual time.

    python campaigns/bookkeeper_simulation.py [--first SEED] [--seeds N] [--duels]
                                          [--without fence|fence-of-reads|floor]

Each seed is one history: contenders for a topic, a follower, and bad luck with bookies, network and
metadata. With `--duels` it is a short one, of one writer and one recovery. With an odd seed writers
append several entries at once, otherwise one by one. The run ends with 1 if
an invariant was broken. With `--without` one rule of recovery is left out, and the run ends with 1
if no history notices.
"""

from __future__ import annotations

import argparse
import sys
import time

from pulsemark.ledger.bookkeeper.client.recovery import RecoveryRules
from tests.support.bookkeeper_history import Outcome, run_history

CONTROLS = {
    "fence": RecoveryRules(fence=False),
    "fence-of-reads": RecoveryRules(fence_reads=False),
    "floor": RecoveryRules(floor_of_segment=False),
}


def main(arguments: list[str]) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description="seeded histories of the BookKeeper client")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1_000, help="how many histories")
    parser.add_argument("--without", choices=sorted(CONTROLS), help="leave out a rule of recovery")
    parser.add_argument("--duels", action="store_true", help="one writer and one recovery each")
    given = parser.parse_args(arguments)
    rules = CONTROLS[given.without] if given.without else RecoveryRules()
    started = time.monotonic()
    outcomes: list[Outcome] = []
    for seed in range(given.first, given.first + given.seeds):
        outcome = run_history(seed, rules, is_duel=given.duels, together=seed % 2 == 1)
        outcomes.append(outcome)
        if outcome.broken:
            print(f"seed {seed}: {outcome.broken[0]}", flush=True)
    broken = sum(bool(one.broken) for one in outcomes)
    print(
        f"{len(outcomes)} histories in {time.monotonic() - started:.0f} s: "
        f"{sum(one.steps for one in outcomes)} checks, "
        f"{sum(one.acked for one in outcomes)} entries acknowledged, "
        f"{sum(one.ledgers for one in outcomes)} ledgers, "
        f"{sum(one.recovered for one in outcomes)} recoveries, "
        f"{sum(one.ensemble_changes for one in outcomes)} ensemble changes, "
        f"{broken} with a broken invariant, {sum(len(one.broken) for one in outcomes)} violations"
    )
    return int((broken == 0) if given.without else (broken > 0))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

r"""Compare this broker with Apache Pulsar: the same commands and REST calls to both.

    python compat/compare_brokers.py --peer-service-url pulsar://127.0.0.1:6650 \
        --peer-admin-url http://127.0.0.1:8080 [--only NAME ...] [--jobs N] [--json FILE]

Starts a broker, runs every scenario of ``compat/differential`` against both brokers and prints each
answer that differs, field by field. Those that are meant to be have their reasons in
``differential/known.py``. A NAME may have wildcards ("access_*"). Scenarios mostly wait:
with ``--jobs`` several run at the same time. Exit code 1 if there is a difference without a reason.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeAlias

from pulsemark.broker import BrokerConfig, BrokerThread
from pulsemark.proto import pulsar_api_pb2 as pb

sys.path.insert(0, str(Path(__file__).parent))
from differential.cleaning_scenarios import CLEANING_SCENARIOS
from differential.known import KNOWN, entry_of, reason_of_answers, reason_of_lines
from differential.normalize import differences
from differential.peers import Recorder
from differential.policy_scenarios import POLICY_SCENARIOS
from differential.rest_scenarios import CLUSTER_WIDE, REST_SCENARIOS
from differential.schema_scenarios import SCHEMA_SCENARIOS
from differential.topic_scenarios import TOPIC_SCENARIOS
from differential.wire_scenarios import SCENARIOS, Scenario, walks

FLAGS = pb.FeatureFlags(supports_broker_entry_metadata=True)
Steps: TypeAlias = list[tuple[str, Any]]


def main() -> int:
    """Run the comparison."""
    args = _arguments()
    scenarios = {
        **SCENARIOS,
        **REST_SCENARIOS,
        **CLEANING_SCENARIOS,
        **POLICY_SCENARIOS,
        **SCHEMA_SCENARIOS,
        **TOPIC_SCENARIOS,
    }
    if args.cluster_wide:
        scenarios |= CLUSTER_WIDE
    if args.walks:
        first, last = args.seeds
        scenarios = walks(range(first, last + 1))
    patterns = args.only or ["*"]
    chosen = [name for name in scenarios if any(fnmatchcase(name, pattern) for pattern in patterns)]
    with (
        tempfile.TemporaryDirectory() as folder,
        BrokerThread(
            BrokerConfig(
                data_dir=Path(folder),
                port=0,
                http_port=0,
                exposing_broker_entry_metadata_to_client_enabled=True,
                acknowledgment_at_batch_index_level_enabled=args.batch_index_acks,
            )
        ) as broker,
        ThreadPoolExecutor(2 * args.jobs) as pool,
    ):
        run = f"{time.time_ns():x}"
        addresses = {
            "ours": (broker.service_url, broker.http_url),
            "theirs": (args.peer_service_url, args.peer_admin_url),
        }
        running = {
            name: [
                pool.submit(_recorded, Recorder(who, *urls, FLAGS), scenarios[name], name, run)
                for who, urls in addresses.items()
            ]
            for name in chosen
        }
        everything = {
            name: {"ours": ours.result(), "theirs": theirs.result()}
            for name, (ours, theirs) in _printed(running)
        }
    steps = sum(max(map(len, answers.values())) for answers in everything.values())
    found = [(name, *one) for name, both in everything.items() for one in _compare(name, **both)]
    new = [(name, label) for name, label, _, reason in found if reason is None]
    print(f"{steps} answers, {len(found)} differ, {len(new)} of them without a known reason")
    for name, label in new:
        print(f"  {name}: {label}")
    if args.entries:
        _print_entries({(name, label) for name, label, *_ in found}, chosen)
    if args.json:
        args.json.write_text(json.dumps(everything, indent=1, default=repr))
    return 1 if new else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer-service-url", required=True)
    parser.add_argument("--peer-admin-url", required=True)
    parser.add_argument("--only", nargs="*", help="names of scenarios")
    parser.add_argument(
        "--cluster-wide",
        action="store_true",
        help="also change what a whole cluster shares; only for a peer without other users",
    )
    parser.add_argument(
        "--batch-index-acks",
        action="store_true",
        help="the peer has acknowledgmentAtBatchIndexLevelEnabled=true",
    )
    parser.add_argument(
        "--walks",
        action="store_true",
        help="instead, commands in random orders",
    )
    parser.add_argument(
        "--seeds", type=int, nargs=2, default=(1, 4), help="the first and the last seed of --walks"
    )
    parser.add_argument(
        "--entries",
        action="store_true",
        help="at the end, list for each row of known.py the answers that it explained in this run",
    )
    parser.add_argument("--jobs", type=int, default=1, help="scenarios that run at the same time")
    parser.add_argument("--json", type=Path, help="write every answer of both here")
    return parser.parse_args()


def _recorded(recorder: Recorder, scenario: Scenario, name: str, run: str) -> Steps:
    """Run a scenario against one broker, and return its answers."""
    recorder.begin()
    try:
        scenario(recorder, f"persistent://public/default/{name}-{run}")
    except (LookupError, OSError) as error:  # what the following steps need did not arrive
        recorder.record(f"{recorder.name} ended the scenario", repr(error))
    finally:
        recorder.end()
    return recorder.steps


def _printed(running: dict[str, list[Future[Steps]]]) -> Iterator[tuple[str, list[Future[Steps]]]]:
    """The scenarios in order, each printed when both brokers have answered."""
    for name, both in running.items():
        ours, theirs = (one.result() for one in both)
        found = _compare(name, ours, theirs)
        print(f"{name}: {max(len(ours), len(theirs))} answers, {len(found)} differ", flush=True)
        for label, lines, reason in found:
            print(f"  {label}{f' (known: {reason})' if reason else ''}")
            for line in lines:
                print(f"    {line}")
        yield name, both


def _compare(name: str, ours: Steps, theirs: Steps) -> list[tuple[str, list[str], str | None]]:
    """The steps that differ: the lines that say how, and the reason if it is known."""
    found = []
    for number in range(max(len(ours), len(theirs))):
        left = ours[number] if number < len(ours) else ("-", None)
        right = theirs[number] if number < len(theirs) else ("-", None)
        lines = differences(left[1], right[1])
        if lines:
            label = left[0] if left[0] != "-" else right[0]
            entry = entry_of(name, label)
            reason = entry[2] if entry else reason_of_lines(lines)
            reason = reason or reason_of_answers(name, left[1], right[1])
            found.append((label, lines, reason))
    return found


def _print_entries(differing: set[tuple[str, str]], ran: list[str]) -> None:
    """Which answers each row of known.py explained; none: the row can go, or the answer is a race.

    Rows of scenarios that did not run are left out.
    """
    explained: dict[tuple[str, str, str], list[str]] = {
        row: [] for row in KNOWN if any(fnmatchcase(name, row[0]) for name in ran)
    }
    for name, label in sorted(differing):
        entry = entry_of(name, label)
        if entry is not None:
            explained[entry].append(f"{name}: {label}")
    for row, answers in explained.items():
        print(f"{len(answers)} by {row}")
        for answer in answers:
            print(f"    {answer}")


if __name__ == "__main__":
    sys.exit(main())

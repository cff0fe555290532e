r"""Compare the Kafka endpoint with a real Kafka: the same requests to both.

    python compat/compare_kafka.py --peer HOST:PORT --peer-version 2.8.2 \
        [--only NAME ...] [--all] [--json FILE]

Starts a broker, runs every scenario of ``compat/differential_kafka`` against both, and prints each
answer that differs, field by field. A version of a request is sent only if both serve it, and
formats before magic 2 are stored only if the peer converts (2.8 and older). Differences that are
meant, with their reason, are in ``differential_kafka/known.py`` and only counted; ``--all`` prints
them too. Exit code 1 if there is another one.

The peer is one broker with id 1 and no other clients, with ``group.initial.rebalance.delay.ms=0``,
``transaction.abort.timed.out.transaction.cleanup.interval.ms=500`` and, from 4.3 on,
``group.consumer.assignment.interval.ms=0``.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from kafka.protocol.producer import ProduceRequest

from pulsemark.broker import BrokerConfig, BrokerThread
from pulsemark.kafka.messages import CONSUMER_PROTOCOL

sys.path.insert(0, str(Path(__file__).parent))
from differential.normalize import differences
from differential_kafka.admin_scenarios import ADMIN_SCENARIOS
from differential_kafka.cluster_scenarios import CLUSTER_SCENARIOS
from differential_kafka.consumer_scenarios import CONSUMER_SCENARIOS
from differential_kafka.group_scenarios import GROUP_SCENARIOS, warm_up
from differential_kafka.known import reason_of
from differential_kafka.offset_scenarios import OFFSET_SCENARIOS
from differential_kafka.peers import Peer, served_by
from differential_kafka.record_scenarios import RECORD_SCENARIOS
from differential_kafka.session_scenarios import SESSION_SCENARIOS
from differential_kafka.transaction_scenarios import TRANSACTION_SCENARIOS
from differential_kafka.wire_scenarios import WIRE_SCENARIOS

SCENARIOS = {
    **ADMIN_SCENARIOS, **CLUSTER_SCENARIOS, **RECORD_SCENARIOS, **OFFSET_SCENARIOS,
    **SESSION_SCENARIOS, **GROUP_SCENARIOS, **TRANSACTION_SCENARIOS, **CONSUMER_SCENARIOS,
    **WIRE_SCENARIOS,
}  # fmt: skip


READ_MARK = ": client of magic"
"""In the labels of what is read of the set that was sent before."""


def main() -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", required=True, metavar="HOST:PORT")
    parser.add_argument("--peer-version", required=True)
    parser.add_argument("--only", nargs="*", choices=list(SCENARIOS), metavar="NAME")
    parser.add_argument("--json", type=Path, help="write every answer of both here")
    parser.add_argument("--all", action="store_true", help="print known differences too")
    args = parser.parse_args()
    everything: dict[str, Any] = {}
    answers = differing = meant = 0
    known: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        config = BrokerConfig(
            data_dir=Path(folder), port=0, http_port=None, kafka_port=0,
            kafka_group_initial_rebalance_delay_ms=0,
        )  # fmt: skip
        with BrokerThread(config) as broker:
            peers = _peers(broker.kafka_url, args.peer, args.peer_version)
            for peer in peers:
                peer.begin()
                warm_up(peer)
                peer.end()
            for name in args.only or SCENARIOS:
                everything[name] = run(name, peers)
                answers += len(everything[name]["theirs"])
                new, old = report(name, everything[name], known, args)
                differing, meant = differing + new, meant + old
    for why, count in known.most_common():
        print(f"{count:5} known: {why}")
    print(
        f"{answers} answers of Kafka {args.peer_version}: {meant} differ as is known, "
        f"{differing} otherwise"
    )
    if args.json:
        args.json.write_text(json.dumps(everything, indent=1, default=repr))
    return 1 if differing else 0


def _peers(ours: str, theirs: str, version: str) -> list[Peer]:
    left, right = served_by(ours), served_by(theirs)
    served = {
        key: (max(left[key][0], right[key][0]), min(left[key][1], right[key][1]))
        for key in left.keys() & right.keys()
    }
    if version[0] >= "4":
        # It says so for librdkafka's sake, and closes connections that send older ones (KIP-896).
        served[ProduceRequest.API_KEY] = (3, served[ProduceRequest.API_KEY][1])
    else:
        # 3.9 says that it serves them, and answers with 35.
        served = {key: each for key, each in served.items() if key not in CONSUMER_PROTOCOL}
    number = f"{time.time_ns():x}"
    converts = tuple(map(int, version.split(".")[:2])) < (3, 0)
    return [
        Peer(name, address, number, served, converts)
        for name, address in (("ours", ours), ("theirs", theirs))
    ]


def run(name: str, peers: list[Peer]) -> dict[str, list[tuple[str, Any]]]:
    """One scenario against both: their answers, each with its label."""
    for peer in peers:
        peer.begin()
        try:
            SCENARIOS[name](peer)
        except (LookupError, OSError, AttributeError) as error:
            # The answer that the following steps need did not come.
            peer.record("the scenario ended", repr(error))
        peer.end()
    return {peer.name: peer.steps for peer in peers}


def aligned(
    ours: list[tuple[str, Any]], theirs: list[tuple[str, Any]]
) -> Iterator[tuple[str, Any, Any]]:
    """Each step with both answers; None where one broker's answer to an earlier step ended it."""
    left, right = [step for step, _ in ours], [step for step, _ in theirs]
    for kind, i, j, k, m in SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        if kind == "equal":
            for (step, answer), (_, other) in zip(ours[i:j], theirs[k:m], strict=True):
                yield step, answer, other
        else:
            yield from ((step, answer, None) for step, answer in ours[i:j])
            yield from ((step, None, answer) for step, answer in theirs[k:m])


def report(
    name: str, steps: dict[str, list[tuple[str, Any]]], known: Counter[str], args: Any
) -> tuple[int, int]:
    """Print how the answers of a scenario differ; how many do, and how many as is known."""
    ours, theirs = steps["ours"], steps["theirs"]
    lines: list[str] = []
    differing = meant = 0
    why_before: str | None = None
    for step, left, right in aligned(ours, theirs):
        found = differences(left, right)
        reasons = [(line, reason_of(name, step, line)) for line in found]
        if (left is None or right is None) and why_before and READ_MARK in step:
            # Only one of them has stored the set, for a known reason.
            reasons = [(line, why_before) for line in found]
        if READ_MARK not in step:
            why_before = next((why for _, why in reasons if why), None)
        known.update({why for _, why in reasons if why})
        new = [line for line, why in reasons if not why]
        differing += bool(new)
        meant += bool(found) and not new
        shown = found if args.all else new
        lines += [f"  {step}", *(f"    {line}" for line in shown)] if shown else []
    print(f"{name}: {len(theirs)} answers, {differing} differ", *lines, sep="\n", flush=True)
    return differing, meant


if __name__ == "__main__":
    sys.exit(main())

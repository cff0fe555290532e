r"""Compare this broker with Apache Pulsar: the same commands and REST calls to both.

    python tools/compare_brokers.py --peer-service-url pulsar://127.0.0.1:6650 \
        --peer-admin-url http://127.0.0.1:8080 [--only NAME ...] [--json FILE]

Starts a broker, runs every scenario of ``tools/differential`` against both brokers and prints each
answer that differs, field by field. Exit code 1 if there is a difference.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pulsemark.broker import BrokerConfig, BrokerThread
from pulsemark.proto import pulsar_api_pb2 as pb

sys.path.insert(0, str(Path(__file__).parent))
from differential.cleaning_scenarios import CLEANING_SCENARIOS
from differential.normalize import differences
from differential.peers import Recorder
from differential.policy_scenarios import POLICY_SCENARIOS
from differential.rest_scenarios import CLUSTER_WIDE, REST_SCENARIOS
from differential.schema_scenarios import SCHEMA_SCENARIOS
from differential.topic_scenarios import TOPIC_SCENARIOS
from differential.wire_scenarios import SCENARIOS


def main() -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer-service-url", required=True)
    parser.add_argument("--peer-admin-url", required=True)
    parser.add_argument("--only", nargs="*", help="names of scenarios")
    parser.add_argument("--json", type=Path, help="write every answer of both here")
    parser.add_argument(
        "--cluster-wide",
        action="store_true",
        help="also change what a whole cluster shares; only for a peer without other users",
    )
    args = parser.parse_args()
    flags = pb.FeatureFlags(supports_broker_entry_metadata=True)
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
    chosen = args.only or list(scenarios)
    run = f"{time.time_ns():x}"
    everything: dict[str, Any] = {}
    steps = differing = 0
    with (
        tempfile.TemporaryDirectory() as folder,
        BrokerThread(BrokerConfig(data_dir=Path(folder), port=0, http_port=0)) as broker,
    ):
        ours = Recorder("ours", broker.service_url, broker.http_url, flags)
        theirs = Recorder("theirs", args.peer_service_url, args.peer_admin_url, flags)
        for name in chosen:
            for recorder in (ours, theirs):
                recorder.begin()
                try:
                    scenarios[name](recorder, f"persistent://public/default/{name}-{run}")
                except (
                    LookupError
                ) as error:  # the message that the following steps need did not arrive
                    recorder.record(f"{recorder.name} ended the scenario", repr(error))
                recorder.end()
            everything[name] = {"ours": ours.steps, "theirs": theirs.steps}
            found = _compare(ours.steps, theirs.steps)
            count = max(len(ours.steps), len(theirs.steps))
            steps += count
            differing += len(found)
            print(f"{name}: {count} answers, {len(found)} differ", flush=True)
            for label, lines in found:
                print(f"  {label}")
                for line in lines:
                    print(f"    {line}")
    print(f"{steps} answers, {differing} differ")
    if args.json:
        args.json.write_text(json.dumps(everything, indent=1, default=repr))
    return 1 if differing else 0


def _compare(
    ours: list[tuple[str, Any]], theirs: list[tuple[str, Any]]
) -> list[tuple[str, list[str]]]:
    found = []
    for number in range(max(len(ours), len(theirs))):
        left = ours[number] if number < len(ours) else ("-", None)
        right = theirs[number] if number < len(theirs) else ("-", None)
        lines = differences(left[1], right[1])
        if lines:
            found.append((left[0] if left[0] != "-" else right[0], lines))
    return found


if __name__ == "__main__":
    sys.exit(main())

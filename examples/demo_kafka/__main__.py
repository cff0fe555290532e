"""`python -m demo_kafka`: run the round; exit code 1 and one line when a check fails."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from demo.checks import CheckError
from kafka.errors import KafkaError
from pulsar import PulsarException

from .story import KafkaRound


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the arguments (None: the process's) and run the round; returns the exit code."""
    parser = argparse.ArgumentParser(prog="demo_kafka", description=__doc__)
    parser.add_argument(
        "--folder", type=Path, default=Path(".demo-kafka"), help="what it may use and empty"
    )
    parser.add_argument("--messages", type=int, default=12_000, metavar="N")
    args = parser.parse_args(arguments)
    shutil.rmtree(args.folder / "data", ignore_errors=True)
    args.folder.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    try:
        KafkaRound(args.folder, args.messages).run()
    except (CheckError, KafkaError, PulsarException, OSError, RuntimeError) as error:
        print(f"\ndemo-kafka: FAILED: {error}", file=sys.stderr)
        return 1
    print(f"demo-kafka: every check passed, {time.perf_counter() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())

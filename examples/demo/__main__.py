"""`python -m demo`: run the story; exit code 1 and one line when a check fails."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from .checks import CheckError
from .story import Story


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the arguments (None: the process's) and run the demo; returns the exit code."""
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    parser.add_argument("--plot", type=Path, metavar="PATH", help="where the picture goes")
    parser.add_argument(
        "--folder", type=Path, default=Path(".demo"), help="what the demo may use and empty"
    )
    parser.add_argument("--messages", type=int, default=102_000, metavar="N")
    args = parser.parse_args(arguments)
    args.folder.mkdir(parents=True, exist_ok=True)
    for name in ("data", "archive", "client.log", "spark.log"):
        _remove(args.folder / name)
    plot = args.plot or args.folder / "demo.png"
    started = time.perf_counter()
    try:
        Story(args.folder, plot, args.messages).run()
    except CheckError as error:
        print(f"\ndemo: FAILED: {error}", file=sys.stderr)
        return 1
    print(f"\ndemo: every check passed, {time.perf_counter() - started:.0f} s; picture: {plot}")
    return 0


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())

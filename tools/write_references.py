"""Write the pages of docs/ and the files of deploy/ that are made from the code.

    python tools/write_references.py            write them
    python tools/write_references.py --check    write nothing; name those that are out of date
    python tools/write_references.py --man pulsemark.1      write the manual page alone

A test runs it with --check: run it after a change of a command, a gRPC call, a request of Kafka's
protocol, a route, a setting, a metric or a public name.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from references.calls import calls_page
from references.commands import commands_page, man_page
from references.dashboard import dashboard
from references.metrics import metrics_page
from references.public_api import public_api
from references.requests import requests_page
from references.rest import rest_page
from references.settings import settings_page

ROOT = Path(__file__).resolve().parent.parent

PAGES: dict[str, Callable[[], str]] = {
    "deploy/grafana-dashboard.json": dashboard,
    "docs/cli-reference.md": commands_page,
    "docs/grpc-reference.md": calls_page,
    "docs/kafka-requests.md": requests_page,
    "docs/metrics.md": metrics_page,
    "docs/rest.md": rest_page,
    "docs/settings.md": settings_page,
    "tests/data/public_api.txt": public_api,
}


def main() -> int:
    """Write or compare; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--man", type=Path, metavar="FILE")
    args = parser.parse_args()
    if args.man is not None:
        args.man.write_text(man_page(), encoding="utf-8")
        return 0
    check = args.check
    stale = []
    for name, make in PAGES.items():
        path, text = ROOT / name, make()
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not check:
                path.write_text(text, encoding="utf-8")
    for name in stale:
        print(f"{name}: {'out of date' if check else 'written'}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    raise SystemExit(main())

"""`pulsemark stats [TOPIC ...]`: rates and backlogs of topics, once or again and again.

    pulsemark stats
    pulsemark stats orders --interval 2

Rates are what the broker measured over its last minute. On a terminal, `--interval` writes over the
table that is there; otherwise the tables follow each other.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING

from ..client.errors import AdminError, ServiceUrlError, UnreachableError
from .admin import add_broker, admin_client
from .options import add_json, full_topic, positive
from .tables import print_rows

if TYPE_CHECKING:
    from ..client.admin import AdminClient

ERRORS = (AdminError, UnreachableError, ServiceUrlError, OSError)
COLUMNS = (
    "topic", "in/s", "out/s", "bytes in/s", "bytes out/s", "stored", "backlog", "producers",
    "consumers",
)  # fmt: skip
CLEAR = "\x1b[H\x1b[2J"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "topics", nargs="*", metavar="TOPIC", help="short or full names (default: all topics)"
    )
    parser.add_argument(
        "--namespace", default="public/default", metavar="TENANT/NAMESPACE",
        help="whose topics, if none are named (default: public/default)",
    )  # fmt: skip
    parser.add_argument(
        "--interval", type=positive, metavar="SECONDS", help="show again after so many seconds"
    )
    parser.add_argument("--count", type=positive, metavar="N", help="end after showing N times")
    add_broker(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Show the figures."""
    admin = admin_client(args)
    wanted = [full_topic(name) for name in args.topics]
    shown = 0
    while True:
        rows = _rows(admin, wanted, args.namespace)
        if args.interval and sys.stdout.isatty() and not args.json:
            sys.stdout.write(CLEAR)
        print_rows(rows, COLUMNS, as_json=args.json)
        sys.stdout.flush()
        shown += 1
        if args.interval is None or shown == args.count:
            return 0
        time.sleep(args.interval)


def _rows(admin: AdminClient, wanted: list[str], namespace: str) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for topic in wanted or sorted(admin.topics(namespace)):
        try:
            stats = admin.stats(topic)
        except AdminError as error:
            if error.status == 404 and not wanted:  # deleted since it was listed
                continue
            raise
        subscriptions = stats["subscriptions"].values()
        rows.append(
            {
                "topic": topic,
                "in/s": float(stats["msgRateIn"]),
                "out/s": float(stats["msgRateOut"]),
                "bytes in/s": float(stats["msgThroughputIn"]),
                "bytes out/s": float(stats["msgThroughputOut"]),
                "stored": stats["storageSize"],
                "backlog": sum(each["msgBacklog"] for each in subscriptions),
                "producers": len(stats["publishers"]),
                "consumers": sum(len(each["consumers"]) for each in subscriptions),
            }
        )
    return rows

"""`pulsemark stats [TOPIC ...]`: rates and backlogs of topics, once or again and again.

    pulsemark stats
    pulsemark stats orders --interval 2

Rates are what the broker measured over its last minute. On a terminal, names and headings are
short, so that a row fits 80 columns, and `--interval` shows one table that changes, until Ctrl-C.
Otherwise the tables follow each other.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..client.errors import AdminError, ServiceUrlError, UnreachableError
from ..wire import InvalidTopicNameError, check_namespace
from .brokers import add_broker, admin_client
from .options import add_json, full_topic, positive
from .output import Table, counted, output_console, print_rows, print_table, table_of

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from ..client.admin import AdminClient

Rows = list[dict[str, object]]

ERRORS = (AdminError, UnreachableError, ServiceUrlError, InvalidTopicNameError, OSError)
COLUMNS = (
    "topic", "in/s", "out/s", "bytes in/s", "bytes out/s", "stored", "backlog", "producers",
    "consumers",
)  # fmt: skip
#: The headings on a terminal.
SHORT = {
    "bytes in/s": "B in/s", "bytes out/s": "B out/s", "producers": "prod", "consumers": "cons",
}  # fmt: skip
SORTED_BY = {
    "topic": "topic", "in": "in/s", "out": "out/s", "stored": "stored", "backlog": "backlog",
}  # fmt: skip


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
    parser.add_argument(
        "--sort", choices=tuple(SORTED_BY), default="topic", metavar="COLUMN",
        help=f"one of {', '.join(SORTED_BY)}; numbers from the highest (default: topic)",
    )  # fmt: skip
    add_broker(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Show the figures."""
    found = _found(args)
    console = None if args.json else output_console()
    if console is not None and args.interval is not None:
        _watch(console, args, found)
        return 0
    for rows in found:
        if console is not None:
            print_table(_for_people(rows), console)
        else:
            print_rows(rows, COLUMNS, as_json=args.json)
        sys.stdout.flush()
    return 0


def _for_people(rows: Rows) -> Table:
    """The table with short headings, and without the default namespace in names."""
    shown = [
        {SHORT.get(name, name): value for name, value in row.items()}
        | {"topic": str(row["topic"]).removeprefix("persistent://public/default/")}
        for row in rows
    ]
    return table_of(shown, [SHORT.get(name, name) for name in COLUMNS], for_people=True)


def _found(args: argparse.Namespace) -> Iterator[Rows]:
    """The figures, as often and as long as asked for."""
    admin = admin_client(args)
    wanted = [full_topic(name) for name in args.topics]
    check_namespace(args.namespace)
    column, shown = SORTED_BY[args.sort], 0
    while True:
        rows = _rows(admin, wanted, args.namespace)
        if column != "topic":
            rows.sort(key=lambda row: float(str(row[column])), reverse=True)
        yield rows
        shown += 1
        if args.interval is None or shown == args.count:
            return
        time.sleep(args.interval)


def _watch(console: Console, args: argparse.Namespace, found: Iterator[Rows]) -> None:
    """Show the figures on a screen of their own; the last ones stay on the terminal."""
    from rich.live import Live

    rows: Rows = []
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            for rows in found:
                live.update(_screen(console, args, rows), refresh=True)
    finally:
        if rows:
            print_table(_for_people(rows), console)


def _screen(console: Console, args: argparse.Namespace, rows: Rows) -> RenderableType:
    """What fits on the terminal, with a line above and, if rows were left out, one below."""
    from rich.console import Group
    from rich.text import Text

    title = f"{time.strftime('%H:%M:%S')}  {args.admin_url}  {counted(len(rows), 'topic')}"
    title += f"  every {args.interval} s, Ctrl-C ends"
    shown = len(rows)
    while True:
        table = _for_people(rows[:shown]).rendered(console.width)
        left = f"not shown: {counted(len(rows) - shown, 'topic')}: --sort, or name topics"
        left *= shown < len(rows)
        screen = Group(Text(title, overflow="fold"), Text(), table, Text(left))
        lines = len(console.render_lines(screen, pad=False))
        if lines <= console.height or shown == 0:
            return screen
        shown = max(0, shown - max(1, (lines - console.height) // 2))


def _rows(admin: AdminClient, wanted: list[str], namespace: str) -> Rows:
    rows: Rows = []
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

"""`pulsemark audit TOPIC` shows a topic's audit; `pulsemark audit compare TOPIC` compares tiers.

The rows come from a running broker that keeps an audit (`--admin-url`), or are counted from a data
folder, which needs neither a broker nor Spark (`--data-dir`); without TOPIC, of all its topics.
`--by producer` divides them by tags. Exit code 1 if messages are missing.

`compare` puts the broker's counts beside those that consumers have posted. It judges buckets that
ended `--grace` ago. Exit code 1 if messages were lost, doubled or late. docs/audit.md explains it.

With `--json` each row is an object; the first line has the facts about all rows.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..audit.rows import AuditInputError, AuditRow, parse_bucket_ms, parse_tags
from ..client.errors import AdminError, UnreachableError
from ..ledger import LedgerError
from ..wire import InvalidTopicNameError
from .brokers import ADMIN_URL, REQUEST, admin_client, not_ours, target_path
from .options import IN_DATA_DIR, JSON, declared, full_topic, parse_time, show_time
from .output import Progress, Table, counted, json_line, print_table
from .parsing import CliError
from .stores import STORE, names_in, reader_of

if TYPE_CHECKING:
    from ..audit.report import Comparison, Report
    from ..ledger import FolderReader
    from ..ledger.bookkeeper.reader import BookKeeperReader

ERRORS = (
    LedgerError, AdminError, UnreachableError, AuditInputError, InvalidTopicNameError, OSError,
)  # fmt: skip

EXIT_PROBLEM = 1
COMPARE = "compare"


add_arguments = declared(f"""
words compare|TOPIC*  short or full name; with the word compare before it, tiers are compared;
    with --data-dir all topics by default
either:
{ADMIN_URL}
--data-dir PATH  folder to count in, instead of asking a broker; not for compare {IN_DATA_DIR}
{STORE}
and:
{REQUEST}
--by TAGS []  divide the rows by tags: producer,service
--tier NAME  another tier than the broker
--bucket BUCKET  with --data-dir: width of the buckets (1 minute)
--from=start TIME  leave out what ended before
--to=end TIME  leave out what began later
--grace WIDTH  of compare: judge buckets that ended so long ago (1 minute)
{JSON}""")


def run(args: argparse.Namespace) -> int:
    """Show the rows, or compare the tiers."""
    is_local = args.data_dir is not None or args.store is not None
    if is_local and COMPARE not in args.words:
        return _folder(args)
    if not args.words:
        raise CliError("TOPIC is missing: only a folder (--data-dir) is counted as a whole")
    is_compare = args.words[0] == COMPARE and len(args.words) == 2
    if len(args.words) > 1 and not is_compare:
        raise CliError(f"{' '.join(args.words)!r} is neither TOPIC nor compare TOPIC")
    topic = full_topic(args.words[-1])
    if is_compare:
        return _compare(args, topic)
    if args.grace is not None:
        raise CliError("--grace is an option of compare")
    if args.bucket is not None:
        raise CliError("--bucket needs --data-dir: a broker's buckets are set where it is started")
    return _show(args, _asked(args, topic, **({} if args.tier is None else {"tier": args.tier})))


# -- rows -----------------------------------------------------------------------------------------


def _folder(args: argparse.Namespace) -> int:
    """Count topics of a folder, by default all. Return 1 if messages are missing."""
    if args.tier is not None:
        raise CliError("--tier needs a broker: a folder has only the broker's entries")
    if args.grace is not None:
        raise CliError("--grace is an option of compare")
    if len(args.words) > 1:
        raise CliError("name one topic, or none for all topics")
    tags, bucket_ms = parse_tags(args.by), parse_bucket_ms(args.bucket or "1 minute")
    times = _times(args)
    status = 0
    with reader_of(args) as folder:
        wanted = [full_topic(text) for text in args.words]
        names = [name for topic in wanted for name in names_in(folder, topic)]
        for number, topic in enumerate(names or (() if wanted else folder.topics())):
            if not args.json and (len(names) > 1 or not wanted):
                print(f"{chr(10) if number else ''}{topic}")
            status = max(status, _show(args, _counted(folder, topic, tags, bucket_ms, times)))
    return status


def _counted(
    folder: FolderReader | BookKeeperReader,
    topic: str,
    tags: tuple[str, ...],
    bucket_ms: int,
    times: tuple[int | None, int | None],
) -> Report:
    from ..audit.report import report
    from ..audit.trail import unlimited_trail

    log = folder.log(topic)
    trail = unlimited_trail(tags, bucket_ms)
    with Progress(
        f"counting {topic}", lambda: trail.counted, total=lambda: trail.left(log), in_bytes=False
    ):
        trail.advance(log)
    return report(
        topic,
        trail,
        tags,
        log_first_index=log.first_index,
        starting_time_ms=times[0],
        ending_time_ms=times[1],
    )


def _asked(args: argparse.Namespace, topic: str, **query: str) -> Report:
    _, path = target_path(topic)
    start_ms, end_ms = _times(args)
    query["by"] = ",".join(parse_tags(args.by))
    for name, value in (("startingTime", start_ms), ("endingTime", end_ms)):
        if value is not None:
            query[name] = str(value)
    return _report_of(admin_client(args).request("GET", f"{path}/audit", **query))


def _report_of(answer: Any) -> Report:
    from ..audit.report import Report

    try:
        facts = dict(answer)
        facts["rows"] = [AuditRow(**row) for row in facts["rows"]]
        facts["tags"] = tuple(facts["tags"])
        return Report(**facts)
    except (LookupError, TypeError, ValueError) as error:
        raise not_ours(answer, "an audit") from error


def _times(args: argparse.Namespace) -> tuple[int | None, int | None]:
    start_ms, end_ms = (None if t is None else parse_time(t) for t in (args.start, args.end))
    if start_ms is not None and end_ms is not None and end_ms < start_ms:
        raise CliError(f"--to {args.end!r} is before --from {args.start!r}")
    return start_ms, end_ms


def _show(args: argparse.Namespace, found: Report) -> int:
    if args.json:
        print(json_line(found.facts()))
        for row in found.rows:
            print(json_line(row.to_json()))
    else:
        headings = ["bucket", "tier", *found.tags, "count", "control", "bytes", "min_index"]
        headings += ["max_index", *(() if found.tags else ("missing",)), "out_of_order"]
        cells = [_cells(row, found) for row in found.rows]
        _print_table(headings, cells, texts=2 + len(found.tags))
    for note in _notes(found):
        print(f"pulsemark: {note}", file=sys.stderr)
    return EXIT_PROBLEM if found.missing > 0 or found.left else 0


def _missing(row: AuditRow) -> int:
    return (row.missing or 0) + (row.missing_before or 0) + (row.missing_after or 0)


def _cells(row: AuditRow, found: Report) -> list[str]:
    values = ["(rest)" if row.is_rest else row.tags.get(name) or "-" for name in found.tags]
    numbers: list[int | None] = [row.count, row.control_count, row.bytes]
    numbers += [row.min_index, row.max_index]
    if not found.tags:
        numbers.append(_missing(row))
    numbers.append(row.out_of_order)
    shown = ["" if number is None else str(number) for number in numbers]
    return [show_time(row.bucket_start_ms), row.tier, *values, *shown]


def _notes(found: Report) -> list[str]:
    """Remarks that a reader of the rows needs."""
    notes = []
    if found.missing > 0:
        notes.append(f"missing: {counted(found.missing, 'message')}")
    if found.left:
        notes.append(f"not counted yet: {counted(found.left, 'message')}; ask again")
    if found.uncounted:
        notes.append(f"{found.uncounted} indexes were removed before they were counted")
    if found.dropped_messages or found.dropped_rows:
        since = show_time(found.kept_from_ms)
        dropped = counted(found.dropped_messages, "message")
        notes.append(f"rows before {since} were dropped: {dropped}")
    if found.log_first_index > found.counted_from_index:
        notes.append(
            f"the rows also count messages before index {found.log_first_index},"
            " which the log no longer has"
        )
    if found.recounts:
        notes.append("the log's tail was cut off once; the log was counted again")
    return notes


def _print_table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, texts: int) -> None:
    """Print a table whose first columns are texts, and the other ones numbers."""
    print_table(Table(headings, rows, [at >= texts for at in range(len(headings))]))


# -- compare --------------------------------------------------------------------------------------


def _compare(args: argparse.Namespace, topic: str) -> int:
    from dataclasses import asdict, replace

    from ..audit.report import compare, of_tier
    from ..audit.rows import BROKER_TIER

    if args.data_dir is not None or args.store is not None or args.bucket is not None:
        raise CliError("compare asks a broker: --data-dir and --bucket are not for it")
    found = _asked(args, topic, tier="all")
    ours = replace(found, rows=list(of_tier(found.rows, BROKER_TIER)))
    theirs = [row for row in found.rows if row.tier != BROKER_TIER]
    if args.tier is not None:
        theirs = list(of_tier(theirs, args.tier))
    if not theirs:
        named = "" if args.tier is None else f" as tier {args.tier}"
        raise CliError(f"nothing was posted for {topic}{named}: there is nothing to compare with")
    now_ms = int(time.time() * 1000)
    compared = compare(ours, theirs, ended_before_ms=now_ms - _grace_ms(args.grace))
    if args.json:
        print(json_line(found.facts()))
        for row in compared:
            print(json_line({**asdict(row), "is_problem": row.is_problem}))
    else:
        headings = ["bucket", "tier", *found.tags, "broker", "received", "lost", "doubled", "late"]
        cells = [_compared_cells(row, found) for row in compared]
        _print_table([*headings, "verdict"], cells, texts=2 + len(found.tags))
    for note in _notes(found):
        print(f"pulsemark: {note}", file=sys.stderr)
    return EXIT_PROBLEM if any(row.is_problem for row in compared) or found.left else 0


def _compared_cells(row: Comparison, found: Report) -> list[str]:
    values = ["(rest)" if row.is_rest else row.tags.get(name) or "-" for name in found.tags]
    numbers = [row.broker_count, row.tier_count, row.lost, row.doubled, row.late]
    verdict = "WRONG" if row.is_problem else "ok" if row.is_judged else "not judged"
    return [show_time(row.bucket_start_ms), row.tier, *values, *map(str, numbers), verdict]


def _grace_ms(text: str | None) -> int:
    if text is None:
        return 60_000
    return 0 if re.fullmatch(r"0+ *[a-z]*", text.strip()) else parse_bucket_ms(text)

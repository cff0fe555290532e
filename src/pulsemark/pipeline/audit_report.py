"""Writes audits as one page of HTML.

For each topic it shows messages and lost ones over time, and the error of producers' clocks if the
audit has measured it. A run can be appended: the page keeps the rows of earlier runs in a comment,
and shows for each bucket the counts of the last run.

The page needs nothing else: no network, no script; its plots are SVG in the page, and its colours
follow the reader's light or dark setting. It is written as a whole, or not at all.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from .audit import AUDIT_COLUMNS, CLOCK_COLUMNS, GAPS
from .errors import OptionError
from .job_files import write_durably

MAX_BARS = 120
MAX_ROWS = 500
MAX_RUNS = 100
"""The oldest ones are left out of the page."""
_WIDTH, _HEIGHT, _LEFT, _TOP, _BASE = 960, 210, 72, 26, 160

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --dim: #5c6670; --paper: #ffffff;
  --line: #d8dee4; --card: #f6f8fa; --bar: #2f6fb5; --bad: #c62f2f; --good: #22813f; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --dim: #9aa4ae; --paper: #14181d;
  --line: #363d46; --card: #1d232a; --bar: #6aa5e8; --bad: #ff7b72; --good: #56c271; } }
* { box-sizing: border-box; }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  margin: 2rem auto; max-width: 64rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0 0 .2rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .4rem;
  overflow-wrap: anywhere; } p { margin: .3rem 0; } .dim { color: var(--dim); }
.cards { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1.2rem 0; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: .5rem;
  padding: .6rem 1rem; min-width: 8rem; }
.card b { display: block; font-size: 1.35rem; font-variant-numeric: tabular-nums; }
.bad { color: var(--bad); } .good { color: var(--good); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .85rem; margin: .6rem 0; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .6rem; text-align: left;
  vertical-align: top; } th { color: var(--dim); font-weight: 600; white-space: nowrap; }
td.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.t { white-space: nowrap; } td { overflow-wrap: anywhere; }
svg { width: 100%; height: auto; display: block; } svg .bar { fill: var(--bar); }
svg .gap { fill: var(--bad); } svg polyline { fill: none; stroke-width: 2; }
svg .p50 { stroke: var(--good); } svg .p99 { stroke: var(--bar); } svg .most { stroke: var(--bad); }
svg circle { fill: none; pointer-events: all; }
svg text { fill: var(--dim); font: 12px system-ui, sans-serif; }
svg line { stroke: var(--line); } summary { cursor: pointer; color: var(--dim); }
"""


Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Run:
    """The result of one audit: its rows, and those of the same audit by tags."""

    rows: Sequence[Row]
    divided: Sequence[Row] = ()

    @property
    def time(self) -> datetime | None:
        """When it was made; None if it has no rows."""
        return next((row["time"] for row in self.rows), None)


def write_report(
    file: str | os.PathLike[str], title: str, run: Run, *, append: bool = False
) -> None:
    """Write the page; ``append`` keeps the runs that are in it. Raises OptionError."""
    text = page(title, [*(runs_in(file) if append else ()), run])
    try:
        write_durably(Path(file).absolute(), text.encode())
    except OSError as error:
        reason = f"cannot be written: {error.strerror}"
        raise OptionError("html", str(file), reason) from error


_KEPT = re.compile(r"^<!--pulsemark audits (.*)-->$", re.MULTILINE)
_TIMES = ("time", "bucket_start", "bucket_end")


def runs_in(file: str | os.PathLike[str]) -> list[Run]:
    """The runs of a page; none if there is no such file. Raises OptionError."""
    try:
        found = _KEPT.search(Path(file).read_text(encoding="utf-8"))
        if found is None:
            raise ValueError("it has no rows")
        return [
            Run(*([_read(row) for row in rows] for rows in run)) for run in json.loads(found[1])
        ]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        reason = f"is not a page of an audit, to append to: {error}"
        raise OptionError("html", str(file), reason) from error


def _read(row: dict[str, Any]) -> Row:
    times = {name: row[name] and datetime.fromisoformat(row[name]) for name in _TIMES}
    return {**dict.fromkeys(AUDIT_COLUMNS), **row, **times}


def _kept(runs: Sequence[Run]) -> str:
    """The runs as an HTML comment, without null values; no text in it can end the comment."""
    lists = [
        [
            [{k: v for k, v in row.items() if v is not None or k in _TIMES} for row in rows]
            for rows in (run.rows, run.divided)
        ]
        for run in runs
    ]
    text = json.dumps(lists, default=datetime.isoformat, separators=(",", ":"))
    for character in "<>":  # only texts have them, where they may be escaped
        text = text.replace(character, f"\\u{ord(character):04x}")
    return f"<!--pulsemark audits {text}-->"


def page(title: str, runs: Sequence[Run]) -> str:
    """The text of a page with these runs, the last one at the end."""
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    runs = runs[-MAX_RUNS:]
    rows, divided = _newest(run.rows for run in runs), _newest(run.divided for run in runs)
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1><p class=dim>made {made}; times are UTC</p>",
        _cards(rows),
    ]
    if len(runs) > 1:
        parts += _runs(runs)
    topics: dict[str, list[Row]] = {}
    for row in rows:
        topics.setdefault(str(row["topic"]), []).append(row)
    for topic, of_topic in topics.items():
        parts += _topic(topic, of_topic, [row for row in divided if row["topic"] == topic])
    if not topics:
        parts.append("<p class=dim>There are no topics.</p>")
    return "\n".join([*parts, _kept(runs), "</body></html>", ""])


def _newest(lists: Iterable[Sequence[Row]]) -> list[Row]:
    """For each bucket, topic and tags, the row of the last run that has it."""
    found: dict[tuple[Any, ...], Row] = {}
    for rows in lists:
        for row in rows:
            tags = (v for k, v in row.items() if k not in AUDIT_COLUMNS and k not in CLOCK_COLUMNS)
            found[(row["topic"], row["bucket_start"], *tags)] = row
    with_buckets = {topic for topic, start, *_ in found if start is not None}
    kept = [key for key in found if key[1] is not None or key[0] not in with_buckets]
    first = datetime.min.replace(tzinfo=UTC)
    return [found[key] for key in sorted(kept, key=lambda k: (k[0], k[1] or first))]


def _runs(runs: Sequence[Run]) -> Iterable[str]:
    """A bar for each run, with its missing messages."""
    yield f"<h2>{len(runs)} runs</h2>"
    spans = [(run.time, run.time, run.rows) for run in runs if run.time is not None]
    yield _plot(spans, "messages in each run")


def _cards(rows: Sequence[Row]) -> str:
    missing = sum(_missing(row) for row in rows)
    losses = {row["topic"] for row in rows if row["loss"]}
    cards = [
        ("topics", len({row["topic"] for row in rows}), ""),
        ("messages", sum(row["count"] or 0 for row in rows), ""),
        ("bytes", sum(row["bytes"] or 0 for row in rows), ""),
        ("missing", missing, "bad" if missing else "good"),
        ("topics with lost files", len(losses), "bad" if losses else "good"),
    ]
    texts = (
        f'<div class=card><span class=dim>{name}</span><b class="{kind}">{value:,}</b></div>'
        for name, value, kind in cards
    )
    return f"<div class=cards>{''.join(texts)}</div>"


def _missing(row: Row) -> int:
    return sum(row[name] or 0 for name in GAPS)


def _topic(topic: str, rows: Sequence[Row], divided: Sequence[Row]) -> Iterable[str]:
    yield f"<h2>{escape(topic)}</h2>"
    loss = next((row["loss"] for row in rows if row["loss"]), None)
    if loss is not None:
        yield f"<p class=bad>{escape(str(loss))}</p>"
    spans = _spans(rows)
    if not spans:
        yield "<p class=dim>No messages.</p>"
        return
    yield _plot(spans, f"messages in {spans[0][1] - spans[0][0]}")
    if any(row.get(CLOCK_COLUMNS[-1]) is not None for row in divided):
        yield _clock_plot(divided)
    yield _details(rows, "rows")
    if divided:
        yield _details(divided, "rows by tags")


def _details(rows: Sequence[Row], what: str) -> str:
    told = {name for row in rows for name, value in row.items() if value is not None}
    heads = [name for name in rows[0] if name in told - {"time", "topic", "loss"}]
    table = _table(heads, [[row[name] for name in heads] for row in rows])
    return f"<details><summary>{len(rows):,} {what}</summary>{table}</details>"


_Span = tuple[datetime, datetime, Sequence[Row]]
"""First and last moment, and the rows between."""


def _spans(rows: Sequence[Row]) -> list[_Span]:
    """Divide the rows' time into at most MAX_BARS equal spans, each with its rows."""
    found = [row for row in rows if row["bucket_start"] is not None]
    if not found:
        return []
    first = min(row["bucket_start"] for row in found)
    width = min(row["bucket_end"] - row["bucket_start"] for row in found)
    buckets = (max(row["bucket_end"] for row in found) - first) // width
    span = width * -(-buckets // MAX_BARS)
    parts: list[list[Row]] = [[] for _ in range(-(-(buckets * width) // span))]
    for row in found:
        parts[(row["bucket_start"] - first) // span].append(row)
    return [
        (first + span * number, first + span * (number + 1), part)
        for number, part in enumerate(parts)
    ]


def _plot(spans: Sequence[_Span], heading: str) -> str:
    """A bar for each span: its messages, and its missing messages above them."""
    counts = [sum(row["count"] or 0 for row in rows) for _, _, rows in spans]
    gaps = [sum(map(_missing, rows)) for _, _, rows in spans]
    top = max(1, *map(sum, zip(counts, gaps, strict=True)))
    step, scale = (_WIDTH - _LEFT) / len(spans), (_BASE - _TOP) / top
    drawn = [_levels(0, top, lambda value: _BASE - value * scale)]
    for number, ((start, end, _), count, missing) in enumerate(
        zip(spans, counts, gaps, strict=True)
    ):
        place = f'x="{_LEFT + number * step:.1f}" width="{max(step - 1, 0.6):.1f}"'
        high, gap = count * scale, max(missing * scale, 4)
        bars = f'<rect class=bar {place} y="{_BASE - high:.1f}" height="{high:.1f}"/>'
        if missing:
            bars += f'<rect class=gap {place} y="{_BASE - high - gap:.1f}" height="{gap:.1f}"/>'
        when = _moment(start) if start == end else f"{_moment(start)} to {_moment(end)}"
        told = f"{when}: {count:,} messages, {missing:,} missing"
        drawn.append(f"<g><title>{told}</title>{bars}</g>")
    return _svg(heading, [*drawn, _times(spans, step)])


def _svg(heading: str, drawn: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{heading} over time">'
        f'<text x="0" y="12">{heading}</text>{"".join(drawn)}</svg>'
    )


def _clock_plot(divided: Sequence[Row]) -> str:
    """The errors of producers' clocks over time: in each span the worst producer's."""
    spans = _spans(divided)
    lines: dict[str, list[int | None]] = {
        name: [
            max((row[name] for row in part if row.get(name) is not None), key=abs, default=None)
            for _, _, part in spans
        ]
        for name in CLOCK_COLUMNS
    }
    values = [value for line in lines.values() for value in line if value is not None]
    low, high = min(0, *values), max(1, *values)
    step, scale = (_WIDTH - _LEFT) / len(spans), (_BASE - _TOP) / (high - low)

    def place(value: int) -> float:
        return _BASE - (value - low) * scale

    drawn = [_levels(low, high, place)]
    for number, (name, line) in enumerate(lines.items()):
        kind = name.removeprefix("clock_error_").removesuffix("_ms")
        points = [
            (_LEFT + (at + 0.5) * step, place(value), value, spans[at])
            for at, value in enumerate(line)
            if value is not None
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _, _ in points)
        drawn.append(f'<polyline class={kind} points="{path}"/>')
        drawn += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5"><title>{_moment(start)} to {_moment(end)}:'
            f" {kind} {value:,} ms</title></circle>"
            for x, y, value, (start, end, _) in points
        ]
        at = _LEFT + 330 + 90 * number
        drawn.append(f'<polyline class={kind} points="{at},8 {at + 24},8"/>')
        drawn.append(f'<text x="{at + 30}" y="12">{kind}</text>')
    heading = "error of producers' clocks, ms, of the worst producer"
    return _svg(heading, [*drawn, _times(spans, step)])


def _levels(low: int, high: int, place: Callable[[int], float]) -> str:
    """About four horizontal lines at round numbers."""
    power = 10 ** (len(str(high - low)) - 1)
    level = next(
        one for one in (power // 5, power // 2, power, 2 * power) if one and (high - low) // one < 6
    )
    return "".join(
        f'<line x1="{_LEFT}" x2="{_WIDTH}" y1="{place(value):.1f}" y2="{place(value):.1f}"/>'
        f'<text x="{_LEFT - 8}" y="{place(value) + 4:.1f}" text-anchor="end">{value:,}</text>'
        for value in range(-(-low // level) * level, high + 1, level)
    )


def _times(spans: Sequence[_Span], step: float) -> str:
    """Labels where some spans begin, and where the last one ends."""
    every = -(-len(spans) // 4)
    places = [(number * step, spans[number][0]) for number in range(0, len(spans), every)]
    if places[-1][0] > (len(spans) - every / 2) * step:
        places.pop()
    if spans[-1][1] != spans[-1][0]:
        places.append((len(spans) * step, spans[-1][1]))
    return "".join(
        f'<line x1="{_LEFT + x:.1f}" x2="{_LEFT + x:.1f}" y1="{_BASE}" y2="{_BASE + 5}"/>'
        f'<text x="{_LEFT + x:.1f}" y="{_BASE + 20}" text-anchor="{anchor}">{_moment(at)}</text>'
        for (x, at), anchor in zip(
            places, ["start", *["middle"] * (len(places) - 2), "end"][: len(places)], strict=True
        )
    )


def _moment(value: datetime) -> str:
    text = value.replace(tzinfo=None).isoformat(sep=" ", timespec="milliseconds")
    return text.removesuffix(".000")


def _table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows[:MAX_ROWS])
    more = len(rows) - MAX_ROWS
    note = f"<p class=dim>and {more:,} more rows</p>" if more > 0 else ""
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"<div class=scroll>{table}</div>{note}"


def _cell(value: object) -> str:
    if value is None:
        return "<td></td>"
    if isinstance(value, int):
        return f"<td class=n>{value:,}</td>"
    if isinstance(value, datetime):
        return f"<td class=t>{_moment(value)}</td>"
    return f"<td>{escape(str(value))}</td>"

"""An audit, and the differences of two tiers, as one page of HTML.

For each topic it shows messages and lost ones over time, and the error of producers' clocks if the
audit has looked for it.

The page needs nothing else: no network, no script; its plots are SVG in the page, and its colours
follow the reader's light or dark setting. It is written as a whole, or not at all.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from .audit import CLOCK_COLUMNS, GAPS
from .errors import OptionError
from .job_files import write_durably
from .tier_comparison import TierComparison

MAX_BARS = 120
MAX_ROWS = 500
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
svg .gap { fill: var(--bad); } svg text { fill: var(--dim); font: 12px system-ui, sans-serif; }
svg line { stroke: var(--line); } summary { cursor: pointer; color: var(--dim); }
"""


def write_report(
    file: str | os.PathLike[str],
    title: str,
    rows: Sequence[Mapping[str, Any]],
    comparison: TierComparison | None = None,
    *,
    divided: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Write the page. Raises OptionError.

    ``rows`` are those of `audit`, and ``divided`` those of the same audit by tags.
    """
    text = page(title, rows, comparison, divided=divided)
    try:
        write_durably(Path(file).absolute(), text.encode())
    except OSError as error:
        reason = f"cannot be written: {error.strerror}"
        raise OptionError("html", str(file), reason) from error


def page(
    title: str,
    rows: Sequence[Mapping[str, Any]],
    comparison: TierComparison | None = None,
    *,
    divided: Sequence[Mapping[str, Any]] = (),
) -> str:
    """The page's text."""
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1><p class=dim>made {made}; times are UTC</p>",
        _cards(rows, comparison),
    ]
    if comparison is not None:
        parts += _compared(comparison)
    topics: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        topics.setdefault(str(row["topic"]), []).append(row)
    for topic, of_topic in topics.items():
        parts += _topic(topic, of_topic, [row for row in divided if row["topic"] == topic])
    if not topics:
        parts.append("<p class=dim>There are no topics.</p>")
    return "\n".join([*parts, "</body></html>", ""])


def _cards(rows: Sequence[Mapping[str, Any]], comparison: TierComparison | None) -> str:
    missing = sum(_missing(row) for row in rows)
    losses = {row["topic"] for row in rows if row["loss"]}
    cards = [
        ("topics", len({row["topic"] for row in rows}), ""),
        ("messages", sum(row["count"] or 0 for row in rows), ""),
        ("bytes", sum(row["bytes"] or 0 for row in rows), ""),
        ("missing", missing, "bad" if missing else "good"),
        ("topics with lost files", len(losses), "bad" if losses else "good"),
    ]
    if comparison is not None:
        count = len(comparison.problems)
        cards.append(("differences", count, "bad" if count else "good"))
    texts = (
        f'<div class=card><span class=dim>{name}</span><b class="{kind}">{value:,}</b></div>'
        for name, value, kind in cards
    )
    return f"<div class=cards>{''.join(texts)}</div>"


def _missing(row: Mapping[str, Any]) -> int:
    return sum(row[name] or 0 for name in GAPS)


def _compared(comparison: TierComparison) -> Iterable[str]:
    yield f"<h2>{escape(comparison.tier)} compared with {escape(comparison.other_tier)}</h2>"
    if not comparison.differences:
        yield "<p class=good>Both have the same messages.</p>"
        return
    heads = ("topic", "bucket", "what", "messages", "indexes", "count", "other count")
    yield _table(
        heads,
        [
            (
                each.topic,
                None if each.bucket_start_ms is None else _moment(each.bucket_start_ms),
                each.what,
                each.messages,
                each.indexes,
                each.count,
                each.other_count,
            )
            for each in comparison.differences
        ],
    )


def _topic(
    topic: str, rows: Sequence[Mapping[str, Any]], divided: Sequence[Mapping[str, Any]]
) -> Iterable[str]:
    yield f"<h2>{escape(topic)}</h2>"
    loss = next((row["loss"] for row in rows if row["loss"]), None)
    if loss is not None:
        yield f"<p class=bad>{escape(str(loss))}</p>"
    bars = _bars(rows)
    if not bars:
        yield "<p class=dim>No messages.</p>"
        return
    yield _plot(bars)
    clocks = _clock_bars(divided)
    if clocks:
        yield _plot(clocks, "largest error of a producer's clock, ms", "ms")
    yield _details(rows, "rows")
    if divided:
        yield _details(divided, "rows by tags")


def _details(rows: Sequence[Mapping[str, Any]], what: str) -> str:
    heads = [
        name for name in rows[0] if name not in ("time", "topic", "loss") and _says(rows, name)
    ]
    table = _table(heads, [[row[name] for name in heads] for row in rows])
    return f"<details><summary>{len(rows):,} {what}</summary>{table}</details>"


def _says(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    return any(row[name] is not None for row in rows)


_Bar = tuple[datetime, datetime, int, int]
"""First and last moment, messages (or milliseconds), missing messages."""


def _spans(
    rows: Sequence[Mapping[str, Any]],
) -> list[tuple[datetime, datetime, list[Mapping[str, Any]]]]:
    """At most MAX_BARS spans of equal length over the whole time of the rows, with their rows."""
    found = [row for row in rows if row["bucket_start"] is not None]
    if not found:
        return []
    first = min(row["bucket_start"] for row in found)
    width = min(row["bucket_end"] - row["bucket_start"] for row in found)
    buckets = (max(row["bucket_end"] for row in found) - first) // width
    span = width * -(-buckets // MAX_BARS)
    parts: list[list[Mapping[str, Any]]] = [[] for _ in range(-(-(buckets * width) // span))]
    for row in found:
        parts[(row["bucket_start"] - first) // span].append(row)
    return [
        (first + span * number, first + span * (number + 1), part)
        for number, part in enumerate(parts)
    ]


def _bars(rows: Sequence[Mapping[str, Any]]) -> list[_Bar]:
    return [
        (start, end, sum(row["count"] or 0 for row in part), sum(map(_missing, part)))
        for start, end, part in _spans(rows)
    ]


def _clock_bars(divided: Sequence[Mapping[str, Any]]) -> list[_Bar]:
    """The largest clock error of each span; none if the audit did not look for it."""
    most = CLOCK_COLUMNS[-1]
    if not any(row.get(most) is not None for row in divided):
        return []
    return [
        (start, end, max((row[most] or 0 for row in part), default=0), 0)
        for start, end, part in _spans(divided)
    ]


def _plot(bars: Sequence[_Bar], heading: str = "", unit: str = "messages") -> str:
    top = max(1, *(count + missing for _, _, count, missing in bars))
    step, scale = (_WIDTH - _LEFT) / len(bars), (_BASE - _TOP) / top
    shapes = []
    for number, (start, end, count, missing) in enumerate(bars):
        high, gap = count * scale, missing * scale
        x, wide = _LEFT + number * step, max(step - 1, 0.6)
        said = f"{_moment(start)} to {_moment(end)}: {count:,} {unit}"
        said += f", {missing:,} missing" if not heading else ""
        shapes.append(
            f"<g><title>{said}</title>"
            f'<rect class=bar x="{x:.1f}" y="{_BASE - high:.1f}" width="{wide:.1f}"'
            f' height="{high:.1f}"/>'
            + (
                f'<rect class=gap x="{x:.1f}" y="{_BASE - high - max(gap, 4):.1f}"'
                f' width="{wide:.1f}" height="{max(gap, 4):.1f}"/>'
                if missing
                else ""
            )
            + "</g>"
        )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{unit} over time">'
        f'<text x="0" y="12">{heading or f"messages in {_length(bars[0])}"}</text>'
        f"{_levels(top, scale)}{''.join(shapes)}{_times(bars, step)}</svg>"
    )


def _levels(top: int, scale: float) -> str:
    """Lines at round numbers of messages, about four of them."""
    power = 10 ** (len(str(top)) - 1)
    level = next(
        one for one in (power // 5, power // 2, power, 2 * power) if one and top // one < 6
    )
    return "".join(
        f'<line x1="{_LEFT}" x2="{_WIDTH}" y1="{_BASE - value * scale:.1f}"'
        f' y2="{_BASE - value * scale:.1f}"/><text x="{_LEFT - 8}"'
        f' y="{_BASE - value * scale + 4:.1f}" text-anchor="end">{value:,}</text>'
        for value in range(0, top + 1, level)
    )


def _times(bars: Sequence[_Bar], step: float) -> str:
    """Where some bars begin, and where the last one ends."""
    every = -(-len(bars) // 4)
    places = [(number * step, bars[number][0]) for number in range(0, len(bars), every)]
    if places[-1][0] > (len(bars) - every / 2) * step:
        places.pop()
    places.append((len(bars) * step, bars[-1][1]))
    return "".join(
        f'<line x1="{_LEFT + x:.1f}" x2="{_LEFT + x:.1f}" y1="{_BASE}" y2="{_BASE + 5}"/>'
        f'<text x="{_LEFT + x:.1f}" y="{_BASE + 20}" text-anchor="{anchor}">{_moment(at)}</text>'
        for (x, at), anchor in zip(
            places, ["start", *["middle"] * (len(places) - 2), "end"], strict=True
        )
    )


def _length(bar: _Bar) -> str:
    return str(bar[1] - bar[0])


def _moment(value: datetime | int) -> str:
    if isinstance(value, int):
        value = datetime.fromtimestamp(value / 1000, UTC)
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

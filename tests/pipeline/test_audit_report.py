"""The page of an audit: complete, by itself, and safe."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from pulsemark.pipeline import write_report
from pulsemark.pipeline.arguments import check_file
from pulsemark.pipeline.audit import AUDIT_COLUMNS, CLOCK_COLUMNS
from pulsemark.pipeline.audit_report import MAX_BARS, MAX_RUNS, Run, page, runs_in
from pulsemark.pipeline.errors import OptionError

FIRST = datetime(2026, 3, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
VOID = {"br", "meta", "link", "rect", "line", "polyline"}


def row(minute: int | None, count: int, *, topic: str = "t", **more: Any) -> dict[str, Any]:
    """A row of the audit."""
    known: dict[str, Any] = {"topic": topic, "count": count, "bytes": 10 * count, "missing": 0}
    if minute is not None:
        known |= {
            "bucket_start": FIRST + minute * MINUTE,
            "bucket_end": FIRST + (minute + 1) * MINUTE,
        }
    return {**dict.fromkeys(AUDIT_COLUMNS), **known, **more}


class Checker(HTMLParser):
    """Every element is closed, and nothing is loaded or run."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Not a script, no address of anything."""
        assert tag not in ("script", "link", "img", "iframe", "object")
        assert not {name for name, _ in attributes} & {"src", "href", "onclick", "onload"}
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """In the right order."""
        if tag not in VOID:
            assert self.open.pop() == tag


def checked(text: str) -> Checker:
    """The page's elements."""
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert checker.open == []
    assert "http" not in text
    assert "url(" not in text
    return checker


def test_a_page_shows_everything() -> None:
    """Figures, a plot for each topic with its gaps, and losses."""
    rows = [row(0, 5), row(1, 7, missing=2), row(9, 1, missing_before=4), row(3, 2, topic="u")]
    rows[0]["loss"] = "ledger 7 is gone"
    text = page("Audit", [Run(rows)])
    seen = checked(text).seen
    assert seen.count("svg") == 2
    assert text.count("class=gap") == 2
    assert "2026-03-01 00:01:00 to 2026-03-01 00:02:00: 7 messages, 2 missing" in text
    assert "ledger 7 is gone" in text
    for name, value in (
        ("messages", "15"),
        ("missing", "6"),
        ("topics", "2"),
    ):
        assert re.search(rf"{name}</span><b class=\"\w*\">{value}<", text), name
    assert "prefers-color-scheme: dark" in text


def test_clock_errors_have_a_plot() -> None:
    """Of the worst producer in each span, behind and ahead; none without an audit for it."""
    rows = [row(minute, 5) for minute in range(3)]
    divided = [
        row(
            minute, 2, producer_name=name, clock_error_p50_ms=sign * 10 * minute,
            clock_error_p99_ms=60 * minute, clock_error_most_ms=70 * minute,
        )
        for minute in range(3)
        for name, sign in (("a", -1), ("b", 0))
    ]  # fmt: skip
    text = page("Audit", [Run(rows, divided)])
    assert checked(text).seen.count("svg") == 2
    for said in ("p50 -20 ms", "p99 120 ms", "most 140 ms"):
        assert f"2026-03-01 00:02:00 to 2026-03-01 00:03:00: {said}<" in text
    assert re.findall(r'<polyline class=(\w+) points="[\d.]+,[\d.]+ [\d.]+,[\d.]+ ', text) == [
        "p50", "p99", "most",
    ]  # fmt: skip
    assert "6 rows by tags" in text
    without = [{**each, **dict.fromkeys(CLOCK_COLUMNS)} for each in divided]
    assert checked(page("Audit", [Run(rows, without)])).seen.count("svg") == 1
    lone = page("Audit", [Run(rows[:1], divided[:1])])
    assert "p50 0 ms" in lone


def test_runs_are_appended(tmp_path: Path) -> None:
    """Each bucket as the last run has counted it, and each run as a bar; also the third time."""
    file = tmp_path / "audit.html"
    evil = "--><b>x</b>"
    for number in range(3):
        time = FIRST + timedelta(hours=1 + number)
        rows = [row(n, 5 + number, time=time, loss=evil) for n in range(number, number + 2)]
        divided = [
            {**each, "producer_name": evil, **dict.fromkeys(CLOCK_COLUMNS, -9)} for each in rows
        ]
        write_report(file, "Audit", Run(rows, divided), append=True)
    text = file.read_text()
    checked(text)
    assert "<b>x" not in text
    assert "<h2>3 runs</h2>" in text
    assert "2026-03-01 02:00:00: 12 messages, 0 missing" in text
    bars = re.findall(r"to 2026-03-01 00:0\d:00: (\d+) messages", text)
    assert bars == ["5", "6", "7", "7"]
    assert "4 rows by tags" in text
    assert len(runs_in(file)) == 3
    write_report(file, "Audit", Run([row(0, 1)]))
    assert len(runs_in(file)) == 1
    for content in ("no page", "<!--pulsemark audits [[3]]-->", "<!--pulsemark audits {-->"):
        file.write_text(content)
        with pytest.raises(OptionError, match="is not a page of an audit, to append to"):
            write_report(file, "Audit", Run([row(0, 1)]), append=True)
        assert file.read_text() == content


def test_the_oldest_runs_are_left_out(tmp_path: Path) -> None:
    """A page that is appended to for years stays a page."""
    runs = [Run([row(0, n, time=FIRST + timedelta(days=n))]) for n in range(MAX_RUNS + 5)]
    text = page("Audit", [*runs, Run([row(0, 7, time=FIRST + timedelta(days=900))])])
    assert f"<h2>{MAX_RUNS} runs</h2>" in text
    checked(text)


def test_names_are_escaped() -> None:
    """A topic or a loss cannot bring elements of its own."""
    evil = "</title><script>alert(1)</script>&\"'"
    text = page(evil, [Run([row(0, 1, topic=evil, loss=evil, tier=evil)])])
    checked(text)
    assert "<script" not in text


def test_the_plot_has_scales() -> None:
    """Round numbers of messages from 0 up to the highest bar, and times of its span."""
    text = page(
        "Audit", [Run([row(minute, 4_300 if minute == 7 else 900) for minute in range(20)])]
    )
    plot = text[text.index("<svg") : text.index("</svg>")]
    assert re.findall(r'text-anchor="end">([\d,]+)</text>', plot) == [
        "0", "1,000", "2,000", "3,000", "4,000",
    ]  # fmt: skip
    times = re.findall(r">2026-03-01 00:(\d\d):00</text>", plot)
    assert times == ["00", "05", "10", "15", "20"]


def test_many_buckets_are_joined() -> None:
    """A year of minutes has as many bars as fit; no message is left out."""
    rows = [row(minute, 3) for minute in range(0, 525_600, 997)]
    text = page("Audit", [Run(rows)])
    bars = [int(n) for n in re.findall(r"(\d+) messages, 0 missing", text)]
    assert MAX_BARS // 2 < len(bars) <= MAX_BARS
    assert sum(bars) == 3 * len(rows)
    assert "and 28 more rows" in text
    assert len(text) < 400_000


def test_nothing_to_show() -> None:
    """No topics, and a topic without messages."""
    assert "There are no topics" in page("Audit", [Run([])])
    assert "No messages" in page("Audit", [Run([row(None, 0)])])


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    """Before the job, and after it: the option's name and the reason."""
    (tmp_path / "file").write_text("x")
    for place in (tmp_path, tmp_path / "file" / "x.html", Path("/proc/nowhere/x.html")):
        with pytest.raises(OptionError, match="--html = "):
            check_file("--html", place)
    check_file("--html", tmp_path / "new.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]
    with pytest.raises(OptionError, match="cannot be written"):
        write_report("/proc/nowhere/x.html", "Audit", Run([]))
    write_report(tmp_path / "new.html", "Audit", Run([row(0, 1)]))
    checked((tmp_path / "new.html").read_text())

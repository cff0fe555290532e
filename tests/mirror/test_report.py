"""What a mirror says while it runs."""

from __future__ import annotations

from pulsemark.metadata.source_stamp import SourceStamp
from pulsemark.mirror import Gap, Report, SourceEntry


def test_progress_comes_in_time_and_only_if_there_is_some() -> None:
    """One line for each interval in which something was mirrored; gaps and losses at once."""
    now_s = 0.0
    lines: list[str] = []
    report = Report(lines.append, interval_s=10, clock=lambda: now_s)
    report.of("b")
    entry = SourceEntry(SourceStamp("west", 1, 1, 9), 3, b"12345")
    report.mirrored("a", entry)
    report.progress()
    assert lines == []
    for _ in range(3):
        now_s += 11
        report.progress()
    assert [line.split(";")[0] for line in lines] == [
        "topics: 2, entries: 1, messages: 3, bytes: 5, gaps: 0"
    ]
    report.gap(Gap("a", "indexes 3 to 4 are missing"))
    report.lost("it broke")
    assert lines[1:] == [
        "gap: a: indexes 3 to 4 are missing",
        "connection lost, trying again: it broke",
    ]
    assert (report.of("a").gaps, report.of("a").source_index, report.reconnections) == (1, 9, 1)

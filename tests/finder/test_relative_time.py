"""Times relative to now, also in the options of the jobs."""

from __future__ import annotations

import argparse
import time

import pytest

from pulsemark.finder.relative_time import relative_time_ms
from pulsemark.pipeline.job_arguments import add_range, range_of


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("now", 10**12), ("-1h", 10**12 - 3_600_000), (" -1m30s", 10**12 - 90_000),
        ("+5ms", 10**12 + 5), ("-1", None), ("1h", None), ("-1y", None), ("", None),
        ("2026-01-01", None),
    ],
)  # fmt: skip
def test_forms(text, time_ms):
    """A sign and units; anything else is not a relative time."""
    assert relative_time_ms(text, 10**12) == time_ms


def test_the_jobs_take_them():
    """`--starting-time -1h` is one moment for all tasks; other forms stay as they are."""
    parser = argparse.ArgumentParser()
    add_range(parser)
    before_ms = time.time_ns() // 1_000_000
    given = parser.parse_args(["data", "--starting-time", " -1h", "--ending-time", "2026-01-01"])
    after_ms = time.time_ns() // 1_000_000
    found = range_of(given)
    assert before_ms <= int(str(found["starting_time"])) + 3_600_000 <= after_ms
    assert found["ending_time"] == "2026-01-01"

"""The rate limit, by a clock that a test sets."""

from __future__ import annotations

import pytest

from pulsemark.client import Pace, RateLimit


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("1000", RateLimit(1000)),
        ("64K", RateLimit(64 * 1024)),
        ("10M", RateLimit(10 * 1024**2)),
        ("1g", RateLimit(1024**3)),
        ("500msg", RateLimit(500, is_messages=True)),
    ],
)
def test_limits_are_bytes_or_messages(text: str, limit: RateLimit) -> None:
    """A number with K, M or G is bytes; with msg it is messages."""
    assert RateLimit.parse(text) == limit


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "1.5M", "M", "10T", "msg", "0msg", "5 msg", "1Kmsg"]
)
def test_other_texts_are_refused(text: str) -> None:
    """What is neither is an error that shows it."""
    with pytest.raises(ValueError, match="BYTES"):
        RateLimit.parse(text)


@pytest.mark.parametrize(("limit", "per_s"), [("1000", 10), ("50msg", 25)])
def test_no_more_goes_than_the_limit(limit: str, per_s: int) -> None:
    """In ten seconds eleven seconds' worth goes at most: entries of 100 bytes and 2 messages."""
    now_s = 0.0
    pace = Pace(RateLimit.parse(limit), lambda: now_s)
    gone = 0
    while now_s < 10:
        if pace.wait_s():
            now_s += pace.wait_s()
        else:
            pace.spend(100, 2)
            gone += 1
    assert per_s * 10 <= gone <= per_s * 11 + 1


def test_a_large_entry_goes_and_the_next_waits() -> None:
    """An entry above the limit is not divided; what follows waits as long as it took."""
    now_s = 0.0
    pace = Pace(RateLimit(1000), lambda: now_s)
    assert pace.wait_s() == 0
    pace.spend(6000, 1)
    assert pace.wait_s() == pytest.approx(5.0)
    now_s = 5.1
    assert pace.wait_s() == 0


def test_without_a_limit_nothing_waits() -> None:
    """None is no limit."""
    pace = Pace(None)
    pace.spend(1 << 40, 1 << 30)
    assert pace.wait_s() == 0

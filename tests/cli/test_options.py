"""Times as people type them: every form, and texts that are not times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsemark.cli.options import MAX_TIME_MS, MIN_TIME_NUMBER, parse_time, show_time
from pulsemark.cli.parsing import CliError
from pulsemark.finder.arguments import UNIT_MS
from pulsemark.pipeline.options import parse_time_ms

BERLIN = ZoneInfo("Europe/Berlin")
# 2025-11-12T12:05:00.500 in Berlin.
NOW = datetime(2025, 11, 12, 11, 5, 0, 500_000, tzinfo=UTC)
NOW_MS = 1_762_945_500_500


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("1762945500500", NOW_MS),
        ("0", 0),
        ("100000000000", 100_000_000_000),
        ("now", NOW_MS),
        ("-5m", NOW_MS - 300_000),
        ("-1h30m", NOW_MS - 5_400_000),
        ("-500ms", NOW_MS - 500),
        ("+10s", NOW_MS + 10_000),
        ("-2d", NOW_MS - 172_800_000),
        ("-1w", NOW_MS - 604_800_000),
        (" -5m ", NOW_MS - 300_000),
        ("2025-11-12T11:05:00.500Z", NOW_MS),
        ("2025-11-12T11:05:00.500+00:00", NOW_MS),
        ("2025-11-12T16:35:00.500+05:30", NOW_MS),
        ("2025-11-12T12:05:00.500", NOW_MS),
        ("2025-11-12 12:05:00.5", NOW_MS),
        ("20251112T120500.500", NOW_MS),
        ("2025-11-12", 1_762_902_000_000),
        ("12:05", NOW_MS - 500),
        ("12:05:00.500", NOW_MS),
        ("9:05", NOW_MS - 500 - 3 * 3_600_000),
        ("9:05:01", NOW_MS + 500 - 3 * 3_600_000),
        # The night the clocks change: the zone is that of the time, not that of the present.
        ("2025-07-01T12:00", 1_751_364_000_000),
        (str(MAX_TIME_MS), MAX_TIME_MS),
    ],
)
def test_forms(text: str, expected_ms: int) -> None:
    """Every form means the milliseconds it says."""
    assert parse_time(text, now=NOW, zone=BERLIN) == expected_ms


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "yesterday", "-5", "-5x", "5m", "-m", "25:00", "12:60", "12:5", "12:05Z",
        "2025-13-01", "2025-02-30T00:00", "1.5", "1e12", "0x10", "-", "+", "--5m", "-5 m",
        "\u0663", "\u0661\u0662:\u0660\u0665", "1969-12-31T23:59:59Z", "-9999w", "0001-01-01",
        str(MAX_TIME_MS + 1), "9" * 40, "+999999999999999999999w",
    ],
)  # fmt: skip
def test_what_is_no_time(text: str) -> None:
    """Anything else is an error that names the text."""
    with pytest.raises(CliError) as caught:
        parse_time(text, now=NOW, zone=BERLIN)
    assert repr(text.strip()) in str(caught.value)


@given(st.text(max_size=40))
def test_no_text_does_anything_else(text: str) -> None:
    """Any text gives a time that a broker can stamp, or CliError."""
    try:
        time_ms = parse_time(text, now=NOW)
    except CliError:
        return
    assert 0 <= time_ms <= MAX_TIME_MS


@given(
    st.datetimes(min_value=datetime(1970, 1, 2), max_value=datetime(9999, 12, 30)),  # noqa: DTZ001
    st.integers(-23 * 60, 23 * 60),
)
def test_iso_with_zone_is_exact(moment: datetime, offset_minutes: int) -> None:
    """A time with a zone is read to the millisecond, whatever the zone."""
    aware = moment.replace(tzinfo=timezone(timedelta(minutes=offset_minutes)))
    whole = aware.replace(microsecond=aware.microsecond // 1_000 * 1_000)
    expected_ms = (whole - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    assert parse_time(aware.isoformat(), now=NOW) == expected_ms


@given(st.lists(st.tuples(st.integers(0, 999), st.sampled_from(sorted(UNIT_MS))), min_size=1))
def test_relative_times_add_up(steps: list[tuple[int, str]]) -> None:
    """A distance is the sum of its steps, back with - and ahead with +."""
    text = "".join(f"{number}{unit}" for number, unit in steps)
    distance_ms = sum(number * UNIT_MS[unit] for number, unit in steps)
    assert parse_time(f"+{text}", now=NOW) == NOW_MS + distance_ms
    if distance_ms <= NOW_MS:
        assert parse_time(f"-{text}", now=NOW) == NOW_MS - distance_ms


@given(st.integers(0, 253_402_300_799_999))
def test_shown_times_read_back(time_ms: int) -> None:
    """What is printed can be typed again and means the same."""
    assert parse_time(show_time(time_ms)) == time_ms


def test_times_beyond_the_calendar_are_shown_as_numbers() -> None:
    """A time after the year 9999 is shown as its number of milliseconds."""
    assert show_time(MAX_TIME_MS) == str(MAX_TIME_MS)


@pytest.mark.parametrize("text", ["1", "1762945500", "99999999999"])
def test_seconds_are_refused(text: str) -> None:
    """A number that is probably unix seconds is an error that says what it would mean."""
    with pytest.raises(CliError, match=f"'{text}' as unix milliseconds is 197.*three digits"):
        parse_time(text, now=NOW)


def test_the_least_number_is_that_of_the_spark_options() -> None:
    """The commands and the Spark options refuse the same numbers."""
    for time_ms in (MIN_TIME_NUMBER - 1, MIN_TIME_NUMBER):
        refused = []
        for parse in (parse_time, parse_time_ms):
            try:
                parse(str(time_ms))
            except (CliError, ValueError):
                refused.append(parse)
        assert len(refused) == (2 if time_ms < MIN_TIME_NUMBER else 0)

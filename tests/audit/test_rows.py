"""Rows, tags and widths as they are given: what cannot be used is refused with name and value."""

from __future__ import annotations

from typing import Any

import pytest

from pulsemark.audit.rows import (
    AuditInputError,
    AuditRow,
    parse_bucket_ms,
    parse_tags,
    row_from_json,
)

GOOD: dict[str, Any] = {
    "tier": "consumer",
    "bucket_start_ms": 60_000,
    "bucket_end_ms": 120_000,
    "tags": {"producer": "till-1", "service": None},
    "count": 5,
    "doubled": 1,
    "min_index": 3,
    "host": "h",
}


def test_a_row_goes_through_json() -> None:
    """Short names of tags become full ones; the rest stays."""
    row = row_from_json(GOOD)
    assert row.tags == {"producer_name": "till-1", "service": None}
    assert (row.count, row.doubled, row.late, row.min_index, row.max_index) == (5, 1, 0, 3, None)
    assert AuditRow(**row.to_json()) == row
    assert row_from_json(row.to_json()) == row


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"tier": ""}, "tier"),
        ({"tier": 3}, "tier"),
        ({"tier": "x" * 257}, "tier"),
        ({"tier": "a\nb"}, "tier"),
        ({"count": -1}, "count"),
        ({"count": True}, "count"),
        ({"count": 1 << 63}, "count"),
        ({"count": None}, "count"),
        ({"doubled": 6}, "doubled"),
        ({"bucket_start_ms": 1}, "bucket_start_ms"),
        ({"bucket_end_ms": 60_000}, "bucket_start_ms"),
        ({"bucket_start_ms": "60000"}, "bucket_start_ms"),
        ({"tags": []}, "tags"),
        ({"tags": {"a": 1}}, "tags.a"),
        ({"tags": {"a": "x" * 257}}, "tags.a"),
        ({"tags": {"a": "\ud800"}}, "tags.a"),
        ({"tags": {"": "x"}}, "tag"),
        ({"tags": {str(n): "x" for n in range(9)}}, "tags"),
        ({"host": 1}, "host"),
        ({"color": "red"}, "row"),
        ({"min_index": -3}, "min_index"),
    ],
)
def test_a_bad_field_is_refused_with_its_name(change: dict[str, Any], field: str) -> None:
    """The error has field and value."""
    with pytest.raises(AuditInputError) as raised:
        row_from_json({**GOOD, **change})
    assert raised.value.field == field
    assert field in str(raised.value)


@pytest.mark.parametrize("value", [None, [], "x", 1])
def test_a_row_is_an_object(value: object) -> None:
    """Anything else is refused."""
    with pytest.raises(AuditInputError, match="row"):
        row_from_json(value)


def test_names_of_tags() -> None:
    """With commas or as a list; short names; no name is no tag."""
    assert parse_tags("producer, service") == ("producer_name", "service")
    assert parse_tags(["broker"]) == ("broker_name",)
    assert parse_tags("") == parse_tags(()) == ()


@pytest.mark.parametrize(
    "names", ["a,,b", "a,a", "producer,producer_name", "x" * 129, "a\tb", list("abcdefghi")]
)
def test_bad_names_of_tags(names: Any) -> None:
    """Empty, twice, too long, not printable, too many."""
    with pytest.raises(AuditInputError):
        parse_tags(names)


@pytest.mark.parametrize("text", ["", "minute", "0 minutes", "1 fortnight", "9999 days"])
def test_bad_widths(text: str) -> None:
    """The error names the value."""
    with pytest.raises(AuditInputError) as raised:
        parse_bucket_ms(text)
    assert raised.value.value == text

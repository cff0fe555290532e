"""The audit's own parts, without Spark. What it counts in Spark is in test_spark.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pulsemark.audit.rows import MAX_MESSAGES_PER_ENTRY, parse_bucket_ms
from pulsemark.ledger import Entry, EntryKind, Position
from pulsemark.metadata import BrokerEntryMetadata, pack
from pulsemark.pipeline.audit import audit
from pulsemark.pipeline.audit_source import counts
from pulsemark.pipeline.decode.entries import EntryTable, table_of_entries
from pulsemark.pipeline.errors import OptionError


@pytest.mark.parametrize(
    ("text", "width_ms"),
    [
        ("1 minute", 60_000),
        ("30 seconds", 30_000),
        ("2HOURS", 7_200_000),
        (" 1 day ", 86_400_000),
        ("250 milliseconds", 250),
        ("1 week", 604_800_000),
    ],
)
def test_bucket_widths(text: str, width_ms: int) -> None:
    """As Spark's users write them."""
    assert parse_bucket_ms(text) == width_ms


@pytest.mark.parametrize("text", ["", "minute", "0 minutes", "1 fortnight", "-1 day", "9999 days"])
def test_widths_that_are_none(text: str) -> None:
    """The error names option and value."""
    spark: Any = None
    with pytest.raises(OptionError) as raised:
        audit(spark, "/nowhere", bucket=text)
    assert (raised.value.option, raised.value.value) == ("bucket", text)


def head(
    number: int, count: int, index: int, *, stamp_ms: int | None, append_ms: int, control: bool
) -> Entry:
    """An entry with 100 bytes of body, in which nothing is looked for."""
    prefix = b"" if stamp_ms is None else pack(BrokerEntryMetadata(broker_timestamp=stamp_ms))
    kind = EntryKind.CONTROL if control else EntryKind.DATA
    stored = memoryview(prefix + bytes(100))
    return Entry(Position(1, number), kind, count, index, append_ms, len(prefix), stored)


def columns(table: EntryTable, bucket_ms: int) -> list[list[Any]]:
    """The audit's counts, in order."""
    named = counts(table, bucket_ms)
    return [
        column.tolist()
        for name, column in named.items()
        if name not in ("ledger_id", "entry_id", "tag_values")
    ]


def test_an_entry_counts_by_its_stamp_or_by_its_append_time() -> None:
    """Messages, control entries and bytes apart; entries without messages have no index."""
    table = table_of_entries(
        [
            head(0, 3, 2, stamp_ms=1_000, append_ms=9_999, control=False),
            head(1, 1, 3, stamp_ms=1_999, append_ms=9_999, control=True),
            head(2, 2, 5, stamp_ms=None, append_ms=1_500, control=False),
            head(3, 0, 5, stamp_ms=None, append_ms=2_000, control=False),
            head(4, 4, 9, stamp_ms=None, append_ms=3_000, control=False),
        ]
    )
    stamped = len(pack(BrokerEntryMetadata(broker_timestamp=1_000)))
    starts, messages, controls, sizes, doubtful, lows, highs = columns(table, 1_000)
    assert starts == [1_000, 2_000, 3_000]
    assert messages == [5, 0, 4]
    assert controls == [1, 0, 0]
    assert sizes == [300 + 2 * stamped, 100, 100]
    assert doubtful == [0, 0, 0]
    assert lows == [0, None, 6]
    assert highs == [5, None, 9]


def test_what_no_read_would_take_is_doubtful() -> None:
    """Counts are the producers' claims: those beyond the limit of a read are counted apart."""
    claims = (2**31 - 1, 1000, MAX_MESSAGES_PER_ENTRY)
    ends = np.cumsum(claims) - 1
    table = table_of_entries(
        [
            head(n, count, int(end), stamp_ms=1_000, append_ms=0, control=False)
            for n, (count, end) in enumerate(zip(claims, ends, strict=True))
        ]
    )
    _, messages, _, _, doubtful, *_ = columns(table, 1_000)
    assert messages == [sum(claims)]
    assert doubtful == [2**31 - 1]


def test_a_stamp_beyond_all_times_is_none() -> None:
    """An entry whose stamp no clock can have said counts by its append time."""
    table = table_of_entries(
        [
            head(n, 1, n, stamp_ms=stamp_ms, append_ms=5_500, control=False)
            for n, stamp_ms in enumerate((2**63, 2**63 + 1, 2**64 - 1, 2**62))
        ]
    )
    starts, messages, *_ = columns(table, 1_000)
    assert (starts, messages) == ([5_000], [4])


def test_times_that_fall_give_a_bucket_twice() -> None:
    """Parts of a bucket are merged later, wherever they were counted."""
    times = (1_000, 2_000, 1_500, 1_600)
    table = table_of_entries(
        [
            head(n, 1, n, stamp_ms=time_ms, append_ms=0, control=False)
            for n, time_ms in enumerate(times)
        ]
    )
    starts, messages, *_, lows, highs = columns(table, 1_000)
    assert list(zip(starts, messages, lows, highs, strict=True)) == [
        (1_000, 1, 0, 0),
        (2_000, 1, 1, 1),
        (1_000, 2, 2, 3),
    ]

"""Names of partitions: which are, and which topic they belong to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsemark.metadata.partition_names import partition_name, partition_of


@pytest.mark.parametrize(
    ("name", "index", "topic"),
    [
        ("x", -1, "x"),
        ("", -1, ""),
        ("x-partition-0", 0, "x"),
        ("x-partition-17", 17, "x"),
        ("persistent://t/n/x-partition-17", 17, "persistent://t/n/x"),
        ("persistent://t/n/-partition-17", -1, "persistent://t/n/-partition-17"),
        ("x-partition-2147483647", 2147483647, "x"),
        ("x-partition-2147483648", -1, "x-partition-2147483648"),
        ("x-partition-99999999999999999999", -1, "x-partition-99999999999999999999"),
        ("x-partition-01", -1, "x-partition-01"),
        ("x-partition--1", -1, "x-partition--1"),
        ("x-partition-", -1, "x-partition-"),
        ("x-partition-1x", -1, "x-partition-1x"),
        ("x-partition-1\n", -1, "x-partition-1\n"),
        ("x-partition-\u0661", -1, "x-partition-\u0661"),
        ("x-partition-1-partition-2", 2, "x-partition-1"),
        ("x-partition-partition-2", 2, "x-partition"),
        ("-partition-1", -1, "-partition-1"),
    ],
)
def test_a_partition_is_read_only_where_a_broker_could_have_written_it(
    name: str, index: int, topic: str
) -> None:
    """A number that no broker writes belongs to the topic's name, as in Pulsar."""
    assert partition_of(name) == (topic, index)


@given(st.text(min_size=1).filter(lambda name: name[-1] != "/"), st.integers(0, 2**31 - 1))
def test_a_partition_s_name_is_read_as_it_was_made(topic: str, index: int) -> None:
    """`partition_name` and `partition_of` are each other's inverse."""
    assert partition_of(partition_name(topic, index)) == (topic, index)

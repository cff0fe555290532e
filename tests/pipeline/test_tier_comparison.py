"""Other tiers: what kind a place is, and the differences, without Spark."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsemark.pipeline.errors import OptionError
from pulsemark.pipeline.offload import offload
from pulsemark.pipeline.offload.table import ParquetFolder
from pulsemark.pipeline.tier_comparison import (
    IndexRun,
    TopicIndexes,
    compare_indexes,
    kind_of,
    merged,
    of_indexes,
    size,
    table_indexes,
    text,
    without,
)


def test_differences_are_what_sets_say() -> None:
    """Random losses, surpluses and buckets, compared with an independent computation."""
    for seed in range(200):
        dice = random.Random(seed)
        ours = sorted(dice.sample(range(10, 60), dice.randrange(40)))
        theirs = set(dice.sample(range(70), dice.randrange(60)))
        copied = dice.choice([None, dice.randrange(70)])
        bucket = {index: index // 7 * 1000 for index in ours}
        runs = [IndexRun(bucket[index], index, index + 1) for index in ours]
        other = TopicIndexes(tuple(merged((i, i + 1) for i in theirs)[0]), 0, copied)
        found = compare_indexes({"t": runs}, {"t": other})
        expected: list[tuple[int | None, str, int]] = []
        for start in sorted(set(bucket.values())):
            lacking = [i for i in ours if bucket[i] == start and i not in theirs]
            pending = [i for i in lacking if copied is not None and i >= copied]
            for what, part in (("missing", len(lacking) - len(pending)), ("pending", len(pending))):
                if part:
                    expected.append((start, what, part))
        extra = [i for i in theirs if ours and i >= ours[0] and i not in bucket]
        if extra:
            expected.append((None, "extra", len(extra)))
        assert [(d.bucket_start_ms, d.what, d.messages) for d in found] == expected
        assert [d.is_problem for d in found] == [what != "pending" for _, what, _ in expected]


def test_which_messages_differ() -> None:
    """The indexes and both counts are there; a topic that is on one side only is there too."""
    runs = [IndexRun(0, 0, 10), IndexRun(1000, 10, 20)]
    theirs = {
        "a": TopicIndexes(((0, 5), (8, 20), (25, 26)), doubled=3),
        "c": TopicIndexes(((0, 4),)),
    }
    found = compare_indexes({"a": runs, "b": [IndexRun(0, 7, 9)]}, theirs)
    assert [(d.topic, d.what, d.indexes, d.count, d.other_count) for d in found] == [
        ("a", "missing", "5-7", 10, 7),
        ("a", "extra", "25", None, None),
        ("a", "doubled", None, None, None),
        ("b", "missing", "7-8", 2, 0),
    ]


def test_what_is_no_tier_is_refused(folder: Any, tmp_path: Path) -> None:
    """A place that does not exist, another folder, another file."""
    assert kind_of(folder.path) == "folder"
    (tmp_path / "x.txt").write_text("")
    (tmp_path / "empty").mkdir()
    for name, reason in (
        ("no", "does not exist"),
        ("x.txt", "is not a data"),
        ("empty", "is not a data"),
    ):
        with pytest.raises(OptionError, match=reason):
            kind_of(tmp_path / name)


def test_a_table_that_knows_its_indexes() -> None:
    """As targets of an offload do that are no folders: what their manifest never had is pending."""

    class Manifest:
        """Of one topic's log."""

        def next_indexes(self) -> dict[tuple[str, int], int]:
            """Where the copy ends."""
            return {("a", 1): 9}

    class Table:
        """Has lost two messages, and one twice."""

        name = "lake.orders"

        def load(self) -> Manifest:
            """Its manifest."""
            return Manifest()

        def indexes_of(self, topic: str) -> Any:
            """Of topic a."""
            assert topic == "a"
            return np.array([8, 0, 1, 4, 5, 6, 7, 7])

    table: Any = Table()
    assert kind_of(table) == "table"
    assert table_indexes(table, {"a": 1, "b": 2}) == {
        "a": TopicIndexes(((0, 2), (4, 9)), 1, 9),
        "b": TopicIndexes((), 0, 0),
    }
    assert table_indexes(table, {"a": 7}) == {"a": TopicIndexes((), 0, 0)}


def test_a_file_that_no_manifest_lists_counts(folder: Any, tmp_path: Path) -> None:
    """Who reads the folder sees its messages twice."""
    topic = folder.topic("a")
    for number in range(7):
        topic.single(b"%d" % number)
    target = tmp_path / "out"
    done = offload(folder.in_process(), folder.path, target, rows_per_file=3)
    second = target / done.files[1].path
    second.with_name("copy.parquet").write_bytes(second.read_bytes())
    found = table_indexes(target, {topic.name: topic.ledger.topic_id})
    assert found[topic.name] == TopicIndexes(((0, 7),), 3, 7)


def test_a_table_in_an_object_store_is_a_tier(folder: Any, tmp_path: Path) -> None:
    """By its URI: its files' indexes, a file that is gone is missing; another place is refused."""
    topic = folder.topic("a")
    for number in range(7):
        topic.single(b"%d" % number)
    uri = f"memory://{tmp_path.name}/out"
    with pytest.raises(OptionError, match="has no table of an offload"):
        kind_of(uri)
    offload(folder.in_process(), folder.path, uri, rows_per_file=3)
    assert kind_of(uri) == "table"
    log_ids = {topic.name: topic.ledger.topic_id}
    assert table_indexes(uri, log_ids) == {topic.name: TopicIndexes(((0, 7),), 0, 7)}
    second = ParquetFolder(uri).load().files[1]
    ParquetFolder(uri).place.remove(second.path)
    assert table_indexes(uri, log_ids)[topic.name].ranges == ((0, 3), (6, 7))
    with pytest.raises(OptionError, match=r"option against = 'nope://x'"):
        kind_of("nope://x")


RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12)


def members(ranges: list[tuple[int, int]]) -> list[int]:
    """All indexes, as often as they are there."""
    return [index for first, end in ranges for index in range(first, end)]


@given(RANGES)
def test_merged_is_the_union(ranges: list[tuple[int, int]]) -> None:
    """In order, apart from each other, and with the number of surplus ones."""
    found, doubled = merged(ranges)
    assert members(found) == sorted(set(members(ranges)))
    assert all(end < first for (_, end), (first, _) in pairwise(found))
    assert doubled == len(members(ranges)) - len(set(members(ranges)))


@given(RANGES, RANGES)
def test_without_is_the_difference(
    one: list[tuple[int, int]], other: list[tuple[int, int]]
) -> None:
    """What is in the first list only."""
    left, right = merged(one)[0], merged(other)[0]
    found = list(without(left, right))
    assert members(found) == sorted(set(members(one)) - set(members(other)))
    assert size(found) == len(members(found))


@given(st.lists(st.integers(0, 50), max_size=40))
def test_single_indexes(indexes: list[int]) -> None:
    """Any order, any number of times."""
    found, doubled = of_indexes(np.array(indexes, np.int64))
    assert members(found) == sorted(set(indexes))
    assert doubled == len(indexes) - len(set(indexes))


def test_the_text_is_short() -> None:
    """Single indexes, ranges, and an end of the list."""
    assert text([(1, 2), (5, 8)]) == "1,5-7"
    assert text([(2 * n, 2 * n + 1) for n in range(60)]).endswith(",98 and 10 more ranges")
    assert text([]) == ""

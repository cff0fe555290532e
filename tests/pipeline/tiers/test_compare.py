"""Differences between what tiers have, without Spark."""

from __future__ import annotations

import random

from pulsemark.pipeline.tiers.compare import compare_counts, compare_indexes
from pulsemark.pipeline.tiers.others import Counts, IndexRun, TopicIndexes, merged


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


def test_counts_are_compared_by_bucket() -> None:
    """From the first bucket on that the other tier has counted."""
    runs = [IndexRun(start * 1000, start * 10, start * 10 + 10) for start in range(5)]
    counts = Counts("billing", {"a": {1000: 10, 2000: 7, 3000: 12}, "b": {0: 4}})
    found = compare_counts({"a": runs}, counts)
    assert [(d.topic, d.bucket_start_ms, d.what, d.messages) for d in found] == [
        ("a", 2000, "missing", 3),
        ("a", 3000, "extra", 2),
        ("a", 4000, "missing", 10),
        ("b", 0, "extra", 4),
    ]

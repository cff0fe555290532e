"""The differences between a folder, which is the measure, and another tier.

=========  =====================================================================================
missing    the folder has these messages, the other tier does not
extra      the other tier has them, the folder does not, though it reaches so far back
doubled    the other tier has them more often than once
lost       the folder itself has lost them, or files of the topic; the other tier may have them
pending    an offload has not come so far yet; this is no problem
=========  =====================================================================================

Where both tiers have indexes, these are compared, so it is known which messages differ. Counts in
a file are compared by topic and bucket.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from .others import Counts, IndexRun, Range, TopicIndexes, merged, size, text, without

__all__ = ["Difference", "compare_counts", "compare_indexes", "losses_of"]


@dataclass(frozen=True, slots=True)
class Difference:
    """Messages of one topic and bucket that the tiers do not both have."""

    topic: str
    bucket_start_ms: int | None
    """None: the bucket is not known, because only the other tier has the messages."""
    what: str
    messages: int
    indexes: str | None
    """As ``4-9,12``, or the reason why they are not known; None: only counts are known."""
    count: int | None
    """The folder's count of the bucket."""
    other_count: int | None
    """The other tier's count of the bucket."""

    @property
    def is_problem(self) -> bool:
        """Whether something is wrong."""
        return self.what != "pending"


def losses_of(gaps: Mapping[str, Sequence[Range]], reasons: Mapping[str, str]) -> list[Difference]:
    """What the folder itself has lost: indexes without an entry, and files."""
    found = []
    for topic in sorted({*gaps, *reasons}):
        ranges, _ = merged(gaps.get(topic, ()))
        indexes = text(ranges) if ranges else reasons.get(topic)
        found.append(Difference(topic, None, "lost", size(ranges), indexes, None, None))
    return found


def compare_indexes(
    ours: Mapping[str, Sequence[IndexRun]], theirs: Mapping[str, TopicIndexes]
) -> list[Difference]:
    """The differences by index; a topic that the other tier does not have has nothing there."""
    found: list[Difference] = []
    for topic in sorted({*ours, *theirs}):
        runs = ours.get(topic, ())
        other = theirs.get(topic, TopicIndexes(()))
        found += _lacking(topic, runs, other)
        found += _surplus(topic, runs, other)
    return found


def _lacking(topic: str, runs: Iterable[IndexRun], other: TopicIndexes) -> Iterator[Difference]:
    """What the other tier does not have, bucket by bucket."""
    buckets: dict[int, list[Range]] = {}
    for run in runs:
        buckets.setdefault(run.bucket_start_ms, []).append((run.first_index, run.end_index))
    for start_ms in sorted(buckets):
        ranges, _ = merged(buckets[start_ms])
        lacking = list(without(ranges, other.ranges))
        if not lacking:
            continue
        count = size(ranges)
        counts = (count, count - size(lacking))
        end = other.end_index
        parts = {"missing": lacking}
        if end is not None:
            parts = {
                "missing": [(first, min(last, end)) for first, last in lacking if first < end],
                "pending": [(max(first, end), last) for first, last in lacking if last > end],
            }
        for what, part in parts.items():
            if part:
                yield Difference(topic, start_ms, what, size(part), text(part), *counts)


def _surplus(topic: str, runs: Sequence[IndexRun], other: TopicIndexes) -> Iterator[Difference]:
    """What only the other tier has; what retention removed from the folder's head is expected."""
    ranges, _ = merged((run.first_index, run.end_index) for run in runs)
    if ranges:
        first = ranges[0][0]
        inside = [(max(first, low), high) for low, high in other.ranges if high > first]
        extra = list(without(inside, ranges))
        if extra:
            yield Difference(topic, None, "extra", size(extra), text(extra), None, None)
    if other.doubled:
        yield Difference(topic, None, "doubled", other.doubled, None, None, None)


def compare_counts(ours: Mapping[str, Sequence[IndexRun]], theirs: Counts) -> list[Difference]:
    """The differences by topic and bucket.

    Buckets before the first one that the other tier has counted are left out: it was not there yet.
    """
    found: list[Difference] = []
    for topic in sorted({*ours, *theirs.by_topic}):
        other = theirs.by_topic.get(topic, {})
        counted: dict[int, int] = {}
        for run in ours.get(topic, ()):
            messages = run.end_index - run.first_index
            counted[run.bucket_start_ms] = counted.get(run.bucket_start_ms, 0) + messages
        began_ms = min(other, default=None)
        for start_ms in sorted({*counted, *other}):
            count, other_count = counted.get(start_ms, 0), other.get(start_ms, 0)
            if count == other_count or (began_ms is not None and start_ms < began_ms):
                continue
            what = "missing" if count > other_count else "extra"
            messages = abs(count - other_count)
            found.append(Difference(topic, start_ms, what, messages, None, count, other_count))
    return found

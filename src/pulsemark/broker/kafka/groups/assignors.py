"""Which member of a consumer group gets which partitions: Kafka's server-side assignors.

``uniform``  divides partitions as evenly as the members' subscriptions allow; a partition stays
             with its member where it can (sticky)
``range``    of each topic, a run of partitions for each of its readers, in the order of their
             names: equal numbers of topics with the same readers and sizes go to the same member

An assignor gets, for each member, a name to sort by and the topics that it reads; the number of
partitions of each topic; and the previous target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heapreplace

from .offsets import Partition

Subscriptions = Mapping[str, tuple[str, frozenset[str]]]
Counts = Mapping[str, int]
Target = dict[str, frozenset[Partition]]
UNIFORM, RANGE = "uniform", "range"
#: Passes over all topics in which members with more give to those with less.
MAX_PASSES = 10


def _readers(members: Subscriptions, counts: Counts) -> dict[str, list[str]]:
    """Each topic's subscribed members, sorted by name."""
    in_order = sorted(members, key=lambda member: (members[member][0], member))
    return {
        topic: readers
        for topic in sorted(counts)
        if (readers := [member for member in in_order if topic in members[member][1]])
    }


def by_range(members: Subscriptions, counts: Counts, _before: Target) -> Target:
    """The assignor ``range``."""
    found: dict[str, set[Partition]] = {member: set() for member in members}
    for topic, readers in _readers(members, counts).items():
        each, more = divmod(counts[topic], len(readers))
        at = 0
        for place, member in enumerate(readers):
            end = at + each + (place < more)
            found[member].update((topic, index) for index in range(at, end))
            at = end
    return {member: frozenset(partitions) for member, partitions in found.items()}


def uniformly(members: Subscriptions, counts: Counts, before: Target) -> Target:
    """The assignor ``uniform``: equal shares, with as few changes as possible."""
    found: dict[str, set[Partition]] = {
        member: {
            (topic, index)
            for topic, index in before.get(member, ())
            if index < counts.get(topic, 0) and topic in reads
        }
        for member, (_, reads) in members.items()
    }
    pools: dict[tuple[str, ...], list[str]] = {}
    for topic, named in _readers(members, counts).items():
        pools.setdefault(tuple(named), []).append(topic)
    if len(pools) == 1:
        (everyone,) = pools
        _trim(sum(counts[topic] for topic in pools[everyone]), everyone, found)
    taken = {partition for partitions in found.values() for partition in partitions}
    for readers, topics in sorted(pools.items(), key=lambda pool: len(pool[0])):
        everything = ((topic, index) for topic in topics for index in range(counts[topic]))
        _hand_out([each for each in everything if each not in taken], readers, found)
    for _ in range(MAX_PASSES if len(pools) > 1 else 0):
        if not sum(_level(frozenset(topics), names, found) for names, topics in pools.items()):
            break
    return {member: frozenset(partitions) for member, partitions in found.items()}


def _trim(total: int, readers: Sequence[str], found: dict[str, set[Partition]]) -> None:
    """Take what is above its share from each reader; those with most get the larger shares."""
    each, more = divmod(total, len(readers))
    for place, member in enumerate(sorted(readers, key=lambda member: -len(found[member]))):
        share = each + (place < more)
        for partition in sorted(found[member])[share:]:
            found[member].discard(partition)


def _hand_out(
    free: list[Partition], readers: Sequence[str], found: dict[str, set[Partition]]
) -> None:
    """Give each partition to the reader that has the fewest."""
    heap = [(len(found[member]), place) for place, member in enumerate(readers)]
    heapify(heap)
    for partition in free:
        has, place = heap[0]
        found[readers[place]].add(partition)
        heapreplace(heap, (has + 1, place))


def _level(
    topics: frozenset[str], readers: Sequence[str], found: dict[str, set[Partition]]
) -> bool:
    """Move partitions of some topics from readers with more to readers with fewer."""
    giving = sorted(readers, key=lambda member: -len(found[member]))
    takers = [(len(found[member]), place) for place, member in enumerate(readers)]
    heapify(takers)
    changed = False
    for member in giving:
        own = sorted((p for p in found[member] if p[0] in topics), reverse=True)
        for partition in own:
            has, place = takers[0]
            taker = readers[place]
            if has != len(found[taker]):  # it has given some away meanwhile
                heapreplace(takers, (len(found[taker]), place))
                has, place = takers[0]
                taker = readers[place]
            if taker == member or len(found[member]) - len(found[taker]) < 2:
                break
            found[member].discard(partition)
            found[taker].add(partition)
            heapreplace(takers, (len(found[taker]), place))
            changed = True
    return changed


ASSIGNORS: dict[str, Callable[[Subscriptions, Counts, Target], Target]] = {
    UNIFORM: uniformly,
    RANGE: by_range,
}

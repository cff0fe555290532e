"""A group of the consumer protocol (KIP-848): its members, epochs and assignments.

Each member reports in heartbeats what it subscribes to and which partitions it owns. The group
computes a target assignment and brings each member to it separately. A partition goes to its next
member only after the previous one has reported that it released it.

Epochs count up. The group's epoch grows with each change of members, subscriptions or partitions.
The target's epoch is the group epoch for which it was computed. A member whose epoch is the
target's has reached the target.

A member that owns partitions outside of its target is told to revoke them, and keeps its epoch
until it has reported that. Of its target a member gets those partitions that no other one owns.

**Assignors** compute the target, as Kafka's server-side ones do:

``uniform``  divides partitions as evenly as the members' subscriptions allow; a partition stays
             with its member where it can (sticky)
``range``    of each topic, a run of partitions for each of its readers, in the order of their
             names: equal numbers of topics with the same readers and sizes go to the same member

An assignor gets, for each member, a name to sort by and the topics that it reads; the number of
partitions of each topic; and the previous target.

Nothing here does I/O or knows of time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from itertools import islice
from typing import NamedTuple

from .group import OVERHEAD_BYTES, Joining
from .offsets import Partition

Subscriptions = Mapping[str, tuple[str, frozenset[str]]]
Counts = Mapping[str, int]
Target = dict[str, frozenset[Partition]]
#: The key of a lookup of topics: a role and a regex.
RegexKey = tuple[str | None, str]
#: Generations of topics and of permissions: when one changes, a regex may match other topics.
Changes = tuple[int, int]
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


PARTITION_BYTES = 150
MAX_GIVEN = 5_000
"""Partitions that a member gets with one heartbeat; the next one brings more."""
NOTHING: frozenset[Partition] = frozenset()


class RegexMatch(NamedTuple):
    """The topics that a regex matches for a role, and the loop's time of that lookup."""

    regex: str
    topics: frozenset[str]
    changes: Changes
    looked_up_s: float


@dataclass(slots=True, eq=False)
class ConsumerMember:
    """A member, and what it has reported in heartbeats."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    topics: frozenset[str] = frozenset()
    regex: str | None = None
    #: Its connection's role.
    role: str | None = None
    #: The topics that match the regex, and that the role may see.
    matched: frozenset[str] = frozenset()
    assignor: str | None = None
    epoch: int = 0
    previous_epoch: int = 0
    assigned: frozenset[Partition] = NOTHING
    #: Partitions that it owns and has to release.
    revoking: frozenset[Partition] = NOTHING
    #: Part of its target is still owned by others, or did not fit into one answer.
    is_waiting: bool = False
    #: The memory of the names that it has sent.
    names_bytes: int = 0
    #: The metadata that it sent as a member of the classic protocol; None: it uses this protocol.
    classic: Joining | None = None
    session: asyncio.TimerHandle | None = None
    #: The deadline for releasing what it has to revoke.
    rebalance: asyncio.TimerHandle | None = None

    @property
    def reads(self) -> frozenset[str]:
        """The topics that the member subscribes to, by name and by regex."""
        return self.topics | self.matched if self.matched else self.topics

    @property
    def held(self) -> frozenset[Partition]:
        """The partitions that no other member may get: assigned, and not yet released."""
        return self.assigned | self.revoking

    @property
    def is_stable(self) -> bool:
        """Whether the member has exactly the partitions of its epoch's target."""
        return not self.revoking and not self.is_waiting

    @property
    def size_bytes(self) -> int:
        """The member's approximate memory, in bytes."""
        has = len(self.assigned) + len(self.revoking)
        return OVERHEAD_BYTES + self.names_bytes + PARTITION_BYTES * has

    def cancel(self) -> None:
        """Cancel the member's timers."""
        for timer in (self.session, self.rebalance):
            if timer is not None:
                timer.cancel()


@dataclass(slots=True, eq=False)
class ConsumerGroup:
    """One group's members and epochs."""

    name: str
    epoch: int = 0
    target_epoch: int = 0
    assignor: str = UNIFORM
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    #: Static members: instance id to member id.
    static: dict[str, str] = field(default_factory=dict)
    target: Target = field(default_factory=dict)
    #: The partitions of each topic that is read.
    counts: Counts = field(default_factory=dict)
    #: How many members read a topic.
    readers: Counter[str] = field(default_factory=Counter)
    #: The member that owns a partition, or has to release it.
    owners: dict[Partition, str] = field(default_factory=dict)
    #: The topics that regexes match, by regex and role of the members that have it.
    resolved: dict[RegexKey, RegexMatch] = field(default_factory=dict)
    #: Whether topics may have changed since they were looked at.
    is_due: bool = True
    #: The bytes that the coordinator has counted for the group.
    counted_bytes: int = 0

    @property
    def is_outdated(self) -> bool:
        """Whether the target must be computed again."""
        return self.target_epoch < self.epoch

    @property
    def size(self) -> int:
        """The number of members and partitions, a measure of the work of computing a target."""
        return len(self.members) + sum(self.counts.values())

    @property
    def size_bytes(self) -> int:
        """The approximate memory of the group's members, in bytes."""
        return sum(member.size_bytes for member in self.members.values())

    @property
    def state(self) -> str:
        """The group's state, as Kafka names it."""
        if not self.members:
            return "Empty"
        if self.is_outdated:
            return "Assigning"
        members = self.members.values()
        is_done = all(m.is_stable and m.epoch == self.target_epoch for m in members)
        return "Stable" if is_done else "Reconciling"

    @property
    def is_all_classic(self) -> bool:
        """Whether all members use the classic protocol."""
        return bool(self.members) and all(m.classic is not None for m in self.members.values())

    # -- members --------------------------------------------------------------------------------

    def add(self, member: ConsumerMember) -> None:
        """Add a member."""
        self.members[member.member_id] = member
        self.readers.update(member.reads)
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id

    def remove(self, member: ConsumerMember) -> None:
        """Remove a member, and free its partitions."""
        member.cancel()
        self._hold(member, NOTHING, NOTHING)
        del self.members[member.member_id]
        self._no_longer(member.reads)
        self.target.pop(member.member_id, None)
        if self.static.get(member.instance_id or "") == member.member_id:
            del self.static[member.instance_id or ""]

    def subscribe(
        self, member: ConsumerMember, topics: frozenset[str], matched: frozenset[str]
    ) -> bool:
        """Set a member's subscription. Return whether it has changed."""
        before = member.reads
        member.topics, member.matched = topics, matched
        if member.reads == before:
            return False
        self.readers.update(member.reads)
        self._no_longer(before)
        names = (*member.topics, member.regex or "", member.client_id)
        member.names_bytes = sum(map(len, names))
        return True

    def _no_longer(self, topics: frozenset[str]) -> None:
        self.readers.subtract(topics)
        for topic in topics:
            if not self.readers[topic]:
                del self.readers[topic]

    def replace(self, member: ConsumerMember, new: ConsumerMember) -> None:
        """Replace a static member that is back with another id."""
        assigned, target = member.assigned, self.target.get(member.member_id)
        self.remove(member)
        self.add(new)
        if target is not None:
            self.target[new.member_id] = target
        self._hold(new, assigned, NOTHING)

    def take_over(self, member: ConsumerMember, assigned: Iterable[Partition]) -> None:
        """Add a member that owns these partitions already, except those that others own."""
        self.add(member)
        self._hold(member, frozenset(p for p in assigned if p not in self.owners), NOTHING)
        self.target[member.member_id] = member.assigned

    def let_go(self, member: ConsumerMember) -> None:
        """Note that a member has released all that it had to revoke."""
        self._hold(member, member.assigned, NOTHING)
        member.is_waiting = False

    def _hold(
        self, member: ConsumerMember, assigned: frozenset[Partition], revoking: frozenset[Partition]
    ) -> None:
        now = assigned | revoking
        for partition in member.held - now:
            del self.owners[partition]
        for partition in now - member.held:
            assert partition not in self.owners, "a partition has one owner"
            self.owners[partition] = member.member_id
        member.assigned, member.revoking = assigned, revoking

    # -- the target -------------------------------------------------------------------------------

    def look(self, partitions_of: Callable[[str], int]) -> None:
        """Count the partitions of subscribed topics. A change begins a new group epoch."""
        counts = {name: count for name in self.readers if (count := partitions_of(name))}
        if counts != self.counts:
            self.counts = counts
            self.epoch += 1
        self.is_due = False

    def plan(self) -> Callable[[], Target]:
        """Return a function that computes the next target, in any thread."""
        votes = Counter(m.assignor for m in self.members.values() if m.assignor is not None)
        self.assignor = votes.most_common(1)[0][0] if votes else UNIFORM
        assign, counts = ASSIGNORS[self.assignor], dict(self.counts)
        said = [
            (m.member_id, m.instance_id or m.member_id, m.topics, m.matched)
            for m in self.members.values()
        ]
        now = {name: self.target.get(name, NOTHING) for name in self.members}

        def planned() -> Target:
            subscriptions: Subscriptions = {
                member: (name, topics | matched if matched else topics)
                for member, name, topics, matched in said
            }
            return assign(subscriptions, counts, now)

        return planned

    def install(self, epoch: int, target: Target) -> None:
        """Set the target that was computed for an epoch, unless a later one is set."""
        if epoch > self.target_epoch:
            self.target, self.target_epoch = target, epoch

    # -- members on their way to it ---------------------------------------------------------------

    def reconcile(self, member: ConsumerMember, owned: frozenset[Partition] | None) -> bool:
        """Bring a member nearer to its target. Return whether its assignment has changed.

        `owned`: the partitions that the member reports; None if it reports none.
        """
        if member.revoking and (owned is None or owned & member.revoking):
            return False
        if member.is_stable and member.epoch == self.target_epoch:
            return False
        before = member.assigned
        target = self.target.get(member.member_id, NOTHING)
        kept, gone = member.assigned & target, member.assigned - target
        if gone and (owned is None or owned & gone):
            self._hold(member, kept, gone)
            return True
        self._hold(member, kept, NOTHING)
        free = (p for p in target - kept if p not in self.owners)
        self._hold(member, kept.union(islice(free, MAX_GIVEN)), NOTHING)
        member.is_waiting = member.assigned != target
        if member.epoch != self.target_epoch:
            member.previous_epoch, member.epoch = member.epoch, self.target_epoch
        return member.assigned != before

    def can_go_on(self, member: ConsumerMember) -> bool:
        """Whether reconciling may change the member's epoch or assignment now."""
        if member.epoch < self.epoch or member.revoking:
            return True
        target = self.target.get(member.member_id, NOTHING)
        return any(p not in self.owners for p in target - member.assigned)


def by_topic(partitions: Iterable[Partition]) -> Mapping[str, list[int]]:
    """Partitions grouped by topic and sorted, as answers have them."""
    found: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        found.setdefault(topic, []).append(index)
    return found

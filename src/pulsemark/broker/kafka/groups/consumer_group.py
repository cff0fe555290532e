"""A group of the consumer protocol (KIP-848): its members, epochs, heartbeats and assignments.

Each member reports in heartbeats what it subscribes to and which partitions it owns. The group
computes a target assignment (`assignors`) and brings each member to it separately. A partition goes
to its next member only after the previous one has reported that it released it.

Epochs count up. The group's epoch grows with each change of members, subscriptions or partitions.
The target's epoch is the group epoch for which it was computed. A member whose epoch is the
target's has reached the target.

A member that owns partitions outside of its target is told to revoke them, and keeps its epoch
until it has reported that. Of its target a member gets those partitions that no other one owns.

`take` checks a heartbeat and notes what it says; then the caller computes the next target, if it is
outdated; `finish` brings the member nearer to it, and says what is answered.

**Migration.** A member of this protocol that joins a classic group of consumers makes it a group of
this protocol (`adopt`): the classic members stay in it, with what they have been assigned. Their
JoinGroup, SyncGroup and Heartbeat are answered here; REBALANCE_IN_PROGRESS tells them to join
again, when there is something to let go or to get. When the last member of this protocol leaves,
the group is a classic one again, and rebalances (`hand_over`).
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from kafka.protocol.consumer import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from ....kafka.errors import Code, KafkaError
from ....kafka.protocol import DECODE_ERRORS
from ...configuration.config import BrokerConfig
from .assignors import ASSIGNORS, UNIFORM, Counts, Subscriptions, Target
from .group import CONSUMER, OVERHEAD_BYTES, Group, Joining, JoinResult, Member, State, SyncResult
from .offsets import Partition

log = logging.getLogger(__name__)

#: The key of a lookup of topics: a role and a regex.
RegexKey = tuple[str | None, str]
#: Generations of topics and of permissions: when one changes, a regex may match other topics.
Changes = tuple[int, int]
JOINS, LEAVES, LEAVES_FOR_NOW = 0, -1, -2
"""Member epochs in requests that say something else."""
REFRESH_S = 1.0
"""Topics that are read are looked at again after this time."""
MAX_TOPICS = 10_000
"""Topics that a member may name."""
MAX_REGEX_CHARACTERS = 1_000
PARTITION_BYTES = 150
MAX_GIVEN = 5_000
"""Partitions that a member gets with one heartbeat; the next one brings more."""
NOTHING: frozenset[Partition] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """A ConsumerGroupHeartbeat. None stands for a field that has not changed."""

    group: str
    member_id: str
    epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topics: frozenset[str] | None = None
    #: "" ends a subscription by regex.
    regex: str | None = None
    assignor: str | None = None
    owned: frozenset[Partition] | None = None
    client_id: str = ""
    client_host: str = ""
    #: From version 1 on, clients make their ids.
    needs_id: bool = False
    #: The connection's.
    role: str | None = None

    @property
    def is_full(self) -> bool:
        """Whether the heartbeat has all fields: the client may not know the last answer."""
        return self.owned is not None and (self.topics is not None or self.regex is not None)


class Answer(NamedTuple):
    """The answer to a heartbeat; `assigned` None: nothing has changed."""

    member_id: str | None
    epoch: int
    assigned: frozenset[Partition] | None = None


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


class ConsumerGroup:
    """One group's members and epochs."""

    kind = protocol_type = CONSUMER

    def __init__(
        self,
        name: str,
        config: BrokerConfig,
        loop: asyncio.AbstractEventLoop,
        partitions_of: Callable[[str], int],
        changed: Callable[[ConsumerGroup], None],
    ) -> None:
        """`changed` is called after a timer has removed a member."""
        self.name = name
        self._loop, self._partitions_of, self._changed = loop, partitions_of, changed
        self._session_timeout_ms = config.kafka_group_consumer_session_timeout_ms
        self.epoch = self.target_epoch = 0
        self.assignor = UNIFORM
        self.members: dict[str, ConsumerMember] = {}
        #: Static members: instance id to member id.
        self.static: dict[str, str] = {}
        self.target: Target = {}
        #: The partitions of each topic that is read.
        self._counts: Counts = {}
        #: How many members read a topic.
        self.readers = Counter[str]()
        #: The member that owns a partition, or has to release it.
        self._owners: dict[Partition, str] = {}
        #: The topics that regexes match, by regex and role of the members that have it.
        self._resolved: dict[RegexKey, RegexMatch] = {}
        #: When topics are to be looked at again, in the loop's time.
        self._due_at_s = 0.0
        #: The bytes that the coordinator has counted for the group.
        self.counted_bytes = 0

    def close(self) -> None:
        """Cancel all timers."""
        for member in self.members.values():
            member.cancel()

    @property
    def is_over(self) -> bool:
        """Whether the group has no members."""
        return not self.members

    @property
    def is_outdated(self) -> bool:
        """Whether the target must be computed again."""
        return self.target_epoch < self.epoch

    @property
    def size(self) -> int:
        """The number of members."""
        return len(self.members)

    @property
    def work(self) -> int:
        """The number of members and partitions, a measure of the work of computing a target."""
        return len(self.members) + sum(self._counts.values())

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

    def knows(self, member_id: str) -> bool:
        """Whether there is a member with this id."""
        return member_id in self.members

    def reads(self, topic: str) -> bool:
        """Whether a member has subscribed to a topic."""
        return topic in self.readers

    # -- members --------------------------------------------------------------------------------

    def _add(self, member: ConsumerMember) -> None:
        self.members[member.member_id] = member
        self.readers.update(member.reads)
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id

    def _remove(self, member: ConsumerMember) -> None:
        """Remove a member, and free its partitions."""
        member.cancel()
        self._hold(member, NOTHING, NOTHING)
        del self.members[member.member_id]
        self._no_longer(member.reads)
        self.target.pop(member.member_id, None)
        if self.static.get(member.instance_id or "") == member.member_id:
            del self.static[member.instance_id or ""]

    def _expel(self, member: ConsumerMember) -> None:
        """Remove a member that leaves, or was silent for too long."""
        self._remove(member)
        self.epoch += 1

    def _subscribe(
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

    def _replace(self, member: ConsumerMember, new: ConsumerMember) -> None:
        """Replace a static member that is back with another id."""
        assigned, target = member.assigned, self.target.get(member.member_id)
        self._remove(member)
        self._add(new)
        if target is not None:
            self.target[new.member_id] = target
        self._hold(new, assigned, NOTHING)

    def _hold(
        self, member: ConsumerMember, assigned: frozenset[Partition], revoking: frozenset[Partition]
    ) -> None:
        now = assigned | revoking
        for partition in member.held - now:
            del self._owners[partition]
        for partition in now - member.held:
            assert partition not in self._owners, "a partition has one owner"
            self._owners[partition] = member.member_id
        member.assigned, member.revoking = assigned, revoking

    # -- heartbeats -------------------------------------------------------------------------------

    def take(self, beat: Beat, looked_up: RegexMatch | None = None) -> ConsumerMember:
        """Take the fields of a heartbeat, except of one that leaves. Raises KafkaError.

        `looked_up`: what the regex matches that `regex_due` has named.
        """
        before = self.epoch
        member = self._joined(beat) if beat.epoch == JOINS else self._known(beat)
        if self._take_fields(member, beat):
            self.epoch += 1
        if looked_up is not None:
            self._resolved[beat.role, looked_up.regex] = looked_up
        self._match()
        self._look(is_due=self.epoch > before)
        self.epoch = min(self.epoch, before + 1)
        self._expect(member)
        return member

    def _joined(self, beat: Beat) -> ConsumerMember:
        """The member that joins, new or not."""
        known = self.members.get(beat.member_id)
        holder = None if beat.instance_id is None else self.static.get(beat.instance_id)
        if holder is not None and holder != beat.member_id:
            before = self.members[holder]
            if before.epoch != LEAVES_FOR_NOW:
                raise KafkaError(
                    Code.UNRELEASED_INSTANCE_ID,
                    f"Static member {beat.member_id} with instance id {beat.instance_id} "
                    f"cannot join the group because the instance id is owned by {holder}",
                )
            new = _new(beat)
            new.topics, new.regex, new.matched = before.topics, before.regex, before.matched
            new.assignor, new.names_bytes = before.assignor, before.names_bytes
            self._replace(before, new)
            return new
        if known is None:
            known = _new(beat)
            self._add(known)
            self.epoch += 1
        elif known.epoch == LEAVES_FOR_NOW:
            known.epoch = 0
        known.classic = None
        return known

    def _known(self, beat: Beat) -> ConsumerMember:
        """The member that sends a heartbeat with its epoch."""
        member = self._member(beat.member_id, beat.instance_id)
        if not _is_current(member, beat):
            raise KafkaError(
                Code.FENCED_MEMBER_EPOCH,
                f"The consumer group member has the epoch {member.epoch}, not {beat.epoch}, known "
                "by the group coordinator. The member must abandon all its partitions and rejoin.",
            )
        return member

    def _member(self, member_id: str, instance_id: str | None) -> ConsumerMember:
        holder = member_id if instance_id is None else self.static.get(instance_id)
        if holder is not None and holder != member_id:
            raise KafkaError(
                Code.FENCED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} was fenced by member "
                f"{holder}.",
            )
        member = self.members.get(member_id)
        if member is None or holder is None:
            text = f"Member {member_id} is not a member of group {self.name}."
            raise KafkaError(Code.UNKNOWN_MEMBER_ID, text)
        return member

    def _take_fields(self, member: ConsumerMember, beat: Beat) -> bool:
        """Take a heartbeat's fields for its member. Return whether other members are concerned."""
        before = member.regex, member.assignor
        topics = member.topics if beat.topics is None else beat.topics
        matched = member.matched
        member.role = beat.role
        if beat.regex is not None:
            member.regex = beat.regex or None
            matched = matched if beat.regex else frozenset()
        is_other = self._subscribe(member, topics, matched)
        if beat.assignor is not None:
            member.assignor = beat.assignor
        if beat.rebalance_timeout_ms >= 0:
            member.rebalance_timeout_ms = beat.rebalance_timeout_ms
        if beat.rack_id is not None:
            member.rack_id = beat.rack_id
        member.client_id, member.client_host = beat.client_id, beat.client_host
        return is_other or before != (member.regex, member.assignor)

    def finish(self, member: ConsumerMember, beat: Beat) -> Answer:
        """Bring a member nearer to its target. Raises KafkaError if it was removed meanwhile."""
        if self.members.get(member.member_id) is not member:
            raise KafkaError(Code.UNKNOWN_MEMBER_ID, f"Member {member.member_id} was removed.")
        before = member.assigned
        self._reconcile(member, beat.owned)
        self._expect_release(member)
        tells = beat.epoch == JOINS or beat.is_full or member.assigned != before
        return Answer(member.member_id, member.epoch, member.assigned if tells else None)

    def leave_by_beat(self, beat: Beat) -> Answer:
        """A member leaves; a static one perhaps for a moment only. Raises KafkaError."""
        member = self._member(beat.member_id, beat.instance_id)
        if beat.epoch == LEAVES_FOR_NOW:
            member.epoch = LEAVES_FOR_NOW
            member.is_waiting = False
            self._hold(member, member.assigned, NOTHING)
            self._expect_release(member)
        else:
            self._expel(member)
        return Answer(member.member_id, beat.epoch)

    def check_commit(
        self, epoch: int, member_id: str, instance_id: str | None, *, knows_epochs: bool
    ) -> None:
        """Check whether a member may commit or fetch offsets. Raises KafkaError.

        `knows_epochs`: whether the request's version has member epochs.
        """
        member = self._member(member_id, None)
        if member.classic is not None:
            self._check_generation(member, epoch)
            self._expect(member)
        elif not knows_epochs:
            raise KafkaError(Code.UNSUPPORTED_VERSION, "the request has no member epoch")
        elif epoch != member.epoch:
            text = f"the member epoch is {member.epoch}, not {epoch}"
            raise KafkaError(Code.STALE_MEMBER_EPOCH, text)

    # -- time -------------------------------------------------------------------------------------

    def _expect(self, member: ConsumerMember) -> None:
        """Start the session timeout again, after a sign of life."""
        if member.session is not None:
            member.session.cancel()
        classic = member.classic
        timeout_ms = self._session_timeout_ms if classic is None else classic.session_timeout_ms
        member.session = self._loop.call_later(timeout_ms / 1000, self._expired, member)

    def _expect_release(self, member: ConsumerMember) -> None:
        """Start the time within which a member must release what it has to revoke."""
        if not member.revoking and member.rebalance is not None:
            member.rebalance.cancel()
            member.rebalance = None
        elif member.revoking and member.rebalance is None:
            delay_s = max(member.rebalance_timeout_ms, 0) / 1000
            member.rebalance = self._loop.call_later(delay_s, self._expired, member)

    def _expired(self, member: ConsumerMember) -> None:
        log.info("group %r: member %s is removed: it was late", self.name, member.member_id)
        self._expel(member)
        self._changed(self)

    # -- topics -----------------------------------------------------------------------------------

    def regex_due(self, beat: Beat, changes: Changes) -> str | None:
        """The member's regex, if it is to be looked up: for the first time, or after changes.

        Members with one regex and one role share what it matches.
        """
        member = self.members.get(beat.member_id)
        regex = member.regex if beat.regex is None and member is not None else beat.regex
        known = self._resolved.get((beat.role, regex or ""))
        if known is None:
            return regex
        is_old = self._loop.time() >= known.looked_up_s + REFRESH_S
        return regex if is_old and known.changes != changes else None

    def _match(self) -> None:
        if not self._resolved:
            return
        used = {(member.role, member.regex) for member in self.members.values()}
        self._resolved = {key: match for key, match in self._resolved.items() if key in used}
        for member in self.members.values():
            found = self._resolved.get((member.role, member.regex or ""))
            matched = frozenset[str]() if found is None else found.topics
            if self._subscribe(member, member.topics, matched):
                self.epoch += 1

    def _look(self, *, is_due: bool) -> None:
        """Count the partitions of subscribed topics. A change begins a new group epoch."""
        now_s = self._loop.time()
        if not is_due and now_s < self._due_at_s:
            return
        counts = {name: count for name in self.readers if (count := self._partitions_of(name))}
        if counts != self._counts:
            self._counts = counts
            self.epoch += 1
        self._due_at_s = now_s + REFRESH_S

    # -- the target -------------------------------------------------------------------------------

    def plan(self) -> Callable[[], Target]:
        """Return a function that computes the next target, in any thread."""
        votes = Counter(m.assignor for m in self.members.values() if m.assignor is not None)
        self.assignor = votes.most_common(1)[0][0] if votes else UNIFORM
        assign, counts = ASSIGNORS[self.assignor], dict(self._counts)
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

    def plan_now(self) -> None:
        """Compute the target, if it is outdated."""
        if self.is_outdated:
            self.install(self.epoch, self.plan()())

    def install(self, epoch: int, target: Target) -> None:
        """Set the target that was computed for an epoch, unless a later one is set."""
        if epoch > self.target_epoch:
            self.target, self.target_epoch = target, epoch

    def _reconcile(self, member: ConsumerMember, owned: frozenset[Partition] | None) -> None:
        """Bring a member nearer to its target.

        `owned`: the partitions that the member reports; None if it reports none.
        """
        if member.revoking and (owned is None or owned & member.revoking):
            return
        if member.is_stable and member.epoch == self.target_epoch:
            return
        target = self.target.get(member.member_id, NOTHING)
        kept, gone = member.assigned & target, member.assigned - target
        if gone and (owned is None or owned & gone):
            self._hold(member, kept, gone)
            return
        self._hold(member, kept, NOTHING)
        free = (p for p in target - kept if p not in self._owners)
        self._hold(member, kept.union(islice(free, MAX_GIVEN)), NOTHING)
        member.is_waiting = member.assigned != target
        if member.epoch != self.target_epoch:
            member.previous_epoch, member.epoch = member.epoch, self.target_epoch

    # -- classic members --------------------------------------------------------------------------

    def join(self, joining: Joining) -> None:
        """Answer a classic member's JoinGroup at once. Raises KafkaError."""
        wanted = subscription_of(joining)
        if joining.protocol_type != CONSUMER or wanted is None:
            raise KafkaError(Code.INCONSISTENT_GROUP_PROTOCOL, "the members are consumers")
        member_id = joining.member_id
        holder = self.static.get(joining.instance_id or "")
        if not member_id:
            member_id = joining.new_member_id()
            if joining.needs_id and joining.instance_id is None:
                joining.reply(JoinResult(member_id, Code.MEMBER_ID_REQUIRED))
                return
        elif holder is not None and holder != member_id:
            raise KafkaError(Code.FENCED_INSTANCE_ID, f"fenced by {holder}")
        member = self.members.get(member_id)
        if member is None:
            member = _of_classic(member_id, joining)
            if holder is not None:
                self._replace(self.members[holder], member)
            else:
                self._add(member)
            self.epoch += 1
        elif self._subscribe(member, wanted.topics, frozenset()):
            self.epoch += 1
        member.classic = joining
        self._look(is_due=self.is_outdated)
        self.plan_now()
        self._reconcile(member, wanted.owned)
        self._expect(member)
        self._expect_release(member)
        protocol = joining.protocols[0][0]
        joining.reply(JoinResult(member_id, generation=member.epoch, protocol=protocol))

    def sync(
        self,
        generation: int,
        member_id: str,
        instance_id: str | None,
        _assignments: Mapping[str, bytes],
        reply: Callable[[SyncResult], None],
    ) -> None:
        """Answer a classic member's SyncGroup at once. Raises KafkaError."""
        member = self._classic(generation, member_id, instance_id)
        reply(SyncResult(assignment_of(member.assigned)))

    def heartbeat(self, generation: int, member_id: str, instance_id: str | None) -> None:
        """Handle a classic member's Heartbeat. Raises KafkaError, also to let it join again."""
        member = self._classic(generation, member_id, instance_id)
        target = self.target.get(member.member_id, NOTHING)
        has_new = any(p not in self._owners for p in target - member.assigned)
        if has_new or member.revoking or member.epoch < self.epoch:
            raise KafkaError(Code.REBALANCE_IN_PROGRESS, "its assignment may change")

    def leave(self, member_id: str, instance_id: str | None) -> None:
        """Remove the member that a LeaveGroup names. Raises KafkaError."""
        if not member_id and instance_id is not None:
            member_id = self.static.get(instance_id, "")
        found = self._member(member_id, None)
        if instance_id is not None and found.instance_id != instance_id:
            raise KafkaError(Code.FENCED_INSTANCE_ID, f"not the id of {member_id}")
        self._expel(found)

    def _classic(self, generation: int, member_id: str, instance_id: str | None) -> ConsumerMember:
        """The classic member that sends a request."""
        if instance_id is not None and self.static.get(instance_id, member_id) != member_id:
            raise KafkaError(Code.FENCED_INSTANCE_ID, f"{instance_id} has another member id")
        member = self._member(member_id, None)
        if member.classic is None:
            raise KafkaError(Code.UNKNOWN_MEMBER_ID, f"{member_id} is not a classic member")
        self._check_generation(member, generation)
        self._expect(member)
        return member

    @staticmethod
    def _check_generation(member: ConsumerMember, generation: int) -> None:
        if generation != member.epoch:
            text = f"the generation is {member.epoch}, not {generation}"
            raise KafkaError(Code.ILLEGAL_GENERATION, text)

    def adopt(self, classic: Group) -> None:
        """Take over the members of a classic group. Raises KafkaError if they are no consumers."""
        wanted = [subscription_of(each.joining) for each in classic.members.values()]
        if wanted and (classic.protocol_type != CONSUMER or None in wanted):
            text = f"Group {classic.name} is not a consumer group."
            raise KafkaError(Code.GROUP_ID_NOT_FOUND, text)
        self.epoch = self.target_epoch = classic.generation
        for each in classic.members.values():
            member = _of_classic(each.member_id, each.joining)
            member.epoch = classic.generation
            self._add(member)
            free = (p for p in _assigned(each.assignment) if p not in self._owners)
            self._hold(member, frozenset(free), NOTHING)
            self.target[member.member_id] = member.assigned
            each.refuse(Code.REBALANCE_IN_PROGRESS)
            self._expect(member)
        classic.cancel()

    def hand_over(self, classic: Group) -> None:
        """Make all members, which are classic ones, members of a classic group."""
        classic.generation, classic.state = self.epoch, State.STABLE
        for each in self.members.values():
            assert each.classic is not None, "a group of classic members"
            each.cancel()
            assignment = assignment_of(each.assigned)
            member = Member(each.member_id, each.classic, assignment, is_new=False)
            classic.add(member)
            classic.beat(member)
        self.members.clear()  # a heartbeat may still wait for the target
        classic.protocol = classic.choose_protocol()
        classic.prepare()


def by_topic(partitions: Iterable[Partition]) -> Mapping[str, list[int]]:
    """Partitions grouped by topic and sorted, as answers have them."""
    found: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        found.setdefault(topic, []).append(index)
    return found


def check_beat(beat: Beat) -> None:
    """Raise KafkaError for a heartbeat that is invalid for every group."""
    problem = ""
    joins = beat.epoch == JOINS
    if not beat.group.strip():
        problem = "GroupId can't be empty."
    elif beat.epoch < LEAVES_FOR_NOW:
        problem = "MemberEpoch is invalid."
    elif not beat.member_id and (beat.needs_id or not joins):
        problem = "MemberId can't be empty."
    elif beat.instance_id is not None and not beat.instance_id.strip():
        problem = "InstanceId can't be empty."
    elif beat.rack_id is not None and not beat.rack_id.strip():
        problem = "RackId can't be empty."
    elif beat.epoch == LEAVES_FOR_NOW and beat.instance_id is None:
        problem = "InstanceId can't be null."
    elif joins and beat.rebalance_timeout_ms < 0:
        problem = "RebalanceTimeoutMs must be provided in first request."
    elif joins and (beat.owned is None or beat.owned):
        problem = "TopicPartitions must be empty when (re-)joining."
    elif joins and beat.topics is None and not beat.regex:
        problem = "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when "
        problem += "(re-)joining."
    elif beat.topics is not None and len(beat.topics) > MAX_TOPICS:
        problem = f"SubscribedTopicNames has {len(beat.topics)} names; at most {MAX_TOPICS} are."
    if problem:
        raise KafkaError(Code.INVALID_REQUEST, problem)
    if beat.assignor is not None and beat.assignor not in ASSIGNORS:
        raise KafkaError(
            Code.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {beat.assignor[:100]} is not supported. Supported assignors: "
            f"{', '.join(ASSIGNORS)}.",
        )


def matching(regex: str, names: Iterable[str]) -> frozenset[str]:
    """The names that match a regex as a whole, in RE2's syntax as in Kafka. Raises KafkaError."""
    try:
        import re2
    except ImportError as error:
        reason = "subscriptions by regex need google-re2 on the broker's side (the extra `kafka`)"
        raise KafkaError(Code.INVALID_REGULAR_EXPRESSION, reason) from error
    if len(regex) > MAX_REGEX_CHARACTERS:
        reason = f"a regex of {len(regex)} characters; at most {MAX_REGEX_CHARACTERS} are allowed"
        raise KafkaError(Code.INVALID_REGULAR_EXPRESSION, reason)
    options = re2.Options()
    options.log_errors = False
    try:
        pattern = re2.compile(regex, options)
    except re2.error as error:
        reason = f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {error}."
        raise KafkaError(Code.INVALID_REGULAR_EXPRESSION, reason) from error
    return frozenset(name for name in names if pattern.fullmatch(name))


def _is_current(member: ConsumerMember, beat: Beat) -> bool:
    """Whether a heartbeat has its member's epoch, or the one before if the answer was lost."""
    if beat.epoch == member.epoch:
        return True
    missed = member.epoch > 0 and beat.epoch == member.previous_epoch
    return missed and beat.owned is not None and beat.owned <= member.assigned


def _new(beat: Beat) -> ConsumerMember:
    return ConsumerMember(
        beat.member_id or str(uuid.uuid4()),
        beat.instance_id,
        beat.rack_id,
        beat.client_id,
        beat.client_host,
        beat.rebalance_timeout_ms,
    )


class Subscription(NamedTuple):
    """The topics that a classic member subscribes to, and the partitions that it owns."""

    topics: frozenset[str]
    owned: frozenset[Partition]


def subscription_of(joining: Joining) -> Subscription | None:
    """Parse a classic consumer's metadata; None if it is not a consumer's."""
    try:
        _, data = joining.protocols[0]
        found = ConsumerProtocolSubscription.decode(data)
        owned = frozenset(
            (each.topic, index)
            for each in getattr(found, "owned_partitions", None) or ()
            for index in each.partitions
        )
        return Subscription(frozenset(found.topics or ()), owned)
    except DECODE_ERRORS:
        return None


def _of_classic(member_id: str, joining: Joining) -> ConsumerMember:
    wanted = subscription_of(joining)
    return ConsumerMember(
        member_id,
        joining.instance_id,
        None,
        joining.client_id,
        joining.client_host,
        joining.rebalance_timeout_ms,
        frozenset() if wanted is None else wanted.topics,
        classic=joining,
        names_bytes=joining.size_bytes,
    )


def _assigned(data: bytes) -> frozenset[Partition]:
    try:
        found = ConsumerProtocolAssignment.decode(data)
        return frozenset(
            (each.topic, index)
            for each in found.assigned_partitions or ()
            for index in each.partitions
        )
    except DECODE_ERRORS:
        return NOTHING


def assignment_of(assigned: frozenset[Partition]) -> bytes:
    """Encode partitions as a classic member's assignment."""
    part = ConsumerProtocolAssignment.TopicPartition
    parts = [part(topic=topic, partitions=indexes) for topic, indexes in by_topic(assigned).items()]
    encoded: bytes = ConsumerProtocolAssignment(assigned_partitions=parts, user_data=b"").encode(
        version=0
    )
    return encoded

"""A consumer group: its members, its state, its transitions, and what is answered to members.

    Empty -> Preparing       a member joins
    Preparing -> Completing  all members have joined, or the rebalance time is over
    Completing -> Stable     the leader has sent the assignments
    any -> Preparing         a member joins with other metadata, leaves, or is silent for too long
    Preparing -> Empty       no member is left

`Group` answers what the state allows, and `Rebalancing` makes the transitions. Nothing here waits:
a JoinGroup or SyncGroup that has to wait for other members is answered by its callback.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial

from ....kafka.errors import Code

Protocols = tuple[tuple[str, bytes], ...]
"""What a member can take part in: names with the member's metadata, the preferred one first."""
OVERHEAD_BYTES = 1_000
"""What a member takes beside its own bytes."""
#: A new member that waits for its first generation is dropped after this time, as in Kafka.
NEW_MEMBER_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class JoinResult:
    """The answer to a JoinGroup."""

    member_id: str = ""
    code: Code = Code.NONE
    generation: int = -1
    protocol: str = ""
    leader: str = ""
    #: For the leader: member id, instance id and metadata of each member.
    members: tuple[tuple[str, str | None, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class SyncResult:
    """The answer to a SyncGroup."""

    assignment: bytes = b""
    code: Code = Code.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Joining:
    """A JoinGroup: what a member says about itself."""

    group: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    #: A new member first gets its id and joins with it (KIP-394).
    needs_id: bool
    reply: Callable[[JoinResult], None] = field(compare=False)

    @property
    def size_bytes(self) -> int:
        """The member's size in memory, roughly."""
        metadata = sum(len(name) + len(data) for name, data in self.protocols)
        return OVERHEAD_BYTES + metadata + len(self.client_id) + len(self.member_id)


@dataclass(slots=True, eq=False)
class Member:
    """A member of a group."""

    member_id: str
    joining: Joining
    assignment: bytes = b""
    #: It has not been in a generation yet.
    is_new: bool = True
    #: Set while its JoinGroup waits for the others.
    join_reply: Callable[[JoinResult], None] | None = None
    #: Set while its SyncGroup waits for the leader's.
    sync_reply: Callable[[SyncResult], None] | None = None
    session: asyncio.TimerHandle | None = None

    @property
    def instance_id(self) -> str | None:
        """The id of a static member (KIP-345); None for others."""
        return self.joining.instance_id

    @property
    def size_bytes(self) -> int:
        """The member's size in memory, roughly."""
        return self.joining.size_bytes + len(self.assignment)

    @property
    def is_waiting(self) -> bool:
        """Whether the member waits for an answer, and so cannot send heartbeats."""
        return self.join_reply is not None or self.sync_reply is not None

    def metadata_of(self, protocol: str | None) -> bytes:
        """The member's metadata for a protocol; b"" if it does not support that."""
        return next((data for name, data in self.joining.protocols if name == protocol), b"")

    def vote(self, candidates: frozenset[str]) -> str:
        """The candidate that the member prefers."""
        return next(name for name, _ in self.joining.protocols if name in candidates)

    def answer_join(self, result: JoinResult) -> None:
        """Answer its JoinGroup, if one waits."""
        reply, self.join_reply = self.join_reply, None
        if reply is not None:
            reply(result)

    def answer_sync(self, result: SyncResult) -> None:
        """Answer its SyncGroup, if one waits."""
        reply, self.sync_reply = self.sync_reply, None
        if reply is not None:
            reply(result)


class State(Enum):
    """A group's state, with the name that DescribeGroups shows."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Group:
    """One group's members and generation."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = State.EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        #: Ids that were given to members that have not joined with them yet.
        self.pending: dict[str, asyncio.TimerHandle] = {}
        #: Static members: instance id to member id.
        self.static: dict[str, str] = {}
        #: When the rebalance is completed without the members that have not joined.
        self.rebalance: asyncio.TimerHandle | None = None
        #: How long the first rebalance of an empty group may still be put off.
        self.initial_rest_ms = 0
        self.is_initial = False
        #: Whether a member has come since that delay began.
        self.has_new_member = False
        #: The bytes that the coordinator has counted for the group.
        self.counted_bytes = 0

    def cancel(self) -> None:
        """Cancel the timers of all members."""
        sessions = (member.session for member in self.members.values())
        for timer in (*sessions, *self.pending.values(), self.rebalance):
            if timer is not None:
                timer.cancel()

    @property
    def size_bytes(self) -> int:
        """The size of its members in memory, roughly."""
        return sum(member.size_bytes for member in self.members.values())

    def size_with(self, joining: Joining) -> int:
        """The memory of all members with one that joins, or joins again, in bytes."""
        known = self.members.get(joining.member_id)
        return self.size_bytes + joining.size_bytes - (0 if known is None else known.size_bytes)

    @property
    def has_all_joined(self) -> bool:
        """Whether no member is missing in this rebalance."""
        waiting = all(member.join_reply is not None for member in self.members.values())
        return waiting and not self.pending

    @property
    def rebalance_timeout_ms(self) -> int:
        """How long a rebalance waits for members."""
        timeouts = (m.joining.rebalance_timeout_ms for m in self.members.values())
        return max(timeouts, default=0)

    def candidates(self) -> frozenset[str]:
        """The protocols that all members have."""
        shared: frozenset[str] | None = None
        for member in self.members.values():
            names = frozenset(name for name, _ in member.joining.protocols)
            shared = names if shared is None else shared & names
        return shared or frozenset()

    def supports(self, joining: Joining) -> bool:
        """Whether a member with these protocols can be in the group."""
        if not joining.protocol_type or not joining.protocols:
            return False
        if not self.members:
            return True
        names = frozenset(name for name, _ in joining.protocols)
        return joining.protocol_type == self.protocol_type and bool(names & self.candidates())

    def choose_protocol(self) -> str:
        """The protocol with the most votes, among those that all members have."""
        candidates = self.candidates()
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return votes.most_common(1)[0][0]

    def add(self, member: Member) -> None:
        """Add a member; the first one is the leader."""
        if not self.members:
            self.protocol_type = member.joining.protocol_type
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member: Member) -> None:
        """Remove a member; another one becomes the leader."""
        del self.members[member.member_id]
        if member.session is not None:
            member.session.cancel()
        instance_id = member.instance_id
        if instance_id is not None and self.static.get(instance_id) == member.member_id:
            del self.static[instance_id]
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    def rename(self, member: Member, member_id: str) -> None:
        """Give a static member that comes back a new id."""
        old_id, member.member_id = member.member_id, member_id
        self.members = {m.member_id: m for m in self.members.values()}
        if member.instance_id is not None:
            self.static[member.instance_id] = member_id
        if self.leader == old_id:
            self.leader = member_id

    def join_result(self, member: Member) -> JoinResult:
        """The answer to a member's JoinGroup in this generation."""
        members: tuple[tuple[str, str | None, bytes], ...] = ()
        if member.member_id == self.leader:
            members = tuple(
                (each.member_id, each.instance_id, each.metadata_of(self.protocol))
                for each in self.members.values()
            )
        return JoinResult(
            member.member_id,
            generation=self.generation,
            protocol=self.protocol or "",
            leader=self.leader or "",
            members=members,
        )


class Rebalancing:
    """Changes the groups of one coordinator."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        initial_delay_ms: int,
        changed: Callable[[Group], None],
    ) -> None:
        """`changed` is called after a timer has changed a group."""
        self._loop = loop
        self._changed = changed
        self._initial_delay_ms = initial_delay_ms

    def wait_for(self, group: Group, member_id: str, timeout_ms: int) -> None:
        """Give a client its member id. It must join with that in time."""
        group.pending[member_id] = self._loop.call_later(
            timeout_ms / 1000, partial(self.forget_pending, group, member_id)
        )

    def forget_pending(self, group: Group, member_id: str) -> None:
        """Forget a member id, since its client did not join in time."""
        deadline = group.pending.pop(member_id, None)
        if deadline is not None:
            deadline.cancel()
            self._complete_if_all_joined(group)
            self._changed(group)

    def add(self, group: Group, member_id: str, joining: Joining) -> None:
        """Add a new member; its JoinGroup is answered when the generation begins."""
        deadline = group.pending.pop(member_id, None)
        if deadline is not None:
            deadline.cancel()
        member = Member(member_id, joining, join_reply=joining.reply)
        if group.is_initial:
            group.has_new_member = True
        group.add(member)
        self._expect(group, member, NEW_MEMBER_TIMEOUT_S)
        self.prepare(group)

    def update(self, group: Group, member: Member, joining: Joining) -> None:
        """A member joins again: its JoinGroup is answered when the generation begins."""
        member.answer_join(JoinResult(member.member_id, Code.REBALANCE_IN_PROGRESS))
        member.joining = replace(joining, instance_id=member.instance_id)
        member.join_reply = joining.reply
        self.prepare(group)

    def replace_static(self, group: Group, member: Member, joining: Joining, new_id: str) -> None:
        """A static member is back with a new id; the one before it is fenced."""
        fenced = JoinResult(member.member_id, Code.FENCED_INSTANCE_ID)
        member.answer_join(fenced)
        member.answer_sync(SyncResult(code=Code.FENCED_INSTANCE_ID))
        leader = group.leader
        group.rename(member, new_id)
        member.joining = joining
        self.beat(group, member)
        if group.state is State.STABLE and group.choose_protocol() == group.protocol:
            # Its assignment is kept. It gets the old leader's id, so that it does not assign.
            joining.reply(replace(group.join_result(member), leader=leader or "", members=()))
            return
        member.join_reply = joining.reply
        self.prepare(group)

    def prepare(self, group: Group) -> None:
        """Begin a rebalance if none runs. Complete it if all members have joined."""
        if group.state is State.PREPARING:
            self._complete_if_all_joined(group)
            return
        if group.state is State.COMPLETING:
            for member in tuple(group.members.values()):
                member.assignment = b""
                member.answer_sync(SyncResult(code=Code.REBALANCE_IN_PROGRESS))
                self.beat(group, member)
        was_empty = group.state is State.EMPTY
        group.state = State.PREPARING
        if was_empty:
            delay_ms = self._initial_delay_ms
            group.initial_rest_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            group.is_initial, group.has_new_member = True, False
            later = partial(self._put_off, group)
            group.rebalance = self._loop.call_later(delay_ms / 1000, later)
            return
        self._wait_for_members(group)
        self._complete_if_all_joined(group)

    def _wait_for_members(self, group: Group) -> None:
        group.rebalance = self._loop.call_later(
            group.rebalance_timeout_ms / 1000, partial(self._complete, group)
        )

    def _put_off(self, group: Group) -> None:
        """End the first delay, or wait once more if members came meanwhile."""
        if group.has_new_member and group.initial_rest_ms > 0:
            group.has_new_member = False
            delay_ms = min(self._initial_delay_ms, group.initial_rest_ms)
            group.initial_rest_ms -= delay_ms
            later = partial(self._put_off, group)
            group.rebalance = self._loop.call_later(delay_ms / 1000, later)
            return
        self._complete(group)

    def _complete_if_all_joined(self, group: Group) -> None:
        # The delay of an empty group's rebalance is waited for in any case.
        if group.state is State.PREPARING and not group.is_initial and group.has_all_joined:
            self._complete(group)

    def _complete(self, group: Group) -> None:
        """Begin the next generation with the members that have joined."""
        if group.rebalance is not None:
            group.rebalance.cancel()
            group.rebalance = None
        if group.state is not State.PREPARING:
            return
        for member in tuple(group.members.values()):
            if member.join_reply is None and member.instance_id is None:
                group.remove(member)
        joined = [m for m in group.members.values() if m.join_reply is not None]
        if group.members and not joined:
            self._wait_for_members(group)  # static members are waited for until they expire
            return
        group.is_initial = False
        group.generation += 1
        if not joined:
            group.state, group.protocol, group.leader = State.EMPTY, None, None
            self._changed(group)
            return
        if group.leader not in group.members or group.members[group.leader].join_reply is None:
            group.leader = joined[0].member_id
        group.protocol = group.choose_protocol()
        group.state = State.COMPLETING
        for member in joined:
            member.is_new = False
            self._expect(group, member, member.joining.session_timeout_ms / 1000)
            member.answer_join(group.join_result(member))

    def assign(self, group: Group, assignments: Mapping[str, bytes]) -> None:
        """Take the leader's assignments, which makes the generation stable."""
        group.state = State.STABLE
        for member in tuple(group.members.values()):
            member.assignment = assignments.get(member.member_id, b"")
            self.beat(group, member)
            member.answer_sync(SyncResult(member.assignment))

    def beat(self, group: Group, member: Member) -> None:
        """Start a member's session timeout again."""
        self._expect(group, member, member.joining.session_timeout_ms / 1000)

    def _expect(self, group: Group, member: Member, within_s: float) -> None:
        """Expect a member's next request within a time."""
        if member.session is not None:
            member.session.cancel()
        member.session = self._loop.call_later(within_s, partial(self._expired, group, member))

    def _expired(self, group: Group, member: Member) -> None:
        if group.members.get(member.member_id) is not member:
            return
        if member.is_waiting and not member.is_new:
            self.beat(group, member)  # it waits for us, so it cannot send a heartbeat
            return
        self.remove(group, member)
        self._changed(group)

    def remove(self, group: Group, member: Member) -> None:
        """Remove a member that leaves or was silent for too long. A rebalance begins."""
        member.answer_join(JoinResult(member.member_id, Code.UNKNOWN_MEMBER_ID))
        member.answer_sync(SyncResult(code=Code.UNKNOWN_MEMBER_ID))
        group.remove(member)
        if group.state in (State.STABLE, State.COMPLETING):
            self.prepare(group)
        elif group.state is State.PREPARING:
            self._complete_if_all_joined(group)

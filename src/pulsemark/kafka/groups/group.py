"""The state of one consumer group.

    Empty -> Preparing       a member joins
    Preparing -> Completing  all members have joined, or the rebalance time is over
    Completing -> Stable     the leader has sent the assignments
    any -> Preparing         a member joins with other metadata, leaves, or is silent for too long
    Preparing -> Empty       no member is left

`rebalance` makes the transitions; this module answers what the state allows.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum

from ..deadlines import Deadline
from .member import Joining, JoinResult, Member

__all__ = ["Group", "State"]


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
        self.pending: dict[str, Deadline] = {}
        #: Static members: instance id to member id.
        self.static: dict[str, str] = {}
        #: When the rebalance is completed without the members that have not joined.
        self.rebalance: Deadline | None = None
        #: How long the first rebalance of an empty group may still be put off.
        self.initial_rest_ms = 0
        self.is_initial = False
        #: Whether a member has come since that delay began.
        self.has_new_member = False

    @property
    def size_bytes(self) -> int:
        """What its members take in memory, roughly."""
        return sum(member.size_bytes for member in self.members.values())

    def size_with(self, joining: Joining) -> int:
        """What they would take with a member that joins, or joins again."""
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
        """A static member comes back with a new id."""
        old_id, member.member_id = member.member_id, member_id
        self.members = {m.member_id: m for m in self.members.values()}
        if member.instance_id is not None:
            self.static[member.instance_id] = member_id
        if self.leader == old_id:
            self.leader = member_id

    def join_result(self, member: Member) -> JoinResult:
        """What a member gets for its JoinGroup in this generation."""
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

"""A consumer group: its members, its state, and what is answered to members.

    Empty -> Preparing       a member joins
    Preparing -> Completing  all members have joined, or the rebalance time is over
    Completing -> Stable     the leader has sent the assignments
    any -> Preparing         a member joins with other metadata, leaves, or is silent for too long
    Preparing -> Empty       no member is left

`rebalance` makes the transitions; this module answers what the state allows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from ..deadlines import Deadline
from ..errors import Code

__all__ = ["Group", "JoinResult", "Joining", "Member", "State", "SyncResult"]

Protocols = tuple[tuple[str, bytes], ...]
"""What a member can take part in: names with the member's metadata, the preferred one first."""
OVERHEAD_BYTES = 1_000
"""What a member takes beside its own bytes."""


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
        """What the member takes in memory, roughly."""
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
    session: Deadline | None = None

    @property
    def instance_id(self) -> str | None:
        """Its name as a static member (KIP-345); None for others."""
        return self.joining.instance_id

    @property
    def size_bytes(self) -> int:
        """What it takes in memory, roughly."""
        return self.joining.size_bytes + len(self.assignment)

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for an answer of ours, and so cannot send heartbeats."""
        return self.join_reply is not None or self.sync_reply is not None

    def metadata_of(self, protocol: str | None) -> bytes:
        """Its metadata for a protocol; b"" if it does not have that."""
        return next((data for name, data in self.joining.protocols if name == protocol), b"")

    def vote(self, candidates: frozenset[str]) -> str:
        """The candidate that it prefers."""
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

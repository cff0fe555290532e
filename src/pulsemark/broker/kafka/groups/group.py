"""A group of the classic protocol: its members, its state, and its transitions.

    Empty -> Preparing       a member joins
    Preparing -> Completing  all members have joined, or the rebalance time is over
    Completing -> Stable     the leader has sent the assignments
    any -> Preparing         a member joins with other metadata, leaves, or is silent for too long
    Preparing -> Empty       no member is left

Nothing here waits: a JoinGroup or SyncGroup that has to wait for other members is answered by its
callback. A request that is refused raises KafkaError.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from kafka.protocol.consumer import ConsumerProtocolSubscription

from ....kafka.errors import Code, KafkaError
from ....kafka.protocol import DECODE_ERRORS
from ...configuration.config import BrokerConfig

Protocols = tuple[tuple[str, bytes], ...]
"""What a member can take part in: names with the member's metadata, the preferred one first."""
OVERHEAD_BYTES = 1_000
"""What a member takes beside its own bytes."""
#: A new member that waits for its first generation is dropped after this time, as in Kafka.
NEW_MEMBER_TIMEOUT_S = 300.0
CLIENT_ID_LENGTH = 255
"""So much of a client's id is a part of its member id."""
CONSUMER = "consumer"
"""The protocol type of groups whose members' metadata is a consumer's subscription."""


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


class SyncResult(NamedTuple):
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

    def new_member_id(self) -> str:
        """An id for a member that has none."""
        return f"{self.client_id[:CLIENT_ID_LENGTH]}-{uuid.uuid4()}"


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

    def refuse(self, code: Code) -> None:
        """Answer whatever waits with a code."""
        self.answer_join(JoinResult(self.member_id, code))
        self.answer_sync(SyncResult(code=code))

    def reads(self, topic: str) -> bool:
        """Whether a consumer subscribes to a topic; true if its metadata cannot be read."""
        for _, metadata in self.joining.protocols:
            try:
                topics = ConsumerProtocolSubscription.decode(metadata).topics
            except DECODE_ERRORS:
                return True
            if topic in (topics or ()):
                return True
        return False


class State(StrEnum):
    """A group's state, with the name that DescribeGroups shows."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


class Group:
    """One group's members and generation."""

    kind = "classic"
    """The type in ListGroups."""

    def __init__(
        self,
        name: str,
        config: BrokerConfig,
        loop: asyncio.AbstractEventLoop,
        changed: Callable[[Group], None],
    ) -> None:
        """`changed` is called after a timer has changed the group."""
        self.name = name
        self._loop, self._changed = loop, changed
        self._initial_delay_ms = config.kafka_group_initial_rebalance_delay_ms
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
        self._rebalance: asyncio.TimerHandle | None = None
        #: How long the first rebalance of an empty group may still be put off; None: it is another.
        self._initial_rest_ms: int | None = None
        #: Whether a member has come since that delay began.
        self._has_new_member = False
        #: The bytes that the coordinator has counted for the group.
        self.counted_bytes = 0

    def cancel(self) -> None:
        """Cancel all timers."""
        sessions = (member.session for member in self.members.values())
        for timer in (*sessions, *self.pending.values(), self._rebalance):
            if timer is not None:
                timer.cancel()

    def close(self) -> None:
        """Refuse what waits: members join again at another broker, or after a restart."""
        for member in self.members.values():
            member.refuse(Code.COORDINATOR_NOT_AVAILABLE)
        self.cancel()

    @property
    def is_over(self) -> bool:
        """Whether nothing is left of the group."""
        return not (self.members or self.pending or self._rebalance is not None)

    @property
    def size(self) -> int:
        """The number of members, also of those that have only got an id."""
        return len(self.members) + len(self.pending)

    @property
    def size_bytes(self) -> int:
        """The size of its members in memory, roughly."""
        return sum(member.size_bytes for member in self.members.values())

    def knows(self, member_id: str) -> bool:
        """Whether a client has got this member id here."""
        return member_id in self.members or member_id in self.pending

    def reads(self, topic: str) -> bool:
        """Whether a member of a consumer group has subscribed to a topic."""
        is_known = self.protocol_type == CONSUMER
        return is_known and any(member.reads(topic) for member in self.members.values())

    # -- what members ask -------------------------------------------------------------------------

    def join(self, joining: Joining) -> None:
        """Handle a JoinGroup: it is answered at once, or when all members have joined."""
        if not self._supports(joining):
            text = "the members have no protocol in common"
            raise KafkaError(Code.INCONSISTENT_GROUP_PROTOCOL, text)
        if not joining.member_id:
            self._join_new(joining)
        elif joining.member_id in self.pending and joining.instance_id is None:
            self._add_new(joining.member_id, joining)
        else:
            self._join_again(self._member(joining.member_id, joining.instance_id), joining)

    def _join_new(self, joining: Joining) -> None:
        member_id = joining.new_member_id()
        known = None if joining.instance_id is None else self.static.get(joining.instance_id)
        if known is not None:
            self._replace_static(self.members[known], joining, member_id)
        elif joining.instance_id is None and joining.needs_id:
            self.pending[member_id] = self._loop.call_later(
                joining.session_timeout_ms / 1000, self._forget_pending, member_id
            )
            joining.reply(JoinResult(member_id, Code.MEMBER_ID_REQUIRED))
        else:
            self._add_new(member_id, joining)

    def _add_new(self, member_id: str, joining: Joining) -> None:
        deadline = self.pending.pop(member_id, None)
        if deadline is not None:
            deadline.cancel()
        member = Member(member_id, joining, join_reply=joining.reply)
        self._has_new_member = True
        self.add(member)
        self._expect(member, NEW_MEMBER_TIMEOUT_S)
        self.prepare()

    def _join_again(self, member: Member, joining: Joining) -> None:
        is_same = member.joining.protocols == joining.protocols
        is_stable = self.state is State.STABLE and member.member_id != self.leader
        if is_same and (is_stable or self.state is State.COMPLETING):
            joining.reply(self._join_result(member))  # it did not get the answer before
            return
        member.answer_join(JoinResult(member.member_id, Code.REBALANCE_IN_PROGRESS))
        member.joining = replace(joining, instance_id=member.instance_id)
        member.join_reply = joining.reply
        self.prepare()

    def _replace_static(self, member: Member, joining: Joining, new_id: str) -> None:
        """A static member is back with a new id; the one before it is fenced."""
        member.refuse(Code.FENCED_INSTANCE_ID)
        leader = self.leader
        self._rename(member, new_id)
        member.joining = joining
        self.beat(member)
        if self.state is State.STABLE and self.choose_protocol() == self.protocol:
            # Its assignment is kept. It gets the old leader's id, so that it does not assign.
            joining.reply(replace(self._join_result(member), leader=leader or "", members=()))
            return
        member.join_reply = joining.reply
        self.prepare()

    def sync(
        self,
        generation: int,
        member_id: str,
        instance_id: str | None,
        assignments: Mapping[str, bytes],
        reply: Callable[[SyncResult], None],
    ) -> None:
        """Handle a SyncGroup: it is answered when the leader has sent the assignments."""
        member = self._member_now(generation, member_id, instance_id)
        self._check_not(State.PREPARING)
        if self.state is State.STABLE:
            self.beat(member)
            reply(SyncResult(member.assignment))
            return
        member.answer_sync(SyncResult(code=Code.REBALANCE_IN_PROGRESS))
        member.sync_reply = reply
        if member_id == self.leader:
            self._assign(assignments)

    def heartbeat(self, generation: int, member_id: str, instance_id: str | None) -> None:
        """Handle a heartbeat. REBALANCE_IN_PROGRESS tells the member to join again."""
        self.beat(self._member_now(generation, member_id, instance_id))
        self._check_not(State.PREPARING)

    def check_commit(
        self, generation: int, member_id: str, instance_id: str | None, *, knows_epochs: bool
    ) -> None:
        """Check whether a member may commit offsets. As `ConsumerGroup.check_commit`."""
        member = self._member_now(generation, member_id, instance_id)
        self._check_not(State.COMPLETING)
        self.beat(member)

    def leave(self, member_id: str, instance_id: str | None) -> None:
        """Remove a member. A static one may be named by its instance id alone."""
        if not member_id and instance_id is not None:
            member_id = self.static.get(instance_id, "")
        if member_id in self.pending:
            self._forget_pending(member_id)
        else:
            self._expel(self._member(member_id, instance_id))

    def _member(self, member_id: str, instance_id: str | None) -> Member:
        holder = member_id if instance_id is None else self.static.get(instance_id)
        if holder is not None and holder != member_id:
            text = f"instance id {instance_id} belongs to {holder}"
            raise KafkaError(Code.FENCED_INSTANCE_ID, text)
        member: Member | None = self.members.get(member_id)
        if member is None or holder is None:
            raise KafkaError(Code.UNKNOWN_MEMBER_ID, f"{member_id} is not a member")
        return member

    def _member_now(self, generation: int, member_id: str, instance_id: str | None) -> Member:
        """A member of the present generation."""
        member = self._member(member_id, instance_id)
        if generation != self.generation:
            text = f"the generation is {self.generation}, not {generation}"
            raise KafkaError(Code.ILLEGAL_GENERATION, text)
        return member

    def _check_not(self, state: State) -> None:
        if self.state is state:
            raise KafkaError(Code.REBALANCE_IN_PROGRESS, "the group is rebalancing")

    # -- members ----------------------------------------------------------------------------------

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

    def _rename(self, member: Member, member_id: str) -> None:
        """Give a static member that comes back a new id."""
        old_id, member.member_id = member.member_id, member_id
        self.members = {m.member_id: m for m in self.members.values()}
        if member.instance_id is not None:
            self.static[member.instance_id] = member_id
        if self.leader == old_id:
            self.leader = member_id

    def _expel(self, member: Member) -> None:
        """Remove a member that leaves or was silent for too long. A rebalance begins."""
        member.refuse(Code.UNKNOWN_MEMBER_ID)
        self.remove(member)
        if self.state in (State.STABLE, State.COMPLETING):
            self.prepare()
        else:
            self._complete_if_all_joined()

    def _forget_pending(self, member_id: str) -> None:
        """Forget a member id, since its client leaves, or did not join in time."""
        self.pending.pop(member_id).cancel()
        self._complete_if_all_joined()
        self._changed(self)

    def beat(self, member: Member) -> None:
        """Start a member's session timeout again."""
        self._expect(member, member.joining.session_timeout_ms / 1000)

    def _expect(self, member: Member, within_s: float) -> None:
        """Expect a member's next request within a time."""
        if member.session is not None:
            member.session.cancel()
        member.session = self._loop.call_later(within_s, self._expired, member)

    def _expired(self, member: Member) -> None:
        if member.is_waiting and not member.is_new:
            self.beat(member)  # it waits for us, so it cannot send a heartbeat
            return
        self._expel(member)
        self._changed(self)

    # -- protocols --------------------------------------------------------------------------------

    def _candidates(self) -> frozenset[str]:
        """The protocols that all members have."""
        members = self.members.values()
        named = [frozenset(name for name, _ in each.joining.protocols) for each in members]
        return frozenset.intersection(*named) if named else frozenset()

    def _supports(self, joining: Joining) -> bool:
        """Whether a member with these protocols can be in the group."""
        if not joining.protocol_type or not joining.protocols:
            return False
        if not self.members:
            return True
        names = frozenset(name for name, _ in joining.protocols)
        return joining.protocol_type == self.protocol_type and bool(names & self._candidates())

    def choose_protocol(self) -> str:
        """The protocol with the most votes, among those that all members have."""
        candidates = self._candidates()
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return votes.most_common(1)[0][0]

    def _join_result(self, member: Member) -> JoinResult:
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

    # -- rebalances -------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Begin a rebalance if none runs. Complete it if all members have joined."""
        before = self.state
        if before is State.COMPLETING:
            for member in tuple(self.members.values()):
                member.assignment = b""
                member.answer_sync(SyncResult(code=Code.REBALANCE_IN_PROGRESS))
                self.beat(member)
        self.state = State.PREPARING
        if before is State.EMPTY:
            self._initial_rest_ms = self._rebalance_timeout_ms
            self._put_off(self._initial_delay_ms)
        elif before is not State.PREPARING:
            self._wait_for_members()
        self._complete_if_all_joined()

    @property
    def _rebalance_timeout_ms(self) -> int:
        timeouts = (m.joining.rebalance_timeout_ms for m in self.members.values())
        return max(timeouts, default=0)

    def _wait_for_members(self) -> None:
        timeout_s = self._rebalance_timeout_ms / 1000
        self._rebalance = self._loop.call_later(timeout_s, self._complete)

    def _put_off(self, delay_ms: int) -> None:
        """Let an empty group's first rebalance wait for more members."""
        assert self._initial_rest_ms is not None
        self._has_new_member = False
        self._initial_rest_ms = max(self._initial_rest_ms - delay_ms, 0)
        self._rebalance = self._loop.call_later(delay_ms / 1000, self._delay_over)

    def _delay_over(self) -> None:
        """Wait once more if members came meanwhile."""
        if self._has_new_member and self._initial_rest_ms:
            self._put_off(min(self._initial_delay_ms, self._initial_rest_ms))
        else:
            self._complete()

    def _complete_if_all_joined(self) -> None:
        # The delay of an empty group's rebalance is waited for in any case.
        if self.state is not State.PREPARING or self._initial_rest_ms is not None or self.pending:
            return
        if all(member.join_reply is not None for member in self.members.values()):
            self._complete()

    def _complete(self) -> None:
        """Begin the next generation with the members that have joined."""
        if self._rebalance is not None:
            self._rebalance.cancel()
            self._rebalance = None
        for member in tuple(self.members.values()):
            if member.join_reply is None and member.instance_id is None:
                self.remove(member)
        joined = [m for m in self.members.values() if m.join_reply is not None]
        if self.members and not joined:
            self._wait_for_members()  # static members are waited for until they expire
            return
        self._initial_rest_ms = None
        self.generation += 1
        if not joined:
            self.state, self.protocol, self.leader = State.EMPTY, None, None
            self._changed(self)
            return
        if self.leader not in self.members or self.members[self.leader].join_reply is None:
            self.leader = joined[0].member_id
        self.protocol = self.choose_protocol()
        self.state = State.COMPLETING
        for member in joined:
            member.is_new = False
            self.beat(member)
            member.answer_join(self._join_result(member))

    def _assign(self, assignments: Mapping[str, bytes]) -> None:
        """Take the leader's assignments, which makes the generation stable."""
        self.state = State.STABLE
        for member in tuple(self.members.values()):
            member.assignment = assignments.get(member.member_id, b"")
            self.beat(member)
            member.answer_sync(SyncResult(member.assignment))

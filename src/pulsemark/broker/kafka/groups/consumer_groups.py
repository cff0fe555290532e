"""All groups of the consumer protocol (KIP-848), and how groups change between the protocols.

`begin` checks a heartbeat and notes what it says; then the caller computes the group's next target,
if it is outdated; `finish` brings the member nearer to it, and says what is answered. Members are
kept in memory, as those of the classic protocol are (`coordinator`).

**Migration.** A member of this protocol that joins a classic group of consumers makes it a group of
this protocol: the classic members stay in it, with what they have been assigned. Their JoinGroup,
SyncGroup and Heartbeat are answered from it; REBALANCE_IN_PROGRESS tells them to join again, when
there is something to let go or to get. When the last member of this protocol leaves, the group is a
classic one again, and rebalances.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from kafka.protocol.consumer import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from ....kafka.errors import Code, KafkaError
from ...configuration.config import BrokerConfig
from .consumer_group import (
    ASSIGNORS,
    NOTHING,
    Changes,
    ConsumerGroup,
    ConsumerMember,
    RegexMatch,
    by_topic,
)
from .group import Group, Joining, JoinResult, Member, State, SyncResult
from .offsets import Partition

log = logging.getLogger(__name__)

CONSUMER = "consumer"
"""The protocol type of groups whose members' metadata is a consumer's subscription."""
DECODE_ERRORS = (struct.error, IndexError, ValueError, OverflowError, MemoryError, TypeError)
JOINS, LEAVES, LEAVES_FOR_NOW = 0, -1, -2
"""Member epochs in requests that say something else."""
REFRESH_S = 1.0
"""Topics that are read are looked at again after this time."""
PLANNED_AT_ONCE = 2_000
"""The target of a larger group is computed in a thread."""
MAX_TOPICS = 10_000
"""Topics that a member may name."""
MAX_REGEX_CHARACTERS = 1_000


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


class ConsumerGroups:
    """The groups of the consumer protocol."""

    def __init__(
        self,
        config: BrokerConfig,
        loop: asyncio.AbstractEventLoop,
        partitions_of: Callable[[str], int],
        settled: Callable[[ConsumerGroup], None],
    ) -> None:
        """`settled` is called when the memory of a group may have changed."""
        self.groups: dict[str, ConsumerGroup] = {}
        self._config = config
        self._loop = loop
        self.partitions_of = partitions_of
        self._settled = settled

    # -- heartbeats -------------------------------------------------------------------------------

    def begin(
        self, beat: Beat, classic: Group | None, looked_up: RegexMatch | None = None
    ) -> tuple[ConsumerGroup, ConsumerMember]:
        """Take the fields of a heartbeat, except of one that leaves. Raises KafkaError.

        `classic`: the classic group of that name, which becomes one of this protocol. `looked_up`:
        what the regex matches that `regex_due` has named.
        """
        group = self.groups.get(beat.group)
        if group is None and beat.epoch == JOINS:
            group = ConsumerGroup(beat.group) if classic is None else self._upgraded(classic)
            self.groups[beat.group] = group
        if group is None:
            reason = f"Consumer group {beat.group} not found."
            raise KafkaError(Code.GROUP_ID_NOT_FOUND, reason)
        before = group.epoch
        try:
            member = self._member(group, beat)
        except KafkaError:
            self._forget_empty(group)
            raise
        if self._take(group, member, beat):
            group.epoch += 1
        if looked_up is not None:
            group.resolved[beat.role, looked_up.regex] = looked_up
        self._match(group)
        self._look(group, is_due=group.epoch > before)
        group.epoch = min(group.epoch, before + 1)
        self._expect(group, member)
        self._settled(group)
        return group, member

    def _look(self, group: ConsumerGroup, *, is_due: bool) -> None:
        if group.is_due or is_due:
            was_due = group.is_due
            group.look(self.partitions_of)
            if was_due:
                self._loop.call_later(REFRESH_S, partial(setattr, group, "is_due", True))

    def _member(self, group: ConsumerGroup, beat: Beat) -> ConsumerMember:
        """The member that sends a heartbeat. Raises KafkaError."""
        known = group.members.get(beat.member_id)
        holder = group.static.get(beat.instance_id) if beat.instance_id is not None else None
        if beat.epoch == JOINS:
            if holder is not None and holder != beat.member_id:
                before = group.members[holder]
                if before.epoch != LEAVES_FOR_NOW:
                    raise KafkaError(
                        Code.UNRELEASED_INSTANCE_ID,
                        f"Static member {beat.member_id} with instance id {beat.instance_id} "
                        f"cannot join the group because the instance id is owned by {holder}",
                    )
                new = _new(beat)
                new.topics, new.regex, new.matched = before.topics, before.regex, before.matched
                new.assignor, new.names_bytes = before.assignor, before.names_bytes
                group.replace(before, new)
                return new
            if known is None:
                known = _new(beat)
                group.add(known)
                group.epoch += 1
            elif known.epoch == LEAVES_FOR_NOW:
                known.epoch = 0
            known.classic = None
            return known
        if holder is not None and holder != beat.member_id:
            raise _fenced(beat, holder)
        if known is None or (beat.instance_id is not None and holder is None):
            raise KafkaError(
                Code.UNKNOWN_MEMBER_ID,
                f"Member {beat.member_id} is not a member of group {group.name}.",
            )
        if not _is_current(known, beat):
            raise KafkaError(
                Code.FENCED_MEMBER_EPOCH,
                f"The consumer group member has the epoch {known.epoch}, not {beat.epoch}, known "
                "by the group coordinator. The member must abandon all its partitions and rejoin.",
            )
        return known

    def _take(self, group: ConsumerGroup, member: ConsumerMember, beat: Beat) -> bool:
        """Take a heartbeat's fields for its member. Return whether other members are concerned."""
        before = member.regex, member.assignor
        topics = member.topics if beat.topics is None else beat.topics
        matched = member.matched
        member.role = beat.role
        if beat.regex is not None:
            member.regex = beat.regex or None
            matched = matched if beat.regex else frozenset()
        is_other = group.subscribe(member, topics, matched)
        if beat.assignor is not None:
            member.assignor = beat.assignor
        if beat.rebalance_timeout_ms >= 0:
            member.rebalance_timeout_ms = beat.rebalance_timeout_ms
        if beat.rack_id is not None:
            member.rack_id = beat.rack_id
        member.client_id, member.client_host = beat.client_id, beat.client_host
        return is_other or before != (member.regex, member.assignor)

    def finish(self, group: ConsumerGroup, member: ConsumerMember, beat: Beat) -> Answer:
        """Bring a member nearer to its target. Raises KafkaError if it was removed meanwhile."""
        if group.members.get(member.member_id) is not member:
            raise KafkaError(Code.UNKNOWN_MEMBER_ID, f"Member {member.member_id} was removed.")
        before = member.epoch, member.assigned
        changed = group.reconcile(member, beat.owned)
        self._expect_release(group, member)
        self._settled(group)
        says = changed or before != (member.epoch, member.assigned)
        tells = beat.epoch == JOINS or beat.is_full or (says and before[1] != member.assigned)
        return Answer(member.member_id, member.epoch, member.assigned if tells else None)

    # -- regexes ----------------------------------------------------------------------------------

    def regex_due(self, beat: Beat, changes: Changes) -> str | None:
        """The member's regex, if it is to be looked up: for the first time, or after changes.

        Members with one regex and one role share what it matches.
        """
        group = self.groups.get(beat.group)
        member = None if group is None else group.members.get(beat.member_id)
        regex = member.regex if beat.regex is None and member is not None else beat.regex
        if not regex:
            return None
        known = None if group is None else group.resolved.get((beat.role, regex))
        if known is None or (
            known.changes != changes and self._loop.time() >= known.looked_up_s + REFRESH_S
        ):
            return regex
        return None

    def _match(self, group: ConsumerGroup) -> None:
        if not group.resolved:
            return
        used = {(member.role, member.regex) for member in group.members.values()}
        group.resolved = {key: match for key, match in group.resolved.items() if key in used}
        for member in group.members.values():
            found = group.resolved.get((member.role, member.regex or ""))
            matched = frozenset[str]() if found is None else found.topics
            if group.subscribe(member, member.topics, matched):
                group.epoch += 1

    # -- leaving ----------------------------------------------------------------------------------

    def leave(self, beat: Beat) -> Answer:
        """A member leaves; a static one perhaps for a moment only. Raises KafkaError."""
        group = self.groups.get(beat.group)
        if group is None:
            raise KafkaError(Code.GROUP_ID_NOT_FOUND, f"Group {beat.group} not found.")
        member_id = beat.member_id
        if beat.instance_id is not None:
            holder = group.static.get(beat.instance_id)
            if holder is None:
                reason = f"Instance id {beat.instance_id} is unknown."
                raise KafkaError(Code.UNKNOWN_MEMBER_ID, reason)
            if holder != member_id:
                raise _fenced(beat, holder)
        member = group.members.get(member_id)
        if member is None:
            raise KafkaError(
                Code.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group.name}."
            )
        if beat.epoch == LEAVES_FOR_NOW:
            member.epoch = LEAVES_FOR_NOW
            group.let_go(member)
            if member.rebalance is not None:
                member.rebalance.cancel()
            return Answer(member_id, LEAVES_FOR_NOW)
        self.remove(group, member)
        return Answer(member_id, LEAVES)

    def remove(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        """Remove a member that leaves, or was silent for too long."""
        group.remove(member)
        group.epoch += 1
        self._forget_empty(group)
        self._settled(group)

    def _forget_empty(self, group: ConsumerGroup) -> None:
        if not group.members and self.groups.get(group.name) is group:
            del self.groups[group.name]

    def _expect(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        """Start the session timeout again, after a sign of life."""
        if member.session is not None:
            member.session.cancel()
        classic = member.classic
        timeout_ms = (
            self._config.kafka_group_consumer_session_timeout_ms
            if classic is None
            else classic.session_timeout_ms
        )
        expired = partial(self._expired, group, member)
        member.session = self._loop.call_later(timeout_ms / 1000, expired)

    def _expect_release(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        """Start the time within which a member must release what it has to revoke."""
        if not member.revoking and member.rebalance is not None:
            member.rebalance.cancel()
            member.rebalance = None
        elif member.revoking and member.rebalance is None:
            expired = partial(self._expired, group, member)
            delay_s = max(member.rebalance_timeout_ms, 0) / 1000
            member.rebalance = self._loop.call_later(delay_s, expired)

    def _expired(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        if group.members.get(member.member_id) is member:
            log.info("group %r: member %s is removed: it was late", group.name, member.member_id)
            self.remove(group, member)

    # -- offsets ----------------------------------------------------------------------------------

    def check_offsets(
        self, group: ConsumerGroup, member_id: str, epoch: int, *, knows_epochs: bool = True
    ) -> Code:
        """The code for a member's commit or fetch of offsets.

        `knows_epochs`: whether the request's version has member epochs.
        """
        member = group.members.get(member_id)
        if member is None:
            return Code.UNKNOWN_MEMBER_ID
        if member.classic is None and not knows_epochs:
            return Code.UNSUPPORTED_VERSION
        if epoch != member.epoch:
            is_classic = member.classic is not None
            return Code.ILLEGAL_GENERATION if is_classic else Code.STALE_MEMBER_EPOCH
        if member.classic is not None:
            self._expect(group, member)
        return Code.NONE

    # -- classic members --------------------------------------------------------------------------

    def _upgraded(self, classic: Group) -> ConsumerGroup:
        """Convert a classic group of consumers. Raises KafkaError for other kinds."""
        wanted = {
            each.member_id: subscription_of(each.joining) for each in classic.members.values()
        }
        if classic.members and (classic.protocol_type != CONSUMER or None in wanted.values()):
            raise KafkaError(
                Code.GROUP_ID_NOT_FOUND, f"Group {classic.name} is not a consumer group."
            )
        group = ConsumerGroup(classic.name, classic.generation, classic.generation)
        for each in tuple(classic.members.values()):
            member = _of_classic(each.member_id, each.joining)
            member.epoch = classic.generation
            group.take_over(member, _assigned(each.assignment))
            each.answer_join(JoinResult(each.member_id, Code.REBALANCE_IN_PROGRESS))
            each.answer_sync(SyncResult(code=Code.REBALANCE_IN_PROGRESS))
            classic.remove(each)
            self._expect(group, member)
        classic.cancel()
        classic.pending.clear()
        classic.rebalance = None
        classic.state = State.DEAD
        return group

    def downgraded(self, group: ConsumerGroup) -> Group:
        """Convert a group whose members are all classic ones to a classic group."""
        classic = Group(group.name)
        classic.generation, classic.state = group.epoch, State.STABLE
        for each in tuple(group.members.values()):
            assert each.classic is not None, "a group of classic members"
            assigned = assignment_of(each.assigned)
            member = Member(each.member_id, each.classic, assigned, is_new=False)
            group.remove(each)
            classic.add(member)
        classic.protocol = classic.choose_protocol()
        del self.groups[group.name]
        return classic

    def join_classic(self, group: ConsumerGroup, joining: Joining) -> None:
        """Answer a classic member's JoinGroup at once."""
        wanted = subscription_of(joining)
        if joining.protocol_type != CONSUMER or wanted is None:
            result = JoinResult(joining.member_id, Code.INCONSISTENT_GROUP_PROTOCOL)
            joining.reply(result)
            return
        member_id = joining.member_id
        holder = group.static.get(joining.instance_id or "")
        if not member_id:
            member_id = f"{joining.client_id[:255]}-{uuid.uuid4()}"
            if joining.needs_id and joining.instance_id is None:
                joining.reply(JoinResult(member_id, Code.MEMBER_ID_REQUIRED))
                return
        elif holder is not None and holder != member_id:
            joining.reply(JoinResult(member_id, Code.FENCED_INSTANCE_ID))
            return
        member = group.members.get(member_id)
        if member is None:
            member = _of_classic(member_id, joining)
            if holder is not None:
                group.replace(group.members[holder], member)
            else:
                group.add(member)
            group.epoch += 1
        elif group.subscribe(member, wanted.topics, frozenset()):
            group.epoch += 1
        member.classic = joining
        self._look(group, is_due=group.is_outdated)
        plan_now(group)
        group.reconcile(member, wanted.owned)
        self._expect(group, member)
        self._expect_release(group, member)
        self._settled(group)
        protocol = joining.protocols[0][0]
        joining.reply(JoinResult(member_id, generation=member.epoch, protocol=protocol))

    def classic_member(
        self, group: ConsumerGroup, member_id: str, generation: int | None, instance_id: str | None
    ) -> ConsumerMember | Code:
        """The classic member that sends a request, or the code that refuses it."""
        member = group.members.get(member_id)
        if instance_id is not None and group.static.get(instance_id, member_id) != member_id:
            return Code.FENCED_INSTANCE_ID
        if member is None or member.classic is None:
            return Code.UNKNOWN_MEMBER_ID
        if generation is not None and generation != member.epoch:
            return Code.ILLEGAL_GENERATION
        self._expect(group, member)
        return member


def plan_now(group: ConsumerGroup) -> None:
    """Compute a group's target, if it is outdated."""
    if group.is_outdated:
        group.install(group.epoch, group.plan()())


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


def _fenced(beat: Beat, holder: str) -> KafkaError:
    return KafkaError(
        Code.FENCED_INSTANCE_ID,
        f"Static member {beat.member_id} with instance id {beat.instance_id} was fenced by member "
        f"{holder}.",
    )


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

"""All consumer groups of the endpoint: what each request does, and its error code.

A group is kept while it has members. Its committed offsets live on in `offsets`, so a group without
members is one that has offsets. After a restart members are unknown (UNKNOWN_MEMBER_ID): they join
again and go on at the committed offsets.

A broker alone coordinates the groups from its start on. In a cluster the owner of the log of
committed offsets does: when a broker begins to own the log, it reads it; when it owns it no more,
it forgets all, and members join again at the next coordinator (`Endpoint`).
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping

from kafka.protocol.consumer import ConsumerProtocolSubscription

from ....kafka.errors import Code, KafkaError
from ...configuration.config import BrokerConfig
from .consumer_group import ConsumerGroup, ConsumerMember, RegexMatch
from .consumer_groups import (
    CONSUMER,
    DECODE_ERRORS,
    JOINS,
    LEAVES,
    Answer,
    Beat,
    ConsumerGroups,
    assignment_of,
)
from .group import (
    OVERHEAD_BYTES,
    Group,
    Joining,
    JoinResult,
    Member,
    Rebalancing,
    State,
    SyncResult,
)
from .offsets import Offsets

log = logging.getLogger(__name__)

#: Assignment strategies that one member may offer; clients offer one to four. Each join compares
#: those of all members.
MAX_PROTOCOLS = 100
#: Metadata and assignments of one group's members: its leader gets all of them in one answer.
MAX_GROUP_BYTES = 16 * 1024 * 1024
MAX_GROUP_TOPICS = 20_000
"""Topics that the members of a group of the consumer protocol name."""
CLIENT_ID_LENGTH = 255
"""So much of a client's id is a part of its member id."""
CLASSIC = "classic"
"""The type of groups of JoinGroup."""
_NO_ROOM = Code.COORDINATOR_NOT_AVAILABLE


class Coordinator:
    """The coordinator of all groups."""

    def __init__(
        self,
        config: BrokerConfig,
        loop: asyncio.AbstractEventLoop,
        offsets: Offsets,
        partitions_of: Callable[[str], int],
    ) -> None:
        """`partitions_of`: the number of a topic's partitions; 0: there is no topic."""
        self._config = config
        #: The groups of the consumer protocol. A group is either there or in the classic ones.
        self.consumers = ConsumerGroups(config, loop, partitions_of, self._settle_consumer)
        self.groups: dict[str, Group] = {}
        self.offsets = offsets
        #: The members' size in memory, roughly.
        self.used_bytes = 0
        self._rebalancing = Rebalancing(
            loop, config.kafka_group_initial_rebalance_delay_ms, self._settle
        )

    # -- members --------------------------------------------------------------------------------

    def join(self, joining: Joining) -> None:
        """Handle a JoinGroup. Its callback is called at once, or when all members have joined."""
        refusal = self._refusal(joining)
        if refusal is not None:
            joining.reply(JoinResult(joining.member_id, refusal))
            return
        consumers = self.consumers.groups.get(joining.group)
        if consumers is not None:
            self.consumers.join_classic(consumers, joining)
            return
        group = self.groups.get(joining.group)
        if group is None:
            if joining.member_id:
                joining.reply(JoinResult(joining.member_id, Code.UNKNOWN_MEMBER_ID))
                return
            group = self.groups[joining.group] = Group(joining.group)
        if joining.member_id:
            self._join_known(group, joining)
        else:
            self._join_new(group, joining)
        self._settle(group)

    def _refusal(self, joining: Joining) -> Code | None:
        """The code that refuses a JoinGroup in every state of the group, or None."""
        config = self._config
        if not joining.group:
            return Code.INVALID_GROUP_ID
        least = config.kafka_group_min_session_timeout_ms
        if not least <= joining.session_timeout_ms <= config.kafka_group_max_session_timeout_ms:
            return Code.INVALID_SESSION_TIMEOUT
        if len(joining.protocols) > MAX_PROTOCOLS:
            return Code.INCONSISTENT_GROUP_PROTOCOL
        consumers = self.consumers.groups.get(joining.group)
        if consumers is not None:
            return self._no_room(consumers, joining.member_id, joining.size_bytes)
        group = self.groups.get(joining.group)
        if group is None and not self._has_room_for_group(joining.group):
            return Code.COORDINATOR_NOT_AVAILABLE
        if group is not None and joining.member_id not in group.members:
            count = len(group.members) + len(group.pending)
            if joining.member_id not in group.pending and count >= config.max_kafka_group_members:
                return Code.GROUP_MAX_SIZE_REACHED
        if group is not None and group.size_with(joining) > MAX_GROUP_BYTES:
            log.warning(
                "a member of group %r was refused: its members' metadata would exceed %d bytes",
                joining.group,
                MAX_GROUP_BYTES,
            )
            return Code.GROUP_MAX_SIZE_REACHED
        return None if self._fits(joining.group, joining.size_bytes) else _NO_ROOM

    def _has_room_for_group(self, name: str) -> bool:
        count = len(self.groups) + len(self.consumers.groups)
        if count < self._config.max_kafka_groups:
            return True
        log.warning(
            "group %r was refused: there are %d groups already (pulsemarkMaxKafkaGroups)",
            name,
            count,
        )
        return False

    def _fits(self, name: str, size_bytes: int) -> bool:
        if self.used_bytes + size_bytes <= self._config.max_kafka_group_bytes:
            return True
        log.warning(
            "a member of group %r was refused: metadata of all groups would exceed "
            "pulsemarkMaxKafkaGroupBytes",
            name,
        )
        return False

    def _no_room(self, group: ConsumerGroup, member_id: str, size_bytes: int) -> Code | None:
        """The code if a group of the consumer protocol has no room for a member, else None."""
        is_new = member_id not in group.members
        if is_new and len(group.members) >= self._config.max_kafka_group_members:
            return Code.GROUP_MAX_SIZE_REACHED
        if group.size_bytes + size_bytes > MAX_GROUP_BYTES:
            return Code.GROUP_MAX_SIZE_REACHED
        return None if self._fits(group.name, size_bytes) else _NO_ROOM

    def _join_new(self, group: Group, joining: Joining) -> None:
        if not group.supports(joining):
            joining.reply(JoinResult("", Code.INCONSISTENT_GROUP_PROTOCOL))
            return
        member_id = f"{joining.client_id[:CLIENT_ID_LENGTH]}-{uuid.uuid4()}"
        known = None if joining.instance_id is None else group.static.get(joining.instance_id)
        if known is not None:
            member = group.members[known]
            self._rebalancing.replace_static(group, member, joining, member_id)
        elif joining.instance_id is None and joining.needs_id:
            self._rebalancing.wait_for(group, member_id, joining.session_timeout_ms)
            joining.reply(JoinResult(member_id, Code.MEMBER_ID_REQUIRED))
        else:
            self._rebalancing.add(group, member_id, joining)

    def _join_known(self, group: Group, joining: Joining) -> None:
        member_id = joining.member_id
        if not group.supports(joining):
            joining.reply(JoinResult(member_id, Code.INCONSISTENT_GROUP_PROTOCOL))
            return
        if member_id in group.pending and joining.instance_id is None:
            self._rebalancing.add(group, member_id, joining)
            return
        code = _check_member(group, member_id, joining.instance_id)
        if code is not Code.NONE:
            joining.reply(JoinResult(member_id, code))
            return
        member = group.members[member_id]
        is_same = member.joining.protocols == joining.protocols
        is_leader = member_id == group.leader
        if is_same and (
            group.state is State.COMPLETING or (group.state is State.STABLE and not is_leader)
        ):
            joining.reply(group.join_result(member))  # it did not get the answer before
        else:
            self._rebalancing.update(group, member, joining)

    def sync(
        self,
        name: str,
        generation: int,
        member_id: str,
        instance_id: str | None,
        assignments: Mapping[str, bytes],
        reply: Callable[[SyncResult], None],
    ) -> None:
        """Handle a SyncGroup. Its callback is called when the leader has sent the assignments."""
        consumers = self.consumers.groups.get(name)
        if consumers is not None:
            found = self.consumers.classic_member(consumers, member_id, generation, instance_id)
            if isinstance(found, Code):
                reply(SyncResult(code=found))
            else:
                reply(SyncResult(assignment_of(found.assigned)))
            return
        group = self.groups.get(name)
        code = self._check_generation(group, generation, member_id, instance_id)
        if not name:
            code = Code.INVALID_GROUP_ID
        if code is Code.NONE and group is not None and group.state is State.PREPARING:
            code = Code.REBALANCE_IN_PROGRESS
        if code is not Code.NONE or group is None:
            reply(SyncResult(code=code))
            return
        member = group.members[member_id]
        if group.state is State.STABLE:
            self._rebalancing.beat(group, member)
            reply(SyncResult(member.assignment))
            return
        member.answer_sync(SyncResult(code=Code.REBALANCE_IN_PROGRESS))
        member.sync_reply = reply
        if member_id == group.leader:
            self._rebalancing.assign(group, assignments)
            self._settle(group)

    def heartbeat(
        self, name: str, generation: int, member_id: str, instance_id: str | None
    ) -> Code:
        """Handle a heartbeat. REBALANCE_IN_PROGRESS tells the member to join again."""
        if not name:
            return Code.INVALID_GROUP_ID
        consumers = self.consumers.groups.get(name)
        if consumers is not None:
            found = self.consumers.classic_member(consumers, member_id, generation, instance_id)
            if isinstance(found, Code):
                return found
            is_left = consumers.can_go_on(found)
            return Code.REBALANCE_IN_PROGRESS if is_left else Code.NONE
        group = self.groups.get(name)
        code = self._check_generation(group, generation, member_id, instance_id)
        if code is not Code.NONE or group is None:
            return code
        self._rebalancing.beat(group, group.members[member_id])
        return Code.REBALANCE_IN_PROGRESS if group.state is State.PREPARING else Code.NONE

    def leave(self, name: str, member_id: str, instance_id: str | None) -> Code:
        """Remove a member. A static one may be named by its instance id alone."""
        consumers = self.consumers.groups.get(name)
        if consumers is not None:
            return self._leave_consumers(consumers, member_id, instance_id)
        group = self.groups.get(name)
        if group is None:
            return Code.UNKNOWN_MEMBER_ID if name else Code.INVALID_GROUP_ID
        if not member_id and instance_id is not None:
            member_id = group.static.get(instance_id, "")
        if member_id in group.pending:
            self._rebalancing.forget_pending(group, member_id)
            return Code.NONE
        code = _check_member(group, member_id, instance_id)
        if code is Code.NONE:
            self._rebalancing.remove(group, group.members[member_id])
            self._settle(group)
        return code

    def _leave_consumers(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None
    ) -> Code:
        if not member_id and instance_id is not None:
            member_id = group.static.get(instance_id, "")
        found = group.members.get(member_id)
        if found is None:
            return Code.UNKNOWN_MEMBER_ID
        if instance_id is not None and found.instance_id != instance_id:
            return Code.FENCED_INSTANCE_ID
        self.consumers.remove(group, found)
        self._downgrade(group)
        return Code.NONE

    # -- members of the consumer protocol ---------------------------------------------------------

    def begin_consumer(
        self, beat: Beat, looked_up: RegexMatch | None = None
    ) -> tuple[ConsumerGroup, ConsumerMember]:
        """As `ConsumerGroups.begin`, within the limits of groups and members. Raises KafkaError."""
        group, classic = self.consumers.groups.get(beat.group), self.groups.get(beat.group)
        if beat.epoch == JOINS:
            names = sum(map(len, beat.topics or ())) + len(beat.regex or "")
            wanted = group or ConsumerGroup(beat.group)
            if group is None and classic is None and not self._has_room_for_group(beat.group):
                raise KafkaError(_NO_ROOM, "there are too many groups")
            code = self._no_room(wanted, beat.member_id, OVERHEAD_BYTES + names)
            if code is None and len(wanted.readers) + len(beat.topics or ()) > MAX_GROUP_TOPICS:
                code = Code.GROUP_MAX_SIZE_REACHED
            count = 0 if classic is None else len(classic.members)
            if code is None and count >= self._config.max_kafka_group_members:
                code = Code.GROUP_MAX_SIZE_REACHED
            if code is not None:
                raise KafkaError(code, f"The group {beat.group} has no room for another member.")
        found = self.consumers.begin(beat, classic, looked_up)
        if classic is not None:
            self._settle(classic)
        return found

    def leave_consumer(self, beat: Beat) -> Answer:
        """Remove a member of the consumer protocol. Raises KafkaError."""
        answer = self.consumers.leave(beat)
        group = self.consumers.groups.get(beat.group)
        if group is not None and answer.epoch == LEAVES:
            self._downgrade(group)
        return answer

    def _downgrade(self, group: ConsumerGroup) -> None:
        """Convert a group whose members are all classic ones to a classic group."""
        if group.is_all_classic:
            classic = self.consumers.downgraded(group)
            self.groups[classic.name] = classic
            for member in classic.members.values():
                self._rebalancing.beat(classic, member)
            self._rebalancing.prepare(classic)
            self._settle_consumer(group)
            self._settle(classic)

    def _settle_consumer(self, group: ConsumerGroup) -> None:
        """Count the memory that a group of the consumer protocol takes now."""
        is_here = self.consumers.groups.get(group.name) is group
        self._count(group, group.size_bytes if is_here else 0)
        if is_here and group.is_all_classic:
            self._downgrade(group)

    def _count(self, group: Group | ConsumerGroup, size_bytes: int) -> None:
        self.used_bytes += size_bytes - group.counted_bytes
        group.counted_bytes = size_bytes

    def check_commit(
        self,
        name: str,
        generation: int,
        member_id: str,
        instance_id: str | None,
        *,
        knows_epochs: bool = False,
    ) -> Code:
        """The code for a commit with a generation or epoch; -1: a client without a group.

        `knows_epochs`: whether the request's version has member epochs.
        """
        consumers = self.consumers.groups.get(name)
        if consumers is not None:
            return self.consumers.check_offsets(
                consumers, member_id, generation, knows_epochs=knows_epochs
            )
        group = self.groups.get(name)
        has_members = group is not None and bool(group.members)
        if generation < 0 and not has_members:
            return Code.NONE
        if not has_members:
            # A group with offsets only is known, and has no members.
            has_offsets = self.offsets.of_group(name) or self.offsets.unstable_of(name)
            is_known = group is not None or bool(has_offsets)
            absent = Code.GROUP_ID_NOT_FOUND if knows_epochs else Code.ILLEGAL_GENERATION
            return Code.UNKNOWN_MEMBER_ID if is_known else absent
        code = self._check_generation(group, generation, member_id, instance_id)
        if code is not Code.NONE or group is None:
            return code
        if group.state is State.COMPLETING:
            return Code.REBALANCE_IN_PROGRESS
        self._rebalancing.beat(group, group.members[member_id])
        return Code.NONE

    def _check_generation(
        self, group: Group | None, generation: int, member_id: str, instance_id: str | None
    ) -> Code:
        if group is None:
            return Code.UNKNOWN_MEMBER_ID
        code = _check_member(group, member_id, instance_id)
        if code is Code.NONE and generation != group.generation:
            code = Code.ILLEGAL_GENERATION
        return code

    # -- groups ---------------------------------------------------------------------------------

    def names(self) -> Iterator[tuple[str, str, str, str]]:
        """Yield every group with its protocol type, state and type, read when it is reached."""
        for group in tuple(self.groups.values()):
            yield group.name, group.protocol_type, group.state.value, CLASSIC
        for each in tuple(self.consumers.groups.values()):
            yield each.name, CONSUMER, each.state, CONSUMER
        for name in tuple(self.offsets.types):
            is_live = name in self.groups or name in self.consumers.groups
            if not is_live and name in self.offsets.types:
                yield name, self.offsets.types[name], State.EMPTY.value, CLASSIC

    def type_of(self, name: str) -> str:
        """A group's protocol type; "" if it is not known."""
        if name in self.consumers.groups:
            return CONSUMER
        group = self.groups.get(name)
        return group.protocol_type if group is not None else self.offsets.types.get(name, "")

    def deletable(self, name: str) -> Code:
        """Whether a group can be deleted: NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND or NONE."""
        group = self.groups.get(name)
        is_used = group is not None and (group.members or group.pending)
        if is_used or name in self.consumers.groups:
            return Code.NON_EMPTY_GROUP
        if not self.offsets.of_group(name):
            return Code.GROUP_ID_NOT_FOUND
        return Code.NONE

    def forgettable(self, name: str) -> Code:
        """Whether offsets of a group may be removed one by one."""
        if not name:
            return Code.INVALID_GROUP_ID
        if name in self.consumers.groups:
            return Code.NONE
        group = self.groups.get(name)
        if group is None:
            return Code.NONE if self.offsets.of_group(name) else Code.GROUP_ID_NOT_FOUND
        # It is not known which topics members of other kinds read.
        is_known = not group.members or group.protocol_type == CONSUMER
        return Code.NONE if is_known else Code.NON_EMPTY_GROUP

    def reads(self, name: str, topic: str) -> bool:
        """Whether a member of a consumer group has subscribed to a topic."""
        consumers = self.consumers.groups.get(name)
        if consumers is not None:
            return any(topic in member.reads for member in consumers.members.values())
        group = self.groups.get(name)
        if group is None or group.protocol_type != CONSUMER:
            return False
        return any(subscribes(member, topic) for member in group.members.values())

    def _settle(self, group: Group) -> None:
        """Count the memory that the group takes now. Forget it if it has no members."""
        is_over = not (group.members or group.pending or group.rebalance is not None)
        self._count(group, 0 if is_over else group.size_bytes)
        if is_over and self.groups.get(group.name) is group:
            group.state = State.DEAD
            del self.groups[group.name]

    def close(self) -> None:
        """Cancel all timers. Members join again at another broker, or after a restart."""
        for group in self.groups.values():
            for member in group.members.values():
                member.answer_join(JoinResult(member.member_id, Code.COORDINATOR_NOT_AVAILABLE))
                member.answer_sync(SyncResult(code=Code.COORDINATOR_NOT_AVAILABLE))
            group.cancel()
        for consumers in self.consumers.groups.values():
            for each in consumers.members.values():
                each.cancel()


def _check_member(group: Group, member_id: str, instance_id: str | None) -> Code:
    if instance_id is not None:
        known = group.static.get(instance_id)
        if known is None:
            return Code.UNKNOWN_MEMBER_ID
        if known != member_id:
            return Code.FENCED_INSTANCE_ID
    member: Member | None = group.members.get(member_id)
    return Code.NONE if member is not None else Code.UNKNOWN_MEMBER_ID


def subscribes(member: Member, topic: str) -> bool:
    """Whether a member of a consumer group reads a topic; true if its metadata cannot be read."""
    for _, metadata in member.joining.protocols:
        try:
            topics = ConsumerProtocolSubscription.decode(metadata).topics
        except DECODE_ERRORS:
            return True
        if topic in (topics or ()):
            return True
    return False

"""All consumer groups of the endpoint: which group answers a request, and the limits of all.

A group is kept while it has members. Its committed offsets live on in `offsets`, so a group without
members is one that has offsets. After a restart members are unknown (UNKNOWN_MEMBER_ID): they join
again and go on at the committed offsets.

A broker alone coordinates the groups from its start on. In a cluster the owner of the log of
committed offsets does: when a broker begins to own the log, it reads it; when it owns it no more,
it forgets all, and members join again at the next coordinator (`Endpoint`).

Requests that are refused raise KafkaError.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping

from ....kafka.errors import Code, KafkaError
from ...configuration.config import BrokerConfig
from .consumer_group import JOINS, Answer, Beat, ConsumerGroup, ConsumerMember, RegexMatch
from .group import CONSUMER, OVERHEAD_BYTES, Group, Joining, State, SyncResult
from .offsets import Offsets

log = logging.getLogger(__name__)

#: Assignment strategies that one member may offer; clients offer one to four. Each join compares
#: those of all members.
MAX_PROTOCOLS = 100
#: Metadata and assignments of one group's members: its leader gets all of them in one answer.
MAX_GROUP_BYTES = 16 * 1024 * 1024
MAX_GROUP_TOPICS = 20_000
"""Topics that the members of a group of the consumer protocol name."""


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
        self._config, self._loop, self.partitions_of = config, loop, partitions_of
        #: The groups of both protocols that have members.
        self.groups: dict[str, Group | ConsumerGroup] = {}
        self.offsets = offsets
        #: The members' size in memory, roughly.
        self.used_bytes = 0

    def _new_group(self, name: str) -> Group:
        return Group(name, self._config, self._loop, self._settle)

    def _settle(self, group: Group | ConsumerGroup) -> None:
        """Count the memory that a group takes after a change. Forget it if nothing is left of it.

        A group of the consumer protocol whose members are all classic ones becomes a classic one.
        """
        is_here = self.groups.get(group.name) is group
        if is_here and isinstance(group, ConsumerGroup) and group.is_all_classic:
            classic = self.groups[group.name] = self._new_group(group.name)
            group.hand_over(classic)
            self._settle(classic)
            is_here = False
        elif is_here and group.is_over:
            del self.groups[group.name]
            is_here = False
        size_bytes = group.size_bytes if is_here else 0
        self.used_bytes += size_bytes - group.counted_bytes
        group.counted_bytes = size_bytes

    def _check_room(self, name: str, member_id: str, size_bytes: int) -> None:
        """Raise KafkaError if there is no room for a group or its member."""
        config, group, code, reason = self._config, self.groups.get(name), Code.NONE, ""
        if self.used_bytes + size_bytes > config.max_kafka_group_bytes:
            code = Code.COORDINATOR_NOT_AVAILABLE
            reason = "metadata of all groups would exceed pulsemarkMaxKafkaGroupBytes"
        if group is None:
            if len(self.groups) >= config.max_kafka_groups:
                code = Code.COORDINATOR_NOT_AVAILABLE
                reason = f"there are {len(self.groups)} groups already (pulsemarkMaxKafkaGroups)"
        elif not group.knows(member_id) and group.size >= config.max_kafka_group_members:
            code = Code.GROUP_MAX_SIZE_REACHED
            reason = f"the group has {group.size} members (pulsemarkMaxKafkaGroupMembers)"
        else:
            known = group.members.get(member_id)
            others_bytes = group.size_bytes - (0 if known is None else known.size_bytes)
            if others_bytes + size_bytes > MAX_GROUP_BYTES:
                code = Code.GROUP_MAX_SIZE_REACHED
                reason = f"its members' metadata would exceed {MAX_GROUP_BYTES} bytes"
        if code is not Code.NONE:
            log.warning("a member of group %r was refused: %s", name[:250], reason)
            raise KafkaError(code, f"group {name} has no room for a member: {reason}")

    def _group(self, name: str) -> Group | ConsumerGroup:
        """The group of a member."""
        if not name:
            raise KafkaError(Code.INVALID_GROUP_ID, "the group has no name")
        group = self.groups.get(name)
        if group is None:
            raise KafkaError(Code.UNKNOWN_MEMBER_ID, f"group {name} has no members")
        return group

    # -- members of the classic protocol ----------------------------------------------------------

    def join(self, joining: Joining) -> None:
        """Handle a JoinGroup. Its callback is called at once, or when all members have joined."""
        config, name = self._config, joining.group
        if not name:
            raise KafkaError(Code.INVALID_GROUP_ID, "the group has no name")
        least_ms, most_ms = (
            config.kafka_group_min_session_timeout_ms,
            config.kafka_group_max_session_timeout_ms,
        )
        if not least_ms <= joining.session_timeout_ms <= most_ms:
            text = f"the session timeout must be from {least_ms} to {most_ms} ms"
            raise KafkaError(Code.INVALID_SESSION_TIMEOUT, text)
        if len(joining.protocols) > MAX_PROTOCOLS:
            text = f"{len(joining.protocols)} protocols; the limit is {MAX_PROTOCOLS}"
            raise KafkaError(Code.INCONSISTENT_GROUP_PROTOCOL, text)
        self._check_room(name, joining.member_id, joining.size_bytes)
        if name not in self.groups and not joining.member_id:
            self.groups[name] = self._new_group(name)
        group = self._group(name)
        try:
            group.join(joining)
        finally:
            self._settle(group)

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
        group = self._group(name)
        group.sync(generation, member_id, instance_id, assignments, reply)
        self._settle(group)

    def heartbeat(
        self, name: str, generation: int, member_id: str, instance_id: str | None
    ) -> None:
        """Handle a Heartbeat. REBALANCE_IN_PROGRESS tells the member to join again."""
        self._group(name).heartbeat(generation, member_id, instance_id)

    def leave(self, name: str, member_id: str, instance_id: str | None) -> None:
        """Remove a member. A static one may be named by its instance id alone."""
        group = self._group(name)
        group.leave(member_id, instance_id)
        self._settle(group)

    # -- members of the consumer protocol ---------------------------------------------------------

    def _consumers(self, name: str) -> ConsumerGroup:
        group = self.groups.get(name)
        if not isinstance(group, ConsumerGroup):
            raise KafkaError(Code.GROUP_ID_NOT_FOUND, f"Consumer group {name} not found.")
        return group

    def begin_consumer(
        self, beat: Beat, looked_up: RegexMatch | None = None
    ) -> tuple[ConsumerGroup, ConsumerMember]:
        """Take a heartbeat, except of a member that leaves. As `ConsumerGroup.take`."""
        if beat.epoch == JOINS:
            self._make_room_for_consumer(beat)
        group = self._consumers(beat.group)
        try:
            return group, group.take(beat, looked_up)
        finally:
            self._settle(group)

    def _make_room_for_consumer(self, beat: Beat) -> None:
        """Have a group of the consumer protocol that a member can join."""
        names, known = beat.topics or (), self.groups.get(beat.group)
        size_bytes = OVERHEAD_BYTES + sum(map(len, names)) + len(beat.regex or "")
        self._check_room(beat.group, beat.member_id, size_bytes)
        if isinstance(known, ConsumerGroup):
            if len(known.readers) + len(names) > MAX_GROUP_TOPICS:
                text = f"the members of {beat.group} would name more than {MAX_GROUP_TOPICS} topics"
                raise KafkaError(Code.GROUP_MAX_SIZE_REACHED, text)
            return
        group = ConsumerGroup(
            beat.group, self._config, self._loop, self.partitions_of, self._settle
        )
        if known is not None:
            group.adopt(known)
        self.groups[beat.group] = group
        if known is not None:
            self._settle(known)

    def finish_consumer(self, group: ConsumerGroup, member: ConsumerMember, beat: Beat) -> Answer:
        """As `ConsumerGroup.finish`."""
        answer = group.finish(member, beat)
        self._settle(group)
        return answer

    def leave_consumer(self, beat: Beat) -> Answer:
        """Remove a member of the consumer protocol, perhaps for a moment only."""
        group = self._consumers(beat.group)
        answer = group.leave_by_beat(beat)
        self._settle(group)
        return answer

    # -- offsets ----------------------------------------------------------------------------------

    def check_commit(
        self,
        name: str,
        generation: int,
        member_id: str,
        instance_id: str | None,
        *,
        knows_epochs: bool = False,
    ) -> None:
        """Check a commit with a generation or epoch; -1: a client without a group.

        `knows_epochs`: whether the request's version has member epochs.
        """
        group = self.groups.get(name)
        if group is not None and group.members:
            group.check_commit(generation, member_id, instance_id, knows_epochs=knows_epochs)
        elif generation >= 0:
            # A group with offsets only is known, and has no members.
            has_offsets = self.offsets.of_group(name) or self.offsets.unstable_of(name)
            absent = Code.GROUP_ID_NOT_FOUND if knows_epochs else Code.ILLEGAL_GENERATION
            code = Code.UNKNOWN_MEMBER_ID if group is not None or has_offsets else absent
            raise KafkaError(code, f"group {name} has no members")

    # -- groups ---------------------------------------------------------------------------------

    def names(self) -> Iterator[tuple[str, str, str, str]]:
        """Yield every group with its protocol type, state and type, read when it is reached."""
        for group in tuple(self.groups.values()):
            yield group.name, group.protocol_type, group.state, group.kind
        for name in tuple(self.offsets.types):
            if name not in self.groups and name in self.offsets.types:
                yield name, self.offsets.types[name], State.EMPTY, Group.kind

    def type_of(self, name: str) -> str:
        """A group's protocol type; "" if it is not known."""
        group = self.groups.get(name)
        return group.protocol_type if group is not None else self.offsets.types.get(name, "")

    def check_deletable(self, name: str) -> None:
        """Raise KafkaError (NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND) if a group cannot be deleted."""
        group = self.groups.get(name)
        if group is not None and group.size:
            raise KafkaError(Code.NON_EMPTY_GROUP, f"group {name} has members")
        if not self.offsets.of_group(name):
            raise KafkaError(Code.GROUP_ID_NOT_FOUND, f"there is no group {name}")

    def check_forgettable(self, name: str) -> None:
        """Raise KafkaError unless offsets of a group may be removed one by one."""
        if not name:
            raise KafkaError(Code.INVALID_GROUP_ID, "the group has no name")
        group = self.groups.get(name)
        if group is None and not self.offsets.of_group(name):
            raise KafkaError(Code.GROUP_ID_NOT_FOUND, f"there is no group {name}")
        if group is not None and group.members and group.protocol_type != CONSUMER:
            # It is not known which topics its members read.
            raise KafkaError(Code.NON_EMPTY_GROUP, f"group {name} has members")

    def reads(self, name: str, topic: str) -> bool:
        """Whether a member of a consumer group has subscribed to a topic."""
        group = self.groups.get(name)
        return group is not None and group.reads(topic)

    def close(self) -> None:
        """Cancel all timers. Members join again at another broker, or after a restart."""
        for group in self.groups.values():
            group.close()

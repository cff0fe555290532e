"""A group's transitions: members join and leave, and a generation begins.

Time comes in through `Deadlines`. Nothing here waits: a JoinGroup or SyncGroup that has to wait for
other members is answered by its callback.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Protocol

from ..deadlines import Deadline
from ..errors import Code
from .group import Group, Joining, JoinResult, Member, State, SyncResult

__all__ = ["Clock", "Rebalancing"]

#: A new member that waits for its first generation is dropped after this time, as in Kafka.
NEW_MEMBER_TIMEOUT_S = 300.0


class Clock(Protocol):
    """Calls things later; `Deadlines` is one."""

    def after(self, delay_s: float, call: Callable[[], None]) -> Deadline:
        """Call after a time."""
        ...


class Rebalancing:
    """Changes the groups of one coordinator."""

    def __init__(
        self, clock: Clock, initial_delay_ms: int, changed: Callable[[Group], None]
    ) -> None:
        """`changed` is called when time has changed a group, so that its caller cannot know."""
        self._clock = clock
        self._changed = changed
        self._initial_delay_ms = initial_delay_ms

    # -- joining --------------------------------------------------------------------------------

    def wait_for(self, group: Group, member_id: str, timeout_ms: int) -> None:
        """A member got this id, and must join with it in time."""
        group.pending[member_id] = self._clock.after(
            timeout_ms / 1000, partial(self.forget_pending, group, member_id)
        )

    def forget_pending(self, group: Group, member_id: str) -> None:
        """The client that got the id does not join."""
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
        self._prepare(group)

    def update(self, group: Group, member: Member, joining: Joining) -> None:
        """A member joins again: its JoinGroup is answered when the generation begins."""
        member.answer_join(JoinResult(member.member_id, Code.REBALANCE_IN_PROGRESS))
        member.joining = replace(joining, instance_id=member.instance_id)
        member.join_reply = joining.reply
        self._prepare(group)

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
        self._prepare(group)

    def _prepare(self, group: Group) -> None:
        """Begin a rebalance, if none runs; complete it, if all are there."""
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
            group.rebalance = self._clock.after(delay_ms / 1000, later)
            return
        self._wait_for_members(group)
        self._complete_if_all_joined(group)

    def _wait_for_members(self, group: Group) -> None:
        group.rebalance = self._clock.after(
            group.rebalance_timeout_ms / 1000, partial(self._complete, group)
        )

    def _put_off(self, group: Group) -> None:
        """The first delay is over: wait once more if members came meanwhile."""
        if group.has_new_member and group.initial_rest_ms > 0:
            group.has_new_member = False
            delay_ms = min(self._initial_delay_ms, group.initial_rest_ms)
            group.initial_rest_ms -= delay_ms
            later = partial(self._put_off, group)
            group.rebalance = self._clock.after(delay_ms / 1000, later)
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

    # -- syncing --------------------------------------------------------------------------------

    def assign(self, group: Group, assignments: Mapping[str, bytes]) -> None:
        """The leader has sent the assignments: the generation is stable."""
        group.state = State.STABLE
        for member in tuple(group.members.values()):
            member.assignment = assignments.get(member.member_id, b"")
            self.beat(group, member)
            member.answer_sync(SyncResult(member.assignment))

    # -- leaving --------------------------------------------------------------------------------

    def beat(self, group: Group, member: Member) -> None:
        """A sign of life."""
        self._expect(group, member, member.joining.session_timeout_ms / 1000)

    def _expect(self, group: Group, member: Member, within_s: float) -> None:
        """Expect a sign of life of a member within a time."""
        if member.session is not None:
            member.session.cancel()
        member.session = self._clock.after(within_s, partial(self._expired, group, member))

    def _expired(self, group: Group, member: Member) -> None:
        if group.members.get(member.member_id) is not member:
            return
        if member.is_waiting and not member.is_new:
            self.beat(group, member)  # it waits for us, so it cannot send a heartbeat
            return
        self.remove(group, member)
        self._changed(group)

    def remove(self, group: Group, member: Member) -> None:
        """A member leaves, or was silent for too long: the others share its part."""
        member.answer_join(JoinResult(member.member_id, Code.UNKNOWN_MEMBER_ID))
        member.answer_sync(SyncResult(code=Code.UNKNOWN_MEMBER_ID))
        group.remove(member)
        if group.state in (State.STABLE, State.COMPLETING):
            self._prepare(group)
        elif group.state is State.PREPARING:
            self._complete_if_all_joined(group)

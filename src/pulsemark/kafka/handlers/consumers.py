"""The consumer protocol (KIP-848): heartbeats of its members, and what its groups look like."""

from __future__ import annotations

from typing import Any

from ..access import Operation
from ..endpoint import ENCODED_AT_ONCE_PARTS, PART_BYTES, Handler, KafkaSession, parts_of
from ..errors import Code, KafkaError
from ..groups.consumer_group import ConsumerGroup, ConsumerMember, by_topic
from ..groups.consumer_groups import (
    JOINS,
    PLANNED_AT_ONCE,
    Answer,
    Beat,
    LookedUp,
    check_beat,
    matching,
    plan_now,
)
from ..groups.offsets import Partition
from ..messages import (
    CONSUMER_GROUP_DESCRIBE,
    CONSUMER_GROUP_HEARTBEAT,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatResponse,
)
from ..protocol import Request

_Assignment = ConsumerGroupHeartbeatResponse.Assignment
_Group = ConsumerGroupDescribeResponse.DescribedGroup
CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1


async def consumer_group_heartbeat(session: KafkaSession, request: Request) -> None:
    """A member joins, lives, or leaves; the answer has its partitions, if they have changed."""
    code, reason, assignment = Code.NONE, None, None
    answer = Answer(None, 0)
    try:
        refused = session.group_code(request.body.group_id or "")
        if refused is not Code.NONE:
            raise KafkaError(refused, refused.name)
        answer = await _beaten(session, await _beat_of(session, request))
    except KafkaError as refusal:
        code, reason = refusal.code, refusal.message
    if answer.assigned is not None:
        assignment = await _shown(session, answer.assigned)
    response = ConsumerGroupHeartbeatResponse(
        throttle_time_ms=0,
        error_code=code,
        error_message=reason,
        member_id=answer.member_id,
        member_epoch=answer.epoch,
        heartbeat_interval_ms=session.options.consumer_heartbeat_interval_ms
        if answer.epoch > 0
        else 0,
        assignment=assignment,
    )
    await session.answer_by_size(request, response, len(answer.assigned or ()))


async def _shown(session: KafkaSession, assigned: frozenset[Partition]) -> Any:
    """A member's partitions, as an answer has them."""
    ids = session.endpoint.topic_ids

    def make() -> Any:
        parts = [
            _Assignment.TopicPartitions(topic_id=ids.of(topic), partitions=indexes)
            for topic, indexes in by_topic(assigned).items()
        ]
        return _Assignment(topic_partitions=parts)

    is_small = len(assigned) <= ENCODED_AT_ONCE_PARTS
    return make() if is_small else await session.endpoint.ports.run_blocking(make)


async def _beat_of(session: KafkaSession, request: Request) -> Beat:
    """What a heartbeat says. Raises KafkaError."""
    body, ids = request.body, session.endpoint.topic_ids
    topics, parts = body.subscribed_topic_names, body.topic_partitions
    owned: frozenset[Partition] | None = None
    if parts is not None:
        # A topic whose id is not known was not assigned since the start of this broker.
        owned = frozenset(
            [
                (ids.name(each.topic_id) or f"?{each.topic_id}", index)
                async for each in session.in_turns(parts)
                for index in each.partitions or ()
            ]
        )
    beat = Beat(
        group=body.group_id or "",
        member_id=body.member_id or "",
        epoch=body.member_epoch,
        instance_id=body.instance_id,
        rack_id=body.rack_id,
        rebalance_timeout_ms=body.rebalance_timeout_ms,
        topics=None if topics is None else frozenset(name or "" for name in topics),
        regex=body.subscribed_topic_regex if request.version >= 1 else None,
        assignor=body.server_assignor,
        owned=owned,
        client_id=request.client_id,
        client_host=session.host,
        needs_id=request.version >= 1,
    )
    check_beat(beat)
    async for name in session.in_turns(beat.topics or ()):
        session.access.check(Operation.DESCRIBE, name)
    return beat


async def _beaten(session: KafkaSession, beat: Beat) -> Answer:
    """What a heartbeat does. Raises KafkaError."""
    ports, coordinator = session.endpoint.ports, session.endpoint.groups
    if beat.epoch < JOINS:
        return coordinator.leave_consumer(beat)
    groups, topics = coordinator.consumers, ports.topics.count()
    due = groups.regexes_due(beat, topics)
    looked_up: LookedUp | None = None
    if due:
        names = [
            name
            async for name in session.in_turns(ports.topics.names())
            if session.access.may(Operation.DESCRIBE, name)
        ]
        found = await ports.run_blocking(lambda: {regex: matching(regex, names) for regex in due})
        looked_up = found, topics
    group, member = coordinator.begin_consumer(beat, looked_up)
    if group.size > PLANNED_AT_ONCE and group.is_outdated:
        epoch = group.epoch
        group.install(epoch, await ports.run_blocking(group.plan()))
    else:
        plan_now(group)
    return groups.finish(group, member, beat)


async def consumer_group_describe(session: KafkaSession, request: Request) -> None:
    """The state of groups of this protocol, with their members."""
    coordinator, total_bytes = session.endpoint.groups, 0

    def answer_bytes(name: str | None) -> int:
        nonlocal total_bytes
        group = coordinator.consumers.groups.get(name or "")
        size_bytes = PART_BYTES + len(name or "") + (0 if group is None else 2 * group.size_bytes)
        total_bytes += size_bytes
        return size_bytes

    names = session.named(request.body.group_ids or (), answer_bytes)
    groups = [_described(session, name or "") async for name in names]
    response = ConsumerGroupDescribeResponse(throttle_time_ms=0, groups=groups)
    await session.answer_by_size(request, response, total_bytes // PART_BYTES)


def _described(session: KafkaSession, name: str) -> Any:
    code = session.group_code(name)
    group = session.endpoint.groups.consumers.groups.get(name) if code is Code.NONE else None
    reason = None if code is Code.NONE else code.name
    if code is Code.NONE and not name:
        code, reason = Code.INVALID_GROUP_ID, "GroupId can't be empty."
    elif code is Code.NONE and group is None:
        code, reason = Code.GROUP_ID_NOT_FOUND, f"Group {name} is not a consumer group."
    return _Group(
        error_code=code,
        error_message=reason,
        group_id=name,
        group_state="" if group is None else group.state,
        group_epoch=0 if group is None else group.epoch,
        assignment_epoch=0 if group is None else group.target_epoch,
        assignor_name="" if group is None else group.assignor,
        members=[]
        if group is None
        else [_member(session, group, m) for m in group.members.values()],
    )


def _member(session: KafkaSession, group: ConsumerGroup, member: ConsumerMember) -> Any:
    def shown(kind: Any, partitions: frozenset[Partition]) -> Any:
        return kind(
            topic_partitions=[
                kind.TopicPartitions(
                    topic_id=session.endpoint.topic_ids.of(topic),
                    topic_name=topic,
                    partitions=indexes,
                )
                for topic, indexes in by_topic(partitions).items()
            ]
        )

    return _Group.Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.regex or "",
        assignment=shown(_Group.Member.Assignment, member.assigned | member.revoking),
        target_assignment=shown(
            _Group.Member.TargetAssignment, group.target.get(member.member_id, frozenset())
        ),
        member_type=CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
    )


def _parts_of_beat(_session: KafkaSession, request: Request) -> int:
    """Topics and partitions that a heartbeat names."""
    body = request.body
    named = len(body.subscribed_topic_names or ())
    return named + sum(1 + len(each.partitions or ()) for each in body.topic_partitions or ())


HANDLERS: dict[int, Handler] = {
    CONSUMER_GROUP_HEARTBEAT: Handler(consumer_group_heartbeat, _parts_of_beat),
    CONSUMER_GROUP_DESCRIBE: Handler(consumer_group_describe, parts_of("group_ids")),
}

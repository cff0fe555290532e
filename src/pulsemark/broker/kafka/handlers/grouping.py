"""Consumer groups: their members, committed offsets, and the requests of administrators.

JoinGroup, SyncGroup, Heartbeat, LeaveGroup; OffsetCommit, OffsetFetch and OffsetDelete, which
answer a change when it is durable; DescribeGroups, ListGroups and DeleteGroups; and the consumer
protocol's ConsumerGroupHeartbeat and ConsumerGroupDescribe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from operator import attrgetter
from typing import Any

from kafka.protocol.admin import DeleteGroupsResponse, DescribeGroupsResponse, ListGroupsResponse
from kafka.protocol.consumer import (
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    OffsetCommitResponse,
    OffsetDeleteResponse,
    OffsetFetchResponse,
    SyncGroupResponse,
)

from ....kafka.errors import Code, KafkaError, code_of
from ....kafka.messages import (
    CONSUMER_GROUP_DESCRIBE,
    CONSUMER_GROUP_HEARTBEAT,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatResponse,
)
from ....kafka.protocol import Request
from ....ledger import LedgerError
from ..access import Operation
from ..endpoint import (
    ENCODED_AT_ONCE_PARTS,
    MANY_PARTS,
    PART_BYTES,
    Handler,
    KafkaSession,
    named_partitions,
    one_part,
    parts_of,
)
from ..groups.consumer_group import (
    JOINS,
    Answer,
    Beat,
    ConsumerGroup,
    ConsumerMember,
    RegexMatch,
    by_topic,
    check_beat,
    matching,
)
from ..groups.group import Group, Joining, JoinResult, State, SyncResult
from ..groups.offsets import Committed, Partition

PLANNED_AT_ONCE = 2_000
"""The target of a larger group of the consumer protocol is computed in a thread."""

_Member = DescribeGroupsResponse.DescribedGroup.DescribedGroupMember


def join_group(session: KafkaSession, request: Request) -> None:
    """Let a member join; the answer waits for the others."""
    body = request.body
    group, member_id = body.group_id or "", body.member_id or ""
    timeout_ms = body.session_timeout_ms
    rebalance_ms = body.rebalance_timeout_ms if request.version >= 1 else timeout_ms
    joining = Joining(
        group=group,
        member_id=member_id,
        instance_id=body.group_instance_id if request.version >= 5 else None,
        client_id=request.client_id,
        client_host=session.host,
        session_timeout_ms=timeout_ms,
        rebalance_timeout_ms=min(max(rebalance_ms, 0), 2**31 - 1),
        protocol_type=body.protocol_type or "",
        protocols=tuple((p.name or "", p.metadata or b"") for p in body.protocols or ()),
        needs_id=request.version >= 4,
        reply=partial(_joined, session, request),
    )
    session.block(request, _nothing)
    code = session.group_code(group) or code_of(session.endpoint.groups.join, joining)
    if code is not Code.NONE:
        _joined(session, request, JoinResult(member_id, code))


def _nothing() -> None:
    """A member whose connection is lost stays until its session times out."""


def _joined(session: KafkaSession, request: Request, result: JoinResult) -> None:
    members = [
        JoinGroupResponse.JoinGroupResponseMember(
            member_id=member_id, group_instance_id=instance_id, metadata=metadata
        )
        for member_id, instance_id, metadata in result.members
    ]
    response = JoinGroupResponse(
        error_code=result.code,
        generation_id=result.generation,
        protocol_name=result.protocol,
        leader=result.leader,
        member_id=result.member_id,
        members=members,
    )
    session.answer(request, response)


def sync_group(session: KafkaSession, request: Request) -> None:
    """Answer a member with its assignment; the leader sends all of them."""
    body = request.body
    group = body.group_id or ""
    session.block(request, _nothing)
    code = session.group_code(group) or code_of(
        session.endpoint.groups.sync,
        group,
        body.generation_id,
        body.member_id or "",
        body.group_instance_id if request.version >= 3 else None,
        {each.member_id or "": each.assignment or b"" for each in body.assignments or ()},
        partial(_synced, session, request),
    )
    if code is not Code.NONE:
        _synced(session, request, SyncResult(code=code))


def _synced(session: KafkaSession, request: Request, result: SyncResult) -> None:
    session.answer(request, SyncGroupResponse(error_code=result.code, assignment=result.assignment))


def heartbeat(session: KafkaSession, request: Request) -> None:
    """Start a member's session timeout again."""
    body = request.body
    group = body.group_id or ""
    code = session.group_code(group) or code_of(
        session.endpoint.groups.heartbeat,
        group,
        body.generation_id,
        body.member_id or "",
        body.group_instance_id if request.version >= 3 else None,
    )
    session.answer(request, HeartbeatResponse(error_code=code))


async def leave_group(session: KafkaSession, request: Request) -> None:
    """Remove members."""
    body = request.body
    group = body.group_id or ""
    refused = session.group_code(group)
    if request.version < 3:
        leave = session.endpoint.groups.leave
        code = refused or code_of(leave, group, body.member_id or "", None)
        session.answer(request, LeaveGroupResponse(error_code=code))
        return
    leaving = session.in_turns(body.members or ())
    left = [_leave(session, group, refused, each) async for each in leaving]
    response = LeaveGroupResponse(error_code=refused, members=left)
    await session.answer_by_size(request, response, len(left))


def _leave(session: KafkaSession, group: str, refused: Code, each: Any) -> Any:
    member_id, instance_id = each.member_id, each.group_instance_id
    leave = session.endpoint.groups.leave
    return LeaveGroupResponse.MemberResponse(
        member_id=member_id,
        group_instance_id=instance_id,
        error_code=refused or code_of(leave, group, member_id or "", instance_id),
    )


async def describe_groups(session: KafkaSession, request: Request) -> None:
    """Answer with the state of groups and their members."""
    asked = request.body.groups
    await _describe(session, request, asked, Group, _description, DescribeGroupsResponse)


async def _describe(
    session: KafkaSession,
    request: Request,
    asked: Iterable[str | None] | None,
    kind: type[Group | ConsumerGroup],
    describe: Callable[[KafkaSession, str], Any],
    response: Any,
) -> None:
    groups, total_bytes = session.endpoint.groups.groups, 0
    copies = 1 + (kind is ConsumerGroup)  # assigned, and the target

    def answer_bytes(name: str | None) -> int:
        nonlocal total_bytes
        group = groups.get(name or "")
        group_bytes = copies * group.size_bytes if isinstance(group, kind) else 0
        size_bytes = PART_BYTES + len(name or "") + group_bytes
        total_bytes += size_bytes
        return size_bytes

    names = session.named(asked or (), answer_bytes)
    described = [describe(session, name or "") async for name in names]
    await session.answer_by_size(request, response(groups=described), total_bytes // PART_BYTES)


def _description(session: KafkaSession, name: str) -> Any:
    coordinator = session.endpoint.groups
    code = session.group_code(name)
    group = coordinator.groups.get(name) if code is Code.NONE else None
    members: list[Any] = []
    # A group of the consumer protocol is described by ConsumerGroupDescribe.
    state, kind, protocol = "Dead" if code is Code.NONE else "", "", ""
    if isinstance(group, Group):
        members = [_member(group, each) for each in group.members]
        protocol = (group.protocol or "") if group.state is State.STABLE else ""
        state, kind = group.state, group.protocol_type
    elif code is Code.NONE and group is None and coordinator.offsets.of_group(name):
        state, kind = State.EMPTY, coordinator.offsets.types[name]
    return DescribeGroupsResponse.DescribedGroup(
        error_code=code,
        group_id=name,
        group_state=state,
        protocol_type=kind,
        protocol_data=protocol,
        members=members,
    )


def _member(group: Group, member_id: str) -> Any:
    member = group.members[member_id]
    # While the group rebalances nothing is assigned yet, and the last assignment is over.
    is_stable = group.state is State.STABLE
    return _Member(
        member_id=member_id,
        group_instance_id=member.instance_id,
        client_id=member.joining.client_id,
        client_host=member.joining.client_host,
        member_metadata=member.metadata_of(group.protocol) if is_stable else b"",
        member_assignment=member.assignment if is_stable else b"",
    )


async def list_groups(session: KafkaSession, request: Request) -> None:
    """Answer with all groups that the client may use."""
    states = await _filter(session, request.body.states_filter if request.version >= 4 else None)
    types = await _filter(session, request.body.types_filter if request.version >= 5 else None)
    groups = [
        ListGroupsResponse.ListedGroup(
            group_id=name, protocol_type=kind, group_state=state, group_type=group_type
        )
        async for name, kind, state, group_type in session.named(
            session.endpoint.groups.names(), lambda group: PART_BYTES + 4 * len(group[0])
        )
        if session.access.may_use_group(name)
        and (not states or state.lower() in states)
        and (not types or group_type in types)
    ]
    await session.answer_by_size(request, ListGroupsResponse(groups=groups), len(groups))


async def _filter(session: KafkaSession, names: list[str | None] | None) -> set[str]:
    """The lower-case names of a filter (KIP-518, KIP-848); none: everything."""
    return {(name or "").lower() async for name in session.named(names or ())}


async def delete_groups(session: KafkaSession, request: Request) -> None:
    """Delete the committed offsets of groups without members. Answered when durable."""
    endpoint = session.endpoint
    codes: dict[str, Code] = {}
    dropped: dict[str, asyncio.Future[None]] = {}
    names = (name or "" for name in request.body.groups_names or ())
    async for name in session.named(names, lambda name: PART_BYTES + len(name)):
        codes[name] = session.group_code(name) or code_of(endpoint.groups.check_deletable, name)
        if codes[name] is Code.NONE:
            dropped[name] = endpoint.offsets.drop(name, None)
    for name, done in dropped.items():
        try:
            await done
        except (LedgerError, OSError):
            codes[name] = Code.KAFKA_STORAGE_ERROR
    results = [
        DeleteGroupsResponse.DeletableGroupResult(group_id=name, error_code=code)
        for name, code in codes.items()
    ]
    response = DeleteGroupsResponse(results=results)
    await session.answer_by_size(request, response, len(results))


def _parts_of_leave(session: KafkaSession, request: Request) -> int:
    return parts_of("members")(session, request) if request.version >= 3 else 1


def _parts_of_describe(session: KafkaSession, request: Request) -> int:
    """The number of groups and members of the answer."""
    if len(request.body.groups or ()) > MANY_PARTS:
        return len(request.body.groups)
    names, known = set(request.body.groups or ()), session.endpoint.groups.groups
    found = (known.get(name or "") for name in names)
    return len(names) + sum(len(group.members) for group in found if group is not None)


def _parts_of_list(session: KafkaSession, request: Request) -> int:
    """The number of groups, and of states and types that are asked for."""
    body, coordinator = request.body, session.endpoint.groups
    asked = len(body.states_filter or ()) if request.version >= 4 else 0
    asked += len(body.types_filter or ()) if request.version >= 5 else 0
    return asked + len(coordinator.groups) + len(coordinator.offsets.types)


MAX_METADATA_BYTES = 4_096
"""offset.metadata.max.bytes"""
MAX_CHARACTER_BYTES = 4
STABLE_VERSION = 7
"""From this version of OffsetFetch on, a client may ask for stable offsets only (KIP-447)."""
NOT_COMMITTED = Committed(-1, -1, "", -1)

_Topic = OffsetCommitResponse.OffsetCommitResponseTopic
_DeletedTopic = OffsetDeleteResponse.OffsetDeleteResponseTopic
_FetchedTopic = OffsetFetchResponse.OffsetFetchResponseTopic
_FetchedGroup = OffsetFetchResponse.OffsetFetchResponseGroup
#: From this version of OffsetFetch on, several groups may be asked for.
GROUPS_VERSION = 8
#: From this version of OffsetCommit and OffsetFetch on, members may have epochs (KIP-848).
EPOCHS_VERSION = 9


async def offset_commit(session: KafkaSession, request: Request) -> None:
    """Store a group's offsets, all together; answered when they are durable."""
    body, version, endpoint = request.body, request.version, session.endpoint
    codes, offsets = await checked_offsets(session, request, since=6)
    group = body.group_id or ""
    code = session.group_code(group) or code_of(
        endpoint.groups.check_commit,
        group,
        body.generation_id_or_member_epoch if version >= 1 else -1,
        (body.member_id or "") if version >= 1 else "",
        body.group_instance_id if version >= 7 else None,
        knows_epochs=version >= EPOCHS_VERSION,
    )
    if code is not Code.NONE:
        codes = dict.fromkeys(codes, code)
    elif offsets:
        try:
            await endpoint.offsets.commit(group, endpoint.groups.type_of(group), offsets)
        except KafkaError as refusal:
            code = refusal.code
        except LedgerError as error:
            session.storage_failed(error)
            is_alone = endpoint.services.cluster is None  # the log may be another's now
            code = Code.KAFKA_STORAGE_ERROR if is_alone else Code.NOT_COORDINATOR
        codes |= dict.fromkeys(offsets, code)
    topics = await topics_of(session, codes, _Topic, _Topic.OffsetCommitResponsePartition)
    await session.answer_by_size(request, OffsetCommitResponse(topics=topics), len(codes))


async def checked_offsets(
    session: KafkaSession, request: Request, *, since: int
) -> tuple[dict[Partition, Code], dict[Partition, Committed]]:
    """The code of each partition in a commit, and the offsets that can be stored.

    `since`: the request's version from which on it has leader epochs.
    """
    codes, offsets, now_ms = dict[Partition, Code](), {}, session.endpoint.now_ms()
    async for name, each in session.in_turns(named_partitions(request.body)):
        at, text = (name, each.partition_index), each.committed_metadata or ""
        codes[at] = code = offset_code(session, at, text)
        if code is Code.NONE:
            epoch = each.committed_leader_epoch if request.version >= since else -1
            offsets[at] = Committed(each.committed_offset, epoch, text, now_ms)
    return codes, offsets


def offset_code(session: KafkaSession, at: Partition, text: str = "") -> Code:
    """The code that refuses to commit or remove a partition's offset; NONE: it is granted."""
    if not session.access.may(Operation.READ, at[0]):
        return Code.TOPIC_AUTHORIZATION_FAILED
    if not 0 <= at[1] < session.endpoint.topics.partitions_of(at[0]):
        return Code.UNKNOWN_TOPIC_OR_PARTITION
    is_long = len(text.encode()) > MAX_METADATA_BYTES
    return Code.OFFSET_METADATA_TOO_LARGE if is_long else Code.NONE


async def topics_of(
    session: KafkaSession, codes: Mapping[Partition, Code], topic: Any, partition: Any
) -> list[Any]:
    """Build the topics of an answer with a code for each partition."""
    found: dict[str, list[Any]] = {}
    async for (name, index), code in session.in_turns(codes.items()):
        found.setdefault(name, []).append(partition(partition_index=index, error_code=code))
    return [topic(name=name, partitions=each) for name, each in found.items()]


async def offset_fetch(session: KafkaSession, request: Request) -> None:
    """Groups' committed offsets; without a list of topics, all of a group."""
    is_stable = request.version >= STABLE_VERSION and bool(request.body.require_stable)
    if request.version < GROUPS_VERSION:
        topics, code, count = await _fetched_group(
            session, request.body, _FetchedTopic, is_stable=is_stable
        )
        response = OffsetFetchResponse(topics=topics, error_code=code)
        await session.answer_by_size(request, response, count)
        return
    groups, total = [], 0
    kind = _FetchedGroup.OffsetFetchResponseTopics
    async for asked in session.named(
        request.body.groups or (),
        lambda each: PART_BYTES * _count_of(session, each) + len(each.group_id or ""),
        key=attrgetter("group_id"),
    ):
        topics, code, count = await _fetched_group(session, asked, kind, is_stable=is_stable)
        total += 1 + count
        groups.append(_FetchedGroup(group_id=asked.group_id, topics=topics, error_code=code))
    response = OffsetFetchResponse(groups=groups)
    await session.answer_by_size(request, response, total)


async def _fetched_group(
    session: KafkaSession, asked: Any, kind: Any, *, is_stable: bool
) -> tuple[list[Any], Code, int]:
    """The topics of one group's answer, its code, and how many partitions there are."""
    group = asked.group_id or ""
    code = session.group_code(group) or _fetch_code(session, group, asked)
    if code is not Code.NONE and kind is not _FetchedTopic:
        return [], code, 0
    offsets = session.endpoint.offsets.of_group(group) if code is Code.NONE else {}
    unstable = session.endpoint.offsets.unstable_of(group) if is_stable else ()
    by_topic: dict[str, list[Any]] = {}

    def answer_bytes(at: Partition) -> int:
        known = offsets.get(at)
        return PART_BYTES + (0 if known is None else MAX_CHARACTER_BYTES * len(known.metadata))

    part = (
        kind.OffsetFetchResponsePartition
        if kind is _FetchedTopic
        else kind.OffsetFetchResponsePartitions
    )
    async for topic, index in session.named(_fetched_of(asked, offsets), answer_bytes):
        may_see = code is not Code.NONE or session.access.may(Operation.DESCRIBE, topic)
        found = code if may_see else Code.TOPIC_AUTHORIZATION_FAILED
        if asked.topics is None and found is not Code.NONE:
            continue
        if found is Code.NONE and (topic, index) in unstable:
            found = Code.UNSTABLE_OFFSET_COMMIT
        partition = _fetched(part, index, offsets.get((topic, index)), found)
        by_topic.setdefault(topic, []).append(partition)
    topics = [kind(name=name, partitions=each) for name, each in by_topic.items()]
    return topics, code, sum(map(len, by_topic.values()))


def _fetch_code(session: KafkaSession, group: str, asked: Any) -> Code:
    """The code that refuses a member of the consumer protocol its group's offsets."""
    known = session.endpoint.groups.groups.get(group)
    member_id, epoch = getattr(asked, "member_id", None), getattr(asked, "member_epoch", -1)
    if not isinstance(known, ConsumerGroup) or (not member_id and epoch < 0):
        return Code.NONE
    return code_of(known.check_commit, epoch, member_id or "", None, knows_epochs=True)


def _fetched_of(body: Any, offsets: Mapping[Partition, Committed]) -> Iterable[Partition]:
    """The partitions asked for; without a list, those that have offsets."""
    if body.topics is None:
        return tuple(offsets)
    return (
        (topic.name or "", index)
        for topic in body.topics
        for index in topic.partition_indexes or ()
    )


def _fetched(kind: Any, index: int, committed: Committed | None, code: Code) -> Any:
    found = NOT_COMMITTED if committed is None or code is not Code.NONE else committed
    return kind(
        partition_index=index,
        committed_offset=found.offset,
        committed_leader_epoch=found.leader_epoch,
        metadata=found.metadata,
        error_code=code,
    )


async def offset_delete(session: KafkaSession, request: Request) -> None:
    """Remove a group's offsets of some partitions, except of topics that it still reads."""
    body, endpoint = request.body, session.endpoint
    group = body.group_id or ""
    codes: dict[Partition, Code] = {}
    reads = cache(partial(endpoint.groups.reads, group))
    async for topic, each in session.named(
        named_partitions(body), key=lambda named: (named[0], named[1].partition_index)
    ):
        at = topic, each.partition_index
        code = offset_code(session, at)
        is_read = code is Code.NONE and reads(topic)
        codes[at] = Code.GROUP_SUBSCRIBED_TO_TOPIC if is_read else code
    code = session.group_code(group) or code_of(endpoint.groups.check_forgettable, group)
    dropped = [at for at, refusal in codes.items() if refusal is Code.NONE]
    if code is Code.NONE and dropped:
        try:
            await endpoint.offsets.drop(group, dropped)
        except LedgerError as error:
            session.storage_failed(error)
            codes.update(dict.fromkeys(dropped, Code.KAFKA_STORAGE_ERROR))
    shown = codes if code is Code.NONE else {}
    part = _DeletedTopic.OffsetDeleteResponsePartition
    topics = await topics_of(session, shown, _DeletedTopic, part)
    response = OffsetDeleteResponse(error_code=code, topics=topics)
    await session.answer_by_size(request, response, len(codes))


def _parts_of_fetch(session: KafkaSession, request: Request) -> int:
    """The number of groups and partitions of the answer."""
    body = request.body
    asked = (body,) if request.version < GROUPS_VERSION else body.groups or ()
    return sum(_count_of(session, each) for each in asked)


def _count_of(session: KafkaSession, asked: Any) -> int:
    """The number of a group's partitions that are asked for, and 1 for the group."""
    if asked.topics is None:
        return 1 + len(session.endpoint.offsets.of_group(asked.group_id or ""))
    return 1 + sum(1 + len(topic.partition_indexes or ()) for topic in asked.topics)


# -- the consumer protocol (KIP-848) ---------------------------------------------------------------

_Assignment = ConsumerGroupHeartbeatResponse.Assignment
_ConsumerGroup = ConsumerGroupDescribeResponse.DescribedGroup
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
        error_code=code,
        error_message=reason,
        member_id=answer.member_id,
        member_epoch=answer.epoch,
        heartbeat_interval_ms=session.config.kafka_group_consumer_heartbeat_interval_ms
        if answer.epoch > 0
        else 0,
        assignment=assignment,
    )
    await session.answer_by_size(request, response, len(answer.assigned or ()))


async def _shown(session: KafkaSession, assigned: frozenset[Partition]) -> Any:
    """A member's partitions in an answer, by topic id."""
    ids = session.endpoint.topic_ids

    def make() -> Any:
        parts = [
            _Assignment.TopicPartitions(topic_id=ids.of(topic), partitions=indexes)
            for topic, indexes in by_topic(assigned).items()
        ]
        return _Assignment(topic_partitions=parts)

    is_small = len(assigned) <= ENCODED_AT_ONCE_PARTS
    return make() if is_small else await session.endpoint.services.run_blocking(make)


async def _beat_of(session: KafkaSession, request: Request) -> Beat:
    """Parse a heartbeat. Raises KafkaError."""
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
        role=session.access.role,
    )
    check_beat(beat)
    async for name in session.in_turns(beat.topics or ()):
        session.access.check(Operation.DESCRIBE, name)
    return beat


async def _beaten(session: KafkaSession, beat: Beat) -> Answer:
    """Apply a heartbeat to its group. Raises KafkaError."""
    endpoint, coordinator = session.endpoint, session.endpoint.groups
    run_blocking = endpoint.services.run_blocking
    if beat.epoch < JOINS:
        return coordinator.leave_consumer(beat)
    known, looked_up = coordinator.groups.get(beat.group), None
    changes = endpoint.topics.changes, session.access.generation
    regex = beat.regex
    if isinstance(known, ConsumerGroup):
        regex = known.regex_due(beat, changes)
    if regex:
        looked_up_s = asyncio.get_running_loop().time()
        names = [
            name
            async for name in session.in_turns(endpoint.topics.names())
            if session.access.may(Operation.DESCRIBE, name)
        ]
        matched = await run_blocking(lambda: matching(regex, names))
        looked_up = RegexMatch(regex, matched, changes, looked_up_s)
    group, member = coordinator.begin_consumer(beat, looked_up)
    if group.work > PLANNED_AT_ONCE and group.is_outdated:
        epoch = group.epoch
        group.install(epoch, await run_blocking(group.plan()))
    else:
        group.plan_now()
    return coordinator.finish_consumer(group, member, beat)


async def consumer_group_describe(session: KafkaSession, request: Request) -> None:
    """Answer with the state and members of groups of the consumer protocol."""
    asked, response = request.body.group_ids, ConsumerGroupDescribeResponse
    await _describe(session, request, asked, ConsumerGroup, _consumer_group, response)


def _consumer_group(session: KafkaSession, name: str) -> Any:
    code = session.group_code(name)
    group = session.endpoint.groups.groups.get(name) if code is Code.NONE else None
    reason = None if code is Code.NONE else code.name
    if code is Code.NONE and not name:
        code, reason = Code.INVALID_GROUP_ID, "GroupId can't be empty."
    elif code is Code.NONE and not isinstance(group, ConsumerGroup):
        code, reason = Code.GROUP_ID_NOT_FOUND, f"Group {name} is not a consumer group."
    elif isinstance(group, ConsumerGroup) and not _may_see(session, group):
        code = Code.TOPIC_AUTHORIZATION_FAILED
        reason = "The group has topics that the client is not allowed to describe."
    if code is not Code.NONE or not isinstance(group, ConsumerGroup):
        return _ConsumerGroup(error_code=code, error_message=reason, group_id=name)
    return _ConsumerGroup(
        error_code=code,
        error_message=reason,
        group_id=name,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=group.assignor,
        members=[_consumer(session, group, each) for each in group.members.values()],
    )


def _may_see(session: KafkaSession, group: ConsumerGroup) -> bool:
    """Whether a client may describe all topics that a group's members have or ask for."""
    topics = set[str]()
    for member in group.members.values():
        target = group.target.get(member.member_id, frozenset())
        topics.update(member.topics, by_topic(member.assigned | member.revoking | target))
    return all(session.access.may(Operation.DESCRIBE, topic) for topic in topics)


def _consumer(session: KafkaSession, group: ConsumerGroup, member: ConsumerMember) -> Any:
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

    return _ConsumerGroup.Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.regex or "",
        assignment=shown(_ConsumerGroup.Member.Assignment, member.assigned | member.revoking),
        target_assignment=shown(
            _ConsumerGroup.Member.TargetAssignment, group.target.get(member.member_id, frozenset())
        ),
        member_type=CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
    )


def _parts_of_beat(session: KafkaSession, request: Request) -> int:
    """The number of topics and partitions that a heartbeat names."""
    owned = parts_of("topic_partitions", "partitions")(session, request)
    return owned + parts_of("subscribed_topic_names")(session, request)


HANDLERS: dict[int, Handler] = {
    11: Handler(join_group, parts_of("protocols")),
    12: Handler(heartbeat, one_part),
    13: Handler(leave_group, _parts_of_leave, goes_on=True),
    14: Handler(sync_group, parts_of("assignments")),
    15: Handler(describe_groups, _parts_of_describe),
    16: Handler(list_groups, _parts_of_list),
    42: Handler(delete_groups, parts_of("groups_names")),
    8: Handler(offset_commit, parts_of("topics", "partitions"), goes_on=True),
    9: Handler(offset_fetch, _parts_of_fetch),
    47: Handler(offset_delete, parts_of("topics", "partitions")),
    CONSUMER_GROUP_HEARTBEAT: Handler(consumer_group_heartbeat, _parts_of_beat),
    CONSUMER_GROUP_DESCRIBE: Handler(consumer_group_describe, parts_of("group_ids")),
}

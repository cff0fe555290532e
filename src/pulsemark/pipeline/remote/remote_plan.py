"""Plan a read over gRPC: the same slices as for a folder, from the service's answers.

Names are tried as they are, then as partitioned topics (``x-partition-0``, and so on until one is
missing), because a service does not list its topics.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from ...finder.client import SeekClient
from ...ledger import LATEST, Position, TopicNotFoundError
from ...metadata.partition_names import partition_name
from ..options import Bound, BoundKind, ReadOptions
from ..plan import Slice, divide, index_in
from .remote_log import RemoteLog

TASK_MESSAGES = 1 << 20
"""About so many messages are one task, if there are more than that."""


def remote_topics(
    client: SeekClient, names: Sequence[str], *, missing_is_error: bool = True
) -> dict[str, RemoteLog]:
    """The topics of these names, sorted. Raises TopicNotFoundError."""
    found: dict[str, RemoteLog] = {}
    for name in names:
        own = _partitions(client, name)
        try:
            own[name] = RemoteLog(client, name)
        except TopicNotFoundError:
            if not own and missing_is_error:
                raise
        found |= own
    return dict(sorted(found.items()))


def _partitions(client: SeekClient, name: str) -> dict[str, RemoteLog]:
    found: dict[str, RemoteLog] = {}
    while True:
        partition = partition_name(name, len(found))
        try:
            found[partition] = RemoteLog(client, partition)
        except TopicNotFoundError:
            return found


def remote_slice(log: RemoteLog, start: Bound, end: Bound, *, fail: bool) -> Slice:
    """The part of a topic between two bounds; its message count may be 0. Raises DataLossError."""
    first = _index_of(log, start, fail)
    last = max(first, _index_of(log, end, fail))
    if first == last:
        return Slice(log.name, LATEST, LATEST, first, last)
    return Slice(log.name, log.entry_of(first)[0], _end_position(log, last), first, last)


def _end_position(log: RemoteLog, end: int) -> Position:
    """Where reading stops: after the entry that holds the message before ``end``."""
    if end >= log.next_index:
        return LATEST
    position, first_index = log.entry_of(end)
    inside = first_index < end
    return Position(position.ledger_id, position.entry_id + inside)


def _index_of(log: RemoteLog, bound: Bound, fail: bool) -> int:
    if bound.kind is BoundKind.TIME:
        return log.index_at(bound.value)
    return index_in(log.name, log.first_index, log.next_index, bound, fail_on_data_loss=fail)


def remote_tasks(
    slices: Sequence[Slice], logs: Mapping[str, RemoteLog], options: ReadOptions
) -> list[tuple[Slice, ...]]:
    """Divide slices into tasks; none is empty."""
    slices = [part for part in slices if part.message_count > 0]
    messages = sum(part.message_count for part in slices)
    cores = os.cpu_count() or 1
    count = 1 if messages < TASK_MESSAGES else cores * -(-messages // (cores * TASK_MESSAGES))
    return divide(
        slices,
        lambda topic, index: logs[topic].entry_of(index),
        max(count, options.min_partitions or 1),
    )


def remote_plan(options: ReadOptions) -> list[tuple[Slice, ...]]:
    """The tasks of a read.

    Raises:
        TopicNotFoundError: a topic does not exist.
        DataLossError: messages in the range are not there (see ``fail_on_data_loss``).
        SeekCallError: the service cannot be called, or refuses.
    """
    assert options.service is not None, "the read is of a service"
    with options.service.client() as client:
        logs = remote_topics(client, options.topics.names)
        slices = [
            remote_slice(log, options.start, options.end, fail=options.fail_on_data_loss)
            for log in logs.values()
        ]
        return remote_tasks(slices, logs, options)

"""Moving a subscription's place, by id or by time.

Both only choose a read position; what follows is the same, and its order matters to clients:

1. The subscription is fenced: its consumers are disconnected from it, nothing is sent, and
   acknowledgements for what was sent before no longer count.
2. The cursor is reset and made durable, so that a place once confirmed outlives a crash.
3. CLOSE_CONSUMER goes to every consumer of the subscription, then SUCCESS to the one who asked,
   back to back: some clients hang if SUCCESS comes alone or long after. They subscribe again and
   find the new place.

A seek by id leaves the cursor ON that entry, inclusive or not: the seeking client drops what it
does not want. A seek by time lands on the first entry at or after it, on the end if there is none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...compaction.compacted_log import CompactedLog
from ...ledger import LedgerError, Position
from ...proto.pulsar_api_pb2 import CommandSeek, ServerError
from ..background import Background
from ..commits import durable
from ..errors import RefusedError
from .positions import position_of
from .telling import telling

if TYPE_CHECKING:
    from ..topics.topic import Topic
    from .consumer import Consumer
    from .subscription import Subscription

__all__ = ["SeekTarget", "reset_subscription"]

RunBlocking = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class SeekTarget:
    """Where to go on reading."""

    position: Position
    #: Open members of the batch at `position`; () for all of it.
    ack_set: tuple[int, ...] = ()

    @classmethod
    async def from_command(
        cls, command: CommandSeek, subscription: Subscription, run_blocking: RunBlocking
    ) -> SeekTarget:
        """What a SEEK asks for. Raises `RefusedError`."""
        topic, compacted = subscription.topic, subscription.compacted
        if command.HasField("message_id"):
            position = topic.clamp(position_of(command.message_id), compacted)
            return cls(position, tuple(command.message_id.ack_set))
        if command.HasField("message_publish_time"):
            time_ms = command.message_publish_time
            return await cls.at_time(topic, time_ms, run_blocking, compacted)
        raise RefusedError(ServerError.MetadataError, "SEEK names neither a message nor a time")

    @classmethod
    async def at_time(
        cls,
        topic: Topic,
        time_ms: int,
        run_blocking: RunBlocking,
        compacted: CompactedLog | None = None,
    ) -> SeekTarget:
        """The first entry at or after `time_ms`, the end if there is none. Raises `RefusedError`.

        Searched off the loop: cold pages are read from disk, and a stretch of entries without
        stamps is scanned. ``compacted``: the first one that the topic's compacted form has.
        """
        from ...compaction.finder import CompactedFinder
        from ...finder import Finder

        finder = Finder(topic.ledger) if compacted is None else CompactedFinder(compacted)
        try:
            found = await run_blocking(finder.by_time, time_ms)
        except LedgerError as error:
            raise RefusedError(ServerError.MetadataError, str(error)) from error
        return cls(found.position)


async def reset_subscription(
    subscription: Subscription,
    target: SeekTarget,
    *,
    then: Callable[[], None],
    asked_by: Consumer | None = None,
) -> None:
    """Move the subscription's place durably; `then` runs right after its consumers are closed.

    They are closed in pieces, the one who asked last.

    Raises `RefusedError`, also for a subscription that was removed meanwhile.
    """
    subscription.check_is_there()
    if subscription.is_fenced:
        raise RefusedError(
            ServerError.MetadataError, "another seek of the subscription is under way"
        )
    consumers = subscription.fence()
    try:
        cursor = subscription.cursor
        cursor.reset(target.position)
        if target.ack_set and subscription.topic.config.acknowledgment_at_batch_index_level_enabled:
            cursor.ack_batch(target.position, target.ack_set)
        # Not given up halfway: the consumers are disconnected already.
        await Background().to_the_end(durable(cursor.persist()))
    finally:
        subscription.unfence()
        if asked_by in consumers:
            consumers.remove(asked_by)
            consumers.append(asked_by)
        await subscription.work.finished(telling(consumers))
    then()

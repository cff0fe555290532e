"""Seeks: they move a subscription's cursor. Positions, batch sizes and ack sets of commands.

A seek by id and one by time differ only in how they find the position. The order of the steps
matters to clients:

1. The subscription is fenced: its consumers are disconnected from it, nothing is sent, and
   acknowledgements of entries sent before no longer count.
2. The cursor is reset and made durable, so that a confirmed position survives a crash.
3. CLOSE_CONSUMER is sent to every consumer of the subscription (of Failover only to the active one
   and the one that asked), and directly after it SUCCESS to the client that asked: some clients
   hang if SUCCESS comes alone or much later. The consumers then subscribe again.

A seek by id sets the cursor to that entry, inclusive or not: the client itself drops the first
message if it does not want it. A seek by time goes to the first entry at or after the time, or to
the end if there is no such entry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ...ledger import LedgerError, Position
from ...ledger.would_block import when_read
from ...metadata import Buffer, MessageFormatError, read_message_metadata
from ...proto import pulsar_api_pb2 as pb
from ...records import record
from ...wire import to_signed
from ..cooperative import Background
from ..errors import RefusedError
from ..storage import durable

if TYPE_CHECKING:
    from ...compaction.compacted_log import CompactedLog
    from .consumer import Consumer
    from .subscription import HomeTopic, Subscription


RunBlocking = Callable[..., Awaitable[Any]]


@record(frozen=True)
class SeekTarget:
    """The position and ack set at which reading goes on after a seek."""

    position: Position
    #: Unacknowledged messages of the batch at `position`; () for all of them.
    ack_set: tuple[int, ...] = ()

    @classmethod
    async def from_command(
        cls, command: pb.CommandSeek, subscription: Subscription, run_blocking: RunBlocking
    ) -> SeekTarget:
        """The target of a SEEK. Raises `RefusedError`."""
        topic, compacted = subscription.topic, subscription.compacted
        if command.HasField("message_id"):
            wanted = position_of(command.message_id)
            position = await when_read(topic.clamp, wanted, compacted)
            return cls(position, tuple(command.message_id.ack_set))
        if command.HasField("message_publish_time"):
            time_ms = command.message_publish_time
            return await cls.at_time(topic, time_ms, run_blocking, compacted)
        text = "Message id and message publish time were not present"
        raise RefusedError(pb.ServerError.MetadataError, text)

    @classmethod
    async def at_time(
        cls,
        topic: HomeTopic,
        time_ms: int,
        run_blocking: RunBlocking,
        compacted: CompactedLog | None = None,
    ) -> SeekTarget:
        """The first entry at or after `time_ms`, else the end. Raises `RefusedError`.

        The search runs in the executor, not on the event loop: it may read from the disk, and it
        scans entries without stamps. ``compacted``: search in the topic's compacted form.
        """
        from ...finder.search import finder_of

        finder = finder_of(topic.ledger if compacted is None else compacted)
        try:
            found = await run_blocking(finder.by_time, time_ms)
        except LedgerError as error:
            raise RefusedError(pb.ServerError.MetadataError, str(error)) from error
        return cls(found.position)


async def reset_subscription(
    subscription: Subscription,
    target: SeekTarget,
    *,
    then: Callable[[], None],
    asked_by: Consumer | None = None,
) -> None:
    """Move the subscription's cursor durably; `then` runs directly after its consumers are closed.

    Raises `RefusedError`, also for a subscription that was removed meanwhile.
    """
    # Read what the cursor needs of a compacted form before anything is changed.
    await when_read(subscription.log.previous_position, target.position)
    subscription.check_exists()
    if subscription.is_fenced:
        text = "another seek of the subscription is in progress"
        raise RefusedError(pb.ServerError.MetadataError, text)
    if not subscription.durable:
        _keep_for_reader(subscription)
    from .consumer import CLOSED_AT_ONCE, closing

    consumers = subscription.fence(asked_by)
    try:
        cursor = subscription.cursor
        cursor.reset(target.position)
        if target.ack_set and subscription.topic.config.acknowledgment_at_batch_index_level_enabled:
            cursor.ack_batch(target.position, target.ack_set)
        # This must run to its end: the consumers are disconnected already.
        await Background().run_to_end(durable(cursor.persist()))
    finally:
        subscription.unfence()
        if asked_by in consumers and len(consumers) > CLOSED_AT_ONCE:
            # Its CLOSE_CONSUMER must not be long before its SUCCESS.
            consumers.remove(asked_by)
            consumers.append(asked_by)
        await subscription.work.finished(closing(consumers))
    then()


def _keep_for_reader(subscription: Subscription) -> None:
    """Keep a reader's subscription for a while, until its client comes back after the seek."""

    def end() -> None:
        subscription.kept = None
        subscription.end_if_unused()

    if subscription.kept is not None:
        subscription.kept.cancel()
    timeout_s = subscription.topic.config.non_durable_return_timeout_ms / 1000
    subscription.kept = asyncio.get_running_loop().call_later(timeout_s, end)


#: How many bytes are searched for the batch size; headers are usually a few hundred bytes.
HEADER_PEEK_BYTES = 1024
#: The least bytes of a message in a batch: its size, and a header with the payload's size.
MIN_MEMBER_BYTES = 6
#: How many times smaller than before a payload can be after compression.
MAX_RATIOS = {pb.LZ4: 255, pb.ZLIB: 1_032, pb.SNAPPY: 22, pb.ZSTD: 32_768}
#: The most messages that a batch counts for that is too small without its compression. The largest
#: payload would have 40 bytes for each; clients make batches of 1,000 unless they are told to.
MAX_COMPRESSED_MESSAGES = 1 << 17
WORD_MASK = (1 << 64) - 1


def position_of(message_id: pb.MessageIdData) -> Position:
    """The position in a message id, without its batch index."""
    return Position(to_signed(message_id.ledgerId), to_signed(message_id.entryId))


def shown_mark_delete(topic: HomeTopic, mark_delete: Position) -> Position:
    """The last acknowledged position, as clients see it.

    If it is before the topic's first entry, it is shown in that entry's ledger, as in Pulsar.
    """
    first = topic.ledger.first_position
    ledger_id = (topic.ledger.end_position if first is None else first).ledger_id
    return mark_delete if mark_delete.ledger_id >= ledger_id else Position(ledger_id, -1)


def count_open(ack_set: Iterable[int]) -> int:
    """Messages of a batch that are not acknowledged: the bits set in its words (PIP-54)."""
    return sum((word & WORD_MASK).bit_count() for word in ack_set)


def batch_size_of(headers_and_payload: Buffer) -> int | None:
    """The number of messages in an entry's batch; None: it is not a batch."""
    try:
        metadata = read_message_metadata(headers_and_payload)
    except MessageFormatError:
        # The body has no Pulsar header. It was stored as it is, and is not a batch.
        return None
    return metadata.num_messages_in_batch if metadata.HasField("num_messages_in_batch") else None


def messages_in(headers_and_payload: Buffer, said: int) -> int:
    """The number of messages in an entry whose SEND said `said` (more than one).

    The number in the batch's own header counts, but at most `said`, and at most as many as the
    bytes can hold. A header that has the encoded field with `said` is not parsed.
    """
    found = said
    if _batch_size_field(said) not in bytes(headers_and_payload[:HEADER_PEEK_BYTES]):
        found = min(said, max(1, batch_size_of(headers_and_payload) or 1))
    if found * MIN_MEMBER_BYTES <= len(headers_and_payload):
        return found
    return min(found, _most_messages(headers_and_payload))


def _most_messages(headers_and_payload: Buffer) -> int:
    """The most messages that fit into an entry's payload, before it was compressed."""
    try:
        metadata = read_message_metadata(headers_and_payload)
    except MessageFormatError:
        return 1
    size_bytes = len(headers_and_payload)
    ratio = MAX_RATIOS.get(metadata.compression, 1)
    if ratio > 1:
        most = max(size_bytes, MAX_COMPRESSED_MESSAGES * MIN_MEMBER_BYTES)
        size_bytes = min(size_bytes * ratio, metadata.uncompressed_size, most)
    return max(1, size_bytes // MIN_MEMBER_BYTES)


@lru_cache(maxsize=1024)
def _batch_size_field(size: int) -> bytes:
    """The encoded field MessageMetadata.num_messages_in_batch: its tag, and a varint."""
    return pb.MessageMetadata(num_messages_in_batch=size).SerializePartialToString()

"""Mirrors among the producers: what they say at PRODUCER, and their SENDs (see topics/mirrors)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...ledger import FencedError, LedgerError
from ...metadata.source_stamp import (
    CLUSTER_SIZE_MAX_BYTES,
    MIRROR_PRODUCER_PREFIX,
    MIRROR_PROPERTY,
    SourceStamp,
    sequence_id_of,
)
from ...proto.pulsar_api_pb2 import CommandProducer, CommandSend, ServerError
from ...wire import commands
from ..errors import RefusedError
from ..topics.mirrors import DuplicateError, Mirror, allows, not_allowed
from ..topics.producer import Producer

if TYPE_CHECKING:
    from ...ledger import Appended
    from ..services import Session
    from ..topics.topic import Topic

__all__ = ["append_mirrored", "mirror_name", "start_mirror"]


def mirror_name(command: CommandProducer) -> str:
    """The name of a mirror's producer; "" for any other producer.

    A mirror that names itself is an ordinary producer, as at a broker that knows no mirrors.

    Raises `RefusedError`: the cluster's name is empty or too long.
    """
    for pair in command.metadata:
        if pair.key == MIRROR_PROPERTY and not command.producer_name:
            if not 0 < len(pair.value.encode()) <= CLUSTER_SIZE_MAX_BYTES:
                reason = f"a mirror's cluster must have 1 to {CLUSTER_SIZE_MAX_BYTES} bytes"
                raise RefusedError(ServerError.NotAllowedError, reason)
            return MIRROR_PRODUCER_PREFIX + pair.value
    return ""


async def start_mirror(session: Session, topic: Topic, producer: Producer) -> int:
    """Let an added producer mirror; the position of the topic's last entry from its source, packed.

    It is answered as the last sequence id. The source's index that comes next is answered as topic
    epoch, if it is known; a shared producer has no other use for that.

    Raises `RefusedError`: the topic's policy does not allow it, or the log cannot be read.
    """
    cluster = producer.name.removeprefix(MIRROR_PRODUCER_PREFIX)
    policies = session.services.topics.mirror_policies
    if not allows(policies.sources_of(topic.topic_name), cluster):
        raise RefusedError(ServerError.NotAllowedError, not_allowed(cluster))

    def find() -> SourceStamp | None:
        # Imported here, in a thread: the checks of record sets are needed on the loop later.
        from ...kafka import records  # noqa: F401

        # What an earlier connection of this mirror sent may not be durable yet.
        topic.ledger.store.committer.flush()
        return session.services.mirror_places.last(topic.ledger, cluster)

    try:
        last: SourceStamp | None = await session.services.run_blocking(find)
    except (LedgerError, OSError) as error:
        raise RefusedError(ServerError.PersistenceError, str(error)) from error
    producer.mirror = Mirror(cluster, None if last is None else last.position)
    producer.topic_epoch = None if last is None or last.index is None else last.index + 1
    return -1 if last is None else sequence_id_of(last.position)


def append_mirrored(
    session: Session,
    topic: Topic,
    producer: Producer,
    command: CommandSend,
    sent: memoryview,
) -> Appended | None:
    """Append what a mirror sent; None for a duplicate, which is answered.

    Raises what an append raises, and `RefusedError`. All later entries are refused then.
    """
    mirror = producer.mirror
    assert mirror is not None
    try:
        if command.num_messages < 0:
            raise RefusedError(ServerError.NotAllowedError, "num_messages must not be negative")
        sources = session.services.topics.mirror_policies.sources_of(topic.topic_name)
        body, base, position = mirror.admit(sent, sources, command.num_messages)
        appended = topic.ledger.append(
            body,
            message_count=command.num_messages,
            base=base,
            sender=producer.sender,
            follows=mirror.follows,
        )
    except DuplicateError:
        session.receipts.answer_in_turn(
            producer, commands.send_receipt(command.producer_id, command.sequence_id, -1, -1)
        )
        return None
    except FencedError as error:
        # The entry before it failed, or is not stored yet while a new ledger begins.
        mirror.refuse_the_rest(str(error))
        raise RefusedError(ServerError.ServiceNotReady, str(error)) from error
    except Exception as error:
        mirror.refuse_the_rest(str(error))
        raise
    mirror.appended(position, appended)
    return appended

"""The commands of producers and consumers of non-persistent topics, where they differ."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ...ledger import AlreadyStampedError
from ...metadata import ChecksumError, MessageFormatError
from ...proto.pulsar_api_pb2 import BaseCommand, CommandSend, CommandSubscribe, ServerError
from ...wire import commands
from ..cooperative import at_once
from ..topics.non_persistent import NOWHERE
from .authorizing import check_again

if TYPE_CHECKING:
    from ...metadata import Buffer
    from ..services import Session
    from ..subscriptions.consumer import Consumer
    from ..subscriptions.non_persistent import NonPersistentSubscription
    from ..topics.non_persistent import NonPersistentTopic
    from ..topics.producer import Producer

__all__ = ["add_listener", "publish", "unsubscribe_listener"]

log = logging.getLogger(__name__)


def publish(
    session: Session,
    sender: Producer,
    topic: NonPersistentTopic,
    command: CommandSend,
    body: Buffer,
) -> None:
    """Send a message to the connected consumers; the receipt follows at once.

    The message is handled before the next one is read. So a connection never has more messages in
    work than `maxConcurrentNonPersistentMessagePerConnection` allows, whatever its value.
    """
    try:
        entry = topic.take(body, command.num_messages)
    except (AlreadyStampedError, ChecksumError, MessageFormatError) as error:
        if session.refused_sends.add():
            log.warning(
                "%s: SEND of %r was refused: %s (refusal %d on this connection)",
                session.address,
                sender.name,
                error,
                session.refused_sends.count,
            )
        is_stamped = isinstance(error, AlreadyStampedError)
        code = ServerError.NotAllowedError if is_stamped else ServerError.ChecksumError
        session.write(
            commands.send_error(command.producer_id, command.sequence_id, code, str(error))
        )
        return
    sender.messages_in += max(1, command.num_messages)
    sender.bytes_in += len(body)
    highest = command.highest_sequence_id if command.HasField("highest_sequence_id") else -1
    session.write(
        commands.send_receipt(command.producer_id, command.sequence_id, *NOWHERE, highest)
    )
    topic.deliver(entry)


async def add_listener(
    session: Session,
    command: CommandSubscribe,
    opened: Consumer,
    topic: NonPersistentTopic,
    generation: int,
) -> None:
    """Connect a consumer. Raises `RefusedError`."""
    subscription = topic.listener_for(command)
    try:
        await subscription.add_consumer(opened, command.subType)
        check_again(session, BaseCommand.SUBSCRIBE, command, generation)
    except BaseException:
        opened.leave()
        subscription.end_if_unused()
        raise


def unsubscribe_listener(
    session: Session, found: Consumer, subscription: NonPersistentSubscription, request_id: int
) -> None:
    """Remove a subscription; its other consumers are closed."""
    del session.consumers[found.consumer_id]
    found.leave()
    subscription.topic.subscriptions.pop(subscription.name, None)
    at_once(subscription.disconnecting())
    session.write(commands.success(request_id))

"""ACK and REDELIVER_UNACKNOWLEDGED_MESSAGES: acknowledgements and redeliveries.

An acknowledgement is made in memory, at once. Long ones are made in pieces, as is one for which
something must be read first; then the client is not read until it is done.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from ...ledger.errors import WouldBlockError
from ...proto import pulsar_api_pb2 as pb
from ...wire import commands
from ..cooperative import PIECE_IDS
from ..errors import RefusedError, java_refusal
from ..subscriptions.consumer import Consumer
from ..subscriptions.seek import position_of
from ..subscriptions.subscription import redeliver_pieces, tell_if_ended, telling
from .checks import CommandTable

if TYPE_CHECKING:
    from ..connection.session import Session
    from ..subscriptions.subscription import Subscription

log = logging.getLogger(__name__)


def ack(session: Session, command: pb.CommandAck) -> None:
    """Acknowledge. If the client asked for a receipt, it follows when the cursor is durable."""
    found = session.consumers.get(command.consumer_id)
    if found is None or found.subscription is None:
        return
    subscription = found.subscription
    answer = None
    if command.HasField("request_id"):
        answer = partial(_ack_persisted, session, found.consumer_id, command.request_id)
    # As in Pulsar, half of an id names no transaction.
    if command.HasField("txnid_most_bits") and command.HasField("txnid_least_bits"):
        request_id = command.request_id if answer is not None else commands.NO_REQUEST_ID
        work = _ack_in_transaction(session, subscription, command, answer)
        session.run(request_id, work)
        return
    if command.HasField("validation_error"):
        if session.unreadable_messages.add():
            log.warning(
                "%s: the client could not read a message of %s and acknowledged it: %s (message "
                "%d of this kind on this connection)",
                session.address,
                subscription,
                pb.CommandAck.ValidationError.Name(command.validation_error),
                session.unreadable_messages.count,
            )
        subscription.return_permits(found, command.message_id)
    then = partial(subscription.when_persisted, answer) if answer is not None else _nothing
    if command.ack_type != pb.CommandAck.Cumulative:
        _ack_each(session, subscription, found, command, then)
    elif len(command.message_id) == 1:
        _ack_now(session, subscription, partial(_ack_up_to, found, command), then)
    else:
        then()


def _ack_each(
    session: Session,
    subscription: Subscription,
    found: Consumer,
    command: pb.CommandAck,
    then: Callable[[], None],
) -> None:
    ids = command.message_id
    if len(ids) <= PIECE_IDS and not subscription.work:
        _ack_now(session, subscription, partial(subscription.ack_piece, found, ids), then)
    else:
        pieces = chain(subscription.ack_pieces(found, ids), telling(subscription))
        _do_in_pieces(session, subscription, pieces, then)


def _ack_up_to(found: Consumer, command: pb.CommandAck) -> None:
    if found.subscription is not None:
        found.subscription.ack_cumulatively(found, command.message_id[0])


def _ack_now(
    session: Session,
    subscription: Subscription,
    ack_all: Callable[[], None],
    then: Callable[[], None],
) -> None:
    """Acknowledge at once, or when what is needed of a compacted form has been read."""
    try:
        ack_all()
    except WouldBlockError:
        pieces = chain(subscription.acking(ack_all), telling(subscription))
        _do_in_pieces(session, subscription, pieces, then)
    else:
        tell_if_ended(subscription)
        then()


async def _ack_in_transaction(
    session: Session,
    subscription: Subscription,
    command: pb.CommandAck,
    answer: Callable[[BaseException | None], None] | None,
) -> None:
    """Acknowledge for a transaction. The receipt follows when it is durable."""
    coordination, ids = session.services.transactions, command.message_id
    most, least = command.txnid_most_bits, command.txnid_least_bits
    refusal = None
    try:
        if coordination is None or not subscription.topic.is_persistent:
            text = "Server don't support transaction ack!"
            raise java_refusal(pb.ServerError.NotAllowedError, "NotAllowedException", text)
        if command.ack_type != pb.CommandAck.Cumulative:
            await coordination.ack(most, least, subscription, ids)
        elif len(ids) == 1:
            await coordination.ack_up_to(most, least, subscription, ids[0])
    except RefusedError as error:
        refusal = error
    if answer is not None:
        answer(refusal)


def _nothing() -> None:
    """Does nothing: the callback of an acknowledgement without a receipt."""


def _do_in_pieces(
    session: Session,
    subscription: Subscription,
    pieces: Iterator[object],
    then: Callable[[], None] = _nothing,
) -> None:
    """Run long work in pieces; nothing more is read from its client until it is done."""

    def done() -> None:
        session.long_work_ended()
        then()

    session.long_work_begins()
    subscription.work.add(pieces, done)


def _ack_persisted(
    session: Session, consumer_id: int, request_id: int, error: BaseException | None
) -> None:
    if error is None:
        session.write(commands.ack_response(consumer_id, request_id))
        return
    code = error.code if isinstance(error, RefusedError) else pb.ServerError.PersistenceError
    session.write(commands.ack_response(consumer_id, request_id, code, str(error)))


def redeliver(session: Session, command: pb.CommandRedeliverUnacknowledgedMessages) -> None:
    """Deliver again the named messages, or all that are not acknowledged."""
    found = session.consumers.get(command.consumer_id)
    if found is None or found.subscription is None:
        return
    subscription = found.subscription
    if found.has_epoch and command.HasField("consumer_epoch"):
        found.epoch = max(found.epoch, command.consumer_epoch)
    count = len(command.message_ids) or len(found.pending)
    named = map(position_of, command.message_ids)
    if count > PIECE_IDS or subscription.work:
        # A message that is delivered again while the pieces run is not redelivered once more.
        positions = named if command.message_ids else list(found.pending)
        pieces = redeliver_pieces(subscription, found, positions)
        _do_in_pieces(session, subscription, pieces)
    else:
        subscription.redeliver(found, list(named) if command.message_ids else None)


COMMANDS: CommandTable = {
    pb.BaseCommand.ACK: ack,
    pb.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES: redeliver,
}

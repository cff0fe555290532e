"""The commands of transactions: to begin one, to say what it is about, and to end it (PIP-31).

Without `transactionCoordinatorEnabled` they are answered as by a Pulsar broker that has
transactions switched off; clients go on without them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ...proto import pulsar_api_pb2 as pb
from ...proto.pulsar_api_pb2 import BaseCommand, ServerError
from ...wire import commands
from ..errors import RefusedError
from ..security import needs
from ..security.authorization import Target
from .checks import CommandTable, check_name

if TYPE_CHECKING:
    from ...wire import TopicName
    from ..connection.session import Session
    from ..topics.transactions import Coordination, Transaction, Transactions

PRODUCE, CONSUME, SUPER_USER = needs.topic("PRODUCE"), needs.topic("CONSUME"), needs.SUPER_USER
Work = Callable[["Session", "Transactions", Any], Awaitable[int | None]]
"""Handles a command, and returns the number of a new transaction."""


def coordination_of(session: Session) -> Coordination:
    """The broker's transaction coordinators. Raises `RefusedError`: transactions are off."""
    coordination = session.services.transactions
    if coordination is None:
        raise RefusedError(ServerError.NotAllowedError, "Transactions are not enabled.")
    return coordination


def connect(session: Session, command: pb.CommandTcClientConnectRequest) -> None:
    """The client wants to use a coordinator."""
    coordination = coordination_of(session)
    body = pb.CommandTcClientConnectResponse(request_id=command.request_id)
    try:
        coordination.coordinator.check_id(command.tc_id)
    except RefusedError as refusal:
        body.error, body.message = refusal.code, refusal.message
    session.write(commands.frame(body))


def _handled(answer: type[Any], work: Work, session: Session, command: Any) -> None:
    session.run(
        command.request_id, _answered(answer, work, session, command, coordination_of(session))
    )


async def _answered(
    answer: type[Any], work: Work, session: Session, command: Any, coordination: Coordination
) -> None:
    body = answer(request_id=command.request_id)
    if isinstance(command, pb.CommandNewTxn):
        body.txnid_most_bits = command.tc_id
    else:
        body.txnid_most_bits = command.txnid_most_bits
        body.txnid_least_bits = command.txnid_least_bits
    try:
        number = await work(session, coordination.coordinator, command)
        if number is not None:
            body.txnid_least_bits = number
    except RefusedError as refusal:
        body.error, body.message = refusal.code, refusal.message
    session.write(commands.frame(body))


async def begin(session: Session, coordinator: Transactions, command: pb.CommandNewTxn) -> int:
    """Begin a transaction."""
    coordinator.check_id(command.tc_id)
    timeout_ms = command.txn_ttl_millis
    timeout_ms -= timeout_ms >> 63 << 64  # Java's clients send -1, for example
    begun = await coordinator.begin(timeout_ms, session.principal.role)
    return begun.number


async def add_topics(
    session: Session, coordinator: Transactions, command: pb.CommandAddPartitionToTxn
) -> None:
    """The transaction will send to these topics."""
    transaction = _own(session, coordinator, command)
    names = [(session.services.topics.parse(each), each) for each in command.partitions]
    for name, _ in names:
        _check_may(session, PRODUCE, Target.of_topic(name))
    await coordinator.add_topics(transaction, names)
    await coordination_of(session).announce(0, transaction.number, [name for name, _ in names])


async def add_subscriptions(
    session: Session, coordinator: Transactions, command: pb.CommandAddSubscriptionToTxn
) -> None:
    """The transaction will acknowledge messages of these subscriptions."""
    transaction = _own(session, coordinator, command)
    places: list[tuple[TopicName, str, str]] = []
    for each in command.subscription:
        check_name("subscription's name", each.subscription)
        places.append((session.services.topics.parse(each.topic), each.subscription, each.topic))
    for name, subscription, _ in places:
        _check_may(session, CONSUME, Target.of_topic(name, subscription))
    named = [((str(name), one), given) for name, one, given in places]
    await coordinator.add_subscriptions(transaction, named)


async def end(session: Session, coordinator: Transactions, command: pb.CommandEndTxn) -> None:
    """Commit or abort the transaction; answered when it has ended everywhere."""
    transaction = _own(session, coordinator, command, is_open=False)
    await coordinator.end(transaction, committed=command.txn_action == pb.COMMIT)


def _own(
    session: Session, coordinator: Transactions, command: Any, *, is_open: bool = True
) -> Transaction:
    """The transaction that a command is about. Raises `RefusedError`."""
    find = coordinator.open_one if is_open else coordinator.get
    transaction = find(command.txnid_most_bits, command.txnid_least_bits)
    authorizer = session.services.authorizer
    if authorizer.is_on and session.principal.role != transaction.owner:
        _check_may(session, SUPER_USER, Target())
    return transaction


def _check_may(session: Session, need: needs.Need, target: Target) -> None:
    authorizer = session.services.authorizer
    if authorizer.is_on and not authorizer.allows(session.principal, need, target):
        text = "Client is not authorized to use transactions"
        raise RefusedError(ServerError.AuthorizationError, text)


def refuse_end(session: Session, command: Any) -> None:
    """Close the connection, which has sent a command that brokers send to each other."""
    session.close_because("a transaction's end, which only brokers send to each other")


_T = BaseCommand
COMMANDS: CommandTable = {
    _T.TC_CLIENT_CONNECT_REQUEST: connect,
    _T.NEW_TXN: partial(_handled, pb.CommandNewTxnResponse, begin),
    _T.ADD_PARTITION_TO_TXN: partial(_handled, pb.CommandAddPartitionToTxnResponse, add_topics),
    _T.ADD_SUBSCRIPTION_TO_TXN: partial(
        _handled, pb.CommandAddSubscriptionToTxnResponse, add_subscriptions
    ),
    _T.END_TXN: partial(_handled, pb.CommandEndTxnResponse, end),
    _T.END_TXN_ON_PARTITION: refuse_end,
    _T.END_TXN_ON_SUBSCRIPTION: refuse_end,
}

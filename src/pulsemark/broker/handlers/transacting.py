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
TransactionId = tuple[int, int]
"""Its most and least significant bits."""
Work = Callable[["Session", "Transactions", Any], Awaitable[TransactionId]]


def coordination_of(session: Session) -> Coordination:
    """The broker's transaction coordinators. Raises `RefusedError`: transactions are off."""
    coordination = session.services.transactions
    if coordination is None:
        raise RefusedError(ServerError.NotAllowedError, "Transactions are not enabled.")
    return coordination


def connect(session: Session, command: pb.CommandTcClientConnectRequest) -> None:
    """The client wants to use a coordinator."""
    refusal, coordination = None, coordination_of(session)
    try:
        coordination.coordinator.check_id(command.tc_id)
    except RefusedError as error:
        refusal = error
    session.write(_response(pb.CommandTcClientConnectResponse, command.request_id, None, refusal))


def _handled(answer: type[Any], work: Work, session: Session, command: Any) -> None:
    coordination = coordination_of(session)

    async def working() -> TransactionId:
        return await work(session, coordination.coordinator, command)

    session.run(command.request_id, _answered(answer, working(), session, command))


async def _answered(
    answer: type[Any], work: Awaitable[TransactionId], session: Session, command: Any
) -> None:
    refusal: RefusedError | None = None
    transaction_id: tuple[int, int | None]
    try:
        transaction_id = await work
    except RefusedError as error:
        refusal = error
        if isinstance(command, pb.CommandNewTxn):
            transaction_id = command.tc_id, None  # it has no number
        else:
            transaction_id = command.txnid_most_bits, command.txnid_least_bits
    session.write(_response(answer, command.request_id, transaction_id, refusal))


def _response(
    answer: type[Any],
    request_id: int,
    transaction_id: tuple[int, int | None] | None,
    refusal: RefusedError | None,
) -> bytes:
    body = answer(request_id=request_id)
    if refusal is not None:
        body.error, body.message = refusal.code, refusal.message
    if transaction_id is not None:
        body.txnid_most_bits = transaction_id[0]
        if transaction_id[1] is not None:
            body.txnid_least_bits = transaction_id[1]
    return commands.frame(body)


async def begin(
    session: Session, coordinator: Transactions, command: pb.CommandNewTxn
) -> TransactionId:
    """Begin a transaction."""
    coordinator.check_id(command.tc_id)
    timeout_ms = command.txn_ttl_millis
    timeout_ms -= timeout_ms >> 63 << 64  # Java's clients send -1, for example
    begun = await coordinator.begin(timeout_ms, session.principal.role)
    return 0, begun.number


async def add_topics(
    session: Session, coordinator: Transactions, command: pb.CommandAddPartitionToTxn
) -> TransactionId:
    """The transaction will send to these topics."""
    transaction = _own(session, coordinator, command)
    names = [(session.services.topics.parse(each), each) for each in command.partitions]
    for name, _ in names:
        _check_may(session, PRODUCE, Target.of_topic(name))
    await coordinator.add_topics(transaction, names)
    await coordination_of(session).announce(0, transaction.number, [name for name, _ in names])
    return 0, transaction.number


async def add_subscriptions(
    session: Session, coordinator: Transactions, command: pb.CommandAddSubscriptionToTxn
) -> TransactionId:
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
    return 0, transaction.number


async def end(
    session: Session, coordinator: Transactions, command: pb.CommandEndTxn
) -> TransactionId:
    """Commit or abort the transaction; answered when it has ended everywhere."""
    transaction = _own(session, coordinator, command, is_open=False)
    await coordinator.end(transaction, committed=command.txn_action == pb.COMMIT)
    return 0, transaction.number


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

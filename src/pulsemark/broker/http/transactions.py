"""Transactions of Pulsar's clients over REST, as `pulsar-admin transactions` asks for them.

Statuses and bodies are those of Apache Pulsar 4.0.8, but for 404 for an absent subscription.
"""

from __future__ import annotations

from typing import Any

from ...ledger import Position
from ...wire import TopicName
from ..errors import RefusedError
from ..ownership import INNER_PATH, SIGNATURE_HEADER
from ..security import needs
from ..security.authorization import Target
from ..subscriptions.subscription import Subscription
from ..topics.topic import Topic
from ..topics.transactions import COORDINATOR, Transaction, Transactions, id_text
from .messages import HttpError, Json, Request
from .paths import find_subscription, long_value, open_topic
from .route import Routes, TopicPath

routes = Routes()
ROOT = "/admin/v3/transactions"
OF_TOPIC = "{tenant}/{namespace}/{topic}"
OF_SUBSCRIPTION = f"{OF_TOPIC}/{{subscription}}"
ID = "{most}/{least}"
LOOKUP = needs.topic("LOOKUP")
OF_PARTITIONED = "Transactions of a partitioned topic are not shown: ask for one of its partitions"


@routes.post(f"{INNER_PATH}{OF_TOPIC}", needs.PEER)
async def of_another_broker(request: Request, path: TopicPath) -> Json:
    """Answer another broker that shares the topics: it signs what it asks."""
    signature = request.headers.get(SIGNATURE_HEADER, "")
    try:
        answer = await request.services.inner.answered(str(path), request.body, signature)
    except PermissionError as error:
        raise HttpError(401, "this is for the brokers that share the topics") from error
    return answer


def _coordinator(request: Request) -> Transactions:
    """The coordinator. Raises `NotOwnedError`, and `HttpError` 503 if transactions are off."""
    _check_is_on(request)
    services = request.services
    if services.cluster is not None:
        services.cluster.check_owned(COORDINATOR)
    assert services.transactions is not None
    try:
        return services.transactions.coordinator
    except RefusedError as refusal:
        raise HttpError(503, refusal.message) from refusal


def _check_is_on(request: Request) -> None:
    if request.services.transactions is None:
        text = "This Broker is not configured with transactionCoordinatorEnabled=true."
        raise HttpError(503, text)


def _found(request: Request, most: str, least: str) -> Transaction:
    coordinator = _coordinator(request)
    try:
        return coordinator.get(long_value(most), long_value(least))
    except RefusedError as refusal:
        raise HttpError(404, refusal.message) from refusal


@routes.get(f"{ROOT}/coordinators", needs.SUPER_USER)
async def coordinators(request: Request) -> Json:
    """List the transaction coordinators."""
    _coordinator(request)
    services = request.services
    url = services.service_url or services.service_url_tls
    return [{"id": 0, "brokerServiceUrl": url}]


@routes.get(f"{ROOT}/coordinatorStats", needs.SUPER_USER)
async def coordinator_stats(request: Request) -> Json:
    """Show how many transactions the coordinators have."""
    coordinator = _coordinator(request)
    stats = {
        "state": "Ready",
        "leastSigBits": coordinator.next_number - 1,
        "lowWaterMark": min(coordinator.by_number, default=coordinator.next_number) - 1,
        "ongoingTxnSize": len(coordinator.by_number),
        "recoverStartTime": coordinator.loading_began_ms,
        "recoverEndTime": coordinator.loaded_ms,
    }
    _check_coordinator(request)
    return stats if "coordinatorId" in request.query else {"0": stats}


def _check_coordinator(request: Request) -> None:
    """Raise `HttpError` 404 if a request asks for a coordinator that there is not."""
    asked = request.query.get("coordinatorId", "0")
    if long_value(asked):
        raise HttpError(404, f"Transaction coordinator not found! coordinator id : {asked}")


@routes.get(f"{ROOT}/transactionMetadata/{ID}", needs.AUTHENTICATED)
async def transaction_metadata(request: Request, most: str, least: str) -> Json:
    """Show a transaction to any role, as Pulsar does; of its topics those that the role may see."""
    return _metadata(request, _found(request, most, least))


@routes.get(f"{ROOT}/slowTransactions/{{shortest_ms}}", needs.SUPER_USER)
async def slow_transactions(request: Request, shortest_ms: str) -> Json:
    """List the open transactions that may last longer than so many milliseconds."""
    coordinator, least_ms = _coordinator(request), long_value(shortest_ms)
    _check_coordinator(request)
    found = [each for each in coordinator.by_number.values() if each.timeout_ms >= least_ms]
    return {str(each): _metadata(request, each) for each in found}


@routes.post(f"{ROOT}/abortTransaction/{ID}", needs.SUPER_USER)
async def abort_transaction(request: Request, most: str, least: str) -> None:
    """Abort a transaction."""
    transaction, coordinator = _found(request, most, least), _coordinator(request)
    try:
        await coordinator.end(transaction, committed=False)
    except RefusedError as refusal:
        raise HttpError(409, refusal.message) from refusal


@routes.get(f"{ROOT}/transactionInBufferStats/{OF_TOPIC}/{ID}", needs.topic("GET_STATS"))
async def in_buffer_stats(request: Request, path: TopicPath, most: str, least: str) -> Json:
    """Show where a transaction begins in a topic, and whether it was aborted there."""
    topic = await _topic(request, path)
    return _in_topic(topic, id_text(long_value(most), long_value(least)))


@routes.get(f"{ROOT}/transactionBufferStats/{OF_TOPIC}", needs.topic("GET_STATS"))
async def buffer_stats(request: Request, path: TopicPath) -> Json:
    """Show a topic's transactions."""
    topic = await _topic(request, path)
    ledger = topic.ledger
    known = ledger.transactions
    last = ledger.previous_position(ledger.stable_end)
    stats: dict[str, Any] = {
        "state": "Ready",
        "maxReadPosition": str(last),
        "ongoingTxnSize": 0 if known is None else len(known.open),
        "recoverStartTime": topic.opened_ms,
        "recoverEndTime": topic.opened_ms,
        "totalAbortedTransactions": 0 if known is None else len(known.aborted),
    }
    if request.query.get("lowWaterMarks") == "true":
        stats["lowWaterMarks"] = {}
    return stats


@routes.get(f"{ROOT}/transactionInPendingAckStats/{OF_SUBSCRIPTION}/{ID}", needs.topic("GET_STATS"))
async def in_pending_ack_stats(
    request: Request, path: TopicPath, name: str, most: str, least: str
) -> Json:
    """Show up to where a transaction has acknowledged a subscription."""
    one = await _subscription(request, path, name)
    return _in_subscription(one, id_text(long_value(most), long_value(least)))


@routes.get(f"{ROOT}/pendingAckStats/{OF_SUBSCRIPTION}", needs.topic("GET_STATS"))
async def pending_ack_stats(request: Request, path: TopicPath, name: str) -> Json:
    """Show how many transactions have acknowledged messages of a subscription."""
    pending = (await _subscription(request, path, name)).pending_acks
    stats: dict[str, Any] = {
        "state": "None" if pending is None else "Ready",
        "ongoingTxnSize": 0 if pending is None else len(pending.transactions),
    }
    if request.query.get("lowWaterMarks") == "true":
        stats["lowWaterMarks"] = {}
    return stats


@routes.get(
    f"{ROOT}/positionStatsInPendingAck/{OF_SUBSCRIPTION}/{{ledger}}/{{entry}}",
    needs.topic("GET_STATS"),
)
async def position_stats(
    request: Request, path: TopicPath, name: str, ledger: str, entry: str
) -> Json:
    """Show whether an entry is acknowledged, for good or by an open transaction."""
    one = await _subscription(request, path, name)
    position = Position(long_value(ledger), long_value(entry))
    state = "NotInPendingAck"
    if one.cursor.is_acked(position):
        state = "MarkDelete" if position <= one.cursor.mark_delete else "IndividuallyDeleted"
    elif position >= one.log.end_position:
        state = "InvalidPosition"
    elif one.pending_acks is not None and one.pending_acks.bits_in(position):
        state = "PendingAck"
    return {"state": state}


async def _topic(request: Request, path: TopicPath) -> Topic:
    _check_is_on(request)
    return await open_topic(request, path, what=OF_PARTITIONED)


async def _subscription(request: Request, path: TopicPath, name: str) -> Subscription:
    _check_is_on(request)
    return await find_subscription(request, path, name, what=OF_PARTITIONED)


def _metadata(request: Request, transaction: Transaction) -> dict[str, Any]:
    opened = request.topics.open_topics
    text = str(transaction)
    authorizer = request.services.authorizer

    def may_see(name: str) -> bool:
        target = Target.of_topic(TopicName.parse(name))
        return not authorizer.is_on or authorizer.allows(request.principal, LOOKUP, target)

    acked: dict[str, dict[str, Any]] = {}
    for (name, subscription), given in transaction.subscriptions.items():
        if not may_see(name):
            continue
        one = opened[name].subscriptions.get(subscription) if name in opened else None
        shown = {} if one is None else _in_subscription(one, text)
        acked.setdefault(given, {})[subscription] = shown
    return {
        "txnId": text,
        "status": transaction.status,
        "openTimestamp": transaction.opened_ms,
        "timeoutAt": transaction.timeout_ms,
        "producedPartitions": {
            given: _in_topic(opened[name], text) if name in opened else {"aborted": False}
            for name, given in transaction.topics.items()
            if may_see(name)
        },
        "ackedPartitions": acked,
    }


def _in_topic(topic: Topic, transaction_id: str) -> dict[str, Any]:
    known = topic.ledger.transactions
    if known is None:
        return {"aborted": False}
    stretches = known.open.get(transaction_id)
    if not stretches:
        return {"aborted": any(each.transaction == transaction_id for each in known.aborted)}
    return {"startPosition": str(stretches[0].start), "aborted": False}


def _in_subscription(subscription: Subscription, transaction_id: str) -> dict[str, Any]:
    pending = subscription.pending_acks
    if pending is None or pending.cumulative is None or pending.cumulative[0] != transaction_id:
        return {}
    return {"cumulativeAckPosition": str(pending.cumulative[1])}

"""The commands of consumers: SUBSCRIBE, FLOW, SEEK, closing and others (see `acknowledging`)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ...ledger import Commit, Position
from ...ledger.would_block import when_read
from ...proto import pulsar_api_pb2 as pb
from ...wire import MessageId, commands
from ...wire.message_id import to_unsigned
from ..errors import RefusedError
from ..metrics.stats import iso_time
from ..storage import durable, persisting
from ..subscriptions.consumer import Consumer
from ..subscriptions.non_persistent import NonPersistentSubscription
from ..subscriptions.seek import SeekTarget, reset_subscription, shown_mark_delete
from ..subscriptions.subscription import (
    FILTER_PROPERTY,
    InvalidFilterError,
    TagFilter,
    mark_replicated,
    tell_if_ended,
)
from ..topics.non_persistent import NonPersistentTopic
from ..topics.registry import creates
from . import checks
from .authorizing import check_again
from .producing import add_listener, unsubscribe_listener

if TYPE_CHECKING:
    from ...compaction.compacted_log import CompactedLog
    from ..connection.session import Session
    from ..subscriptions.subscription import Subscription
    from ..topics.topic import Topic

# -- SUBSCRIBE ----------------------------------------------------------------------------------


def subscribe(session: Session, command: pb.CommandSubscribe) -> None:
    """Open a consumer."""
    consumer_id = command.consumer_id
    known = session.consumers.get(consumer_id)
    if known is not None:
        # The same id means the same consumer; the command's other fields are ignored.
        session.write(commands.success(command.request_id))
        return
    if ("consumer", consumer_id) in session.opening:
        text = "Consumer is already present on the connection"
        raise RefusedError(pb.ServerError.ServiceNotReady, text)
    if len(session.consumers) >= session.config.max_consumers_per_connection:
        raise RefusedError(pb.ServerError.NotAllowedError, "too many consumers on this connection")
    checks.check_name("subscription's name", command.subscription)
    checks.check_name("consumer's name", command.consumer_name)
    checks.check_properties("consumer's properties", command.metadata)
    checks.check_properties("subscription's properties", command.subscription_properties)
    TagFilter.of({pair.key: pair.value for pair in command.subscription_properties})
    opened = Consumer(session, command, command.consumer_name, session.config.clock.now_ms())
    opened.reservation = session.kept.reserve("consumer", checks.consumer_state_bytes(command))
    session.opening["consumer", consumer_id] = opened
    generation = session.services.authorizer.generation
    session.run(command.request_id, _open_consumer(session, command, opened, generation))


def _check_no_filter(command: pb.CommandSubscribe) -> None:
    """Refuse filters on a non-persistent topic: no stamps. Raises `RefusedError`."""
    for pair in command.subscription_properties:
        if pair.key == FILTER_PROPERTY:
            raise InvalidFilterError(pair.value, "messages of a non-persistent topic have no tags")


async def _open_consumer(
    session: Session, command: pb.CommandSubscribe, opened: Consumer, generation: int
) -> None:
    topics = session.services.topics
    place = ("consumer", command.consumer_id)
    try:
        name = checks.parse_topic(session, command.topic)
        create = creates(topics, name) and command.force_topic_creation
        if name.is_persistent:
            topic = await topics.open(name, create=create)
        else:
            topic = topics.non_persistent.open(name, create=create)
        schema = command.schema if command.HasField("schema") else None
        opened.follows_schema = schema is not None and schema.type == pb.Schema.AutoConsume
        await session.services.schemas.for_consumer(topic, schema, in_use=checks.is_in_use(topic))
        checks.check_reading(command)
        checks.check_consumer(session.services, topic, command, opened)
        if isinstance(topic, NonPersistentTopic):
            _check_no_filter(command)
            await add_listener(session, command, opened, topic, generation)
        else:
            await _add_consumer(session, command, opened, topic, generation)
    finally:
        if session.opening.get(place) is opened:
            del session.opening[place]
    session.consumers[command.consumer_id] = opened
    session.write(commands.success(command.request_id))


async def _add_consumer(
    session: Session, command: pb.CommandSubscribe, opened: Consumer, topic: Topic, generation: int
) -> None:
    opened.compacted = topic.cleaned
    if command.read_compacted and opened.compacted is None:
        opened.compacted = await _compacted_form(session, topic)
    start = await _rolled_back_start(session, topic, command, opened.compacted)
    if opened.compacted is not None:
        # Its positions may have to be read, which the steps after this one do not wait for.
        at = start
        if at is None:
            at = await when_read(topic.start_of, command, opened.compacted)
        await when_read(opened.compacted.previous_position, at)
    subscription = topic.subscription_for(command, start, opened.compacted)
    try:
        await subscription.stored()
        await subscription.add_consumer(opened, command.subType)
        check_again(session, pb.BaseCommand.SUBSCRIBE, command, generation)
        if command.replicate_subscription_state:
            await mark_replicated(subscription, marked=True)
    except BaseException:
        opened.leave()
        subscription.end_if_unused()
        raise


async def _compacted_form(session: Session, topic: Topic) -> CompactedLog:
    """The topic's last compacted view, followed by all newer entries."""
    from ...compaction.current_view import compacted_log

    with persisting():
        form: CompactedLog = await session.services.run_blocking(compacted_log, topic.ledger)
    return form


async def _rolled_back_start(
    session: Session, topic: Topic, command: pb.CommandSubscribe, compacted: CompactedLog | None
) -> Position | None:
    """The start position for a subscription that asks to start some seconds ago; else None."""
    if not command.start_message_rollback_duration_sec:
        return None
    now_ms = session.config.clock.now_ms()
    time_ms = max(now_ms - 1000 * command.start_message_rollback_duration_sec, 0)
    target = await SeekTarget.at_time(topic, time_ms, session.services.run_blocking, compacted)
    return target.position


# -- permits ------------------------------------------------------------------------------------


def flow(session: Session, command: pb.CommandFlow) -> None:
    """Grant permits. Permits for a consumer that a seek has just closed are ignored."""
    found = session.consumers.get(command.consumer_id)
    if found is not None and found.subscription is not None:
        found.subscription.flow(found, command.messagePermits)
        tell_if_ended(found.subscription)


# -- positions ----------------------------------------------------------------------------------


def seek(session: Session, command: pb.CommandSeek) -> None:
    """Move the subscription's cursor; all its consumers have to subscribe again."""
    found, subscription = _connected(session, command.consumer_id)
    if not subscription.topic.is_persistent:
        session.write(commands.success(command.request_id))
        return
    session.run(command.request_id, _seek(session, command, found, subscription))


async def _seek(
    session: Session, command: pb.CommandSeek, found: Consumer, subscription: Subscription
) -> None:
    target = await SeekTarget.from_command(command, subscription, session.services.run_blocking)
    then = partial(session.write, commands.success(command.request_id))
    await reset_subscription(subscription, target, then=then, asked_by=found)


def last_message_id(session: Session, command: pb.CommandGetLastMessageId) -> None:
    """Answer with the topic's last message id and the subscription's mark-delete position."""
    _, subscription = _connected(session, command.consumer_id)
    if not subscription.topic.is_persistent:
        raise RefusedError(pb.ServerError.UnknownError, "Failed to recover Transaction Buffer.")
    session.run(command.request_id, _last_message_id(session, command, subscription))


async def _last_message_id(
    session: Session, command: pb.CommandGetLastMessageId, subscription: Subscription
) -> None:
    turns = session.services.topics.turns
    with persisting():
        last = await turns.result(subscription.topic.finding_last_id(subscription.compacted))
    # Clients compare both. Control entries after the last message are not messages to pass.
    mark_delete = shown_mark_delete(subscription.topic, subscription.cursor.mark_delete)
    if last.entry_id >= 0:
        mark_delete = min(mark_delete, Position(last.ledger_id, last.entry_id))
    shown = MessageId(*mark_delete)
    session.write(commands.get_last_message_id_response(command.request_id, last, shown))


# -- ending -------------------------------------------------------------------------------------


def close_consumer(session: Session, command: pb.CommandCloseConsumer) -> None:
    """Close a consumer. An unknown consumer id is a success, too: it is closed already."""
    session.close_opening("consumer", command.consumer_id)
    found = session.consumers.pop(command.consumer_id, None)
    # The answer comes first, as in Pulsar: what the consumer held goes to the others after it.
    session.write(commands.success(command.request_id))
    if found is not None:
        found.leave()


def unsubscribe(session: Session, command: pb.CommandUnsubscribe) -> None:
    """Remove the subscription and its cursor, if no other consumer is connected to it."""
    found, subscription = _connected(session, command.consumer_id)
    others = [consumer for consumer in subscription.consumers if consumer is not found]
    if others and not command.force:
        text = "Unconnected or shared consumer attempting to unsubscribe"
        raise RefusedError(pb.ServerError.MetadataError, text)
    if isinstance(subscription, NonPersistentSubscription):
        unsubscribe_listener(session, found, subscription, command.request_id)
        return
    # It is removed and its consumers disconnected at once; only the answer waits for the disk.
    commit = subscription.topic.remove_subscription(subscription, asked_by=found)
    del session.consumers[command.consumer_id]
    found.leave()
    session.run(command.request_id, _answer_unsubscribe(session, command.request_id, commit))


async def _answer_unsubscribe(session: Session, request_id: int, commit: Commit) -> None:
    await durable(commit)
    session.write(commands.success(request_id))


def consumer_stats(session: Session, command: pb.CommandConsumerStats) -> None:
    """Answer with a consumer's statistics; an unknown id closes the connection, as in Pulsar."""
    found = session.consumers.get(command.consumer_id)
    if found is None or found.subscription is None:
        session.close_because(f"CONSUMER_STATS for unknown consumer {command.consumer_id}")
        return
    session.run(command.request_id, when_read(_answer_stats, session, command, found))


def _answer_stats(session: Session, command: pb.CommandConsumerStats, found: Consumer) -> None:
    subscription = found.subscription
    if subscription is None:  # the next command has closed it
        raise RefusedError(pb.ServerError.ConsumerNotFound, "Consumer not found")
    flow = subscription.topic.flows.of(found)
    answer = pb.CommandConsumerStatsResponse(
        request_id=command.request_id,
        consumerName=found.name,
        availablePermits=to_unsigned(found.permits),
        unackedMessages=found.unacked_messages,
        blockedConsumerOnUnackedMsgs=subscription.is_blocked(found),
        msgRateOut=flow.messages_per_s,
        msgThroughputOut=flow.bytes_per_s,
        msgRateRedeliver=0.0,
        msgRateExpired=0.0,
        messageAckRate=0.0,
        address=session.address,
        connectedSince=iso_time(found.connected_since_ms),
        type=subscription.type_name,
        msgBacklog=subscription.backlog_entries,
    )
    session.write(commands.frame(answer))


def _connected(session: Session, consumer_id: int) -> tuple[Consumer, Subscription]:
    found = session.consumers.get(consumer_id)
    if found is None or found.subscription is None:
        raise RefusedError(pb.ServerError.MetadataError, "Consumer not found")
    return found, found.subscription


COMMANDS: checks.CommandTable = {
    pb.BaseCommand.SUBSCRIBE: subscribe,
    pb.BaseCommand.FLOW: flow,
    pb.BaseCommand.SEEK: seek,
    pb.BaseCommand.GET_LAST_MESSAGE_ID: last_message_id,
    pb.BaseCommand.CLOSE_CONSUMER: close_consumer,
    pb.BaseCommand.UNSUBSCRIBE: unsubscribe,
    pb.BaseCommand.CONSUMER_STATS: consumer_stats,
}

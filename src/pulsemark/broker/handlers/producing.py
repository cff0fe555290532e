"""The commands of producers: PRODUCER, SEND and CLOSE_PRODUCER; of mirrors, too."""

from __future__ import annotations

import logging
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from ... import ledger
from ...metadata import MESSAGE_MAGIC, ChecksumError, MessageFormatError, Sender, StampError
from ...metadata.source_stamp import (
    CLUSTER_SIZE_MAX_BYTES,
    MIRROR_PRODUCER_PREFIX,
    MIRROR_PROPERTY,
    SourceStamp,
    sequence_id_of,
)
from ...proto.pulsar_api_pb2 import (
    BaseCommand,
    CommandCloseProducer,
    CommandProducer,
    CommandSend,
    CommandSubscribe,
    ServerError,
)
from ...wire import Sends, TopicName, commands
from ..cooperative import at_once
from ..errors import RefusedError
from ..policies.own_policies import MIRRORS
from ..storage import persisting
from ..topics.non_persistent import NOWHERE
from ..topics.producers import DuplicateMessageError, Mirror, Producer, allows, not_allowed
from ..topics.registry import creates
from . import checks
from .authorizing import check_again

if TYPE_CHECKING:
    from ...ledger import Appended, Position
    from ...metadata import Buffer
    from ..connection.session import Session
    from ..subscriptions.consumer import Consumer
    from ..subscriptions.non_persistent import NonPersistentSubscription
    from ..topics.non_persistent import NonPersistentTopic
    from ..topics.topic import Topic


log = logging.getLogger(__name__)

CHECKSUM_FAILED = "Checksum failed on the broker"
#: The ends of the magic number and of the checksum in headers-and-payload.
MAGIC_END = 2
CHECKSUM_END = 6
#: The error code of a refused SEND, by the ledger's exception. Official clients drop the message
#: after ChecksumError and reconnect after any other code.
SEND_ERRORS: tuple[tuple[type[Exception], ServerError], ...] = (
    (ledger.TopicTerminatedError, ServerError.TopicTerminatedError),
    (ChecksumError, ServerError.ChecksumError),
    (MessageFormatError, ServerError.ChecksumError),
    (ledger.AlreadyStampedError, ServerError.NotAllowedError),
    (ledger.EntryTooLargeError, ServerError.NotAllowedError),
    (ledger.InvalidEntryError, ServerError.NotAllowedError),
    (StampError, ServerError.UnknownError),
    (ledger.LedgerError, ServerError.PersistenceError),
)
#: Refusals after which clients open the producer again and send the message once more.
SENT_AGAIN = frozenset(
    (ServerError.ServiceNotReady, ServerError.PersistenceError, ServerError.UnknownError)
)
#: In the receipt of a message that the topic has already.
NO_POSITION = ledger.Position(-1, -1)
REFUSED_BEFORE = "a message before it was refused; open the producer again"
SEND_FAILURES: tuple[type[Exception], ...] = (RefusedError, *(kind for kind, _ in SEND_ERRORS))


def producer(session: Session, command: CommandProducer) -> None:
    """Open a producer."""
    producer_id = command.producer_id
    known = session.producers.get(producer_id)
    if known is not None:
        _open_again(session, command, known[0])
        return
    if ("producer", producer_id) in session.opening:
        raise _already_present()
    if len(session.producers) >= session.config.max_producers_per_connection:
        raise RefusedError(ServerError.NotAllowedError, "too many producers on this connection")
    checks.check_name("producer's name", command.producer_name)
    checks.check_name("initial subscription's name", command.initial_subscription_name)
    checks.check_properties("producer's properties", command.metadata)
    mirror = mirror_name(command)
    name = mirror or command.producer_name
    if not mirror and not command.HasField("producer_name"):
        name = session.services.new_producer_name()
    opened = Producer.from_command(session, command, name, session.config.clock.now_ms())
    opened.reservation = session.kept.reserve("producer", checks.producer_state_bytes(command))
    opened.sender = _sender(session, opened)
    session.opening["producer", producer_id] = opened
    generation = session.services.authorizer.generation
    opening = _open_producer(session, command, opened, generation, mirrors=bool(mirror))
    session.run(command.request_id, opening)


def _open_again(session: Session, command: CommandProducer, known: Producer) -> None:
    """The same id means the same producer; the command's other fields are ignored."""
    if known.is_waiting:
        raise _already_present()
    # As in Pulsar this answer has no topic epoch.
    version, name = known.schema_version, known.name
    session.write(commands.producer_success(command.request_id, name, schema_version=version))


def _already_present() -> RefusedError:
    text = "Producer is already present on the connection"
    return RefusedError(ServerError.ServiceNotReady, text)


async def _open_producer(
    session: Session, command: CommandProducer, opened: Producer, generation: int, *, mirrors: bool
) -> None:
    services = session.services
    place = ("producer", command.producer_id)
    try:
        topic = await _open_topic(session, checks.parse_topic(session, command.topic))
        schema = command.schema if command.HasField("schema") else None
        opened.schema_version = await checks.schema_version_for(session, topic, schema)
        if topic.is_persistent:
            await _create_initial_subscription(topic, command.initial_subscription_name)
            await services.storage.wait_until_healthy()
            await services.topics.leader_epochs.begin_if_due(topic)
        if not mirrors:
            await checks.check_producer(services, topic, opened)
        most = 0 if mirrors else topic.rules.max_producers
        ready = await topic.producers.add(opened, most=most)
        try:
            last_sequence_id = await _last_sequence_id(session, topic, opened, mirrors=mirrors)
            check_again(session, BaseCommand.PRODUCER, command, generation)
        except BaseException:
            opened.leave()
            raise
    finally:
        if session.opening.get(place) is opened:
            del session.opening[place]
    session.producers[command.producer_id] = (opened, topic)
    session.producers_closed_by_broker.discard(command.producer_id)
    answer = commands.producer_success(
        command.request_id,
        opened.name,
        last_sequence_id=last_sequence_id,
        schema_version=opened.schema_version,
        topic_epoch=opened.topic_epoch if ready else None,
        producer_ready=ready,
    )
    session.write(answer)


async def _last_sequence_id(
    session: Session, topic: Topic, opened: Producer, *, mirrors: bool
) -> int:
    """With which id an added producer goes on. Raises `RefusedError`."""
    found = -1
    if mirrors:
        found = await start_mirror(session, topic, opened)
    elif topic.deduplication is not None:
        found = await checks.last_stored(topic, opened)
    if opened.home is None:
        # The topic was closed or deleted during the last wait.
        raise RefusedError(ServerError.ServiceNotReady, f"{topic.name} was closed meanwhile")
    return found


async def _open_topic(session: Session, name: TopicName) -> Topic:
    topics = session.services.topics
    try:
        if name.is_persistent:
            return await topics.open(name, create=creates(topics, name))
        return topics.non_persistent.open(name, create=creates(topics, name))
    except RefusedError as refusal:
        if refusal.code == ServerError.TopicNotFound and name.namespace in topics.namespaces:
            raise RefusedError(refusal.code, f"Topic not found {name}") from refusal
        raise


def _sender(session: Session, opened: Producer) -> Sender:
    """The producer's facts for stampers, which cannot change its properties."""
    properties = MappingProxyType(opened.properties)
    return Sender(opened.name, properties, session.client_version, session.address)


async def _create_initial_subscription(topic: Topic, name: str) -> None:
    if not name:
        return
    subscription = topic.subscriptions.get(name)
    if subscription is None:
        start = topic.ledger.first_position or topic.ledger.end_position
        subscription = topic.create_subscription(name, start)
    await subscription.stored()


def handle_sends(session: Session, event: Sends) -> None:
    """Append entries. Their receipts are written when they are durable."""
    done, count = 0, len(event)
    while done < count and not session.is_closed:
        # A refusal may have closed the producer: so it is looked up again.
        done = _handle_from(session, event, done)


def _handle_from(session: Session, event: Sends, first: int) -> int:
    """Append or answer SENDs from the ``first`` one on; the number of the next one."""
    count = len(event)
    entry = _may_send(session, event)
    if entry is None:
        return count
    sender, topic = entry
    sizes_bytes = [*map(len, event.bodies)] if not first else [*map(len, event.bodies[first:])]
    if (
        topic.admission is not None
        or sender.mirror is not None
        or event.whole is not None
        or not topic.is_persistent
        or min(sizes_bytes) < CHECKSUM_END
    ):
        _handle_alone(session, sender, topic, event, first)
        return first + 1
    bodies, counts = event.bodies, event.message_counts
    if first:
        bodies, counts = bodies[first:], counts[first:]
    try:
        appended, added = topic.ledger.append_run(
            bodies, counts, sender=sender.sender, wakes=False, are_plain=True
        )
    except SEND_FAILURES as error:
        _append_failed(session, sender, topic, event.command(first), error)
        return first + 1
    ids, highest_ids, end = event.sequence_ids, event.highest_sequence_ids, first + added
    if added < count:
        ids, highest_ids = ids[first:end], highest_ids[first:end]
        counts, sizes_bytes = counts[:added], sizes_bytes[:added]
    session.receipts.appended(
        sender, topic.counters, ids, highest_ids, counts, sizes_bytes, appended
    )
    return end


def _may_send(session: Session, event: Sends) -> tuple[Producer, Topic] | None:
    """The producer of SENDs and its topic; None: they are not appended, and the client knows it."""
    entry = session.producers.get(event.producer_id)
    if entry is None:
        if event.producer_id not in session.producers_closed_by_broker:
            session.close_because(f"SEND for unknown producer id {event.producer_id}")
        return None
    sender, _ = entry
    if sender.is_disconnected:
        session.close_producer(sender)  # notify its client now, before the others
        return None
    if not sender.may_publish:
        session.close_because(f"SEND from {sender.name!r}, which is fenced or waits for the topic")
        return None
    return entry


def _handle_alone(
    session: Session, sender: Producer, topic: Topic, event: Sends, number: int
) -> None:
    """Append or answer a SEND that must be looked at alone."""
    body = event.bodies[number]
    if len(body) < CHECKSUM_END and _is_cut(body):
        session.close_because(f"SEND with {len(body)} bytes, which is not a message")
        return
    command = event.command(number)
    try:
        if not topic.is_persistent:
            publish(session, sender, cast("NonPersistentTopic", topic), command, body)
            return
        appended = _append_checked(session, sender, topic, command, body)
    except SEND_FAILURES as error:
        _append_failed(session, sender, topic, command, error)
        return
    if appended is not None:
        highest = event.highest_sequence_ids[number : number + 1]
        session.receipts.appended(
            sender,
            topic.counters,
            (command.sequence_id,),
            highest,
            (command.num_messages,),
            (len(body),),
            appended,
        )


def _append_checked(
    session: Session, sender: Producer, topic: Topic, command: CommandSend, body: memoryview
) -> Appended | None:
    """Append a message; None if it is answered already. Raises what an append raises."""
    stamp = None
    # As in Pulsar: half of an id names no transaction.
    if command.HasField("txnid_most_bits") and command.HasField("txnid_least_bits"):
        coordination = session.services.transactions
        if coordination is None or sender.mirror is not None:
            raise RefusedError(ServerError.NotAllowedError, "Transaction buffer disable!")
        stamp = coordination.stamp_of(command.txnid_most_bits, command.txnid_least_bits, topic)
    admission = topic.admission
    try:
        if sender.mirror is not None:
            return _append_mirrored(session, topic, sender, sender.mirror, command, body)
        if sender.must_open_again and admission is not None:
            raise RefusedError(ServerError.ServiceNotReady, REFUSED_BEFORE)
        follows = None if admission is None else admission.admit(sender, command, body)
        appended = topic.ledger.append(
            body,
            message_count=command.num_messages,
            base=stamp,
            sender=sender.sender,
            follows=follows,
            wakes=False,
        )
    except DuplicateMessageError:
        session.receipts.answer_in_turn(sender, _receipt(command, NO_POSITION))
        return None
    except ledger.FencedError as error:
        # The entry before it failed, or is not stored yet while a new ledger begins.
        raise RefusedError(ServerError.ServiceNotReady, str(error)) from error
    if admission is not None:
        admission.appended(session, sender, command, body, appended)
    return appended


def _receipt(command: CommandSend, position: Position) -> bytes:
    """The answer to a SEND that is not waited for."""
    highest = command.highest_sequence_id if command.HasField("highest_sequence_id") else -1
    return commands.send_receipt(command.producer_id, command.sequence_id, *position, highest)


def _append_failed(
    session: Session, sender: Producer, topic: Topic, command: CommandSend, error: Exception
) -> None:
    if isinstance(error, RefusedError):
        _refuse_send(session, sender, topic, command, error)
        return
    code = next(code for kind, code in SEND_ERRORS if isinstance(error, kind))
    if code == ServerError.PersistenceError:
        session.storage_failed(error)
    elif code == ServerError.TopicTerminatedError:
        _close_in_turn(session, sender, topic)
    text = CHECKSUM_FAILED if isinstance(error, ChecksumError) else str(error)
    log.debug("%s: %s", session.address, error)
    _refuse_send(session, sender, topic, command, RefusedError(code, text))


def _close_in_turn(session: Session, sender: Producer, topic: Topic) -> None:
    """Close a producer whose topic was terminated, after its outstanding receipts.

    As in Pulsar CLOSE_PRODUCER comes before the error: upon the error Go's client forgets the
    producer, and no longer sends its other messages elsewhere.
    """
    topic.producers.detach(sender)
    if session.forget_producer(sender):
        closing = commands.close_producer(sender.producer_id, commands.NO_REQUEST_ID)
        session.receipts.answer_in_turn(sender, closing)


def _is_cut(body: memoryview) -> bool:
    """Whether a few bytes end before or within a checksum; as in Pulsar that ends a connection."""
    return len(body) < MAGIC_END or body[:MAGIC_END] == MESSAGE_MAGIC.to_bytes(MAGIC_END, "big")


def _refuse_send(
    session: Session, sender: Producer, topic: Topic, command: CommandSend, refusal: RefusedError
) -> None:
    if topic.deduplication is not None and refusal.code in SENT_AGAIN:
        # If a message after this one were stored, this one would count as a duplicate when its
        # client sends it again.
        sender.must_open_again = True
    if session.refused_sends.add():
        text = "%s: SEND from producer %r was refused: %s (refusal %d on this connection)"
        count = session.refused_sends.count
        log.warning(text, session.address, sender.name, refusal.message, count)
    producer_id, sequence_id = command.producer_id, command.sequence_id
    answer = commands.send_error(producer_id, sequence_id, refusal.code, refusal.message)
    session.receipts.answer_in_turn(sender, answer)


def close_producer(session: Session, command: CommandCloseProducer) -> None:
    """Close a producer; SUCCESS is written after its last receipt."""
    session.close_opening("producer", command.producer_id)
    answer = commands.success(command.request_id)
    entry = session.producers.pop(command.producer_id, None)
    if entry is None:
        session.write(answer)
        return
    sender, _ = entry
    sender.leave()
    session.receipts.answer_in_turn(sender, answer)


def mirror_name(command: CommandProducer) -> str:
    """The name of a mirror's producer; "" for any other, also for a mirror that names itself.

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

    The answer to PRODUCER has it as last sequence id, and the source's next index, if that is
    known, as topic epoch, which a shared producer does not use. Raises `RefusedError` if the
    topic's policy does not allow the mirror, or the log cannot be read.
    """
    cluster = producer.name.removeprefix(MIRROR_PRODUCER_PREFIX)
    if not allows(session.services.topics.policies.applied(topic.topic_name, MIRRORS), cluster):
        raise RefusedError(ServerError.NotAllowedError, not_allowed(cluster))

    def find() -> SourceStamp | None:
        # Imported here, in a thread: the checks of record sets are needed on the loop later.
        from ...kafka import records  # noqa: F401

        # Entries of an earlier connection of this mirror may not be durable yet.
        topic.ledger.store.committer.flush()
        return session.services.mirror_progress.last(topic.ledger, cluster)

    with persisting():
        last: SourceStamp | None = await session.services.run_blocking(find)
    producer.mirror = Mirror(cluster, None if last is None else last.position)
    producer.topic_epoch = None if last is None or last.index is None else last.index + 1
    return -1 if last is None else sequence_id_of(last.position)


def _append_mirrored(
    session: Session,
    topic: Topic,
    producer: Producer,
    mirror: Mirror,
    command: CommandSend,
    sent: memoryview,
) -> Appended:
    """Append what a mirror sent. Raises as an append, and `DuplicateMessageError`.

    After a refusal all later entries are refused.
    """
    try:
        if command.num_messages < 0:
            raise RefusedError(ServerError.NotAllowedError, "num_messages must not be negative")
        sources = session.services.topics.policies.applied(topic.topic_name, MIRRORS)
        body, base, position = mirror.admit(sent, sources, command.num_messages)
        appended = topic.ledger.append(
            body,
            message_count=command.num_messages,
            base=base,
            sender=producer.sender,
            follows=mirror.follows,
        )
    except DuplicateMessageError:
        raise
    except Exception as error:
        mirror.refuse_the_rest(str(error))
        raise
    mirror.appended(position, appended)
    return appended


def publish(
    session: Session,
    sender: Producer,
    topic: NonPersistentTopic,
    command: CommandSend,
    body: Buffer,
) -> None:
    """Send a message to the connected consumers; the receipt follows at once.

    So a connection never has more messages in work than
    `maxConcurrentNonPersistentMessagePerConnection` allows, whatever its value. Raises what an
    append raises of a message that is not valid.
    """
    entry = topic.take(body, command.num_messages)
    sender.messages_in += max(1, command.num_messages)
    sender.bytes_in += len(body)
    session.write(_receipt(command, NOWHERE))
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


COMMANDS: checks.CommandTable = {
    BaseCommand.PRODUCER: producer,
    BaseCommand.CLOSE_PRODUCER: close_producer,
}

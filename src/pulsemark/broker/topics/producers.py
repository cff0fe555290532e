"""The producers of a topic: names, access modes, topic epochs, and mirrors among them.

A producer's name is unique within a topic. If another producer has the name already, and its
connection does not answer a PING, that connection is closed, and the new producer gets the name.
Names count only where producers share the topic.

Access modes (PIP-68), depending on the producers that the topic already has:

==================  ======================  =====================================================
mode                no other producer       other producers
==================  ======================  =====================================================
Shared              added                   added; ProducerBusy if one is exclusive or waiting
Exclusive           added, new topic epoch  ProducerFenced, also if only others wait
WaitForExclusive    added, new topic epoch  waits (ready=False), added when all others have left
ExclusiveWith...    added, new topic epoch  all others are fenced, Shared and waiting ones, too
Fencing
==================  ======================  =====================================================

The topic epoch counts the exclusive owners. It is durable before the owner gets it. A producer that
reconnects with an older epoch than the topic's is rejected (ProducerFenced), as in Pulsar. With a
higher one, after the topic was deleted and created again, the topic takes over that epoch, up to
`CLAIMED_EPOCH_MAX`, so that it can always count on.

A producer enters a topic once and leaves it once, with no `await` between the last check and
entering. Leaving (`Producer.leave`) has its effect before it returns, in every state: added,
waiting, or while the epoch is being stored. Work in the background then does not make it the owner.

A mirror is a producer that was opened with the property `pulsemark.mirror.source-cluster`. It sends
each entry with the source's facts in front (see `metadata.source_stamp`), and continues the order
of its source without gaps and doubles. The topic's policy `mirrorSources` says from which clusters
it accepts mirrors.

- The last sequence id in the answer to PRODUCER is the position of the topic's last entry from that
  source. The mirror goes on after it.
- An entry that the topic has already is not stored again; its receipt has the position (-1, -1).
- A record set of a Kafka client comes with its tags, which are checked against its bytes.
- If one entry is refused or fails, all later ones of this producer are refused, too. Else the topic
  would have a hole that the next mirror does not see. The mirror opens its producer again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Protocol

from ...ledger import Appended
from ...metadata import BrokerEntryMetadata, Buffer, PrefixError, Sender
from ...metadata.source_stamp import SourceStamp, split_mirrored
from ...proto.pulsar_api_pb2 import CommandProducer, ProducerAccessMode, ServerError
from ...records import record
from ..cooperative import Background
from ..errors import RefusedError, java_refusal

if TYPE_CHECKING:
    from ..memory import Reservation
    from ..subscriptions.consumer import ConsumerConnection

    class ProducerConnection(ConsumerConnection, Protocol):
        """The connection of a producer."""

        async def has_ended(self) -> bool:
            """Whether the client is gone, which an unread connection does not notice by itself."""
            ...

        def close_producer(self, producer: Producer) -> None:
            """Tell the client that the broker closed one of its producers."""
            ...

        def producer_fenced(self, producer: Producer) -> None:
            """Another producer took over the topic: refuse this one's next SEND."""
            ...

        def producer_ready(self, producer: Producer) -> None:
            """A waiting producer may publish now."""
            ...


log = logging.getLogger(__name__)


#: Pulsar's message; clients show it to their users.
TERMINATED = (
    "org.apache.pulsar.broker.service.BrokerServiceException$TopicTerminatedException: "
    "Topic was already terminated"
)
#: The highest topic epoch that a client may claim. Pulsar's epochs are signed 64-bit numbers, so
#: this leaves half of them for later epochs.
CLAIMED_EPOCH_MAX = 1 << 62


class TopicProducers:
    """The producers of one topic."""

    def __init__(
        self,
        topic_epoch: int | None,
        store_epoch: Callable[[int], Awaitable[None]],
        topic: str = "",
    ) -> None:
        self._topic = topic
        #: The added producers; an exclusive one also while its epoch is being stored.
        self.by_name: dict[str, Producer] = {}
        #: The producers that wait for exclusive access; the longest waiting is first.
        self.waiting: dict[Producer, None] = {}
        self.topic_epoch = topic_epoch
        self._store_epoch = store_epoch
        self.exclusive: Producer | None = None
        self._is_closed = False
        #: Whether the topic was terminated: no producer may enter.
        self.is_terminated = False
        self._storing = asyncio.Lock()
        self._background = Background()

    async def add(self, producer: Producer, *, most: int = 0) -> bool:
        """Add a producer (True) or let it wait (False), or raise `RefusedError`.

        `most` is how many producers the topic may have; 0: without limit.
        """
        owner = self.exclusive
        if owner is not None and await owner.connection.has_ended():
            owner.leave()
        self._check_can_enter(producer)
        if producer.access_mode == ProducerAccessMode.Shared:
            while not await self._is_name_free(producer):
                self._check_can_enter(producer)
        # No `await` from here until the producer was added: nothing can change.
        if most and len(self.by_name) + len(self.waiting) >= most:
            reason = f"Topic '{self._topic}' reached max producers limit"
            raise RefusedError(ServerError.ProducerBusy, reason)
        if producer.access_mode == ProducerAccessMode.Shared:
            self._enter(producer)
            # As in Pulsar it gets the topic's epoch, whatever epoch it claims.
            producer.topic_epoch = self.topic_epoch
            producer.may_publish = True
            return True
        if producer.access_mode == ProducerAccessMode.ExclusiveWithFencing:
            self._fence_all()
        elif self.by_name:
            producer.is_waiting = True
            producer.home = self
            self.waiting[producer] = None
            return False
        self._check_epoch(producer)
        self._enter(producer)
        await self._make_owner(producer)
        return True

    def remove(self, producer: Producer) -> None:
        """Remove a producer; the first waiting one may take over. May be called twice."""
        if producer.home is not self:
            return
        producer.home = None
        if producer in self.waiting:
            del self.waiting[producer]
            return
        del self.by_name[producer.name]
        if self.exclusive is producer:
            self.exclusive = None
        self._promote()

    def disconnecting(self) -> Iterator[None]:
        """Close every producer from the broker's side; their clients may open them again.

        The first piece ends all of them; the others notify their clients.
        """
        all_producers = (*self.waiting, *self.by_name.values())
        self.waiting.clear()
        self._empty()
        for producer in all_producers:
            producer.disconnect()
        yield
        for producer in all_producers:
            producer.connection.close_producer(producer)
            yield

    def disconnect_those(self, concerned: Callable[[Producer], bool]) -> None:
        """Close some producers from the broker's side; their clients may open them again."""
        chosen = [each for each in (*self.waiting, *self.by_name.values()) if concerned(each)]
        for producer in chosen:
            self.detach(producer)
            producer.connection.close_producer(producer)

    def detach(self, producer: Producer) -> None:
        """Take a producer out; the caller notifies its client."""
        self.remove(producer)
        producer.disconnect()

    def close(self) -> None:
        """The topic or the broker closes: no producer is added or promoted any more."""
        self._is_closed = True

    async def settled(self) -> None:
        """Return when no epoch is being stored. After `close` no other store begins."""
        async with self._storing:
            pass

    # -- places ---------------------------------------------------------------------------------

    def _check_can_enter(self, producer: Producer) -> None:
        if self.is_terminated:
            raise RefusedError(ServerError.TopicTerminatedError, TERMINATED)
        if self._is_closed:
            raise RefusedError(ServerError.ServiceNotReady, "the topic is being closed; try again")
        if producer.has_left:
            raise RefusedError(ServerError.ServiceNotReady, "closed while it was being opened")
        mode, owner = producer.access_mode, self.exclusive
        if mode == ProducerAccessMode.Shared and (owner is not None or self.waiting):
            raise self._owned(ServerError.ProducerBusy, "ProducerBusyException")
        if mode == ProducerAccessMode.Exclusive:
            if owner is not None or self.waiting:
                raise self._owned(ServerError.ProducerFenced, "ProducerFencedException")
            if self.by_name:
                text = "Topic has existing shared producers"
                raise java_refusal(ServerError.ProducerFenced, "ProducerFencedException", text)

    def _owned(self, code: ServerError, exception: str) -> RefusedError:
        name = "null" if self.exclusive is None else self.exclusive.name
        return java_refusal(code, exception, f"Topic has an existing exclusive producer: {name}")

    def _enter(self, producer: Producer) -> None:
        producer.home = self
        self.by_name[producer.name] = producer
        if producer.access_mode != ProducerAccessMode.Shared:
            self.exclusive = producer

    def _empty(self) -> None:
        self.by_name.clear()
        self.exclusive = None

    def _promote(self) -> None:
        """Give a topic without producers to the first waiting one."""
        if self._is_closed or self.by_name or not self.waiting:
            return
        successor = next(iter(self.waiting))
        del self.waiting[successor]
        self._enter(successor)
        self._background.start(self._succeed(successor))

    async def _succeed(self, successor: Producer) -> None:
        try:
            await self._make_owner(successor)
        except Exception as error:  # noqa: BLE001 - the client gets an ERROR for any failure
            text = "waiting producer %r could not take over its topic and was fenced: %s"
            log.warning(text, successor.name, error)
            successor.connection.producer_fenced(successor)
        else:
            successor.connection.producer_ready(successor)

    async def _is_name_free(self, newcomer: Producer) -> bool:
        """Whether no producer has the name. False after a dead holder was removed: ask again.

        Raises ProducerBusy if the holder is alive.
        """
        holder = self.by_name.get(newcomer.name)
        if holder is None:
            return True
        if holder.connection is newcomer.connection or await holder.connection.is_alive():
            text = f"name '{newcomer.name}' is already connected to topic '{self._topic}'"
            code = ServerError.ProducerBusy
            raise java_refusal(code, "NamingException", f"Producer with {text}")
        # Each call removes one holder, so the caller's loop ends.
        holder.leave()
        return False

    def _fence_all(self) -> None:
        """Fence every producer, added or waiting."""
        fenced = (*self.waiting, *self.by_name.values())
        self.waiting.clear()
        self._empty()
        for producer in fenced:
            producer.home = None
            producer.may_publish = False
            producer.is_fenced = True
            producer.connection.producer_fenced(producer)

    # -- epochs ---------------------------------------------------------------------------------

    def _check_epoch(self, producer: Producer) -> None:
        current = -1 if self.topic_epoch is None else self.topic_epoch
        claimed = producer.topic_epoch
        if claimed is None or claimed == current:
            return
        if claimed < current:
            text = f"Current epoch: {current}, Producer epoch: {claimed}"
            code, text = ServerError.ProducerFenced, f"Topic epoch has already moved. {text}"
            raise java_refusal(code, "ProducerFencedException", text)
        if claimed > CLAIMED_EPOCH_MAX:
            text = f"the highest possible epoch is {CLAIMED_EPOCH_MAX}"
            text = f"topic epoch {claimed} is too high, {text}"
            raise RefusedError(ServerError.ProducerFenced, text)

    async def _make_owner(self, producer: Producer) -> None:
        """Make an added producer the topic's owner, after its epoch is durable."""
        try:
            # This runs to its end even if the producer leaves: the next epoch counts from it.
            epoch = await self._background.run_to_end(self._count_epoch(producer))
            self._check_holds(producer)
        except BaseException:
            self.remove(producer)
            raise
        producer.topic_epoch = epoch
        producer.is_waiting = False
        producer.may_publish = True

    async def _count_epoch(self, producer: Producer) -> int:
        """Store the owner's epoch and return it. One is stored at a time, to keep the order."""
        async with self._storing:
            self._check_holds(producer)
            self._check_epoch(producer)
            epoch = producer.topic_epoch
            if epoch is None:
                epoch = 0 if self.topic_epoch is None else self.topic_epoch + 1
            if epoch != self.topic_epoch:
                await self._store_epoch(epoch)
                self.topic_epoch = epoch
            return epoch

    def _check_holds(self, producer: Producer) -> None:
        if producer.is_fenced and producer.topic_epoch is not None:
            # It returns as the owner, and one with an older epoch has fenced it, in vain. Its epoch
            # tells whether it may try again; ProducerFenced would end its client.
            raise RefusedError(ServerError.ServiceNotReady, "fenced while it returned; try again")
        if producer.is_fenced:
            text = "fenced while the epoch was being stored"
            raise RefusedError(ServerError.ProducerFenced, text)
        if producer.home is not self:
            raise RefusedError(ServerError.ServiceNotReady, "closed while it was being opened")


class DuplicateMessageError(Exception):
    """The topic has this message already, from this producer or mirror."""


class Mirror:
    """The state of one mirror's producer: `cluster`, the source's name, and its last entry.

    The next entry must not be stored without the one that it `follows`.
    """

    __slots__ = ("_refused", "_stored", "cluster", "follows")

    def __init__(self, cluster: str, stored: tuple[int, int] | None) -> None:
        """`stored`: the source's position of the topic's last entry from this cluster."""
        self.cluster = cluster
        self.follows: Appended | None = None
        self._stored = stored
        self._refused = ""

    def admit(
        self, sent: Buffer, sources: Sequence[str], message_count: int
    ) -> tuple[memoryview, BrokerEntryMetadata, tuple[int, int]]:
        """The producer's bytes, the fields to store beside the stamp, and the source's position.

        Raises `DuplicateMessageError`, and `RefusedError` for what a mirror must not send.
        """
        if self._refused:
            reason = f"an earlier entry of this mirror was refused: {self._refused}"
            raise RefusedError(ServerError.ServiceNotReady, reason)
        if not allows(sources, self.cluster):
            raise RefusedError(ServerError.NotAllowedError, not_allowed(self.cluster))
        try:
            stamp, body = split_mirrored(sent)
        except PrefixError as error:
            raise RefusedError(ServerError.NotAllowedError, str(error)) from error
        if stamp.cluster != self.cluster:
            reason = f"the entry is from cluster {stamp.cluster!r}, the mirror {self.cluster!r}"
            raise RefusedError(ServerError.NotAllowedError, reason)
        if self._stored is not None and stamp.position <= self._stored:
            raise DuplicateMessageError
        _check_record_set(stamp, body, message_count)
        return body, stamp.metadata(), stamp.position

    def appended(self, position: tuple[int, int], appended: Appended) -> None:
        """An admitted entry is in the ledger."""
        self._stored, self.follows = position, appended

    def refuse_the_rest(self, reason: str) -> None:
        """Refuse all later entries, after one was refused."""
        self._refused = self._refused or reason


def _check_record_set(stamp: SourceStamp, body: memoryview, message_count: int) -> None:
    """Check the bytes of a Kafka client's set. Raises `RefusedError`."""
    tags = stamp.record_set
    if tags is None:
        if bytes(body[:4]) == bytes(4):
            reason = "a record set of a Kafka client must come with its source_format"
            raise RefusedError(ServerError.NotAllowedError, reason)
        return
    # Imported in a thread when the mirror began: most brokers never have one.
    from ...kafka.records import RecordSetError, check_mirrored

    try:
        if tags.message_count != message_count:
            reason = f"num_messages is {message_count}, the set has {tags.message_count}"
            raise RefusedError(ServerError.NotAllowedError, reason)
        check_mirrored(body, tags.source_format, message_count)
    except RecordSetError as error:
        reason = f"the record set of entry {stamp.ledger_id}:{stamp.entry_id}: {error}"
        raise RefusedError(ServerError.ChecksumError, reason) from error


def allows(sources: Sequence[str], cluster: str) -> bool:
    """Whether a policy's list of clusters allows this one."""
    return cluster in sources or "*" in sources


def not_allowed(cluster: str) -> str:
    """The text for a mirror that the topic's policy does not allow."""
    return f"mirrors from cluster {cluster!r} are not allowed here: see the policy mirrorSources"


#: The longest name of a producer, a consumer or a subscription.
NAME_SIZE_MAX_BYTES = 1024


@record(eq=False)
class Producer:
    """A producer on a connection."""

    connection: ProducerConnection
    producer_id: int
    request_id: int
    name: str
    access_mode: ProducerAccessMode
    epoch: int
    #: The epoch that it claims when it reconnects; later the epoch that it owns.
    topic_epoch: int | None
    schema_version: bytes = b""
    connected_since_ms: int = 0
    properties: dict[str, str] = field(default_factory=dict)
    messages_in: int = 0
    bytes_in: int = 0
    #: Whether it was added: it does not wait, and was not fenced.
    may_publish: bool = False
    is_waiting: bool = False
    #: Its latest publishes without receipt: a `connection.receipts.Run`. Answers to later
    #: ones must come after them.
    run: Any = None
    #: Counts the memory that the broker needs for it.
    reservation: Reservation | None = None
    #: The facts about it that stampers get.
    sender: Sender | None = None
    #: Whether it encrypts its messages.
    is_encrypted: bool = False
    #: Whether a message was refused that must be sent again in order, for deduplication.
    must_open_again: bool = False
    #: Its rights as a mirror; None: it is an ordinary producer.
    mirror: Mirror | None = None
    #: The topic's producers while this one is among them, added or waiting.
    home: TopicProducers | None = None
    #: Whether it was closed: it must not enter a topic again.
    has_left: bool = False
    #: Whether another producer took over the topic.
    is_fenced: bool = False
    #: The broker closed it, and notifies its client later.
    is_disconnected: bool = False

    def leave(self) -> None:
        """Leave the topic: the client closed it, or its connection is lost. May be called twice."""
        self.has_left = True
        self.may_publish = False
        if self.home is not None:
            self.home.remove(self)

    def disconnect(self) -> None:
        """Mark it as closed by the broker and in no topic. The caller notifies its client."""
        self.home = None
        self.may_publish = False
        self.is_disconnected = True

    @classmethod
    def from_command(
        cls, connection: ProducerConnection, command: CommandProducer, name: str, now_ms: int
    ) -> Producer:
        """Make the producer for a PRODUCER command."""
        return cls(
            connection=connection,
            producer_id=command.producer_id,
            request_id=command.request_id,
            name=name,
            access_mode=command.producer_access_mode,
            epoch=command.epoch,
            topic_epoch=command.topic_epoch if command.HasField("topic_epoch") else None,
            connected_since_ms=now_ms,
            is_encrypted=command.encrypted,
            properties={pair.key: pair.value for pair in command.metadata},
        )

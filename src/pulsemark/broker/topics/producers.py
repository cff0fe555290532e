"""The producers of a topic: names, access modes and topic epochs.

A producer's name is unique within a topic. If another producer has the name already, the broker
sends a PING to that producer's connection. If there is no answer, it closes that connection, and
the new producer gets the name. Names count only where producers share the topic: waiting producers
may have the same name, and an exclusive producer is alone.

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
reconnects with an older epoch than the topic's is rejected (ProducerFenced): a waiting one when it
would take over, and one that asks with ExclusiveWithFencing after the others were fenced, as in
Pulsar. A client may also
reconnect with a higher epoch, if the topic was deleted and created again. As in Pulsar the topic
takes over that epoch, but only up to `CLAIMED_EPOCH_MAX`, so that it can always count on.

A producer enters a topic once and leaves it once. There is no `await` between the last check and
entering. Leaving (`Producer.leave`) has its effect before it returns, in every state: added,
waiting, or while the epoch is being stored. Work in the background then finds that the producer
has left, and does not make it the owner.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator

from ...proto.pulsar_api_pb2 import ProducerAccessMode, ServerError
from ..cooperative import Background
from ..errors import RefusedError, java_refusal
from .producer import Producer

__all__ = ["CLAIMED_EPOCH_MAX", "TopicProducers"]


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
        self._exclusive: Producer | None = None
        self._is_closed = False
        #: Whether the topic was terminated: no producer may enter.
        self.is_terminated = False
        self._storing = asyncio.Lock()
        self._background = Background()

    @property
    def exclusive(self) -> Producer | None:
        """The exclusive producer, if there is one."""
        return self._exclusive

    async def add(self, producer: Producer, *, most: int = 0) -> bool:
        """Add a producer (True) or let it wait (False), or raise `RefusedError`.

        `most` is how many producers the topic may have; 0: without limit.
        """
        owner = self._exclusive
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
        if self._exclusive is producer:
            self._exclusive = None
        self._promote()

    def disconnecting(self) -> Iterator[None]:
        """Close every producer from the broker's side; their clients may open them again.

        The first piece ends all of them; the other pieces notify their clients.
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
        mode, owner = producer.access_mode, self._exclusive
        if mode == ProducerAccessMode.Shared and (owner is not None or self.waiting):
            raise self._owned(ServerError.ProducerBusy, "ProducerBusyException")
        if mode == ProducerAccessMode.Exclusive:
            if owner is not None or self.waiting:
                raise self._owned(ServerError.ProducerFenced, "ProducerFencedException")
            if self.by_name:
                raise java_refusal(
                    ServerError.ProducerFenced,
                    "ProducerFencedException",
                    "Topic has existing shared producers",
                )

    def _owned(self, code: ServerError, exception: str) -> RefusedError:
        name = "null" if self._exclusive is None else self._exclusive.name
        return java_refusal(code, exception, f"Topic has an existing exclusive producer: {name}")

    def _enter(self, producer: Producer) -> None:
        producer.home = self
        self.by_name[producer.name] = producer
        if producer.access_mode != ProducerAccessMode.Shared:
            self._exclusive = producer

    def _empty(self) -> None:
        self.by_name.clear()
        self._exclusive = None

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
            log.warning(
                "waiting producer %r could not take over its topic and was fenced: %s",
                successor.name,
                error,
            )
            successor.connection.producer_fenced(successor)
        else:
            successor.connection.producer_ready(successor)

    async def _is_name_free(self, newcomer: Producer) -> bool:
        """Whether no producer has the name. False after a holder that is not alive was removed.

        Raises ProducerBusy if the holder is alive.
        """
        holder = self.by_name.get(newcomer.name)
        if holder is None:
            return True
        if holder.connection is newcomer.connection or await holder.connection.is_alive():
            raise java_refusal(
                ServerError.ProducerBusy,
                "NamingException",
                f"Producer with name '{newcomer.name}' is already connected to topic "
                f"'{self._topic}'",
            )
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
            raise java_refusal(
                ServerError.ProducerFenced,
                "ProducerFencedException",
                "Topic epoch has already moved. "
                f"Current epoch: {current}, Producer epoch: {claimed}",
            )
        if claimed > CLAIMED_EPOCH_MAX:
            raise RefusedError(
                ServerError.ProducerFenced,
                f"topic epoch {claimed} is too high, the highest possible epoch is "
                f"{CLAIMED_EPOCH_MAX}",
            )

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
            raise RefusedError(
                ServerError.ProducerFenced, "fenced while the epoch was being stored"
            )
        if producer.home is not self:
            raise RefusedError(ServerError.ServiceNotReady, "closed while it was being opened")

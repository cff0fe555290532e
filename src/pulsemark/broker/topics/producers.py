"""Who may write to a topic, and under which name.

A producer's name is unique within a topic. A client that asks for a taken name gets it only when
the holder is gone: the holder's connection is pinged, and closed if it stays silent.

Access modes (PIP-68), over the producers that are there already:

==================  =====================  ======================================================
asks for            nobody                 somebody
==================  =====================  ======================================================
Shared              in                     in; ProducerBusy beside an exclusive or waiting one
Exclusive           in, new topic epoch    ProducerFenced
WaitForExclusive    in, new topic epoch    queued (ready=False), let in when all others have gone
ExclusiveWith...    in, new topic epoch    all others are fenced, Shared and waiting ones, too
Fencing
==================  =====================  ======================================================

The topic epoch counts the exclusive owners, is durable before an owner hears of it, and rejects
(ProducerFenced) one that comes back with an older epoch than the topic's. A client may come back
with a higher one, from a topic that was deleted and made anew: it is taken over, as in Pulsar, up
to `CLAIMED_EPOCH_MAX`, so that the topic can always count on.

A producer has one life: it enters a topic once and leaves it once. Entering is the last thing that
happens without a pause after all checks. Leaving (`Producer.leave`) takes effect before it returns,
wherever the producer stands: inside, queued, or between the two while its epoch is being stored.
What goes on in the background meanwhile finds the producer gone and gives it nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

from ...metadata import Sender
from ...proto.pulsar_api_pb2 import CommandProducer, ProducerAccessMode, ServerError
from ..background import Background
from ..errors import RefusedError
from ..subscriptions.consumer import Outlet

if TYPE_CHECKING:
    from ..connection.memory import Reservation
    from ..connection.receipts import Run

__all__ = ["CLAIMED_EPOCH_MAX", "Producer", "ProducerOutlet", "TopicProducers"]


log = logging.getLogger(__name__)

T = TypeVar("T")

#: The highest topic epoch that a client may bring along. Pulsar's are signed 64-bit numbers; this
#: leaves as many again to count on with.
CLAIMED_EPOCH_MAX = 1 << 62


class ProducerOutlet(Outlet, Protocol):
    """The connection a producer lives on."""

    def close_producer(self, producer: Producer) -> None:
        """Tell the client that the broker closed a producer of it."""
        ...

    def producer_fenced(self, producer: Producer) -> None:
        """Another producer took this one's place: refuse its next SEND."""
        ...

    def producer_ready(self, producer: Producer) -> None:
        """A queued producer is let in now."""
        ...


@dataclass(slots=True, eq=False)
class Producer:
    """A producer on a connection."""

    outlet: ProducerOutlet
    producer_id: int
    request_id: int
    name: str
    access_mode: ProducerAccessMode
    epoch: int
    user_provided_name: bool
    #: The epoch it held before, when it comes back; afterwards the one it owns.
    topic_epoch: int | None
    schema_version: bytes = b""
    connected_since_ms: int = 0
    properties: dict[str, str] = field(default_factory=dict)
    messages_in: int = 0
    bytes_in: int = 0
    #: Let in: not waiting any more, and not fenced.
    may_publish: bool = False
    is_waiting: bool = False
    #: Its latest publishes that wait for the disk: an answer to a later one must not overtake them.
    run: Run | None = None
    #: Counts what the client makes the broker keep for it.
    reservation: Reservation | None = None
    #: What stampers are told of it.
    sender: Sender | None = None
    #: The topic's registry while the producer is in it, let in or queued.
    home: TopicProducers | None = None
    #: Closed for good: it may not enter any topic any more.
    has_left: bool = False
    #: Another producer took its place.
    is_fenced: bool = False

    def leave(self) -> None:
        """End: the client closed it, or its connection is lost. Twice is once."""
        self.has_left = True
        self.may_publish = False
        if self.home is not None:
            self.home.remove(self)

    @classmethod
    def from_command(
        cls, outlet: ProducerOutlet, command: CommandProducer, name: str, now_ms: int
    ) -> Producer:
        """The producer that a PRODUCER command asks for."""
        return cls(
            outlet=outlet,
            producer_id=command.producer_id,
            request_id=command.request_id,
            name=name,
            access_mode=command.producer_access_mode,
            epoch=command.epoch,
            user_provided_name=command.user_provided_producer_name,
            topic_epoch=command.topic_epoch if command.HasField("topic_epoch") else None,
            connected_since_ms=now_ms,
            properties={pair.key: pair.value for pair in command.metadata},
        )


class TopicProducers:
    """The producers of one topic."""

    def __init__(
        self, topic_epoch: int | None, store_epoch: Callable[[int], Awaitable[None]]
    ) -> None:
        #: Those that hold the topic; an exclusive one also while its epoch is being stored.
        self.by_name: dict[str, Producer] = {}
        #: Those that wait for exclusive access, the longest waiting first.
        self.waiting: dict[str, Producer] = {}
        self.topic_epoch = topic_epoch
        self._store_epoch = store_epoch
        self._exclusive: Producer | None = None
        self._is_closed = False
        self._storing = asyncio.Lock()
        self._background = Background()

    @property
    def exclusive(self) -> Producer | None:
        """The producer that holds the topic alone."""
        return self._exclusive

    async def add(self, producer: Producer) -> bool:
        """Let a producer in (True) or queue it (False), or raise `RefusedError`."""
        await self._free_name(producer)
        # Nothing waits from here until the producer has its place.
        self._check_can_enter(producer)
        if producer.access_mode == ProducerAccessMode.Shared:
            if self._exclusive is not None or self.waiting:
                raise RefusedError(
                    ServerError.ProducerBusy, "Topic has an existing exclusive producer"
                )
            self._enter(producer)
            # As Pulsar does: it is told the topic's epoch, whatever it claims.
            producer.topic_epoch = self.topic_epoch
            producer.may_publish = True
            return True
        self._check_epoch(producer)
        if producer.access_mode == ProducerAccessMode.ExclusiveWithFencing:
            self._fence_all()
        if self.by_name:
            if producer.access_mode == ProducerAccessMode.WaitForExclusive:
                producer.is_waiting = True
                producer.home = self
                self.waiting[producer.name] = producer
                return False
            raise RefusedError(ServerError.ProducerFenced, "Topic has an existing producer")
        self._enter(producer)
        await self._own(producer)
        return True

    def remove(self, producer: Producer) -> None:
        """A producer has gone; the first waiting one may take the topic over. Twice is once."""
        if producer.home is not self:
            return
        producer.home = None
        if self.waiting.get(producer.name) is producer:
            del self.waiting[producer.name]
            return
        del self.by_name[producer.name]
        if self._exclusive is producer:
            self._exclusive = None
        self._promote()

    def disconnecting(self) -> Iterator[None]:
        """Close every producer from the broker's side; their clients may open them again.

        The first piece ends all of them; the others tell their clients.
        """
        everybody = (*self.waiting.values(), *self.by_name.values())
        self.waiting.clear()
        self._empty()
        for producer in everybody:
            producer.home = None
            producer.may_publish = False
        yield
        for producer in everybody:
            producer.outlet.close_producer(producer)
            yield

    def close(self) -> None:
        """The topic or the broker ends: nobody enters or inherits any more."""
        self._is_closed = True

    async def settled(self) -> None:
        """Return when no epoch is being stored; after `close`, none will be."""
        async with self._storing:
            pass

    # -- places ---------------------------------------------------------------------------------

    def _check_can_enter(self, producer: Producer) -> None:
        if self._is_closed:
            raise RefusedError(ServerError.ServiceNotReady, "the topic is being closed")
        if producer.has_left:
            raise RefusedError(ServerError.ServiceNotReady, "closed while it was being opened")

    def _enter(self, producer: Producer) -> None:
        producer.home = self
        self.by_name[producer.name] = producer
        if producer.access_mode != ProducerAccessMode.Shared:
            self._exclusive = producer

    def _empty(self) -> None:
        self.by_name.clear()
        self._exclusive = None

    def _promote(self) -> None:
        """Give a topic without producers to the first that waits."""
        if self._is_closed or self.by_name or not self.waiting:
            return
        heir = self.waiting.pop(next(iter(self.waiting)))
        self._enter(heir)
        self._background.start(self._succeed(heir))

    async def _succeed(self, heir: Producer) -> None:
        try:
            await self._own(heir)
        except Exception as error:  # noqa: BLE001 - the client hears of it, whatever it is
            log.warning("producer %r could not take the topic over: %s", heir.name, error)
            heir.outlet.producer_fenced(heir)
        else:
            heir.outlet.producer_ready(heir)

    async def _free_name(self, newcomer: Producer) -> None:
        """Return when the name is free; a living holder elsewhere keeps it."""
        while (holder := self._holder_of(newcomer.name)) is not None:
            if holder.outlet is newcomer.outlet or await holder.outlet.is_alive():
                raise RefusedError(
                    ServerError.ProducerBusy,
                    f"Producer with name '{newcomer.name}' is already connected to topic",
                )
            # Each round takes one holder out, so there is an end to them.
            holder.leave()

    def _holder_of(self, name: str) -> Producer | None:
        return self.by_name.get(name) or self.waiting.get(name)

    def _fence_all(self) -> None:
        """Fence every producer, inside or waiting."""
        fenced = (*self.waiting.values(), *self.by_name.values())
        self.waiting.clear()
        self._empty()
        for producer in fenced:
            producer.home = None
            producer.may_publish = False
            producer.is_fenced = True
            producer.outlet.producer_fenced(producer)

    # -- epochs ---------------------------------------------------------------------------------

    def _check_epoch(self, producer: Producer) -> None:
        current = -1 if self.topic_epoch is None else self.topic_epoch
        claimed = producer.topic_epoch
        if claimed is None or claimed == current:
            return
        if claimed < current:
            raise RefusedError(
                ServerError.ProducerFenced,
                f"topic epoch {claimed} is over, the topic's is {current}",
            )
        if claimed > CLAIMED_EPOCH_MAX:
            raise RefusedError(
                ServerError.ProducerFenced,
                f"topic epoch {claimed} was never given, the highest possible is "
                f"{CLAIMED_EPOCH_MAX}",
            )

    async def _own(self, producer: Producer) -> None:
        """Make a producer that has entered the topic's owner, once its epoch is durable."""
        try:
            # Stored to its end, whoever leaves meanwhile: the next epoch is counted from it.
            epoch = await self._background.run_to_end(self._count_epoch(producer))
            self._check_holds(producer)
        except BaseException:
            self.remove(producer)
            raise
        producer.topic_epoch = epoch
        producer.is_waiting = False
        producer.may_publish = True

    async def _count_epoch(self, producer: Producer) -> int:
        """The owner's epoch, durable. One is stored at a time, so that none overtakes another."""
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
        if producer.is_fenced:
            raise RefusedError(
                ServerError.ProducerFenced, "fenced while the epoch was being stored"
            )
        if producer.home is not self:
            raise RefusedError(ServerError.ServiceNotReady, "closed while it was being opened")

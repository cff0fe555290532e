"""Who may write to a topic, and under which name.

A producer's name is unique within a topic. Whoever asks for a taken name gets it only when the
holder is gone: the holder's connection is pinged, and closed if it stays silent. On the same
connection a higher epoch replaces a lower one (the client reconnected within it).

Access modes (PIP-68), over the producers that are there already:

==================  =====================  ======================================================
asks for            nobody                 somebody
==================  =====================  ======================================================
Shared              in                     in; ProducerBusy beside an exclusive or waiting one
Exclusive           in, new topic epoch    ProducerFenced
WaitForExclusive    in, new topic epoch    queued (ready=False), let in when all others have gone
ExclusiveWith...    in, new topic epoch    an exclusive holder and all waiting ones are fenced;
Fencing                                    over Shared holders: ProducerFenced
==================  =====================  ======================================================

The topic epoch counts the exclusive owners, is durable before an owner hears of it, and rejects
(ProducerFenced) one that comes back with an older epoch than the topic's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from ..ledger import LedgerError
from ..metadata import Sender
from ..proto.pulsar_api_pb2 import CommandProducer, ProducerAccessMode, ServerError
from .consumer import Outlet
from .errors import RefusedError

if TYPE_CHECKING:
    from .receipts import ReceiptGroup

__all__ = ["Producer", "ProducerOutlet", "TopicProducers"]


log = logging.getLogger(__name__)


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
    #: The latest publishes that wait for the disk; answers to later ones must not overtake them.
    receipts: ReceiptGroup | None = None
    #: What stampers are told of it.
    sender: Sender | None = None

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
        self.by_name: dict[str, Producer] = {}
        self.waiting: list[Producer] = []
        self.topic_epoch = topic_epoch
        self._store_epoch = store_epoch
        self._exclusive: Producer | None = None
        self._succession: asyncio.Future[None] | None = None

    @property
    def exclusive(self) -> Producer | None:
        """The producer that holds the topic alone."""
        return self._exclusive

    async def add(self, producer: Producer) -> bool:
        """Let a producer in (True) or queue it (False), or raise `RefusedError`."""
        await self._free_name(producer)
        if producer.access_mode == ProducerAccessMode.Shared:
            if self._exclusive is not None or self.waiting:
                raise RefusedError(
                    ServerError.ProducerBusy, "Topic has an existing exclusive producer"
                )
            self.by_name[producer.name] = producer
            producer.may_publish = True
            return True
        self._check_epoch(producer)
        if self.by_name and producer.access_mode == ProducerAccessMode.ExclusiveWithFencing:
            self._fence_holder()
        if self.by_name:
            if producer.access_mode == ProducerAccessMode.WaitForExclusive:
                producer.is_waiting = True
                self.waiting.append(producer)
                return False
            raise RefusedError(ServerError.ProducerFenced, "Topic has an existing producer")
        await self._own(producer)
        return True

    def remove(self, producer: Producer) -> None:
        """A producer has gone; the first waiting one may take the topic over."""
        if producer in self.waiting:
            self.waiting.remove(producer)
            return
        if self.by_name.get(producer.name) is producer:
            del self.by_name[producer.name]
        if self._exclusive is producer:
            self._exclusive = None
        if self.waiting and not self.by_name:
            heir = self.waiting.pop(0)
            self._succession = asyncio.ensure_future(self._succeed(heir))

    def close(self) -> None:
        """The broker ends: nobody inherits any more."""
        self.waiting.clear()

    async def _succeed(self, heir: Producer) -> None:
        try:
            await self._own(heir)
        except (RefusedError, LedgerError, OSError) as error:
            log.warning("producer %r could not take the topic over: %s", heir.name, error)
            heir.outlet.producer_fenced(heir)
            self.remove(heir)
        else:
            heir.outlet.producer_ready(heir)

    async def _free_name(self, newcomer: Producer) -> None:
        """Return when the name is free; a living holder elsewhere keeps it."""
        while (holder := self._holder_of(newcomer.name)) is not None:
            same_place = (
                holder.outlet is newcomer.outlet and holder.producer_id == newcomer.producer_id
            )
            if same_place and holder.epoch < newcomer.epoch:
                self.remove(holder)
                return
            if holder.outlet is newcomer.outlet or await holder.outlet.is_alive():
                raise RefusedError(
                    ServerError.ProducerBusy,
                    f"Producer with name '{newcomer.name}' is already connected to topic",
                )

    def _holder_of(self, name: str) -> Producer | None:
        if name in self.by_name:
            return self.by_name[name]
        return next((producer for producer in self.waiting if producer.name == name), None)

    def _check_epoch(self, producer: Producer) -> None:
        current = -1 if self.topic_epoch is None else self.topic_epoch
        if producer.topic_epoch is not None and producer.topic_epoch < current:
            raise RefusedError(
                ServerError.ProducerFenced,
                f"topic epoch {producer.topic_epoch} is over, the topic's is {current}",
            )

    def _fence_holder(self) -> None:
        """Fence an exclusive holder and everybody waiting; Shared holders stay."""
        if self._exclusive is None:
            return
        for producer in (*self.waiting, self._exclusive):
            producer.may_publish = False
            producer.outlet.producer_fenced(producer)
        self.waiting.clear()
        self.by_name.clear()
        self._exclusive = None

    async def _own(self, producer: Producer) -> None:
        """Make a producer the topic's only one; its epoch is durable when this returns."""
        epoch = producer.topic_epoch
        if epoch is None:
            epoch = 0 if self.topic_epoch is None else self.topic_epoch + 1
        # The place is taken before the epoch is stored: nobody slips in meanwhile.
        self._exclusive = producer
        self.by_name[producer.name] = producer
        if epoch != self.topic_epoch:
            before, self.topic_epoch = self.topic_epoch, epoch
            try:
                await self._store_epoch(epoch)
            except BaseException:
                self.topic_epoch = before
                if self._exclusive is producer:
                    self._exclusive = None
                    self.by_name.pop(producer.name, None)
                raise
        if self._exclusive is not producer:
            raise RefusedError(
                ServerError.ProducerFenced, "fenced while the epoch was being stored"
            )
        producer.topic_epoch = epoch
        producer.is_waiting = False
        producer.may_publish = True

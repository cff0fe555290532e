"""Faults on demand: what a test can let go wrong in a broker of the kit.

    with broker.faults.failing_sends("orders"):
        with pytest.raises(MyPublishError):
            my_app.publish_order()

Those that last are used in a `with` block, and end with it. Topics may be named as in Pulsar's
clients; a partitioned topic means all its partitions.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Literal, Protocol, TypeVar

from ..broker import Broker
from ..ledger import MemoryFolder
from ..metadata.partition_names import partition_of
from ..proto.pulsar_api_pb2 import ProducerAccessMode, ServerError
from ..wire import TopicName
from .faulty_broker import FaultyBroker, SendFault, SendFaults

__all__ = ["Faults"]

T = TypeVar("T")

#: Until it is released.
FOR_EVER_S = 1e9

DiskError = Literal["EIO", "ENOSPC"]
WRITES = ("pwritev", "fdatasync", "fsync")


class Faulted(Protocol):
    """A broker with faults."""

    @property
    def service_url(self) -> str:
        """`pulsar://host:port`."""
        ...

    @property
    def broker(self) -> Broker:
        """The running broker, a `FaultyBroker`."""
        ...

    def call(self, work: Callable[[Broker], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the broker's loop and return its result."""
        ...


class Faults:
    """The faults of one broker. All methods may be called from any thread but the broker's."""

    def __init__(self, target: Faulted, memory: MemoryFolder | None) -> None:
        """`memory` is where a broker in memory keeps its data."""
        self._target = target
        self._memory = memory

    # -- connections ----------------------------------------------------------------------------

    def drop_connections(self) -> int:
        """Break all connections of Pulsar's clients at once; return how many there were.

        Answers that were not yet sent are lost. Clients may connect again.
        """

        async def drop(broker: Broker) -> int:
            sessions = tuple(broker.services.sessions)
            for session in sessions:
                session.abort()
            return len(sessions)

        return self._target.call(drop)

    @contextmanager
    def refusing_connections(self) -> Iterator[None]:
        """Break all connections, and each new one, of Pulsar's clients. HTTP goes on."""
        self._set(refuses_connections=True)
        self.drop_connections()
        try:
            yield
        finally:
            self._set(refuses_connections=False)

    # -- sends ----------------------------------------------------------------------------------

    @contextmanager
    def failing_sends(
        self,
        topic: str | None = None,
        *,
        error: str = "PersistenceError",
        times: int | None = None,
    ) -> Iterator[None]:
        """Answer messages with SEND_ERROR, and store none of them.

        The `send` of an official client fails at once. The clients for Python, Node.js and C++
        then always raise ChecksumError, as this is the only error that they pass on. A Java client
        raises TopicTerminatedException if that was asked for, else NotAllowedException. Every
        other client gets the error that was asked for, and may send again: that is another
        message here.

        Args:
            topic: None: of all topics.
            error: the name of a `ServerError`.
            times: so many messages; None: all. A batch counts once.

        Raises:
            ValueError: there is no such error.
        """
        if error not in ServerError.keys():  # noqa: SIM118 - the enum has no `in` of its own
            raise ValueError(f"error={error!r}: must be one of {', '.join(ServerError.keys())}")
        with self._fault(SendFault(_full(topic), error=ServerError.Value(error), times=times)):
            yield

    @contextmanager
    def losing_receipts(
        self, topic: str | None = None, *, times: int | None = None
    ) -> Iterator[None]:
        """Store messages, and break the connection before the receipt.

        The client sends such a message again, and then its receipt arrives. So it is stored twice,
        unless deduplication is on.

        Args:
            topic: None: of all topics.
            times: so many messages; None: all. A batch counts once.
        """
        with self._fault(SendFault(_full(topic), loses_receipt=True, times=times)):
            yield

    @contextmanager
    def delaying_sends(self, delay: timedelta | float | None = None) -> Iterator[None]:
        """Handle what clients with producers send only after a delay, in seconds.

        Without a delay it is handled when the block ends. Raises ValueError for a negative delay.
        """
        delay_s = delay.total_seconds() if isinstance(delay, timedelta) else delay
        if delay_s is not None and delay_s < 0:
            raise ValueError(f"delay={delay!r}: must not be negative")
        self._set(delay_s=FOR_EVER_S if delay_s is None else delay_s)
        try:
            yield
        finally:
            self._change(SendFaults.release)

    def fence_producers(self, topic: str) -> None:
        """Take a topic away from its producers, as one that opens with ExclusiveWithFencing does.

        Producers with access mode Exclusive get ProducerFenced. Others connect again.
        """
        from .raw_client import RawClient

        with RawClient.from_url(self._target.service_url) as client:
            client.create_producer(
                str(_full(topic)), access_mode=ProducerAccessMode.ExclusiveWithFencing
            )

    # -- delivery -------------------------------------------------------------------------------

    @contextmanager
    def pausing_delivery(
        self, topic: str | None = None, subscription: str | None = None
    ) -> Iterator[None]:
        """Send nothing to the consumers of open subscriptions; None: of all topics, all of them."""
        self._pause(topic, subscription, is_paused=True)
        try:
            yield
        finally:
            self._pause(topic, subscription, is_paused=False)

    def _pause(self, topic: str | None, subscription: str | None, *, is_paused: bool) -> None:
        full = _full(topic)

        async def pause(broker: Broker) -> None:
            for opened in broker.services.topics.open_topics.values():
                if full in (None, opened.name, partition_of(opened.name)[0]):
                    for each in opened.subscriptions.values():
                        if subscription in (None, each.name):
                            each.rates.is_paused = is_paused

        self._target.call(pause)

    # -- storage --------------------------------------------------------------------------------

    @contextmanager
    def failing_disk(self, error: DiskError = "EIO") -> Iterator[None]:
        """Writes and syncs of entries fail. Clients get PersistenceError.

        With ENOSPC the broker goes on when the block ends. After EIO of a sync, what is on a real
        disk is unknown: the broker then takes entries again only after `restart`.
        """
        number = getattr(errno, error)
        files = _faulty(self._target.broker).files
        if files is not None:
            for operation in WRITES if error == "EIO" else WRITES[:1]:
                files.fail(operation, error=number, times=None)
        elif self._memory is not None:
            self._memory.refusal = OSError(number, f"a test lets writes fail with {error}")
        try:
            yield
        finally:
            if files is not None:
                files.heal()
            elif self._memory is not None:
                self._memory.refusal = None

    def full_disk(self) -> Any:
        """The disk is full in this block: `failing_disk("ENOSPC")`."""
        return self.failing_disk("ENOSPC")

    # -- inside ---------------------------------------------------------------------------------

    @contextmanager
    def _fault(self, fault: SendFault) -> Iterator[None]:
        self._change(lambda faults: faults.active.append(fault))
        try:
            yield
        finally:
            self._change(lambda faults: faults.end(fault))

    def _set(self, **values: object) -> None:
        def change(faults: SendFaults) -> None:
            for name, value in values.items():
                setattr(faults, name, value)

        self._change(change)

    def _change(self, change: Callable[[SendFaults], None]) -> None:
        async def on_loop(broker: Broker) -> None:
            change(_faulty(broker).send_faults)

        self._target.call(on_loop)


def _faulty(broker: Broker) -> FaultyBroker:
    assert isinstance(broker, FaultyBroker)
    return broker


def _full(topic: str | None) -> str | None:
    return None if topic is None else str(TopicName.parse(topic))

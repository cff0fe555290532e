"""Faults on demand: what a test can let go wrong in a broker of the kit.

    with broker.faults.failing_sends("orders"):
        with pytest.raises(MyPublishError):
            my_app.publish_order()

Those that last are used in a `with` block, and end with it. Topics may be named as in Pulsar's
clients; a partitioned topic means all its partitions.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, Protocol, TypeVar, cast

from ..broker import Broker, BrokerConfig
from ..broker.handlers import handle_command, handle_sends, handle_unsupported
from ..broker.services import Services, Session
from ..ledger import MemoryFolder
from ..metadata.partition_names import partition_of
from ..proto.pulsar_api_pb2 import ProducerAccessMode, ServerError
from ..wire import Sends, TopicName, commands
from .faulty_files import FaultyFiles

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


@dataclass(eq=False, slots=True)
class SendFault:
    """What happens to the messages of a topic, or of all topics."""

    topic: str | None
    """A full name, which partitions of a topic match, too; None: all topics."""
    error: int | None = None
    """Messages are refused with this ServerError."""
    loses_receipt: bool = False
    """Messages are stored, and then the connection is closed without a receipt."""
    times: int | None = None
    """After so many messages it is over; None: it goes on."""
    lost: set[tuple[str, str, bytes]] = field(default_factory=set)
    """Topic, producer and bytes of messages whose receipt was lost. When they are sent again,
    their receipt arrives: a client whose every receipt is lost sends for ever."""

    def takes(self, topic: str, message: tuple[str, str, bytes]) -> bool:
        """Whether it holds for a message of this topic; counts it."""
        if self.times == 0 or self.topic not in (None, topic, partition_of(topic)[0]):
            return False
        if message in self.lost:
            return False
        if self.loses_receipt:
            self.lost.add(message)
        if self.times is not None:
            self.times -= 1
        return True


@dataclass(eq=False, slots=True)
class SendFaults:
    """The faults of one broker. Changed on the broker's loop only."""

    active: list[SendFault] = field(default_factory=list)
    delay_s: float | None = None
    """What a client with producers sends is handled so much later."""
    waiting: set[FaultySession] = field(default_factory=set)
    refuses_connections: bool = False

    def end(self, fault: SendFault) -> None:
        """A fault is over."""
        if fault in self.active:
            self.active.remove(fault)

    def release(self) -> None:
        """Handle what was delayed."""
        self.delay_s = None
        for session in tuple(self.waiting):
            session.go_on()


#: How the version of a client begins; the errors of a SEND_ERROR that make its `send` fail, the
#: first in place of all others. For any other error these clients connect again and send again, and
#: each new connection begins their send timeout anew: `send` would never return.
FINAL_ERRORS = {
    "Pulsar-CPP": (ServerError.ChecksumError,),
    "Pulsar-Java": (ServerError.NotAllowedError, ServerError.TopicTerminatedError),
}


class FaultySession(Session):
    """A client's connection, with the broker's faults."""

    def __init__(self, services: Services, faults: SendFaults) -> None:
        super().__init__(services, FAULTY_COMMANDS)
        self._faults = faults
        self._waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Close it again if connections are refused."""
        super().connection_made(transport)
        if self._faults.refuses_connections:
            self.abort()

    def take_turn(self) -> None:
        """Handle the input, at once or later."""
        delay_s = self._faults.delay_s
        if delay_s is None or not self.producers or self.is_closed:
            super().take_turn()
        elif self._waiting is None:
            self.throttling.throttle()
            self._faults.waiting.add(self)
            loop = asyncio.get_running_loop()
            self._waiting = loop.call_later(delay_s, self.go_on)

    def go_on(self) -> None:
        """The delay is over."""
        self._faults.waiting.discard(self)
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
            if not self.is_closed:
                super().take_turn()
                self.throttling.unthrottle()

    def close_state(self) -> None:
        """The connection ends; what was delayed is never handled."""
        self._faults.waiting.discard(self)
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        super().close_state()

    def take_sends(self, event: Sends) -> None:
        """Messages: store each, or do what a fault says."""
        if not self._faults.active:
            handle_sends(self, event)
            return
        for number in range(len(event)):
            if not self.is_closed:
                self._handle_one(event.alone(number))

    def _handle_one(self, event: Sends) -> None:
        entry = self.producers.get(event.producer_id)
        if entry is None:
            handle_sends(self, event)
            return
        producer, opened = entry
        message = opened.name, producer.name, bytes(event.bodies[0])
        fault = next((f for f in self._faults.active if f.takes(opened.name, message)), None)
        if fault is not None and fault.error is not None:
            self.receipts.answer_in_turn(producer, self._refusal(event, fault.error))
            return
        handle_sends(self, event)
        if fault is not None:
            self.abort()

    def _refusal(self, event: Sends, error: int) -> bytes:
        """A SEND_ERROR after which the client gives the message up."""
        name = ServerError.Name(cast("ServerError", error))
        sequence_id = event.sequence_ids[0]
        for client, final in FINAL_ERRORS.items():
            if self.client_version.startswith(client):
                error = error if error in final else final[0]
        if self.client_version.startswith("Pulsar-Java"):
            # It knows a batch by its last message.
            sequence_id = max(sequence_id, event.highest_sequence_ids[0])
        return commands.send_error(
            event.producer_id,
            sequence_id,
            cast("ServerError", error),
            f"a test lets sends fail with {name}",
        )


class FaultyCommands:
    """The handlers of commands, with faults for SENDs."""

    handle_command = staticmethod(handle_command)
    handle_unsupported = staticmethod(handle_unsupported)

    @staticmethod
    def handle_sends(session: Any, event: Sends, /) -> None:
        """SENDs: the session knows the faults."""
        session.take_sends(event)


FAULTY_COMMANDS = FaultyCommands()


class FaultyBroker(Broker):
    """A broker of the test kit."""

    def __init__(self, config: BrokerConfig | None = None) -> None:
        super().__init__(config)
        self.send_faults = SendFaults()
        self.files: FaultyFiles | None = None
        if self.config.storage == "files":
            self.files = FaultyFiles()

    def make_session(self) -> Session:
        """A connection that obeys the faults."""
        return FaultySession(self.services, self.send_faults)

    async def kill(self) -> None:
        """End as a crash looks to clients: no answer, no goodbye; then give the store back."""
        for session in tuple(self.services.sessions):
            session.abort()
        for connection in tuple(self.services.http_connections):
            connection.close()
        await self.close()

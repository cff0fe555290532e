"""Faults on demand: failures that a test can switch on in a broker of the kit.

    with broker.faults.failing_sends("orders"):
        with pytest.raises(MyPublishError):
            my_app.publish_order()

Lasting faults are used in a `with` block, and end with it. Topics may be named as in Pulsar's
clients; a partitioned topic means all its partitions.

A lasting fault is a `Fault`: an object with its options, which a `FaultyBroker` installs and
removes. `Faults` does that for a test in Python, in the broker's process or over HTTP; the routes
of `controls` do it for tests in any language. Faults of Kafka's requests are in `kafka_faults`.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import random
import signal
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import MISSING, dataclass, field, fields, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypedDict, TypeVar, Unpack, cast

from ..broker import Broker, BrokerConfig
from ..broker.connection.services import Services
from ..broker.connection.session import Session
from ..broker.handlers import handle_command, handle_sends, handle_unsupported
from ..ledger import MemoryFolder
from ..metadata import Buffer
from ..metadata.partition_names import partition_of
from ..proto.pulsar_api_pb2 import ProducerAccessMode, ServerError
from ..wire import Sends, TopicName, commands
from .faulty_files import FaultyFiles

if TYPE_CHECKING:
    from ..broker.kafka.endpoint import Handler


#: The path of the routes of `controls`.
TEST_PATH = "/pulsemark/test"
DiskError = Literal["EIO", "ENOSPC"]
#: A day.
MAX_DELAY_MS = 86_400_000
WRITES = ("pwritev", "fdatasync", "fsync")


@dataclass(eq=False, slots=True, kw_only=True)
class Fault:
    """A failure that lasts while it is installed. Its fields are its options."""

    name: ClassVar[str]
    """The name of the method of `Faults`."""

    def begin(self, broker: FaultyBroker) -> None:
        """Called on the broker's loop after it was installed, as `end` after it was removed."""

    def end(self, broker: FaultyBroker) -> None:
        """Called on the broker's loop after it was removed."""

    @classmethod
    def options(cls) -> dict[str, Any]:
        """The names of its options, with their defaults."""
        return {
            each.name: None if each.default is MISSING else each.default
            for each in fields(cls)
            if each.init and not each.name.startswith("_")
        }

    def to_json(self) -> dict[str, Any]:
        """The form that `controls.fault_of` takes."""
        return {"fault": self.name, **{each: getattr(self, each) for each in self.options()}}


@dataclass(eq=False, slots=True, kw_only=True)
class RefusingConnections(Fault):
    """Breaks all connections, and each new one. HTTP goes on."""

    name = "refusing_connections"

    def begin(self, broker: FaultyBroker) -> None:
        """Break existing connections."""
        broker.drop_connections()


@dataclass(eq=False, slots=True, kw_only=True)
class DelayingSends(Fault):
    """Handles what clients publish later."""

    name = "delaying_sends"

    delay_ms: int | None = None
    """None: when the fault is removed."""
    _over: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        if self.delay_ms is not None and not 0 <= self.delay_ms <= MAX_DELAY_MS:
            raise ValueError(f"delay_ms={self.delay_ms!r}: must be from 0 to {MAX_DELAY_MS}")

    def end(self, broker: FaultyBroker) -> None:
        """Handle what was delayed."""
        self._over.set()

    async def wait(self) -> None:
        """Return when the delay is over."""
        delay_s = None if self.delay_ms is None else self.delay_ms / 1000
        with suppress(TimeoutError):
            await asyncio.wait_for(self._over.wait(), delay_s)


@dataclass(eq=False, slots=True, kw_only=True)
class PausingDelivery(Fault):
    """Sends nothing to consumers of open subscriptions."""

    name = "pausing_delivery"

    topic: str | None = None
    """None: of all topics."""
    subscription: str | None = None
    """None: all of them."""

    def __post_init__(self) -> None:
        self.topic = full_name(self.topic)

    def begin(self, broker: FaultyBroker) -> None:
        """Pause them."""
        self._pause(broker, is_paused=True)

    def end(self, broker: FaultyBroker) -> None:
        """Go on."""
        self._pause(broker, is_paused=False)

    def _pause(self, broker: FaultyBroker, *, is_paused: bool) -> None:
        for opened in broker.services.topics.open_topics.values():
            if is_meant(self.topic, opened.name):
                for each in opened.subscriptions.values():
                    if self.subscription in (None, each.name):
                        each.rates.is_paused = is_paused


@dataclass(eq=False, slots=True, kw_only=True)
class FailingDisk(Fault):
    """Lets writes and syncs of entries fail."""

    name = "failing_disk"

    error: str = "EIO"

    def __post_init__(self) -> None:
        check_option("error", self.error, ("EIO", "ENOSPC"))

    def begin(self, broker: FaultyBroker) -> None:
        """Let writes and syncs fail."""
        number = getattr(errno, self.error)
        if broker.files is not None:
            for operation in WRITES if self.error == "EIO" else WRITES[:1]:
                broker.files.fail(operation, error=number, times=None)
        elif broker.config.memory is not None:
            text = f"a test lets writes fail with {self.error}"
            broker.config.memory.refusal = OSError(number, text)

    def end(self, broker: FaultyBroker) -> None:
        """Heal the disk."""
        if broker.files is not None:
            broker.files.heal()
        elif broker.config.memory is not None:
            broker.config.memory.refusal = None


@dataclass(eq=False, slots=True, kw_only=True)
class Some(Fault):
    """A fault of some requests: the options that choose them."""

    topic: str | None = None
    """None: of all topics."""
    client: str | None = None
    """A producer's name or a Kafka client's id (client.id). None: of all clients."""
    times: int | None = None
    """The number of requests that fail; None: all. A batch counts once."""
    on_call: int = 1
    """The number of the first matching request that fails; 1 is the next one."""
    probability: float = 1.0
    """The probability that each of them fails, above 0 and up to 1."""
    calls: int = field(default=0, init=False)
    """The number of matching requests."""
    hits: int = field(default=0, init=False)
    """The number of failed requests."""

    def __post_init__(self) -> None:
        self.topic = full_name(self.topic)
        if not 0 < self.probability <= 1:
            raise ValueError(f"probability={self.probability!r}: must be above 0 and up to 1")
        for name, least, value in (("times", 0, self.times), ("on_call", 1, self.on_call)):
            if value is not None and value < least:
                raise ValueError(f"{name}={value!r}: must be at least {least}")

    def takes(self, topic: str, client: str) -> bool:
        """Whether a client's request to this topic fails; counts it."""
        if not is_meant(self.topic, topic) or self.client not in (None, client):
            return False
        self.calls += 1
        if self.calls < self.on_call or (self.times is not None and self.hits >= self.times):
            return False
        if self.probability < 1 and random.random() >= self.probability:  # noqa: S311 - a fault
            return False
        self.hits += 1
        return True


@dataclass(eq=False, slots=True, kw_only=True)
class SendFault(Some):
    """A fault of some messages of Pulsar's clients."""

    def takes_message(self, topic: str, producer: str, body: Buffer) -> bool:
        """Whether this message fails; counts it."""
        return self.takes(topic, producer)


@dataclass(eq=False, slots=True, kw_only=True)
class FailingSends(SendFault):
    """Messages are answered with SEND_ERROR and not stored."""

    name = "failing_sends"

    error: str = "PersistenceError"
    """The name of a `ServerError`."""

    def __post_init__(self) -> None:
        super(FailingSends, self).__post_init__()
        check_option("error", self.error, ServerError.keys())


@dataclass(eq=False, slots=True, kw_only=True)
class LosingReceipts(SendFault):
    """Messages are stored, and then the connection breaks without a receipt."""

    name = "losing_receipts"

    lost: set[tuple[str, str, bytes]] = field(default_factory=set, init=False)
    """Topic, producer and bytes of messages whose receipt was lost. When they are sent again,
    their receipt arrives: a client whose every receipt is lost sends for ever."""

    def takes_message(self, topic: str, producer: str, body: Buffer) -> bool:
        """Whether a message's receipt is lost, which happens to each message once."""
        message = topic, producer, bytes(body)
        if message in self.lost or not self.takes(topic, producer):
            return False
        self.lost.add(message)
        return True


POINTS = ("before_append", "after_append")


@dataclass(eq=False, slots=True, kw_only=True)
class Crashing(SendFault):
    """The broker's process ends as by kill -9, while it publishes a message. Only over HTTP."""

    name = "crashing"

    point: str = "after_append"
    """`before_append`: nothing of the message is stored. `after_append`: it is durable, and its
    receipt was not sent."""

    def __post_init__(self) -> None:
        super(Crashing, self).__post_init__()
        check_option("point", self.point, POINTS)


def kill_this_process() -> None:
    """End the process as kill -9 does."""
    os.kill(os.getpid(), signal.SIGKILL)


def check_option(name: str, value: object, known: Any) -> None:
    """Raise ValueError for a value that is not among the known ones."""
    if value not in known:
        raise ValueError(f"{name}={value!r}: must be one of {', '.join(known)}")


def full_name(topic: str | None) -> str | None:
    """A topic's full name. Raises InvalidTopicNameError."""
    return None if topic is None else str(TopicName.parse(topic))


def is_meant(asked: str | None, topic: str) -> bool:
    """Whether a fault of the topic `asked` (None: all) concerns `topic`, by full names."""
    return asked is None or asked in (topic, partition_of(topic)[0])


class Which(TypedDict, total=False):
    """Options of a fault of some requests; see `Some`."""

    times: int | None
    on_call: int
    probability: float
    client: str | None


class Faults(ABC):
    """The faults of one broker. All methods may be called from any thread but the broker's."""

    @abstractmethod
    def _install(self, fault: Fault) -> int:
        """Install a fault. Return the number for `_remove`."""

    @abstractmethod
    def _remove(self, number: int) -> None:
        """Remove a fault, if it is still installed."""

    @contextmanager
    def _installed(self, fault: Fault) -> Iterator[None]:
        number = self._install(fault)
        try:
            yield
        finally:
            self._remove(number)

    # -- connections ----------------------------------------------------------------------------

    @abstractmethod
    def drop_connections(self) -> int:
        """Break all clients' present connections, losing answers. Return their number."""

    def refusing_connections(self) -> AbstractContextManager[None]:
        """Break each connection of Pulsar's and Kafka's clients, and each new one; not HTTP."""
        return self._installed(RefusingConnections())

    # -- sends ----------------------------------------------------------------------------------

    def failing_sends(
        self, topic: str | None = None, *, error: str = "PersistenceError", **which: Unpack[Which]
    ) -> AbstractContextManager[None]:
        """Answer messages with SEND_ERROR, and store none of them.

        The `send` of an official client fails at once. The clients for Python, Node.js and C++
        then always raise ChecksumError, as this is the only error that they pass on. A Java client
        raises TopicTerminatedException if that was asked for, else NotAllowedException. Every
        other client gets the error that was asked for, and may send again: that is another
        message here.

        `topic` None means all topics; `error` is the name of a `ServerError`; `which` is as in
        `Some`. Raises ValueError: there is no such error.
        """
        return self._installed(FailingSends(topic=topic, error=error, **which))

    def losing_receipts(
        self, topic: str | None = None, **which: Unpack[Which]
    ) -> AbstractContextManager[None]:
        """Store messages, and break the connection before the receipt.

        The client sends such a message again, and then its receipt arrives. So it is stored twice,
        unless deduplication is on.

        `topic` None means all topics; `which` is as in `Some`.
        """
        return self._installed(LosingReceipts(topic=topic, **which))

    def delaying_sends(
        self, delay: timedelta | float | None = None
    ) -> AbstractContextManager[None]:
        """Handle what clients publish only after a delay, in seconds: SENDs, and Kafka's Produce.

        Without a delay it is handled when the block ends. Raises ValueError for a negative delay,
        or one of more than a day.
        """
        delay_s = delay.total_seconds() if isinstance(delay, timedelta) else delay
        delay_ms = None if delay_s is None else round(delay_s * 1000)
        return self._installed(DelayingSends(delay_ms=delay_ms))

    @abstractmethod
    def fence_producers(self, topic: str) -> None:
        """Take a topic away from producers, as ExclusiveWithFencing: Exclusive ones are fenced."""

    # -- Kafka ----------------------------------------------------------------------------------

    def failing_kafka(
        self, api: str, topic: str | None = None, *, error: str, **which: Unpack[Which]
    ) -> AbstractContextManager[None]:
        """Answer requests of Kafka's clients with an error, and do nothing else for them.

        `api` and `error` are Kafka's names, such as "Produce" and "NOT_LEADER_OR_FOLLOWER". `topic`
        None means all topics; `which` is as in `Some`. Raises ValueError: there is no such request
        or error, or the request's answer has no errors.
        """
        from .kafka_faults import FailingKafka

        return self._installed(FailingKafka(api=api, topic=topic, error=error, **which))

    def losing_kafka_answers(
        self, api: str, topic: str | None = None, **which: Unpack[Which]
    ) -> AbstractContextManager[None]:
        """Do what Kafka's clients ask for, but break the connection. As `failing_kafka`."""
        from .kafka_faults import LosingKafkaAnswers

        return self._installed(LosingKafkaAnswers(api=api, topic=topic, **which))

    # -- delivery -------------------------------------------------------------------------------

    def pausing_delivery(
        self, topic: str | None = None, subscription: str | None = None
    ) -> AbstractContextManager[None]:
        """Send nothing to the consumers of open subscriptions; None: of all topics, all of them."""
        return self._installed(PausingDelivery(topic=topic, subscription=subscription))

    # -- storage --------------------------------------------------------------------------------

    def failing_disk(self, error: DiskError = "EIO") -> AbstractContextManager[None]:
        """Writes and syncs of entries fail. Clients get PersistenceError.

        With ENOSPC the broker goes on when the block ends. After EIO of a sync, what is on a real
        disk is unknown: the broker then takes entries again only after `restart`.
        """
        return self._installed(FailingDisk(error=error))

    def full_disk(self) -> AbstractContextManager[None]:
        """The disk is full in this block: `failing_disk("ENOSPC")`."""
        return self.failing_disk("ENOSPC")


#: How the version of a client begins; the errors of a SEND_ERROR that make its `send` fail, the
#: first in place of all others. For any other error these clients connect again and send again, and
#: each new connection begins their send timeout anew: `send` would never return.
FINAL_ERRORS = {
    "Pulsar-CPP": (ServerError.ChecksumError,),
    "Pulsar-Java": (ServerError.NotAllowedError, ServerError.TopicTerminatedError),
}


class FaultySession(Session):
    """A client's connection, with the broker's faults."""

    def __init__(self, services: Services, broker: FaultyBroker) -> None:
        super().__init__(services, FAULTY_COMMANDS)
        self._broker = broker
        self._waiting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Close it again if connections are refused."""
        super().connection_made(transport)
        if self._broker.active(RefusingConnections):
            self.abort()

    def take_turn(self) -> None:
        """Handle the input, at once or later."""
        delays = self._broker.active(DelayingSends)
        if not delays or not self.producers or self.is_closed:
            super().take_turn()
        elif self._waiting is None:
            self.throttle()
            self._waiting = asyncio.get_running_loop().create_task(self._go_on(delays[0]))

    async def _go_on(self, delay: DelayingSends) -> None:
        await delay.wait()
        self._waiting = None
        if not self.is_closed:
            super().take_turn()
            self.unthrottle()

    def close_state(self) -> None:
        """The connection ends; what was delayed is never handled."""
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        super().close_state()

    def take_sends(self, event: Sends) -> None:
        """Store each message, or do what a fault says."""
        faults = self._broker.active(SendFault)
        if not faults:
            handle_sends(self, event)
            return
        for number in range(len(event)):
            if not self.is_closed:
                self._handle_one(event.alone(number), faults)

    def _handle_one(self, event: Sends, faults: list[SendFault]) -> None:
        entry = self.producers.get(event.producer_id)
        if entry is None:
            handle_sends(self, event)
            return
        producer, opened = entry
        message = opened.name, producer.name, event.bodies[0]
        fault = next((each for each in faults if each.takes_message(*message)), None)
        if isinstance(fault, FailingSends):
            self.receipts.answer_in_turn(producer, self._refusal(event, fault.error))
            return
        if isinstance(fault, Crashing) and fault.point == "before_append":
            kill_this_process()
        handle_sends(self, event)
        if isinstance(fault, Crashing) and producer.run is not None:
            producer.run.commit.add_done_callback(lambda _: kill_this_process())
        if fault is not None:
            self.abort()

    def _refusal(self, event: Sends, name: str) -> bytes:
        """A SEND_ERROR after which the client gives the message up."""
        error: int = ServerError.Value(name)
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

F = TypeVar("F", bound=Fault)

#: A number is given once in a process: a fault that ended with its broker is not taken for another.
NUMBERS = itertools.count(1)


class FaultyBroker(Broker):
    """A broker of the test kit."""

    def __init__(self, config: BrokerConfig | None = None) -> None:
        config = config or BrokerConfig()
        if config.storage == "memory" and config.memory is None:
            config = replace(config, memory=MemoryFolder())
        super().__init__(config)
        #: Installed faults, by number.
        self.installed: dict[int, Fault] = {}
        self.files: FaultyFiles | None = None
        if self.config.storage == "files":
            self.files = FaultyFiles()

    def install(self, fault: Fault) -> int:
        """Install a fault. Return its number."""
        number = next(NUMBERS)
        fault.begin(self)
        self.installed[number] = fault
        return number

    def remove(self, number: int) -> None:
        """Remove a fault, if it is installed. Others of its kind stay."""
        fault = self.installed.pop(number, None)
        if fault is not None:
            fault.end(self)
            for other in self.active(type(fault)):
                other.begin(self)

    def active(self, kind: type[F]) -> list[F]:
        """The installed faults of this kind, the oldest first."""
        return [fault for fault in self.installed.values() if isinstance(fault, kind)]

    def drop_connections(self) -> int:
        """Break all connections of Pulsar's and Kafka's clients. Return their number."""
        kafka = () if self.kafka is None else self.kafka.sessions
        sessions = [*self.services.sessions, *kafka]
        for session in sessions:
            session.abort()
        return len(sessions)

    async def fence_producers(self, topic: str) -> None:
        """Take a topic from its producers."""
        await self.run_blocking(_fence, self.service_url, str(full_name(topic)))

    def make_session(self) -> Session:
        """Make a connection with the faults."""
        return FaultySession(self.services, self)

    def kafka_handlers(self) -> Mapping[int, Handler]:
        """Make handlers with the faults."""
        from .kafka_faults import faulty_handlers

        return faulty_handlers(self, super().kafka_handlers())

    async def close(self) -> None:
        """Close, then heal the disk, so that a broker in memory can be started again."""
        try:
            await super().close()
        finally:
            for fault in self.active(FailingDisk):
                fault.end(self)

    async def kill(self) -> None:
        """End as a crash looks to clients, without answers; then release the store."""
        self.drop_connections()
        for connection in tuple(self.services.http_connections):
            connection.close()
        await self.close()


def _fence(service_url: str, topic: str) -> None:
    from .raw_client import RawClient

    with RawClient.from_url(service_url) as client:
        client.create_producer(topic, access_mode=ProducerAccessMode.ExclusiveWithFencing)

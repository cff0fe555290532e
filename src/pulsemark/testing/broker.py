"""The broker of fixtures: it runs in a thread, where a test can inspect and disturb it.

with PulsarBroker() as broker:
    client = pulsar.Client(broker.service_url)
    ...
    broker.clock.advance(hours=1)
    broker.assert_published("orders", key="42")
    broker.restart()
"""

from __future__ import annotations

import asyncio
import threading
import unittest
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from ..broker import Broker, BrokerConfig, BrokerThread
from ..broker.connection.services import Services
from ..broker.errors import BrokerStateError
from ..broker.handlers.authenticating import check_credentials
from ..broker.server import with_used_ports
from ..broker.subscriptions.shared_dispatcher import SharedDispatcher
from ..broker.topics.topic import Topic
from ..ledger import MemoryFolder, TopicLog
from ..metadata.partition_names import partition_of
from ..wire import TopicName
from .clock import SettableClock
from .faults import Fault, Faults, FaultyBroker
from .inspection import BrokerLife, Inspection, StoredMessage, messages_in

if TYPE_CHECKING:
    from ..client.admin import AdminClient

T = TypeVar("T")

#: As `BrokerThread` names its thread.
THREAD_NAME = "pulsemark-broker"


class PulsarBroker(BrokerLife, BrokerThread, Inspection):
    """A broker on free ports, in a thread of this process.

    It can be stopped and started again: its data, its ports and its clock stay the same. `close`,
    or the end of the `with` block, removes a temporary data folder.

    `settings` are fields of `BrokerConfig`. Ports default to free ones, gRPC and Kafka to off, the
    clock to a running `SettableClock`. Raises ConfigError for a wrong value, TypeError for a field
    that does not exist.
    """

    def __init__(self, **settings: Any) -> None:
        chosen = {"port": 0, "http_port": 0, "clock": SettableClock(running=True), **settings}
        in_memory = chosen.get("storage") == "memory"
        if in_memory:
            chosen.setdefault("memory", MemoryFolder())
        self.config = BrokerConfig(**chosen)
        self._needs_folder = not in_memory and self.config.data_dir is None
        BrokerThread.__init__(self, self.config, make_broker=FaultyBroker)
        #: The faults that can be switched on.
        self.faults: Faults = _LocalFaults(self)
        #: Whether it was started, and not stopped since.
        self.is_running = False
        if isinstance(self.config.clock, SettableClock):
            self.config.clock.watchers.append(self)

    # -- parts ----------------------------------------------------------------------------------

    @property
    def clock(self) -> SettableClock:
        """The broker's clock. Raises TypeError if the test gave one of another kind."""
        clock = self.config.clock
        if not isinstance(clock, SettableClock):
            raise TypeError(f"the broker was given {clock!r}, which a test cannot move")
        return clock

    @property
    def admin(self) -> AdminClient:
        """A client of the broker's admin interface. It needs `http_port`."""
        from ..client.admin import AdminClient

        return AdminClient(self.http_url)

    def call(self, work: Callable[[Broker], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the broker's loop and return its result. Not from that loop.

        Raises BrokerStateError if the broker does not run, RuntimeError on that loop.
        """
        if threading.current_thread().name == THREAD_NAME:
            raise RuntimeError("called on the broker's own loop, which must not wait for itself")
        if not self.is_running:
            raise BrokerStateError("running", "not running")
        return BrokerThread.call(self, work)

    # -- life -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Start, and return when it serves. Raises BrokerStateError, and as `Broker.start`."""
        if self.is_running:
            raise BrokerStateError("not running", "running")
        if not self._needs_folder:
            self._start(self.config)
            return
        with self._temporary_folder() as folder:
            self._start(replace(self.config, data_dir=folder))

    def _start(self, config: BrokerConfig) -> None:
        # A broker, and its thread, have one life each.
        BrokerThread.__init__(self, config, make_broker=FaultyBroker)
        BrokerThread.start(self)
        self.is_running = True
        self.config = with_used_ports(config, partial(getattr, self))

    def stop(self) -> None:
        """Stop in order; the data is kept, and `start` goes on with it."""
        self.is_running = False
        BrokerThread.close(self)

    def kill(self) -> None:
        """Stop as a crash looks to clients. For a real kill -9 there is `BrokerProcess`."""
        if self.is_running:
            self.call(_kill)
            self.stop()

    def close(self) -> None:
        """Stop in order, and remove a temporary data folder. A second call does nothing."""
        try:
            super().close()
        finally:
            clock = self.config.clock
            if isinstance(clock, SettableClock) and self in clock.watchers:
                clock.watchers.remove(self)

    # -- inspection -----------------------------------------------------------------------------

    def messages(self, topic: str) -> list[StoredMessage]:
        """All messages of a topic, in order; of a partitioned topic by broker time.

        Nothing is consumed or acknowledged. A topic that does not exist has no messages.
        """
        return self.call(lambda broker: messages_of_topic(broker, topic))

    def _topic_names(self) -> list[str]:
        async def names(broker: Broker) -> list[str]:
            return list(broker.services.topics.names.snapshot())

        return self.call(names)

    # -- the clock's calls ----------------------------------------------------------------------

    def before_move(self) -> None:
        """Note what is unused before the test moves the clock."""
        if self.is_running:
            self.call(lambda broker: before_clock_moves(broker.services))

    def after_move(self) -> None:
        """Do everything that is due after the test moved the clock."""
        if self.is_running:
            self.call(lambda broker: clock_moved(broker.services))


async def _kill(broker: Broker) -> None:
    await _faulty(broker).kill()


class _LocalFaults(Faults):
    """The faults of a broker in this process."""

    def __init__(self, broker: PulsarBroker) -> None:
        self._broker = broker

    def _do(self, work: Callable[[FaultyBroker], T]) -> T:
        """Do this on the broker's loop."""

        async def done(broker: Broker) -> T:
            return work(_faulty(broker))

        return self._broker.call(done)

    def _install(self, fault: Fault) -> int:
        return self._do(lambda broker: broker.install(fault))

    def _remove(self, number: int) -> None:
        if self._broker.is_running:  # else the fault has ended with its broker
            self._do(lambda broker: broker.remove(number))

    def drop_connections(self) -> int:
        return self._do(FaultyBroker.drop_connections)

    def fence_producers(self, topic: str) -> None:
        self._broker.call(lambda broker: _faulty(broker).fence_producers(topic))


def _faulty(broker: Broker) -> FaultyBroker:
    assert isinstance(broker, FaultyBroker)
    return broker


async def messages_of_topic(broker: Broker, topic: str) -> list[StoredMessage]:
    """All messages of a topic, in order; of a partitioned topic by broker time."""
    topics, name = broker.services.topics, str(TopicName.parse(topic))
    found: list[StoredMessage] = []
    for full in topics.names.snapshot():
        if name in (full, partition_of(full)[0]):
            opened = await topics.open(TopicName.parse(full), create=False)
            found += await broker.services.run_blocking(_all_messages, opened.ledger)
    return sorted(found, key=lambda each: (each.broker_time_ms, each.topic, each.index))


def _all_messages(log: TopicLog) -> list[StoredMessage]:
    return list(messages_in(log))


async def before_clock_moves(services: Services) -> None:
    """Note unused topics, which are deleted some time after that."""
    await services.lifetimes.check_topics()
    await services.lifetimes.check_subscriptions()


async def clock_moved(services: Services) -> None:
    """Do all housekeeping that is due by the clock, and return when it is done."""
    now_s = asyncio.get_running_loop().time()
    for session in tuple(services.sessions):
        if session.credentials is not None:
            session.credentials.next_check_s = now_s
        check_credentials(session, now_s)
    for topic in tuple(services.topics.open_topics.values()):
        _deliver_due(topic)
    if services.transactions is not None:
        await services.transactions.checked()
    await services.cleaning.clean_now()
    await services.lifetimes.backlogs.check_all()
    await services.lifetimes.check_topics()
    await services.lifetimes.check_subscriptions()
    await services.lifetimes.store_snapshots()


def _deliver_due(topic: Topic) -> None:
    for subscription in tuple(topic.subscriptions.values()):
        dispatcher = subscription.dispatcher
        if isinstance(dispatcher, SharedDispatcher):
            dispatcher.delayed.check_now()


def running_broker(**settings: Any) -> PulsarBroker:
    """A `PulsarBroker` with these settings, for a `with` block. Raises as that and its start."""
    return PulsarBroker(**settings)


class PulsarTestCase(unittest.TestCase):
    """A test case with a broker, which all tests of the class share."""

    #: Fields of `BrokerConfig`; a subclass sets its own.
    broker_settings: ClassVar[dict[str, Any]] = {"storage": "memory"}
    broker: ClassVar[PulsarBroker]

    @classmethod
    def setUpClass(cls) -> None:
        """Start the broker."""
        super().setUpClass()
        cls.broker = cls.enterClassContext(running_broker(**cls.broker_settings))

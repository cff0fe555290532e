"""A broker without threads, sockets and real time, so that a test can try any order of events.

    broker = SimulatedBroker(folder)          # real sessions, topics, ledgers; a simulated disk
    client = broker.connect()
    client.send(commands.producer("persistent://public/default/t", 1, 901))
    broker.work.release()                     # one piece of blocking work is done
    broker.quiesce()                          # wait until nothing more can happen
    client.answers[901]

A client tracks its `producers` and `consumers` by the broker's answers, so that a test can compare
them with the broker's own state. Producers and consumers of a client must have different ids.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from pulsemark.broker import handlers
from pulsemark.broker.configuration.config import BrokerConfig
from pulsemark.broker.connection.services import Services
from pulsemark.broker.connection.session import Session
from pulsemark.broker.housekeeping import Housekeeping
from pulsemark.broker.kafka.endpoint import Endpoint
from pulsemark.broker.kafka.handlers import HANDLERS
from pulsemark.broker.server import make_services
from pulsemark.ledger import LocalStore
from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.wire import Buffer, Command, Connection, Role, commands
from tests.support.simulated_store import SimulatedStore

from .simulated_loop import BlockingWork, SimulatedLoop

__all__ = ["SimulatedBroker", "SimulatedClient"]

_T = pb.BaseCommand.Type
T = TypeVar("T")
#: Longer than any of the broker's waits: the liveness check, the retry of a failed read.
QUIESCING_S = 7.0


class SimulatedTransport(asyncio.Transport):
    """A session's transport. Everything written arrives at the client at once."""

    def __init__(self, client: SimulatedClient) -> None:
        super().__init__()
        self._client = client
        self._is_closing = False
        self.is_paused = False

    def is_closing(self) -> bool:
        """Whether the connection is closing."""
        return self._is_closing

    def write(self, data: Buffer) -> None:
        """Pass data to the client, if it is still there."""
        if not self._client.has_left:
            self._client.received(bytes(data))

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        """Pass data to the client."""
        self.write(b"".join(bytes(data) for data in list_of_data))

    def pause_reading(self) -> None:
        """Data from the client waits from now on."""
        self.is_paused = True

    def resume_reading(self) -> None:
        """Read the waiting data in the next turn."""
        self.is_paused = False
        asyncio.get_running_loop().call_soon(self._client.deliver)

    def get_write_buffer_size(self) -> int:
        """Always 0: nothing stays unsent."""
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Does nothing: nothing stays unsent."""

    def close(self) -> None:
        """End the connection in the next turn."""
        if not self._is_closing:
            self._is_closing = True
            asyncio.get_running_loop().call_soon(self._client.ended)

    def abort(self) -> None:
        """End the connection in the next turn."""
        self.close()

    def can_write_eof(self) -> bool:
        """As a socket can."""
        return True

    def write_eof(self) -> None:
        """The client closes its side at once."""
        self.close()


@dataclass(slots=True)
class OpenRequest:
    """A client's request to open a producer or consumer, or to unsubscribe."""

    number: int
    topic: str
    name: str
    is_closed: bool = False


@dataclass(eq=False)
class SimulatedClient:
    """The client's side of a connection."""

    broker: SimulatedBroker
    #: Whether it answers PINGs.
    is_awake: bool = True
    is_connected: bool = True
    has_left: bool = False
    answers: defaultdict[int, list[Any]] = field(default_factory=lambda: defaultdict(list))
    #: Producers and consumers that the broker has confirmed, by id; also waiting producers.
    producers: dict[int, OpenRequest] = field(default_factory=dict)
    consumers: dict[int, OpenRequest] = field(default_factory=dict)
    _requests: dict[int, OpenRequest] = field(default_factory=dict)
    _waiting: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        self._connection = Connection(Role.CLIENT)
        self.session = self.broker.loop.do(lambda: Session(self.broker.services, handlers))
        self._transport = SimulatedTransport(self)
        self.broker.loop.do(lambda: self.session.connection_made(self._transport))
        self.send(commands.connect("simulated"))

    def leave(self) -> None:
        """End the connection from this side."""
        self.has_left = True
        self.broker.clients.remove(self)
        self.broker.loop.do(self.ended)

    # -- sending --------------------------------------------------------------------------------

    def send(self, *frames: bytes, then_lost: bool = False) -> None:
        """Send all frames at once; `then_lost`: the connection ends in the same turn."""

        def arrive() -> None:
            self._waiting += b"".join(frames)
            self.deliver()
            if then_lost:
                self.ended()

        self.broker.loop.do(arrive)

    def open_producer(self, number: int, topic: str, name: str, **options: Any) -> bytes:
        """Make a PRODUCER frame, and remember the request."""
        request_id = self.broker.new_request_id()
        self._requests[request_id] = OpenRequest(number, topic, name)
        options["producer_name"] = name or None
        return commands.producer(topic, number, request_id, **options)

    def subscribe(self, number: int, topic: str, name: str, **options: Any) -> bytes:
        """Make a SUBSCRIBE frame, and remember the request."""
        request_id = self.broker.new_request_id()
        self._requests[request_id] = OpenRequest(number, topic, name)
        return commands.subscribe(topic, name, number, request_id, **options)

    def close_producer(self, number: int) -> bytes:
        """Make a CLOSE_PRODUCER frame, and forget the producer that is open or being opened."""
        self.producers.pop(number, None)
        self._mark_closed(number)
        return commands.close_producer(number, self.broker.new_request_id())

    def close_consumer(self, number: int) -> bytes:
        """Make a CLOSE_CONSUMER frame, and forget the consumer that is open or being opened."""
        self.consumers.pop(number, None)
        self._mark_closed(number)
        return commands.close_consumer(number, self.broker.new_request_id())

    def unsubscribe(self, number: int) -> bytes:
        """Make an UNSUBSCRIBE frame with force; the consumer is removed after its success."""
        request_id = self.broker.new_request_id()
        asked = self.consumers.get(number, OpenRequest(number, "", ""))
        self._requests[request_id] = OpenRequest(-number - 1, asked.topic, asked.name)
        return commands.unsubscribe(number, request_id, force=True)

    def is_opening(self, number: int) -> bool:
        """Whether a request to open this id has no answer yet."""
        return any(
            asked.number == number and not asked.is_closed and not self.answers.get(request_id)
            for request_id, asked in self._requests.items()
        )

    def unanswered(self) -> list[int]:
        """Requests without any answer."""
        return [request_id for request_id in self._requests if not self.answers.get(request_id)]

    def _mark_closed(self, number: int) -> None:
        for asked in self._requests.values():
            if asked.number == number:
                asked.is_closed = True

    # -- receiving ------------------------------------------------------------------------------

    def deliver(self) -> None:
        """Let the session read the data sent."""
        session = self.session
        while self._waiting and not self._transport.is_paused and not session.is_closed:
            room = session.get_buffer(-1)
            size = min(len(room), len(self._waiting))
            room[:size] = self._waiting[:size]
            del self._waiting[:size]
            session.buffer_updated(size)

    def ended(self) -> None:
        """The connection has ended."""
        if self.is_connected:
            self.is_connected = False
            self.producers.clear()
            self.consumers.clear()
            self.session.connection_lost(None)

    def received(self, data: bytes) -> None:
        """Handle what the session wrote."""
        self._connection.receive_data(data)
        for event in self._connection.events():
            if isinstance(event, Command):
                self._take(event)

    def _take(self, event: Command) -> None:
        body = event.body
        if event.type == _T.PING:
            if self.is_awake:
                self.broker.loop.call_soon(self._pong)
        elif event.type == _T.CLOSE_PRODUCER:
            self.producers.pop(body.producer_id, None)
        elif event.type == _T.CLOSE_CONSUMER:
            self.consumers.pop(body.consumer_id, None)
        elif hasattr(body, "request_id"):
            self.answers[body.request_id].append(body)
            self._answered(body)

    def _pong(self) -> None:
        self._waiting += commands.PONG
        self.deliver()

    def _answered(self, body: Any) -> None:
        asked = self._requests.get(body.request_id)
        if asked is None:
            return
        if isinstance(body, pb.CommandProducerSuccess):
            self.broker.producer_confirmed(asked, body)
            if not asked.is_closed:
                self.producers[asked.number] = asked
        elif isinstance(body, pb.CommandSuccess):
            if asked.number < 0:
                self.consumers.pop(-asked.number - 1, None)
                self.broker.removed(asked)
            elif not asked.is_closed:
                self.consumers[asked.number] = asked
                self.broker.confirmed(asked)
        elif isinstance(body, pb.CommandError) and self.producers.get(asked.number) is asked:
            del self.producers[asked.number]


class SimulatedBroker:
    """Topics, sessions and a store in one folder, over restarts."""

    def __init__(
        self,
        folder: Path,
        simulated: SimulatedStore | None = None,
        *,
        has_kafka: bool = False,
        **config: Any,
    ) -> None:
        # Gathering uses real time; here everything must depend only on the seed.
        config = {"publish_gathering_ms": 0} | config
        self.config = BrokerConfig(data_dir=None, port=0, http_port=None, **config)
        self._has_kafka = has_kafka
        self.loop: Any = self._make_loop()
        self.work: Any = self._make_work()
        self.clients: list[SimulatedClient] = []
        #: Called after the broker's answers; a test may replace them.
        self.producer_confirmed: Callable[[OpenRequest, Any], None] = lambda asked, body: None
        self.confirmed: Callable[[OpenRequest], None] = lambda asked: None
        self.removed: Callable[[OpenRequest], None] = lambda asked: None
        self._simulated = simulated or SimulatedStore(folder)
        self._next_request_id = 1_000
        self._start()

    def _make_loop(self) -> SimulatedLoop:
        return SimulatedLoop()

    def _make_work(self) -> BlockingWork:
        return BlockingWork(self.loop)

    @property
    def store(self) -> Any:
        """The open store."""
        assert self._simulated.store is not None
        return self._simulated.store

    def _open_store(self) -> LocalStore:
        return self._simulated.open()

    def _start(self) -> None:
        store = self._open_store()
        making = make_services(self.config, store, self.work.run, broker_name="")
        self.services: Services = self.result_of(making)
        self.topics = self.services.topics
        parts = self.services
        self._housekeeping = self.loop.do(
            lambda: Housekeeping(
                parts.config,
                parts.sessions,
                parts.topics,
                [parts.participants, *filter(None, [parts.transactions])],
            )
        )
        self._join()
        if self._has_kafka:
            self.kafka = self.loop.do(lambda: Endpoint(parts, "simulated", HANDLERS))
            self.result_of(self.kafka.start())

    def _join(self) -> None:
        if self.services.transactions is not None:
            self.result_of(self.services.transactions.load())

    @property
    def calm_s(self) -> float:
        """When what was done to it is over."""
        return 0.0

    @property
    def is_running(self) -> bool:
        """Whether it takes connections."""
        return True

    def new_request_id(self) -> int:
        """A new request id."""
        self._next_request_id += 1
        return self._next_request_id

    def connect(self) -> SimulatedClient:
        """Connect a new client."""
        client = SimulatedClient(self)
        self.clients.append(client)
        return client

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task on the loop, in its own turn."""
        task: asyncio.Task[T] = self.loop.do(lambda: self.loop.create_task(work))
        return task

    def result_of(self, work: Coroutine[Any, Any, T]) -> T:
        """What a coroutine returns, when it and all blocking work are done."""
        task = self.start(work)
        self._finish_work()
        return task.result()

    def faults(self) -> dict[str, Callable[[], Any]]:
        """What else can happen, by name. One that returns a broker leads clients to that one."""
        return {"checkpoint": lambda: self.loop.do(self.store.checkpoint)}

    def heal(self) -> None:
        """All that it needs works again."""

    def in_a_thread(self, function: Callable[[], None]) -> None:
        """Call a function where it may wait for the store."""
        function()

    def commit(self) -> None:
        """Make all appended entries durable."""
        self.loop.do(self.store.committer.flush)
        self.loop.settle()

    def go_on(self, random: Random) -> None:
        """Some of what is under way is done: commits and blocking work."""
        if random.random() < 0.5:
            self.commit()
        while len(self.work) and random.random() < 0.7:
            self.work.release(random.randrange(len(self.work)))
            self.loop.settle()

    def _finish_work(self) -> None:
        self.loop.settle()
        while len(self.work):
            self.work.release()
            self.commit()

    def quiesce(self) -> None:
        """Run all that can happen: blocking work, commits, answers to PINGs, timeouts."""
        self._finish_work()
        for _ in range(2):
            self.commit()
            self._finish_work()
            self.loop.advance(QUIESCING_S)
        self._finish_work()
        self.commit()

    def restart(self, *, kill: bool = False, power: bool = False) -> None:
        """Close in order, or end as kill -9 or a power cut does; then open the folder again."""
        if not kill:
            self.quiesce()
        self.loop.do(self._housekeeping.close)
        if self._has_kafka:
            self.loop.do(self.kafka.stop_checking)
        if kill:
            self._end_store(kill=True, power=power)
        self._hang_up()
        if not kill:
            self._finish_work()
            self._end_store(kill=False, power=False)
        self._drop_the_rest()
        self._start()

    def _end_store(self, *, kill: bool, power: bool) -> None:
        if kill:
            (self._simulated.power_off if power else self._simulated.kill)()
        else:
            self._simulated.close()

    def _hang_up(self) -> None:
        for client in self.clients:
            self.loop.do(client.ended)
        self.clients.clear()

    def _drop_the_rest(self) -> None:
        """Cancel all tasks and blocking work: they ended with the process."""
        self.work = self._make_work()
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.settle()

    def end(self) -> None:
        """Stop, and remove all files."""
        self.loop.do(self._housekeeping.close)
        self._hang_up()
        self._drop_the_rest()
        self._remove()
        self.loop.close()

    def _remove(self) -> None:
        self._simulated.end()

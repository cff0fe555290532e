"""A broker's registries without threads, sockets and real time: every order can be tried.

    broker = SimulatedBroker(folder)          # real sessions, topics, ledgers; a simulated disk
    client = broker.connect()
    client.send(commands.producer("persistent://public/default/t", 1, 901))
    broker.work.release()                     # one piece of blocking work is done
    broker.quiesce()                          # everything that can happen has happened
    client.answers[901]

A client keeps account of what it holds by what it was told (`producers`, `consumers`), so that a
test can compare that with what the broker thinks. Its producers' and consumers' ids must differ.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..broker.configuration.config import BrokerConfig
from ..broker.connection.session import Session
from ..broker.housekeeping import Housekeeping
from ..broker.server import make_services
from ..broker.services import Services
from ..ledger import LocalStore
from ..metadata import StamperChain
from ..proto import pulsar_api_pb2 as pb
from ..wire import Buffer, Command, Connection, Role, commands
from .simulated_loop import BlockingWork, SimulatedLoop
from .simulated_store import SimulatedStore

__all__ = ["SimulatedBroker", "SimulatedClient"]

_T = pb.BaseCommand.Type
#: Longer than any wait of a broker on a client: the liveness check, a read that is tried again.
QUIESCING_S = 7.0


class SimulatedTransport(asyncio.Transport):
    """What a session writes to; everything written arrives at the client at once."""

    def __init__(self, client: SimulatedClient) -> None:
        super().__init__()
        self._client = client
        self._is_closing = False
        self.is_paused = False

    def is_closing(self) -> bool:
        """Whether the connection ends."""
        return self._is_closing

    def write(self, data: Buffer) -> None:
        """To the client."""
        self._client.received(bytes(data))

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        """To the client."""
        self._client.received(b"".join(bytes(data) for data in list_of_data))

    def pause_reading(self) -> None:
        """What the client sends waits."""
        self.is_paused = True

    def resume_reading(self) -> None:
        """What has waited is read in the next turn."""
        self.is_paused = False
        asyncio.get_running_loop().call_soon(self._client.deliver)

    def get_write_buffer_size(self) -> int:
        """Nothing is ever unsent."""
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Of no importance here."""

    def close(self) -> None:
        """End the connection in the next turn."""
        if not self._is_closing:
            self._is_closing = True
            asyncio.get_running_loop().call_soon(self._client.ended)

    def abort(self) -> None:
        """The same."""
        self.close()

    def write_eof(self) -> None:
        """The client closes its side at once."""
        self.close()


@dataclass(slots=True)
class Asked:
    """A request of a client that opens something."""

    number: int
    topic: str
    name: str
    is_closed: bool = False


@dataclass(eq=False)
class SimulatedClient:
    """A connection, from the client's side."""

    broker: SimulatedBroker
    #: Whether it answers PINGs.
    is_awake: bool = True
    is_connected: bool = True
    answers: defaultdict[int, list[Any]] = field(default_factory=lambda: defaultdict(list))
    #: By id, what it was told that it has; queued producers, too.
    producers: dict[int, Asked] = field(default_factory=dict)
    consumers: dict[int, Asked] = field(default_factory=dict)
    _requests: dict[int, Asked] = field(default_factory=dict)
    _waiting: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        self._connection = Connection(Role.CLIENT)
        self.session = self.broker.loop.do(lambda: Session(self.broker.services))
        self._transport = SimulatedTransport(self)
        self.broker.loop.do(lambda: self.session.connection_made(self._transport))
        self.send(commands.connect("simulated"))

    # -- what it does ---------------------------------------------------------------------------

    def send(self, *frames: bytes, then_lost: bool = False) -> None:
        """Send all in one piece; `then_lost`: the connection ends in the same turn."""

        def arrive() -> None:
            self._waiting += b"".join(frames)
            self.deliver()
            if then_lost:
                self.ended()

        self.broker.loop.do(arrive)

    def open_producer(self, number: int, topic: str, name: str, **options: Any) -> bytes:
        """The PRODUCER frame, noted."""
        request_id = self.broker.new_request_id()
        self._requests[request_id] = Asked(number, topic, name)
        options["producer_name"] = name or None
        return commands.producer(topic, number, request_id, **options)

    def subscribe(self, number: int, topic: str, name: str, **options: Any) -> bytes:
        """The SUBSCRIBE frame, noted."""
        request_id = self.broker.new_request_id()
        self._requests[request_id] = Asked(number, topic, name)
        return commands.subscribe(topic, name, number, request_id, **options)

    def close_producer(self, number: int) -> bytes:
        """The CLOSE_PRODUCER frame; what was opened or is being opened under the id is given up."""
        self.producers.pop(number, None)
        self._give_up(number)
        return commands.close_producer(number, self.broker.new_request_id())

    def close_consumer(self, number: int) -> bytes:
        """The CLOSE_CONSUMER frame, likewise."""
        self.consumers.pop(number, None)
        self._give_up(number)
        return commands.close_consumer(number, self.broker.new_request_id())

    def unsubscribe(self, number: int) -> bytes:
        """The UNSUBSCRIBE frame, forced; the consumer is gone when it succeeds."""
        request_id = self.broker.new_request_id()
        asked = self.consumers.get(number, Asked(number, "", ""))
        self._requests[request_id] = Asked(-number - 1, asked.topic, asked.name)
        return commands.unsubscribe(number, request_id, force=True)

    def is_opening(self, number: int) -> bool:
        """Whether an answer is still to come for something opened under the id."""
        return any(
            asked.number == number and not asked.is_closed and not self.answers.get(request_id)
            for request_id, asked in self._requests.items()
        )

    def unanswered(self) -> list[int]:
        """Requests without any answer."""
        return [request_id for request_id in self._requests if not self.answers.get(request_id)]

    def _give_up(self, number: int) -> None:
        for asked in self._requests.values():
            if asked.number == number:
                asked.is_closed = True

    # -- what happens to it ---------------------------------------------------------------------

    def deliver(self) -> None:
        """Let the session read what was sent."""
        session = self.session
        while self._waiting and not self._transport.is_paused and not session.is_closed:
            room = session.get_buffer(-1)
            size = min(len(room), len(self._waiting))
            room[:size] = self._waiting[:size]
            del self._waiting[:size]
            session.buffer_updated(size)

    def ended(self) -> None:
        """The connection is gone."""
        if self.is_connected:
            self.is_connected = False
            self.producers.clear()
            self.consumers.clear()
            self.session.connection_lost(None)

    def received(self, data: bytes) -> None:
        """Take in what the session wrote."""
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
        self._waiting += commands.pong()
        self.deliver()

    def _answered(self, body: Any) -> None:
        asked = self._requests.get(body.request_id)
        if asked is None:
            return
        if isinstance(body, pb.CommandProducerSuccess):
            self.broker.told_owner(asked, body)
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

    def __init__(self, folder: Path, **config: Any) -> None:
        # Gathering goes by real time, and everything here is a function of the seed.
        config = {"publish_gathering_ms": 0} | config
        self.config = BrokerConfig(data_dir=None, port=0, http_port=None, **config)
        self.loop = SimulatedLoop()
        self.work = BlockingWork(self.loop)
        self.clients: list[SimulatedClient] = []
        #: What was told about epochs and subscriptions; the test looks after these.
        self.told_owner: Callable[[Asked, Any], None] = lambda asked, body: None
        self.confirmed: Callable[[Asked], None] = lambda asked: None
        self.removed: Callable[[Asked], None] = lambda asked: None
        self._simulated = SimulatedStore(folder)
        self._next_request_id = 1_000
        self._start()

    @property
    def store(self) -> LocalStore:
        """The open store."""
        assert self._simulated.store is not None
        return self._simulated.store

    def _start(self) -> None:
        store = self._simulated.open()
        stampers = StamperChain.from_names(self.config.stampers)
        making = self.start(
            make_services(
                self.config,
                store,
                stampers,
                self.work.run,
                service_url="",
                http_url="",
            )
        )
        self._finish_work()
        self.services: Services = making.result()
        self.topics = self.services.topics
        self._housekeeping = self.loop.do(lambda: Housekeeping(self.services))

    def new_request_id(self) -> int:
        """A number that no request had before."""
        self._next_request_id += 1
        return self._next_request_id

    def connect(self) -> SimulatedClient:
        """A new client's connection."""
        client = SimulatedClient(self)
        self.clients.append(client)
        return client

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Begin something on the loop, in a turn of its own."""
        return self.loop.do(lambda: self.loop.create_task(work))

    def commit(self) -> None:
        """Make durable what was appended."""
        self.store.committer.flush()
        self.loop.settle()

    def _finish_work(self) -> None:
        self.loop.settle()
        while len(self.work):
            self.work.release()
            self.commit()

    def quiesce(self) -> None:
        """Let everything happen that can: blocking work, commits, answers to PINGs, time-outs."""
        self._finish_work()
        for _ in range(2):
            self.commit()
            self._finish_work()
            self.loop.advance(QUIESCING_S)
        self._finish_work()
        self.commit()

    def restart(self, *, kill: bool = False) -> None:
        """End, in order or as kill -9 does, and open the folder again."""
        if not kill:
            self.quiesce()
        self.loop.do(self._housekeeping.close)
        if kill:
            self._simulated.kill()
        for client in self.clients:
            self.loop.do(client.ended)
        self.clients.clear()
        if not kill:
            self._finish_work()
            self._simulated.close()
        self._drop_the_rest()
        self._start()

    def _drop_the_rest(self) -> None:
        """What a dead process was at does not go on."""
        self.work = BlockingWork(self.loop)
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.settle()

    def end(self) -> None:
        """End for good, without leaving anything behind."""
        self.loop.do(self._housekeeping.close)
        for client in self.clients:
            self.loop.do(client.ended)
        self._drop_the_rest()
        self._simulated.end()
        self.loop.close()

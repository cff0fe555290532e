"""A client of the admin interface in `simulated_history`: it changes things, and reads them again.

It unloads topics, sets and removes policies, and makes and deletes partitioned topics, over HTTP. A
request without an answer may have been done, or not; what was answered must be there from then on.
"""

from __future__ import annotations

import json
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import h11

from pulsemark.broker.http.connection import HttpConnection
from pulsemark.broker.http.routing import all_routes

from .simulated_broker import SimulatedClient, SimulatedTransport

if TYPE_CHECKING:
    from .simulated_history import World

PATH = "/admin/v2/"
OK, NOT_FOUND, BROKEN = 300, 404, 500
#: How likely it is that it asks when it may; at the end it does.
ASKS = 0.5


class Asked(NamedTuple):
    """A request, and the step that it is: of `what`, with which value."""

    method: str
    path: str
    body: Any
    what: str
    value: str

    @property
    def topic(self) -> str:
        """What is changed or read; of an unload nothing."""
        return "" if self.what == "fault" else self.path


def next_request(random: Random, topics: list[str], *, is_over: bool) -> Asked:
    """Something to ask for: at the end only what there is."""
    made, limit = random.choice(("made-0", "made-1")), random.choice(topics)
    partitions = f"persistent/public/default/{made}/partitions"
    topic = f"persistent/public/default/{limit}"
    path, put, values = random.choice(
        ((partitions, "PUT", (1, 5)), (f"{topic}/maxProducers", "POST", (100, 200)))
    )
    value = random.randint(*values)
    get = Asked("GET", path, None, "get", "")
    others = (
        get,
        Asked(put, path, value, "set", str(value)),
        Asked("DELETE", path, None, "set", "none"),
        Asked("PUT", f"{topic}/unload", None, "fault", "unload"),
    )
    return get if is_over else random.choice(others)


def value_in(answer: Any) -> str:
    """The value in the answer to a "get"."""
    return str((answer["partitions"] if isinstance(answer, dict) else answer) or "none")


class AdminPeer(SimulatedClient):
    """A connection that hands on whole answers."""

    owner: AdminClient

    def __post_init__(self) -> None:
        self._h11 = h11.Connection(h11.CLIENT)
        self._status, self._body = 0, b""
        self.session: Any = self.broker.loop.do(lambda: HttpConnection(self.broker.services))
        self._transport = SimulatedTransport(self)
        self.broker.loop.do(lambda: self.session.connection_made(self._transport))

    def deliver(self) -> None:
        """Let the session read what was sent."""
        if self._waiting and not self._transport.is_paused and self.is_connected:
            data = bytes(self._waiting)
            self._waiting.clear()
            self.session.data_received(data)

    def ask(self, method: str, path: str, given: Any) -> None:
        """Send a request."""
        body = b"" if given is None else json.dumps(given).encode()
        headers = [("Host", "simulated"), ("Content-Length", str(len(body)))]
        headers.append(("Content-Type", "application/json"))
        request = h11.Request(method=method, target=path, headers=headers)
        parts = (request, h11.Data(data=body), h11.EndOfMessage())
        self.send(b"".join(self._h11.send(part) or b"" for part in parts))

    def received(self, data: bytes) -> None:
        """Hand on an answer that is whole."""
        self._h11.receive_data(data)
        while (event := self._h11.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
            if isinstance(event, h11.Response):
                self._status, self._body = event.status_code, b""
            elif isinstance(event, h11.Data):
                self._body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                self._h11.start_next_cycle()
                self.owner.answered(self._status, self._body)
            else:
                return


class AdminClient:
    """Asks one thing after the other."""

    name, is_broken = "admin", False

    def __init__(self, world: World, topics: list[str]) -> None:
        self.world, self._topics = world, topics
        all_routes()  # the first request would import them, in a thread and in real time
        self.peer: AdminPeer | None = None
        #: What it waits for, and since when.
        self._asked: tuple[Asked, int] | None = None

    def step(self) -> None:
        """Do the next thing."""
        if self.peer is None or not self.peer.is_connected:
            self.leave()
            self.peer = AdminPeer(self.world.broker)
            self.peer.owner = self
            self.world.broker.clients.append(self.peer)
        elif self._asked is None and (self.world.is_over or self.world.random.random() < ASKS):
            world = self.world
            asked = next_request(world.random, self._topics, is_over=world.is_over)
            self._asked = asked, world.now_ns()
            self.peer.ask(asked.method, PATH + asked.path, asked.body)

    def leave(self) -> None:
        """End the connection; nobody knows whether what was asked is done."""
        if self.peer is not None and self.peer.is_connected:
            self.peer.leave()
        self.peer = None
        self._note(None)

    end = leave

    def _note(self, ok: bool | None, read: str | None = None) -> None:
        if self._asked is not None:
            asked, begin_ns = self._asked
            self._asked = None
            about = {"client": self.name, "topic": asked.topic, "value": read or asked.value}
            self.world.note(asked.what, begin_ns, ok=ok, **about)

    def answered(self, status: int, body: bytes) -> None:
        """What was asked for is here; what a server's error leaves behind is not known."""
        assert self._asked is not None
        is_get = self._asked[0].what == "get"
        if is_get and status in (200, NOT_FOUND):
            self._note(True, value_in(json.loads(body or b"null")) if status < OK else "none")
        else:
            self._note(True if status < OK else False if status < BROKEN else None)

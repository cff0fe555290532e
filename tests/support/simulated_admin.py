"""A client of the admin interface in `simulated_history`: it changes things, and reads them again.

It unloads topics, sets and removes policies, and makes and deletes partitioned topics, over HTTP. A
request without an answer may have been done, or not; what was answered must be there from then on.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import h11

from pulsemark.broker.http.connection import HttpConnection
from pulsemark.broker.http.routing import all_routes

from .simulated_broker import SimulatedClient, SimulatedTransport

if TYPE_CHECKING:
    from .simulated_history import World

PATH = "/admin/v2/persistent/public/default"
OK, NOT_FOUND = 300, 404
#: How likely it is that it asks when it may; at the end it does.
ASKS = 0.5


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

    def ask(self, method: str, path: str, body: bytes) -> None:
        """Send a request."""
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

    name = "admin"

    def __init__(self, world: World, topics: list[str]) -> None:
        self.world, self._topics = world, topics
        all_routes()  # the first request would import them, in a thread and in real time
        self.peer: AdminPeer | None = None
        #: What it waits for: the kind of step, of what, the value, and since when.
        self._asked: tuple[str, str, str, int] | None = None

    def step(self) -> None:
        """Do the next thing."""
        if self.peer is None or not self.peer.is_connected:
            self.leave()
            self.peer = AdminPeer(self.world.broker)
            self.peer.owner = self
            self.world.broker.clients.append(self.peer)
        elif self._asked is None and (self.world.is_over or self.world.random.random() < ASKS):
            self._ask(self.peer)

    def leave(self) -> None:
        """End the connection; nobody knows whether what was asked is done."""
        if self.peer is not None and self.peer.is_connected:
            self.world.broker.loop.do(self.peer.ended)
            self.world.broker.clients.remove(self.peer)
        self.peer = None
        self._note(None)

    end = leave

    def _note(self, ok: bool | None, read: str | None = None) -> None:
        asked, self._asked = self._asked, None
        if asked is not None and (read is not None or asked[0] != "get"):
            what, topic, value, begin_ns = asked
            value = value if read is None else read
            self.world.note(what, begin_ns, client=self.name, topic=topic, value=value, ok=ok)

    def _ask(self, peer: AdminPeer) -> None:
        world, random = self.world, self.world.random
        topic = random.choice(("made-0", "made-1", *self._topics))
        is_made, begin_ns = topic.startswith("made-"), world.now_ns()
        path = f"{PATH}/{topic}/{'partitions' if is_made else 'maxProducers'}"
        kind = random.choice(
            ("get",) if world.is_over else ("get", "get", "set", "remove", "unload")
        )
        value = str(random.randint(1, 5) if is_made else random.randint(100, 200))
        if kind == "unload":
            if not is_made:
                self._asked = "fault", "", "unload", begin_ns
                peer.ask("PUT", f"{PATH}/{topic}/unload", b"")
        elif kind == "get":
            self._asked = "get", path, "", begin_ns
            peer.ask("GET", path, b"")
        elif kind == "remove":
            self._asked = "set", path, "none", begin_ns
            peer.ask("DELETE", path, b"")
        else:
            self._asked = "set", path, value, begin_ns
            peer.ask("PUT" if is_made else "POST", path, value.encode())

    def answered(self, status: int, body: bytes) -> None:
        """What was asked for is here."""
        assert self._asked is not None
        if self._asked[0] != "get":
            # What a server's error leaves behind is not known.
            self._note(True if status < OK else False if status < 500 else None)
        elif status < OK:
            told = json.loads(body or b"null")
            told = told["partitions"] if isinstance(told, dict) else told
            self._note(True, str(told or "none"))
        elif status == NOT_FOUND:
            self._note(True, "none")
        else:
            self._note(None)

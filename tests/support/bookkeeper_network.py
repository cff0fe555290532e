"""A network of fake bookies in virtual time, which loses, delays, reorders and repeats frames."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

from tests.support.fake_bookie import FakeBookie
from tests.support.virtual_loop import VirtualLoop

_LENGTH = struct.Struct(">I")


@dataclass(slots=True)
class Weather:
    """How bad the network is: chances from 0 to 1, times in seconds."""

    lose: float = 0.0
    repeat: float = 0.0
    delay_s: float = 0.002
    """The mean of most delays."""
    long_delay: float = 0.0
    """The chance of a delay of up to `long_delay_s`."""
    long_delay_s: float = 3.0
    late_add: float = 0.0
    """The chance that a writer's add arrives up to `long_delay_s` later than other requests."""


class Network:
    """Bookies by name (host:port), and the connections to them."""

    def __init__(
        self,
        loop: VirtualLoop,
        names: Iterable[str],
        random: random.Random,
        make_bookie: Callable[[str], FakeBookie] = FakeBookie,
    ) -> None:
        self.loop = loop
        self.random = random
        self.weather = Weather()
        self.bookies = {name: make_bookie(name) for name in names}
        self.down: set[str] = set()
        self.paused: set[str] = set()
        self.pass_frame: Callable[[str, bytes], bool] = lambda bookie, frame: True
        """Asked with each request's frame whether it arrives."""
        self._held: dict[str, list[Callable[[], None]]] = {}
        self._transports: dict[_Transport, None] = {}
        loop.connect = self.connect

    async def connect(self, factory: Callable[[], asyncio.Protocol], host: str, port: int) -> Any:
        """As `create_connection` of a loop; the address is a bookie's name."""
        name = f"{host}:{port}"
        await asyncio.sleep(self._delay())
        if name in self.down:
            raise ConnectionRefusedError(f"{name} is down")
        protocol = factory()
        transport = _Transport(self, name, protocol)
        self._transports[transport] = None
        protocol.connection_made(transport)
        return transport, protocol

    # -- what happens to bookies ------------------------------------------------------------------

    def crash(self, name: str) -> None:
        """The bookie ends: its connections break. What it has answered is on its disk."""
        self.down.add(name)
        self._held.pop(name, None)
        self.bookies[name].ended(self.random)
        self.cut(name)

    def cut(self, name: str) -> None:
        """The bookie's connections break."""
        for transport in [one for one in self._transports if one.name == name]:
            transport.broken(ConnectionResetError(f"no connection to {name}"))

    def client_ended(self, loops: Collection[asyncio.AbstractEventLoop]) -> None:
        """The process with these loops was killed: what it has sent arrives, and nothing more."""
        for transport in [one for one in self._transports if one.loop in loops]:
            transport.is_over = True
            self.forget(transport)

    def restart(self, name: str) -> None:
        """The bookie is there again."""
        self.down.discard(name)

    def pause(self, name: str) -> None:
        """The bookie stops without closing its connections: requests wait."""
        self.paused.add(name)

    def resume(self, name: str) -> None:
        """The bookie goes on with what has waited."""
        self.paused.discard(name)
        for held in self._held.pop(name, []):
            held()

    # -- frames -----------------------------------------------------------------------------------

    def _delay(self) -> float:
        weather = self.weather
        if self.random.random() < weather.long_delay:
            return self.random.uniform(0, weather.long_delay_s)
        return self.random.expovariate(1 / weather.delay_s)

    def _travel(self, arrive: Callable[[], None]) -> None:
        """Let something arrive after a while: never, once or twice."""
        weather = self.weather
        if self.random.random() < weather.lose:
            return
        self.loop.call_later(self._delay(), arrive)
        if self.random.random() < weather.repeat:
            self.loop.call_later(self._delay(), arrive)

    def send(self, transport: _Transport, frame: bytes) -> None:
        """A request's frame is under way."""
        if not self.pass_frame(transport.name, frame):
            return
        late = self.weather.late_add
        if late and self.random.random() < late and b"\x10\x02\x18" in frame[:8]:
            delay_s = self.random.uniform(0, self.weather.long_delay_s)
            self.loop.call_later(delay_s, self._arrive, transport, frame)
            return
        self._travel(lambda: self._arrive(transport, frame))

    def _arrive(self, transport: _Transport, frame: bytes) -> None:
        name = transport.name
        if name in self.down:
            return
        if name in self.paused:
            self._held.setdefault(name, []).append(lambda: self._arrive(transport, frame))
            return
        self.bookies[name].handle(
            frame, lambda answer: self._travel(lambda: transport.receive(answer))
        )

    def forget(self, transport: _Transport) -> None:
        """A connection is over."""
        self._transports.pop(transport, None)


class _Transport(asyncio.Transport):
    """One connection: each frame that is written travels by itself."""

    def __init__(self, network: Network, name: str, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.name = name
        self._network = network
        self._protocol = protocol
        self._buffer = b""
        self.is_over = False
        self.loop = asyncio.get_running_loop()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def write(self, data: Any) -> None:
        if self.is_over:
            return
        self._buffer += data
        while len(self._buffer) >= 4:
            end = 4 + _LENGTH.unpack_from(self._buffer)[0]
            if len(self._buffer) < end:
                break
            frame, self._buffer = self._buffer[4:end], self._buffer[end:]
            self._network.send(self, frame)

    def receive(self, answer: bytes) -> None:
        """An answer's frame arrives."""
        if self.loop is not self._network.loop and not self.loop.is_closed():
            self.loop.call_soon(self._receive, answer)
        else:
            self._receive(answer)

    def _receive(self, answer: bytes) -> None:
        if not self.is_over and self.name not in self._network.down:
            self._protocol.data_received(answer)

    def abort(self) -> None:
        self.broken(None)

    def broken(self, error: Exception | None) -> None:
        """The connection is over, for both sides."""
        if not self.is_over:
            self.is_over = True
            self._network.forget(self)
            self.loop.call_soon(self._protocol.connection_lost, error)

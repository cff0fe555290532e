"""A network that can be cut between a client and bookies: a proxy of TCP, and ZooKeeper's answers.

Bookies tell their addresses in ZooKeeper. A session that is wrapped in `Rerouted` gets the proxies'
addresses instead. A proxy that is cut keeps its connections, takes new ones, and forwards nothing:
so does a network that loses all packets.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from pulsemark.ledger.bookkeeper.client.registry import parse_service_info
from pulsemark.proto.bookkeeper_metadata_pb2 import BookieServiceInfoFormat

_READ_BYTES = 1 << 16


class Proxies:
    """A proxy for each address, all on one thread with a loop."""

    def __init__(self) -> None:
        self.cut: set[tuple[str, int]] = set()
        """The addresses whose proxies forward nothing."""
        self._ports: dict[tuple[str, int], int] = {}
        self._lock = threading.Lock()
        self._servers: list[asyncio.Server] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def port_for(self, address: tuple[str, int]) -> int:
        """The port of the proxy that leads to an address."""
        with self._lock:
            if address not in self._ports:
                starting = asyncio.run_coroutine_threadsafe(self._start(address), self._loop)
                self._ports[address] = starting.result(30)
            return self._ports[address]

    async def _start(self, address: tuple[str, int]) -> int:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                there = await asyncio.open_connection(*address)
            except OSError:
                writer.close()
                return
            await asyncio.gather(
                self._forward(address, reader, there[1]), self._forward(address, there[0], writer)
            )

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def _forward(
        self,
        address: tuple[str, int],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        try:
            while data := await reader.read(_READ_BYTES):
                if address not in self.cut:
                    writer.write(data)
                    await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    def stop(self) -> None:
        """End all of them."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


class Rerouted:
    """A session in which each bookie's address is that of its proxy."""

    def __init__(self, session: Any, proxies: Proxies) -> None:
        self._session = session
        self._proxies = proxies

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    async def get(self, path: str) -> Any:
        """As the session's."""
        found = await self._session.get(path)
        if "/available/" not in path:
            return found
        bookie = path.rpartition("/")[2]
        address = parse_service_info(bookie, found.data)
        port = await asyncio.to_thread(self._proxies.port_for, address)
        info = BookieServiceInfoFormat()
        info.endpoints.add(id="1", port=port, host="127.0.0.1", protocol="bookie-rpc")
        return found._replace(data=info.SerializeToString())

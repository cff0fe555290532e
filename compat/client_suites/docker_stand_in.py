"""Stands in for the package `docker`: aiokafka's fixtures start a container with a Kafka in it.

Here no container is started. The port that the fixture has chosen for the broker is forwarded to
the broker that runs already.
"""

from __future__ import annotations

import asyncio
import os
import threading
from types import SimpleNamespace
from typing import Any


class Container:
    """A container that runs nothing."""

    def exec_run(self, *_: Any, **__: Any) -> tuple[int, bytes]:
        """Run nothing."""
        return 0, b""

    def stop(self) -> None:
        """Nothing runs."""


class _Containers:
    def run(self, **settings: Any) -> Container:
        """Forward the broker's port."""
        port = settings.get("environment", {}).get("ADVERTISED_PORT")
        if port is not None:
            threading.Thread(target=asyncio.run, args=(_forward(port),), daemon=True).start()
        return Container()


async def _forward(port: int) -> None:
    """Accept connections on a port, and connect each to the broker."""
    host, _, broker_port = os.environ["PULSEMARK_SUITE_BROKER"].rpartition(":")

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs = await asyncio.open_connection(host, int(broker_port))
        await asyncio.gather(
            copy(reader, theirs[1]), copy(theirs[0], writer), return_exceptions=True
        )

    server = await asyncio.start_server(accepted, "127.0.0.1", port)
    await server.serve_forever()


def from_env() -> SimpleNamespace:
    """The client."""
    return SimpleNamespace(containers=_Containers(), images=SimpleNamespace(), close=lambda: None)


models = SimpleNamespace(containers=SimpleNamespace(Container=Container))

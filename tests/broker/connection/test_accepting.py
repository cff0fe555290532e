"""The accept loop goes on after any error."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

from pulsemark.broker import CannotListenError, PortInUseError
from pulsemark.broker.connection.accepting import Listener
from pulsemark.testing import RawClient

# A listener without any limit of its own, in a process that may open 40 files.
LISTENING = """
import asyncio, resource, sys
from pulsemark.broker.connection.accepting import Listener

class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport
    def data_received(self, data):
        self.transport.write(data)

async def main():
    listener = Listener("127.0.0.1", 0, Echo, has_room=lambda arriving: True)
    listener.start()
    print(listener.port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    await listener.close()

resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
asyncio.run(main())
"""

SERVING = """
import resource, sys
from pulsemark.ledger import StoreOptions
from pulsemark.testing import running_broker

resource.setrlimit(resource.RLIMIT_NOFILE, (110, 110))
with running_broker(http_port=None, store_options=StoreOptions(fd_limit=16)) as broker:
    print(broker.service_url, flush=True)
    sys.stdin.readline()
"""


@contextmanager
def program(text):
    """A Python program: yields its first line of output; its errors are returned at the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", text],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    errors: list[str] = []
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip(), errors
    finally:
        errors.append(process.communicate("end\n", timeout=20)[1])
    assert process.returncode == 0


def is_echoed(connection):
    """Whether the other side serves this connection."""
    connection.sendall(b"x")
    return connection.recv(1) == b"x"


def test_running_out_of_file_descriptors_passes():
    """Connections above the process' limit wait, and are served when others have gone."""
    with program(LISTENING) as (port, errors):
        crowd = [socket.create_connection(("127.0.0.1", int(port)), timeout=10) for _ in range(50)]
        assert is_echoed(crowd[0])
        for connection in crowd[:40]:
            connection.close()
        assert is_echoed(crowd[49])
        for connection in crowd[40:]:
            connection.close()
    assert "cannot accept connections" in errors[0]


def test_connections_never_take_the_stores_files():
    """With many more connections than descriptors the broker still publishes."""
    with program(SERVING) as (url, _), RawClient.from_url(url) as inside:
        host, port = url.removeprefix("pulsar://").split(":")
        crowd = [socket.create_connection((host, int(port)), timeout=10) for _ in range(200)]
        producer = inside.create_producer("persistent://public/default/t")
        assert [producer.send(b"x").entry_id for _ in range(3)] == [0, 1, 2]
        for connection in crowd:
            connection.close()


async def test_a_taken_port_is_named():
    """PortInUseError with host and port."""
    listeners = [Listener("127.0.0.1", 0, asyncio.Protocol, has_room=lambda arriving: True)]
    with pytest.raises(PortInUseError) as caught:
        Listener("127.0.0.1", listeners[0].port, asyncio.Protocol, has_room=lambda arriving: True)
    assert listeners[0].port == caught.value.port
    await listeners[0].close()


@pytest.mark.parametrize("host", ["no-such-host.invalid", f"{'a' * 70}.invalid", "127.0.0.1.1"])
async def test_a_host_without_an_address_is_named(host):
    """CannotListenError with host and port, as for an address of another machine."""
    with pytest.raises(CannotListenError, match=f"cannot listen on {host} port 6650") as caught:
        Listener(host, 6650, asyncio.Protocol, has_room=lambda arriving: True)
    assert (caught.value.host, caught.value.port) == (host, 6650)


def test_what_a_connection_needs_is_imported_in_a_thread_first():
    """`prepare` runs outside the loop's thread, before the first protocol is made, and once."""
    calls: list[object] = []

    class Prepared(asyncio.Protocol):
        def connection_made(self, transport):
            calls.append("protocol")
            transport.close()

    def prepare():
        calls.append(threading.current_thread() is threading.main_thread())

    async def scenario():
        listener = Listener(
            "127.0.0.1", 0, Prepared, has_room=lambda arriving: True, prepare=prepare
        )
        listener.start()
        for _ in range(2):
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            assert await asyncio.wait_for(reader.read(), 20) == b""
            writer.close()
        await listener.close()

    asyncio.run(scenario())
    assert calls == [False, "protocol", "protocol"]

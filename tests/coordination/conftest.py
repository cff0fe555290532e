"""The services that the same tests run on: in memory, and a real ZooKeeper."""

import asyncio
import os
import tempfile
import uuid
from pathlib import Path

import pytest
from bookkeeper_peer import BookKeeperPeer, free_port, missing
from kazoo.client import KazooClient

from pulsemark.coordination import connect
from pulsemark.coordination.local import LocalCoordination, LocalServer
from pulsemark.coordination.memory import DurableTree
from tests.support.faulty_coordination import FaultyTree


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory):
    """`HOST:PORT` of a ZooKeeper server; skips without Java or BookKeeper's jars."""
    if (reason := missing()) is not None:
        pytest.skip(reason)
    if running := os.environ.get("BOOKKEEPER_PEER_FOLDER"):
        yield BookKeeperPeer(Path(running)).zookeeper
        return
    peer = BookKeeperPeer(tmp_path_factory.mktemp("zookeeper"))
    peer.ports["zookeeper"] = free_port()
    try:
        peer.run("zookeeper")
        yield peer.zookeeper
    finally:
        peer.stop()


class Memory:
    """Sessions with one tree in memory."""

    def __init__(self):
        self.tree = FaultyTree()

    async def session(self):
        """A new session."""
        return self.tree.session()

    async def expire(self, session):
        """The service ends the session."""
        session.expire()


class ZooKeeper:
    """Sessions with a part of a real server's tree."""

    def __init__(self, address):
        self.address = address
        self.root = f"/test-{uuid.uuid4()}"

    async def session(self):
        """A new session."""
        plain = await connect(self.address, session_timeout_ms=4_000)
        if await plain.exists(self.root) is None:
            await plain.create(self.root)
        await plain.close()
        return await connect(self.address + self.root, session_timeout_ms=4_000)

    async def expire(self, session):
        """A second connection with the same identity takes the session over and ends it."""
        twin = KazooClient(hosts=self.address, client_id=session.client_id)
        await asyncio.to_thread(twin.start)
        await asyncio.to_thread(twin.stop)
        await asyncio.to_thread(twin.close)


class Local:
    """Sessions over a socket with a tree on disk."""

    def __init__(self, folder):
        self.file = folder / "metadata.sqlite"
        self.socket = Path(tempfile.mkdtemp()) / "socket"
        self.tree = DurableTree(self.file)
        self.server = LocalServer(self.tree, self.socket)

    async def session(self):
        """A new session."""
        if not self.socket.exists():
            await self.server.start()
        return await LocalCoordination.connect(self.socket)

    async def close(self):
        """End it."""
        await self.server.close()
        self.tree.close()


@pytest.fixture(params=["memory", "zookeeper", "local"])
async def service(request, tmp_path):
    """A service with an empty tree."""
    if request.param == "memory":
        yield Memory()
    elif request.param == "zookeeper":
        yield ZooKeeper(request.getfixturevalue("zookeeper"))
    else:
        made = Local(tmp_path)
        yield made
        await made.close()

"""The coordination service of one machine: on disk, and over a socket."""

import sqlite3
import tempfile
from pathlib import Path

import pytest

from pulsemark.coordination import ConnectionLossError, NodeMissingError, State
from pulsemark.coordination.durable import DurableTree
from pulsemark.coordination.local import LocalCoordination
from pulsemark.coordination.local_server import LocalServer


async def test_persistent_nodes_outlive_the_process(tmp_path):
    """Nodes, versions and sequence numbers are there again; ephemeral nodes are not."""
    tree = DurableTree(tmp_path / "tree")
    session = tree.session()
    await session.create("/a/b", b"1", make_parents=True)
    await session.set("/a/b", b"2")
    await session.create("/a/e", ephemeral=True)
    first = await session.create("/a/n-", sequence=True)
    await session.create("/gone")
    await session.delete("/gone")
    tree.close()
    again = DurableTree(tmp_path / "tree")
    session = again.session()
    assert again.paths() == sorted(["/", "/a", "/a/b", first])
    assert await session.get("/a/b") == (b"2", 1)
    second = await session.create("/a/n-", sequence=True)
    assert second > first
    again.close()


async def test_a_change_that_cannot_be_stored_is_not_made(tmp_path):
    """If the disk refuses a change, no session sees it."""
    tree = DurableTree(tmp_path / "tree")
    session = tree.session()
    await session.create("/a", b"1")
    tree.close()
    with pytest.raises(sqlite3.Error):
        await session.set("/a", b"2")
    with pytest.raises(sqlite3.Error):
        await session.create("/b")
    assert await session.get("/a") == (b"1", 0)
    with pytest.raises(NodeMissingError):
        await session.get("/b")


async def test_the_end_of_the_server(tmp_path):
    """A session is lost when the server ends, and says so; waiting requests fail."""
    socket = Path(tempfile.mkdtemp()) / "socket"
    tree = DurableTree(tmp_path / "tree")
    server = LocalServer(tree, socket)
    await server.start()
    session = await LocalCoordination.connect(socket)
    states: list[State] = []
    session.listen(states.append)
    await server.close()
    with pytest.raises((ConnectionLossError, Exception)):
        await session.get("/a")
    assert states == [State.LOST]
    await session.close()
    tree.close()

"""What is asked of kazoo, without a server."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from types import SimpleNamespace

import pytest

from pulsemark.coordination import CoordinationUnavailableError, connect
from pulsemark.coordination.zookeeper import ZooKeeperCoordination


class Answer:
    """What kazoo returns at once."""

    def __init__(self, value):
        self.value, self.exception = value, None

    def rawlink(self, call):
        """The answer is there."""
        call(self)


class Client:
    """As kazoo: the functions that watch a node are a set, which a change of the node empties."""

    def __init__(self):
        self.watchers = defaultdict(set)

    def exists_async(self, path, watch):
        """A node that is not there."""
        self.watchers[path].add(watch)
        return Answer(None)

    def get_children_async(self, path, watch):
        """A node without children."""
        self.watchers[path, "children"].add(watch)
        return Answer([])

    def change(self, path):
        """A node changes."""
        for watch in self.watchers.pop(path):
            watch(SimpleNamespace(path=path))


async def rounds():
    """Let the loop work."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_watches_that_were_closed_leave_nothing_more():
    """A node that is watched again and again while it does not change costs one function of
    kazoo's; whoever watches it hears of its change, once, and nobody whose watch was closed.
    """
    client = Client()
    session = ZooKeeperCoordination(client, "127.0.0.1:1", 4_000)
    seen = []
    for _ in range(100):
        watch = await session.watch("/a", lambda: seen.append("closed"))
        watch.close()
    first = await session.watch("/a", lambda: seen.append("first"))
    await session.watch("/a", lambda: seen.append("second"))
    await session.watch("/a", lambda: seen.append("list"), children=True)
    assert {place: len(functions) for place, functions in client.watchers.items()} == {
        "/a": 1,
        ("/a", "children"): 1,
    }
    client.change("/a")
    await rounds()
    assert seen == ["first", "second"]
    assert len(client.watchers["/a"]) == 1
    first.close()
    client.change("/a")
    await rounds()
    assert seen == ["first", "second", "second"]


async def test_a_node_that_is_not_watched_any_more_is_forgotten():
    """The change of a node whose watches were closed sets no watch again."""
    client = Client()
    session = ZooKeeperCoordination(client, "127.0.0.1:1", 4_000)
    watch = await session.watch("/a", lambda: None)
    watch.close()
    client.change("/a")
    await rounds()
    assert not client.watchers
    again = []
    await session.watch("/a", lambda: again.append(1))
    client.change("/a")
    await rounds()
    assert again == [1]


async def test_a_server_that_is_away(caplog):
    """While no server answers, kazoo's attempts, several in a second, are not logged one by one."""
    with pytest.raises(CoordinationUnavailableError, match="no server of"):
        await connect("127.0.0.1:1", connect_timeout_ms=800)
    assert [record.getMessage() for record in caplog.records if "onnect" in record.msg] == []

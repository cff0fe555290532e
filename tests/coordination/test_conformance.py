"""What every coordination service does: in memory, and on a real ZooKeeper."""

import asyncio

import pytest

from pulsemark.coordination import (
    Check,
    CoordinationClosedError,
    Create,
    Delete,
    NodeExistsError,
    NodeMissingError,
    NotEmptyError,
    ParentEphemeralError,
    Set,
    State,
    VersionConflictError,
)

LIMIT_S = 30


async def until(condition, what):
    """Wait for a condition, with a limit."""
    for _ in range(LIMIT_S * 100):
        if condition():
            return
        await asyncio.sleep(0.01)
    pytest.fail(f"not within {LIMIT_S} s: {what}")


@pytest.fixture
async def open_session(service):
    """Opens sessions, and closes them after the test."""
    opened = []

    async def open_one():
        opened.append(await service.session())
        return opened[-1]

    yield open_one
    for session in opened:
        await session.close()


async def test_data_and_versions(open_session):
    """A node keeps its data; each set makes the version grow by one and may demand the last."""
    session = await open_session()
    assert await session.create("/a", b"1") == "/a"
    assert await session.get("/a") == (b"1", 0)
    assert await session.set("/a", b"2", 0) == 1
    assert await session.set("/a", b"3") == 2
    with pytest.raises(VersionConflictError) as caught:
        await session.set("/a", b"4", 1)
    assert caught.value.path == "/a"
    assert await session.get("/a") == (b"3", 2)
    stat = await session.exists("/a")
    assert (stat.version, stat.ephemeral_owner, stat.children_count) == (2, 0, 0)


async def test_errors_name_the_node(open_session):
    """Reading, changing and deleting what is not there fails with the node's path; so does making
    a node twice, below nothing, or below an ephemeral one.
    """
    session = await open_session()
    await session.create("/a")
    await session.create("/a/b")
    await session.create("/e", ephemeral=True)
    for error, path, request in (
        (NodeMissingError, "/x", session.get("/x")),
        (NodeMissingError, "/x", session.set("/x", b"")),
        (NodeMissingError, "/x", session.delete("/x")),
        (NodeMissingError, "/x", session.children("/x")),
        (NodeMissingError, "/x", session.watch("/x", print, children=True)),
        (NodeMissingError, "/x", session.create("/x/y")),
        (NodeExistsError, "/a", session.create("/a")),
        (NotEmptyError, "/a", session.delete("/a")),
        (VersionConflictError, "/a/b", session.delete("/a/b", 7)),
        (ParentEphemeralError, "/e/y", session.create("/e/y")),
    ):
        with pytest.raises(error) as caught:
            await request
        assert caught.value.path == path
    assert await session.exists("/x") is None


async def test_parents_and_lists(open_session):
    """Parents are made on demand, and a node's children are listed by name."""
    session = await open_session()
    await session.create("/t/ns/b", make_parents=True)
    await session.create("/t/ns/a", make_parents=True)
    assert await session.children("/t/ns") == ["a", "b"]
    await session.delete("/t/ns/a")
    assert await session.children("/t/ns") == ["b"]


async def test_sequences(open_session):
    """Sequential nodes get ten digits that grow, also after the last one was deleted."""
    session = await open_session()
    await session.create("/ids")
    first = await session.create("/ids/n-", sequence=True, ephemeral=True)
    await session.delete(first)
    second = await session.create("/ids/n-", sequence=True)
    assert first.startswith("/ids/n-")
    assert len(second) == len("/ids/n-") + 10
    assert int(second[-10:]) > int(first[-10:])


async def test_transactions(open_session):
    """A transaction does all, with each operation's result, or nothing, with the failed one's
    error and path.
    """
    session = await open_session()
    await session.create("/list", b"0")
    results = await session.transaction(
        [Check("/list", 0), Set("/list", b"1", 0), Create("/n", b"n"), Delete("/n")]
    )
    assert results == [None, 1, "/n", None]
    for bad, error in (
        (Set("/list", b"3", 0), VersionConflictError),
        (Create("/list"), NodeExistsError),
        (Check("/list", 9), VersionConflictError),
    ):
        with pytest.raises(error) as caught:
            await session.transaction([Create("/m"), Set("/list", b"2", 1), bad, Create("/k")])
        assert caught.value.path == "/list"
        assert await session.get("/list") == (b"1", 1)
        assert await session.children("/") == sorted({"list"} | await extra(session))


async def extra(session):
    """What the service itself has at the top."""
    return {"zookeeper"} & set(await session.children("/"))


async def test_ephemeral_nodes(open_session, service):
    """An ephemeral node names its session, others see it, and it goes when its session is closed
    or expires; the expired session is notified and goes on with a new id.
    """
    mine, other = await open_session(), await open_session()
    await mine.create("/e", b"me", ephemeral=True)
    assert (await other.exists("/e")).ephemeral_owner == mine.session_id
    if not hasattr(service, "expire"):
        pytest.skip("a session over a socket ends with its connection, and has no next one")
    states: list[State] = []
    mine.listen(states.append)
    before = mine.session_id
    await service.expire(mine)
    await until(lambda: states[-2:] == [State.LOST, State.CONNECTED], "lost, and connected again")
    assert mine.session_id != before
    assert await other.exists("/e") is None
    await mine.create("/e", b"again", ephemeral=True)
    await mine.close()
    assert mine.state is State.LOST
    with pytest.raises(CoordinationClosedError):
        await mine.get("/e")
    assert await other.exists("/e") is None


async def test_watches_of_data(open_session):
    """A watch reports a node's making, each change that comes after the last report was looked at,
    and its end; nothing after it was closed.
    """
    mine, other = await open_session(), await open_session()
    reports = []
    watch = await mine.watch("/w", lambda: reports.append(1))
    for change in (
        lambda: other.create("/w"),
        lambda: other.set("/w", b"1"),
        lambda: other.set("/w", b"2"),
        lambda: other.delete("/w"),
    ):
        count = len(reports)
        await change()
        await until(lambda count=count: len(reports) > count, "a report")
    watch.close()
    count = len(reports)
    await other.create("/w")
    await mine.get("/w")
    assert len(reports) == count


async def test_watches_of_children(open_session):
    """A watch of the children reports that one came or went, not what becomes of its data."""
    mine, other = await open_session(), await open_session()
    await other.create("/d")
    reports = []
    await mine.watch("/d", lambda: reports.append(1), children=True)
    await other.create("/d/x")
    await until(lambda: len(reports) == 1, "a report")
    await other.set("/d/x", b"1")
    await other.delete("/d/x")
    await until(lambda: len(reports) == 2, "a second report")


async def test_a_watch_outlives_the_session(open_session, service):
    """After the session was lost its watches report, and go on in the new one."""
    if not hasattr(service, "expire"):
        pytest.skip("a session over a socket ends with its connection, and has no next one")
    mine, other = await open_session(), await open_session()
    await other.create("/w")
    reports = []
    await mine.watch("/w", lambda: reports.append(1))
    states: list[State] = []
    mine.listen(states.append)
    await service.expire(mine)
    await until(lambda: State.CONNECTED in states and reports, "a report after the new session")
    count = len(reports)
    await other.set("/w", b"1")
    await until(lambda: len(reports) > count, "a report in the new session")

"""What a test can do to the coordination service in memory."""

import asyncio

import pytest

from pulsemark.coordination import ConnectionLossError, SessionExpiredError, State
from tests.support.faulty_coordination import FaultyTree


async def test_a_cut_session_fails_and_goes_on():
    """Requests of a cut session fail; healed in time it is the same session with its nodes."""
    tree = FaultyTree()
    session = tree.session()
    states: list[State] = []
    reports: list[int] = []
    session.listen(states.append)
    await session.create("/e", ephemeral=True)
    await session.watch("/e", lambda: reports.append(1))
    session.cut()
    with pytest.raises(ConnectionLossError):
        await session.get("/e")
    before = session.session_id
    session.heal()
    assert (await session.get("/e")).version == 0
    assert session.session_id == before
    assert states == [State.SUSPENDED, State.CONNECTED]
    assert reports


async def test_a_session_that_was_ended_meanwhile():
    """A session that the service ended while it was cut is lost when it is healed; until then the
    other sessions see its nodes gone, and it does not know.
    """
    tree = FaultyTree()
    mine, other = tree.session(), tree.session()
    await mine.create("/e", ephemeral=True)
    states: list[State] = []
    mine.listen(states.append)
    mine.cut()
    mine.end_silently()
    assert await other.exists("/e") is None
    assert mine.state is State.SUSPENDED
    mine.heal()
    await asyncio.sleep(0)
    assert states == [State.SUSPENDED, State.LOST, State.CONNECTED]
    assert await mine.exists("/e") is None


@pytest.mark.parametrize(("when", "is_made"), [("before", False), ("after", True)])
async def test_faults_before_and_after_the_effect(when, is_made):
    """A lost connection leaves the change undone or done, as the test chooses."""
    tree = FaultyTree()
    session = tree.session()

    async def fault(_session, name, path, moment):
        if name == "create" and moment == when:
            raise ConnectionLossError(path)

    tree.fault = fault
    with pytest.raises(ConnectionLossError):
        await session.create("/a")
    assert (await session.exists("/a") is not None) == is_made


async def test_requests_of_an_ended_session():
    """A session that was ended, and was not notified, cannot change anything."""
    tree = FaultyTree()
    session = tree.session()
    session.end_silently()
    with pytest.raises(SessionExpiredError):
        await session.create("/a")
    assert tree.paths() == ["/"]

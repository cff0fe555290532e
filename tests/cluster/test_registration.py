"""Brokers that make themselves known, and the election of the leader."""

import asyncio

import pytest

from pulsemark.broker.ownership import Found
from pulsemark.cluster import registration
from pulsemark.cluster.registration import BROKERS, LEADER, Registration
from pulsemark.coordination import ConnectionLossError, NodeExistsError
from tests.support.faulty_coordination import FaultyTree

from .conftest import within_rounds


def broker(tree, name="one"):
    """A broker's session, and its registration."""
    session = tree.session()
    me = Found(f"{name}:8080", f"pulsar://{name}:6650", "", f"http://{name}:8080", "")
    return session, Registration(session, me, None)


class Losses:
    """Requests that get no answer, as often as is said."""

    def __init__(self, when, left):
        self.when, self.left = when, left

    async def __call__(self, _session, _name, path, when):
        """As `FaultyTree.fault`."""
        if when == self.when and self.left > 0:
            self.left -= 1
            raise ConnectionLossError(path)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_requests_without_an_answer(when, monkeypatch):
    """In a new session a broker registers again, whichever of its requests get no answer, and
    whether they had an effect or not: at last its node and the leader's are there, in the new
    session, with the bundles that it owns.
    """
    monkeypatch.setattr(registration, "AGAIN_S", 0.001)
    for lost in range(1, 12):
        tree = FaultyTree()
        session, one = broker(tree)
        await one.register()
        await one.show_bundles(["a/b/0x00000000_0xffffffff"])
        session.expire()
        assert await session.exists(f"{BROKERS}/one:8080") is None
        tree.fault = Losses(when, lost)
        await asyncio.wait_for(one.again(), 30)
        assert tree.fault.left == 0
        tree.fault = None
        stat = await session.exists(f"{BROKERS}/one:8080")
        assert stat.ephemeral_owner == session.session_id
        await within_rounds(lambda one=one: one.is_leader)
        assert (await session.exists(LEADER)).ephemeral_owner == session.session_id
        known = await one.brokers()
        assert known["one:8080"].bundles == ("a/b/0x00000000_0xffffffff",)
        await one.withdraw()


async def test_another_broker_leads_meanwhile():
    """A broker whose session has ended is the leader no more if another one was elected."""
    tree = FaultyTree()
    session, one = broker(tree)
    _, two = broker(tree, "two")
    await one.register()
    await two.register()
    assert one.is_leader
    session.cut()
    session.end_silently()
    await within_rounds(lambda: two.is_leader)
    session.heal()
    await one.again()
    assert not one.is_leader
    assert (await one.leader()).broker_id == "two:8080"
    assert sorted(await one.brokers()) == ["one:8080", "two:8080"]


async def test_a_broker_that_leaves_registers_no_more(monkeypatch):
    """A broker that is withdrawn while it registers again ends its attempts, and leaves no node."""
    monkeypatch.setattr(registration, "AGAIN_S", 0.001)
    tree = FaultyTree()
    session, one = broker(tree)
    await one.register()
    session.expire()
    losses = Losses("before", 1_000_000)
    tree.fault = losses
    again = asyncio.create_task(one.again())
    await within_rounds(lambda: losses.left < 999_990)
    tree.fault = None
    await one.withdraw()
    await asyncio.wait_for(again, 30)
    assert await session.exists(f"{BROKERS}/one:8080") is None
    assert await session.exists(LEADER) is None


async def test_a_broker_that_is_started_again_at_once():
    """A broker waits for the end of its last run's session, and registers then."""
    tree = FaultyTree()
    before, last_run = broker(tree)
    await last_run.register()
    before.cut()
    session, one = broker(tree)
    seen = []

    async def looked(_session, name, path, when):
        if name == "exists" and when == "after" and path.startswith(BROKERS):
            seen.append(path)

    tree.fault = looked
    registering = asyncio.create_task(one.register())
    await within_rounds(lambda: len(seen) >= 2)
    assert not registering.done()
    before.end_silently()
    await asyncio.wait_for(registering, 30)
    stat = await session.exists(f"{BROKERS}/one:8080")
    assert stat.ephemeral_owner == session.session_id
    await within_rounds(lambda: one.is_leader)


async def test_two_brokers_that_advertise_the_same_address(monkeypatch):
    """The second one does not start: it is told why, and the first one's node stays as it was."""
    monkeypatch.setattr(registration, "LEFT_LIMIT_S", 0.01)
    monkeypatch.setattr(registration, "LOOK_S", 0.001)
    tree = FaultyTree(session_timeout_ms=10)
    session, first = broker(tree)
    await first.register()
    _, second = broker(tree)
    with pytest.raises(NodeExistsError, match="one:8080: another broker runs that advertises"):
        await second.register()
    await second.withdraw()
    stat = await session.exists(f"{BROKERS}/one:8080")
    assert stat.ephemeral_owner == session.session_id
    assert first.is_leader

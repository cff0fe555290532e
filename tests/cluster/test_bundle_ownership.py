"""Taking bundles over, with sessions that are lost meanwhile."""

import asyncio

import pytest

from pulsemark.broker.errors import RefusedError
from pulsemark.broker.ownership import Found
from pulsemark.cluster.bundle_ownership import BundleOwnership
from pulsemark.coordination import ConnectionLossError
from tests.support.faulty_coordination import FaultyTree

BUNDLE = "public/default/0x00000000_0x40000000"


class Stores:
    """Stores whose opening a test holds up."""

    are_shared = True

    def __init__(self):
        self.is_opening, self.may_open = asyncio.Event(), asyncio.Event()
        self.closed = []
        self.opened = 0

    async def open(self, bundle):
        """Wait for the test."""
        self.opened += 1
        self.is_opening.set()
        await self.may_open.wait()
        return f"store of {bundle}"

    async def close(self, bundle, store, *, is_lost):
        """Note it."""
        self.closed.append((bundle, is_lost))

    def finish(self):
        """Nothing is open."""

    def bad_copies(self):
        """None."""
        return {}


def ownership_of(tree, name):
    """What one broker owns, its session, and its stores."""
    session, stores = tree.session(), Stores()

    async def close_topics(bundle, is_lost):
        return 0

    me = Found(name, f"pulsar://{name}", "", f"http://{name}", "")
    return BundleOwnership(session, me, stores, {}, close_topics), session, stores


async def test_a_session_that_is_lost_while_a_bundle_is_taken():
    """A broker whose session ends while it opens a bundle's store does not serve the bundle: its
    node is gone, and another broker takes it over.
    """
    tree = FaultyTree()
    mine, session, stores = ownership_of(tree, "one:1")
    taking = asyncio.create_task(mine.take(BUNDLE))
    await stores.is_opening.wait()
    session.expire()
    stores.may_open.set()
    with pytest.raises(RefusedError, match="session was lost"):
        await taking
    assert not mine.owns(BUNDLE)
    assert stores.closed == [(BUNDLE, True)]
    other, _, its_stores = ownership_of(tree, "two:2")
    its_stores.may_open.set()
    assert (await other.take(BUNDLE)).broker_id == "two:2"
    assert (await mine.take(BUNDLE)).broker_id == "two:2"
    assert not mine.owns(BUNDLE)


async def test_a_connection_that_is_lost_while_a_bundle_is_taken():
    """Without an answer about the node the bundle is not served, and its node goes as soon as the
    service answers again.
    """
    tree = FaultyTree()
    mine, session, stores = ownership_of(tree, "one:1")
    taking = asyncio.create_task(mine.take(BUNDLE))
    await stores.is_opening.wait()
    session.cut()
    stores.may_open.set()
    with pytest.raises(ConnectionLossError):
        await taking
    assert not mine.owns(BUNDLE)
    session.heal()
    await mine.forget_stale()
    assert await tree.session().exists(f"/namespace/{BUNDLE}") is None
    assert (await mine.take(BUNDLE)).broker_id == "one:1"


async def test_a_bundle_that_is_taken_in_peace():
    """With its session a broker serves what it took."""
    tree = FaultyTree()
    mine, _, stores = ownership_of(tree, "one:1")
    stores.may_open.set()
    await mine.take(BUNDLE)
    assert mine.owns(BUNDLE)


@pytest.mark.parametrize("is_over", [False, True])
async def test_a_lookup_whose_client_vanishes(is_over):
    """A bundle that is being taken over for a client that disconnects is taken over all the same:
    its store is not left open and unknown. A broker that ends meanwhile gives it away.
    """
    tree = FaultyTree()
    mine, _, stores = ownership_of(tree, "one:1")
    taking = asyncio.create_task(mine.take(BUNDLE))
    await stores.is_opening.wait()
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    mine.is_over = is_over
    giving = asyncio.create_task(mine.give_all()) if is_over else None
    await asyncio.sleep(0)
    stores.may_open.set()
    if giving is not None:
        await giving
        assert stores.closed == [(BUNDLE, False)]
        assert await tree.session().exists(f"/namespace/{BUNDLE}") is None
        return
    assert (await mine.take(BUNDLE)).broker_id == "one:1"
    assert mine.owns(BUNDLE)
    assert stores.opened == 1

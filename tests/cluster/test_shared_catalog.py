"""The settings that all brokers share."""

import asyncio
from copy import deepcopy
from functools import partial
from types import SimpleNamespace

import pytest

from pulsemark.broker.topics.catalog_writer import CatalogWriter
from pulsemark.broker.topics.namespaces import Namespaces
from pulsemark.cluster import shared_catalog
from pulsemark.cluster.shared_catalog import (
    CHANGES,
    MAX_VALUE_BYTES,
    REMOVED,
    ROOT,
    SharedCatalog,
)
from pulsemark.coordination import ConnectionLossError
from pulsemark.ledger import CatalogError
from pulsemark.ledger.errors import ChangedElsewhereError
from tests.support.faulty_coordination import FaultyTree

from .conftest import within_rounds


async def opened(tree):
    """A broker's view of the catalog, and the changes of others."""
    catalog = SharedCatalog(tree.session())
    await catalog.load()
    received = []
    catalog.on_change.append(lambda *change: received.append(change))
    return catalog, received


def in_thread(function, *arguments):
    """As the broker's executor calls it."""
    return asyncio.to_thread(partial(function, *arguments))


async def test_changes_reach_the_others():
    """A change is seen by its maker at once, by the others soon, each change once and in order;
    keys may be any text.
    """
    tree = FaultyTree()
    mine, my_news = await opened(tree)
    other, news = await opened(tree)
    await in_thread(mine.write, [("namespace", "a/b", b"1"), ("k", "", b"2"), ("k", "./%", b"3")])
    assert mine.get("namespace", "a/b") == b"1"
    await in_thread(mine.put, "namespace", "a/b", b"4")
    await within_rounds(lambda: other.get("namespace", "a/b") == b"4")
    assert other.items("k") == [("", b"2"), ("./%", b"3")]
    assert await in_thread(mine.delete, "k", "")
    assert not await in_thread(mine.delete, "k", "absent")
    await within_rounds(lambda: news[-1:] == [("k", "", None)])
    assert my_news == []
    later, _ = await opened(tree)
    assert later.items("k") == [("./%", b"3")]


async def test_two_that_change_one_value():
    """The second of two changes made at the same time is refused as a whole; then it knows the
    first one's value, and can try again.
    """
    tree = FaultyTree()
    one, _ = await opened(tree)
    two, news = await opened(tree)
    await in_thread(one.put, "k", "a", b"0")
    await within_rounds(lambda: two.get("k", "a") == b"0")
    two.close()  # it gets no more changes by itself
    await in_thread(one.put, "k", "a", b"1")
    with pytest.raises(ChangedElsewhereError):
        await in_thread(two.write, [("k", "new", b"x"), ("k", "a", b"2")])
    assert two.get("k", "a") == b"1"
    assert two.get("k", "new") is None
    assert news[-1] == ("k", "a", b"1")
    await in_thread(two.put, "k", "a", b"2")


class Held:
    """Runs blocking work in threads, and each piece only when the test lets it."""

    def __init__(self):
        self.may_run = asyncio.Event()
        self.may_run.set()
        self.waiting = 0

    async def __call__(self, function, *arguments):
        """As the broker's `run_blocking`."""
        self.waiting += 1
        await self.may_run.wait()
        return await asyncio.to_thread(function, *arguments)


async def namespaces_of(tree):
    """A broker's namespaces on the shared catalog, and what holds up its changes."""
    catalog, _ = await opened(tree)
    executor = Held()
    writer = CatalogWriter(SimpleNamespace(catalog=catalog), executor)
    namespaces = Namespaces(catalog, writer)
    await asyncio.to_thread(namespaces.load)
    catalog.on_change.append(namespaces.take)
    return namespaces, executor


async def test_two_brokers_change_one_namespace_within_moments():
    """One broker has computed a namespace's new settings, and another's change of them arrives
    before they are written: both changes are kept.
    """
    tree = FaultyTree()
    mine, executor = await namespaces_of(tree)
    other, _ = await namespaces_of(tree)
    executor.may_run.clear()
    executor.waiting = 0
    name = "public/default"
    change = asyncio.create_task(mine.change(name, lambda old: {**old, "mine": 1}))
    await within_rounds(lambda: executor.waiting)
    await other.change(name, lambda old: {**old, "other": 2})
    await within_rounds(lambda: mine[name] == {"other": 2})
    executor.may_run.set()
    await change
    assert mine[name] == {"other": 2, "mine": 1}
    await within_rounds(lambda: other[name] == {"other": 2, "mine": 1})


async def test_changes_of_one_value_at_once():
    """Two brokers that change one value at the same time, again and again, lose no change."""
    tree = FaultyTree()
    mine, _ = await namespaces_of(tree)
    other, _ = await namespaces_of(tree)
    name = "public/default"

    async def count(namespaces):
        for _ in range(50):
            await namespaces.change(name, lambda old: {"count": old.get("count", 0) + 1})

    await asyncio.gather(count(mine), count(other))
    await within_rounds(lambda: mine[name] == other[name] == {"count": 100})


async def test_a_value_that_was_given_is_not_computed_again():
    """A namespace that two brokers create at the same moment keeps the settings of the first one;
    the second is refused.
    """
    tree = FaultyTree()
    mine, executor = await namespaces_of(tree)
    other, _ = await namespaces_of(tree)
    executor.may_run.clear()
    change = asyncio.create_task(mine.put("public/new", {"mine": 1}))
    await other.put("public/new", {"other": 2})
    await within_rounds(lambda: mine.get("public/new") == {"other": 2})
    executor.may_run.set()
    with pytest.raises(ChangedElsewhereError, match="public/new"):
        await change
    assert mine["public/new"] == other["public/new"] == {"other": 2}


async def test_moments_that_are_too_long_ago(monkeypatch):
    """Of old changes it is not known when they came: what is older than that is refused."""
    monkeypatch.setattr(shared_catalog, "KEPT_MOMENTS", 2)
    tree = FaultyTree()
    mine, _ = await opened(tree)
    other, _ = await opened(tree)
    await in_thread(mine.put, "k", "same", b"1")
    before = mine.moment()
    for number in range(3):
        await in_thread(other.put, "k", f"key-{number}", b"1")
    await within_rounds(lambda: mine.get("k", "key-2") == b"1")
    with pytest.raises(ChangedElsewhereError):
        await in_thread(mine.write_since, before, [("k", "same", b"2")])
    await in_thread(mine.write_since, mine.moment(), [("k", "same", b"2")])


@pytest.mark.parametrize(("moment", "is_made"), [("before", False), ("after", True)])
async def test_an_answer_that_is_lost(moment, is_made):
    """If the connection breaks during a change, the catalog finds out whether it was made."""
    tree = FaultyTree()
    catalog, _ = await opened(tree)
    await in_thread(catalog.put, "k", "a", b"1")

    async def fault(_session, name, path, when):
        if name == "transaction" and when == moment:
            raise ConnectionLossError(path)

    tree.fault = fault
    change = in_thread(catalog.put, "k", "a", b"2")
    if is_made:
        await change
    else:
        with pytest.raises(CatalogError):
            await change
    tree.fault = None
    assert catalog.get("k", "a") == (b"2" if is_made else b"1")
    await in_thread(catalog.put, "k", "a", b"3")


async def test_values_that_are_too_large():
    """A value above the service's limit is refused and named; nothing is changed."""
    catalog, _ = await opened(FaultyTree())
    with pytest.raises(CatalogError, match=f"k 'a' has {MAX_VALUE_BYTES + 1} bytes"):
        await in_thread(catalog.put, "k", "a", bytes(MAX_VALUE_BYTES + 1))
    assert catalog.get("k", "a") is None


async def test_records_of_changes_are_removed(monkeypatch):
    """There is only a bounded number of records; a broker that missed some reads everything."""
    monkeypatch.setattr(shared_catalog, "KEPT_CHANGES", 8)
    tree = FaultyTree()
    mine, _ = await opened(tree)
    behind_session = tree.session()
    behind = SharedCatalog(behind_session)
    await behind.load()
    behind_session.cut()
    for number in range(40):
        await in_thread(mine.put, "k", f"key-{number % 5}", b"%d" % number)
    await within_rounds(lambda: len([p for p in tree.paths() if p.startswith(f"{CHANGES}/")]) <= 12)
    behind_session.heal()
    await within_rounds(lambda: behind.items("k") == mine.items("k"))


async def test_a_value_that_was_removed_and_made_again():
    """A broker that knows the value from before its removal does not replace the one after it."""
    tree = FaultyTree()
    one, _ = await opened(tree)
    two, _ = await opened(tree)
    await in_thread(one.put, "k", "a", b"before")
    await within_rounds(lambda: two.get("k", "a") == b"before")
    two.close()  # it hears of no more changes by itself
    await in_thread(one.delete, "k", "a")
    await in_thread(one.put, "k", "a", b"after")
    with pytest.raises(ChangedElsewhereError, match="k/-a"):
        await in_thread(two.put, "k", "a", b"replaced")
    assert two.get("k", "a") == b"after"
    await in_thread(two.put, "k", "a", b"now")
    await within_rounds(lambda: one.get("k", "a") == b"now")


async def test_a_removal_by_a_broker_that_knows_an_older_value():
    """A broker that knows the value from before its removal does not remove the one after it."""
    tree = FaultyTree()
    one, _ = await opened(tree)
    two, _ = await opened(tree)
    await in_thread(one.put, "k", "a", b"before")
    await within_rounds(lambda: two.get("k", "a") == b"before")
    two.close()
    await in_thread(one.delete, "k", "a")
    await in_thread(one.put, "k", "a", b"after")
    with pytest.raises(ChangedElsewhereError, match="k/-a"):
        await in_thread(two.delete, "k", "a")
    assert one.get("k", "a") == b"after"


async def test_a_removed_value_is_absent_everywhere():
    """Each broker, also a later one, takes a removed value for absent: it can be made again there
    without a refusal, and removing it once more changes nothing.
    """
    tree = FaultyTree()
    one, _ = await opened(tree)
    await in_thread(one.put, "k", "a", b"1")
    assert await in_thread(one.delete, "k", "a")
    records = len(await tree.session().children(CHANGES))
    assert not await in_thread(one.delete, "k", "a")
    later, news = await opened(tree)
    assert later.get("k", "a") is None
    assert later.items("k") == []
    assert not await in_thread(later.delete, "k", "a")
    assert len(await tree.session().children(CHANGES)) == records
    await in_thread(later.write, [("k", "a", b"2"), ("k", "b", b"3")])
    await within_rounds(lambda: one.items("k") == [("a", b"2"), ("b", b"3")])
    assert news == []
    with pytest.raises(CatalogError, match="k 'a' cannot be"):
        await in_thread(one.put, "k", "a", REMOVED)


async def test_nodes_of_removed_values_are_removed(monkeypatch):
    """Values that come and go leave a bounded number of nodes; one that is there stays."""
    monkeypatch.setattr(shared_catalog, "KEPT_CHANGES", 8)
    tree = FaultyTree()
    mine, _ = await opened(tree)
    await in_thread(mine.put, "k", "again", b"1")
    await in_thread(mine.delete, "k", "again")
    await in_thread(mine.put, "k", "again", b"2")
    for number in range(30):
        await in_thread(mine.put, "k", f"key-{number}", b"1")
        await in_thread(mine.delete, "k", f"key-{number}")
    await within_rounds(lambda: len([p for p in tree.paths() if p.startswith(f"{ROOT}/k/")]) <= 10)
    later, _ = await opened(tree)
    assert later.items("k") == mine.items("k") == [("again", b"2")]


async def test_a_service_that_was_restored_from_an_older_copy():
    """A coordination service that is restored from an older copy gives numbers once more: brokers
    that stayed up know what the copy has, and hear each change that is made after it.
    """
    tree = FaultyTree()
    one, one_news = await opened(tree)
    two, two_news = await opened(tree)
    await in_thread(one.put, "k", "a", b"1")
    await within_rounds(lambda: two.get("k", "a") == b"1")
    copy = deepcopy(tree._nodes)
    for number in range(3):
        await in_thread(one.put, "k", f"lost-{number}", b"2")
    await in_thread(one.put, "newer", "a", b"2")
    await within_rounds(lambda: two.get("newer", "a") == b"2")
    tree._nodes.clear()
    tree._nodes.update(copy)
    await in_thread(one.put, "k", "a", b"3")
    await within_rounds(lambda: two_news[-1:] == [("k", "a", b"3")] or two.get("k", "a") == b"3")
    for number in range(4):  # as many as were lost, and one more
        await in_thread(two.put, "k", f"new-{number}", b"4")
    await within_rounds(lambda: one.get("k", "new-3") == b"4")
    for catalog, news in ((one, one_news), (two, two_news)):
        assert [catalog.get("k", f"lost-{number}") for number in range(3)] == [None] * 3
        assert {("k", f"lost-{number}", None) for number in range(3)} <= set(news)
        assert catalog.get("newer", "a") is None
    await in_thread(one.put, "newer", "a", b"5")
    await within_rounds(lambda: two.get("newer", "a") == b"5")

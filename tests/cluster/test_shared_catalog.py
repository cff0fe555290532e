"""The settings that all brokers share."""

import asyncio
from functools import partial

import pytest

from pulsemark.cluster import shared_catalog
from pulsemark.cluster.shared_catalog import CHANGES, MAX_VALUE_BYTES, SharedCatalog
from pulsemark.coordination import ConnectionLossError
from pulsemark.coordination.memory import MemoryTree
from pulsemark.ledger import CatalogError
from pulsemark.ledger.errors import ChangedElsewhereError


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


async def until(holds):
    """Let the loop work, for a bounded number of rounds."""
    for _ in range(2_000):
        if holds():
            return
        await asyncio.sleep(0.001)
    pytest.fail("not within 2,000 rounds")


async def test_changes_reach_the_others():
    """A change is seen by its maker at once, by the others soon, each change once and in order;
    keys may be any text.
    """
    tree = MemoryTree()
    mine, my_news = await opened(tree)
    other, news = await opened(tree)
    await in_thread(mine.write, [("namespace", "a/b", b"1"), ("k", "", b"2"), ("k", "./%", b"3")])
    assert mine.get("namespace", "a/b") == b"1"
    await in_thread(mine.put, "namespace", "a/b", b"4")
    await until(lambda: other.get("namespace", "a/b") == b"4")
    assert other.items("k") == [("", b"2"), ("./%", b"3")]
    assert await in_thread(mine.delete, "k", "")
    assert not await in_thread(mine.delete, "k", "absent")
    await until(lambda: news[-1:] == [("k", "", None)])
    assert my_news == []
    later, _ = await opened(tree)
    assert later.items("k") == [("./%", b"3")]


async def test_two_that_change_one_value():
    """The second of two changes made at the same time is refused as a whole; then it knows the
    first one's value, and can try again.
    """
    tree = MemoryTree()
    one, _ = await opened(tree)
    two, news = await opened(tree)
    await in_thread(one.put, "k", "a", b"0")
    await until(lambda: two.get("k", "a") == b"0")
    two.close()  # it gets no more changes by itself
    await in_thread(one.put, "k", "a", b"1")
    with pytest.raises(ChangedElsewhereError):
        await in_thread(two.write, [("k", "new", b"x"), ("k", "a", b"2")])
    assert two.get("k", "a") == b"1"
    assert two.get("k", "new") is None
    assert news[-1] == ("k", "a", b"1")
    await in_thread(two.put, "k", "a", b"2")


@pytest.mark.parametrize(("moment", "is_made"), [("before", False), ("after", True)])
async def test_an_answer_that_is_lost(moment, is_made):
    """If the connection breaks during a change, the catalog finds out whether it was made."""
    tree = MemoryTree()
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
    catalog, _ = await opened(MemoryTree())
    with pytest.raises(CatalogError, match=f"k 'a' has {MAX_VALUE_BYTES + 1} bytes"):
        await in_thread(catalog.put, "k", "a", bytes(MAX_VALUE_BYTES + 1))
    assert catalog.get("k", "a") is None


async def test_records_of_changes_are_removed(monkeypatch):
    """There is only a bounded number of records; a broker that missed some reads everything."""
    monkeypatch.setattr(shared_catalog, "KEPT_CHANGES", 8)
    tree = MemoryTree()
    mine, _ = await opened(tree)
    behind_session = tree.session()
    behind = SharedCatalog(behind_session)
    await behind.load()
    behind_session.cut()
    for number in range(40):
        await in_thread(mine.put, "k", f"key-{number % 5}", b"%d" % number)
    await until(lambda: len([p for p in tree.paths() if p.startswith(f"{CHANGES}/")]) <= 12)
    behind_session.heal()
    await until(lambda: behind.items("k") == mine.items("k"))

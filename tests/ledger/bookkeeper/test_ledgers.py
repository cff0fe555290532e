"""What becomes of ledgers that no topic has any more."""

from __future__ import annotations

from typing import Any

from pulsemark.coordination.memory import MemoryTree
from pulsemark.ledger import StoreOptions
from pulsemark.ledger.bookkeeper.store import BookKeeperStore, fitting
from pulsemark.ledger.store_core import StoreSetup
from pulsemark.testing.clock import A_TIME_MS, SettableClock
from pulsemark.testing.memory_bookies import MemoryBookies


def test_a_trimmed_ledger_is_deleted_whatever_is_changed_in_between():
    """Also if another topic's change comes after it was removed and before it is deleted."""
    tree, bookies = MemoryTree(), MemoryBookies()

    async def connecting() -> Any:
        return tree.session(), bookies.client()

    options = StoreOptions(ledger_entries=2)
    setup = StoreSetup(SettableClock(A_TIME_MS), options, None, threaded=True)
    with BookKeeperStore.open_with(
        connecting, ledgers_root="/ledgers", root="/one", ledger_options=None, setup=setup
    ) as store:
        topic = store.open_topic("persistent://public/default/t")
        for number in range(6):
            topic.append(b"%d" % number).commit.wait()
        kept, removed = topic.segments()[-2:]
        # It was closed just now, and no change has noted it yet.
        store.engine.logs.closed(removed.ledger_id)
        topic_id = store.engine.metadata.topics()[topic.name]
        free = store.engine.remove(topic_id, [removed])
        store.engine.metadata.put("kind", "key", b"another change")
        store.open_topic("persistent://public/default/other").append(b"x").commit.wait()
        free()
        assert removed.ledger_id not in bookies.ledgers
        assert kept.ledger_id in bookies.ledgers


def test_ledgers_are_as_long_as_pulsars_by_default():
    """Options that do not say it do not give them the length of a data folder's ledgers."""
    lengths = [fitting(given).ledger_entries for given in (None, StoreOptions())]
    assert lengths == [50_000, 50_000]
    assert fitting(StoreOptions(ledger_entries=100)).ledger_entries == 100

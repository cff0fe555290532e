"""The engine on real bookies that die, stop, and come back."""

from __future__ import annotations

import os
from uuid import uuid4

import pytest
from bookkeeper_peer import BookKeeperPeer

from pulsemark.ledger import EARLIEST, FencedError, LedgerError, ManagedLedger
from pulsemark.ledger.bookkeeper.reader import BookKeeperReader
from pulsemark.ledger.bookkeeper.store import BookKeeperStore
from pulsemark.metadata import StamperChain

TOPIC = "persistent://public/default/orders"
WAIT_S = 60


def append(ledger: ManagedLedger, bodies: list[bytes]) -> dict[bytes, int]:
    """Append all of these, each again after a failure; their indexes."""
    indexes = {}
    for body in bodies:
        for _ in range(20):
            try:
                appended = ledger.append(body)
                appended.commit.wait(WAIT_S)
            except FencedError:
                continue
            indexes[body] = appended.index
            break
    return indexes


def bodies(begin: int) -> list[bytes]:
    """Twenty bodies."""
    return [b"%d" % number for number in range(begin, begin + 20)]


def check(store: BookKeeperStore, expected: dict[bytes, int]) -> None:
    """Every acknowledged entry is there at its index, and there is no gap."""
    found = store.open_topic(TOPIC).read(EARLIEST, max_entries=1000)
    by_index = {entry.index: bytes(entry.body) for entry in found}
    assert {index: by_index.get(index) for index in expected.values()} == {
        index: body for body, index in expected.items()
    }
    assert sorted(by_index) == list(range(len(by_index)))


@pytest.mark.skipif(
    "BOOKKEEPER_PEER_FOLDER" in os.environ, reason="the bookies there have other users"
)
def test_a_bookie_dies_and_one_stops(bookkeeper_peer: BookKeeperPeer) -> None:
    """With one of three killed, then another stopped, appends go on, and nothing is lost."""
    peer, root = bookkeeper_peer, f"/test/{uuid4().hex}"
    with BookKeeperStore.open(peer.store, root=root) as store:
        ledger = store.open_topic(TOPIC)
        ledger.stampers = StamperChain.from_names(("broker-time", "index"))
        expected = append(ledger, bodies(0))
        peer.kill("bookie-0")
        try:
            expected |= append(ledger, bodies(100))
            ledger.roll()
            expected |= append(ledger, bodies(200))
        finally:
            peer.run("bookie-0")
        peer.pause("bookie-1")
        try:
            expected |= append(ledger, bodies(300))
        finally:
            peer.resume("bookie-1")
        assert len(expected) == 80
        check(store, expected)
    with BookKeeperStore.open(peer.store, root=root) as store:
        check(store, expected)


def test_an_owner_that_is_replaced(bookkeeper_peer: BookKeeperPeer) -> None:
    """The owner before is fenced on the bookies, and a reader takes nothing over."""
    peer, root = bookkeeper_peer, f"/test/{uuid4().hex}"
    first = BookKeeperStore.open(peer.store, root=root)
    ledger = first.open_topic(TOPIC)
    expected = append(ledger, bodies(0))
    with BookKeeperReader.open(peer.store, root=root) as reader:
        assert len(reader.log(TOPIC).read(EARLIEST)) >= 19
    expected |= append(ledger, bodies(100))
    with BookKeeperStore.open(peer.store, root=root) as second:
        with pytest.raises(LedgerError):
            ledger.append(b"late").commit.wait(WAIT_S)
        expected |= append(second.open_topic(TOPIC), bodies(200))
        first.close()
        check(second, expected)
        assert len(expected) == 60

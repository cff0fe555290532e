"""What was used last is kept, and no more than that."""

from __future__ import annotations

from pulsemark.ledger.tail_cache import Lru


def test_the_least_recently_used_goes_first() -> None:
    """A value that was asked for or put again outlives one that was not."""
    lru: Lru[int, str] = Lru(3)
    for key in (1, 2, 3):
        lru.put(key, f"value {key}")
    assert lru.get(1) == "value 1"
    lru.put(2, "another")
    lru.put(4, "value 4")
    assert (lru.get(3), lru.get(2), lru.get(1)) == (None, "another", "value 1")
    assert len(lru) == 3


def test_forgetting() -> None:
    """Some values go by their keys, or all do."""
    lru: Lru[int, str] = Lru(10)
    for key in range(6):
        lru.put(key, "value")
    lru.forget(lambda key: key % 2 == 0)
    assert [key for key in range(6) if lru.get(key)] == [1, 3, 5]
    lru.clear()
    assert len(lru) == 0

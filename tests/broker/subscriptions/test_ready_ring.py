"""The ring of ready consumers."""

from __future__ import annotations

from dataclasses import dataclass

from pulsemark.broker.subscriptions.ready_ring import ReadyRing


@dataclass(eq=False)
class Taker:
    """A consumer as the ring sees it."""

    name: str
    priority_level: int = 0
    permits: int = 1


def ring_of(*takers):
    """A ring, and the consumers that were asked whether they are ready."""
    asked = []

    def is_ready(taker):
        asked.append(taker)
        return taker.permits > 0

    ring = ReadyRing(is_ready)
    for taker in takers:
        ring.add(taker)
    return ring, asked


def turn(ring):
    """The next consumer; it then moves to the end."""
    taker = ring.first()
    if taker is not None:
        assert ring.first() is taker
        ring.move_to_end(taker)
    return taker


def test_each_in_turn_and_the_best_level_first():
    """Round robin over the ready ones of a level; the next level when none of it is ready."""
    a, b, c, low = Taker("a"), Taker("b"), Taker("c"), Taker("low", priority_level=1)
    ring, _ = ring_of(low, a, b, c)
    assert [turn(ring).name for _ in range(6)] == ["a", "b", "c", "a", "b", "c"]
    b.permits = 0
    assert [turn(ring).name for _ in range(4)] == ["a", "c", "a", "c"]
    a.permits = c.permits = 0
    assert turn(ring) is low
    low.permits = 0
    assert not ring.has_ready()
    assert turn(ring) is None
    c.permits = 1
    assert turn(ring) is None
    ring.add(c)
    ring.add(c)
    assert [turn(ring), turn(ring)] == [c, c]
    ring.remove(c)
    ring.remove(c)
    assert turn(ring) is None


def test_permits_from_many_consumers_cost_no_look_at_all_of_them():
    """3000 consumers get permits, one after the other, and each is used up at once."""
    takers = [Taker(str(n), permits=0) for n in range(3000)]
    ring, asked = ring_of(*takers)
    assert turn(ring) is None
    assert len(asked) == 3000
    asked.clear()
    for taker in takers:
        taker.permits = 1
        ring.add(taker)
        assert turn(ring) is taker
        taker.permits = 0
        assert turn(ring) is None
    assert len(asked) <= 5 * 3000

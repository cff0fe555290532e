"""Searching by time while the clock does what clocks do."""

from bisect import bisect_left
from random import Random

from pulsemark.finder import Finder, SearchMethod
from pulsemark.ledger import EARLIEST, LATEST, LocalStore, Position, StoreOptions
from pulsemark.metadata import BrokerTimeStamper, IndexStamper, StamperChain
from pulsemark.testing.clock import A_TIME_MS, SettableClock

ORDERS = "persistent://public/default/orders"
STEPS_MS = [0, 0, 1, 5, 40, -300_000, 86_400_000, -86_400_000]
OPTIONS = StoreOptions(ledger_entries=700, segment_size_bytes=40_000)


def test_ten_thousand_searches_equal_a_look_at_every_entry(tmp_path):
    """Clock steps of -300 s and a day, restarts with an earlier clock: times never fall, and
    10,000 searches by time, on both methods, find what a plain look finds.
    """
    random, clock = Random(9), SettableClock(A_TIME_MS)
    for life in range(4):
        with LocalStore.open(tmp_path / "data", clock=clock, options=OPTIONS) as store:
            topic = store.open_topic(ORDERS)
            topic.stampers = StamperChain([BrokerTimeStamper(), IndexStamper()])
            for _ in range(1000):
                clock.advance(
                    by_ms=random.choice(STEPS_MS[:5] if random.random() < 0.98 else STEPS_MS)
                )
                last = topic.append(b"x", message_count=random.randint(1, 3))
            last.commit.wait(30)
        clock.set(SettableClock(A_TIME_MS).now_ms() + 1000 * life - 3_600_000)
    with LocalStore.open(tmp_path / "data", clock=clock, options=OPTIONS) as store:
        topic = store.open_topic(ORDERS)
        times, indexes = [], []
        positions: list[Position] = []
        while part := topic.read(
            Position(positions[-1][0], positions[-1][1] + 1) if positions else EARLIEST,
            max_entries=1000,
        ):
            for entry in part:
                times.append(entry.append_time_ms)
                indexes.append(entry.first_index)
                positions.append(entry.position)
        assert len(times) == 4000
        assert times == sorted(times)
        assert topic.count_entries(EARLIEST, LATEST) == 4000
        finder = Finder(topic)
        for number in range(10_000):
            time_ms = random.choice(times) + random.randint(-2, 2)
            if number % 100 == 0:
                time_ms = random.choice([0, times[0] - 1, times[-1] + 1, 2**63])
            found = finder.by_time(
                time_ms, method=SearchMethod.PREFIXES if number % 4 == 0 else SearchMethod.INDEX
            )
            row = bisect_left(times, time_ms)
            if row == len(times):
                assert found.end
                assert found.first_index == topic.next_index
            else:
                assert (found.position, found.first_index) == (positions[row], indexes[row])
                assert found.time_ms == times[row]

import time

from pulsemark.metadata import Clock, SystemClock


def test_system_clock_is_the_wall_clock():
    """The clock's milliseconds lie between two readings of the system's own clock."""
    before = time.time_ns() // 1_000_000
    now = SystemClock().now_ms()
    after = time.time_ns() // 1_000_000
    assert type(now) is int
    assert before <= now <= after


def test_system_clock_is_a_clock():
    """The system's clock satisfies the protocol; an object without now_ms does not."""
    assert isinstance(SystemClock(), Clock)
    assert not isinstance(object(), Clock)

import time

from hypothesis import given, settings
from hypothesis import strategies as st

from pulsemark.metadata import Clock, SystemClock, next_stamp_ms


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


def test_a_clock_set_back_holds_the_stamp():
    """After the clock steps back, stamps stand still until it has caught up."""
    last = -1
    stamps = []
    for now in (1000, 1001, 700, 1000, 1001, 1002):
        last = next_stamp_ms(now, last)
        stamps.append(last)
    assert stamps == [1000, 1001, 1001, 1001, 1001, 1002]


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**63)))
def test_stamps_never_fall(times):
    """Whatever the clock says, stamps never fall, and none is a time that the clock never said."""
    last = -1
    for now in times:
        stamp = next_stamp_ms(now, last)
        assert stamp >= max(last, now)
        assert stamp in times
        last = stamp

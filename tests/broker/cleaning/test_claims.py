"""A topic belongs to one at a time."""

from __future__ import annotations

import threading

import pytest

from pulsemark.broker.cleaning.claims import Claims


def test_one_at_a_time():
    """A claim on a held topic is refused, or waits; another topic is free."""
    claims = Claims()
    got = threading.Event()

    def waits():
        with claims.waiting("a"):
            got.set()

    with claims.waiting("a"):
        with claims.if_free("a") as is_free:
            assert not is_free
        with claims.if_free("b") as is_free:
            assert is_free
        thread = threading.Thread(target=waits)
        thread.start()
        assert not got.wait(0.05)
    assert got.wait(20)
    thread.join()
    with claims.if_free("a") as is_free:
        assert is_free


@pytest.mark.parametrize("way", ["waiting", "if_free"])
def test_given_back_after_a_failure(way):
    """What fails while it holds a topic does not keep it."""
    claims = Claims()
    with pytest.raises(OSError, match="disk"), getattr(claims, way)("a"):
        raise OSError("disk")
    with claims.if_free("a") as is_free:
        assert is_free

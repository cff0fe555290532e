"""Fixtures of the ledger's tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest

from tests.support.simulated_store import SimulatedStore


@pytest.fixture
def simulated(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SimulatedStore]:
    """A store on a simulated disk, without threads, with the OPTIONS of the test's module."""
    simulated = SimulatedStore(tmp_path / "data", options=request.module.OPTIONS)
    yield simulated
    simulated.close()


@pytest.fixture
def threads_of_stores() -> Callable[[], Collection[str]]:
    """The names of the threads that stores opened in this test have by now.

    The thread that opened a store, and after a failed opening the one that works for the main
    thread, may still be ending: they do nothing more, and are waited for.
    """
    others = set(threading.enumerate())

    def names() -> Collection[str]:
        threads = [thread for thread in threading.enumerate() if thread not in others]
        for thread in threads:
            if thread.name in ("pulsemark-opening", "pulsemark-uninterrupted"):
                thread.join(20)
        return [t.name for t in threads if t.is_alive() and t.name.startswith("pulsemark-")]

    return names

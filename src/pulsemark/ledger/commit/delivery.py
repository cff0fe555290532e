"""Who calls the callbacks of commits: never the thread that commits.

With ``notify``, the caller's own scheduler calls them (an event loop, say). Without it, a thread of
the store does that does nothing else. So a callback may append and wait, make a checkpoint, open
and delete topics, and take its time. A store without threads calls them when no commit is running.
They are always called in the order of the commits.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue

_log = logging.getLogger(__name__)

CALLBACKS_TIMEOUT_S = 30.0
"""How long a store that is closed waits for callbacks that do not return."""

Notify = Callable[[Callable[[], None]], object]
"""Schedules a call in another place, and does not run it itself."""


class Delivery:
    """Calls callbacks.

    Args:
        notify: schedules them; None: the store calls them itself.
        threaded: whether the store has a thread for that.
    """

    def __init__(self, notify: Notify | None, *, threaded: bool) -> None:
        self._notify = notify
        self.notified_thread = -1
        """The thread in which ``notify`` runs calls, once it has run one; -1 until then."""
        self._calls: SimpleQueue[Sequence[Callable[[], None]] | None] = SimpleQueue()
        self._running: Callable[[], None] | None = None
        self._here: deque[Sequence[Callable[[], None]]] = deque()
        self._thread: threading.Thread | None = None
        if threaded and notify is None:
            self._thread = threading.Thread(
                target=self._run, name="pulsemark-callbacks", daemon=True
            )
            self._thread.start()

    def put(self, calls: Sequence[Callable[[], None]]) -> None:
        """Have these called in this order, after all earlier ones. Called between two batches."""
        if not calls:
            return
        if self._notify is not None:
            _call(partial(self._notify, partial(self._run_notified, calls)))
        elif self._thread is not None:
            self._calls.put(calls)
        else:
            self._here.append(calls)

    def deliver_here(self) -> None:
        """In a store without threads: call what is due. Called after a batch."""
        while self._here:
            _call_all(self._here.popleft())

    def _run(self) -> None:
        while (calls := self._calls.get()) is not None:
            for self._running in calls:
                _call(self._running)

    def _run_notified(self, calls: Sequence[Callable[[], None]]) -> None:
        self.notified_thread = threading.get_ident()
        _call_all(calls)

    @property
    def is_own_thread(self) -> bool:
        """Whether this is the thread that calls callbacks."""
        return self._thread is threading.current_thread()

    def stop(self) -> None:
        """End the thread once every callback was called; wait for that, but not for ever.

        A callback that does not return must not keep the store from giving up its folder.
        """
        self._calls.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(CALLBACKS_TIMEOUT_S)
            if self._thread.is_alive():
                _log.error(
                    "a callback has not returned for %g s after the last commit; the store is "
                    "closed without it, and calls those after it when it returns: %s",
                    CALLBACKS_TIMEOUT_S,
                    self._running,
                )


def _call_all(calls: Sequence[Callable[[], None]]) -> None:
    for call in calls:
        _call(call)


def _call(function: Callable[[], object]) -> None:
    """Call a callback. If it raises, that is its owner's mistake: the others must be called."""
    try:
        function()
    except Exception:  # noqa: BLE001 - see above
        _log.exception("a callback raised an error; the store goes on")
    except BaseException:
        if threading.current_thread() is threading.main_thread():
            raise
        _log.exception("a callback raised an error; the store goes on")

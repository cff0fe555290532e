"""Who commits next, and waking the committer's thread for it."""

from __future__ import annotations

from queue import SimpleQueue


class Bell:
    """Wakes the committer's thread. While threads that wait commit, it need not ring."""

    def __init__(self) -> None:
        self.strokes: SimpleQueue[None] = SimpleQueue()
        """Wakes the thread. An append adds to it, unless ``is_led`` is true (`Pending.group`)."""
        self.is_led = False
        """Those who append wait, and so commit themselves: the thread need not be woken."""
        self.is_rung = False
        """The thread must commit what is pending and wake waiting threads, even beside others."""
        self.is_asleep = False

    def ring(self) -> None:
        """Have the thread commit what is pending and wake waiting threads, even beside others.

        Where it is not asleep it does so in its next turn.
        """
        self.is_led = False
        self.is_rung = True
        if self.is_asleep:
            self.strokes.put(None)

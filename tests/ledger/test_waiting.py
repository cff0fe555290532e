import threading
from collections import deque
from collections.abc import Callable

from pulsemark.ledger.commit.group_commit import Waiters


class BusyLocks(deque[threading.Lock]):
    """The waiters' locks; a thread that comes is listed right after these were counted."""

    comes: Callable[[], None] | None = None

    def __len__(self):
        count = super().__len__()
        comes, self.comes = self.comes, None
        if comes is not None:
            comes()
        return count


def test_thread_that_begins_to_wait_during_a_wake_does_not_delay_others():
    """Threads listed when the change was made are woken, though another one joins."""
    waiters, over = Waiters(), threading.Event()
    locks = waiters._locks = BusyLocks()
    waiting = threading.Thread(target=waiters.wait, args=(over.is_set, 30), daemon=True)
    waiting.start()
    while not locks.copy():
        pass
    first = locks[0]
    over.set()
    late = threading.Lock()
    late.acquire()
    locks.comes = lambda: locks.append(late)
    waiters.wake()
    assert late.locked()
    assert list(locks) == [late]
    assert first not in locks
    waiting.join(30)
    assert not waiting.is_alive()

"""A lock for each name that is in use now."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

__all__ = ["NameLocks"]


class NameLocks:
    """Locks by name. A lock exists only while it is held or waited for."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}
        self._users: dict[str, int] = {}

    def __len__(self) -> int:
        """The number of names whose lock is held or waited for."""
        return len(self._locks)

    def names(self) -> list[str]:
        """The names whose lock is held or waited for."""
        return list(self._locks)

    @asynccontextmanager
    async def held(self, name: str) -> AsyncIterator[None]:
        """Hold the lock of `name`. Other callers wait, and get it in the order of their calls."""
        lock = self._locks.setdefault(name, asyncio.Lock())
        self._users[name] = self._users.get(name, 0) + 1
        try:
            async with lock:
                yield
        finally:
            self._users[name] -= 1
            if not self._users[name]:
                del self._users[name], self._locks[name]

"""In interval mode: what was acknowledged and is not yet synced."""

from __future__ import annotations

import time
from collections.abc import Collection

from .commit import Group, Owner


class Unsynced:
    """The owners of these entries, and the time by which they must be synced."""

    def __init__(self, interval_ms: int) -> None:
        self._interval_s = interval_ms / 1000
        self._owners: dict[int, Owner] = {}
        self._since_s = 0.0
        self.failures = 0
        """How many syncs of what was acknowledged have failed."""
        self.repaired = 0
        """After so many of these failures everything was synced in its own place."""

    def add(self, groups: Collection[Group]) -> None:
        """These were written without a sync."""
        if not self._owners:
            self._since_s = time.monotonic()
        self._owners.update((id(group.owner), group.owner) for group in groups)

    def seconds_left(self) -> float | None:
        """Time left until the oldest block must be synced; None: all blocks are synced."""
        if not self._owners:
            return None
        return max(0.0, self._since_s + self._interval_s - time.monotonic())

    def take(self) -> Collection[Owner]:
        """The owners; the list is empty afterwards."""
        owners, self._owners = self._owners, {}
        return owners.values()

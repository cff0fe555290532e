"""Why a connection is not read for now, and the one place that stops and resumes reading.

Too many publishes are in flight (of this connection, or of all together), too many requests are
being worked on, a command is worked on in pieces, the client does not read and too much is unsent,
or the others on the loop have their turn.
"""

from __future__ import annotations

import asyncio
import enum

__all__ = ["Pause", "ReadingPauses"]


class Pause(enum.Flag):
    """Why a session does not read."""

    NONE = 0
    PUBLISHES = enum.auto()
    REQUESTS = enum.auto()
    UNSENT = enum.auto()
    LONG_WORK = enum.auto()
    #: The others on the loop have their turns before the rest of what was read is handled.
    TURN = enum.auto()
    CLOSING = enum.auto()


_NONE = Pause.NONE


class ReadingPauses:
    """The reasons that hold now. A transport is read while there is none."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._reasons = _NONE
        self._long_works = 0

    def __bool__(self) -> bool:
        return bool(self._reasons)

    def __contains__(self, reason: Pause) -> bool:
        # Asked after each read, while there is hardly ever a reason.
        return self._reasons is not _NONE and reason in self._reasons

    def begin(self, reason: Pause) -> None:
        """Do not read while `reason` holds."""
        before, self._reasons = self._reasons, self._reasons | reason
        if not before and self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def end(self, reason: Pause) -> bool:
        """`reason` holds no longer; whether reading goes on because of that."""
        before, self._reasons = self._reasons, self._reasons & ~reason
        if not before or self._reasons:
            return False
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()
        return True

    @property
    def has_long_work(self) -> bool:
        """Whether a command is being worked on in pieces."""
        return self._long_works > 0

    def long_work_begins(self) -> None:
        """A command is worked on in pieces: what comes after it is read when it is done."""
        self._long_works += 1
        self.begin(Pause.LONG_WORK)

    def long_work_ended(self) -> bool:
        """All pieces of a command are done; as `end`."""
        self._long_works -= 1
        return not self._long_works and self.end(Pause.LONG_WORK)

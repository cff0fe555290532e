"""The reasons to stop reading from a connection. Only this module pauses and resumes reading.

Reasons: too many publishes in flight (of this connection or of all), too many requests in
progress, a command that runs in pieces, too much unsent data because the client does not read, or
other connections that must get their turn on the event loop.
"""

from __future__ import annotations

import asyncio
import enum
import socket

__all__ = ["Pause", "ReadingPauses"]


class Pause(enum.Flag):
    """Why a session does not read."""

    NONE = 0
    PUBLISHES = enum.auto()
    REQUESTS = enum.auto()
    UNSENT = enum.auto()
    LONG_WORK = enum.auto()
    #: Other connections get their turn before the rest of the input is handled.
    TURN = enum.auto()
    CLOSING = enum.auto()
    #: A topic gets messages faster than its policy publishRate allows.
    RATE = enum.auto()


_NONE = Pause.NONE


class ReadingPauses:
    """The reasons that hold now. The transport is read while there are none."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._reasons = _NONE
        self._long_works = 0

    def __bool__(self) -> bool:
        return bool(self._reasons)

    def __contains__(self, reason: Pause) -> bool:
        # Called after each read; usually there is no reason, so that case must be fast.
        return self._reasons is not _NONE and reason in self._reasons

    def begin(self, reason: Pause) -> None:
        """Do not read while `reason` holds."""
        before, self._reasons = self._reasons, self._reasons | reason
        if not before and self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def end(self, reason: Pause) -> bool:
        """`reason` holds no longer. Return whether this resumed reading."""
        before, self._reasons = self._reasons, self._reasons & ~reason
        if not before or self._reasons:
            return False
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()
        return True

    def set_low_water(self, size_bytes: int) -> None:
        """Read nothing until so many bytes have arrived, or the client has ended.

        This is no reason: it is for a few milliseconds (`gathering`).
        """
        if self.transport is not None and not self.transport.is_closing():
            link = self.transport.get_extra_info("socket")
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size_bytes)

    @property
    def has_long_work(self) -> bool:
        """Whether a command runs in pieces."""
        return self._long_works > 0

    def long_work_begins(self) -> None:
        """A command runs in pieces. Later commands are read when it is done."""
        self._long_works += 1
        self.begin(Pause.LONG_WORK)

    def long_work_ended(self) -> bool:
        """All pieces of a command are done. Returns what `end` returns."""
        self._long_works -= 1
        return not self._long_works and self.end(Pause.LONG_WORK)

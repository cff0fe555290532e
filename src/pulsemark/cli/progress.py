"""Progress of long work, in one line of the terminal; nothing where stderr is not a terminal."""

from __future__ import annotations

import sys
import time
from typing import Self

__all__ = ["ByteProgress", "size_text"]

_EVERY_S = 0.2
_CLEAR_LINE = "\r\x1b[2K"


def size_text(size_bytes: float) -> str:
    """A size for people: 1.5 MiB."""
    if size_bytes < 1024:
        return f"{size_bytes:,.0f} bytes"
    units = ["KiB", "MiB", "GiB", "TiB"]
    while (size_bytes := size_bytes / 1024) >= 1024 and len(units) > 1:
        del units[0]
    return f"{size_bytes:,.1f} {units[0]}"


class ByteProgress:
    """Bytes so far, and how many in a second. The line disappears at the end of the block."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._is_shown = sys.stderr.isatty()
        self._started_s = self._last_s = time.monotonic()
        self._done = 0

    def add(self, size_bytes: int) -> None:
        """Count more bytes."""
        self._done += size_bytes
        now_s = time.monotonic()
        if not self._is_shown or now_s - self._last_s < _EVERY_S:
            return
        self._last_s = now_s
        rate = size_text(self._done / (now_s - self._started_s))
        text = f"{self._what}: {size_text(self._done)}, {rate}/s"
        print(_CLEAR_LINE + text, end="", file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_shown:
            print(_CLEAR_LINE, end="", file=sys.stderr, flush=True)

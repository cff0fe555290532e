"""Times relative to now, as people type them: `-15m`, `-1h30m`, `+10s`, `now`."""

from __future__ import annotations

import re

__all__ = ["UNIT_MS", "relative_time_ms"]

UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_RELATIVE = re.compile(r"([+-])((?:\d+(?:ms|[smhdw]))+)", re.ASCII)
_STEP = re.compile(r"(\d+)(ms|[smhdw])", re.ASCII)


def relative_time_ms(text: str, now_ms: int) -> int | None:
    """The unix milliseconds of such a time; None: the text is not one. It may be before 1970."""
    text = text.strip()
    if text == "now":
        return now_ms
    match = _RELATIVE.fullmatch(text)
    if match is None:
        return None
    distance_ms = sum(int(n) * UNIT_MS[unit] for n, unit in _STEP.findall(match[2]))
    return now_ms + (distance_ms if match[1] == "+" else -distance_ms)

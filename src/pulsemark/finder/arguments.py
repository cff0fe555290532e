"""Parses addresses, times and tokens that people give to servers and clients.

Times relative to now are `-15m`, `-1h30m`, `+10s` or `now`. A bearer token may be in a file.
Nothing here imports grpc.
"""

from __future__ import annotations

import re
from pathlib import Path

UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_RELATIVE = re.compile(r"([+-])((?:\d+(?:ms|[smhdw]))+)", re.ASCII)
_STEP = re.compile(r"(\d+)(ms|[smhdw])", re.ASCII)
MAX_TOKEN_FILE_BYTES = 4096
"""More does not fit into the headers of a call, and the file may be a device without an end."""


class TokenFileError(ValueError):
    """A file holds no valid token. The text never shows the content."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} does not hold a token: {reason}")
        self.path = path
        self.reason = reason


def read_token(path: Path) -> str:
    """The token in a file. Raises TokenFileError: not printable ASCII, or too long; OSError."""
    with path.open("rb") as file:
        content = file.read(MAX_TOKEN_FILE_BYTES + 1)
    if len(content) > MAX_TOKEN_FILE_BYTES:
        raise TokenFileError(path, f"it has more than {MAX_TOKEN_FILE_BYTES} bytes")
    token = content.strip()
    if not re.fullmatch(rb"[!-~]+", token):
        reason = "it is empty" if not token else "a token is printable ASCII without spaces"
        raise TokenFileError(path, reason)
    return token.decode("ascii")


def is_loopback(host: str) -> bool:
    """Whether a server that listens on this host is reached from this machine only."""
    if host == "127.0.0.1":  # the default: no import is needed to know it
        return True
    import ipaddress

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def relative_time_ms(text: str, now_ms: int) -> int | None:
    """Parse a relative time to unix milliseconds, perhaps before 1970; None: another text."""
    text = text.strip()
    if text == "now":
        return now_ms
    match = _RELATIVE.fullmatch(text)
    if match is None:
        return None
    distance_ms = sum(int(n) * UNIT_MS[unit] for n, unit in _STEP.findall(match[2]))
    return now_ms + (distance_ms if match[1] == "+" else -distance_ms)

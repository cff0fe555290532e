"""Keys and password files, as Pulsar's settings name them.

A setting holds one of these:

- a `file:` URL or a path: the file's bytes;
- a `data:` URL, such as `data:;base64,aGVsbG8=`;
- base64, if no file has that name.
"""

from __future__ import annotations

import base64
import binascii
import re
from pathlib import Path
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from ..errors import ConfigError

__all__ = ["read_source"]

MAX_SOURCE_BYTES = 1024 * 1024
_DATA_URL = re.compile(r"data:[^,]*?(;base64)?,(.*)", re.DOTALL)


def read_source(field: str, text: str) -> bytes:
    """The bytes that a setting names.

    Raises ConfigError with `field`. It never holds the key: a `data:` URL is not shown.
    """
    if text.startswith("data:"):
        return _read_data_url(field, text)
    path = Path(_path_of(text))
    try:
        with path.open("rb") as file:
            content = file.read(MAX_SOURCE_BYTES + 1)
    except (OSError, ValueError) as error:
        decoded = None if text.startswith("file:") else _base64(text)
        if isinstance(error, FileNotFoundError | ValueError) and decoded:
            return decoded
        reason = getattr(error, "strerror", None) or "is not a path"
        # A key that was given in a wrong way must not get into a log.
        shown = text if text.startswith(("file:", "/", "./")) else "(not shown)"
        raise ConfigError(field, shown, f"cannot be read: {reason}") from None
    if len(content) > MAX_SOURCE_BYTES:
        raise ConfigError(field, text, f"the file has more than {MAX_SOURCE_BYTES} bytes")
    return content


def _path_of(text: str) -> str:
    if not text.startswith("file:"):
        return text
    parts = urlsplit(text)
    return unquote(parts.netloc + parts.path)


def _read_data_url(field: str, text: str) -> bytes:
    match = _DATA_URL.fullmatch(text)
    if match is None:
        raise ConfigError(field, "data:...", "is not a data: URL, such as data:;base64,aGVsbG8=")
    if match[1] is None:
        return unquote_to_bytes(match[2])
    decoded = _base64(match[2])
    if decoded is None:
        raise ConfigError(field, "data:...", "its data is not base64")
    return decoded


def _base64(text: str) -> bytes | None:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        return None

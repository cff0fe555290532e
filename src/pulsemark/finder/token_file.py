"""Bearer tokens in files, for servers and clients. Imports no grpc."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["TokenFileError", "read_token"]


MAX_TOKEN_FILE_BYTES = 4096
"""More does not fit into the headers of a call, and the file may be a device without an end."""


class TokenFileError(ValueError):
    """A file does not hold a token; the text never shows what it holds."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} does not hold a token: {reason}")
        self.path = path
        self.reason = reason


def read_token(path: Path) -> str:
    """The token in a file, without the white space around it.

    Raises:
        TokenFileError: it is not a token, which is printable ASCII without spaces, or the file has
            more than `MAX_TOKEN_FILE_BYTES`.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        content = file.read(MAX_TOKEN_FILE_BYTES + 1)
    if len(content) > MAX_TOKEN_FILE_BYTES:
        raise TokenFileError(path, f"it has more than {MAX_TOKEN_FILE_BYTES} bytes")
    token = content.strip()
    if not re.fullmatch(rb"[!-~]+", token):
        reason = "it is empty" if not token else "a token is printable ASCII without spaces"
        raise TokenFileError(path, reason)
    return token.decode("ascii")

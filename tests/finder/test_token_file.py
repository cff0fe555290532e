"""Tokens in files."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from pulsemark.finder.token_file import TokenFileError, read_token


def test_a_file_that_never_ends_is_refused(tmp_path: Path) -> None:
    """Only as much is read as a token may have."""
    path = tmp_path / "token"
    os.mkfifo(path)
    written: list[int] = []

    def write_on() -> None:
        try:
            with path.open("wb", buffering=0) as pipe:
                while sum(written) < 4 << 20:
                    written.append(pipe.write(b"x" * 4096))
        except BrokenPipeError:
            pass

    writer = threading.Thread(target=write_on)
    writer.start()
    with pytest.raises(TokenFileError, match="more than 4096 bytes") as refused:
        read_token(path)
    writer.join(60)
    assert refused.value.path == path
    assert sum(written) < 1 << 20


def test_the_longest_token(tmp_path: Path) -> None:
    """4096 bytes with the line's end."""
    path = tmp_path / "token"
    path.write_text("x" * 4095 + "\n")
    assert read_token(path) == "x" * 4095
    path.write_text("x" * 4097)
    with pytest.raises(TokenFileError):
        read_token(path)

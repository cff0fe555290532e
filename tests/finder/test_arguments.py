"""Tokens in files."""

from __future__ import annotations

import argparse
import os
import threading
import time
from pathlib import Path

import pytest

from pulsemark.finder.arguments import TokenFileError, read_token, relative_time_ms
from pulsemark.option_table import add_options
from pulsemark.pipeline.arguments import RANGE, TYPES, range_of


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


# -- Times relative to now, also in the options of the jobs


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("now", 10**12), ("-1h", 10**12 - 3_600_000), (" -1m30s", 10**12 - 90_000),
        ("+5ms", 10**12 + 5), ("-1", None), ("1h", None), ("-1y", None), ("", None),
        ("2026-01-01", None),
    ],
)  # fmt: skip
def test_forms(text, time_ms):
    """A sign and units; anything else is not a relative time."""
    assert relative_time_ms(text, 10**12) == time_ms


def test_the_jobs_take_them():
    """`--starting-time -1h` is one moment for all tasks; other forms stay as they are."""
    parser = argparse.ArgumentParser()
    add_options(parser, RANGE, TYPES)
    before_ms = time.time_ns() // 1_000_000
    given = parser.parse_args(["--starting-time", " -1h", "--ending-time", "2026-01-01"])
    after_ms = time.time_ns() // 1_000_000
    found = range_of(given)
    assert before_ms <= int(str(found["starting_time"])) + 3_600_000 <= after_ms
    assert found["ending_time"] == "2026-01-01"

"""A folder that appears at once: what a failure in its middle says and leaves."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from pulsemark.maintenance.staging import fill_at_once


def fill_a_full_disk(target: Path) -> None:
    """Fill the folder until the disk has no room."""
    with fill_at_once(target) as staging:
        (staging / "file").write_bytes(b"x")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_failed_write_names_the_folder(tmp_path: Path) -> None:
    """A full disk gives an error without a file name; then it is that of the folder to be made."""
    target = tmp_path / "backup"
    with pytest.raises(OSError, match="No space left") as raised:
        fill_a_full_disk(target)
    assert raised.value.filename == str(target)
    assert list(tmp_path.iterdir()) == []

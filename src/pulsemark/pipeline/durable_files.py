"""Files that are there as a whole or not at all, and stay after a power cut."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["sync_folder", "write_durably"]


def write_durably(path: Path, data: bytes) -> None:
    """Write a file under another name, sync it, rename it, and sync its folder. Raises OSError."""
    temporary = path.with_name(f".{path.name}.new")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a folder's names durable. Raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

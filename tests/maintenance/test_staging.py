"""A folder that appears at once: what a failure in its middle says and leaves."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from pulsemark.cluster.supervisor import WorkersFolder
from pulsemark.ledger import LocalStore
from pulsemark.maintenance.backup import back_up
from pulsemark.maintenance.restore import restore
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


def lost_in_a_power_cut(folder: Path, make: Callable[[], object]) -> list[Path]:
    """The folders up to `folder` whose names are in no synced folder once `make` has returned."""
    sync, names_at_sync = os.fsync, {}

    def noting(descriptor: int) -> None:
        sync(descriptor)
        synced = Path(f"/proc/self/fd/{descriptor}").resolve()
        if synced.is_dir():
            names_at_sync[synced] = {path.name for path in synced.iterdir()}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", noting)
        before = {path for path in (folder, *folder.parents) if path.exists()}
        make()
    made = [path for path in (folder, *folder.parents) if path not in before]
    return [path for path in made if path.name not in names_at_sync.get(path.parent, set())]


def test_new_parents_survive_a_power_cut(tmp_path: Path) -> None:
    """When a backup, a restored folder or a folder of workers is made, so are its parents."""
    with LocalStore.open(tmp_path / "data") as store:
        store.open_topic("orders").append(b"x").commit.wait()
    makers: dict[str, Callable[[Path], object]] = {
        "backup": lambda target: back_up(tmp_path / "data", target),
        "restored": lambda target: restore(tmp_path / "backup/in/new/parents", target),
        "workers": lambda target: WorkersFolder(target, 2).close(),
        "store": lambda target: LocalStore.open(target).close(),
    }
    for name, make in makers.items():
        target = tmp_path / name / "in" / "new" / "parents"
        assert lost_in_a_power_cut(target, partial(make, target)) == [], name
        assert target.is_dir()

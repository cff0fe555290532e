"""What killed runs leave in a local folder: the next run removes it.

A run writes the list of its files before it writes the files, and removes the list when they count.
A list that is there when a run begins is a killed run's: its files are used if the new run has the
same ones, and else removed if no manifest lists them. Only the holder of the target's lock does so;
in an object store nothing is removed, because there is no lock.

Workers of a killed run may live a little longer than their driver. They keep what they have written
to themselves when their run's list is gone.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Container, Iterable
from pathlib import PurePosixPath

from .manifest import MANIFEST_FOLDER
from .places import Place, read_bytes, write_bytes

_PREFIX = "unfinished-"


def begin(place: Place, paths: Iterable[str], counting: Container[str]) -> str:
    """Note what a run will write, and remove what killed runs left.

    Args:
        place: where the files are.
        paths: the files that it will write.
        counting: the files that a manifest lists; they stay.

    Returns:
        The run's name; empty where there are no locks, and so no notes.
    """
    if not place.has_locks:
        return ""
    run = uuid.uuid4().hex
    mine = set(paths)
    write_bytes(place, _path(run), json.dumps(sorted(mine)).encode())
    for name in place.names(MANIFEST_FOLDER):
        path = f"{MANIFEST_FOLDER}/{name}"
        if name.startswith("."):
            place.remove(path)
        elif name.startswith(_PREFIX) and path != _path(run):
            _remove(place, path, mine, counting)
            place.remove(path)
    return run


def is_current(place: Place, run: str) -> bool:
    """Whether no other run has begun since."""
    if not run:
        return True
    try:
        place.open(_path(run)).close()
    except FileNotFoundError:
        return False
    return True


def end(place: Place, run: str) -> None:
    """The files of a run count now."""
    if run:
        place.remove(_path(run))


def _path(run: str) -> str:
    return f"{MANIFEST_FOLDER}/{_PREFIX}{run}.json"


def _remove(place: Place, path: str, mine: set[str], counting: Container[str]) -> None:
    """Remove the files of a killed run, also half-written ones."""
    left: list[str] = json.loads(read_bytes(place, path))
    folders: dict[str, set[str]] = {}
    for each in left:
        file = PurePosixPath(each)
        folders.setdefault(str(file.parent), set()).add(file.name)
        if each not in mine and each not in counting:
            place.remove(each)
    for folder, names in folders.items():
        for name in place.names(folder):
            # The temporary name is the real one with a dot before it and the writer's id after it.
            if name.startswith(".") and name[1:].rpartition(".")[0] in names:
                place.remove(f"{folder}/{name}")

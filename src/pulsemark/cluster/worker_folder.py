"""The data folder of several workers.

    workers.json          how many workers there are; it never changes
    workers.lock          held by the supervisor while it runs
    shared.sqlite         settings that all workers share, and who owns what
    worker-0/ ...         a data folder for each worker

A topic's data are in the folder of its bundle's worker, so the number of workers cannot change:
with another number topics would be looked for where they are not.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

from .errors import WorkersError

FACTS = "workers.json"
LOCK = "workers.lock"
SHARED = "shared.sqlite"
MAX_WORKERS = 4
"""A namespace has four bundles, and each is one worker's."""


class WorkersFolder:
    """The folder of a supervisor's workers, locked until it is closed."""

    def __init__(self, folder: Path, workers: int) -> None:
        """Check and lock the folder; make it if there is none. Raises WorkersError, OSError."""
        if not 1 <= workers <= MAX_WORKERS:
            raise WorkersError(f"--workers {workers}: there can be 1 to {MAX_WORKERS} workers")
        self.folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = folder / FACTS
        others = [path.name for path in folder.iterdir() if path.name not in (FACTS, LOCK)]
        if not facts.exists() and others:
            raise WorkersError(
                f"{folder} has data of a broker without workers ({min(others)}): "
                "give the workers a folder of their own"
            )
        self._lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._take(facts, workers)
        except BaseException:
            self.close()
            raise

    def _take(self, facts: Path, workers: int) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise WorkersError(f"{self.folder} is in use by other workers") from error
        if facts.exists():
            stored = _stored(facts)
            if stored != workers:
                raise WorkersError(
                    f"{self.folder} has the topics of {stored} workers, and cannot be used with "
                    f"{workers}: start it with --workers {stored}"
                )
            return
        part = facts.with_suffix(".part")
        part.touch(0o600)
        with part.open("w") as file:
            json.dump({"workers": workers}, file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(facts)
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    @property
    def shared(self) -> Path:
        """The file of what workers share."""
        return self.folder / SHARED

    def of_worker(self, number: int) -> Path:
        """A worker's data folder."""
        return self.folder / f"worker-{number}"

    def close(self) -> None:
        """Unlock the folder."""
        os.close(self._lock)


def _stored(facts: Path) -> int:
    try:
        return int(json.loads(facts.read_text())["workers"])
    except (ValueError, KeyError, TypeError) as error:
        raise WorkersError(f"{facts} is damaged: {error!r}") from error

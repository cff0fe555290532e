"""What a migration makes, until it is visible: a folder beside the target.

    TARGET.migrating/lock              held by the driver of the run
    TARGET.migrating/plan.json         what is migrated, fixed when it began
    TARGET.migrating/progress/         one file for each segment that is written as a whole
    TARGET.migrating/data/             the data folder

Renaming ``data`` to the target is the last step. So what is at the target is always complete, and a
run that was killed goes on with what is staged.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from ...ledger.local.io.files import OsFiles
from ...ledger.local.io.folder import prepare_folder
from ..durable_files import sync_folder, write_durably
from ..errors import OptionError
from ..run_lock import run_lock
from .segments import Written

__all__ = ["Staging"]

VERSION = 1
SUFFIX = ".migrating"


class Staging:
    """The folder beside a target."""

    def __init__(self, target: str | os.PathLike[str]) -> None:
        self.target = Path(target).absolute()
        self.path = self.target.with_name(self.target.name + SUFFIX)
        self.data = self.path / "data"

    def lock(self) -> AbstractContextManager[None]:
        """Only one run at a time makes a target. Raises OptionError if another one does."""
        return run_lock(
            self.path, "target", self.target, "another run is making it", make="progress"
        )

    def check_target(self) -> None:
        """Raise OptionError if there is something at the target that no migration of ours made."""
        if (self.path / "plan.json").exists():
            return
        try:
            if self.target.exists() and any(self.target.iterdir()):
                raise OptionError("target", str(self.target), "exists already; name a new folder")
        except NotADirectoryError as error:
            raise OptionError("target", str(self.target), "is a file; name a new folder") from error

    @property
    def is_visible(self) -> bool:
        """Whether the last step is done, of a run that was then killed."""
        return self.target.exists() and not self.data.exists()

    def plan(self, settings: Mapping[str, Any]) -> dict[str, Any] | None:
        """The plan; None if there is none yet.

        Raises:
            OptionError: it cannot be read, or it is of another migration.
        """
        path = self.path / "plan.json"
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            version, of = content["version"], content["settings"]
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = f"{path} is damaged ({error}); remove {self.path} to begin again"
            raise OptionError("target", str(self.target), reason) from error
        if version != VERSION:
            reason = f"{path} has version {version!r}; this program knows {VERSION}"
            raise OptionError("target", str(self.target), reason)
        for name, value in settings.items():
            if of.get(name) != value:
                reason = (
                    f"{self.path} is of a migration with {name} = {of.get(name)!r}, not {value!r};"
                    " remove it to begin again"
                )
                raise OptionError("target", str(self.target), reason)
        found: dict[str, Any] = content["plan"]
        return found

    def begin(self, settings: Mapping[str, Any], plan: Mapping[str, Any]) -> None:
        """Store a new plan."""
        prepare_folder(OsFiles(), self.data)
        content = {"version": VERSION, "settings": settings, "plan": plan}
        write_durably(self.path / "plan.json", json.dumps(content, indent=1).encode())

    def written(self, ledger_id: int, segment_no: int) -> Written | None:
        """A segment that is there as a whole; None if it is not. Raises OptionError."""
        path = self._progress(ledger_id, segment_no)
        try:
            return Written.from_json(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = f"{path} is damaged ({error}); remove {self.path} to begin again"
            raise OptionError("target", str(self.target), reason) from error

    def note(self, written: Written) -> None:
        """Note that a segment is there as a whole; durable, as the segment, when it returns."""
        sync_folder(self.data / "ledgers")
        content = json.dumps(written.to_json()).encode()
        write_durably(self._progress(written.ledger_id, written.segment_no), content)

    def _progress(self, ledger_id: int, segment_no: int) -> Path:
        return self.path / "progress" / f"{ledger_id:016x}-{segment_no:08x}.json"

    def publish(self) -> None:
        """Make the folder visible at the target, as a whole. Raises OptionError."""
        for path in (self.data / "ledgers").glob(".*.new"):
            path.unlink()
        try:
            self.data.rename(self.target)
            sync_folder(self.target.parent)
        except OSError as error:
            reason = f"cannot be made: {error.strerror}; all is in {self.data}"
            raise OptionError("target", str(self.target), reason) from error

    def clean(self) -> None:
        """Remove what is left beside the target."""
        shutil.rmtree(self.path)

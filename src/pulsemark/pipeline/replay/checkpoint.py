"""The checkpoint of a replay: a folder with its plan and how far each topic came.

    plan.json          what is replayed, fixed when the replay began
    progress-0.json    of the plan's first topic: what the target has acknowledged
    lock               held by the driver of the run

Each file has a checksum, and is written as a whole, synced and renamed. Workers write the progress,
so the folder must be visible to all of them under its path.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ...metadata import crc32c
from ..errors import OptionError
from ..job_files import run_lock, write_durably
from ..marks import Mark

VERSION = 2
"""Version 1 had no checksums; such files are read."""
_PLAN = "plan.json"


@dataclass(frozen=True, slots=True)
class Part:
    """Messages ``[first_index, end_index)`` of a topic, and their target topic."""

    topic: str
    target_topic: str
    log_id: int
    """The id of the topic's log: a topic that is created again has another one."""
    first_index: int
    end_index: int
    mark: Mark | None = None
    """The last message's; None: an earlier version made the plan, or the part is empty."""

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Part:
        """The part of `asdict`, through JSON. Raises TypeError, ValueError."""
        mark = values.get("mark")
        return cls(**{**values, "mark": None if mark is None else Mark(**mark)})


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """The plan of a replay: its settings and its parts."""

    replay_id: str
    settings: Mapping[str, Any]
    parts: tuple[Part, ...]

    @classmethod
    def new(cls, settings: Mapping[str, Any], parts: tuple[Part, ...]) -> ReplayPlan:
        """A plan with an id of its own, from which the producers' names are made."""
        return cls(uuid.uuid4().hex[:16], settings, parts)

    def producer_name(self, number: int) -> str:
        """The producer of one part: always the same, so that the target knows it again."""
        return f"pulsemark-replay-{self.replay_id}-{number}"


@dataclass(frozen=True, slots=True)
class Progress:
    """The acknowledged messages of one part."""

    next_index: int
    """Messages before this one are done."""
    messages: int = 0
    """Messages published."""
    entries: int = 0
    size_bytes: int = 0
    began: bool = False
    """Whether `before` is known."""
    before: tuple[int, int] | None = None
    """The last entry that the target topic had when the part began; None: it had none."""
    last: tuple[int, int] | None = None
    """The position in the target of the last entry that was acknowledged."""
    deduplicates: bool | None = None
    """Whether the target topic deduplicates; None: not known yet."""
    done: bool = False


class Checkpoint:
    """A checkpoint's folder."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()

    def lock(self) -> AbstractContextManager[None]:
        """Lock the checkpoint for one run. Raises OptionError if another one has it."""
        return run_lock(self.path, "checkpoint", self.path, "another replay is using it")

    def load(self) -> ReplayPlan | None:
        """The plan; None if none was made. Raises OptionError for one that cannot be read."""
        content = self._read(_PLAN)
        if content is None:
            return None
        try:
            parts = tuple(Part.from_json(each) for each in content["parts"])
            return ReplayPlan(content["replay_id"], content["settings"], parts)
        except (KeyError, TypeError, ValueError) as error:
            raise self._damaged(_PLAN, error) from error

    def begin(self, plan: ReplayPlan) -> None:
        """Store a new plan. Raises OptionError."""
        self._write(_PLAN, asdict(plan))

    def progress(self, number: int, part: Part) -> Progress:
        """The progress of a part of the plan. Raises OptionError."""
        name = f"progress-{number}.json"
        content = self._read(name)
        if content is None:
            return Progress(part.first_index)
        try:
            progress = Progress(**{k: v for k, v in content.items() if k != "version"})
            places = (progress.before, progress.last)
            before, last = (None if each is None else (each[0], each[1]) for each in places)
        except (TypeError, IndexError) as error:
            raise self._damaged(name, error) from error
        return replace(progress, before=before, last=last)

    def save(self, number: int, progress: Progress) -> None:
        """Store the progress of a part; durable when it returns. Raises OptionError."""
        self._write(f"progress-{number}.json", asdict(progress))

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            content = json.loads((self.path / name).read_text(encoding="utf-8"))
            version = content["version"]
            if version == VERSION and content.pop("crc32c") != _checksum(content):
                raise ValueError("its checksum is another one")
        except FileNotFoundError:
            return None
        except OSError as error:
            reason = f"{name} cannot be read: {error.strerror}"
            raise OptionError("checkpoint", str(self.path), reason) from error
        except (ValueError, KeyError, TypeError) as error:
            raise self._damaged(name, error) from error
        if version not in (1, VERSION):
            reason = f"{name} has version {version!r}; this program knows {VERSION}"
            raise OptionError("checkpoint", str(self.path), reason)
        found: dict[str, Any] = content
        return found

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        content = {"version": VERSION, **content}
        data = json.dumps({**content, "crc32c": _checksum(content)}, indent=1).encode()
        try:
            write_durably(self.path / name, data)
        except OSError as error:
            reason = f"{name} cannot be written: {error.strerror}"
            raise OptionError("checkpoint", str(self.path), reason) from error

    def _damaged(self, name: str, error: Exception) -> OptionError:
        return OptionError("checkpoint", str(self.path), f"{name} is damaged: {error}")


def _checksum(content: Mapping[str, Any]) -> int:
    return crc32c(json.dumps(content, sort_keys=True).encode())

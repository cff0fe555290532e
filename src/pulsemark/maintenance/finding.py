"""The base of all findings of `verify`: a severity, a place, a text, and facts for programs."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from enum import IntEnum
from pathlib import Path
from typing import Any, ClassVar

from ..ledger.position import Position


class Severity(IntEnum):
    """How bad it is."""

    NOTE = 0
    LEFTOVER = 1
    DAMAGE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding. ``topic`` and ``path`` are None where they are not known or do not apply."""

    level: ClassVar[Severity]
    text: ClassVar[str]
    """What was found, with the fields' names in braces."""
    topic: str | None = None
    #: A file or folder, or the address of a store.
    path: str | os.PathLike[str] | None = None

    @property
    def severity(self) -> Severity:
        """How bad it is."""
        return self.level

    @property
    def place(self) -> str:
        """The entries or the entry; empty if the finding is about a file."""
        known = self._values()
        if "first" in known:
            return entry_range(known["first"], known["end"])
        return str(known.get("position", ""))

    @property
    def what(self) -> str:
        """What was found, as text, without topic, place and path."""
        return self.text.format(**self._values())

    def _values(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def facts(self) -> dict[str, object]:
        """All facts, for programs: kind, severity, the fields, the text."""
        return {
            "kind": type(self).__name__,
            "severity": self.severity.name.lower(),
            **{name: _plain(value) for name, value in self._values().items()},
            "what": self.what,
        }

    def __str__(self) -> str:
        where = [text for text in (self.topic, self.place) if text]
        file = f" ({self.path})" if self.path is not None else ""
        return f"{self.severity.name.lower()}: {' '.join([*where, self.what])}{file}"


def _plain(value: object) -> object:
    if isinstance(value, Position):
        return {"ledger_id": value.ledger_id, "entry_id": value.entry_id}
    return str(value) if isinstance(value, Path) else value


def entry_range(first: Position, end: Position) -> str:
    """Entries from ``first`` up to, and without, ``end``, as text."""
    if end == Position(first.ledger_id, first.entry_id + 1):
        return f"entry {first}"
    return f"entries {first} to {Position(end.ledger_id, end.entry_id - 1)}"

"""What the ledger package needs of compacted views: their names, and the catalog's property.

The `compaction` package makes, reads and searches views. The ledger package needs three facts
only: a topic's views are removed with the topic; their names are reserved; and a view records how
far the log went, so that no index is given twice if the newest ledger is lost (``TopicStore``).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import UnsupportedVersionError
from .position import Position

VIEW_TOPIC_PREFIX = "compacted/"
"""Names of views begin with this; those of clients' topics have a domain and a namespace."""
VIEW_PROPERTY_KIND = "compaction"
"""Kind of the catalog's property that says which view of a topic counts."""
VIEW_VERSION = 1
PROPERTY = struct.Struct("<HHI6Q")


class BadViewError(Exception):
    """The bytes are not part of a view; the view's reader goes on without them."""


@dataclass(frozen=True, slots=True)
class ViewSummary:
    """The facts about a view, in its footer and in the catalog."""

    horizon: Position
    """The last entry of the log that went into it; everything after it is read from the log."""
    next_index: int
    """Index of the first message after the horizon."""
    time_max_ms: int
    """Highest entry time in the log up to the horizon."""
    entry_count: int
    message_count: int

    @classmethod
    def of(cls, numbers: Sequence[int]) -> ViewSummary:
        """The summary that has these ``numbers``."""
        ledger_id, entry_id, *others = numbers
        return cls(Position(ledger_id, entry_id), *others)

    def numbers(self) -> tuple[int, ...]:
        """Its fields in the order in which they are stored."""
        return (
            *self.horizon,
            self.next_index,
            self.time_max_ms,
            self.entry_count,
            self.message_count,
        )

    def pack(self, generation: int) -> bytes:
        """The catalog's property: version and generation of the view, and the summary."""
        return PROPERTY.pack(VIEW_VERSION, 0, generation, *self.numbers())


def unpack_property(value: bytes, name: str) -> tuple[int, ViewSummary]:
    """Generation and summary from the catalog. Raises BadViewError, UnsupportedVersionError."""
    if len(value) < 2:
        raise BadViewError("the catalog's property is cut off")
    version = int.from_bytes(value[:2], "little")
    if version > VIEW_VERSION:
        raise UnsupportedVersionError(Path(name), "compacted view version", version, VIEW_VERSION)
    if len(value) != PROPERTY.size:
        raise BadViewError(f"the catalog's property has {len(value)} bytes")
    _, _, generation, *numbers = PROPERTY.unpack(value)
    return generation, ViewSummary.of(numbers)

"""What passes from a source to a target: entries, gaps, and the place where mirroring goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ..metadata import Buffer
from ..metadata.source_stamp import SourceStamp, sequence_id_of
from ..proto.pulsar_api_pb2 import Schema

Place = tuple[int, int]
"""A position in the source: ledger id and entry id."""


@dataclass(frozen=True, slots=True)
class SourceEntry:
    """An entry of the source.

    `body` None: an entry that is not mirrored (the broker's own control entry); it only moves the
    place. `first_index` None: the source does not show indexes.
    """

    stamp: SourceStamp
    message_count: int
    body: Buffer | None
    schema_version: bytes = b""

    @property
    def place(self) -> Place:
        """The entry's position in the source."""
        return self.stamp.position

    @property
    def first_index(self) -> int | None:
        """The index of the entry's first message in the source."""
        index = self.stamp.index
        return None if index is None else index - self.message_count + 1

    @property
    def sequence_id(self) -> int:
        """For brokers that deduplicate: the index, else the position as one number."""
        index = self.stamp.index
        return sequence_id_of(self.place) if index is None else index


@dataclass(frozen=True, slots=True)
class Gap:
    """Messages or entries of the source that cannot be mirrored, as text."""

    topic: str
    what: str


@dataclass(frozen=True, slots=True)
class Resume:
    """How far the target has the source's topic.

    `place` and `index` are those of its last entry from the source. A Pulsar broker knows only the
    `sequence_id` of that entry. All None: it has none.
    """

    place: Place | None = None
    index: int | None = None
    sequence_id: int | None = None

    @property
    def is_beginning(self) -> bool:
        """Whether the target has no entry from the source."""
        return self.place is None and self.index is None and self.sequence_id is None

    def has(self, entry: SourceEntry) -> bool:
        """Whether the target has this entry already."""
        if self.place is not None:
            return entry.place <= self.place
        return self.sequence_id is not None and entry.sequence_id <= self.sequence_id


class TopicSource(Protocol):
    """One topic of the source, read in its order."""

    def take(self, max_entries: int, max_bytes: int) -> list[SourceEntry | Gap]:
        """The next entries, at least one if there is any now; does not wait."""
        ...

    def attend(self) -> None:
        """Answer the other side's pings, and notice that it is gone. Called again and again."""
        ...

    def confirm(self, place: Place) -> None:
        """Everything up to `place` is durable in the target."""
        ...

    def is_caught_up(self, place: Place | None) -> bool:
        """Whether everything that was there at the opening was taken, up to `place`."""
        ...

    @property
    def has_holes(self) -> bool:
        """Whether the topic is compacted: what is missing between its entries is no loss."""
        ...

    def rewind(self, place: Place | None = None) -> None:
        """Begin again, with the entry at `place` or after it; None: with the first one."""
        ...

    def schema(self, version: int) -> Schema | None:
        """The schema of this version; None if there is none."""
        ...

    def close(self) -> None:
        """Stop reading."""
        ...


class TopicTarget(Protocol):
    """One topic of the target."""

    resume: Resume
    """How far the target had the topic when this was opened."""

    def has_room(self, entry: SourceEntry) -> bool:
        """Whether `put` takes this entry without waiting."""
        ...

    def put(self, entry: SourceEntry) -> None:
        """Store an entry after those before it; `stored` says when it is durable."""
        ...

    def stored(self) -> int:
        """How many more of the entries that were put are durable; does not wait.

        Called again and again, so that the other side is answered, and missed if it is gone.
        """
        ...

    def add_schema(self, version: int, schema: Schema) -> int:
        """Register a schema; its version in the target."""
        ...

    def close(self) -> None:
        """Stop writing; what was put and is not yet durable may be stored or not."""
        ...


class Source(Protocol):
    """Where topics are read."""

    place: str

    def topics(self, namespaces: list[str]) -> list[str]:
        """Full names of the topics in these namespaces, each partition by itself."""
        ...

    def partitions(self, topic: str) -> int | None:
        """How many partitions a topic has, 0 if it is not partitioned; None: it is not known."""
        ...

    def open(self, topic: str, resume: Resume) -> TopicSource:
        """Begin to read a topic after what the target has."""
        ...

    def descriptors(self) -> list[int]:
        """Descriptors that become readable when there may be more to take."""
        ...

    def ping(self, timeout_s: float) -> None:
        """See whether the other side answers. Raises WaitTimeoutError, ConnectionLostError."""
        ...

    def close(self) -> None:
        """Close everything. A later `open` starts again."""
        ...


class Target(Protocol):
    """Where topics are written."""

    place: str

    def check_partitions(self, topic: str, count: int | None, highest: int) -> None:
        """Check that a topic has as many partitions as in the source.

        `count` None: not known, but there is a partition with the number `highest` (-1: none).
        Raises PartitionCountError.
        """
        ...

    def open(self, topic: str) -> TopicTarget:
        """Begin to write a topic."""
        ...

    def descriptors(self) -> list[int]:
        """Descriptors that become readable when there may be more receipts."""
        ...

    def ping(self, timeout_s: float) -> None:
        """See whether the other side answers. Raises WaitTimeoutError, ConnectionLostError."""
        ...

    def close(self) -> None:
        """Close everything. A later `open` starts again."""
        ...

"""The interfaces between source and target: entries, gaps, and the target's progress."""

from __future__ import annotations

import os
import ssl
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..metadata import Buffer
from ..metadata.source_stamp import SourceStamp, sequence_id_of
from ..proto.pulsar_api_pb2 import Schema
from .errors import PartitionCountError

if TYPE_CHECKING:
    from ..client import Service
    from ..kafka.client import KafkaCluster

SourcePosition = tuple[int, int]
"""A position in the source: ledger id and entry id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of a mirror, named as on the command line (docs/mirror.md)."""

    source_cluster: str = "standalone"
    subscription: str = "pulsemark-mirror"
    stampers: tuple[str, ...] = ("broker-time", "index")
    append: bool = False
    without_deduplication: bool = False
    renumber: bool = False
    source_token: str | None = None
    target_token: str | None = None
    trusted_certificates: str | os.PathLike[str] | None = None
    source_grpc: str | None = None
    target_grpc: str | None = None

    def tls(self, url: str) -> ssl.SSLContext | None:
        """The TLS context of a connection to `url`; None: no TLS, or the machine's trust."""
        if "+ssl:" not in url or self.trusted_certificates is None:
            return None
        return ssl.create_default_context(cafile=str(self.trusted_certificates))


@dataclass(frozen=True, slots=True)
class SourceEntry:
    """An entry of the source.

    `body` None: an entry that is not mirrored (the broker's own control entry); it only moves the
    progress. `first_index` None: the source does not show indexes.
    """

    stamp: SourceStamp
    message_count: int
    body: Buffer | None
    schema_version: bytes = b""

    @property
    def position(self) -> SourcePosition:
        """The entry's position in the source."""
        return self.stamp.position

    @property
    def first_index(self) -> int | None:
        """The index of the entry's first message in the source."""
        index = self.stamp.index
        return None if index is None else index - self.message_count + 1

    @property
    def sequence_id(self) -> int:
        """The index, else the position as one number, for brokers that deduplicate."""
        index = self.stamp.index
        return sequence_id_of(self.position) if index is None else index


@dataclass(frozen=True, slots=True)
class Gap:
    """Messages or entries of the source that cannot be mirrored, as text."""

    topic: str
    what: str


@dataclass(frozen=True, slots=True)
class Resume:
    """The target's progress in the source's topic.

    `position` and `index` are those of its last entry from the source. A Pulsar broker knows only
    the `sequence_id` of that entry. All None: it has no entry.
    """

    position: SourcePosition | None = None
    index: int | None = None
    sequence_id: int | None = None

    @property
    def is_beginning(self) -> bool:
        """Whether the target has no entry from the source."""
        return self.position is None and self.index is None and self.sequence_id is None

    def has(self, entry: SourceEntry) -> bool:
        """Whether the target has this entry already."""
        if self.position is not None:
            return entry.position <= self.position
        return self.sequence_id is not None and entry.sequence_id <= self.sequence_id


class TopicSource(ABC):
    """One topic of the source, read in order."""

    has_holes = False
    """Whether the topic is compacted: what is missing between its entries is no loss."""

    @abstractmethod
    def take(self, max_entries: int, max_bytes: int) -> list[SourceEntry | Gap]:
        """The next entries, at least one if there is any now; does not wait."""

    @abstractmethod
    def is_caught_up(self, position: SourcePosition | None) -> bool:
        """Whether all messages of the opening were taken, up to `position`."""

    @abstractmethod
    def rewind(self, position: SourcePosition | None = None) -> None:
        """Start again, at the entry with `position` or after it; None: at the first."""

    def attend(self) -> None:  # noqa: B027
        """Answer the other side's pings, and notice that it is gone. Called again and again."""

    def confirm(self, position: SourcePosition) -> None:  # noqa: B027
        """Note that everything up to `position` is durable in the target."""

    def schema(self, version: int) -> Schema | None:
        """The schema of this version, or None."""
        return None

    def close(self) -> None:  # noqa: B027
        """Stop reading."""


class TopicTarget(ABC):
    """One topic of the target."""

    resume: Resume
    """The target's progress at the opening."""
    tail: bytes | None = None
    """The topic's last entry, if only its bytes tell the progress."""

    @abstractmethod
    def has_room(self, entry: SourceEntry) -> bool:
        """Whether `put` takes this entry without waiting."""

    @abstractmethod
    def put(self, entry: SourceEntry) -> None:
        """Store an entry after those before it; `stored` says when it is durable."""

    @abstractmethod
    def stored(self) -> int:
        """The number of put entries that became durable since. Does not wait; answers PINGs."""

    def check_may_begin(self) -> None:  # noqa: B027
        """Raise TargetNotEmptyError if nothing may follow `tail`, which the source lacks."""

    def add_schema(self, version: int, schema: Schema) -> int:
        """Register a schema. Return its version in the target."""
        return version

    @abstractmethod
    def close(self) -> None:
        """Stop writing; what was put and is not yet durable may be stored or not."""


class Endpoint(ABC):
    """A source or target: the connections to brokers, or a data folder, which has none."""

    def __init__(self, endpoint: str, connections: Service | KafkaCluster | None = None) -> None:
        self.endpoint = endpoint
        self._connections = connections

    @abstractmethod
    def partitions(self, topic: str) -> int | None:
        """The number of partitions, 0 for a topic without; None: not known."""

    def descriptors(self) -> list[int]:
        """Sockets that become readable when there may be more to do."""
        there = self._connections.open_connections() if self._connections else ()
        return [each.fileno() for each in there if not each.is_closed]

    def ping(self, timeout_s: float) -> None:
        """Check that the other side answers. Raises WaitTimeoutError, ConnectionLostError."""
        if self._connections:
            self._connections.ping(timeout_s)

    def close(self) -> None:
        """Close everything. A later `open` starts again."""
        if self._connections:
            self._connections.close()


class Source(Endpoint):
    """The side from which topics are read."""

    @abstractmethod
    def topics(self, namespaces: list[str]) -> list[str]:
        """Full names of the topics in these namespaces, each partition by itself."""

    @abstractmethod
    def open(self, topic: str, resume: Resume) -> TopicSource:
        """Begin to read a topic after what the target has."""


class Target(Endpoint):
    """The side to which topics are written."""

    def check_partitions(self, topic: str, count: int | None, highest: int) -> None:
        """Check that a topic has as many partitions as in the source.

        `count` None: not known, but there is a partition with the number `highest` (-1: none).
        Raises PartitionCountError.
        """
        here = self.partitions(topic) or 0
        needed = highest + 1 if count is None else count
        if here != needed and (count is not None or here < needed):
            raise PartitionCountError(topic, needed, here)

    @abstractmethod
    def open(self, topic: str) -> TopicTarget:
        """Begin to write a topic."""

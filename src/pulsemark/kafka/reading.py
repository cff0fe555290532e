"""Reads the partitions of one Fetch request, in pieces.

A piece is one read of entries, the conversion of one entry, or some cheap steps: entries that are
sent as they are stored, and partitions that have nothing new. Between pieces other clients' work
may run (`ports.Turns`).

Stored bytes go out as they are, but for the fields that a fetch writes (`records.fetch`). Entries
that the client's version cannot read are converted one by one, by their own format. Reading stops
before a large one, because it has to be converted in a thread (`large`).

The memory of what is read is reserved before (`OutputMemory.reserve`), until it is written and
counts as unsent: else hundreds of clients that ask at once would have an answer each in memory.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar, cast

from ..ledger import Entry, EntryKind, LedgerError
from ..ledger.would_block import in_pieces
from ..metadata import Buffer
from .access import Access, Operation
from .errors import Code, KafkaError
from .partitions import KafkaPartition
from .ports import OutputMemory
from .records import CodecError
from .shown_entries import NeedsThreadError, ShownEntries

__all__ = ["Asked", "PartitionsReader", "Read"]

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger(__name__)

#: From this version of Fetch on, a first batch that is larger than the limits is sent whole.
WHOLE_FIRST_BATCH_VERSION = 3
#: How long one fetch may read, without the time in which it waits for its turns: if entries have
#: to be converted, and if all are sent as they are stored. It answers what it has by then, one
#: batch at least.
READ_S = 0.05
STORED_READ_S = 0.25
#: The most that is read in one piece.
PIECE_BYTES = 1024 * 1024
#: So many cheap steps are one piece.
PIECE_STEPS = 32


@dataclass(slots=True, eq=False)
class Asked:
    """One partition of a Fetch request."""

    topic: str
    index: int
    offset: int
    max_bytes: int
    leader_epoch: int
    partition: KafkaPartition | None = None
    #: Why there is no partition.
    refusal: Code = Code.UNKNOWN_TOPIC_OR_PARTITION


@dataclass(slots=True)
class Read:
    """What one partition's part of the answer is."""

    code: Code = Code.NONE
    high_watermark: int = -1
    first_offset: int = -1
    size_bytes: int = 0
    parts: list[Buffer] = field(default_factory=list)
    #: The partition has more, which did not fit into the answer or its time.
    has_more: bool = False


class PartitionsReader:
    """Reads the partitions of one request, again and again until it is answered."""

    def __init__(
        self,
        access: Callable[[], Access],
        shown: ShownEntries,
        output: OutputMemory,
        version: int,
        asked: list[Asked],
        max_bytes: int,
    ) -> None:
        self._access = access
        self._output = output
        #: Of the output memory, for what was read and is not written yet.
        self._reserved_bytes = 0
        self._shown = shown
        self._sends_whole = version >= WHOLE_FIRST_BATCH_VERSION
        self._asked = asked
        self._max_bytes = max_bytes
        #: The most that an answer can have.
        self._wanted_bytes = max(1, min(max_bytes, sum(each.max_bytes for each in asked)))
        self._began_s = 0.0
        self._has_converted = False
        self._steps = 0
        #: How long the last pass over all partitions took.
        self.look_s = 0.0
        #: The answer is full, or reading took so long that the rest is left for the next fetch.
        self.is_cut = False
        #: The large entry at which reading stopped.
        self.large: NeedsThreadError | None = None

    def read_all(self, reads: list[Read]) -> Iterator[object]:
        """Read each partition into `reads`, in pieces."""
        self.large = None
        self._began_s = time.monotonic()
        self._has_converted = self.is_cut = False
        rest_bytes: int | None = None
        read_bytes, is_first = 0, True
        for asked in self._asked:
            read = self._without_entries(asked)
            if read is None:
                # Reading what is too large for the rest of the answer takes time, too.
                if rest_bytes is None:
                    rest_bytes = yield from self._reserve()
                if not is_first:
                    self._check_time()
                read = yield from self._read_one(asked, rest_bytes, is_first=is_first)
                rest_bytes -= read.size_bytes
                read_bytes += read.size_bytes
                if read_bytes > self._reserved_bytes:
                    self._output.reserve_more(read_bytes - self._reserved_bytes)
                    self._reserved_bytes = read_bytes
                is_first = is_first and not read.size_bytes
                yield from self._turn()
            elif self._is_piece():
                yield from self._turn()
            reads.append(read)
        self.look_s = time.monotonic() - self._began_s

    def _reserve(self) -> Generator[object, None, int]:
        """Memory for the answer, before anything of it is read. The time of waiting is free."""
        self.release()
        began_s = time.monotonic()
        while not (granted := self._output.reserve(self._wanted_bytes)):
            yield self._output.room_freed()
        self._reserved_bytes = granted
        self._began_s += time.monotonic() - began_s
        return granted if granted < self._wanted_bytes else self._max_bytes

    def release(self) -> None:
        """What was read is written, or dropped."""
        reserved_bytes, self._reserved_bytes = self._reserved_bytes, 0
        if reserved_bytes:
            self._output.give_back(reserved_bytes)

    def _is_piece(self) -> bool:
        """Count a cheap step; whether so many are a piece by now."""
        self._steps += 1
        return not self._steps % PIECE_STEPS

    def _when_read(
        self, question: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> Generator[object, None, T]:
        """As `in_pieces`. The time of waiting is not counted."""
        began_s = time.monotonic()
        waited = 0
        pieces = in_pieces(question, *args, **kwargs)
        while True:
            try:
                piece = next(pieces)
            except StopIteration as end:
                if waited:
                    self._began_s += time.monotonic() - began_s
                return cast("T", end.value)
            waited += 1
            yield piece

    def _turn(self) -> Iterator[None]:
        """The end of a piece. The time until the next one is not counted."""
        left_s = time.monotonic()
        yield
        self._began_s += time.monotonic() - left_s

    def _without_entries(self, asked: Asked) -> Read | None:
        """The answer of a partition that cannot be read or has nothing new; None: it is read."""
        partition = asked.partition
        if not self._access().may(Operation.READ, asked.topic):
            # Also after it has waited: the permission may have been revoked meanwhile.
            return Read(Code.TOPIC_AUTHORIZATION_FAILED)
        if partition is None:
            return Read(asked.refusal)
        if not partition.opened.is_open:
            return Read(Code.NOT_LEADER_OR_FOLLOWER)
        try:
            partition.check_epoch(asked.leader_epoch)
        except KafkaError as refusal:
            return Read(refusal.code)
        end_offset = partition.end_offset
        if asked.offset != end_offset:
            return None
        partition.ledger.recent.reached_end()
        return Read(Code.NONE, end_offset, partition.first_offset)

    def _read_one(
        self, asked: Asked, rest_bytes: int, *, is_first: bool
    ) -> Generator[object, None, Read]:
        partition = asked.partition
        assert partition is not None, "the others have no entries"
        read = Read(Code.NONE, partition.end_offset, partition.first_offset, has_more=True)
        try:
            yield from self._fill(read, partition, asked, rest_bytes, is_first=is_first)
        except KafkaError as refusal:
            return Read(refusal.code)
        except CodecError:
            return Read(Code.UNSUPPORTED_COMPRESSION_TYPE)
        except (LedgerError, OSError) as error:
            log.error("%s: a fetch could not read the topic: %s", partition.opened.name, error)
            return Read(Code.KAFKA_STORAGE_ERROR)
        except Exception:
            # A fetch that waits must be answered: its connection takes no other request before.
            log.exception("%s: reading at offset %d failed", partition.opened.name, asked.offset)
            return Read(Code.UNKNOWN_SERVER_ERROR)
        return read

    def _fill(
        self,
        read: Read,
        partition: KafkaPartition,
        asked: Asked,
        rest_bytes: int,
        *,
        is_first: bool,
    ) -> Iterator[object]:
        """Read entries up to the limits."""
        limit_bytes, offset = min(asked.max_bytes, rest_bytes), asked.offset
        while read.size_bytes < limit_bytes or (is_first and not read.size_bytes):
            if self.is_cut or not partition.opened.is_open:
                return
            rest = max(limit_bytes - read.size_bytes, 0)
            entries = yield from self._when_read(partition.read, offset, min(rest, PIECE_BYTES))
            if not entries:
                break
            has_room = yield from self._add(
                read, partition, entries, asked, limit_bytes, is_first=is_first
            )
            if not has_room:
                # A full answer has no room for other partitions' entries, either.
                if rest_bytes == limit_bytes and (read.size_bytes or not is_first):
                    self.is_cut = True
                return
            if (offset := entries[-1].index + 1) >= partition.end_offset:
                break
            if read.parts and self._check_time():
                return
            yield from self._turn()
        else:
            return
        read.has_more = False

    def _add(
        self,
        read: Read,
        partition: KafkaPartition,
        entries: list[Entry],
        asked: Asked,
        limit_bytes: int,
        *,
        is_first: bool,
    ) -> Generator[None, None, bool]:
        """Add entries; False: not all. The first batch of an answer is sent whole from v3 on.

        Before, of a first batch above the partition's limit the first bytes are sent: so a client
        knows that it is too large, and says so instead of asking for it again and again.
        """
        epoch_of = partition.epochs()
        as_stored = self._shown.as_stored(partition)
        for entry in entries:
            may_be_whole = is_first and not read.size_bytes
            parts = as_stored(entry, epoch_of)
            is_cheap = parts is not None
            if parts is None:
                epoch = epoch_of(entry)
                parts = self._converted(partition, entry, epoch, asked.offset, first=may_be_whole)
                if parts is None:
                    return False
            size_bytes = sum(map(len, parts))
            is_whole = may_be_whole and self._sends_whole
            if read.size_bytes + size_bytes > limit_bytes and not is_whole:
                if not (self._sends_whole or read.size_bytes) and size_bytes > asked.max_bytes:
                    read.parts = _cut(parts, limit_bytes)
                    read.size_bytes = limit_bytes
                return False
            read.parts += parts
            read.size_bytes += size_bytes
            if is_cheap and not self._is_piece():
                continue
            if read.parts and self._check_time():
                return False
            yield from self._turn()
        return True

    def _check_time(self) -> bool:
        """Whether reading has to stop, because its time is over or for another reason."""
        limit_s = READ_S if self._has_converted else STORED_READ_S
        self.is_cut = self.is_cut or time.monotonic() - self._began_s > limit_s
        return self.is_cut

    def _converted(
        self,
        partition: KafkaPartition,
        entry: Entry,
        epoch: int,
        fetch_offset: int,
        *,
        first: bool,
    ) -> tuple[Buffer, ...] | None:
        """An entry as the client gets it; None: it is large, and reading stops before it."""
        self._has_converted = self._has_converted or entry.kind is EntryKind.DATA
        time_ms = entry.time_ms if partition.rules().log_append_time else None
        try:
            return self._shown.parts(partition, entry, epoch, fetch_offset, time_ms)
        except NeedsThreadError as large:
            self.is_cut = True
            if first:
                self.large = large
            return None


def _cut(parts: Sequence[Buffer], size_bytes: int) -> list[Buffer]:
    """The first bytes of buffers."""
    cut: list[Buffer] = []
    for part in parts:
        if size_bytes > 0:
            cut.append(memoryview(part)[:size_bytes])
        size_bytes -= len(part)
    return cut

"""Reading topics from BookKeeper without owning anything: nothing is written, recovered or fenced.

`BookKeeperReader` reads this package's stores and Apache Pulsar's topics, also while their brokers
write. Of a ledger that is open it shows what is confirmed: the next entry carries the
confirmation of the one before, so the newest entry may be missing until then.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import quote_plus, unquote_plus

from google.protobuf.message import DecodeError

from ...coordination import CoordinationError, NodeMissingError
from ...metadata import PrefixError, peek
from ...metadata.compression import DecompressionError, decompress
from ...proto.managed_ledger_pb2 import InfoCompression, ManagedLedgerInfo
from ..entry import EntryKind
from ..errors import CatalogError, TopicNotFoundError
from ..run import Columns, DamagedRecordError, Run, RunHeader, chain_of
from ..store import TRANSACTIONS_NOTE_KIND
from ..topic_log import TopicLog
from .address import DEFAULT_ROOT, Connect, StoreAddress, connected, disconnected
from .client.entries import LedgerEntry
from .client.errors import BookKeeperError, LedgerMissingError
from .loop_thread import LoopThread
from .nodes import Paths, unpack_log
from .read_ahead import LedgerAccess, UnreadableEntryError
from .run import BookKeeperRun, end_offset
from .stored_entry import BadEntryError, Facts, own_facts, read_facts

if TYPE_CHECKING:
    from .client import BookieTls

K = TypeVar("K")
T = TypeVar("T")
_AT_ONCE = 32
_DEPTH = 5
"""So deep below the root may the stores of bundles be: bundles/TENANT/NAMESPACE/RANGE."""


class StoredLog(TopicLog):
    """A topic as it stood when it was opened or last refreshed."""

    def __init__(
        self, reader: BookKeeperReader, name: str, runs: Sequence[Run], topic_id: int
    ) -> None:
        super().__init__(name, runs)
        self._reader = reader
        self.topic_id = topic_id
        """Another one after the topic was deleted and created again; 0 for a topic of Pulsar's."""

    def refresh(self) -> None:
        """Read the list and the newest ledger's end again. Raises TopicNotFoundError."""
        self._segments = tuple(self._reader.runs(self.name))


class BookKeeperReader:
    """Read-only access to the topics of a BookKeeper cluster. Close it after use."""

    def __init__(
        self, connecting: Connect, *, name: str, chroot: str = "", root: str = DEFAULT_ROOT
    ) -> None:
        """As ``open``, with sessions that ``connecting`` makes on the reader's own event loop."""
        self._name = name
        self._chroot = chroot
        self._paths = Paths(root)
        self._names: dict[str, str] = {}
        """By topic of this package's stores: the path of its list, as it was last looked for."""
        self._thread = LoopThread("pulsemark-bookkeeper-reader")
        try:
            self._coordination, self._client = self._run(connecting())
        except BaseException:
            self._thread.stop()
            raise
        self.access = LedgerAccess(self._thread, self._client)

    @classmethod
    def open(
        cls, address: str, *, root: str = DEFAULT_ROOT, tls: BookieTls | None = None
    ) -> BookKeeperReader:
        """A reader of `zk://HOST:PORT/ledgers`. Raises StoreAddressError, CatalogError."""
        where = StoreAddress.parse(address)
        chroot = where.ledgers_root.rpartition("/")[0]
        return cls(partial(connected, where, tls), name=address, chroot=chroot, root=root)

    def close(self) -> None:
        """End the sessions. A second call does nothing."""
        if not self._thread.is_over:
            self._thread.run(disconnected(self._coordination, self._client))
            self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Topics

    def topics(self) -> list[str]:
        """Full names of this store's topics and of Pulsar's, sorted. Raises CatalogError."""
        return self._run(self._topics())

    async def _topics(self) -> list[str]:
        names = [name for name in await self._own_names() if "://" in name]
        base = self._chroot + MANAGED_LEDGERS
        for tenant in await self._children(base):
            for namespace in await self._children(f"{base}/{tenant}"):
                folder = f"{base}/{tenant}/{namespace}/persistent"
                begin = f"persistent://{tenant}/{namespace}/"
                names += [begin + unquote_plus(node) for node in await self._children(folder)]
        return sorted(set(names))

    def log(self, topic: str) -> StoredLog:
        """One topic, as it is now. Raises TopicNotFoundError, CatalogError, OSError."""
        return self._run(self._log(topic))

    async def _log(self, topic: str) -> StoredLog:
        runs = await self._runs(topic)
        own = self._names.get(topic, "")
        topic_id = int(own.rpartition("/")[2]) if own else 0
        return StoredLog(self, topic, runs, topic_id)

    def runs(self, topic: str) -> list[BookKeeperRun]:
        """The runs of a topic that have entries, oldest first. Raises as `log`."""
        return self._run(self._runs(topic))

    async def _runs(self, topic: str) -> list[BookKeeperRun]:
        own = self._names.get(topic)
        data = None if own is None else await self._get(own)
        if data is None:  # not known yet, or deleted, or without an entry
            own = (await self._own_names()).get(topic)
            data = None if own is None else await self._get(own)
        if own is not None:
            return await self._own_runs(own, data)
        try:
            path = topic_path(topic, self._chroot)
        except ValueError as error:
            raise TopicNotFoundError(topic) from error
        data = await self._get(path)
        if data is None:
            raise TopicNotFoundError(topic)
        infos = ledger_info(path, data).ledgers
        gone = [i.ledger_id for i in infos if i.offload_context.bookkeeper_deleted]
        if gone:
            raise OSError(f"{topic}: the entries of ledgers {gone} are in tiered storage only")
        return await self._pulsar_runs(topic, [info.ledger_id for info in infos])

    def transactions_notes(self, logs: Mapping[str, StoredLog]) -> dict[str, bytes]:
        """Stored notes about transactions, by the keys of `logs`. Raises CatalogError."""
        return self._run(self._transactions_notes(logs))

    async def _transactions_notes(self, logs: Mapping[str, StoredLog]) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for key, log in logs.items():
            own = self._names.get(log.name)
            if own is not None:
                paths = Paths(own.rsplit("/", 2)[0])
                note = await self._get(paths.value(TRANSACTIONS_NOTE_KIND, str(log.topic_id)))
                found |= {} if note is None else {key: note}
        return found

    # This package's own stores

    async def _own_names(self) -> dict[str, str]:
        """The paths of topics' lists, in the store at the root and in those of bundles."""
        names: dict[str, str] = {}
        for root in await self._store_roots(self._paths.root, 0):
            paths = Paths(root)
            nodes = [paths.topic(int(node)) for node in await self._children(paths.topics)]
            for node, data in (await self._all(self._get, nodes)).items():
                if data is not None:
                    names[data.decode()] = paths.log(int(node.rpartition("/")[2]))
        self._names = names
        return names

    async def _store_roots(self, path: str, depth: int) -> list[str]:
        """The roots of stores at a path and below; brokers have one for each bundle."""
        children = await self._children(path)
        found = [path] if "topics" in children and "logs" in children else []
        below = [] if path in found and depth else children
        if depth < _DEPTH:
            for name in below:
                if f"{path}/{name}" not in (Paths(path).folders if path in found else ()):
                    found += await self._store_roots(f"{path}/{name}", depth + 1)
        return found

    async def _own_runs(self, path: str, data: bytes | None) -> list[BookKeeperRun]:
        records = {} if data is None else {r.header: r for r in unpack_log(path, data)}
        ends = await self._ends({header.ledger_id for header in records})
        # A ledger without entries is not part of the log yet.
        links = chain_of(header for header in records if ends.get(header.ledger_id, 0))
        runs = []
        for link in links:
            header = link.header
            marked = records[header].end_entry_id
            limits = [ends[header.ledger_id]]
            limits += [] if link.end_entry_id is None else [link.end_entry_id]
            limits += [marked] if marked >= 0 else []
            count = min(limits) - header.first_entry_id
            if count <= 0:
                continue
            run = BookKeeperRun(header, self.access)
            run.cut_rows = records[header].cut_rows
            entry = await self._entry(header.ledger_id, header.first_entry_id + count - 1)
            facts = read_facts(entry.payload)
            after = facts.index + 1 - header.first_index
            run.show_opened(count, after, facts.append_time_ms, facts.time_max_ms)
            runs.append(run)
        return runs

    # Pulsar's

    async def _pulsar_runs(self, topic: str, ledger_ids: Sequence[int]) -> list[BookKeeperRun]:
        ends = await self._ends(ledger_ids)
        there = [each for each in ledger_ids if ends.get(each)]
        firsts = await self._all(lambda each: self._entry(each, 0), there)
        lasts = await self._all(lambda each: self._entry(each, ends[each] - 1), there)
        is_stamped = all(stamp_of(firsts[each]) and stamp_of(lasts[each]) for each in there)
        runs: list[BookKeeperRun] = []
        time_ms = next_index = 0
        for each in there:
            stamp = stamp_of(firsts[each])
            if is_stamped and stamp is not None:
                next_index = stamp[1] + 1 - own_facts(firsts[each].payload)[1]
            previous = runs[-1] if runs else None
            header = RunHeader(
                topic=topic,
                topic_id=0,
                ledger_id=each,
                segment_no=0,
                first_entry_id=0,
                first_index=next_index,
                entry_time_floor_ms=time_ms,
                stamp_floor_ms=previous.append_time_max_ms if previous else 0,
                previous_ledger_id=previous.ledger_id if previous else -1,
                previous_entry_count=previous.entry_count if previous else 0,
            )
            run = PulsarRun(header, self.access)
            last = stamp_of(lasts[each])
            if is_stamped and last is not None:
                run.show_opened(ends[each], last[1] + 1 - next_index, last[0], last[0])
            else:
                await asyncio.to_thread(run.count_messages, ends[each])
            time_ms, next_index = run.time_max_ms, run.next_index
            runs.append(run)
        return runs

    # Ledgers

    async def _ends(self, ledger_ids: Iterable[int]) -> dict[int, int]:
        """One past the last confirmed entry of each ledger that exists."""

        async def end(ledger_id: int) -> int | None:
            try:
                reader = await self._client.open_ledger_no_recovery(ledger_id)
            except LedgerMissingError:
                return None
            return reader.last_confirmed + 1

        found = await self._all(end, ledger_ids)
        return {each: count for each, count in found.items() if count is not None}

    async def _all(
        self, ask: Callable[[K], Coroutine[Any, Any, T]], asked: Iterable[K]
    ) -> dict[K, T]:
        """The answers to many questions, by what was asked for."""
        slots = asyncio.Semaphore(_AT_ONCE)

        async def one(each: K) -> tuple[K, T]:
            async with slots:
                return each, await ask(each)

        return dict(await asyncio.gather(*map(one, asked)))

    async def _entry(self, ledger_id: int, entry_id: int) -> LedgerEntry:
        return (await self.access.entries(ledger_id, entry_id, entry_id, 1))[0]

    # ZooKeeper

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return self._thread.run(work)
        except CoordinationError as error:
            raise CatalogError(self._name, str(error)) from error
        except (BookKeeperError, BadEntryError, DamagedRecordError, UnreadableEntryError) as error:
            raise OSError(f"{self._name}: {error}") from error

    async def _get(self, path: str) -> bytes | None:
        try:
            return (await self._coordination.get(path)).data
        except NodeMissingError:
            return None

    async def _children(self, path: str) -> list[str]:
        try:
            return await self._coordination.children(path)
        except NodeMissingError:
            return []


MANAGED_LEDGERS = "/managed-ledgers"
MAX_NODE_BYTES = 64 * 1024 * 1024
_HEADER = struct.Struct(">HI")
_COMPRESSED_MAGIC = 0x4778


def ledger_info(path: str, data: bytes) -> ManagedLedgerInfo:
    """Parse a Pulsar topic's list of ledgers. Raises CatalogError."""
    try:
        return ManagedLedgerInfo.FromString(_plain(data))
    except (DecodeError, DecompressionError, struct.error) as error:
        raise CatalogError(Path(path), f"it is not a ManagedLedgerInfo: {error}") from error


def topic_path(topic: str, chroot: str = "") -> str:
    """The path of a Pulsar topic's node, also with a cluster (Pulsar 1). Raises ValueError."""
    scheme, separator, rest = topic.partition("://")
    parts = rest.split("/", 3)
    if scheme != "persistent" or not separator or len(parts) < 3 or not all(parts):
        raise ValueError(f"{topic!r} is not persistent://TENANT/NAMESPACE/NAME")
    *namespace, name = parts
    return f"{chroot}{MANAGED_LEDGERS}/{'/'.join(namespace)}/persistent/{quote_plus(name)}"


def _plain(data: bytes) -> bytes:
    if len(data) < _HEADER.size or _HEADER.unpack_from(data)[0] != _COMPRESSED_MAGIC:
        return data
    end = _HEADER.size + _HEADER.unpack_from(data)[1]
    how = InfoCompression.FromString(data[_HEADER.size : end])
    return decompress(how.compression, data[end:], how.uncompressed_size_bytes, MAX_NODE_BYTES)


# A ledger of Apache Pulsar's, as a run of entries.
#
# Pulsar's entries say their index and time in their stamp (PIP-70), if its interceptors are on. An
# entry without has its producer's publish time, and the log counts the messages in entries'
# headers: for that the whole ledger is read once.


_READ_BYTES = 8 << 20


class PulsarRun(BookKeeperRun):
    """A run that is one of Pulsar's ledgers. It is only read."""

    def __init__(self, header: RunHeader, access: LedgerAccess) -> None:
        super().__init__(header, access)
        self._table: Columns | None = None

    def count_messages(self, entry_count: int) -> None:
        """Read a ledger without stamps to count its messages. Raises OSError."""
        table, time_ms, messages = Columns(), self.header.entry_time_floor_ms, 0
        self.entry_count = entry_count
        while len(table) < entry_count:
            for entry in self._fetch(len(table), entry_count - 1, _READ_BYTES):
                own_ms, count = own_facts(entry.payload)
                time_ms, messages = max(time_ms, own_ms), messages + count
                table.add((own_ms, time_ms, messages, end_offset(entry.length, entry.entry_id)))
        self._table = self._written = table
        last = table.append_times[-1] if table else self.header.stamp_floor_ms
        self.show_group(entry_count, messages, last)

    def _facts(self, row: int, entry: LedgerEntry) -> Facts:
        table = self._table
        if table is not None:
            before = table.nexts[row - 1] if row else 0
            index = self.first_index + table.nexts[row] - 1
            count = table.nexts[row] - before
            times = table.append_times[row], table.times[row]
            return Facts(EntryKind.DATA, count, *times, index)
        stamp = stamp_of(entry)
        if stamp is None:
            raise DamagedRecordError(row, "it has no stamp of time and index, as others have")
        time_ms, index = stamp
        return Facts(EntryKind.DATA, -1, time_ms, time_ms, index)


def stamp_of(entry: LedgerEntry) -> tuple[int, int] | None:
    """Broker time and index of an entry; None unless it has both."""
    try:
        stamp = peek(entry.payload)
    except PrefixError:
        return None
    if stamp is None or not (stamp.HasField("broker_timestamp") and stamp.HasField("index")):
        return None
    return stamp.broker_timestamp, stamp.index

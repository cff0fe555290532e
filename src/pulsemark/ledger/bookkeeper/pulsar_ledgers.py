"""The nodes in which Apache Pulsar keeps a topic's list of ledgers, and its cursors."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote_plus, unquote_plus

from google.protobuf.message import DecodeError, Message

from ...metadata import PrefixError, peek
from ...metadata.compression import DecompressionError, decompress
from ...proto.managed_ledger_pb2 import InfoCompression, ManagedCursorInfo, ManagedLedgerInfo
from ..entry import EntryKind
from ..errors import CatalogError
from ..run import DamagedRecordError, RunHeader
from .client.entries import LedgerEntry
from .run import BookKeeperRun, RunOwner, WrittenRows, end_offset
from .stored_entry import Facts, own_facts

MANAGED_LEDGERS = "/managed-ledgers"
MAX_NODE_BYTES = 64 * 1024 * 1024
_HEADER = struct.Struct(">HI")
_COMPRESSED_MAGIC = 0x4778
M = TypeVar("M", bound=Message)


def ledger_info(path: str, data: bytes) -> ManagedLedgerInfo:
    """A topic's list of ledgers. Raises CatalogError."""
    return _parsed(path, data, ManagedLedgerInfo())


def cursor_info(path: str, data: bytes) -> ManagedCursorInfo:
    """What a cursor's node says. Raises CatalogError."""
    return _parsed(path, data, ManagedCursorInfo())


def topic_path(topic: str, chroot: str = "") -> str:
    """The node of `persistent://TENANT/NAMESPACE/NAME`. Raises ValueError.

    A name of Pulsar 1, `persistent://TENANT/CLUSTER/NAMESPACE/NAME`, has a node one level deeper.
    """
    scheme, separator, rest = topic.partition("://")
    parts = rest.split("/", 3)
    if scheme != "persistent" or not separator or len(parts) < 3 or not all(parts):
        raise ValueError(f"{topic!r} is not persistent://TENANT/NAMESPACE/NAME")
    *namespace, name = parts
    return f"{chroot}{MANAGED_LEDGERS}/{'/'.join(namespace)}/persistent/{quote_plus(name)}"


def name_of(node: str) -> str:
    """The name of a topic or subscription, by its node's."""
    return unquote_plus(node)


def _parsed(path: str, data: bytes, into: M) -> M:
    try:
        into.ParseFromString(_plain(data))
    except (DecodeError, DecompressionError, struct.error) as error:
        raise CatalogError(Path(path), f"it is not a {type(into).__name__}: {error}") from error
    return into


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
    """One of Pulsar's ledgers. Nothing here writes, recovers or fences."""

    def __init__(self, header: RunHeader, owner: RunOwner) -> None:
        super().__init__(header, owner)
        self._table: WrittenRows | None = None

    def count_messages(self, entry_count: int) -> None:
        """Read a ledger without stamps, and count its messages. Raises OSError."""
        table, time_ms, messages = WrittenRows(), self.header.entry_time_floor_ms, 0
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

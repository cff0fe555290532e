"""The nodes in which Apache Pulsar keeps a topic's list of ledgers, and its cursors."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote_plus, unquote_plus

from google.protobuf.message import DecodeError, Message

from ...metadata.compression import DecompressionError, decompress
from ...proto.managed_ledger_pb2 import InfoCompression, ManagedCursorInfo, ManagedLedgerInfo
from ..errors import CatalogError

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

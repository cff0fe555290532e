"""The nodes of a store in ZooKeeper: their paths and contents (docs/formats.md)."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, fields
from operator import attrgetter
from pathlib import Path
from urllib.parse import quote, unquote

from ..errors import CatalogError, UnsupportedVersionError
from ..run import RunHeader

FORMAT = 1
MAX_CHANGE_BYTES = 1_000_000
"""ZooKeeper takes 1 MB (jute.maxbuffer), with all operations of a change together."""
_PLAIN_BELOW_BYTES = 16 * 1024
_COMPRESSED = b"zlib\n"


class Paths:
    """The paths below a store's root."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.format = f"{root}/format"
        self.owner = f"{root}/owner"
        self.next_topic_id = f"{root}/next-topic-id"
        self.topics = f"{root}/topics"
        self.logs = f"{root}/logs"
        self.ledgers = f"{root}/ledgers"
        self.values = f"{root}/values"

    @property
    def folders(self) -> tuple[str, ...]:
        """The paths of nodes that only have children."""
        return self.topics, self.logs, self.ledgers, self.values

    def topic(self, topic_id: int) -> str:
        """The path of the node that holds a topic's name."""
        return f"{self.topics}/{topic_id:010d}"

    def log(self, topic_id: int) -> str:
        """The path of the node that holds a topic's list of runs."""
        return f"{self.logs}/{topic_id:010d}"

    def ledger(self, ledger_id: int) -> str:
        """The path of the node for a ledger that has to be closed or deleted."""
        return f"{self.ledgers}/{ledger_id:019d}"

    def kind(self, kind: str) -> str:
        """The path of the parent of a kind's values."""
        return f"{self.values}/{_name(kind)}"

    def value(self, kind: str, key: str) -> str:
        """The path of a value's node."""
        return f"{self.kind(kind)}/{_name(key)}"

    def as_path(self) -> Path:
        """The root as a `Path`, which names the store in errors."""
        return Path(self.root)


def _name(text: str) -> str:
    """Encode a text as a node's name. ZooKeeper forbids empty names, "." and ".."."""
    return "=" + quote(text, safe="")


def text_of(name: str) -> str:
    """Decode a node's name."""
    return unquote(name[1:])


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run in a topic's list."""

    header: RunHeader
    cut_rows: int = 0
    """The number of removed first entries."""
    end_entry_id: int = -1
    """Entries from here on were not acknowledged and do not count; -1: all of them count."""


_ROW = attrgetter(*(spec.name for spec in fields(RunHeader)[2:]))
"""A header's fields, without name and id of the topic, in their order."""


def pack_log(name: str, topic_id: int, records: list[RunRecord]) -> bytes:
    """Encode a topic's list."""
    rows = [[*_ROW(each.header), each.cut_rows, each.end_entry_id] for each in records]
    content = {"version": FORMAT, "topic": name, "id": topic_id, "runs": rows}
    data = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
    return data if len(data) < _PLAIN_BELOW_BYTES else _COMPRESSED + zlib.compress(data)


def unpack_log(path: str, data: bytes) -> list[RunRecord]:
    """Parse a topic's list of runs. Raises CatalogError, UnsupportedVersionError."""
    try:
        plain = zlib.decompress(data[len(_COMPRESSED) :]) if data[:5] == _COMPRESSED else data
        content = json.loads(plain)
        version = content["version"]
        if version > FORMAT:
            raise UnsupportedVersionError(Path(path), "list of ledgers", version, FORMAT)
        name, topic_id = content["topic"], content["id"]
        return [
            RunRecord(RunHeader(name, topic_id, *row[:9]), row[9], row[10])
            for row in content["runs"]
        ]
    except (ValueError, KeyError, TypeError, IndexError, zlib.error) as error:
        raise CatalogError(Path(path), f"it is not a list of ledgers: {error!r}") from error


def header_metadata(header: RunHeader) -> dict[str, bytes]:
    """A ledger's custom metadata, from which a lost list can be rebuilt."""
    names = (
        "topic topic_id first_index entry_time_floor_ms stamp_floor_ms previous_ledger_id "
        "previous_entry_count epoch"
    )
    facts = {f"pulsemark-{name}": str(getattr(header, name)).encode() for name in names.split()}
    return {"application": b"pulsemark", **facts}

"""The bytes in which a trail is kept over a restart.

Compressed JSON with a version and a CRC32C over the rest: the catalog's pages have no checksum of
their own. A snapshot that cannot be used is not an error: then the log is counted again.
"""

from __future__ import annotations

import json
import zlib
from typing import Any

from ..ledger import Position
from ..metadata import crc32c
from .counts import Counts, Tally
from .groups import Grouping
from .trail import Trail

SNAPSHOT_VERSION = 1
MAX_UNPACKED_BYTES = 1 << 28


class SnapshotError(Exception):
    """The bytes are not a snapshot that can be used; the text says why."""


def pack_trail(trail: Trail, topic_id: int) -> bytes:
    """The bytes of a trail."""
    counts = trail.counts
    value = {
        "topic_id": topic_id,
        "tags": trail.grouping.tags,
        "bucket_ms": counts.bucket_ms,
        "first_index": trail.first_index,
        "next_index": trail.next_index,
        "next_position": trail.next_position,
        "last_position": trail.last_position,
        "counted": trail.counted,
        "gaps": trail.gaps,
        "recounts": trail.recounts,
        "latest_ms": counts.latest_ms,
        "dropped": [counts.dropped_rows, counts.dropped_messages, counts.kept_from_ms],
        "buckets": [
            [start, [[key, tally.numbers()] for key, tally in bucket.items()]]
            for start, bucket in counts.buckets.items()
        ],
    }
    return pack_json(value)


def pack_json(value: Any) -> bytes:
    """Version, checksum, compressed JSON."""
    body = zlib.compress(json.dumps(value, separators=(",", ":")).encode(), 1)
    return SNAPSHOT_VERSION.to_bytes(2, "little") + crc32c(body).to_bytes(4, "little") + body


def unpack_json(data: bytes) -> Any:
    """The value of `pack_json`. Raises SnapshotError."""
    version = int.from_bytes(data[:2], "little")
    if len(data) < 6 or version != SNAPSHOT_VERSION:
        raise SnapshotError(f"version {version}, this program reads {SNAPSHOT_VERSION}")
    if crc32c(data[6:]) != int.from_bytes(data[2:6], "little"):
        raise SnapshotError("wrong checksum")
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(data[6:], MAX_UNPACKED_BYTES)
        if unpacker.unconsumed_tail:
            raise SnapshotError("it is too large")
        return json.loads(text)
    except (zlib.error, ValueError, RecursionError) as error:
        raise SnapshotError(str(error)) from error


def unpack_trail(data: bytes, topic_id: int, empty: Trail) -> Trail:
    """The trail of `pack_trail`, with the tags, width and limits of ``empty``.

    Raises SnapshotError: damaged, of another topic, or counted by other tags or buckets.
    """
    value = unpack_json(data)
    tags, bucket_ms = empty.grouping.tags, empty.counts.bucket_ms
    try:
        if value["topic_id"] != topic_id:
            raise SnapshotError("it is of an earlier topic with this name")
        if tuple(value["tags"]) != tags or value["bucket_ms"] != bucket_ms:
            raise SnapshotError("it is counted by other tags or another width of buckets")
        counts = Counts(bucket_ms, empty.counts.max_rows, empty.counts.max_values)
        for start, rows in value["buckets"]:
            for key, numbers in rows:
                counts.put(start, None if key is None else tuple(key), Tally(*numbers))
        counts.latest_ms = value["latest_ms"]
        counts.dropped_rows, counts.dropped_messages, counts.kept_from_ms = value["dropped"]
        last = value["last_position"]
        return Trail(
            Grouping(tags),
            counts,
            value["first_index"],
            value["next_index"],
            Position(*value["next_position"]),
            None if last is None else Position(*last),
            value["counted"],
            [(first, end) for first, end in value["gaps"]],
            value["recounts"],
        )
    except (LookupError, TypeError, ValueError) as error:
        raise SnapshotError(f"a field is missing or wrong: {error!r}") from error

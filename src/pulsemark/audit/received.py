"""The rows that other tiers have posted for a topic.

A source (one consumer, from its start to its end) posts its rows with their counts so far. A row
replaces the one that the same source posted for the same bucket and tags. So a post that is
repeated, because its answer was lost, counts nothing twice.

There is a limit of rows. Above it the oldest buckets are dropped, and counted as dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from .counts import MAX_ROWS
from .errors import AuditInputError
from .rows import AuditRow, check_name, check_other_tier, row_from_json
from .snapshot import SnapshotError, pack_json, unpack_json

_Key: TypeAlias = tuple[str, int, int, bool, tuple[tuple[str, str | None], ...]]


@dataclass(frozen=True, slots=True)
class Post:
    """What one request brings."""

    source: str
    rows: tuple[AuditRow, ...]

    @classmethod
    def from_json(cls, value: Any) -> Post:
        """A request's body: {"source": ..., "rows": [...]}. Raises AuditInputError."""
        if not isinstance(value, dict):
            raise AuditInputError("body", value, "is not an object with source and rows")
        source = check_name("source", value.get("source"))
        listed = value.get("rows")
        if not isinstance(listed, list):
            raise AuditInputError("rows", listed, "is not a list")
        rows = tuple(row_from_json(row) for row in listed)
        for row in rows:
            check_other_tier(row.tier)
        return cls(source, rows)


@dataclass(slots=True)
class Received:
    """The posted rows of one topic."""

    max_rows: int = MAX_ROWS
    sources: dict[str, dict[_Key, AuditRow]] = field(default_factory=dict)
    dropped_rows: int = 0
    dropped_messages: int = 0

    def with_post(self, post: Post) -> Received:
        """These rows with those of a post; this object stays as it is."""
        posted = {_key(row): row for row in post.rows}
        sources = {**self.sources, post.source: {**self.sources.get(post.source, {}), **posted}}
        return replace(self, sources=sources)._bounded()

    def rows(self) -> list[AuditRow]:
        """All rows, by bucket and tier."""
        found = [row for rows in self.sources.values() for row in rows.values()]
        return sorted(found, key=lambda row: (row.bucket_start_ms, row.tier))

    def _bounded(self) -> Received:
        """Without the oldest buckets: whole ones, since what is left of one would seem lost.

        Only a single bucket with more rows than the limit loses some of them.
        """
        sizes = Counter(row.bucket_start_ms for row in self.rows())
        excess = sizes.total() - self.max_rows
        if excess <= 0:
            return self
        kept_from_ms, last_ms = min(sizes), max(sizes)
        for start_ms in sorted(sizes):
            kept_from_ms = start_ms
            if excess <= 0 or start_ms == last_ms:
                break
            excess -= sizes[start_ms]
        return self._without(kept_from_ms, max(0, excess))

    def _without(self, kept_from_ms: int, excess: int) -> Received:
        """Without the buckets before this one, and so many further rows."""
        kept: dict[str, dict[_Key, AuditRow]] = {}
        rows = messages = 0
        for source, key, row in [
            (s, k, r) for s, of in self.sources.items() for k, r in of.items()
        ]:
            if row.bucket_start_ms >= kept_from_ms and excess <= 0:
                kept.setdefault(source, {})[key] = row
                continue
            excess -= row.bucket_start_ms >= kept_from_ms
            rows, messages = rows + 1, messages + row.count
        return replace(
            self,
            sources=kept,
            dropped_rows=self.dropped_rows + rows,
            dropped_messages=self.dropped_messages + messages,
        )

    def pack(self, topic_id: int) -> bytes:
        """The bytes in which the rows are kept."""
        rows = {s: [row.to_json() for row in rows.values()] for s, rows in self.sources.items()}
        dropped = [self.dropped_rows, self.dropped_messages]
        return pack_json({"topic_id": topic_id, "dropped": dropped, "sources": rows})

    @classmethod
    def unpack(cls, data: bytes, topic_id: int, max_rows: int) -> Received:
        """The rows of `pack`. Raises SnapshotError."""
        value = unpack_json(data)
        try:
            if value["topic_id"] != topic_id:
                raise SnapshotError("they are of an earlier topic with this name")
            dropped_rows, dropped_messages = value["dropped"]
            sources = {
                source: {_key(row): row for row in map(_stored_row, rows)}
                for source, rows in value["sources"].items()
            }
        except (LookupError, TypeError, ValueError) as error:
            raise SnapshotError(f"a field is missing or wrong: {error!r}") from error
        return cls(max_rows, sources, dropped_rows, dropped_messages)._bounded()


def _stored_row(value: Mapping[str, Any]) -> AuditRow:
    return AuditRow(**value)


def _key(row: AuditRow) -> _Key:
    tags = tuple(sorted(row.tags.items()))
    return row.tier, row.bucket_start_ms, row.bucket_end_ms, row.is_rest, tags


def of_tier(rows: Iterable[AuditRow], tier: str) -> Sequence[AuditRow]:
    """The rows of one tier."""
    return [row for row in rows if row.tier == tier]

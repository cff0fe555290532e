"""An entry's audit time and tag values, from its stamp alone: no payload is read.

The audit time is the stamp's broker time, or the ledger's append time if the entry has no stamp of
time. Both come from the broker's clock, so a producer's clock decides nothing. A prefix that cannot
be parsed counts as no stamp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from ..metadata import Buffer, PrefixError, peek, tags_of
from ..metadata.tags import application_tags
from ..proto.broker_entry_pb2 import BrokerEntryMetadata
from .rows import MAX_TIME_MS

Group: TypeAlias = tuple[str | None, ...]
"""The values of the tags that are counted by, in their order."""

_REMEMBERED = 4096
_FIELDS = BrokerEntryMetadata.DESCRIPTOR.fields_by_name
_ENUMS = frozenset(name for name, field in _FIELDS.items() if field.enum_type is not None)
#: Fields of the registry whose value is shown as it is.
_PLAIN = frozenset(_FIELDS) - _ENUMS - {"application_tags", "broker_timestamp", "index"}


class Grouping:
    """Finds time and tag values of entries.

    Entries of one producer have the same tags one after another. So the values of encoded tags are
    remembered.
    """

    def __init__(self, tags: Sequence[str]) -> None:
        self.tags = tuple(tags)
        self._none: Group = (None,) * len(self.tags)
        self._is_simple = all(t in _PLAIN or (t not in _FIELDS and _is_own(t)) for t in self.tags)
        self._remembered: dict[bytes, Group] = {}

    def place(self, prefix: Buffer, append_time_ms: int) -> tuple[int, Group]:
        """The audit time and the tag values of an entry with this prefix."""
        if not len(prefix):
            return append_time_ms, self._none
        try:
            metadata = peek(prefix)
        except PrefixError:
            return append_time_ms, self._none
        time_ms = append_time_ms
        if metadata is not None and metadata.HasField("broker_timestamp"):
            stamp_ms = metadata.broker_timestamp
            time_ms = stamp_ms if stamp_ms < MAX_TIME_MS else append_time_ms
        if not self.tags or metadata is None:
            return time_ms, self._none
        return time_ms, self._group(prefix, metadata)

    def group(self, prefix: Buffer) -> Group:
        """The tag values of an entry with this prefix."""
        return self.place(prefix, 0)[1]

    def _group(self, prefix: Buffer, metadata: BrokerEntryMetadata) -> Group:
        if not self._is_simple:
            return self._slow(prefix)
        metadata.ClearField("broker_timestamp")
        metadata.ClearField("index")
        key = metadata.SerializeToString()
        found = self._remembered.get(key)
        if found is None:
            if len(self._remembered) >= _REMEMBERED:
                self._remembered.clear()
            found = self._remembered[key] = self._simple(metadata)
        return found

    def _simple(self, metadata: BrokerEntryMetadata) -> Group:
        """Values of the registry's fields and of application tags."""
        try:
            own = application_tags(metadata)
        except PrefixError:
            return self._none
        values: list[str | None] = []
        for name in self.tags:
            if name in _PLAIN:
                given = metadata.HasField(name)
                values.append(shown(getattr(metadata, name)) if given else None)
            else:
                values.append(shown(own[name]) if name in own else None)
        return tuple(values)

    def _slow(self, prefix: Buffer) -> Group:
        """Also values of third parties' fields, which have a plugin's names."""
        try:
            tags = tags_of(prefix)
        except PrefixError:
            return self._none
        return tuple(shown(tags[name]) if name in tags else None for name in self.tags)


def _is_own(name: str) -> bool:
    """Whether a name can only be an application tag's: not a number, not a plugin's full name."""
    return not name.isdigit() and "." not in name


def shown(value: object) -> str:
    """A tag's value as a row has it."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.hex()
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)

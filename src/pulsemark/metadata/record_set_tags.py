"""What a prefix says of a Kafka client's record set: fields 100 and 104 to 108.

They are the facts without which the bytes cannot be read again: their format, and how many offsets
they take. They are found when the set is produced, and go with its bytes wherever these go: a
mirror hands them on, as it hands on the bytes, without opening the set.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..proto.broker_entry_pb2 import SOURCE_PULSAR, BrokerEntryMetadata

__all__ = ["RECORD_SET_FIELDS", "RecordSetTags", "record_set_tags_of"]

_NAMES = (
    "message_count",
    "source_format",
    "relative_offset_honoured",
    "has_keys",
    "raw_size_bytes",
    "tombstone",
)
RECORD_SET_FIELDS = frozenset(
    BrokerEntryMetadata.DESCRIPTOR.fields_by_name[name].number for name in _NAMES
)
"""The fields' numbers."""


@dataclass(frozen=True, slots=True)
class RecordSetTags:
    """The facts of one record set, as the registry of entry tags defines them.

    `message_count` is the number of offsets that the set takes, holes included.
    """

    message_count: int
    source_format: int
    relative_offset_honoured: bool = True
    has_keys: bool = False
    raw_size_bytes: int = 0
    tombstone: bool = False

    def write(self, metadata: BrokerEntryMetadata) -> None:
        """Set the fields. One at its default is left out."""
        for name in _NAMES:
            value = getattr(self, name)
            if value:
                setattr(metadata, name, value)


def record_set_tags_of(metadata: BrokerEntryMetadata | None) -> RecordSetTags | None:
    """The facts in a stored prefix; None if the entry is not a record set of a Kafka client."""
    if metadata is None or metadata.source_format == SOURCE_PULSAR:
        return None
    return RecordSetTags(**{name: getattr(metadata, name) for name in _NAMES})

"""The source stamp of a mirrored entry: fields 113 to 117 of the prefix.

A mirror copies entries from one cluster to another without opening them. The receiver stamps each
entry again, and keeps the facts about the source beside its own stamp (docs/entry-format.md).

Over Pulsar's protocol a mirror sends these fields in a prefix in front of the producer's bytes: the
same layout in which a broker sends its stamp to a consumer (PIP-90), in the other direction. Only a
producer that the broker accepted as a mirror may do so. The prefix holds no other fields, except
for a Kafka record set: its format and size go with its bytes (`RecordSetTags`).

Positions order a source's entries, also those that take no index. As one number a position is
`ledger id << 28 | entry id`, as Pulsar Functions packs a message id into a sequence id.

**Record sets.** Fields 100 and 104 to 108 hold what is needed to read a Kafka record set: its
format,
and how many offsets it takes. They are determined when the set is produced, and stay with its
bytes: a
mirror passes them on, as it passes on the bytes, without opening the set.
"""

from __future__ import annotations

from dataclasses import replace

from ..proto.broker_entry_pb2 import SOURCE_PULSAR, BrokerEntryMetadata
from ..records import record
from .crc import Buffer
from .errors import PrefixError
from .prefix import PREFIX_HEADER_SIZE_BYTES, pack, peek, prefix_size_bytes
from .prefix_fields import field_numbers

#: The property with which a producer says that it is a mirror; its value is the source's cluster.
MIRROR_PROPERTY = "pulsemark.mirror.source-cluster"
#: The name of a mirror's producer is this and the source's cluster. A broker that understands
#: mirrors gives this name; so the mirror knows that the broker does.
MIRROR_PRODUCER_PREFIX = "pulsemark.mirror."
#: The property with which a mirror's consumer asks for entries as they are stored: record sets of
#: Kafka's clients are not converted for it. With the value `WITH_CONTROL` it is told of the
#: broker's control entries, too, each as a prefix without a body.
STORED_PROPERTY = "pulsemark.mirror.stored-entries"
WITH_CONTROL = "with-control"
CLUSTER_SIZE_MAX_BYTES = 255
_ENTRY_ID_BITS = 28
_LEDGER_ID_BITS = 63 - _ENTRY_ID_BITS
_NUMBER_MAX = 2**63 - 1
_NAMES = (
    "message_count", "source_format", "relative_offset_honoured", "has_keys", "raw_size_bytes",
    "tombstone",
)  # fmt: skip
_NUMBER_OF = {
    name: field.number for name, field in BrokerEntryMetadata.DESCRIPTOR.fields_by_name.items()
}
RECORD_SET_FIELDS = frozenset(_NUMBER_OF[name] for name in _NAMES)
"""The fields' numbers."""
CONTROL_FIELDS = frozenset({_NUMBER_OF["entry_kind"]})
_FIELDS = frozenset(number for number in _NUMBER_OF.values() if 113 <= number <= 117)


@record(frozen=True)
class SourceStamp:
    """An entry's facts from the source. `index` and `time_ms` are None if they are not known.

    `record_set` goes with the bytes of a Kafka client's record set; None: another entry.
    """

    cluster: str
    ledger_id: int
    entry_id: int
    index: int | None = None
    time_ms: int | None = None
    record_set: RecordSetTags | None = None

    @property
    def position(self) -> tuple[int, int]:
        """The entry's position in the source."""
        return self.ledger_id, self.entry_id

    def metadata(self) -> BrokerEntryMetadata:
        """The fields as a message, to be stored beside the receiver's own stamp."""
        metadata = BrokerEntryMetadata(
            source_cluster=self.cluster,
            source_ledger_id=self.ledger_id,
            source_entry_id=self.entry_id,
        )
        if self.index is not None:
            metadata.source_index = self.index
        if self.time_ms is not None:
            metadata.source_time_ms = self.time_ms
        if self.record_set is not None:
            self.record_set.write(metadata)
        return metadata

    def prefix(self) -> bytes:
        """The prefix that a mirror sends in front of the producer's bytes."""
        return pack(self.metadata())


def source_stamp_of(metadata: BrokerEntryMetadata | None) -> SourceStamp | None:
    """The source stamp in a stored prefix; None if the entry was not mirrored."""
    if metadata is None or not metadata.HasField("source_cluster"):
        return None
    return SourceStamp(
        metadata.source_cluster,
        metadata.source_ledger_id,
        metadata.source_entry_id,
        metadata.source_index if metadata.HasField("source_index") else None,
        metadata.source_time_ms if metadata.HasField("source_time_ms") else None,
    )


def split_mirrored(sent: Buffer) -> tuple[SourceStamp, memoryview]:
    """Split what a mirror sent into the source stamp and the producer's bytes.

    Raises PrefixError: no prefix, or one without cluster or position, with a number above 2^63-1,
    or with a field that a mirror may not set.
    """
    metadata = peek(sent)
    if metadata is None:
        raise PrefixError("a mirror's message must begin with the source's stamp (0x0e02)", 0)
    end = prefix_size_bytes(sent)
    record_set = record_set_tags_of(metadata)
    allowed = _FIELDS if record_set is None else _FIELDS | RECORD_SET_FIELDS
    others = sorted(field_numbers(bytes(sent[PREFIX_HEADER_SIZE_BYTES:end])) - allowed)
    if others:
        raise PrefixError(f"a mirror may not set field {others[0]}", PREFIX_HEADER_SIZE_BYTES)
    stamp = source_stamp_of(metadata)
    has_position = metadata.HasField("source_ledger_id") and metadata.HasField("source_entry_id")
    if stamp is None or not has_position:
        raise PrefixError("the source's cluster or position is missing", PREFIX_HEADER_SIZE_BYTES)
    # protobuf's C parser returns a string that is not UTF-8 as bytes.
    if not isinstance(stamp.cluster, str):
        raise PrefixError("the source's cluster is not UTF-8", PREFIX_HEADER_SIZE_BYTES)
    for number in (*stamp.position, stamp.index or 0, stamp.time_ms or 0):
        if number > _NUMBER_MAX:
            reason = f"{number} is above {_NUMBER_MAX}"
            raise PrefixError(reason, PREFIX_HEADER_SIZE_BYTES)
    sequence_id_of(stamp.position)
    if record_set is not None:
        stamp = replace(stamp, record_set=record_set)
    return stamp, memoryview(sent)[end:]


def sequence_id_of(position: tuple[int, int]) -> int:
    """A position in the source as a sequence id. Raises PrefixError if it does not fit."""
    ledger_id, entry_id = position
    if not (0 <= ledger_id < 1 << _LEDGER_ID_BITS and 0 <= entry_id < 1 << _ENTRY_ID_BITS):
        raise PrefixError(f"source position {ledger_id}:{entry_id} is out of range", 0)
    return ledger_id << _ENTRY_ID_BITS | entry_id


def position_of_sequence_id(sequence_id: int) -> tuple[int, int] | None:
    """The position that is packed into a sequence id; None for -1, which means "no entry"."""
    if sequence_id < 0:
        return None
    return sequence_id >> _ENTRY_ID_BITS, sequence_id & (1 << _ENTRY_ID_BITS) - 1


@record(frozen=True)
class RecordSetTags:
    """The facts of a record set, from the registry of entry tags; its offsets include holes."""

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

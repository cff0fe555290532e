"""Kafka's record formats, magic 0, 1 and 2: what is sent, stored, sent on, and converted.

Pure functions on bytes: no sockets, no ledgers, no state. What each module is about:

==================  =========================================================================
`produced`          a producer's set, or one of another cluster's log, checked, as it is stored
`fetched`           `fetch`: a stored set as a client of some magic understands it; `read`
`pulsar`            a Pulsar entry as a record set, and a stored set as a Pulsar entry
`convert`           records from one magic into another; `keep`: a set after compaction
`scan`              the check of a produced set's records, which every set in place costs
`rules`             what a topic asks of sets, and what deletes a key (KIP-87)
`batch`, `legacy`   the bytes of magic 2 (control batches too), and of magic 0 and 1
`layout`            what all magics share: bytes, one record, the errors
`compression`       the codecs, with a limit on what comes out
==================  =========================================================================

A body is always in its stored form: as if its first message had offset 0. With the entry's index
and count, its base offset is ``index - message_count + 1``. All errors in bytes from clients and
disks are `RecordSetError`, with Kafka's code. None of this is fast enough for an event loop if a
set has very many records: a million takes a second. A caller hands large sets to a thread.
"""

from .batch import NO_PRODUCER, Producer, control_batch, empty_batch, producer_of
from .convert import keep
from .fetched import (
    Fetched,
    StoredSet,
    batch_as_stored,
    codec_of,
    ends_before,
    fetch,
    is_hole,
    max_magic_of,
    read,
)
from .layout import (
    TOMBSTONE_FLAG,
    Codec,
    CodecError,
    CorruptRecordSetError,
    Headers,
    InvalidRecordSetError,
    Record,
    RecordSetError,
    RecordSetTooLargeError,
    RecordTimeError,
    Work,
)
from .produced import check_mirrored, validate_produced
from .pulsar import UnconvertibleEntryError, pulsar_set, read_pulsar, to_pulsar
from .rules import (
    MAX_BATCH_BYTES,
    MAX_RAW_BYTES,
    EntryRules,
    Produced,
    ProducerState,
    TombstoneStage,
    deletes,
    magic_of,
)

__all__ = [
    "MAX_BATCH_BYTES",
    "MAX_RAW_BYTES",
    "NO_PRODUCER",
    "TOMBSTONE_FLAG",
    "Codec",
    "CodecError",
    "CorruptRecordSetError",
    "EntryRules",
    "Fetched",
    "Headers",
    "InvalidRecordSetError",
    "Produced",
    "Producer",
    "ProducerState",
    "Record",
    "RecordSetError",
    "RecordSetTooLargeError",
    "RecordTimeError",
    "StoredSet",
    "TombstoneStage",
    "UnconvertibleEntryError",
    "Work",
    "batch_as_stored",
    "check_mirrored",
    "codec_of",
    "control_batch",
    "deletes",
    "empty_batch",
    "ends_before",
    "fetch",
    "is_hole",
    "keep",
    "magic_of",
    "max_magic_of",
    "producer_of",
    "pulsar_set",
    "read",
    "read_pulsar",
    "to_pulsar",
    "validate_produced",
]

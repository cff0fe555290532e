"""Kafka's record formats, magic 0, 1 and 2: what is sent, stored, sent on, and converted.

Pure functions on bytes: no sockets, no ledgers, no state. What each module is about:

==================  =========================================================================
`produced`          `validate_produced`: a producer's set, checked, as it is stored
`fetched`           `fetch`: a stored set as a client of some magic understands it; `read`
`control`           `control_batch`, `empty_batch`: offsets that consumers skip
`compacted`         `keep`: a stored set of which compaction keeps some records
`mirrored`          `check_mirrored`: a stored set that comes from another cluster's log
`from_pulsar`       `read_pulsar`, `pulsar_set`: a Pulsar entry as a record set
`to_pulsar`         `to_pulsar`: a stored set as a Pulsar entry
`tombstones`        what deletes a key, by magic and stage (KIP-87)
`scan`, `uniform`   the check of a produced set's records, which every set in place costs
`convert`           records from one magic into another
`batch`, `legacy`   the bytes of magic 2, and of magic 0 and 1
`compression`       the codecs, with a limit on what comes out
==================  =========================================================================

A body is always in its stored form: as if its first message had offset 0. With the entry's index
and count, its base offset is ``index - message_count + 1``. All errors in bytes from clients and
disks are `RecordSetError`, with Kafka's code. None of this is fast enough for an event loop if a
set has very many records: a million takes a second. A caller hands large sets to a thread.
"""

from .compacted import keep
from .control import control_batch, empty_batch
from .errors import (
    CodecError,
    CorruptRecordSetError,
    FormatTooOldError,
    InvalidRecordSetError,
    RecordSetError,
    RecordSetTooLargeError,
    RecordTimeError,
    TransactionError,
)
from .fetched import Fetched, StoredSet, batch_as_stored, fetch, max_magic_of, read
from .from_pulsar import UnconvertibleEntryError, pulsar_set, read_pulsar
from .mirrored import check_mirrored
from .produced import validate_produced
from .record import NO_TIME_MS, TOMBSTONE_FLAG, Codec, Headers, Record, Work
from .rules import (
    MAX_BATCH_BYTES,
    MAX_RAW_BYTES,
    EntryRules,
    Produced,
    ProducerState,
    magic_of,
)
from .to_pulsar import to_pulsar
from .tombstones import TombstoneStage, deletes

__all__ = [
    "MAX_BATCH_BYTES",
    "MAX_RAW_BYTES",
    "NO_TIME_MS",
    "TOMBSTONE_FLAG",
    "Codec",
    "CodecError",
    "CorruptRecordSetError",
    "EntryRules",
    "Fetched",
    "FormatTooOldError",
    "Headers",
    "InvalidRecordSetError",
    "Produced",
    "ProducerState",
    "Record",
    "RecordSetError",
    "RecordSetTooLargeError",
    "RecordTimeError",
    "StoredSet",
    "TombstoneStage",
    "TransactionError",
    "UnconvertibleEntryError",
    "Work",
    "batch_as_stored",
    "check_mirrored",
    "control_batch",
    "deletes",
    "empty_batch",
    "fetch",
    "keep",
    "magic_of",
    "max_magic_of",
    "pulsar_set",
    "read",
    "read_pulsar",
    "to_pulsar",
    "validate_produced",
]

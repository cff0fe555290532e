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

from .batch import NO_PRODUCER as NO_PRODUCER
from .batch import SEQUENCE_END as SEQUENCE_END
from .batch import Producer as Producer
from .batch import SentBatch as SentBatch
from .batch import control_batch as control_batch
from .batch import empty_batch as empty_batch
from .batch import producer_of as producer_of
from .batch import sent_batch as sent_batch
from .convert import keep as keep
from .fetched import Fetched as Fetched
from .fetched import StoredSet as StoredSet
from .fetched import batch_as_stored as batch_as_stored
from .fetched import codec_of as codec_of
from .fetched import ends_before as ends_before
from .fetched import fetch as fetch
from .fetched import is_hole as is_hole
from .fetched import max_magic_of as max_magic_of
from .fetched import read as read
from .layout import TOMBSTONE_FLAG as TOMBSTONE_FLAG
from .layout import Codec as Codec
from .layout import CodecError as CodecError
from .layout import CorruptRecordSetError as CorruptRecordSetError
from .layout import Headers as Headers
from .layout import InvalidRecordSetError as InvalidRecordSetError
from .layout import Record as Record
from .layout import RecordSetError as RecordSetError
from .layout import RecordSetTooLargeError as RecordSetTooLargeError
from .layout import RecordTimeError as RecordTimeError
from .layout import Work as Work
from .produced import check_mirrored as check_mirrored
from .produced import validate_produced as validate_produced
from .pulsar import UnconvertibleEntryError as UnconvertibleEntryError
from .pulsar import pulsar_set as pulsar_set
from .pulsar import read_pulsar as read_pulsar
from .pulsar import to_pulsar as to_pulsar
from .rules import MAX_BATCH_BYTES as MAX_BATCH_BYTES
from .rules import MAX_RAW_BYTES as MAX_RAW_BYTES
from .rules import EntryRules as EntryRules
from .rules import Produced as Produced
from .rules import TombstoneStage as TombstoneStage
from .rules import deletes as deletes
from .rules import magic_of as magic_of

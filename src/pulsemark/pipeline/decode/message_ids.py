"""``__messageId``: Pulsar's serialized MessageIdData, which clients' ``deserialize`` reads.

The id is the same as a consumer gets: ledger, entry, the partition at the end of the topic's name,
and, for entries of more than one message, the place in the batch.
"""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa

from ...proto.pulsar_api_pb2 import MessageIdData
from .octets import Bools, Ints

_PARTITION = re.compile(r"-partition-([0-9]{1,9})$")
_LEDGER_ID_TAG = MessageIdData.LEDGERID_FIELD_NUMBER << 3
_ENTRY_ID_TAG = MessageIdData.ENTRYID_FIELD_NUMBER << 3
_PARTITION_TAG = MessageIdData.PARTITION_FIELD_NUMBER << 3
_BATCH_INDEX_TAG = MessageIdData.BATCH_INDEX_FIELD_NUMBER << 3
_BATCH_SIZE_TAG = MessageIdData.BATCH_SIZE_FIELD_NUMBER << 3


def message_ids(
    topic: str, ledger_ids: Ints, entry_ids: Ints, counts: Ints, entry_rows: Ints, places: Ints
) -> pa.Array:
    """Ids of messages. Ledger ids, entry ids and counts are by entry, the rest by message."""
    # The id of a message that is alone in its entry has no batch index.
    sizes = counts[entry_rows]
    in_batch = sizes > 1
    octets = [
        *_field(_LEDGER_ID_TAG, ledger_ids[entry_rows]),
        *_field(_ENTRY_ID_TAG, entry_ids[entry_rows]),
    ]
    partition = partition_of(topic)
    if partition >= 0:
        octets += _field(_PARTITION_TAG, np.full(len(entry_rows), partition, np.int64))
    if bool(in_batch.any()):
        octets += _field(_BATCH_INDEX_TAG, places, in_batch)
        octets += _field(_BATCH_SIZE_TAG, sizes, in_batch)
    shape = (len(entry_rows), len(octets))
    values, used = np.empty(shape, np.uint8), np.empty(shape, np.bool_)
    for place, (value, is_used) in enumerate(octets):
        values[:, place], used[:, place] = value, is_used
    offsets = np.zeros(len(entry_rows) + 1, np.int32)
    np.cumsum(np.count_nonzero(used, axis=1), out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values[used])]
    return pa.Array.from_buffers(pa.binary(), len(entry_rows), buffers)


def _field(
    tag: int, numbers: Ints, present: Bools | bool = True
) -> list[tuple[Ints | int, Bools | bool]]:
    """A field with its tag, byte by byte for all rows: its value, and which rows have it."""
    octets: list[tuple[Ints | int, Bools | bool]] = [(tag, present)]
    rest, is_used = numbers, present
    while True:
        goes_on = rest >= 0x80
        if not bool(goes_on.any()):
            return [*octets, (rest, is_used)]
        octets.append((rest & 0x7F | goes_on.astype(np.int64) << 7, is_used))
        rest, is_used = rest >> 7, goes_on & is_used


def partition_of(topic: str) -> int:
    """The partition at the end of a topic's name; -1 if the topic is not a partition."""
    found = _PARTITION.search(topic)
    return int(found[1]) if found else -1

"""``__messageId``: Pulsar's serialized MessageIdData, which clients' ``deserialize`` reads.

The id is the same as a consumer gets: ledger, entry, the partition at the end of the topic's name,
and, for entries of more than one message, the place in the batch.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ...metadata.partition_names import partition_of
from ...proto.pulsar_api_pb2 import MessageIdData
from .octets import Bools, Ints, once, once_if_alike, spread

_LEDGER_ID_TAG = MessageIdData.LEDGERID_FIELD_NUMBER << 3
_ENTRY_ID_TAG = MessageIdData.ENTRYID_FIELD_NUMBER << 3
_PARTITION_TAG = MessageIdData.PARTITION_FIELD_NUMBER << 3
_BATCH_INDEX_TAG = MessageIdData.BATCH_INDEX_FIELD_NUMBER << 3
_BATCH_SIZE_TAG = MessageIdData.BATCH_SIZE_FIELD_NUMBER << 3


def message_ids(
    topic: str, ledger_ids: Ints, entry_ids: Ints, counts: Ints, places: Ints
) -> pa.Array:
    """Ids of messages, each with the messages of its entry, and its place among them, from 0."""
    octets = [*_field(_LEDGER_ID_TAG, ledger_ids), *_field(_ENTRY_ID_TAG, entry_ids)]
    _, partition = partition_of(topic)
    if partition >= 0:
        octets += _field(_PARTITION_TAG, spread(np.array([partition]), len(entry_ids)))
    # The id of a message that is alone in its entry has no batch index.
    in_batch = once_if_alike(counts > 1)
    if bool(in_batch.any()):
        present = in_batch if len(in_batch) > 1 else True
        octets += _field(_BATCH_INDEX_TAG, places, present)
        octets += _field(_BATCH_SIZE_TAG, counts, present)
    return _joined(octets, len(entry_ids))


Octet = tuple[Ints | int, Bools | bool]
"""A byte of each id, and which ids have it."""


def _joined(octets: list[Octet], count: int) -> pa.Array:
    values = np.empty((count, len(octets)), np.uint8)
    for place, (value, _) in enumerate(octets):
        values[:, place] = value
    if all(used is True for _, used in octets):
        offsets = np.arange(count + 1, dtype=np.int32) * np.int32(len(octets))
    else:
        used = np.empty((count, len(octets)), np.bool_)
        for place, (_, is_used) in enumerate(octets):
            used[:, place] = is_used
        offsets = np.zeros(count + 1, np.int32)
        np.cumsum(np.count_nonzero(used, axis=1), out=offsets[1:])
        values = values[used]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values)]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def _field(tag: int, numbers: Ints, present: Bools | bool = True) -> list[Octet]:
    """A field with its tag, byte by byte for all rows: its value, and which rows have it."""
    octets: list[Octet] = [(tag, present)]
    rest, is_used = once(numbers), present
    while True:
        goes_on = once_if_alike(rest >= 0x80)
        if not bool(goes_on.any()):
            return [*octets, (rest, is_used)]
        octets.append((rest & 0x7F | goes_on.astype(np.int64) << 7, is_used))
        rest = rest >> 7
        if len(goes_on) > 1:
            is_used = goes_on & is_used

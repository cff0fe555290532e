"""``__messageId``: Pulsar's serialized MessageIdData, which clients' ``deserialize`` takes.

The id is what the broker would hand out: ledger, entry, the partition that the topic's name ends
with, and the place in the batch for entries of more than one message.
"""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...proto.pulsar_api_pb2 import MessageIdData
from .protoscan import Ints

_PARTITION = re.compile(r"-partition-([0-9]{1,9})$")
_LEDGER_ID_TAG = MessageIdData.LEDGERID_FIELD_NUMBER << 3
_ENTRY_ID_TAG = MessageIdData.ENTRYID_FIELD_NUMBER << 3
_PARTITION_TAG = MessageIdData.PARTITION_FIELD_NUMBER << 3
_BATCH_INDEX_TAG = MessageIdData.BATCH_INDEX_FIELD_NUMBER << 3
_BATCH_SIZE_TAG = MessageIdData.BATCH_SIZE_FIELD_NUMBER << 3


def message_ids(
    topic: str, ledger_ids: Ints, entry_ids: Ints, counts: Ints, entry_rows: Ints, places: Ints
) -> pa.Array:
    """Ids of messages; ledger ids, entry ids and counts are by entry, the rest by message."""
    ledgers, ledger_rows = np.unique(ledger_ids, return_inverse=True)
    ledger_parts = [_varint(_LEDGER_ID_TAG, ledger) for ledger in ledgers.tolist()]
    partition = partition_of(topic)
    partition_part = _varint(_PARTITION_TAG, partition) if partition >= 0 else b""
    entry_parts = [_varint(_ENTRY_ID_TAG, entry) + partition_part for entry in entry_ids.tolist()]
    # An entry of one message has no place in its id; the others share few places.
    places = np.where(counts[entry_rows] > 1, places + 1, 0)
    used, place_rows = np.unique(places, return_inverse=True)
    place_parts = [_varint(_BATCH_INDEX_TAG, at - 1) if at else b"" for at in used.tolist()]
    sizes, size_rows = np.unique(counts, return_inverse=True)
    size_parts = [_varint(_BATCH_SIZE_TAG, n) if n > 1 else b"" for n in sizes.tolist()]
    parts = [
        pa.array(values, pa.binary()).take(pa.array(rows))
        for values, rows in (
            (ledger_parts, ledger_rows[entry_rows]),
            (entry_parts, entry_rows),
            (place_parts, place_rows),
            (size_parts, size_rows[entry_rows]),
        )
    ]
    return pc.binary_join_element_wise(*parts, b"")


def partition_of(topic: str) -> int:
    """The partition that a topic's name ends with; -1 for a topic that is none."""
    found = _PARTITION.search(topic)
    return int(found[1]) if found else -1


def _varint(tag: int, number: int) -> bytes:
    octets = bytearray([tag])
    while number >= 0x80:
        octets.append(number & 0x7F | 0x80)
        number >>= 7
    octets.append(number)
    return bytes(octets)

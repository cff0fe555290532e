"""Control batches: how a control entry looks to Kafka's consumers (KIP-98, KIP-595).

A control entry takes an index, so Kafka's consumers have to get past its offset. In magic 2 it is a
control batch, which they skip without showing it. Magic 0 and 1 have nothing like it: their clients
get no bytes, and go on with the next entry of the same answer.

The one record's key is version and type, two i16. The types are Kafka's where it has one, with
Kafka's values: commit and abort (version 0, coordinator epoch 0) and leader change (version 0, no
voters). Ours without a counterpart have the type -1, unknown.
"""

from __future__ import annotations

import struct

from ...proto.broker_entry_pb2 import ControlType
from . import layout
from .batch import BatchFields, build
from .record import Record, Work

_KEY = struct.Struct(">hh")
_END_TRANSACTION = struct.pack(">hi", 0, 0)
# version i16, leader id i32, two empty compact arrays, no tagged fields
_LEADER_CHANGE = struct.pack(">hiBBB", 0, -1, 1, 1, 0)
_UNKNOWN = -1
_KAFKA: dict[int, tuple[int, bytes]] = {
    ControlType.CONTROL_TXN_ABORT: (0, _END_TRANSACTION),
    ControlType.CONTROL_TXN_COMMIT: (1, _END_TRANSACTION),
    ControlType.CONTROL_LEADER_CHANGE: (2, _LEADER_CHANGE),
}


def control_batch(
    offset: int, control_type: int, time_ms: int, max_magic: int, leader_epoch: int = 0
) -> bytes:
    """The control batch of a control entry.

    Args:
        offset: the entry's index.
        control_type: of its prefix.
        time_ms: its broker time.
        max_magic: the newest magic that the client understands (`max_magic_of`).
        leader_epoch: of its prefix.

    Returns:
        A batch of magic 2; nothing for clients of magic 0 and 1.
    """
    if max_magic < 2:
        return b""
    kafka_type, value = _KAFKA.get(control_type, (_UNKNOWN, b""))
    record = Record(0, time_ms, _KEY.pack(0, kafka_type), value)
    fields = BatchFields(attributes=layout.CONTROL, base_offset=offset, leader_epoch=leader_epoch)
    return build([record], fields, Work())


def empty_batch(
    base_offset: int, message_count: int, max_magic: int, leader_epoch: int = 0
) -> bytes:
    """A batch without records over some offsets: consumers go on after them.

    For entries that no Kafka client can read. Nothing for clients of magic 0 and 1.
    """
    if max_magic < 2:
        return b""
    fields = BatchFields(
        base_offset=base_offset, last_offset_delta=message_count - 1, leader_epoch=leader_epoch
    )
    return build((), fields, Work())

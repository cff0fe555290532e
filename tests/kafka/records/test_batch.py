"""Control entries and unreadable ones: offsets that consumers pass over."""

from __future__ import annotations

import pytest
from aiokafka.record.memory_records import MemoryRecords as AiokafkaRecords
from kafka.record.memory_records import MemoryRecords as KafkaPythonRecords

from pulsemark.kafka.records import control_batch, empty_batch
from pulsemark.proto.broker_entry_pb2 import ControlType

from .conftest import build_set, sent_on, stored

KAFKA_TYPES: dict[int, int] = {
    ControlType.CONTROL_TXN_ABORT: 0,
    ControlType.CONTROL_TXN_COMMIT: 1,
    ControlType.CONTROL_LEADER_CHANGE: 2,
}


@pytest.mark.parametrize("control_type", ControlType.values())
def test_a_control_batch_of_one_offset(control_type: int) -> None:
    """Each kind is a control batch of magic 2 at the entry's offset, with its leader epoch."""
    data = control_batch(500, control_type, 1_700_000_000_000, 2, leader_epoch=4)
    theirs = next(iter(KafkaPythonRecords(data)))
    assert theirs.validate_crc()
    assert theirs.is_control_batch
    assert (theirs.base_offset, theirs.next_offset, theirs.records_count) == (500, 501, 1)
    assert theirs.leader_epoch == 4
    (record,) = theirs
    assert record.timestamp == 1_700_000_000_000
    assert record.key[:2] == b"\0\0"
    kafka_type = int.from_bytes(record.key[2:4], "big", signed=True)
    assert kafka_type == KAFKA_TYPES.get(control_type, -1)
    other = AiokafkaRecords(data).next_batch()
    assert other is not None
    assert other.is_control_batch
    assert other.next_offset == 501


@pytest.mark.parametrize("client", [0, 1])
def test_old_clients_get_nothing(client: int) -> None:
    """Magic 0 and 1 have neither control batches nor empty ones."""
    assert control_batch(5, ControlType.CONTROL_LEADER_CHANGE, 0, client) == b""
    assert empty_batch(5, 10, client) == b""


def test_an_empty_batch_moves_the_offset() -> None:
    """A batch without records spans the offsets of the entry that it stands for."""
    data = empty_batch(1000, 30, 2, leader_epoch=1)
    theirs = next(iter(KafkaPythonRecords(data)))
    assert theirs.validate_crc()
    assert (theirs.base_offset, theirs.next_offset, theirs.records_count) == (1000, 1030, 0)
    assert list(theirs) == []
    assert not theirs.is_control_batch


def test_between_records() -> None:
    """In one answer, records before and after a control batch are seen at their offsets."""
    body = stored(build_set(2), 2).body
    answer = (
        sent_on(body, 10, 2)
        + control_batch(15, ControlType.CONTROL_LEADER_CHANGE, 0, 2)
        + empty_batch(16, 4, 2)
        + sent_on(body, 20, 2)
    )
    offsets = [
        record.offset
        for part in KafkaPythonRecords(answer)
        if not part.is_control_batch
        for record in part
    ]
    assert offsets == [10, 11, 12, 13, 14, 20, 21, 22, 23, 24]

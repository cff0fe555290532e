"""Sequence numbers of idempotent producers, against a model that keeps everything."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsemark.broker.kafka.partitions import Sequences
from pulsemark.kafka.errors import Code, KafkaError
from pulsemark.kafka.records import SEQUENCE_END, Producer, SentBatch

SENDS = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(0, 12), st.integers(1, 3)),
    max_size=60,
)


@given(SENDS)
def test_each_record_is_stored_once_and_in_order(sends):
    """Whatever is sent again or left out: a producer's epoch has no gap and nothing twice."""
    sequences = Sequences(10)
    stored: dict[tuple[int, int], list[SentBatch]] = {}
    newest: dict[int, int] = {}
    for offset, (producer_id, epoch, first, count) in enumerate(sends):
        batch = SentBatch(Producer(producer_id, epoch), first, count)
        known = stored.get((producer_id, epoch), [])
        try:
            repeated = sequences.check(batch)
        except KafkaError as refusal:
            if refusal.code is Code.INVALID_PRODUCER_EPOCH:
                assert epoch < newest[producer_id]
            else:
                following = known[-1].last_sequence + 1 if known else 0
                assert first != following
                assert batch not in known[-5:]
            continue
        if repeated is not None:
            assert repeated.batch in known[-5:]
            continue
        if known:
            assert first == known[-1].last_sequence + 1
        sequences.add(batch, offset, -1)
        stored.setdefault((producer_id, epoch), []).append(batch)
        newest[producer_id] = epoch


def test_numbers_go_on_with_0_after_the_highest():
    """2^31-1 is followed by 0, also inside a batch."""
    sequences = Sequences(10)
    sequences.add(SentBatch(Producer(1, 0), SEQUENCE_END - 2, 3), 0, -1)
    assert sequences.check(SentBatch(Producer(1, 0), 1, 1)) is None
    with pytest.raises(KafkaError, match="the next one is 1"):
        sequences.check(SentBatch(Producer(1, 0), 0, 1))


def test_producers_that_were_silent_for_longest_are_forgotten():
    """Their next batch may have any number; the others are still known."""
    sequences = Sequences(2)
    for producer_id in (1, 2, 1, 3):
        sequences.add(SentBatch(Producer(producer_id, 0), 0, 1), producer_id, -1)
    assert len(sequences) == 2
    assert sequences.check(SentBatch(Producer(2, 0), 77, 1)) is None
    repeated = sequences.check(SentBatch(Producer(1, 0), 0, 1))
    assert repeated is not None
    assert repeated.base_offset == 1

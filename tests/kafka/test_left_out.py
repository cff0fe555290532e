"""Fetches of clients that have not fetched all of their partitions yet."""

from __future__ import annotations

from kafka.protocol.consumer import FetchRequest

from pulsemark.kafka.left_out import FIRST_WAIT_MS, MAX_WAIT_MS, REMEMBERED_S, LeftOut
from pulsemark.kafka.reading import Asked, Read
from pulsemark.testing.raw_kafka import fetch_fields

from .conftest import create, record_set, records_of

LONG_MS = 20_000


def asked_for(*indexes):
    """Partitions of a request."""
    return [Asked("t", index, 0, 1, -1) for index in indexes]


def left_out(*indexes):
    """After an answer that leaves out some of the partitions 0 to 3."""
    made = LeftOut()
    reads = [Read(parts=[b"x"], has_more=index in indexes) for index in range(4)]
    made.answered(asked_for(*range(4)), reads, 0.0)
    return made


def test_a_fetch_that_asks_for_all_that_was_left_out_waits_as_long_as_it_says():
    """Also one after an answer that left out nothing."""
    assert left_out().wait_ms(asked_for(0), LONG_MS, 0.0) == LONG_MS
    assert left_out(1, 2).wait_ms(asked_for(0, 1, 2), LONG_MS, 0.0) == LONG_MS


def test_short_waits_grow_and_end():
    """A client that has not asked for what was left out by then has paused it."""
    made, waits = left_out(3), []
    for number in range(10):
        waits.append(made.wait_ms(asked_for(0, 1), 500, 0.01 * number))
        made.answered(asked_for(0, 1), [Read(), Read()], 0.01 * number)
    assert (waits[0], waits[-1]) == (FIRST_WAIT_MS, MAX_WAIT_MS)
    assert waits == sorted(waits)
    assert made.wait_ms(asked_for(0, 1), 30, 1.0) == 30
    assert made.wait_ms(asked_for(0, 1), 500, REMEMBERED_S + 1) == 500


def test_records_that_come_meanwhile_do_not_make_short_waits_last_longer():
    """But the next wait is the shortest again."""
    made = left_out(3)
    for number in range(5):
        made.wait_ms(asked_for(0), LONG_MS, 0.01 * number)
    made.answered(asked_for(0), [Read(parts=[b"x"])], REMEMBERED_S - 1)
    assert made.wait_ms(asked_for(0), LONG_MS, REMEMBERED_S - 1) == FIRST_WAIT_MS
    assert made.wait_ms(asked_for(0), LONG_MS, REMEMBERED_S + 1) == LONG_MS


def test_a_client_that_reads_part_by_part_never_waits_for_its_time_to_be_over(raw, topic):
    """As Kafka's Java client: it fetches used up partitions while it still has to fetch others."""
    create(raw, topic, partitions=4)
    for partition in range(4):
        raw.produce(topic, record_set([b"%d" % partition * 1_000]), partition=partition)
    size = len(record_set([b"0" * 1_000]))
    found: list[bytes] = []
    offsets = dict.fromkeys(range(4), 0)

    def fetch(partitions):
        asked = [(topic, index, offsets[index], 1 << 20, -1) for index in partitions]
        answer = raw.call(FetchRequest, 11, **fetch_fields(asked, 10 * LONG_MS, 1, 2 * size))
        for part in answer.responses[0].partitions:
            got = records_of(part.records)
            offsets[part.partition_index] += len(got)
            found.extend(value[:1] for _, value in got)

    while len(found) < 4:
        fetch(range(4))
        used_up = [index for index, offset in offsets.items() if offset]
        if len(found) < 4:
            before = len(found)
            fetch(used_up)  # answered without records, or it would wait for longer than the test
            assert len(found) == before
    assert sorted(found) == [b"0", b"1", b"2", b"3"]

"""Large requests: received in place, handed on without a copy, in memory that is used again."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.metadata import ApiVersionsRequest
from kafka.protocol.producer import ProduceRequest

from pulsemark.kafka.errors import ProtocolError
from pulsemark.kafka.protocol import BLOCK_BYTES, BLOCKS, LARGE_BYTES, Connection, Memory
from pulsemark.testing.raw_kafka import produce_fields

LIMIT = 1 << 24


def produce_frame(records, correlation_id=1):
    """A Produce request's bytes."""
    made = ProduceRequest(version=7, **produce_fields([("t", 0, records)], -1))
    made.with_header(correlation_id, "test")
    return made.encode(header=True, framed=True)


def small_frame(correlation_id):
    """An ApiVersions request's bytes."""
    made = ApiVersionsRequest(version=0)
    made.with_header(correlation_id, "test")
    return made.encode(header=True, framed=True)


def records_of(request):
    """The records of a request with one set."""
    return request.body.topic_data[0].partition_data[0].records


def taken(connection):
    """All complete requests."""
    return list(iter(connection.take, None))


def arrive(connection, data):
    """Receive as a socket does: as much as there is room for, then requests are taken."""
    requests = []
    rest = memoryview(data)
    while rest:
        room = connection.get_buffer()
        size = min(len(room), len(rest))
        room[:size] = rest[:size]
        connection.buffer_updated(size)
        requests += taken(connection)
        rest = rest[size:]
    return requests


def test_records_of_a_large_request_are_where_they_were_received():
    """Of a megabyte only what came before its size was known is copied, and nothing after."""
    memory = Memory()
    connection = Connection(LIMIT, memory)
    sent = bytes(range(256)) * 4_000
    frame = produce_frame(sent)
    connection.receive(frame[:100])
    room = connection.get_buffer()
    assert len(room) == len(frame) - 100
    room[:] = frame[100:]
    connection.buffer_updated(len(room))
    (request,) = taken(connection)
    records = records_of(request)
    assert isinstance(records, memoryview)
    assert records.obj is room.obj
    assert records == sent


LARGE = produce_frame(b"a" * 70_000, 2)
STREAM = (
    small_frame(1)
    + LARGE
    + produce_frame(b"b" * 300_000, 3)
    + small_frame(4)
    + produce_frame(b"c" * 10, 5)
    + produce_frame(b"d" * (BLOCK_BYTES + 5_000), 6)
    + small_frame(7)
)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, len(STREAM) - 1), max_size=12), st.booleans())
def test_any_cut_of_large_and_small_requests_gives_the_same_requests(cuts, takes_between):
    """Requests are the same however they arrive, also if none is taken for a while."""
    connection = Connection(LIMIT)
    requests = []
    for start, end in itertools.pairwise([0, *sorted(set(cuts)), len(STREAM)]):
        connection.receive(STREAM[start:end])
        if takes_between:
            requests += taken(connection)
    requests += taken(connection)
    assert [request.correlation_id for request in requests] == [1, 2, 3, 4, 5, 6, 7]
    sets = [bytes(records_of(requests[number])) for number in (1, 2, 4, 5)]
    assert [(set(each), len(each)) for each in sets] == [
        (set(b"a"), 70_000), (set(b"b"), 300_000), (set(b"c"), 10), (set(b"d"), BLOCK_BYTES + 5_000)
    ]  # fmt: skip
    assert connection.pending_bytes == 0


def test_memory_is_used_again_only_when_nothing_refers_to_it():
    """A request that is kept keeps its bytes; the memory of one that is done is the next one's."""
    memory = Memory()
    connection = Connection(LIMIT, memory)
    (kept,) = arrive(connection, produce_frame(b"k" * 500_000))
    connection.answer(kept, ())
    for number in range(5):
        (request,) = arrive(connection, produce_frame(b"%d" % number * 500_000))
        assert records_of(request) == b"%d" % number * 500_000
        connection.answer(request, ())
        del request
    assert memory.block_bytes == 2 * BLOCK_BYTES
    assert records_of(kept) == b"k" * 500_000


def test_large_sizes_alone_reserve_no_more_than_the_blocks():
    """Heads of requests that never come reserve a bounded sum, and each what it sent, fourfold."""
    memory = Memory()
    connections = [Connection(LIMIT, memory) for _ in range(BLOCKS + 20)]
    rooms = []
    for connection in connections:
        connection.receive(LARGE[:1_000])
        rooms.append(connection.get_buffer())
    assert memory.block_bytes == BLOCKS * BLOCK_BYTES
    assert {len(room) for room in rooms[BLOCKS:]} == {3_000}


def test_memory_that_is_not_needed_is_freed():
    """After a burst the blocks go in a few steps, and those in use stay valid."""
    memory = Memory()
    requests = [
        arrive(Connection(LIMIT, memory), produce_frame(b"%d" % n * 400_000))[0] for n in range(8)
    ]
    assert memory.block_bytes == 8 * BLOCK_BYTES
    kept = requests[0]
    del requests
    for _ in range(10):
        memory.trim()
    assert memory.block_bytes <= BLOCK_BYTES
    assert records_of(kept) == b"0" * 400_000


def test_a_large_request_is_refused_if_the_credentials_expired_while_it_came():
    """Whether the client may send it is asked when it is complete, too."""
    connection = Connection(LIMIT)
    assert arrive(connection, LARGE[: LARGE_BYTES + 10]) == []
    connection.is_admitted = False
    connection.receive(LARGE[LARGE_BYTES + 10 :])
    with pytest.raises(ProtocolError, match="before the client was authenticated"):
        connection.take()

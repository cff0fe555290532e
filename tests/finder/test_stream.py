"""ReadEntries' answer, packed and unpacked without a network."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pulsemark.finder import SeekClient, stream
from pulsemark.finder.errors import ServerFullError, StreamStalledError
from pulsemark.finder.messages import EntryAssembler
from pulsemark.finder.rpc import position_of
from pulsemark.finder.server import ServerOptions
from pulsemark.finder.stream import ReadPlan, StreamSlots, entry_responses
from pulsemark.ledger import EARLIEST, CorruptEntryError, Position
from pulsemark.proto import seek_pb2 as pb

SIZES = [0, 1, 63, 64, 65, 127, 128, 129, 1000, 5, 5, 5, 5, 64, 64, 640]


@pytest.fixture
def topic(topics, monkeypatch):
    """A topic with bodies around a piece size of 64 bytes, in two ledgers."""
    monkeypatch.setattr(stream, "PIECE_BYTES", 64)
    monkeypatch.setattr(stream, "READ_BYTES", 300)
    monkeypatch.setattr(stream, "READ_ENTRIES", 3)
    bodies = [bytes([n + 1]) * size for n, size in enumerate(SIZES)]
    log = topics.fill(bodies[:9], message_count=3)
    log.roll()
    topics.fill(bodies[9:], message_count=3)
    return log


def all_entries(log):
    """Every entry, by the log's own reading."""
    entries, place = [], EARLIEST
    while part := log.read(place):
        entries += part
        place = Position(part[-1].position.ledger_id, part[-1].position.entry_id + 1)
    return entries


def unpack(responses, prefixes_only=False):
    """The entries in responses."""
    assembler = EntryAssembler(prefixes_only=prefixes_only)
    entries = [assembler.add(piece) for response in responses for piece in response.pieces]
    assert not assembler.incomplete
    return [entry for entry in entries if entry is not None]


def plan(start=EARLIEST, end=None, max_entries=None, prefixes_only=False):
    """A ReadPlan with defaults."""
    return ReadPlan(start, end, max_entries, prefixes_only)


def test_all_entries_come_whole_in_small_messages(topic):
    """Bodies of every size around the piece size arrive as stored, none in a larger message."""
    responses = list(entry_responses(topic, plan()))
    entries = unpack(responses)
    expected = all_entries(topic)
    assert len(expected) == len(SIZES)
    assert [(e.position, e.body, e.prefix) for e in entries] == [
        (e.position, bytes(e.body), bytes(e.prefix)) for e in expected
    ]
    assert [(e.first_index, e.index, e.message_count) for e in entries] == [
        (e.first_index, e.index, e.message_count) for e in expected
    ]
    assert max(sum(len(p.body) for p in r.pieces) for r in responses) == 64
    assert responses[-1].end
    assert position_of(responses[-1].next_position) == topic.end_position


def test_small_entries_share_a_message(topics):
    """A message for each of a thousand small entries would cost more than the entries."""
    log = topics.fill([b"x" * 100] * 1000)
    responses = list(entry_responses(log, plan()))
    assert sum(len(r.pieces) for r in responses) == 1000
    assert len(responses) < 10


def test_prefixes_come_without_bodies(topic):
    """Prefixes only: the same entries with all their facts, and no byte of a body."""
    whole = unpack(entry_responses(topic, plan()))
    responses = list(entry_responses(topic, plan(prefixes_only=True)))
    assert all(piece.body == b"" for response in responses for piece in response.pieces)
    bare = unpack(responses, prefixes_only=True)
    assert [e.body_size_bytes for e in bare] == SIZES
    for one, other in zip(whole, bare, strict=True):
        assert (one.position, one.prefix, one.index, one.time_ms, one.append_time_ms) == (
            (other.position, other.prefix, other.index, other.time_ms, other.append_time_ms)
        )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    start=st.integers(0, len(SIZES)),
    end=st.integers(0, len(SIZES)) | st.none(),
    limit=st.integers(1, len(SIZES) + 1) | st.none(),
    prefixes_only=st.booleans(),
)
def test_any_window_of_the_topic_can_be_read(topic, start, end, limit, prefixes_only):
    """Start, end and number of entries cut the list as Python slices do, and a further call from
    `next_position` goes on without gap or repetition.
    """
    expected = all_entries(topic)
    places = [e.position for e in expected] + [topic.end_position]
    last = places[end] if end is not None else None
    responses = list(entry_responses(topic, plan(places[start], last, limit, prefixes_only)))
    wanted = [e.position for e in expected[start:end]][:limit]
    assert [e.position for e in unpack(responses, prefixes_only)] == wanted
    after = position_of(responses[-1].next_position)
    rest = [e.position for e in all_entries(topic) if e.position >= after]
    assert rest == places[start + len(wanted) : -1]
    assert responses[-1].end == (not rest)


def test_an_empty_topic_is_at_its_end(topics):
    """No entries, one response that says so."""
    log = topics.store.open_topic(topics.ORDERS)
    [response] = entry_responses(log, plan())
    assert (len(response.pieces), response.end) == (0, True)


def test_entries_without_stamp_have_their_publish_time(topics):
    """PIP-70: without a broker time the producer's counts; what has neither, its append time."""
    topics.fill([topics.message(b"a", 1234), b"no message"], stamped=False)
    log = topics.fill([topics.message(b"c", 1234)])
    for prefixes_only in (False, True):
        entries = unpack(entry_responses(log, plan(prefixes_only=prefixes_only)), prefixes_only)
        times = [entry.time_ms for entry in entries]
        assert times == [1234, topics.FIRST_MS + 10, topics.FIRST_MS + 20]
        assert [entry.prefix != b"" for entry in entries] == [False, False, True]
        assert [e.append_time_ms - topics.FIRST_MS for e in entries] == [0, 10, 20]


def test_a_time_beyond_int64_is_the_last_time_there_is(topics):
    """Pulsar's publish time is a uint64 that a producer chooses freely; ours is signed."""
    log = topics.fill([topics.message(b"a", 2**64 - 1)], stamped=False)
    [entry] = unpack(entry_responses(log, plan()))
    assert entry.time_ms == 2**63 - 1


def test_entries_before_a_damaged_one_are_delivered(topics):
    """Damage ends the stream after the last good entry, with its place and where to go on."""
    log = topics.fill([bytes([n]) * 50 for n in range(5)])
    [segment] = log.segments()
    data = bytearray(segment.path.read_bytes())
    data[data.index(bytes([2]) * 50) + 7] ^= 1
    segment.path.write_bytes(data)
    positions = [Position(segment.ledger_id, n) for n in range(5)]
    seen: list[Any] = []
    with pytest.raises(CorruptEntryError) as caught:
        seen.extend(entry for r in entry_responses(log, plan()) for entry in unpack([r]))
    assert [entry.position for entry in seen] == positions[:2]
    assert (caught.value.position, caught.value.next_position) == (positions[2], positions[3])
    rest = unpack(entry_responses(log, plan(caught.value.next_position)))
    assert [entry.position for entry in rest] == positions[3:]


def test_prefixes_do_not_look_at_bodies(topics):
    """With a damaged body the stamps can still be read."""
    log = topics.fill([topics.message(bytes([n]) * 50) for n in range(5)])
    [segment] = log.segments()
    data = bytearray(segment.path.read_bytes())
    data[data.index(bytes([2]) * 50) + 7] ^= 1
    segment.path.write_bytes(data)
    with pytest.raises(CorruptEntryError):
        list(entry_responses(log, plan(Position(segment.ledger_id, 2))))
    bare = unpack(entry_responses(log, plan(prefixes_only=True)), prefixes_only=True)
    assert [entry.index for entry in bare] == list(range(5))


def test_damage_to_a_prefix_ends_a_stream_of_prefixes(topics):
    """A record head that fails its checksum is damage, here as everywhere."""
    log = topics.fill([bytes([n]) * 50 for n in range(5)])
    [segment] = log.segments()
    place = segment.row(2).offset
    data = bytearray(segment.path.read_bytes())
    data[place + 45] ^= 1
    segment.path.write_bytes(data)
    seen: list[Any] = []
    responses = entry_responses(log, plan(prefixes_only=True))
    with pytest.raises(CorruptEntryError) as caught:
        seen.extend(entry for r in responses for entry in unpack([r], prefixes_only=True))
    assert [entry.index for entry in seen] == [0, 1]
    assert caught.value.position.entry_id == 2
    behind = plan(caught.value.next_position, prefixes_only=True)
    rest = unpack(entry_responses(log, behind), prefixes_only=True)
    assert [entry.index for entry in rest] == [3, 4]


def test_entries_appended_meanwhile_are_delivered(topics):
    """The stream ends when it has caught up, not where the topic ended when it began."""
    log = topics.fill([b"a" * (1 << 20)] * 2)
    responses = entry_responses(log, plan())
    first = next(responses)
    topics.fill([b"b"])
    entries = unpack([first, *responses])
    assert [entry.body[:1] for entry in entries] == [b"a", b"a", b"b"]


# -- Places for streams: those that are not read give theirs up


class Receiver:
    """A stream's other side, which reads when the test says so."""

    def __init__(self):
        self.reads = asyncio.Event()

    def peer(self):
        """Each one is a connection of its own."""
        return str(id(self))

    def add_done_callback(self, callback):
        """Remember it."""
        self.done = callback

    async def write(self, message):
        """Return when the receiver reads."""
        await self.reads.wait()


def test_a_stream_that_waits_longest_gives_its_place(monkeypatch):
    """With all places taken by waiting streams a new one gets that of the longest waiting."""
    monkeypatch.setattr(stream, "YIELD_AFTER_S", 0.0)

    async def scenario():
        slots = StreamSlots(2, 30)

        async def stream():
            with slots.open(Receiver()) as slot:
                await slot.write(b"x")

        first = asyncio.create_task(stream())
        await asyncio.sleep(0)
        second = asyncio.create_task(stream())
        await asyncio.sleep(0)
        with slots.open(Receiver()):
            with pytest.raises(StreamStalledError):
                await first
            assert not second.done()
            assert len(slots.waiting) == 1
        second.cancel()

    asyncio.run(scenario())


def test_streams_that_are_read_keep_their_places():
    """A stream that does not wait is not ended: the new call is refused."""

    async def scenario():
        slots = StreamSlots(1, 30)
        receiver = Receiver()
        receiver.reads.set()
        with slots.open(receiver) as slot:
            await slot.write(b"x")
            with pytest.raises(ServerFullError):
                slots.open(Receiver())
        slots.open(Receiver())

    asyncio.run(scenario())


def test_an_unread_stream_is_ended():
    """After the timeout the write raises, and the place is free for other connections.

    Its own connection gets none before gRPC is rid of the stream.
    """

    async def scenario():
        slots = StreamSlots(1, 0.01)
        receiver = Receiver()
        with pytest.raises(StreamStalledError), slots.open(receiver) as slot:
            await slot.write(b"x")
        with pytest.raises(ServerFullError):
            slots.open(receiver)
        slots.open(Receiver())
        receiver.done(None)
        with pytest.raises(ServerFullError, match="all 1 streams"):
            slots.open(receiver)

    asyncio.run(scenario())


def test_unread_streams_shut_no_client_out(serve, topics, monkeypatch):
    """More streams than there are calls, none of them read: searches and readers are served."""
    monkeypatch.setattr(stream, "YIELD_AFTER_S", 0.01)
    topics.fill([topics.message(bytes(200_000)) for _ in range(60)])
    server = serve(topics, ServerOptions(max_concurrent_calls=8, max_streams=4))
    channels, calls = [], []
    for _ in range(10):
        channel = grpc.insecure_channel(
            server.target, options=(("grpc.use_local_subchannel_pool", 1),)
        )
        read = channel.unary_stream(
            "/pulsemark.seek.v1.SeekService/ReadEntries",
            request_serializer=pb.ReadEntriesRequest.SerializeToString,
            response_deserializer=pb.ReadEntriesResponse.FromString,
        )
        channels.append(channel)
        calls.append(read(pb.ReadEntriesRequest(topic=topics.ORDERS)))
        time.sleep(0.05)
    with SeekClient(server.target) as seek:
        assert seek.by_index(topics.ORDERS, 4).position is not None
        assert len(list(seek.read_entries(topics.ORDERS))) == 60
    for channel in channels:
        channel.close()

"""Places for streams: those that are not read give theirs up."""

from __future__ import annotations

import asyncio
import time

import grpc
import pytest

from pulsemark.finder import SeekClient, stream_slots
from pulsemark.finder.errors import ServerFullError, StreamStalledError
from pulsemark.finder.server import ServerOptions
from pulsemark.finder.stream_slots import StreamSlots
from pulsemark.proto import seek_pb2 as pb


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
    monkeypatch.setattr(stream_slots, "YIELD_AFTER_S", 0.0)

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
    monkeypatch.setattr(stream_slots, "YIELD_AFTER_S", 0.01)
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

"""Very simple senders of prepared SEND frames, so that a broker and its storage are the limit."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from urllib.parse import urlsplit

from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.testing.raw_messages import batched_message, unbatched_message
from pulsemark.wire import commands

ANSWER_LIMIT_S = 90.0
"""So long it waits for an answer: a loaded machine may need many seconds for 1,000 topics."""
TRIES = 200
AGAIN_S = 0.1
_RECEIPT, _PING = pb.BaseCommand.SEND_RECEIPT, pb.BaseCommand.PING
_TYPE_AT = 9
"""Where a frame's command type is: after two sizes and the first field's tag."""


class PublishError(Exception):
    """The broker refused something, or did not answer."""


@dataclass(frozen=True, slots=True)
class Blobs:
    """Prepared frames, joined to pieces that are sent at once."""

    pieces: tuple[bytes, ...]
    frames: int
    """In each piece."""

    @staticmethod
    def of(frames: Sequence[bytes], per_piece: int) -> Blobs:
        """Join so many frames to a piece."""
        places = range(0, len(frames) + 1, per_piece)
        return Blobs(tuple(b"".join(frames[a:b]) for a, b in pairwise(places)), per_piece)


@dataclass(frozen=True, slots=True)
class Published:
    """What was acknowledged, and in how many seconds.

    The first message has a time of ``first_ms`` or later, the last one of ``last_ms`` or later.
    """

    frames: int
    seconds: float
    first_ms: int
    last_ms: int

    @property
    def rate(self) -> float:
        """Frames per second."""
        return self.frames / self.seconds


def plain_frames(topics: int, count: int, size_bytes: int) -> list[bytes]:
    """SENDs of one message each, to producers 0 to ``topics`` - 1 in turns."""
    return [
        b"".join(
            commands.send(
                number % topics,
                number // topics,
                unbatched_message(
                    bytes(size_bytes), publish_time_ms=0, sequence_id=number // topics
                ),
            )
        )
        for number in range(count)
    ]


def batch_frames(count: int, messages: int, size_bytes: int) -> list[bytes]:
    """SENDs of batches, to producer 0."""
    members = [bytes(size_bytes)] * messages
    frames = []
    for number in range(count):
        body = batched_message(members, publish_time_ms=0, sequence_id=number * messages)
        parts = commands.send(0, number * messages, body, num_messages=messages)
        frames.append(b"".join(parts))
    return frames


class PublishingConnection:
    """One connection that counts receipts. Raises PublishError if the broker refuses anything."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._socket = socket.create_connection((address.hostname, address.port), ANSWER_LIMIT_S)
        # TCP_NODELAY, as all clients: their system must not delay what they send.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()
        self.send(commands.connect("bench"))
        self._await(pb.BaseCommand.CONNECTED)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Send frames."""
        self._socket.sendall(data)

    def open_producers(self, topics: Sequence[str]) -> None:
        """Producer n publishes to topic n."""
        for number, topic in enumerate(topics):
            self.send(commands.producer(topic, number, number))
        for _ in topics:
            self._await(pb.BaseCommand.PRODUCER_SUCCESS)

    def receive(self, least: int = 1) -> int:
        """Wait until so many receipts are there at least, and return how many."""
        count = self._receipts()
        while count < least:
            self._receive()
            count += self._receipts()
        return count

    def received_already(self, wait_s: float = 0) -> int:
        """How many receipts have arrived when something does, or when the time is over."""
        if select.select([self._socket], [], [], wait_s)[0]:
            self._receive()
        return self._receipts()

    def _await(self, wanted: int) -> pb.BaseCommand:
        """The next command, which must be of that type."""
        while True:
            for frame in self._frames():
                command = pb.BaseCommand.FromString(frame[8 : 8 + int.from_bytes(frame[4:8])])
                if command.type == wanted:
                    return command
                if command.type != _PING:
                    raise PublishError(f"the broker answered {str(command)[:300]}")
                self.send(commands.PONG)
            self._receive()

    def _frames(self) -> Iterator[bytes]:
        """Complete frames, one after another; each is removed as it is given."""
        while len(self._buffer) >= 4:
            size = int.from_bytes(self._buffer[:4]) + 4
            if len(self._buffer) < size:
                return
            frame = bytes(self._buffer[:size])
            del self._buffer[:size]
            yield frame

    def _receive(self) -> None:
        try:
            data = self._socket.recv(1 << 18)
        except TimeoutError:
            raise PublishError(f"no answer within {ANSWER_LIMIT_S:g} s") from None
        if not data:
            raise PublishError("the broker closed the connection")
        self._buffer += data

    def _receipts(self) -> int:
        """Take the frames that are complete; how many receipts there were."""
        buffer, count, at = self._buffer, 0, 0
        while len(buffer) - at >= 4:
            size = int.from_bytes(buffer[at : at + 4]) + 4
            if len(buffer) - at < size:
                break
            if buffer[at + _TYPE_AT] == _RECEIPT:
                count += 1
            elif buffer[at + _TYPE_AT] == _PING:
                self.send(commands.PONG)
            else:
                raise PublishError(f"a SEND was answered with {bytes(buffer[at : at + 200])!r}")
            at += size
        del buffer[:at]
        return count


class Publisher(PublishingConnection):
    """A sender for a broker of a cluster, which publishes for a time."""

    def open_producers(self, topics: Sequence[str]) -> None:
        """Look all topics up, so that the broker owns them; then producer n is that of topic n."""
        for number, topic in enumerate(topics):
            self._look_up(topic, number)
        super().open_producers(topics)

    def _look_up(self, topic: str, number: int) -> None:
        for _ in range(TRIES):
            self.send(commands.lookup(topic, number, authoritative=True))
            answer = self._await(pb.BaseCommand.LOOKUP_RESPONSE).lookupTopicResponse
            if answer.response == pb.CommandLookupTopicResponse.Connect:
                return
            time.sleep(AGAIN_S)  # the broker has just started, or its bundle is on the way
        raise PublishError(f"{topic}: {answer.message or 'redirected'}")

    def publish(self, blobs: Blobs, *, window: int, seconds: float, most: int) -> Published:
        """Send in turns for so many seconds, at most ``most`` frames, ``window`` unanswered."""
        sent = received = turn = 0
        first_ms, began_s = int(time.time() * 1000), time.perf_counter()
        last_ms = first_ms
        while sent < most and time.perf_counter() - began_s < seconds:
            last_ms = int(time.time() * 1000)
            while sent < most and sent - received <= window - blobs.frames:
                self.send(blobs.pieces[turn % len(blobs.pieces)])
                sent += blobs.frames
                turn += 1
            received += self.receive()
        while received < sent:
            received += self.receive()
        taken_s = time.perf_counter() - began_s
        return Published(received, taken_s, first_ms, last_ms)

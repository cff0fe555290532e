"""The cost of a command: reading and writing frequent frames, compared with protobuf's C parser.

    python bench/bench_wire.py [--rounds N]

Reading: a stream of frames goes through a Connection as asyncio feeds it (get_buffer, a copy of
what the kernel would write, buffer_updated, events). The peer is the shortest loop with upb that
finds the same fields, checks nothing, and has all bytes in one buffer (they are copied there, too).
Writing: one of our builders, compared with a BaseCommand by upb in a frame. The ratio is upb's time
divided by ours. Both sides take turns. Times are the median of all rounds with the lowest and the
highest, in nanoseconds per frame.
"""

from __future__ import annotations

import argparse
import struct
from collections import deque
from collections.abc import Callable

from report import Figure, lower, show
from rounds import add_rounds, in_turns, ns_of

from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.wire import Connection, Role, commands

FRAMES = 5_000
LARGE_FRAMES = 200
READ_SIZE_BYTES = 64 * 1024
LEDGER_ID = 17
FIRST_ID = 1_000_000

_SIZES = struct.Struct(">II")
_T = pb.BaseCommand.Type
_HELLO = {
    Role.SERVER: commands.connect("bench"),
    Role.CLIENT: commands.connected("bench", 21, 5 * 1024 * 1024),
}


def read_with_connection(role: Role, stream: bytes) -> int:
    """How many events `stream` is, received in pieces of READ_SIZE_BYTES."""
    connection = Connection(role)
    connection.receive_data(_HELLO[role])
    deque(connection.events(), maxlen=0)
    source = memoryview(stream)
    count = at = 0
    while at < len(source):
        room = connection.get_buffer()
        size = min(len(room), len(source) - at, READ_SIZE_BYTES)
        room[:size] = source[at : at + size]
        connection.buffer_updated(size)
        at += size
        for _ in connection.events():
            count += 1
    return count


def read_with_upb(role: Role, stream: bytes) -> int:
    """The same frames, trusting every size, from one buffer that is large enough for all."""
    field = "send" if role is Role.SERVER else "message"
    source = memoryview(bytearray(stream))
    count = at = 0
    while at < len(source):
        total, size = _SIZES.unpack_from(source, at)
        body = getattr(pb.BaseCommand.FromString(bytes(source[at + 8 : at + 8 + size])), field)
        found = (body, source[at + 8 + size : at + 4 + total])
        at += 4 + total
        count += len(found) // 2
    return count


def upb_frame(command: pb.BaseCommand, payload_size_bytes: int = 0) -> bytes:
    """A frame's bytes up to its payload, by upb."""
    data = command.SerializeToString()
    return _SIZES.pack(len(data) + 4 + payload_size_bytes, len(data)) + data


def upb_receipt(place: int) -> bytes:
    """SEND_RECEIPT by upb."""
    receipt = pb.CommandSendReceipt(
        producer_id=3,
        sequence_id=place,
        message_id=pb.MessageIdData(ledgerId=LEDGER_ID, entryId=place),
        highest_sequence_id=2**64 - 1,
    )
    return upb_frame(pb.BaseCommand(type=_T.SEND_RECEIPT, send_receipt=receipt))


def upb_message(place: int) -> bytes:
    """MESSAGE's header by upb."""
    message = pb.CommandMessage(
        consumer_id=3,
        message_id=pb.MessageIdData(ledgerId=LEDGER_ID, entryId=place, partition=-1),
    )
    return upb_frame(pb.BaseCommand(type=_T.MESSAGE, message=message), 100)


def upb_send(place: int) -> bytes:
    """SEND's header by upb."""
    send = pb.CommandSend(producer_id=3, sequence_id=place)
    return upb_frame(pb.BaseCommand(type=_T.SEND, send=send), 100)


def reading(
    name: str, role: Role, frame: Callable[[int], bytes], rounds: int, frames: int = FRAMES
) -> Figure:
    """One kind of frame, read by both."""
    stream = b"".join(frame(FIRST_ID + number) for number in range(frames))
    if read_with_connection(role, stream) != frames or read_with_upb(role, stream) != frames:
        raise SystemExit(f"{name}: frames were lost")
    mine, peer = in_turns(
        rounds,
        lambda: ns_of(lambda: read_with_connection(role, stream), frames),
        lambda: ns_of(lambda: read_with_upb(role, stream), frames),
    )
    return lower(name, mine, peer, "ns/frame", "upb, unchecked, one buffer")


def writing(
    name: str, ours: Callable[[int], bytes], theirs: Callable[[int], bytes], rounds: int
) -> Figure:
    """One kind of frame, built by both."""
    places = range(FIRST_ID, FIRST_ID + FRAMES)
    if any(ours(place) != theirs(place) for place in places):
        raise SystemExit(f"{name}: the two sides disagree")
    mine, peer = in_turns(
        rounds,
        lambda: ns_of(lambda: deque(map(ours, places), maxlen=0), FRAMES),
        lambda: ns_of(lambda: deque(map(theirs, places), maxlen=0), FRAMES),
    )
    return lower(name, mine, peer, "ns/frame", "upb")


def figures(rounds: int) -> list[Figure]:
    """All of them."""
    small, large = bytes(100), bytes(128 * 1024)

    def send(payload: bytes) -> Callable[[int], bytes]:
        return lambda place: commands.send_header(3, place, len(payload)) + payload

    def message(place: int) -> bytes:
        return b"".join(commands.message_frame(3, LEDGER_ID, place, 0, (), [small]))

    return [
        reading("read SEND, 100 B", Role.SERVER, send(small), rounds),
        reading("read SEND, 128 KiB", Role.SERVER, send(large), rounds, LARGE_FRAMES),
        reading("read MESSAGE, 100 B", Role.CLIENT, message, rounds),
        writing(
            "write SEND_RECEIPT",
            lambda place: commands.send_receipt(3, place, LEDGER_ID, place),
            upb_receipt,
            rounds,
        ),
        writing(
            "write MESSAGE's header",
            lambda place: bytes(commands.message_frame(3, LEDGER_ID, place, 0, (), (small,))[0]),
            upb_message,
            rounds,
        ),
        writing(
            "write SEND's header",
            lambda place: commands.send_header(3, place, 100),
            upb_send,
            rounds,
        ),
    ]


def main() -> None:
    """Print the table and the JSON."""
    parser = argparse.ArgumentParser(description="Measure the wire beside protobuf's parser.")
    add_rounds(parser, 15)
    show("wire", figures(parser.parse_args().rounds))


if __name__ == "__main__":
    main()

"""Fuzzes the wire protocol: a mutated session must give events or ProtocolErrors, in any pieces.

    python campaigns/fuzz_wire.py [--seconds S] [--seed N]

Each case is a session made of the official client's recorded frames and of frames built here,
with some of its bytes changed, dropped, doubled or swapped. It is received whole and in random
pieces, as a server and as a client. Three claims are checked:

1. a Connection raises only ProtocolErrors;
2. the pieces give the same events, and the same end, as the whole;
3. payloads have the same bytes at the end of the session as at their arrival.

A case depends only on its seed. A failure prints the seed, and `--seed` repeats the case.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.wire import (
    Command,
    Connection,
    Event,
    MessageId,
    ProtocolError,
    Role,
    Unsupported,
    commands,
)

RECORDED = (
    Path(__file__).resolve().parent.parent
    / "tests" / "data" / "pulsar-client-3.13.0-frames.json"
)  # fmt: skip
PIECE_MAX_BYTES = 400

Outcome = tuple[list[tuple[object, ...]], str]


class FuzzError(Exception):
    """One of the claims is wrong; `seed` repeats the case."""

    def __init__(self, seed: int, role: Role, stream: bytes, reason: str) -> None:
        super().__init__(f"seed {seed}, {role.value}: {reason}\nstream: {stream.hex()}")
        self.seed = seed
        self.role = role
        self.stream = stream
        self.reason = reason


def corpus() -> dict[Role, list[bytes]]:
    """Good frames for either side."""
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))["frames"]
    entry = bytes(range(200))
    receipts = [commands.send_receipt(1, n, 2, n) for n in (0, 300, 2**63)]
    messages = [b"".join(commands.message_frame(1, 2, n, n, (5,) * n, [entry])) for n in range(3)]
    return {
        Role.SERVER: [bytes.fromhex(frame["frame"]) for frame in recorded],
        Role.CLIENT: [
            commands.connected("fuzz", 21, 5 * 1024 * 1024),
            *receipts,
            *messages,
            commands.error(1, pb.MetadataError, "fuzz"),
            commands.producer_success(2, "p"),
            commands.get_last_message_id_response(3, MessageId(1, 2), MessageId(1, 1)),
            commands.close_consumer(4, commands.NO_REQUEST_ID),
            commands.PING,
        ],
    }


def make_session(chance: random.Random, role: Role, frames: Sequence[bytes]) -> bytes:
    """Some good frames, usually after a handshake, then damaged."""
    session = bytearray()
    if chance.random() < 0.9:
        hello = commands.connect("fuzz") if role is Role.SERVER else frames[0]
        session += hello
    for frame in chance.choices(frames, k=chance.randint(1, 6)):
        session += frame
    for _ in range(chance.choice((0, 1, 1, 2, 5))):
        at = chance.randrange(len(session))
        match chance.randrange(5):
            case 0:
                session[at] = chance.randrange(256)
            case 1:
                session[at] ^= 1 << chance.randrange(8)
            case 2:
                del session[at : at + chance.randint(1, 8)]
            case 3:
                session[at:at] = session[at : at + chance.randint(1, 40)]
            case _:
                session[at : at + 4] = chance.choice((0, 1, 4, 2**31, 2**32 - 1)).to_bytes(4, "big")
        if not session:
            break
    return bytes(session)


def receive(role: Role, stream: bytes, chance: random.Random | None) -> Outcome:
    """All events of `stream`; it is received in pieces if `chance` is given."""
    connection = Connection(role)
    held: list[tuple[Event, bytes]] = []
    end = ""
    at = 0
    try:
        while at < len(stream) and not end:
            room = connection.get_buffer()
            wanted = len(room) if chance is None else chance.randint(1, PIECE_MAX_BYTES)
            size = min(wanted, len(room), len(stream) - at)
            room[:size] = stream[at : at + size]
            connection.buffer_updated(size)
            at += size
            held.extend((event, _payload(event)) for event in connection.events())
    except ProtocolError as error:
        end = f"{type(error).__name__}: {error}"
    if any(_payload(event) != payload for event, payload in held):
        raise AssertionError("a payload was overwritten")
    return [_plain(event) for event, _ in held], end or f"{connection.pending_bytes} pending"


def _payload(event: Event) -> bytes:
    if isinstance(event, Command | Unsupported):
        return b""
    return bytes(event.headers_and_payload)


def _plain(event: Event) -> tuple[object, ...]:
    if isinstance(event, Unsupported):
        return (event.type,)
    body = event.body if isinstance(event, Command) else event.command
    return (type(event).__name__, body.SerializeToString(), _payload(event))


def run_case(seed: int, frames: dict[Role, list[bytes]]) -> None:
    """One case. Raises FuzzError."""
    chance = random.Random(seed)
    for role in Role:
        stream = make_session(chance, role, frames[role])
        try:
            whole = receive(role, stream, None)
            pieces = receive(role, stream, chance)
        except Exception as error:
            raise FuzzError(seed, role, stream, repr(error)) from error
        if whole != pieces:
            raise FuzzError(seed, role, stream, f"pieces differ: {whole[1]} / {pieces[1]}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run cases until the time is over; return 1 if a claim is wrong."""
    parser = argparse.ArgumentParser(description="Fuzz the wire protocol's parser.")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long (30)")
    parser.add_argument("--seed", type=int, help="run this one case only")
    options = parser.parse_args(arguments)
    frames = corpus()
    seed = random.SystemRandom().getrandbits(48) if options.seed is None else options.seed
    deadline = time.monotonic() + options.seconds
    count = 0
    try:
        while True:
            run_case(seed + count, frames)
            count += 1
            if options.seed is not None or time.monotonic() >= deadline:
                break
    except FuzzError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{count} cases from seed {seed}: all held")
    return 0


if __name__ == "__main__":
    sys.exit(main())

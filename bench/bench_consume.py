"""The cost of a delivery in the broker: unbatched messages of 100 B to one Exclusive consumer.

    python bench/bench_consume.py [--messages N] [--rounds N] [--against FOLDER]

The messages are published first. A very simple consumer then takes them all: it only counts MESSAGE
frames, grants permits as clients do (FLOW with half of its queue), and acknowledges them in groups
of so many ids, or not at all. Its peer is the broker of the checkout in FOLDER, in turns with this
one. CPU is the time of all threads of the broker's process. Shown are the median of the rounds, the
lowest and the highest.
"""

from __future__ import annotations

import argparse
import os
import time
from functools import partial
from pathlib import Path

from bench_produce import PREPARED, Sender, rate_and_cpu, running_broker, send_frame
from raw_publisher import PublishError, PublishingConnection
from report import Figure, higher, lower, show
from rounds import add_rounds, in_turns

from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.wire import MessageId, commands

TOPIC = "persistent://public/default/consumed"
QUEUE = 1_000
WINDOW = 8_000
_MESSAGE, _PING = pb.BaseCommand.MESSAGE, pb.BaseCommand.PING
_TYPE_AT = 9
"""Where a frame's command type is: after two sizes and the first field's tag."""


class Consumer(PublishingConnection):
    """A consumer that counts messages."""

    def subscribe(self, name: str) -> None:
        """Open an Exclusive consumer at the topic's first message."""
        self.send(
            commands.subscribe(
                TOPIC, name, 0, 1, initial_position=pb.CommandSubscribe.Earliest, durable=True
            )
        )
        self._await(pb.BaseCommand.SUCCESS)

    def consume(self, messages: int, group: int) -> None:
        """Take so many messages; acknowledge ``group`` of them at once (0: none)."""
        self.send(commands.flow(0, QUEUE))
        received = granted = 0
        held: list[MessageId] = []
        while received < messages:
            self._receive()
            for frame in self._taken():
                received += 1
                if group:
                    size = int.from_bytes(frame[4:8])
                    found = pb.BaseCommand.FromString(frame[8 : 8 + size]).message.message_id
                    held.append(MessageId(found.ledgerId, found.entryId))
                    if len(held) == group:
                        self.send(commands.ack(0, held))
                        held = []
            while received - granted >= QUEUE // 2:
                granted += QUEUE // 2
                self.send(commands.flow(0, QUEUE // 2))

    def _taken(self) -> list[bytes]:
        """Take the frames that are complete."""
        buffer, at = self._buffer, 0
        frames: list[bytes] = []
        while len(buffer) - at >= 4:
            end = at + int.from_bytes(buffer[at : at + 4]) + 4
            if len(buffer) < end:
                break
            if buffer[at + _TYPE_AT] == _MESSAGE:
                frames.append(bytes(buffer[at : at + 64]))
            elif buffer[at + _TYPE_AT] == _PING:
                self.send(commands.PONG)
            else:
                raise PublishError(f"the broker sent {bytes(buffer[at : at + 200])!r}")
            at = end
        del buffer[:at]
        return frames


def run_consumer(url: str, messages: int, group: int, result: object) -> None:
    """The client's process: publishes, and reports the seconds that consuming took."""
    sender = Sender(url)
    sender.open_producers([TOPIC])
    sender.publish([send_frame(0, n) for n in range(PREPARED)], messages, WINDOW)
    sender.close()
    consumer = Consumer(url)
    consumer.subscribe(f"of-{os.getpid()}")
    time.sleep(0.5)  # what the broker does after publishing
    result.send("ready")  # type: ignore[attr-defined]
    start = time.perf_counter()
    consumer.consume(messages, group)
    result.send(time.perf_counter() - start)  # type: ignore[attr-defined]


def measure(messages: int, group: int, sources: Path | None = None) -> tuple[float, float]:
    """Messages per second, and CPU of the broker per message in microseconds; a new broker."""
    with running_broker(sources) as (pid, url):
        return rate_and_cpu(pid, messages, run_consumer, url, messages, group)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--groups", type=int, nargs="+", default=[0, 100], help="ids of an ACK")
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="another checkout")
    add_rounds(parser)
    arguments = parser.parse_args()
    figures: list[Figure] = []
    for group in arguments.groups:
        loads = [partial(measure, arguments.messages, group)]
        if arguments.against is not None:
            loads.append(partial(measure, arguments.messages, group, arguments.against))
        taken = in_turns(arguments.rounds, *loads)
        rates, cpus_us = ([one[at] for one in taken[0]] for at in (0, 1))
        peers = [[one[at] for one in taken[1]] if len(taken) > 1 else None for at in (0, 1)]
        name = f"acknowledged {group} at once" if group else "without acknowledgements"
        for title, make, unit, ours, peer in (
            ("consume 100 B", higher, "messages/s", rates, peers[0]),
            ("CPU of the broker", lower, "us/message", cpus_us, peers[1]),
        ):
            figures.append(make(f"{title}, {name}", ours, peer, unit, "against"))
    show("consuming", figures)


if __name__ == "__main__":
    main()

"""Ask a topic for moments and numbers over gRPC.

    python examples/grpc_seek.py

A store in a temporary folder gets 1,000 batches of ten messages, and a seek server is started on
the folder. A client asks it for the position of a time and of an index, for the number of messages
in a minute, and for these messages. This needs no broker. With a broker
(`BrokerConfig(grpc_port=...)`) the client's part is the same.
"""

from __future__ import annotations

import asyncio
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from pulsemark.finder import IndexOutOfRangeError, SeekClient
from pulsemark.finder.server import folder_server
from pulsemark.ledger import LocalStore
from pulsemark.metadata import StamperChain
from pulsemark.testing import SettableClock

TOPIC = "persistent://public/default/orders"
MONDAY_NOON_MS = int(datetime(2024, 1, 1, 12, tzinfo=UTC).timestamp() * 1000)
SECOND_MS = 1000
MINUTE_MS = 60 * SECOND_MS


def publish(folder: Path) -> None:
    """A thousand batches of ten messages, one each second from Monday noon on."""
    clock = SettableClock(MONDAY_NOON_MS)  # so that the example's hours take no time
    store = LocalStore.open(folder, clock=clock)
    topic = store.open_topic(TOPIC)
    topic.stampers = StamperChain.from_names(["broker-time", "index"])
    for number in range(1000):
        appended = topic.append(f"batch {number}".encode(), message_count=10)
        clock.advance(by_ms=SECOND_MS)
    appended.commit.wait()  # durable
    store.close()


def ask(target: str) -> None:
    """What a client sees."""
    with SeekClient(target) as seek:
        found = seek.by_time(TOPIC, MONDAY_NOON_MS + 5 * MINUTE_MS)
        print(f"12:05 is at {found.position}, from index {found.first_index} on")

        place = seek.by_index(TOPIC, 4321)
        when = datetime.fromtimestamp(place.time_ms / 1000, UTC)
        print(f"index 4321 is message {place.batch_index} of {place.position}, {when:%H:%M:%S}")

        minute = seek.range(TOPIC, MONDAY_NOON_MS + 3 * MINUTE_MS, MONDAY_NOON_MS + 4 * MINUTE_MS)
        print(f"{minute.count} messages came from 12:03 to 12:04")
        entries = seek.read_entries(TOPIC, start=minute.first, end=minute.end, max_entries=2)
        for entry in entries:
            print(f"  {entry.position} {entry.body!r}")

        end = seek.by_time(TOPIC, MONDAY_NOON_MS + 24 * 60 * MINUTE_MS)
        print(f"Tuesday noon has not come: end={end.end}, the next index will be {end.index}")
        try:
            seek.by_index(TOPIC, 10_000)
        except IndexOutOfRangeError as error:
            print(
                f"no index {error.index}: there are {error.first_index} to {error.next_index - 1}"
            )


async def main() -> None:
    """Publish, serve, ask."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "data"
        await asyncio.to_thread(publish, folder)
        async with folder_server(folder) as server:
            await asyncio.to_thread(ask, server.target)


if __name__ == "__main__":
    asyncio.run(main())

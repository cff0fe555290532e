"""Adds and reads of the BookKeeper client on real bookies, 3/3/2: entries a second, CPU of an add.

    python bench/bookkeeper_client_speed.py HOST:PORT

HOST:PORT is ZooKeeper's, of three bookies or more, as started by
`python campaigns/bookkeeper_peer.py start FOLDER`.
Entries are added a hundred at once, or 1 MiB of them, as the engine adds those of a batch.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque

import uvloop

from pulsemark.coordination import connect
from pulsemark.ledger.bookkeeper.client import BookKeeperClient

SIZES = {100: 20_000, 1_024: 20_000, 65_536: 1_000}
AT_ONCE, AT_ONCE_BYTES = 100, 1024 * 1024
WINDOW = 8
"""So many of these are not confirmed."""


async def measure(client: BookKeeperClient, size: int, count: int) -> None:
    """Write and read one ledger, with few entries and bytes unconfirmed."""
    writer = await client.create_ledger()
    part = [(b"x" * size,)] * min(AT_ONCE, AT_ONCE_BYTES // size)
    count -= count % len(part)
    waiting: deque[asyncio.Future[int]] = deque()
    started, cpu_s = time.perf_counter(), time.process_time()
    for _ in range(count // len(part)):
        if len(waiting) == WINDOW:
            await waiting.popleft()
        waiting.append(writer.append_all(part))
    for adds in waiting:
        await adds
    wrote_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu_s
    await writer.close()
    reader = await client.open_ledger(writer.ledger_id)
    started, read = time.perf_counter(), 0
    while read < count:
        read += len(await reader.read(read, count - 1))
    read_s = time.perf_counter() - started
    await client.delete_ledger(writer.ledger_id)
    print(
        f"{size:>6} B: {count / wrote_s:>7.0f} adds/s {count * size / wrote_s / 1e6:>6.1f} MB/s, "
        f"{cpu_s / count * 1e6:>5.1f} us of CPU an add, {count / read_s:>7.0f} reads/s"
    )


async def main(zookeeper: str) -> None:
    """All sizes."""
    session = await connect(zookeeper, session_timeout_ms=10_000)
    client = BookKeeperClient(session)
    for size, count in SIZES.items():
        await measure(client, size, count)
    await client.close()
    await session.close()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        print("skipped: name the ZooKeeper of three bookies as HOST:PORT")
        sys.exit(0)
    uvloop.run(main(sys.argv[1]))

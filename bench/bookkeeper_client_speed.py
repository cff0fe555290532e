"""Adds and reads of the BookKeeper client on real bookies, 3/3/2: entries a second, in one run.

    python bench/bookkeeper_client_speed.py HOST:PORT

HOST:PORT is ZooKeeper's, of three bookies or more (`python tools/bookkeeper_peer.py start FOLDER`).
"""

from __future__ import annotations

import asyncio
import sys
import time

import uvloop

from pulsemark.coordination import connect
from pulsemark.ledger.bookkeeper.client import BookKeeperClient

SIZES = {100: 20_000, 1_024: 20_000, 65_536: 1_000}
WINDOW_BYTES = 8 * 1024 * 1024
WINDOW_ENTRIES = 2_000


async def measure(client: BookKeeperClient, size: int, count: int) -> None:
    """Write and read one ledger, with few entries and bytes unconfirmed."""
    writer = await client.create_ledger()
    payload, window = b"x" * size, asyncio.Semaphore(min(WINDOW_ENTRIES, WINDOW_BYTES // size))
    started = time.perf_counter()
    for _ in range(count):
        await window.acquire()
        last = writer.append(payload)
        last.add_done_callback(lambda done: window.release())
    await last
    wrote_s = time.perf_counter() - started
    await writer.close()
    reader = await client.open_ledger(writer.ledger_id)
    started, read = time.perf_counter(), 0
    while read < count:
        read += len(await reader.read(read, count - 1))
    read_s = time.perf_counter() - started
    await client.delete_ledger(writer.ledger_id)
    print(
        f"{size:>6} B: {count / wrote_s:>7.0f} adds/s {count * size / wrote_s / 1e6:>6.1f} MB/s, "
        f"{count / read_s:>7.0f} reads/s"
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

"""BookKeeper's AutoRecovery copies our ledgers after a bookie died, and we read the copies.

    python tools/bookkeeper_autorecovery.py

Starts ZooKeeper, three bookies and AutoRecovery in a folder of its own (needs Java), writes one
closed ledger and leaves one open, both on two bookies, kills a bookie of theirs, and waits until
no ensemble names it any more. Ends with 1 if an entry is missing or a copy was not made in time.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

from bookkeeper_peer import BookKeeperPeer, missing

from pulsemark.coordination import connect
from pulsemark.ledger.bookkeeper.client import BookKeeperClient, LedgerWriter

LIMIT_S = 180
PAYLOADS = [b"entry %d" % number for number in range(50)]


async def write(client: BookKeeperClient) -> LedgerWriter:
    """A ledger with all payloads on two bookies."""
    writer = await client.create_ledger(ensemble_size=2, write_quorum_size=2, ack_quorum_size=2)
    await asyncio.gather(*map(writer.append, PAYLOADS))
    return writer


async def run(peer: BookKeeperPeer) -> int:
    """The whole check."""
    session = await connect(peer.zookeeper, session_timeout_ms=10_000)
    client = BookKeeperClient(session)
    async with asyncio.timeout(LIMIT_S):
        while len(await client.writable_bookies()) < 3:  # noqa: ASYNC110 - they register by themselves
            await asyncio.sleep(0.1)
    closed, left_open = await write(client), await write(client)
    await closed.close()
    ledgers = [closed.ledger_id, left_open.ledger_id]
    victim = closed.metadata.last_segment.bookies[0]
    name = next(one for one in peer.bookies if peer.address(one) == victim)
    for ledger_id in ledgers:
        print(f"ledger {ledger_id}: {(await client.metadata(ledger_id)).segments}")
    print(f"killed {name}, {victim}")
    peer.kill(name)
    started = time.monotonic()
    for ledger_id in ledgers:
        while victim in (metadata := await client.metadata(ledger_id)).last_segment.bookies:
            if time.monotonic() - started > LIMIT_S:
                print(f"ledger {ledger_id} still names {victim} after {LIMIT_S} s")
                return 1
            await asyncio.sleep(0.5)
        print(f"{time.monotonic() - started:.0f} s: {metadata.state.name} {metadata.segments}")
        reader = await client.open_ledger(ledger_id)
        payloads = [one.payload for one in await reader.read(0, reader.last_confirmed)]
        print(
            f"ledger {ledger_id}: {len(payloads)} entries read, state {reader.metadata.state.name}"
        )
        if payloads != PAYLOADS:
            return 1
    await client.close()
    await session.close()
    return 0


def main() -> int:
    """Command line."""
    if (reason := missing()) is not None:
        print(reason)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        peer = BookKeeperPeer(Path(folder))
        try:
            peer.start(3, autorecovery=True)
            return asyncio.run(run(peer))
        finally:
            peer.stop()


if __name__ == "__main__":
    sys.exit(main())

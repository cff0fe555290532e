"""Record what a real Apache Pulsar keeps of a topic in ZooKeeper and BookKeeper, as a golden file.

    python tools/record_pulsar_ledgers.py zk://HOST:2181/ledgers TOPIC FILE.json

The broker need not know of it: nothing is recovered or fenced. Each ledger is recorded with its
confirmed entries, each entry with the ledger's length up to it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from pulsemark.coordination import connect
from pulsemark.ledger.bookkeeper.address import StoreAddress
from pulsemark.ledger.bookkeeper.client import BookKeeperClient
from pulsemark.ledger.bookkeeper.pulsar_nodes import ledger_info, topic_path


async def record(address: str, topic: str) -> dict[str, object]:
    """Nodes and entries, in hexadecimal."""
    where = StoreAddress.parse(address)
    coordination = await connect(where.hosts)
    client = BookKeeperClient(coordination, where.ledgers_root)
    try:
        path = topic_path(topic)
        data = (await coordination.get(path)).data
        nodes = {path: data.hex()}
        for child in await coordination.children(path):
            nodes[f"{path}/{child}"] = (await coordination.get(f"{path}/{child}")).data.hex()
        ledgers = {}
        for info in ledger_info(path, data).ledgers:
            reader = await client.open_ledger_no_recovery(info.ledger_id)
            last = reader.last_confirmed
            entries = await reader.read(0, last) if last >= 0 else []
            ledgers[str(info.ledger_id)] = [[e.length, e.payload.hex()] for e in entries]
        return {"topic": topic, "nodes": nodes, "ledgers": ledgers}
    finally:
        await client.close()
        await coordination.close()


if __name__ == "__main__":
    found = asyncio.run(record(sys.argv[1], sys.argv[2]))
    Path(sys.argv[3]).write_text(json.dumps(found, indent=1) + "\n")

"""Brokers that are killed while they compact, trim and truncate: the old state or the new one.

A few kills are made unless PULSEMARK_KILLS says how many.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request

from pulsemark.ledger import EARLIEST, FolderReader
from pulsemark.maintenance.findings import Severity
from pulsemark.maintenance.verify import verify_folder
from pulsemark.metadata import payload_of
from pulsemark.testing import RawClient

NAME = "persistent://public/default/prices"
PATH = "/admin/v2/persistent/public/default/prices"
KILLS = int(os.environ.get("PULSEMARK_KILLS", "8"))
KEYS = 12
MINUTE_S = 60

PROGRAM = """
import asyncio, json, pathlib, sys, time
from pulsemark.broker import Broker, BrokerConfig
from pulsemark.ledger import StoreOptions

class Later:
    def now_ms(self):
        return int(time.time() * 1000) + int(sys.argv[2]) * 1000

async def main():
    config = BrokerConfig(
        data_dir=pathlib.Path(sys.argv[1]), port=0, http_port=0, clock=Later(),
        store_options=StoreOptions(segment_size_bytes=2_000, ledger_entries=40),
    )
    async with Broker(config) as broker:
        print(json.dumps([broker.service_url, broker.http_url]), flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def ask(url: str, method: str, body: object = None) -> None:
    """A request whose answer does not matter: the broker may be killed before it comes."""
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, method=method), timeout=20):
        pass


def compacted(client: RawClient) -> dict[str, bytes]:
    """The latest value of each key that a compacted reader gets."""
    reader = client.subscribe(
        NAME, f"r{client.new_id()}", earliest=True, durable=False, read_compacted=True
    )
    last, _ = reader.get_last_message_id()
    found: dict[str, bytes] = {}
    at = None
    while last.entry_id >= 0 and at != last[:2]:
        reader.flow(1)
        message = reader.receive()
        at = message.message_id[:2]
        key, _, value = bytes(payload_of(message.headers_and_payload)).partition(b"=")
        found[key.decode()] = value
    reader.close()
    return found


def test_killed_anywhere(tmp_path):
    """Every key's latest acknowledged message is there after each kill, and the log is sound."""
    chance = random.Random(7)
    expected: dict[str, bytes] = {}
    sent: list[bytes] = []
    for number in range(KILLS):
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path), str(number * 10 * MINUTE_S)],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            service_url, http_url = json.loads(process.stdout.readline())
            url = http_url + PATH
            with RawClient.from_url(service_url) as client:
                producer = client.create_producer(NAME)
                assert compacted(client) == expected
                for _ in range(60):
                    key = f"k{chance.randrange(KEYS)}"
                    value = b"%d" % len(sent)
                    producer.send(key.encode() + b"=" + value, key=key)
                    sent.append(value)
                    expected[key] = value
                # Cleaning takes nothing that compaction does not have, if there was a compaction.
                ask(f"{url}/compaction", "PUT")
                if chance.random() < 0.8:
                    limits = {"retentionTimeInMinutes": 1 + number % 3, "retentionSizeInMB": -1}
                    time.sleep(chance.random() * 0.05)
                    ask(f"{url}/retention", "POST", limits)
                time.sleep(chance.random() * 0.08)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        with FolderReader(tmp_path) as folder:
            entries = folder.log(NAME).read(EARLIEST, max_entries=10**6, max_bytes=1 << 30)
        values = [bytes(payload_of(entry.body)).partition(b"=")[2] for entry in entries]
        assert values == sent[len(sent) - len(values) :]
    assert [f for f in verify_folder(tmp_path) if f.severity >= Severity.DAMAGE] == []

"""The broker's memory while consumers of old versions read new record sets, all at once.

    python bench/bench_kafka_memory.py [--consumers 0 1 10 50] [--share 1.0]

KIP-31's document expects a broker to need much memory when most consumers are old, since sets that
they cannot read are converted in its heap. A topic gets sets of magic 2 (1 MiB of records each,
plain and gzip). Then N connections with Fetch 2, which understand magic 1, read the whole topic at
the same time, and for comparison N with Fetch 11, which get the sets as they are stored. Shown is
the peak of the broker's own memory (without mapped files) above that before, and for one consumer,
each measured once.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kafka.protocol.metadata import MetadataRequest
from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder
from report import lower, show

from pulsemark.testing.raw_kafka import RawKafka

MIB = 1024 * 1024
OLD, NEW = 2, 11
CODECS = {"plain": 0, "gzip": 1}
RECORD_BYTES = 1_000
WAIT_S = 120
SAMPLE_S = 0.005


def record_set(codec: int, number: int) -> bytes:
    """About a megabyte of records, which compress to a tenth."""
    builder = MemoryRecordsBuilder(magic=2, compression_type=codec, batch_size=1 << 24)
    for place in range(1_000):
        noise = os.urandom(RECORD_BYTES // 10)
        value = (b"%d-%d-" % (number, place) + noise).ljust(RECORD_BYTES, b".")
        builder.append(timestamp=place, key=None, value=value)
    builder.close()
    return bytes(builder.buffer())


@contextmanager
def broker(folder: Path) -> Iterator[tuple[str, int]]:
    """Run pulsemark; its Kafka address and process."""
    command = [sys.executable, "-m", "pulsemark", "standalone", "--json", "--port", "0",
               "--http-port", "0", "--kafka-port", "0", "--data-dir", str(folder)]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["kafka_url"], process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(WAIT_S)


def own_bytes(pid: int) -> int:
    """A process' memory without mapped files."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


def read_all(url: str, topic: str, version: int, records: int) -> None:
    """Fetch a topic's records, one fetch after the other."""
    with RawKafka.from_url(url, timeout_s=WAIT_S) as client:
        offset = 0
        while offset < records:
            part = client.fetch(topic, offset, version=version, max_bytes=8 * MIB, max_wait_ms=100)
            found = MemoryRecords(part.records)
            while (batch := found.next_batch()) is not None:
                for record in batch:
                    offset = max(offset, record.offset + 1)


def peak(url: str, pid: int, topic: str, version: int, consumers: int, records: int) -> int:
    """The most memory above that of before, while so many consumers read the topic."""
    before = highest = own_bytes(pid)
    work = (url, topic, version, records)
    threads = [threading.Thread(target=read_all, args=work) for _ in range(consumers)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        highest = max(highest, own_bytes(pid))
        time.sleep(SAMPLE_S)
    return highest - before


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--consumers", type=int, nargs="+", default=[1, 10, 50])
    parser.add_argument("--sets", type=int, default=20)
    parser.add_argument("--share", type=float, default=1.0, help="of the sets, for a try")
    arguments = parser.parse_args()
    sets = max(1, int(arguments.sets * arguments.share))
    rows = []
    with tempfile.TemporaryDirectory() as scratch, broker(Path(scratch) / "data") as (url, pid):
        for name, codec in CODECS.items():
            with RawKafka.from_url(url, timeout_s=WAIT_S) as client:
                wanted = [MetadataRequest.MetadataRequestTopic(name=name)]
                client.call(MetadataRequest, 1, topics=wanted)
                for number in range(sets):
                    assert not client.produce(name, record_set(codec, number)).error_code
            read_all(url, name, OLD, 1_000)  # what is imported and allocated once
            for consumers in arguments.consumers:
                new = peak(url, pid, name, NEW, consumers, sets * 1_000) / MIB
                old = peak(url, pid, name, OLD, consumers, sets * 1_000) / MIB
                what = f"{name}, {consumers} consumers"
                rows.append(lower(f"{what}: as stored", new, None, "MiB above idle"))
                rows.append(lower(f"{what}: converted down", old, None, "MiB above idle"))
    show("Memory of old Kafka consumers", rows)


if __name__ == "__main__":
    main()

"""Fills a disk and frees it again, in cycles, while the official client publishes.

    python campaigns/full_disk_campaign.py --cycles 20

Mounts a file system of 16 MiB in memory (Linux, as root) with a broker's data folder on it. Each
cycle fills the disk while a producer sends. The sends must fail with an error and must not hang,
and all acknowledged messages must stay readable. Then space is freed, and the same producer must
be able to send again. In every second cycle the broker itself frees the space by deleting a topic,
while only its reserve is free. At the end every acknowledged message must exist, and indexes must
have no gap.

Prints a table and one line of JSON. Exit code 1 if something was wrong, 3 if mounting is not
allowed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pulsar

from pulsemark.ledger import EARLIEST, FolderReader, Position
from pulsemark.testing import BrokerProcess

TOPIC = "persistent://public/default/full"
SPARE = "persistent://public/default/spare"
SPARE_MESSAGES = 300
DISK_BYTES = 16 << 20
PAYLOAD_BYTES = 10_000
MAY_NOT_MOUNT = 3
RESUME_WITHIN_S = 5.0
MESSAGES_BETWEEN = 20


@contextmanager
def small_disk(place: Path) -> Iterator[Path]:
    """Mount a small file system."""
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(place)], check=True
    )
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@dataclass
class Campaign:
    """The acknowledged messages, and the problems found."""

    disk: Path
    acked: list[bytes] = field(default_factory=list)
    failed: int = 0
    resume_s: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    _number: int = 0

    def cycle(
        self,
        number: int,
        client: pulsar.Client,
        producer: pulsar.Producer,
        free: Callable[[], None],
    ) -> None:
        """Send, fill the disk, read, free the disk, send again."""
        self._check_read(client, f"cycle {number}")
        for _ in range(MESSAGES_BETWEEN):
            if not self._send(producer):
                self.problems.append(f"cycle {number}: a send failed with space on the disk")
        ballast = self.disk / "ballast"
        with suppress(OSError), ballast.open("wb") as file:
            while True:
                file.write(bytes(64 << 10))
                file.flush()
        for _ in range(2 * DISK_BYTES // PAYLOAD_BYTES):
            if not self._send(producer):
                break
        else:
            self.problems.append(f"cycle {number}: no send failed on a full disk")
        self._check_read(client, f"cycle {number}, disk full")
        free()
        freed = time.monotonic()
        while not self._send(producer):
            if time.monotonic() - freed > RESUME_WITHIN_S:
                break
        self.resume_s.append(time.monotonic() - freed)
        if self.resume_s[-1] > RESUME_WITHIN_S:
            self.problems.append(f"cycle {number}: no write within {RESUME_WITHIN_S} s of space")
        ballast.unlink(missing_ok=True)

    def unlink_ballast(self) -> None:
        """Free the disk by removing a file that is not the broker's."""
        (self.disk / "ballast").unlink()

    def delete_spare(self, http_url: str) -> None:
        """Free the disk by deleting a topic."""
        path = SPARE.replace("://", "/")
        request = urllib.request.Request(f"{http_url}/admin/v2/{path}?force=true", method="DELETE")
        try:
            urllib.request.urlopen(request, timeout=10).close()
        except OSError as error:
            self.problems.append(f"a topic could not be deleted on a full disk: {error}")

    def _send(self, producer: pulsar.Producer) -> bool:
        self._number += 1
        payload = (b"%08d-" % self._number).ljust(PAYLOAD_BYTES, b"x")
        try:
            producer.send(payload)
        except pulsar.PulsarException:
            self.failed += 1
            return False
        self.acked.append(payload[:9])
        return True

    def _check_read(self, client: pulsar.Client, when: str) -> None:
        reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
        got = set()
        try:
            while reader.has_message_available():
                got.add(reader.read_next(5000).data()[:9])
        except pulsar.PulsarException as error:
            self.problems.append(f"{when}: reading failed: {error}")
        finally:
            reader.close()
        for name in set(self.acked) - got:
            self.problems.append(f"{when}: {name!r} was acknowledged and is not read")

    def check_folder(self, folder: Path) -> None:
        """Check that indexes have no gap and every acknowledged message exists."""
        index, place, bodies = 0, EARLIEST, b""
        with FolderReader(folder) as reader:
            log = reader.log(TOPIC)
            while part := log.read(place, max_entries=100):
                for entry in part:
                    if entry.first_index != index:
                        self.problems.append(f"index {entry.first_index}, not {index}")
                    index = entry.index + 1
                    bodies += bytes(entry.body[:200])
                last = part[-1].position
                place = Position(last.ledger_id, last.entry_id + 1)
        for name in self.acked:
            if name not in bodies:
                self.problems.append(f"{name!r} is not in the folder")


def run(cycles: int, disk: Path) -> Campaign:
    """Run all cycles, two on each data folder, so that a small disk is enough."""
    whole = Campaign(disk)
    for number in range(0, cycles, 2):
        campaign = Campaign(disk)
        folder = disk / f"data-{number}"
        broker = BrokerProcess(data_dir=folder)
        broker.start()
        client = pulsar.Client(
            broker.service_url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
        )
        try:
            producer = client.create_producer(TOPIC, send_timeout_millis=1000)
            campaign.cycle(number, client, producer, campaign.unlink_ballast)
            spare = client.create_producer(SPARE)
            for _ in range(SPARE_MESSAGES):
                spare.send(bytes(PAYLOAD_BYTES))
            spare.close()
            campaign.cycle(
                number + 1, client, producer, partial(campaign.delete_spare, broker.http_url)
            )
        finally:
            client.close()
            broker.stop()
        campaign.check_folder(folder)
        subprocess.run(["rm", "-r", str(folder)], check=True)
        whole.acked += campaign.acked
        whole.failed += campaign.failed
        whole.resume_s += campaign.resume_s
        whole.problems += campaign.problems
    return whole


def main() -> int:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cycles", type=int, default=10)
    arguments = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        try:
            with small_disk(Path(temporary)) as disk:
                campaign = run(arguments.cycles, disk)
        except (subprocess.CalledProcessError, FileNotFoundError) as error:
            print(f"cannot mount a file system: {error}", file=sys.stderr)
            return MAY_NOT_MOUNT
    report = {
        "campaign": "full disk under the official client",
        "cycles": len(campaign.resume_s),
        "acknowledged": len(campaign.acked),
        "failed_sends": campaign.failed,
        "problems": len(campaign.problems),
        "resume_s_median": round(sorted(campaign.resume_s)[len(campaign.resume_s) // 2], 3),
        "resume_s_max": round(max(campaign.resume_s), 3),
        "seconds": round(time.monotonic() - began, 1),
    }
    for name, value in report.items():
        print(f"{name:18} {value}")
    for problem in campaign.problems[:20]:
        print(problem, file=sys.stderr)
    print(json.dumps({**report, "found": campaign.problems[:20]}))
    return 1 if campaign.problems else 0


if __name__ == "__main__":
    sys.exit(main())

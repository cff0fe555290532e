"""Producers wait for a disk that accepts no writes."""

import asyncio

import pytest

from pulsemark.broker import storage
from pulsemark.broker.errors import RefusedError
from pulsemark.broker.storage import StorageHealth
from pulsemark.proto.pulsar_api_pb2 import ServerError

FULL = OSError(28, "No space left on device")


class Disk:
    """A disk that accepts writes only while a test lets it."""

    def __init__(self, *, works):
        self.works = works
        self.probes = 0
        self.was_probed_thrice = asyncio.Event()

    async def probe(self):
        """Write, or fail."""
        self.probes += 1
        if self.probes == 3:
            self.was_probed_thrice.set()
        if not self.works:
            raise FULL


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(storage, "PROBE_INTERVAL_S", 0.01)
    monkeypatch.setattr(storage, "WAIT_MAX_S", 0.2)


async def test_no_producer_waits_while_writes_succeed():
    """Without a failed append nothing is probed."""
    disk = Disk(works=False)
    health = StorageHealth(disk.probe)
    await health.wait_until_healthy()
    assert (health.is_healthy, disk.probes) == (True, 0)


async def test_producers_go_on_as_soon_as_a_probe_is_written():
    """All that wait are let in by the first probe that succeeds, and no other follows."""
    disk = Disk(works=False)
    health = StorageHealth(disk.probe)
    health.failed(FULL)
    waiting = [asyncio.ensure_future(health.wait_until_healthy()) for _ in range(3)]
    await disk.was_probed_thrice.wait()
    assert not any(task.done() for task in waiting)
    assert not health.is_healthy
    disk.works = True
    await asyncio.gather(*waiting)
    assert health.is_healthy
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_producer_that_waits_too_long_gets_the_reason():
    """A producer is refused with the disk's own error if the disk stays full."""
    health = StorageHealth(Disk(works=False).probe)
    health.failed(FULL)
    with pytest.raises(RefusedError, match="No space left") as refused:
        await health.wait_until_healthy()
    assert refused.value.code == ServerError.PersistenceError
    health.close()


async def test_failures_meanwhile_start_no_second_probing(monkeypatch):
    """However many appends fail, only one probe runs at a time."""
    monkeypatch.setattr(storage, "PROBE_INTERVAL_S", 60)
    disk = Disk(works=False)
    health = StorageHealth(disk.probe)
    for _ in range(10):
        health.failed(FULL)
        await asyncio.sleep(0)
    assert disk.probes == 1
    health.close()

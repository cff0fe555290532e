"""A full disk can be freed: by trimming, by deleting, and by opening the folder to do so."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from pulsemark.ledger import EARLIEST, FencedError, LocalStore, ManagedLedger, StoreOptions
from pulsemark.ledger.errors import CatalogFullError
from pulsemark.ledger.local.io.folder import RESERVE_BYTES, RESERVE_NAME, Reserve
from pulsemark.testing.faulty_files import FaultyFiles

TOPIC = "persistent://public/default/orders"
OTHER = "persistent://public/default/other"
OPTIONS = StoreOptions(segment_size_bytes=200_000, journal_size_bytes=300_000)


# A real file system that is full

DISK_BYTES = 8 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, where the machine lets us mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(place)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("a file system cannot be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill_disk(place: Path) -> None:
    """Leave not one byte."""
    with suppress(OSError), (place / "ballast").open("ab", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    assert os.statvfs(place).f_bfree == 0


def append(topic: ManagedLedger, count: int = 40) -> None:
    """Some 400 KB, durably, unless a count is given."""
    for _ in range(count):
        topic.append(b"x" * 10_000).commit.wait(10)


def fail_to_append(topic: ManagedLedger) -> None:
    """What producers do all the time."""
    with pytest.raises(FencedError):
        topic.append(b"y" * 100_000).commit.wait(10)


@pytest.mark.parametrize("ended", ["open", "closed", "killed"])
@pytest.mark.parametrize("how", ["trim", "truncate_head", "delete_topic"])
def test_full_disk_can_be_freed(disk, ended, how):
    """Entries can be removed on a full disk, also by opening it again; then appends work."""
    folder = disk / "data"
    store = LocalStore.open(folder, options=OPTIONS)
    topic = store.open_topic(TOPIC)
    append(topic)
    append(store.open_topic(OTHER), 1)
    fill_disk(disk)
    if ended == "open":
        fail_to_append(topic)
        fill_disk(disk)
    else:
        if ended == "closed":
            with suppress(OSError):  # what the journal holds stays there
                store.close()
        else:
            killed = shutil.copytree(folder, disk.parent / "killed")
            store.close()
            shutil.rmtree(folder)
            (disk / "ballast").unlink()
            shutil.copytree(killed, folder)
        fill_disk(disk)
        store = LocalStore.open(folder, options=OPTIONS)
        fill_disk(disk)
        topic = store.open_topic(TOPIC)
        fail_to_append(topic)
    fill_disk(disk)
    remove = {
        "trim": lambda: topic.trim(topic.end_position),
        "truncate_head": lambda: topic.truncate_head(topic.end_position),
        "delete_topic": lambda: store.delete_topic(TOPIC),
    }[how]
    remove()
    other = store.open_topic(OTHER)
    other.append(b"after all").commit.wait(10)
    assert (folder / RESERVE_NAME).stat().st_size == RESERVE_BYTES
    store.close()
    with LocalStore.open(folder) as again:
        entries = again.open_topic(OTHER).read(EARLIEST)
        assert [bytes(entry.body[:9]) for entry in entries] == [b"x" * 9, b"after all"]
        assert (TOPIC in again.topic_names()) == (how != "delete_topic")


# Each part by itself


class GivesBack(FaultyFiles):
    """Calls on a reserve that is given back let something be possible again."""

    def __init__(self) -> None:
        super().__init__()
        self.on_give_back = self.heal
        self.given_back = 0

    def ftruncate(self, fd: int, size_bytes: int) -> None:
        """As `Files.ftruncate`; space is free then."""
        super().ftruncate(fd, size_bytes)
        if getattr(self._path(fd), "name", "") == RESERVE_NAME:
            self.given_back += 1
            self.on_give_back()


def test_cut_file_is_written_with_the_reserve(tmp_path):
    """On a full disk, the file of a cut inside a segment is written with space from the reserve."""
    files = GivesBack()
    with LocalStore.open(tmp_path / "data", files=files) as store:
        topic = store.open_topic(TOPIC)
        append(topic, 5)
        files.fail("pwritev", error=errno.ENOSPC, times=None, path_part=".cut")
        assert topic.truncate_head(topic.read(EARLIEST)[3].position) == 3
        assert files.given_back == 1
        assert (store.folder / RESERVE_NAME).stat().st_size == RESERVE_BYTES


def full_catalog(store: LocalStore, files: GivesBack, name: str) -> None:
    """Give a topic so many segments that removing them needs space which the catalog has not."""
    db = store.catalog.db
    topic_id = store.open_topic(name).topic_id
    store.catalog.add_segments((topic_id, 1 << 40, number) for number in range(3000))
    pages = db.execute("PRAGMA page_count").fetchone()[0]
    db.execute(f"PRAGMA max_page_count={pages}")

    def give_space() -> None:
        db.execute("PRAGMA max_page_count=100000")

    files.on_give_back = give_space


def test_catalog_is_changed_with_the_reserve(tmp_path):
    """A topic is deleted though SQLite says that the disk is full."""
    files = GivesBack()
    with LocalStore.open(tmp_path / "data", files=files) as store:
        full_catalog(store, files, TOPIC)
        store.delete_topic(TOPIC)
        assert files.given_back == 1
        assert store.topic_names() == []


def test_deletion_that_fails_leaves_the_topic_as_it_was(tmp_path):
    """Without a reserve the deletion fails; the topic takes appends, also after a restart."""
    files = GivesBack()
    with LocalStore.open(tmp_path / "data", files=files) as store:
        topic = store.open_topic(TOPIC)
        append(topic, 3)
        full_catalog(store, files, TOPIC)
        files.on_give_back = lambda: None
        with pytest.raises(CatalogFullError):
            store.delete_topic(TOPIC)
        assert files.given_back == 4
        ledger_id = topic.ledger_id
        append(topic, 1)
        assert topic.ledger_id == ledger_id
        assert store.open_topic(TOPIC) is topic
        assert not any(segment.removed for segment in topic.segments())
        store.catalog.db.execute("PRAGMA max_page_count=100000")
    with LocalStore.open(tmp_path / "data") as store:
        assert len(store.open_topic(TOPIC).read(EARLIEST)) == 4


def test_nothing_else_uses_the_reserve(tmp_path):
    """A new topic or a property does not take the space that removing needs."""
    files = GivesBack()
    with LocalStore.open(tmp_path / "data", files=files) as store:
        full_catalog(store, files, TOPIC)
        with pytest.raises(CatalogFullError):
            store.catalog.put("kind", "key", bytes(100_000))
        with suppress(CatalogFullError):
            for number in range(1000):
                store.open_topic(f"{OTHER}-{number}".ljust(400, "x"))
        assert 1 < len(store.topic_names()) < 1000
        assert files.given_back == 0
        store.catalog.db.execute("PRAGMA max_page_count=100000")


@pytest.mark.parametrize("before", [None, 0, 1000, RESERVE_BYTES])
def test_reserve_is_whole_after_opening(tmp_path, before):
    """Lost or cut short, the file is filled up; a probe finds no room where that cannot be done."""
    folder = tmp_path / "data"
    LocalStore.open(folder).close()
    place = folder / RESERVE_NAME
    if before is None:
        place.unlink()
    else:
        place.write_bytes(bytes(before))
    files = GivesBack()
    with LocalStore.open(folder, files=files) as store:
        assert place.stat().st_size == RESERVE_BYTES
        assert store.engine._reserve._give_back()
        files.fail("pwritev", error=errno.ENOSPC, times=None, path_part=RESERVE_NAME)
        with pytest.raises(OSError, match="No space"):
            store.probe()
        files.heal()
        store.probe()
        assert place.stat().st_size == RESERVE_BYTES


def test_only_a_full_disk_uses_the_reserve(tmp_path):
    """Any other error is raised, and the reserve keeps its size."""
    reserve = Reserve(FaultyFiles(), tmp_path)
    reserve.fill_up()

    def fail() -> None:
        raise OSError(errno.EIO, "broken")

    with pytest.raises(OSError, match="broken"):
        reserve.with_space_for(fail)
    assert (tmp_path / RESERVE_NAME).stat().st_size == RESERVE_BYTES

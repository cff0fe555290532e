"""A backup of a data folder, in use and not in use, and what is restored of it."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from pulsemark.cluster.supervisor import WorkersFolder
from pulsemark.ledger import EARLIEST, CatalogError, FolderReader, LocalStore, StoreOptions
from pulsemark.ledger.local.catalog import Catalog
from pulsemark.maintenance.backup import (
    MANIFEST_NAME,
    BackupDamagedError,
    RestlessFolderError,
    TargetError,
    back_up,
    fill_at_once,
    restore,
)
from pulsemark.maintenance.findings import Severity
from pulsemark.maintenance.rebuild import rebuild_catalog
from pulsemark.maintenance.verify import verify_folder
from pulsemark.metadata import MessageMetadata, StamperChain, pack_message
from pulsemark.testing import BrokerProcess

NAMES = [f"persistent://public/default/t{number}" for number in range(3)]


def body(text: str) -> bytes:
    """An entry as a producer sends it."""
    return pack_message(
        MessageMetadata(producer_name="p", sequence_id=1, publish_time=1), text.encode()
    )


def bodies(folder: Path, topic: str) -> list[bytes]:
    """All entries of a topic."""
    with FolderReader(folder) as reader:
        log = reader.log(topic)
        assert log.first_position is not None
        return [
            bytes(each.body)
            for each in log.read(log.first_position, max_entries=10**6, max_bytes=1 << 30)
        ]


def names(folder: Path) -> list[str]:
    """What is in a folder."""
    return sorted(path.name for path in folder.iterdir())


def is_clean(folder: Path) -> bool:
    """Whether `verify` finds neither damage nor leftovers."""
    found = [each for each in verify_folder(folder) if each.severity is not Severity.NOTE]
    assert found == []
    return True


@pytest.fixture
def store(tmp_path):
    """A store in use, with small segments and three topics with entries and a subscription."""
    options = StoreOptions(segment_size_bytes=64 * 1024)
    with LocalStore.open(tmp_path / "data", options=options) as opened:
        for name in NAMES:
            ledger = opened.open_topic(name)
            ledger.stampers = StamperChain.from_names(["broker-time", "index"])
            for number in range(20):
                ledger.append(body(f"{name} {number}")).commit.wait(10)
        yield opened


def grow(store: LocalStore, name: str, text: str, count: int = 1, size: int = 0) -> None:
    """Append entries, and wait until they are acknowledged."""
    ledger = store.open_topic(name)
    for number in range(count):
        commit = ledger.append(body(f"{text} {number} {'x' * size}")).commit
    commit.wait(10)


class Meanwhile:
    """Does something while a backup copies: at its n-th piece."""

    def __init__(self, work, at: int = 1) -> None:
        self._work, self._left = work, at

    def __call__(self, _size: int) -> None:
        """Called with each piece."""
        self._left -= 1
        if self._left == 0:
            self._work()


@pytest.mark.parametrize("has_lock_file", [True, False])
def test_a_folder_in_use_is_copied_with_all_that_was_acknowledged(store, tmp_path, has_lock_file):
    """A backup beside the owner has every entry, is clean, and opens as a store."""
    if not has_lock_file:
        (store.folder / "LOCK").unlink()
    before = {name: bodies(store.folder, name) for name in NAMES}
    report = back_up(store.folder, tmp_path / "backup")
    assert report.was_in_use
    assert report.topics == len(NAMES)
    assert is_clean(tmp_path / "backup")
    assert {name: bodies(tmp_path / "backup", name) for name in NAMES} == before


@pytest.mark.parametrize("is_in_use", [True, False])
def test_copies_and_new_catalogs_are_for_their_user_only(store, tmp_path, is_in_use):
    """Backup, what is restored of it, and a catalog made again are readable for nobody else."""
    before = os.umask(0)
    try:
        ledger = store.open_topic(NAMES[0])
        ledger.truncate_head(ledger.read(EARLIEST)[3].position)
        if not is_in_use:
            store.close()
        back_up(store.folder, tmp_path / "backup")
        restore(tmp_path / "backup", tmp_path / "restored")
        rebuild_catalog(tmp_path / "restored")
    finally:
        os.umask(before)
    for folder in (tmp_path / "backup", tmp_path / "restored"):
        for path in (folder, *folder.rglob("*")):
            wanted = 0o700 if path.is_dir() else 0o600
            assert (path.name, stat.S_IMODE(path.stat().st_mode)) == (path.name, wanted)


def fills_at(monkeypatch, limit_bytes, *, step):
    """From a step of the backup on, no file may grow beyond a limit."""

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, resource.RLIM_INFINITY))

    if step == "at once":
        limit()
        return
    close = Catalog.close

    def close_and_limit(catalog):
        close(catalog)
        limit()

    monkeypatch.setattr(Catalog, "close", close_and_limit)


@pytest.mark.parametrize(
    ("step", "limit_bytes"),
    [("at once", 0), ("at once", 3000), ("at once", 9000), ("at once", 30_000), ("listed", 0)],
)
def test_a_backup_that_cannot_be_written_raises_a_typed_error(
    store, tmp_path, monkeypatch, step, limit_bytes
):
    """Wherever the target's files stop growing, the error is of the disk or of the catalog."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with monkeypatch.context() as patch:
            fills_at(patch, limit_bytes, step=step)
            with pytest.raises((OSError, CatalogError)):
                back_up(store.folder, tmp_path / "backup")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not (tmp_path / "backup").exists()
    back_up(store.folder, tmp_path / "backup")


def test_the_subscriptions_places_are_in_it(store, tmp_path):
    """A restored store has the cursors as they were, at entries that it has."""
    ledger = store.open_topic(NAMES[0])
    cursor = ledger.open_cursor("s", initial=ledger.first_position)
    cursor.ack_cumulative(ledger.segments()[0].position(4))
    cursor.persist().wait(10)
    back_up(store.folder, tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "new")
    with LocalStore.open(tmp_path / "new") as restored:
        assert restored.open_topic(NAMES[0]).cursors["s"].mark_delete == cursor.mark_delete


@pytest.mark.parametrize("at", range(1, 8))
def test_what_comes_meanwhile_makes_no_gap(store, tmp_path, at):
    """Whatever is written between any two pieces, each topic's copy is a prefix with all before."""
    before = {name: bodies(store.folder, name) for name in NAMES}

    def write() -> None:
        for name in NAMES:
            grow(store, name, "later", count=30, size=5_000)

    back_up(store.folder, tmp_path / "backup", progress=Meanwhile(write, at))
    for name in NAMES:
        copied, now = bodies(tmp_path / "backup", name), bodies(store.folder, name)
        assert copied[: len(before[name])] == before[name]
        assert copied == now[: len(copied)]
    assert is_clean(tmp_path / "backup")


@pytest.mark.parametrize("at", range(1, 8))
def test_a_topic_deleted_meanwhile(store, tmp_path, at):
    """Files that disappear while they are copied leave a clean backup with the other topics."""
    before = {name: bodies(store.folder, name) for name in NAMES}
    delete = Meanwhile(lambda: store.delete_topic(NAMES[1]), at)
    back_up(store.folder, tmp_path / "backup", progress=delete)
    assert is_clean(tmp_path / "backup")
    for name in (NAMES[0], NAMES[2]):
        assert bodies(tmp_path / "backup", name) == before[name]


@pytest.mark.parametrize("at", range(1, 12, 2))
def test_a_head_removed_meanwhile(store, tmp_path, at):
    """Removing old entries and writing new ones at once loses neither place nor index."""
    grow(store, NAMES[0], "more", count=40, size=5_000)

    def work() -> None:
        ledger = store.open_topic(NAMES[0])
        ledger.truncate_head(ledger.previous_position(ledger.end_position))
        grow(store, NAMES[0], "new", count=3)

    report = back_up(store.folder, tmp_path / "backup", progress=Meanwhile(work, at))
    assert report.passes <= 2
    assert is_clean(tmp_path / "backup")
    kept = bodies(store.folder, NAMES[0])
    assert bodies(tmp_path / "backup", NAMES[0])[-1:] != []
    assert kept[0] in bodies(tmp_path / "backup", NAMES[0])
    restore(tmp_path / "backup", tmp_path / "new")
    with LocalStore.open(tmp_path / "new") as restored:
        assert restored.open_topic(NAMES[0]).next_index >= 60


def test_a_folder_that_never_rests_is_refused(store, tmp_path):
    """Files removed in every pass end in an error that says so, and leave nothing."""

    def one_more(_size: int) -> None:
        store.delete_topic(NAMES[0])
        grow(store, NAMES[0], "again")

    with pytest.raises(RestlessFolderError, match="100 passes"):
        back_up(store.folder, tmp_path / "backup", progress=one_more)
    assert names(tmp_path) == ["data"]


def test_a_folder_not_in_use_is_copied_with_its_journal(store, tmp_path):
    """What only the journal has, after a power cut, is in the backup."""
    shutil.copytree(store.folder, tmp_path / "crashed")
    wanted = bodies(store.folder, NAMES[2])
    for path in (tmp_path / "crashed" / "ledgers").iterdir():
        path.unlink()  # as if no segment had reached the disk
    report = back_up(tmp_path / "crashed", tmp_path / "backup")
    assert not report.was_in_use
    restore(tmp_path / "backup", tmp_path / "new")
    with LocalStore.open(tmp_path / "new"):
        pass
    assert bodies(tmp_path / "new", NAMES[2]) == wanted


def test_a_restored_folder_goes_on(store, tmp_path):
    """Topics, indexes and new entries: ids of new ledgers are above all that were given."""
    back_up(store.folder, tmp_path / "backup")
    grow(store, NAMES[0], "lost with the old disk")
    lost = store.open_topic(NAMES[0]).last_position
    restore(tmp_path / "backup", tmp_path / "new")
    with LocalStore.open(tmp_path / "new") as restored:
        grow(restored, NAMES[0], "after")
        ledger = restored.open_topic(NAMES[0])
        assert ledger.last_position > lost
        assert ledger.next_index == 21
    assert is_clean(tmp_path / "new")


def test_targets_with_something_in_them_are_refused(store, tmp_path):
    """Neither a backup nor a restored folder replaces or mixes with what is there."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with pytest.raises(TargetError, match=r"notes\.txt"):
        back_up(store.folder, tmp_path / "full")
    with pytest.raises(TargetError, match="inside"):
        back_up(store.folder, store.folder / "backup")
    back_up(store.folder, tmp_path / "backup")
    with pytest.raises(TargetError, match="not empty"):
        restore(tmp_path / "backup", store.folder)
    assert names(tmp_path / "full") == ["notes.txt"]


@pytest.mark.parametrize("damage", ["content", "size", "missing", "manifest", "none"])
def test_a_backup_that_changed_is_refused(store, tmp_path, damage):
    """A flipped bit, a short or missing file and a backup without its list make no data folder."""
    backup = tmp_path / "backup"
    back_up(store.folder, backup)
    path = max(backup.glob("ledgers/*.log"), key=lambda each: each.stat().st_size)
    content = path.read_bytes()
    if damage == "content":
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "size":
        path.write_bytes(content[:-1])
    elif damage == "missing":
        path.unlink()
    elif damage == "manifest":
        (backup / MANIFEST_NAME).write_text("{}")
    else:
        (backup / MANIFEST_NAME).unlink()
    with pytest.raises(BackupDamagedError):
        restore(backup, tmp_path / "new")
    assert names(tmp_path) == ["backup", "data"]


def test_a_killed_backup_leaves_no_backup_and_the_next_one_works(store, tmp_path):
    """kill -9 between two pieces: no target appears, the folder is untouched, the next is whole."""
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from pulsemark.maintenance.backup import back_up\n"
        "left = [int(sys.argv[3])]\n"
        "def kill(size):\n"
        "    left[0] -= 1\n"
        "    if left[0] == 0: os.kill(os.getpid(), signal.SIGKILL)\n"
        "back_up(Path(sys.argv[1]), Path(sys.argv[2]), progress=kill)\n"
    )
    before = {name: bodies(store.folder, name) for name in NAMES}
    for at in (1, 2, 4):
        command = [sys.executable, "-c", program, store.folder, tmp_path / "backup", str(at)]
        ended = subprocess.run(command, timeout=60, check=False)
        assert ended.returncode == -signal.SIGKILL
        assert not (tmp_path / "backup").exists()
        assert (tmp_path / ".backup.unfinished").exists()
    assert is_clean(store.folder)
    back_up(store.folder, tmp_path / "backup")
    assert names(tmp_path) == ["backup", "data"]
    assert {name: bodies(tmp_path / "backup", name) for name in NAMES} == before


def test_two_backups_to_one_place(store, tmp_path):
    """The second one is refused while the first one copies."""
    refused = []

    def second() -> None:
        with pytest.raises(TargetError, match="another process"):
            back_up(store.folder, tmp_path / "backup")
        refused.append(1)

    back_up(store.folder, tmp_path / "backup", progress=Meanwhile(second, 2))
    assert refused == [1]
    assert is_clean(tmp_path / "backup")


def test_backups_of_a_broker_that_is_written_to_and_killed(tmp_path):
    """Each backup has what was acknowledged before it began; also while the broker is killed."""
    from pulsemark.client import RawProducer, Service
    from pulsemark.client.errors import ClientError

    acknowledged: list[bytes] = []
    ended = threading.Event()
    with BrokerProcess(data_dir=tmp_path / "data") as broker:

        def write() -> None:
            with Service(broker.service_url) as service, RawProducer(service, NAMES[0]) as producer:
                while not ended.is_set():
                    sent = body(f"message {len(acknowledged)}")
                    try:
                        producer.publish(sent)
                        producer.flush()
                    except ClientError:
                        return
                    acknowledged.append(sent)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for number in range(4):
                limit_s = time.monotonic() + 30
                while len(acknowledged) < 20 * (number + 1):
                    assert time.monotonic() < limit_s, "the broker acknowledges nothing"
                    time.sleep(0.01)
                had = list(acknowledged)
                target = tmp_path / f"backup-{number}"
                kill = Meanwhile(broker.kill, 2 if number == 3 else 0)
                back_up(tmp_path / "data", target, progress=kill)
                copied = bodies(target, NAMES[0])
                assert copied[: len(had)] == had
                assert len(copied) == len(set(copied))
                assert is_clean(target)
            broker.start()  # the writer connects again and ends
        finally:
            ended.set()
            writer.join(30)
    assert not writer.is_alive()


# -- a folder that appears at once --


def fill_a_full_disk(target: Path) -> None:
    """Fill the folder until the disk has no room."""
    with fill_at_once(target) as staging:
        (staging / "file").write_bytes(b"x")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_failed_write_names_the_folder(tmp_path: Path) -> None:
    """A full disk gives an error without a file name; then it is that of the folder to be made."""
    target = tmp_path / "backup"
    with pytest.raises(OSError, match="No space left") as raised:
        fill_a_full_disk(target)
    assert raised.value.filename == str(target)
    assert list(tmp_path.iterdir()) == []


def lost_in_a_power_cut(folder: Path, make: Callable[[], object]) -> list[Path]:
    """The folders up to `folder` whose names are in no synced folder once `make` has returned."""
    sync, names_at_sync = os.fsync, {}

    def noting(descriptor: int) -> None:
        sync(descriptor)
        synced = Path(f"/proc/self/fd/{descriptor}").resolve()
        if synced.is_dir():
            names_at_sync[synced] = {path.name for path in synced.iterdir()}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", noting)
        before = {path for path in (folder, *folder.parents) if path.exists()}
        make()
    made = [path for path in (folder, *folder.parents) if path not in before]
    return [path for path in made if path.name not in names_at_sync.get(path.parent, set())]


def test_new_parents_survive_a_power_cut(tmp_path: Path) -> None:
    """When a backup, a restored folder or a folder of workers is made, so are its parents."""
    with LocalStore.open(tmp_path / "data") as store:
        store.open_topic("orders").append(b"x").commit.wait()
    makers: dict[str, Callable[[Path], object]] = {
        "backup": lambda target: back_up(tmp_path / "data", target),
        "restored": lambda target: restore(tmp_path / "backup/in/new/parents", target),
        "workers": lambda target: WorkersFolder(target, 2).close(),
        "store": lambda target: LocalStore.open(target).close(),
    }
    for name, make in makers.items():
        target = tmp_path / name / "in" / "new" / "parents"
        assert lost_in_a_power_cut(target, partial(make, target)) == [], name
        assert target.is_dir()

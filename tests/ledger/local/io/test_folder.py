import errno
import fcntl
import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pulsemark.ledger import (
    FolderLockedError,
    ForeignFolderError,
    LocalStore,
    Position,
    UnsupportedVersionError,
)
from pulsemark.ledger.local.io.files import Files
from pulsemark.ledger.local.io.folder import (
    LOCK_NAME,
    MARKER_NAME,
    check_marker,
    index_path,
    list_segments,
    prepare_folder,
    segment_path,
)
from pulsemark.testing.faulty_files import FaultyFiles
from tests.support.simulated_disk import SimulatedDisk

FILES = Files()
ORDERS = "persistent://public/default/orders"

OWNER = """
import sys, time
from pathlib import Path
from pulsemark.ledger import LocalStore
store = LocalStore.open(Path(sys.argv[1]))
store.open_topic("persistent://public/default/orders").append(b"x").commit.wait(10)
print("open", flush=True)
sys.stdin.read()
store.close()
"""


@pytest.fixture
def owner(tmp_path):
    """Another process that has the folder open."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path / "data")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    yield process
    process.kill()
    process.communicate()


def test_missing_or_empty_folder_becomes_a_data_folder(tmp_path):
    """A folder that is missing or empty becomes a data folder with a marker."""
    for name in ("missing", "deep/below/missing", "empty"):
        folder = tmp_path / name
        if name == "empty":
            folder.mkdir()
        prepare_folder(FILES, folder)
        marker = json.loads((folder / MARKER_NAME).read_text())
        assert (marker["version"], len(marker["id"])) == (1, 36)
        prepare_folder(FILES, folder)
        assert json.loads((folder / MARKER_NAME).read_text()) == marker


@pytest.mark.parametrize(
    "name", ["notes.txt", "ledgers/0000000000000000-00000000.log", "journal/x"]
)
def test_foreign_folder_is_refused(tmp_path, name):
    """A folder with something else in it is left alone."""
    path = tmp_path / "data" / name
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    with pytest.raises(ForeignFolderError) as caught:
        LocalStore.open(tmp_path / "data")
    assert caught.value.folder == tmp_path / "data"
    assert [p for p in (tmp_path / "data").rglob("*") if p.is_file()] == [path]


def test_file_in_place_of_a_folder_is_refused(tmp_path):
    """A path that is a file is no data folder, for writers and readers."""
    (tmp_path / "data").write_text("x")
    with pytest.raises(ForeignFolderError):
        LocalStore.open(tmp_path / "data")
    with pytest.raises(ForeignFolderError):
        check_marker(FILES, tmp_path / "data")


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "no json", '{"version": "1"}', '{"version": true}']
)
def test_unreadable_marker_is_refused(tmp_path, text):
    """A marker that cannot be read is not taken for version 1."""
    prepare_folder(FILES, tmp_path)
    (tmp_path / MARKER_NAME).write_text(text)
    with pytest.raises(ForeignFolderError):
        LocalStore.open(tmp_path)


def test_newer_folder_is_unsupported(tmp_path):
    """A folder of a version to come is refused as such, and left as it is."""
    prepare_folder(FILES, tmp_path)
    (tmp_path / MARKER_NAME).write_text('{"version": 2}')
    with pytest.raises(UnsupportedVersionError) as caught:
        LocalStore.open(tmp_path)
    assert (caught.value.found, caught.value.supported) == (2, 1)
    assert not (tmp_path / "catalog.sqlite").exists()


@pytest.fixture
def open_umask():
    """New files get the modes with which they are created."""
    before = os.umask(0)
    yield
    os.umask(before)


def modes_of(folder):
    """The modes of folders, and of files, from a folder on down."""
    paths = [folder, *folder.rglob("*")]
    modes = [(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in paths]
    return {mode for is_folder, mode in modes if is_folder}, {m for is_f, m in modes if not is_f}


def use(folder):
    """Have a store make files of each kind; the modes while it is open, and after that."""
    with LocalStore.open(folder) as store:
        topic = store.open_topic(ORDERS)
        for _ in range(3):
            topic.append(b"x").commit.wait(10)
        first = topic.first_position
        assert first is not None
        topic.truncate_head(Position(first.ledger_id, 1))
        topic.roll()
        store.checkpoint()
        beside = modes_of(folder)
        suffixes = {path.suffix for path in folder.rglob("*")}
        assert {".log", ".idx", ".cut", ".journal", ".sqlite-wal", ".sqlite-shm"} <= suffixes
    return beside, modes_of(folder)


def test_a_new_folder_is_for_its_user_only(tmp_path, open_umask):
    """Folders are 0700 and files 0600 whatever the umask says, SQLite's files too."""
    for modes in use(tmp_path / "new" / "data"):
        assert modes == ({0o700}, {0o600})


def test_an_empty_folder_of_another_mode_keeps_it_but_its_files_are_private(tmp_path, open_umask):
    """What most umasks make of a folder is no decision to show its files."""
    folder = tmp_path / "data"
    folder.mkdir(mode=0o755)
    for folders, files in use(folder):
        assert (folders, files) == ({0o755, 0o700}, {0o600})


def test_a_folder_that_was_given_to_a_group_is_readable_for_it(tmp_path, open_umask):
    """With 0750 all that is made in the folder is readable for the group, and nobody else."""
    folder = tmp_path / "data"
    folder.mkdir(mode=0o750)
    for modes in use(folder):
        assert modes == ({0o750}, {0o640})


def test_a_folder_that_everybody_may_read_is_warned_about(tmp_path, caplog):
    """A folder of an earlier version keeps its modes; the log says how to close it."""
    folder = tmp_path / "data"
    use(folder)
    assert "may read it" not in caplog.text
    folder.chmod(0o755)
    (folder / MARKER_NAME).chmod(0o644)
    use(folder)
    assert f"{folder}: all users of this machine may read it; `chmod -R o= {folder}`" in caplog.text
    assert stat.S_IMODE((folder / MARKER_NAME).stat().st_mode) == 0o644


def test_second_process_is_refused(owner, tmp_path):
    """While a process has the folder, another is refused, and the error names its owner."""
    with pytest.raises(FolderLockedError) as caught:
        LocalStore.open(tmp_path / "data")
    assert caught.value.owner_pid == owner.pid
    assert str(owner.pid) in str(caught.value)


def test_dead_owner_is_taken_over_at_once(owner, tmp_path):
    """After a kill -9 the next process gets the folder, with all that was acknowledged."""
    owner.kill()
    owner.wait()
    began = time.monotonic()
    with LocalStore.open(tmp_path / "data") as store:
        assert store.open_topic(ORDERS).next_index == 1
    assert time.monotonic() - began < 5


def test_closed_folder_is_free(tmp_path):
    """Closing gives the folder back, to this process too; two openings at once are refused."""
    store = LocalStore.open(tmp_path / "data")
    with pytest.raises(FolderLockedError) as caught:
        LocalStore.open(tmp_path / "data")
    assert caught.value.owner_pid == os.getpid()
    store.close()
    store.close()
    LocalStore.open(tmp_path / "data").close()


def test_a_removed_lock_file_does_not_free_the_folder(owner, tmp_path):
    """The folder itself is locked: whoever comes is refused, and makes no new lock file."""
    folder = tmp_path / "data"
    (folder / LOCK_NAME).unlink()
    for _ in range(2):
        with pytest.raises(FolderLockedError) as caught:
            LocalStore.open(folder)
        assert caught.value.owner_pid is None
    assert not (folder / LOCK_NAME).exists()
    owner.communicate("")
    LocalStore.open(folder).close()
    assert (folder / LOCK_NAME).exists()


def test_earlier_versions_and_this_one_exclude_each_other(tmp_path):
    """They lock only the file; a refused opening leaves no descriptor and no lock."""
    store = LocalStore.open(tmp_path)
    with (tmp_path / LOCK_NAME).open("r+") as file:
        with pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        store.close()
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        before = len(list(Path("/proc/self/fd").iterdir()))
        with pytest.raises(FolderLockedError) as caught:
            LocalStore.open(tmp_path)
        assert caught.value.owner_pid == os.getpid()
        assert len(list(Path("/proc/self/fd").iterdir())) == before
    LocalStore.open(tmp_path).close()


def test_file_systems_that_lock_no_folders(tmp_path, monkeypatch):
    """As NFS: then the file's lock is the folder's."""
    flock = fcntl.flock

    def only_files(fd, operation):
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", only_files)
    with LocalStore.open(tmp_path), pytest.raises(FolderLockedError) as caught:
        LocalStore.open(tmp_path)
    assert caught.value.owner_pid == os.getpid()
    LocalStore.open(tmp_path).close()


def test_new_folder_survives_a_power_cut(tmp_path):
    """Every folder made on the way is durable before anything is acknowledged in it."""
    for seed in range(10):
        disk = SimulatedDisk(seed, survival="none")
        folder = tmp_path / f"{seed}" / "a" / "b" / "data"
        prepare_folder(FaultyFiles(disk.process()), folder)
        disk.power_off()
        check_marker(disk.process(), folder)


def test_names_of_segments(tmp_path):
    """Segment files are found by their names alone, in order; other files are not."""
    prepare_folder(FILES, tmp_path)
    for ledger_id, number in ((16, 0), (2, 1), (2, 0), (2**64 - 1, 2**32 - 1)):
        path = segment_path(tmp_path, ledger_id, number)
        path.write_text("")
        index_path(path).write_text("")
    (tmp_path / "ledgers" / "0000000000000000-00000000.log.new").write_text("")
    (tmp_path / "ledgers" / "x.log").write_text("")
    expected = [(2, 0), (2, 1), (16, 0), (2**64 - 1, 2**32 - 1)]
    assert list_segments(FILES, tmp_path) == expected
    assert list_segments(FILES, tmp_path / "none") == []


def test_folder_of_workers_names_their_folders(tmp_path):
    """Who names the folder above data folders reads which ones to name."""
    for number in (1, 0):
        prepare_folder(FILES, tmp_path / f"worker-{number}")
    with pytest.raises(ForeignFolderError, match="name one of them, such as worker-0"):
        check_marker(FILES, tmp_path)


def test_damaged_marker_can_be_written_again(tmp_path):
    """The error of a damaged marker says what to write, and that is enough: no entry is lost."""
    with LocalStore.open(tmp_path) as store:
        store.open_topic(ORDERS).append(b"x").commit.wait(10)
    (tmp_path / MARKER_NAME).write_bytes(b"\0" * 94)
    with pytest.raises(ForeignFolderError, match="If that is damage, write") as caught:
        LocalStore.open(tmp_path)
    (tmp_path / MARKER_NAME).write_text(str(caught.value).split("write ")[1].split(" into")[0])
    with LocalStore.open(tmp_path) as store:
        assert store.open_topic(ORDERS).next_index == 1

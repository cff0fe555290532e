import errno
import inspect
import os

import pytest

from pulsemark.ledger.local.io.files import Files, read_up_to, write_all
from pulsemark.testing.faulty_files import OPERATIONS, FaultyFiles, Short
from tests.support.simulated_disk import DiskProcess, SimulatedDisk


@pytest.fixture
def files():
    """Faulty files over the real disk."""
    return FaultyFiles()


@pytest.fixture
def fd(files, tmp_path):
    """An open, empty file."""
    fd = files.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield fd
    files.heal()
    files.close(fd)


def test_every_operation_of_files_can_fail():
    """The list of operations is that of the files, and all three implementations have them all."""
    names = {name for name, _ in inspect.getmembers(Files, inspect.isfunction)}
    operations = {name for name in names if not name.startswith("_")} - {"opened"}  # two of them
    assert set(OPERATIONS) == operations
    for implementation in (Files, FaultyFiles, DiskProcess):
        assert all(callable(getattr(implementation, name)) for name in operations)


def test_exactly_the_chosen_calls_fail(files, fd):
    """The k-th call fails, so many times, and no other; all are counted."""
    files.fail("pread", call=2, times=2, error=errno.EIO)
    outcomes = []
    for _ in range(5):
        try:
            files.pread(fd, 1, 0)
            outcomes.append("ok")
        except OSError as error:
            outcomes.append(errno.errorcode[error.errno or 0])
    assert outcomes == ["ok", "EIO", "EIO", "ok", "ok"]
    assert files.calls["pread"] == 5
    assert files.failed_calls == 2
    assert files.total_calls == 6


def test_faults_last_until_healed(files, fd):
    """times=None fails each time, on chosen paths only; heal ends it."""
    files.fail("pwritev", times=None, error=errno.ENOSPC, path_part="fil")
    files.fail("fdatasync", times=None, path_part="another")
    for _ in range(3):
        with pytest.raises(OSError, match="No space"):
            files.pwritev(fd, [b"x"], 0)
    files.fdatasync(fd)
    files.heal()
    assert files.pwritev(fd, [b"x"], 0) == 1


def test_failing_write_leaves_part_of_its_bytes(files, fd):
    """EIO and ENOSPC strike in the middle; an interrupted call has done nothing."""
    for error, size in ((errno.EIO, 3), (errno.ENOSPC, 3), (errno.EINTR, 0)):
        files.ftruncate(fd, 0)
        files.fail("pwritev", error=error)
        with pytest.raises(OSError, match="Errno") as caught:
            files.pwritev(fd, [b"abc", b"def"], 0)
        assert caught.value.errno == error
        assert files.size(fd) == size


def test_short_calls_and_interruptions_are_gone_on_with(files, fd):
    """The store's reads and writes continue after short and interrupted calls."""
    data = os.urandom(1000)
    for call in (1, 2, 3):
        files.fail("pwritev", call=call, error=Short)
        files.fail("pread", call=call, error=Short)
    assert write_all(files, fd, [data[:10], data[10:]], 0) == 1000
    assert read_up_to(files, fd, 1000, 0) == data
    files.fail("pwritev", error=errno.EINTR)
    files.fail("pread", error=errno.EINTR)
    assert write_all(files, fd, [data[::-1]], 0) == 1000
    assert read_up_to(files, fd, 2000, 0) == data[::-1]


def test_a_second_sync_after_a_failed_one_is_a_violation(files, fd, tmp_path):
    """Neither the descriptor nor the file may be synced again; a new file of that name may."""
    files.fail("fdatasync")
    with pytest.raises(OSError, match=r"\[Errno 5\]"):
        files.fdatasync(fd)
    assert files.violations == []
    files.fdatasync(fd)
    assert len(files.violations) == 1
    again = files.open(tmp_path / "file", os.O_RDWR)
    files.fsync(again)
    assert len(files.violations) == 2
    files.close(again)
    files.unlink(tmp_path / "file")
    new = files.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    files.fsync(new)
    files.close(new)
    assert len(files.violations) == 2


def test_failed_sync_of_a_simulated_disk_loses_bytes(tmp_path):
    """A failing sync of a simulated disk drops a file's dirty bytes, but no names."""
    disk = SimulatedDisk(survival="none")
    files = FaultyFiles(disk.process())
    files.mkdir(tmp_path / "data")
    files.sync_folder(tmp_path)
    fd = files.open(tmp_path / "data" / "file", os.O_RDWR | os.O_CREAT)
    files.pwritev(fd, [b"x"], 0)
    files.fail("fdatasync")
    files.fail("sync_folder", path_part="data")
    for sync in (lambda: files.fdatasync(fd), lambda: files.sync_folder(tmp_path / "data")):
        with pytest.raises(OSError, match=r"\[Errno 5\]"):
            sync()
    files.fdatasync(fd)
    files.sync_folder(tmp_path / "data")
    disk.power_off()
    assert disk.contents(tmp_path / "data" / "file") == b"\0"


def test_syncs_that_lie(tmp_path):
    """Without syncs everything seems to work, and a power cut takes it all."""
    disk = SimulatedDisk(survival="none")
    files = FaultyFiles(disk.process(), syncs=False)
    files.mkdir(tmp_path / "data")
    fd = files.open(tmp_path / "data" / "file", os.O_RDWR | os.O_CREAT)
    files.fdatasync(fd)
    files.sync_folder(tmp_path / "data")
    files.sync_folder(tmp_path)
    assert files.calls["sync_folder"] == 2
    disk.power_off()
    assert not disk.process().exists(tmp_path / "data")


@pytest.mark.parametrize("number", [3, 4])
def test_power_can_go_at_any_call(tmp_path, number):
    """At the chosen call the action runs; a write has been done by then, another call has not."""
    disk = SimulatedDisk(survival="all")
    files = FaultyFiles(disk.process())
    files.mkdir(tmp_path)
    files.at_call(number, disk.power_off)
    fd = files.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    calls = [lambda: files.pwritev(fd, [b"x"], 0), lambda: files.ftruncate(fd, 0)]
    for call in calls[: number - 3]:
        call()
    with pytest.raises(OSError, match="ended"):
        calls[number - 3]()
    assert disk.contents(tmp_path / "file") == b"x"


def test_unknown_operation_is_refused(files):
    """A misspelt operation would be a test that cannot fail."""
    with pytest.raises(ValueError, match="pwrite"):
        files.fail("pwrite")


def test_trace_shows_what_was_called(files, fd):
    """With a trace every call is noted with its file."""
    files.trace = []
    files.pwritev(fd, [b"x"], 0)
    files.fdatasync(fd)
    assert files.trace == ["pwritev file", "fdatasync file"]

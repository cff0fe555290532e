import errno
import os

import pytest

from pulsemark.ledger.local.io.files import write_file_durably
from tests.support.simulated_disk import PIECE_BYTES, SimulatedDisk


@pytest.fixture
def folder(tmp_path):
    """A folder that was there before the disk was simulated."""
    return tmp_path / "data"


def make_file(process, folder, content=b"", *, durable=True, name="file"):
    """A file in ``folder``, open."""
    process.mkdir(folder)
    fd = process.open(folder / name, os.O_RDWR | os.O_CREAT)
    process.pwritev(fd, [content], 0)
    if durable:
        process.fdatasync(fd)
        process.sync_folder(folder)
        process.sync_folder(folder.parent)
    return fd


@pytest.mark.parametrize("survival", ["none", "some", "all"])
def test_what_was_synced_survives_a_power_cut(folder, survival):
    """Bytes, length, name and folders that were synced are there after every kind of cut."""
    disk = SimulatedDisk(survival=survival)
    make_file(disk.process(), folder, b"x" * 3000)
    disk.power_off()
    assert disk.contents(folder / "file") == b"x" * 3000


def test_what_was_not_synced_is_lost(folder):
    """Without survival, a power cut goes back to the last syncs."""
    disk = SimulatedDisk(survival="none")
    process = disk.process()
    fd = make_file(process, folder, b"old" * 500)
    process.pwritev(fd, [b"new", b"er"], 0)
    process.pwritev(fd, [b"tail"], 5000)
    process.rename(folder / "file", folder / "renamed")
    make_file(process, folder, b"other", name="other", durable=False)
    assert process.pread(fd, 10, 0) == b"newer" + b"doldo"
    disk.power_off()
    after = disk.process()
    assert after.listdir(folder) == ["file"]
    assert disk.contents(folder / "file") == b"old" * 500


def test_file_without_synced_name_is_lost(folder):
    """fdatasync of a new file is not enough: its folder must be synced, too."""
    disk = SimulatedDisk(survival="none")
    process = disk.process()
    process.mkdir(folder)
    process.sync_folder(folder.parent)
    fd = process.open(folder / "file", os.O_RDWR | os.O_CREAT)
    process.pwritev(fd, [b"bytes"], 0)
    process.fdatasync(fd)
    disk.power_off()
    assert disk.process().listdir(folder) == []


def test_folder_without_synced_name_is_lost(folder):
    """A new folder's own name must be synced in its parent."""
    disk = SimulatedDisk(survival="none")
    process = disk.process()
    fd = make_file(process, folder, durable=False)
    process.fdatasync(fd)
    process.sync_folder(folder)
    disk.power_off()
    assert not disk.process().exists(folder)


def test_unlinked_file_may_come_back(folder):
    """A removal that was not synced is undone by a power cut."""
    disk = SimulatedDisk(survival="none")
    process = disk.process()
    make_file(process, folder, b"bytes")
    process.unlink(folder / "file")
    assert process.listdir(folder) == []
    disk.power_off()
    assert disk.contents(folder / "file") == b"bytes"


def test_seed_decides_what_survives(folder):
    """Pieces survive in any order and the last is torn; the same seed gives the same outcome."""
    new = os.urandom(40 * PIECE_BYTES)

    def outcome(seed):
        disk = SimulatedDisk(seed)
        process = disk.process()
        fd = make_file(process, folder)
        process.pwritev(fd, [new], 0)
        disk.power_off()
        return disk.contents(folder / "file")

    outcomes = [outcome(seed) for seed in range(60)]
    assert outcomes == [outcome(seed) for seed in range(60)]
    torn = holes = 0
    for after in outcomes:
        pieces = [after[at : at + PIECE_BYTES] for at in range(0, len(after), PIECE_BYTES)]
        for number, piece in enumerate(pieces):
            whole = new[number * PIECE_BYTES :][: len(piece)]
            assert piece in (whole, bytes(len(piece)))
        holes += any(piece == bytes(PIECE_BYTES) for piece in pieces)
        torn += len(after) % PIECE_BYTES != 0
    assert holes > 10
    assert torn > 2


def test_failed_sync_loses_bytes_that_the_process_goes_on_seeing(folder):
    """After a failed sync, reads show bytes that no later sync brings to the disk."""
    disk = SimulatedDisk(survival="none")
    process = disk.process()
    fd = make_file(process, folder, b"old")
    process.pwritev(fd, [b"lost"], 3)
    process.lose_unsynced(fd)
    process.fdatasync(fd)
    assert process.pread(fd, 10, 0) == b"oldlost"
    disk.power_off()
    assert disk.contents(folder / "file") == b"old" + bytes(4)


def test_kill_keeps_what_was_written_and_frees_locks(folder):
    """kill -9 ends the process and its locks; the page cache stays."""
    disk = SimulatedDisk(survival="none")
    process = disk.process()
    fd = make_file(process, folder)
    process.pwritev(fd, [b"written"], 0)
    assert process.try_lock(fd)
    other = disk.process()
    other_fd = other.open(folder / "file", os.O_RDWR)
    assert not other.try_lock(other_fd)
    disk.kill()
    for dead in (lambda: process.pread(fd, 1, 0), lambda: process.open(folder / "file", 0)):
        with pytest.raises(OSError, match="ended"):
            dead()
    process.close(fd)
    after = disk.process()
    fd = after.open(folder / "file", os.O_RDWR)
    assert after.try_lock(fd)
    assert after.pread(fd, 10, 0) == b"written"


def test_file_put_in_place_durably_is_old_or_new(folder):
    """After a power cut at any point `write_file_durably` leaves one complete version."""
    for seed in range(40):
        disk = SimulatedDisk(seed)
        process = disk.process()
        make_file(process, folder, b"old" * 1000)
        write_file_durably(process, folder / "file", b"new" * 1000)
        disk.power_off()
        assert disk.contents(folder / "file") == b"new" * 1000
        fd = (after := disk.process()).open(folder / "file.new", os.O_RDWR | os.O_CREAT)
        after.pwritev(fd, [b"newest"], 0)
        after.rename(folder / "file.new", folder / "file")
        disk.power_off()
        assert disk.contents(folder / "file")[:3] != b"old"


def test_cut_file_may_have_either_length(folder):
    """An unsynced cut may or may not be on the disk; a synced one is."""
    lengths = set()
    for seed in range(20):
        disk = SimulatedDisk(seed)
        process = disk.process()
        fd = make_file(process, folder, b"x" * 100)
        process.ftruncate(fd, 10)
        disk.power_off()
        lengths.add(len(disk.contents(folder / "file")))
    assert lengths == {10, 100}
    process = disk.process()
    fd = process.open(folder / "file", os.O_RDWR)
    process.ftruncate(fd, 7)
    process.fdatasync(fd)
    disk.power_off()
    assert len(disk.contents(folder / "file")) == 7


def test_errors_are_the_kernels(folder):
    """Missing files, files that are not a folder, or closed descriptors give the usual errno."""
    process = SimulatedDisk().process()
    process.mkdir(folder)
    for call, number in (
        (lambda: process.open(folder / "none", os.O_RDONLY), errno.ENOENT),
        (lambda: process.unlink(folder / "none"), errno.ENOENT),
        (lambda: process.listdir(folder / "none"), errno.ENOENT),
        (lambda: process.open(folder, os.O_RDONLY), errno.EISDIR),
        (lambda: process.pread(5, 1, 0), errno.EBADF),
    ):
        with pytest.raises(OSError, match="Errno") as caught:
            call()
        assert caught.value.errno == number


def test_rot_is_durable(folder):
    """Damaged bytes stay damaged, also after a power cut."""
    disk = SimulatedDisk(survival="none")
    make_file(disk.process(), folder, b"x" * 10)
    disk.overwrite(folder / "file", b"!", 4)
    disk.power_off()
    assert disk.contents(folder / "file") == b"xxxx!xxxxx"
    disk.overwrite(folder / "file", b"", 6, cut=True)
    assert disk.contents(folder / "file") == b"xxxx!x"

"""The data folder of several workers."""

import os

import pytest

from pulsemark.cluster.placement import worker_of
from pulsemark.cluster.supervisor import FACTS, WorkersError, WorkersFolder
from pulsemark.coordination.memory import DurableTree


def test_the_number_never_changes(tmp_path):
    """A folder is locked while it is used, and keeps its number of workers."""
    folder = WorkersFolder(tmp_path / "data", 2)
    with pytest.raises(WorkersError, match="in use by other workers"):
        WorkersFolder(tmp_path / "data", 2)
    folder.close()
    with pytest.raises(WorkersError, match="start it with --workers 2"):
        WorkersFolder(tmp_path / "data", 4)
    WorkersFolder(tmp_path / "data", 2).close()


@pytest.mark.parametrize("workers", [0, 5])
def test_how_many_there_can_be(tmp_path, workers):
    """A number that bundles cannot be divided among is refused, and nothing is made."""
    with pytest.raises(WorkersError, match="1 to 4 workers"):
        WorkersFolder(tmp_path / "data", workers)
    assert not (tmp_path / "data").exists()


def test_damage(tmp_path):
    """A damaged file is named, not overwritten; the folder is not locked then."""
    WorkersFolder(tmp_path, 2).close()
    (tmp_path / FACTS).write_text("{")
    for _ in range(2):
        with pytest.raises(WorkersError, match=f"{FACTS} is damaged"):
            WorkersFolder(tmp_path, 2)
    assert (tmp_path / FACTS).read_text() == "{"


def test_a_start_that_was_cut_off_can_be_repeated(tmp_path):
    """A crash while the file of facts is written leaves a part of it, which is written again."""
    WorkersFolder(tmp_path, 2).close()
    (tmp_path / FACTS).rename(tmp_path / f"{FACTS}.new")
    WorkersFolder(tmp_path, 3).close()
    with pytest.raises(WorkersError, match="start it with --workers 3"):
        WorkersFolder(tmp_path, 2)


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_each_worker_has_bundles(workers):
    """The four bundles of a namespace are divided among all workers, at most one more to one."""
    lows = [0, 0x40000000, 0x80000000, 0xC0000000]
    shares = [worker_of(f"t/n/0x{low:08x}_0xffffffff", workers) for low in lows]
    counts = [shares.count(worker) for worker in range(workers)]
    assert sum(counts) == 4
    assert max(counts) - min(counts) <= 1


def test_a_new_folder_is_for_its_user_only(tmp_path):
    """The workers' folder and the files in it are readable for nobody else."""
    before = os.umask(0)
    try:
        WorkersFolder(tmp_path / "data", 2).close()
        tree = DurableTree(tmp_path / "data" / "shared.sqlite")
    finally:
        os.umask(before)
    modes = {p.name: p.stat().st_mode & 0o777 for p in (tmp_path / "data").iterdir()}
    assert set(modes.values()) == {0o600}
    assert "shared.sqlite-wal" in modes
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700
    tree.close()

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsemark.ledger.local.io import files as files_module
from pulsemark.ledger.local.io.files import Files, write_all


class RecordingFiles(Files):
    """Keeps how many buffers and bytes each write had, and takes at most ``most`` of them."""

    def __init__(self, most):
        self.most = most
        self.calls = []

    def pwritev(self, fd, buffers, offset):
        """Write the first bytes of what is to be written."""
        data = b"".join(buffers)
        self.calls.append((len(buffers), len(data)))
        return os.pwrite(fd, data[: self.most], offset)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """A file to write to."""
    fd = os.open(tmp_path_factory.mktemp("files") / "target", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


@given(
    buffers=st.lists(st.binary(max_size=35), max_size=12),
    offset=st.integers(0, 50),
    most=st.integers(1, 12),
)
def test_write_all_keeps_each_call_within_its_limits(target, buffers, offset, most):
    """Whatever the buffers, and however little a call takes: all is written, in its place."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files_module, "WRITE_BYTES", 10)
        patch.setattr(files_module, "IOV_MAX", 3)
        files = RecordingFiles(most)
        os.ftruncate(target, 0)
        data = b"".join(buffers)
        assert write_all(files, target, buffers, offset) == len(data)
        assert os.pread(target, 1000, offset) == data
        assert all(1 <= count <= 3 and 1 <= size <= 10 for count, size in files.calls)


def test_a_folder_that_cannot_be_made_is_one_error() -> None:
    """Where the system itself says that the parent is not there though it is, as in /proc."""
    with pytest.raises(FileNotFoundError):
        Files().mkdir(Path("/proc/nowhere/x"))

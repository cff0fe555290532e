import os

import pytest

from pulsemark.ledger.limits import default_fd_limit
from pulsemark.ledger.local.io.fd_cache import FdCache
from pulsemark.testing.faulty_files import FaultyFiles


@pytest.fixture
def files():
    """The real disk, counting calls."""
    return FaultyFiles()


@pytest.fixture
def paths(tmp_path):
    """Twenty files, each holding its own name."""
    paths = [tmp_path / f"{number:02}" for number in range(20)]
    for path in paths:
        path.write_text(path.name)
    return paths


def test_open_files_stay_within_the_limit(files, paths):
    """Unused descriptors are closed, the oldest first, and opened again on demand."""
    cache = FdCache(files, limit=4)
    for path in paths * 2:
        with cache.use(path) as fd:
            assert os.pread(fd, 10, 0).decode() == path.name
        assert len(cache) <= 4
    before = files.calls["open"]
    for path in paths[-2:] * 3:
        with cache.use(path):
            pass
    assert files.calls["open"] == before
    cache.close()
    assert files.calls["open"] == files.calls["close"]


def test_pinned_descriptors_stay_open(files, paths):
    """A descriptor in use is never closed, even beyond the limit."""
    cache = FdCache(files, limit=4)
    fds = {path: cache.acquire(path) for path in paths}
    assert len(cache) == 20
    for path, fd in fds.items():
        assert os.pread(fd, 10, 0).decode() == path.name
        assert cache.acquire(path) == fd
        cache.release(fd)
        cache.release(fd)
    with cache.use(paths[0]):
        pass
    cache.acquire(paths[0])
    assert files.calls["close"] == 0
    cache.close()


def test_forgotten_file_is_closed_when_its_last_user_is_done(files, paths):
    """The descriptor of a removed file stays open while it is in use; others get a new one."""
    cache = FdCache(files, limit=4)
    first = cache.acquire(paths[0])
    assert cache.acquire(paths[0]) == first
    cache.forget(paths[0])
    assert os.pread(first, 10, 0) == b"00"
    other = cache.acquire(paths[0])
    assert other != first
    cache.release(first)
    assert os.pread(first, 10, 0) == b"00"
    cache.release(first)
    assert files.calls["close"] == 1
    cache.release(other)
    assert files.calls["close"] == 1
    cache.forget(paths[0])
    assert files.calls["close"] == 2
    cache.forget(paths[1])
    cache.close()


def test_failed_open_leaves_no_descriptor(files, paths):
    """An open that fails is the caller's error and can be tried again."""
    cache = FdCache(files, limit=4)
    files.fail("open")
    with pytest.raises(OSError, match="Errno 5"):
        cache.acquire(paths[0])
    assert len(cache) == 0
    with cache.use(paths[0]):
        pass
    with pytest.raises(FileNotFoundError):
        cache.acquire(paths[0].with_name("none"))
    made = cache.acquire(paths[0].with_name("made"), create=True)
    cache.release(made)
    cache.close()


def test_failing_close_does_no_harm(files, paths):
    """A failure to close one file must not fail the opening of another."""
    cache = FdCache(files, limit=1)
    files.fail("close", times=None)
    for path in paths:
        with cache.use(path) as fd:
            assert os.pread(fd, 10, 0).decode() == path.name
    cache.close()
    assert files.calls["open"] == files.calls["close"] == 20


def test_default_limit_leaves_the_process_room():
    """The default is bounded and never more than half of what the process may open."""
    assert 64 <= default_fd_limit() <= 4096

"""SQLite's commits on a failing disk, as the next opening finds them."""

import errno
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from pulsemark.coordination.memory import DurableTree
from pulsemark.ledger import CatalogError
from pulsemark.ledger.local.catalog import Catalog
from pulsemark.sqlite_transactions import DoubtfulCommitError, transaction
from pulsemark.testing.faulty_files import FaultyFiles


@pytest.fixture
def files():
    """Files whose database connections can fail."""
    return FaultyFiles()


@pytest.fixture
def catalog(tmp_path, files):
    """A new catalog with one value."""
    with closing(Catalog(tmp_path / "catalog.sqlite", files)) as catalog:
        catalog.put("kind", "kept", b"old")
        yield catalog


def after_kill(tmp_path):
    """The values that the next opening finds if the process is killed now."""
    (tmp_path / "copy").mkdir(exist_ok=True)
    for suffix in ("", "-wal"):
        name = f"catalog.sqlite{suffix}"
        shutil.copyfile(tmp_path / name, tmp_path / "copy" / name)
    with closing(Catalog(tmp_path / "copy" / "catalog.sqlite")) as found:
        return dict(found.items("kind"))


@pytest.mark.parametrize("step", ["commit_write", "commit_sync"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_change_that_failed_is_never_found(tmp_path, files, catalog, step, error):
    """After a failed commit nothing has changed, in memory and for the next opening."""
    for size_bytes in (1, 100, 50_000):  # of one page, and of many
        files.fail(step, error=error)
        with pytest.raises(CatalogError):
            catalog.put("kind", "refused", bytes(size_bytes))
        assert dict(catalog.items("kind")) == after_kill(tmp_path) == {"kept": b"old"}
    catalog.put("kind", "new", b"x")
    assert after_kill(tmp_path) == {"kept": b"old", "new": b"x"}


def test_a_change_that_cannot_be_taken_back_ends_the_catalog(tmp_path, files, catalog):
    """If the next opening may find a refused change, no further change is made, and all is said."""
    told: list[Exception] = []
    catalog.on_doubt = told.append
    files.fail("commit_sync")
    files.fail("commit_write", call=2)
    with pytest.raises(CatalogError, match="may find it made"):
        catalog.put("kind", "doubtful", b"x")
    assert [type(error) for error in told] == [CatalogError]
    with pytest.raises(CatalogError, match="may find it made"):
        catalog.put("kind", "later", b"x")
    assert dict(catalog.items("kind")) == {"kept": b"old"}
    assert after_kill(tmp_path).keys() == {"kept", "doubtful"}


def test_the_fault_is_one_that_a_plain_commit_does_not_survive(tmp_path, files):
    """The control: without the second commit the next opening applies what was refused."""
    with closing(files.connect(tmp_path / "catalog.sqlite")) as db:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("CREATE TABLE numbers (number INTEGER)")
        files.fail("commit_sync")
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO numbers VALUES (1)")
        with pytest.raises(sqlite3.OperationalError, match="disk I/O error"):
            db.execute("COMMIT")
        assert db.execute("SELECT count(*) FROM numbers").fetchone() == (0,)
        for suffix in ("", "-wal"):
            name = f"catalog.sqlite{suffix}"
            shutil.copyfile(tmp_path / name, tmp_path / f"copy{suffix}")
        with closing(files.connect(tmp_path / "copy")) as copy:
            assert copy.execute("SELECT count(*) FROM numbers").fetchone() == (1,)
        files.fail("commit_sync", times=2)
        with pytest.raises(DoubtfulCommitError), transaction(db):
            db.execute("INSERT INTO numbers VALUES (2)")


async def test_the_workers_shared_metadata_keep_the_rule(tmp_path, files, monkeypatch):
    """What a worker could not store is not found by the next supervisor."""
    monkeypatch.setattr(sqlite3, "connect", lambda file, **_: files.connect(Path(file)))
    with closing(DurableTree(tmp_path / "shared")) as tree:
        session = tree.session()
        await session.create("/kept", b"x")
        files.fail("commit_sync")
        with pytest.raises(sqlite3.OperationalError):
            await session.create("/refused", b"x")
        for suffix in ("", "-wal"):
            shutil.copyfile(tmp_path / f"shared{suffix}", tmp_path / f"copy{suffix}")
    with closing(DurableTree(tmp_path / "copy")) as again:
        assert await again.session().children("/") == ["kept"]

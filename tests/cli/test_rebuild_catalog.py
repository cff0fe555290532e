"""`pulsemark rebuild-catalog`: a damaged catalog made again, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pulsemark.ledger import LocalStore

Command = Any
Folder = Any


def test_damaged_catalog(folder: Folder, pulsemark: Command) -> None:
    """The error names the command, the command repairs the folder and says what is lost."""
    catalog = folder.path / "catalog.sqlite"
    catalog.write_bytes(b"not a database " * 999)
    ran = pulsemark("verify", folder.path)
    assert ran.status == 1
    assert "pulsemark rebuild-catalog" in ran.out
    ran = pulsemark("rebuild-catalog", folder.path)
    assert ran.status == 0
    assert "found 1 topic with 1 segment" in ran.out
    assert "catalog.sqlite.old-1" in ran.out
    assert "schemas" in ran.out.splitlines()[-1]
    assert pulsemark("verify", folder.path).status == 0
    with LocalStore.open(folder.path) as store:
        assert store.topic_names() == [folder.topic]


def test_sound_catalog(folder: Folder, pulsemark: Command) -> None:
    """Of a catalog that can be read nothing is lost."""
    with LocalStore.open(folder.path) as store:
        store.catalog.put("namespace", "public/default", b"{}")
    (rebuilt,) = pulsemark("rebuild-catalog", "--data-dir", folder.path, "--json").json()
    assert rebuilt == {
        "folder": str(folder.path),
        "moved_to": str(folder.path / "catalog.sqlite.old-1"),
        "topics": 1,
        "segments": 1,
        "kept_topics": 0,
        "kept_properties": 1,
        "all_kept": True,
    }


def test_refused(folder: Folder, pulsemark: Command, tmp_path: Path) -> None:
    """A folder in use, or none of ours, is left alone."""
    with LocalStore.open(folder.path):
        assert "in use" in pulsemark("rebuild-catalog", folder.path).error()
    assert not list(folder.path.glob("catalog.sqlite.old*"))
    assert "not a pulsemark data folder" in pulsemark("rebuild-catalog", tmp_path).error()
    assert list(tmp_path.glob("LOCK")) == []

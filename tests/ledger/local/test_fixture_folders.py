"""Folders of this format stay readable: each kept one, good or corrupt, reads as recorded."""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path

import pytest

from pulsemark import ledger
from pulsemark.ledger import FolderReader, LocalStore
from pulsemark.ledger.local.segment.index_file import CHUNK_ROWS
from pulsemark.maintenance.findings import Severity
from pulsemark.maintenance.rebuild import rebuild_catalog
from pulsemark.maintenance.verify import verify_folder
from pulsemark.metadata import peek

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = sorted(path for path in (ROOT / "tests/data/folders").iterdir() if path.is_dir())
EXPECTED = {path.name: json.loads(path.with_suffix(".json").read_text()) for path in FOLDERS}


@pytest.fixture
def content(monkeypatch):
    """tools/fixture_content.py as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module("fixture_content")


@pytest.fixture(params=FOLDERS, ids=lambda path: path.name)
def kept(request, tmp_path):
    """A copy of a kept folder."""
    return shutil.copytree(request.param, tmp_path / request.param.name)


def read(content, folder):
    """What a reader without the catalog finds."""
    with FolderReader(folder) as reader:
        return {name: content.content_of(reader.log(name)) for name in reader.topics()}


def with_entries(expected):
    """Topics that a reader without the catalog knows."""
    return {name: what for name, what in expected["topics"].items() if what["entries"]}


def as_json(found):
    """As it comes out of a file."""
    return json.loads(json.dumps(found))


def only_known(expected, folder_has_catalog):
    """Without the catalog what only it held is gone: properties, topics without entries."""
    if folder_has_catalog:
        return {key: expected[key] for key in ("topics", "cursors", "epochs", "properties")}
    return {
        "topics": with_entries(expected),
        "cursors": {n: c for n, c in expected["cursors"].items() if n in with_entries(expected)},
        "epochs": {n: e for n, e in expected["epochs"].items() if n in with_entries(expected)},
        "properties": {"namespace": {}, "schema": {}},
    }


def test_owner_reads_what_was_written(kept, content):
    """A store finds every topic, entry, cursor and property; a damaged catalog it refuses."""
    expected = EXPECTED[kept.name]
    has_catalog = (kept / "catalog.sqlite").exists()
    if "refused" in expected:
        with pytest.raises(getattr(ledger, expected["refused"])):
            LocalStore.open(kept)
        rebuild_catalog(kept)
    for _ in range(2):
        with LocalStore.open(kept) as store:
            found = as_json(content.content_of_store(store))
        assert found == only_known(expected, has_catalog)


def test_reader_reads_what_was_written(kept, content):
    """Without lock and catalog the same is found; after a power cut once the folder was opened."""
    expected = EXPECTED[kept.name]
    before = {path: path.read_bytes() for path in kept.rglob("*") if path.is_file()}
    found = as_json(read(content, kept))
    assert {path: path.read_bytes() for path in kept.rglob("*") if path.is_file()} == before
    if expected.get("whole_before_opening", True):
        assert found == with_entries(expected)
    else:
        assert found != with_entries(expected)
        LocalStore.open(kept).close()
        assert as_json(read(content, kept)) == with_entries(expected)


def test_verification_finds_what_is_wrong(kept):
    """What is wrong with a folder is found, by its kind, and nothing else."""
    found = [f for f in verify_folder(kept) if f.severity > Severity.NOTE]
    assert [type(f).__name__ for f in found] == EXPECTED[kept.name]["findings"]


def test_the_folders_hold_what_the_format_has(content):
    """Stamps on and off, tags, batches, control entries, ledgers, epochs, cuts, whole chunks."""
    good = {name: EXPECTED[name] for name in EXPECTED if not EXPECTED[name]["findings"]}
    rows = [
        row
        for expected in good.values()
        for topic in expected["topics"].values()
        for row in topic.get("rows", ())
    ]
    prefixes = [peek(bytes.fromhex(row[7])) for row in rows]
    assert {row[2] for row in rows} == {"DATA", "CONTROL"}
    assert {row[3] for row in rows} >= {0, 1, 2, 3}
    assert None in prefixes
    assert any(prefix is not None and prefix.application_tags for prefix in prefixes)
    assert any(len(epochs) > 2 for each in good.values() for epochs in each["epochs"].values())
    assert any(topic["first_index"] for each in good.values() for topic in each["topics"].values())
    assert any(topic["entries"] > CHUNK_ROWS
               for each in good.values() for topic in each["topics"].values())  # fmt: skip
    names = [path.name for path in (ROOT / "tests/data/folders").rglob("*")]
    assert any(name.endswith(".cut") for name in names)
    assert any(name.endswith(".journal") for name in names)
    assert any(name.endswith("-wal") for name in names)


def test_the_folders_are_small():
    """Below 100 KB each: they stay in the repository."""
    for folder in FOLDERS:
        assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 100_000


def test_the_program_makes_these_folders(content, tmp_path):
    """Made again, the folders of the present format are expected to hold the same."""
    program = importlib.import_module("make_fixture_folders")
    program.make_all(tmp_path)
    made = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    present = {n: e for n, e in EXPECTED.items() if n.startswith(program.PREFIX)}
    assert made == present

"""A folder that is moved, or whose relative name leads elsewhere, while a process has it open."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pulsemark.ledger import EARLIEST, FolderReader, LocalStore, StoreOptions

ORDERS = "persistent://public/default/orders"
SMALL = StoreOptions(segment_size_bytes=1000, ledger_entries=20)


def append(store: LocalStore, text: str, count: int = 15) -> None:
    """Append entries, with segments and ledgers that begin and end meanwhile."""
    topic = store.open_topic(ORDERS)
    for _ in range(count):
        topic.append(text.encode()).commit.wait(10)
    topic.roll()
    store.checkpoint()


def bodies(folder: Path) -> list[str]:
    """The entries that the next opening, and readers beside it, find in a folder."""
    with LocalStore.open(folder) as store, FolderReader(folder) as reader:
        found = [bytes(e.body).decode() for e in store.open_topic(ORDERS).read(EARLIEST)]
        assert [bytes(e.body).decode() for e in reader.log(ORDERS).read(EARLIEST)] == found
        return found


def files_of(folder: Path) -> dict[str, bytes]:
    """All files below a folder, by their names."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_relative_folder_stays_the_same_after_chdir(tmp_path, monkeypatch):
    """Nothing is written to the folder that has the same relative name elsewhere."""
    for place in ("here", "there"):
        (tmp_path / place).mkdir()
    with LocalStore.open(tmp_path / "there" / "data", options=SMALL) as other:
        append(other, "there")
    before = files_of(tmp_path / "there" / "data")
    monkeypatch.chdir(tmp_path / "here")
    store = LocalStore.open(Path("data"), options=SMALL)
    append(store, "a")
    reader = FolderReader(Path("data"))
    monkeypatch.chdir(tmp_path / "there")
    append(store, "b")
    store.open_topic(ORDERS).truncate_head(store.open_topic(ORDERS).read(EARLIEST)[2].position)
    assert [bytes(e.body) for e in reader.log(ORDERS).read(EARLIEST)] == [b"a"] * 13 + [b"b"] * 15
    reader.close()
    store.close()
    assert files_of(tmp_path / "there" / "data") == before
    assert bodies(tmp_path / "here" / "data") == ["a"] * 13 + ["b"] * 15


@pytest.mark.parametrize("first_to_close", ["moved", "new"])
def test_a_moved_folder_and_the_one_in_its_place_do_not_touch_each_other(tmp_path, first_to_close):
    """Both stores go on, each in its own folder; each reopening finds what was acknowledged."""
    folder, moved = tmp_path / "data", tmp_path / "moved"
    stores = {"moved": LocalStore.open(folder, options=SMALL)}
    append(stores["moved"], "a")
    folder.rename(moved)
    stores["new"] = LocalStore.open(folder, options=SMALL)
    for _ in range(2):
        append(stores["moved"], "b")
        append(stores["new"], "c")
    for name in ("new", "moved"):
        topic = stores[name].open_topic(ORDERS)
        topic.truncate_head(topic.read(EARLIEST)[5].position)
    stores["new"].open_topic("persistent://public/default/more")
    stores.pop(first_to_close).close()
    if first_to_close == "moved":
        shutil.copytree(folder, tmp_path / "copy")  # what a kill -9 would leave now
        with LocalStore.open(tmp_path / "copy") as copy:
            assert "persistent://public/default/more" in copy.topic_names()
    for store in stores.values():
        append(store, "d")
        store.close()
    last = {"moved": ["d"] * 15, "new": ["d"] * 15, first_to_close: []}
    assert bodies(moved) == ["a"] * 10 + ["b"] * 30 + last["moved"]
    assert bodies(folder) == ["c"] * 25 + last["new"]


def test_a_reader_follows_the_folder_that_it_opened(tmp_path):
    """It neither mixes in the files of a folder that took the name, nor reports damage."""
    folder, moved = tmp_path / "data", tmp_path / "moved"
    with LocalStore.open(folder, options=SMALL) as store:
        append(store, "a")
    with FolderReader(folder) as reader:
        log = reader.log(ORDERS)
        folder.rename(moved)
        with LocalStore.open(folder, options=SMALL) as store:
            append(store, "other", 40)
        with LocalStore.open(moved, options=SMALL) as store:
            append(store, "b")
        log.refresh()
        for each in (log, reader.log(ORDERS)):
            assert [bytes(e.body) for e in each.read(EARLIEST)] == [b"a"] * 15 + [b"b"] * 15

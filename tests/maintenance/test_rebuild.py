"""Catalogs that are gone, damaged, or older than the folder: what the segments know is back."""

from __future__ import annotations

import errno
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from pulsemark.ledger import (
    EARLIEST,
    CatalogError,
    CorruptCatalogError,
    CorruptFileError,
    FolderLockedError,
    ForeignFolderError,
    Position,
    UnsupportedVersionError,
)
from pulsemark.ledger.local.catalog import Catalog
from pulsemark.ledger.local.io.files import Files
from pulsemark.ledger.local.recovery import LEDGER_IDS_SKIPPED
from pulsemark.ledger.local.segment.segment_format import SegmentHeader
from pulsemark.ledger.local.store import LocalStore
from pulsemark.maintenance.rebuild import rebuild_catalog
from pulsemark.maintenance.verify import verify_folder
from pulsemark.metadata import crc32c

ORDERS = "persistent://public/default/orders"
AUDIT = "persistent://public/default/audit"
EMPTY = "persistent://public/default/empty"


def append(topic, *bodies):
    """Append entries and wait until they are durable; the last one's place."""
    for body in bodies:
        last = topic.append(body, message_count=2)
    last.commit.wait(10)
    return last


def everything(store):
    """What a user can see of a store."""
    seen = {}
    for name in store.topic_names():
        topic = store.open_topic(name)
        entries = topic.read(EARLIEST, max_entries=1000)
        cursors = {c.name: (c.mark_delete, c.properties) for c in topic.cursors.values()}
        seen[name] = [(e.position, e.index, bytes(e.stored)) for e in entries], cursors
    return seen


@pytest.fixture
def filled(open_store):
    """An open store: two topics with entries, one without, cursors, properties."""
    store = open_store(segment_size_bytes=500)
    orders, audit = store.open_topic(ORDERS), store.open_topic(AUDIT)
    for number in range(12):
        if number == 7:
            orders.roll()
        append(orders, b"order %d" % number * 4)
    append(audit, b"audit")
    cursor = orders.open_cursor("billing", initial=EARLIEST, properties={"a": 5})
    cursor.ack_cumulative(orders.read(EARLIEST)[4].position)
    store.open_topic(EMPTY).open_cursor("idle", initial=EARLIEST)
    cursor.persist().wait(10)
    store.catalog.put("namespace", "public/default", b"policies")
    return store


def remove_catalog(folder):
    """Lose the catalog."""
    for path in folder.glob("catalog.sqlite*"):
        path.unlink()


def without_empty(seen):
    """A topic without entries has no name outside the catalog."""
    return {name: what for name, what in seen.items() if name != EMPTY}


def test_missing_catalog_is_made_again(filled, open_store, caplog):
    """Topics, entries, ids and cursors are back without being asked for, and that is logged."""
    expected, ids = everything(filled), filled.catalog.topics()
    highest = filled.next_ledger_id()
    filled.close()
    remove_catalog(filled.folder)
    store = open_store()
    assert everything(store) == without_empty(expected)
    assert store.catalog.topics() == {name: ids[name] for name in ids if name != EMPTY}
    assert "only the catalog knew are lost" in caplog.text
    assert store.catalog.get("namespace", "public/default") is None
    assert store.next_ledger_id() > highest
    caplog.clear()
    store.close()
    assert everything(open_store()) == without_empty(expected)
    assert not caplog.text


def test_deleted_topic_stays_gone(filled, open_store, monkeypatch):
    """A topic whose files were left by a crash does not come back from a rebuilt catalog."""
    expected = without_empty(everything(filled))
    del expected[ORDERS]

    def disk_fails(segments):
        raise OSError("the process ends here")

    monkeypatch.setattr(filled.engine.filer, "remove_files", disk_fails)
    filled.delete_topic(ORDERS)
    filled.close()
    assert len(list((filled.folder / "ledgers").glob("*.log"))) > 3
    report = rebuild_catalog(filled.folder)
    assert (report.topics, report.kept_topics) == (1, 1)
    store = open_store()
    assert without_empty(everything(store)) == expected
    assert not store.catalog.deleted_topics()
    assert store.open_topic(ORDERS).cursors == {}
    left = [finding.path for finding in verify_folder(store.folder) if finding.path]
    assert left == [store.folder / "catalog.sqlite.old-1"]


def test_no_id_or_index_is_given_twice(filled, open_store):
    """New entries, ledgers and topics get numbers that none had before, not even a lost one."""
    ids = filled.catalog.topics()
    place = append(filled.open_topic(ORDERS), b"last")
    filled.close()
    remove_catalog(filled.folder)
    store = open_store()
    new = append(store.open_topic(ORDERS), b"new")
    assert new.index == place.index + 2
    assert new.position.ledger_id > place.position.ledger_id + LEDGER_IDS_SKIPPED
    store.open_topic("persistent://public/default/other")
    other_id = store.catalog.topics()["persistent://public/default/other"]
    assert other_id > max(ids.values())
    assert store.open_topic("persistent://public/default/other").cursors == {}


def test_missing_catalog_does_not_lose_the_journal(filled, open_store, tmp_path):
    """Entries that are only in the journal are not lost with the catalog."""
    for number in range(30):
        append(filled.open_topic(f"{AUDIT}-{number}"), b"just now")
    expected = everything(filled)
    killed = tmp_path / "killed"
    shutil.copytree(filled.folder, killed)
    remove_catalog(killed)
    for path in killed.glob("ledgers/*"):
        path.unlink()
    assert list(killed.glob("journal/*.journal"))
    assert everything(open_store(folder=killed)) == without_empty(expected)


@pytest.mark.parametrize("how", ["older", "empty file", "empty database"])
def test_catalog_that_has_less_than_the_folder(filled, open_store, how):
    """A catalog from a backup gets what it lacks; no file of the folder is overwritten."""
    filled.checkpoint()
    older = filled.folder.parent / "older.sqlite"
    Catalog(older).close()
    if how == "older":
        with open_store(folder=filled.folder.parent / "young") as young:
            append(young.open_topic(ORDERS), b"order")
        shutil.copy(young.folder / "catalog.sqlite", older)
    for number in range(70):  # more ledger ids than are reserved at once
        append(filled.open_topic(AUDIT), b"audit %d" % number)
        filled.open_topic(AUDIT).roll()
    expected = everything(filled)
    filled.close()
    remove_catalog(filled.folder)
    if how == "empty file":
        (filled.folder / "catalog.sqlite").touch()
    else:
        shutil.copy(older, filled.folder / "catalog.sqlite")
    store = open_store()
    assert everything(store) == without_empty(expected)
    append(store.open_topic(ORDERS), b"new")
    store.close()
    again = everything(open_store())
    assert again[AUDIT] == expected[AUDIT]
    assert again[ORDERS][0][:-1] == expected[ORDERS][0]


def spoil_page(path):
    """One page that is no page."""
    data = bytearray(path.read_bytes())
    data[4096:4196] = b"\xff" * 100
    path.write_bytes(data)


def fill_with_text(path):
    """Something else entirely."""
    path.write_bytes(b"not a database " * 999)


@pytest.mark.parametrize("spoil", [spoil_page, fill_with_text])
def test_error_of_a_damaged_catalog_names_the_repair(filled, open_store, spoil):
    """A damaged catalog is not replaced without being asked; the error says how to do it."""
    expected = everything(filled)
    filled.close()
    spoil(filled.folder / "catalog.sqlite")
    for _ in range(2):
        with pytest.raises(CorruptCatalogError, match="pulsemark rebuild-catalog") as caught:
            open_store()
        assert isinstance(caught.value, CatalogError)
        assert isinstance(caught.value, CorruptFileError)
        assert caught.value.path == filled.folder / "catalog.sqlite"
    rebuilt = rebuild_catalog(filled.folder)
    assert rebuilt.moved_to is not None
    assert rebuilt.moved_to.name == "catalog.sqlite.old-1"
    assert rebuilt.moved_to.exists()
    assert rebuilt.segments > 4
    assert without_empty(everything(open_store())) == without_empty(expected)


def test_what_can_be_read_of_the_old_catalog_is_kept(filled, open_store):
    """Rebuilt without need, the catalog has the same content as before."""
    expected = everything(filled)
    filled.close()
    for number in (1, 2):
        rebuilt = rebuild_catalog(filled.folder)
        assert rebuilt.all_kept
        assert (rebuilt.kept_topics, rebuilt.kept_properties) == (1, 1)
        assert rebuilt.moved_to is not None
        assert rebuilt.moved_to.name == f"catalog.sqlite.old-{number}"
    store = open_store()
    assert everything(store) == expected
    assert store.catalog.get("namespace", "public/default") == b"policies"


def change_property(path):
    """Another value than the one that was stored, as after a changed bit."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("DROP TRIGGER property_written")
        db.execute("UPDATE property SET value=x'70' WHERE kind='namespace'")
        db.commit()


def test_damaged_property_is_not_taken_over(filled, open_store, caplog):
    """A value that is not what was stored is named and left out; the others are copied."""
    filled.catalog.put("tenant", "acme", b"bob")
    filled.close()
    change_property(filled.folder / "catalog.sqlite")
    with pytest.raises(CorruptCatalogError):
        open_store()
    rebuilt = rebuild_catalog(filled.folder)
    assert (rebuilt.kept_topics, rebuilt.kept_properties, rebuilt.all_kept) == (1, 1, False)
    assert "'namespace' of 'public/default'" in caplog.text
    store = open_store()
    assert store.catalog.get("namespace", "public/default") is None
    assert store.catalog.get("tenant", "acme") == b"bob"


@pytest.mark.parametrize(
    ("owner", "step"), [(Catalog, "write"), (Catalog, "create_topic"), (LocalStore, "open")]
)
def test_failed_rebuild_leaves_the_old_catalog(filled, open_store, monkeypatch, owner, step):
    """After a full disk the folder is as it was: policies that keep data are not lost."""
    expected = everything(filled)
    filled.close()

    def disk_is_full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patch:
        patch.setattr(owner, step, disk_is_full)
        with pytest.raises(OSError, match="no space left"):
            rebuild_catalog(filled.folder)
    assert not list(filled.folder.glob("catalog.sqlite.*"))
    store = open_store()
    assert store.catalog.get("namespace", "public/default") == b"policies"
    assert everything(store) == expected


def test_killed_rebuild_keeps_the_properties(filled, open_store, monkeypatch, tmp_path):
    """Whatever is in the folder when the process ends, the next opening finds all properties."""
    expected = everything(filled)
    filled.close()
    copies: list[Path] = []

    def copy_before(call):
        def copied(*args: object, **kwargs: object) -> object:
            copies.append(shutil.copytree(filled.folder, tmp_path / f"killed-{len(copies)}"))
            return call(*args, **kwargs)

        return copied

    with monkeypatch.context() as patch:
        for owner, step in [
            (Catalog, "write"),
            (Files, "rename"),
            (Files, "unlink"),
            (Files, "sync_folder"),
            (LocalStore, "open"),
            (Catalog, "create_topic"),
        ]:
            patch.setattr(owner, step, copy_before(getattr(owner, step)))
        rebuild_catalog(filled.folder)
    assert len(copies) >= 5
    for copy in copies:
        with open_store(folder=copy) as store:
            assert store.catalog.get("namespace", "public/default") == b"policies", copy.name
            assert without_empty(everything(store)) == without_empty(expected)
        assert rebuild_catalog(copy).kept_properties == 1
        names = {Path(finding.path).name for finding in verify_folder(copy) if finding.path}
        assert all(name.startswith("catalog.sqlite.old-") for name in names)


def test_a_copied_catalog_is_durable(filled, monkeypatch):
    """Without hard links the old catalog is copied, and synced before the new one replaces it."""
    filled.close()
    steps = []
    sync, rename = Files.fsync, Files.rename

    def fsync(files, fd):
        steps.append(Path(f"/proc/self/fd/{fd}").resolve().name)
        sync(files, fd)

    def renamed(files, old, new):
        steps.append(f"rename {new.name}")
        rename(files, old, new)

    def link(*_):
        raise OSError(errno.EPERM, "this file system has no links")

    monkeypatch.setattr("pulsemark.maintenance.rebuild.os.link", link)
    monkeypatch.setattr(Files, "fsync", fsync)
    monkeypatch.setattr(Files, "rename", renamed)
    rebuild_catalog(filled.folder)
    assert steps.index("catalog.sqlite.old-1") < steps.index("rename catalog.sqlite")


def test_folder_in_use_is_refused(filled, tmp_path):
    """Rebuilding refuses the folder of a running broker, and any other folder."""
    with pytest.raises(FolderLockedError):
        rebuild_catalog(filled.folder)
    assert (filled.folder / "catalog.sqlite").exists()
    with pytest.raises(ForeignFolderError):
        rebuild_catalog(tmp_path)
    filled.close()
    remove_catalog(filled.folder)
    rebuilt = rebuild_catalog(filled.folder)
    assert (rebuilt.moved_to, rebuilt.all_kept) == (None, False)


def test_of_two_topics_with_one_name_the_newer_counts(filled, open_store):
    """Files of a deleted topic do not appear under a new topic of the same name."""
    first = filled.open_topic(AUDIT).segments()[0]
    left = first.path.read_bytes()
    filled.delete_topic(AUDIT)
    append(filled.open_topic(AUDIT), b"the namesake")
    expected = everything(filled)
    filled.close()
    first.path.write_bytes(left)
    remove_catalog(filled.folder)
    assert everything(open_store()) == without_empty(expected)


def test_owner_salvages_by_what_the_catalog_says(filled, open_store):
    """A topic's only header is damaged: the owner still knows the topic from the catalog."""
    expected = everything(filled)
    segment = filled.open_topic(AUDIT).segments()[0]
    filled.close()
    data = segment.path.read_bytes()
    size = segment.header.size_bytes
    segment.path.write_bytes(bytes(size) + data[size:])
    store = open_store()
    assert everything(store) == expected
    assert append(store.open_topic(AUDIT), b"next").index == 3


def test_a_lost_ledger_does_not_hide_those_before_it(filled, open_store):
    """If a ledger in the middle is lost, the older one is readable, and the index shows the gap."""
    orders = filled.open_topic(ORDERS)
    append(orders, b"last of the second ledger")
    orders.roll()
    place = append(orders, b"third ledger")
    ledgers = sorted({s.ledger_id for s in orders.segments()})
    gone = [s for s in orders.segments() if s.ledger_id == ledgers[1]]
    kept = [e.position for e in orders.read(EARLIEST) if e.position.ledger_id != ledgers[1]]
    filled.close()
    for segment in gone:
        segment.path.unlink()
    store = open_store()
    orders = store.open_topic(ORDERS)
    assert [e.position for e in orders.read(EARLIEST)] == kept
    assert orders.first_position == Position(ledgers[0], 0)
    assert append(orders, b"next").index == place.index + 2


def test_compacted_view_counts_again(filled, open_store):
    """Only the catalog said which view counts; without it the newest finished one does."""
    from pulsemark.ledger.store import VIEW_PROPERTY_KIND

    views = [f"compacted/{filled.open_topic(AUDIT).topic_id}/{n}" for n in (1, 2)]
    for name in views:
        append(filled.open_view(name), b"record")
    topic_id = str(filled.open_topic(AUDIT).topic_id)
    filled.close()
    remove_catalog(filled.folder)
    store = open_store()
    assert store.catalog.get(VIEW_PROPERTY_KIND, topic_id) == b""
    assert not set(views) & set(store.topic_names())


def test_segment_of_an_unknown_topic_is_kept_while_the_catalog_is_older(open_store):
    """Only a catalog that has all ledgers may decide that a segment belongs to no topic."""
    with open_store() as store:
        append(store.open_topic(ORDERS), b"order")
    header = SegmentHeader(AUDIT, 77, 5000, 0, 0, 0, 0, 0, -1, 0)
    path = store.folder / "ledgers" / f"{5000:016x}-00000000.log"
    path.write_bytes(header.pack())
    again = open_store()
    assert again.topic_names() == [AUDIT, ORDERS]
    assert path.exists()


@pytest.mark.parametrize("step", ["skip_topic_ids", "put", "adopt"])
def test_interrupted_completion_is_repeated(filled, open_store, monkeypatch, step):
    """If the process ends while it completes a catalog, the next opening does the rest."""
    from pulsemark.compaction.compaction import compact

    compact(filled.open_topic(AUDIT))
    filled.open_topic("persistent://public/default/last").open_cursor("c", initial=EARLIEST)
    last_id = filled.open_topic("persistent://public/default/last").topic_id
    filled.close()
    remove_catalog(filled.folder)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Catalog, step, die)
        with pytest.raises(KeyboardInterrupt):
            open_store()
    store = open_store()
    new = store.open_topic("persistent://public/default/new")
    assert new.topic_id > last_id
    assert new.cursors == {}
    audit = store.open_topic(AUDIT)
    assert store.catalog.get("compaction", str(audit.topic_id)) is not None


@pytest.mark.parametrize("newer", ["segment", "catalog"])
def test_data_of_a_newer_version_is_not_replaced(filled, open_store, newer):
    """Rebuilding refuses before it has changed anything."""
    path = filled.open_topic(AUDIT).segments()[0].path
    filled.close()
    catalog = filled.folder / "catalog.sqlite"
    if newer == "catalog":
        with sqlite3.connect(catalog) as db:
            db.execute("PRAGMA user_version = 9")
        db.close()
    else:
        data = bytearray(path.read_bytes())
        size = int.from_bytes(data[12:16], "little")
        data[8] = 9
        data[size - 4 : size] = crc32c(bytes(data[: size - 4])).to_bytes(4, "little")
        path.write_bytes(data)
    before = catalog.read_bytes()
    with pytest.raises(UnsupportedVersionError):
        rebuild_catalog(filled.folder)
    assert catalog.read_bytes() == before
    assert not list(filled.folder.glob("*.old-*"))


def test_copy_of_the_catalog_from_before_a_topic_is_noticed(filled, open_store, caplog):
    """Also within the ledger ids of one reservation: the topic is back, its id is not given again.

    So it is for what had been synced into segments, and for what is in the journal alone.
    """
    copy = filled.folder.parent / "copy.sqlite"
    with closing(sqlite3.connect(copy)) as target:
        filled.catalog.db.backup(target)
    reserved = filled.catalog.next_ledger_id()
    new = [f"{AUDIT}-{number}" for number in range(2)]
    append(filled.open_topic(new[0]), b"synced and listed")
    filled.checkpoint()
    append(filled.open_topic(new[1]), b"in the journal")
    append(filled.open_topic(ORDERS), b"one more")
    expected = everything(filled)
    killed = shutil.copytree(filled.folder, filled.folder.parent / "killed")
    filled.close()
    remove_catalog(killed)
    shutil.copy(copy, killed / "catalog.sqlite")
    assert reserved > max(entry[0].ledger_id for name in new for entry in expected[name][0])
    store = open_store(folder=killed)
    assert everything(store) == expected
    assert "older than the folder" in caplog.text
    known = set(store.catalog.topics().values())
    other = store.open_topic("persistent://public/default/other")
    assert other.topic_id not in known
    assert other.cursors == {}


def test_file_of_a_deleted_topic_does_not_bring_it_back(filled, open_store, caplog):
    """The catalog knew the topic and no longer lists it: it is not taken for an older catalog."""
    segment = filled.open_topic(AUDIT).segments()[0]
    filled.checkpoint()
    content = segment.path.read_bytes()
    filled.delete_topic(AUDIT)
    filled.close()
    segment.path.write_bytes(content)
    store = open_store()
    assert store.topic_names() == [EMPTY, ORDERS]
    assert "older than the folder" not in caplog.text

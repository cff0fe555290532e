"""Whatever is wrong with a data folder is found and named, and nothing else is."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from random import Random

import pytest

from pulsemark.ledger import (
    EARLIEST,
    CorruptEntryError,
    FolderReader,
    ForeignFolderError,
    Position,
    TopicNotFoundError,
    UnsupportedVersionError,
)
from pulsemark.ledger.local.io.files import Files
from pulsemark.ledger.local.segment.index_file import TRAILER_SIZE
from pulsemark.maintenance import findings, verify
from pulsemark.maintenance.findings import DamagedCatalog, DamagedEntries, Severity
from pulsemark.maintenance.verify import verify_folder
from pulsemark.maintenance.verify_catalog import read_catalog
from pulsemark.maintenance.verify_topic import Checked
from pulsemark.metadata import crc32c
from pulsemark.testing.faulty_files import flipped
from pulsemark.testing.raw_messages import unbatched_message

ORDERS = "persistent://public/default/orders"
AUDIT = "persistent://public/default/audit"


def fill(store, clock, stamped, count=24):
    """Topics with all that a healthy folder can have: ledgers, segments, epochs, a cut head."""
    orders, audit = store.open_topic(ORDERS), stamped(store.open_topic(AUDIT))
    random = Random(5)
    for number in range(count):
        clock.advance(by_ms=random.randint(0, 50))
        if number == count // 3:
            orders.roll()
        if number == count // 2:
            orders.begin_epoch(2)
        time_ms = clock.now_ms() - random.randint(0, 5000)
        orders.append(
            unbatched_message(b"order %d" % number, publish_time_ms=time_ms), message_count=2
        )
        last = audit.append(b"audit %d" % number * random.randint(1, 20))
    last.commit.wait(10)
    orders.open_cursor("billing", initial=EARLIEST).persist().wait(10)
    orders.truncate_head(orders.read(EARLIEST)[2].position)


@pytest.fixture
def live(open_store, clock, stamped):
    """A filled store, open."""
    store = open_store(segment_size_bytes=600)
    fill(store, clock, stamped)
    return store


@pytest.fixture
def folder(live):
    """A filled folder, closed in order."""
    live.close()
    return live.folder


def kinds(folder, severity=Severity.NOTE, **more):
    """The kinds of findings of at least that severity, in order."""
    found = verify_folder(folder, **more)
    return [type(f).__name__ for f in found if f.severity >= severity]


def damages(folder):
    """The findings of damage."""
    return [f for f in verify_folder(folder) if f.severity is Severity.DAMAGE]


def segments(folder, topic=ORDERS):
    """A topic's segments, as a reader sees them."""
    with FolderReader(folder) as reader:
        return reader.log(topic).segments()


def flip(path, bit):
    """Turn one bit of a file."""
    data = flipped(path.read_bytes(), bit)
    path.write_bytes(data)


def test_healthy_folder_is_clean(folder):
    """A folder that was closed properly has no findings, and all of it was read."""
    checked = Checked()
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert list(verify_folder(folder, checked=checked)) == []
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    assert (checked.topics, checked.entries) == (2, 24 + 24 - 2 + 1 + 1)
    assert checked.messages == 2 * (24 - 2) + 24  # without the mark and the record of a cursor
    assert checked.control_entries == 1
    assert checked.segments == len(list(folder.glob("ledgers/*.log")))


def test_folder_in_use_is_clean(live):
    """A folder is verified beside its owner, without a lock; the journal gives a note."""
    live.open_topic(AUDIT).append(b"one more").commit.wait(10)
    assert kinds(live.folder, Severity.LEFTOVER) == []
    assert "JournalInUse" in kinds(live.folder)


def test_folder_is_clean_while_everything_changes(live):
    """Appends, rolls, trims, cut heads, new leaders and deleted topics are not damage meanwhile."""
    random = Random(7)
    steps = iter(range(60))

    def work():
        for _ in steps:
            topic = live.open_topic(f"{AUDIT}-{random.randint(0, 2)}")
            for _ in range(random.randint(1, 9)):
                last = topic.append(bytes(random.randint(1, 300)))
            last.commit.wait(10)
            what = random.randint(0, 9)
            if what == 0:
                topic.roll()
            elif what == 1:
                topic.truncate_head(topic.read(EARLIEST)[-1].position)
            elif what == 2:
                topic.trim(topic.last_position)
            elif what == 3:
                topic.truncate_tail(topic.segments()[-1].first_index, epoch=topic.epoch + 1)
            elif what == 4:
                live.delete_topic(topic.name)
            elif what == 5:
                live.checkpoint()

    writer = threading.Thread(target=work)
    writer.start()
    try:
        while writer.is_alive():
            assert damages(live.folder) == []
    finally:
        for _ in steps:
            pass
        writer.join()
    live.close()
    assert kinds(live.folder) == []


def new_topic(store):
    """A topic that was not there."""
    store.open_topic(f"{AUDIT}-new").append(b"new").commit.wait(10)


def new_segments(store):
    """Some segments more, in the same ledger."""
    for _ in range(5):
        store.open_topic(AUDIT).append(bytes(400)).commit.wait(10)


def new_ledger(store):
    """The next entry stands in a ledger of its own."""
    store.open_topic(AUDIT).roll()
    store.open_topic(AUDIT).append(b"rolled").commit.wait(10)


def trimmed(store):
    """Whole segments go, the newest ones stay."""
    store.open_topic(AUDIT).trim(store.open_topic(AUDIT).last_position)


def cut_head(store):
    """Entries go, also out of the middle of a segment."""
    store.open_topic(AUDIT).truncate_head(store.open_topic(AUDIT).read(EARLIEST)[-2].position)


def cut_tail(store):
    """The newest segments go, and a new ledger stands in their place."""
    audit = store.open_topic(AUDIT)
    audit.truncate_tail(audit.segments()[1].first_index + 1, epoch=audit.epoch + 1).commit.wait(10)
    audit.append(b"instead").commit.wait(10)


def trimmed_and_new(store):
    """Nothing that was there stays."""
    new_ledger(store)
    new_segments(store)
    trimmed(store)


def deleted(store):
    """The topic goes with all its segments."""
    store.delete_topic(AUDIT)


CHANGES = [
    new_topic, new_segments, new_ledger, trimmed, cut_head, cut_tail, trimmed_and_new, deleted,
]  # fmt: skip


class Listing(Files):
    """Does something once the ledgers' folder was listed."""

    def __init__(self, then):
        self._then = then

    def listdir(self, path):
        """As Files.listdir."""
        names = super().listdir(path)
        if path.name == "ledgers":
            self._then()
        return names


@pytest.mark.parametrize("when", ["files listed", "headers read", "catalog read"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_changes_between_headers_and_catalog_is_no_damage(live, monkeypatch, change, when):
    """Headers and catalog are not read at the same moment; a change in between is not reported."""
    left = [change]

    def change_once():
        while left:
            left.pop()(live)
            live.checkpoint()

    def read(path):
        if when == "catalog read":
            content = read_catalog(path)
            change_once()
            return content
        if when == "headers read":
            change_once()
        return read_catalog(path)

    monkeypatch.setattr(verify, "read_catalog", read)
    files = Listing(change_once) if when == "files listed" else Files()
    live.checkpoint()
    found = list(verify_folder(live.folder, files=files))
    assert left == []
    assert [f for f in found if f.severity is Severity.DAMAGE] == []
    live.close()
    assert damages(live.folder) == []


def test_every_flipped_bit_of_a_segment_is_found(folder):
    """Wherever a bit of a segment turns, header, record or body, verification names the file."""
    random = Random(1)
    for topic in (ORDERS, AUDIT):
        for segment in segments(folder, topic):
            good = segment.path.read_bytes()
            start = segment.index.row(segment.cut_rows).offset if segment.cut_rows else 0
            bits = [*random.sample(range(8 * start, 8 * len(good)), 4), 8 * len(good) - 1]
            for bit in bits:
                flip(segment.path, bit)
                found = damages(folder)
                assert found, f"{segment.path} bit {bit}"
                assert {f.path for f in found} == {segment.path}
                segment.path.write_bytes(good)
    assert list(verify_folder(folder)) == []


def test_every_flipped_bit_of_an_index_file_is_reported(folder):
    """Index files are only caches; a flipped bit in one is reported all the same."""
    random = Random(2)
    for path in folder.glob("ledgers/*.idx"):
        good = path.read_bytes()
        for bit in random.sample(range(8 * len(good)), 8):
            flip(path, bit)
            found = [f for f in verify_folder(folder) if f.path == path]
            if bit < 8 * (len(good) - TRAILER_SIZE):
                assert [type(f) for f in found] == [findings.DamagedIndex]
                assert found[0].severity is Severity.DAMAGE
            else:
                # Then it looks like one that was not finished, as the newest may be.
                assert [type(f) for f in found] in ([findings.MissingIndex], [])
            path.write_bytes(good)


def test_every_flipped_bit_of_a_cut_file_is_found(folder):
    """A damaged cut file is reported: entries that were removed are back."""
    (path,) = folder.glob("ledgers/*.cut")
    good = path.read_bytes()
    for bit in range(0, 8 * len(good), 13):
        flip(path, bit)
        found = damages(folder)
        assert "DamagedCut" in {type(f).__name__ for f in found}
        path.write_bytes(good)


def test_damage_is_what_readers_report(folder):
    """The entries that verification names are those that readers cannot give, and no others."""
    for segment in segments(folder, AUDIT)[:3]:
        flip(segment.path, 8 * segment.row(0).end_offset - 30)
    found = damages(folder)
    assert all(isinstance(f, findings.DamagedEntries) for f in found)
    named = [f.first for f in found]
    refused = []
    with FolderReader(folder) as reader:
        log, place = reader.log(AUDIT), EARLIEST
        while place < log.end_position:
            try:
                last = log.read(place)[-1].position
                place = Position(last.ledger_id, last.entry_id + 1)
            except CorruptEntryError as error:
                refused.append(error.position)
                place = error.next_position
    assert refused == named != []
    assert [f.end for f in found] == [Position(p.ledger_id, p.entry_id + 1) for p in named]


def test_wrong_index_with_right_checksums_is_found(folder):
    """An index file that is whole, but differs from the records, is damage."""
    segment = segments(folder, AUDIT)[1]
    path = segment.path.with_suffix(".idx")
    good = path.read_bytes()
    seed = crc32c(
        segment.ledger_id.to_bytes(8, "little") + bytes([segment.header.segment_no, 0, 0, 0])
    )
    end = len(good) - 40
    at = 32 + segment.header.size_bytes  # where the chunk begins
    for offset, reason in [
        (at + 32, "sum"), (at + 40, "time"), (end - 2, "address"), (at + 16, "time or mess"),
    ]:  # fmt: skip
        data = bytearray(good)
        data[offset] ^= 1
        crc = crc32c(bytes(data[at + 8 : end]), seed)
        data[at + 4 : at + 8] = crc.to_bytes(4, "little")
        path.write_bytes(data)
        (found,) = damages(folder)
        assert isinstance(found, findings.DamagedIndex)
        assert reason in found.reason
    data = bytearray(good)
    data[-28] ^= 1
    data[-36:-32] = crc32c(bytes(data[-32:]), seed).to_bytes(4, "little")
    path.write_bytes(data)
    assert [f.reason for f in damages(folder)] == ["the trailer's numbers differ from the records'"]


def test_cut_off_segment_in_the_middle(folder):
    """Where a later header counts more entries than there are, the missing ones are named."""
    segment = segments(folder, AUDIT)[1]
    with segment.path.open("r+b") as file:
        file.truncate(segment.row(1).offset)
    lost = [f for f in damages(folder) if isinstance(f, findings.LostEntries)]
    assert [(f.first, f.end) for f in lost] == [
        (Position(segment.ledger_id, segment.first_entry_id + 1),
         Position(segment.ledger_id, segment.end_entry_id)),
    ]  # fmt: skip
    assert lost[0].message_count == segment.entry_count - 1


def test_cut_off_newest_segment(folder):
    """At the very end only the index file says how many entries there were."""
    segment = segments(folder, AUDIT)[-1]
    with segment.path.open("r+b") as file:
        file.truncate(segment.row(segment.entry_count - 1).offset + 7)
    (lost,) = damages(folder)
    assert isinstance(lost, findings.LostEntries)
    assert lost.end == Position(segment.ledger_id, segment.end_entry_id)
    segment.path.with_suffix(".idx").unlink()
    (tail,) = [f for f in verify_folder(folder) if f.path == segment.path]
    assert isinstance(tail, findings.TornTail)
    assert tail.size_bytes == 7


def test_lost_files(folder):
    """A segment that the catalog lists and that is gone is named, with what is lost by it."""
    middle = segments(folder, AUDIT)[2]
    middle.path.unlink()
    found = kinds(folder, Severity.DAMAGE)
    assert found[0] == "LostSegment"
    assert set(found) == {"LostSegment", "LostEntries"}
    assert "LeftoverFile" in kinds(folder)  # its index file


def test_lost_ledger(folder):
    """A whole ledger that is gone shows as a gap in the index; older ones are still read."""
    ledgers = sorted({s.ledger_id for s in segments(folder)})
    for segment in segments(folder):
        if segment.ledger_id == ledgers[1]:
            segment.path.unlink()
            segment.path.with_suffix(".idx").unlink()
    found = damages(folder)
    assert {type(f).__name__ for f in found} == {"LostSegment", "IndexGap"}
    (gap,) = [f for f in found if isinstance(f, findings.IndexGap)]
    assert gap.position == Position(ledgers[2], 0)
    assert gap.found_index - gap.expected_index == 2 * 4


def test_damaged_header(folder):
    """A damaged header is reported as damage, and whether its entries can still be read."""
    segment = segments(folder, AUDIT)[1]
    flip(segment.path, 300)
    (found,) = damages(folder)
    assert isinstance(found, findings.DamagedHeader)
    assert (found.topic, found.salvaged) == (AUDIT, True)
    segment.path.write_bytes(bytes(segment.path.stat().st_size))
    segment.path.with_suffix(".idx").unlink()
    names = kinds(folder, Severity.DAMAGE)
    assert names.count("LostSegment") == names.count("DamagedHeader") == 1


def test_without_catalog(folder):
    """A missing, empty, older or damaged catalog is damage; the segments are read all the same."""
    path = folder / "catalog.sqlite"
    good = path.read_bytes()
    path.unlink()
    assert kinds(folder) == ["DamagedCatalog"]
    path.touch()
    assert kinds(folder) == ["DamagedCatalog"]
    path.write_bytes(b"not a database " * 500)
    (found,) = verify_folder(folder)
    assert isinstance(found, DamagedCatalog)
    assert "rebuild-catalog" in found.reason
    data = bytearray(good)
    data[4096:4100] = b"\xff\xff\xff\xff"
    path.write_bytes(data)
    assert kinds(folder) == ["DamagedCatalog"]


def test_catalog_that_does_not_know_a_segment(folder):
    """A segment that belongs to a log and is not listed would be ignored by its owner: damage."""
    import sqlite3

    segment = segments(folder, AUDIT)[1]
    with sqlite3.connect(folder / "catalog.sqlite") as db:
        db.execute("DELETE FROM segment WHERE ledger_id=? AND segment_no=?",
                   (segment.ledger_id, segment.header.segment_no))  # fmt: skip
    db.close()
    (found,) = damages(folder)
    assert isinstance(found, findings.UnlistedSegment)
    assert found.path == segment.path


def test_leftovers_are_no_damage(folder):
    """Files that a crash or a deleted topic leaves are not reported as damage."""
    ledgers = folder / "ledgers"
    deleted = segments(folder, AUDIT)[0]
    (ledgers / f"{999:016x}-00000000.log").write_bytes(b"")
    (ledgers / f"{998:016x}-00000000.idx").write_bytes(b"index")
    (ledgers / f"{998:016x}-00000000.cut.new").write_bytes(b"half")
    (ledgers / "notes.txt").write_text("hello")
    (folder / "PULSEMARK.new").write_text("{")
    (folder / "catalog.sqlite.old-1").write_text("old")
    (folder / "backup").mkdir()
    (folder / "journal" / "0.journal").touch()
    with deleted.path.open("ab") as file:
        file.write(b"")
    found = list(verify_folder(folder))
    assert [f.severity for f in found].count(Severity.DAMAGE) == 0
    assert sorted((type(f).__name__, Path(f.path).name if f.path else "") for f in found) == [
        ("ForeignFile", "0.journal"),
        ("ForeignFile", "backup"),
        ("ForeignFile", "notes.txt"),
        ("LeftoverFile", "00000000000003e6-00000000.cut.new"),
        ("LeftoverFile", "00000000000003e6-00000000.idx"),
        ("LeftoverFile", "00000000000003e7-00000000.log"),
        ("LeftoverFile", "PULSEMARK.new"),
        ("LeftoverFile", "catalog.sqlite.old-1"),
    ]


def test_entries_that_never_counted_are_leftovers(folder, open_store):
    """Entries that a new leader cut off, and segments of deleted topics, are leftovers."""
    store = open_store(segment_size_bytes=600)
    orders = store.open_topic(ORDERS)
    long = [s for s in orders.segments() if s.entry_count > 1][-1]
    left = store.open_topic(AUDIT).segments()[0]
    copy = left.path.read_bytes()
    orders.truncate_tail(long.index_before(1), epoch=9)
    store.delete_topic(AUDIT)
    store.close()
    left.path.write_bytes(copy)
    assert kinds(folder) == ["VoidEntries", "LeftoverFile"]


def test_segment_that_the_journal_restores_is_a_note(live, tmp_path):
    """After a power cut, entries that only the journal has give a note, not damage."""
    live.checkpoint()
    audit = live.open_topic(AUDIT)
    before = {s.path.name: s.path.stat().st_size for s in audit.segments()}
    for number in range(30):
        audit.append(b"in the journal %d" % number).commit.wait(10)
    cut = tmp_path / "cut"
    shutil.copytree(live.folder, cut)
    live.close()
    for segment in segments(cut, AUDIT):
        path = cut / "ledgers" / segment.path.name
        size = before.get(path.name)
        if size is None:
            path.write_bytes(bytes(path.stat().st_size))
        else:
            path.write_bytes(path.read_bytes()[:size] + bytes(50))
    with_journal, without = Checked(), Checked()
    assert kinds(cut, Severity.LEFTOVER, checked=with_journal) == []
    assert "RestoredByJournal" in kinds(cut)
    for path in cut.glob("journal/*"):
        path.unlink()
    kinds(cut, checked=without)
    assert with_journal.entries - without.entries == 30


def test_damaged_journal(live, tmp_path):
    """A block that is not whole, with a whole one after it, was whole once: that is damage."""
    for number in range(5):
        live.open_topic(AUDIT).append(b"entry %d" % number).commit.wait(10)
    copy = tmp_path / "copy"
    shutil.copytree(live.folder, copy)
    (journal,) = [p for p in copy.glob("journal/*") if p.read_bytes()[:4] == b"PMKJ"]
    flip(journal, 8 * 170)
    found = list(verify_folder(copy))
    assert [type(f).__name__ for f in found if f.severity is Severity.DAMAGE] == ["DamagedJournal"]
    assert found[0].path == journal


def test_one_topic(folder):
    """Asked for some topics, only they are read; damage in others is not reported."""
    flip(segments(folder, AUDIT)[0].path, 8 * 200)
    checked = Checked()
    assert list(verify_folder(folder, topics=[ORDERS], checked=checked)) == []
    assert checked.topics == 1
    assert kinds(folder, topics=[AUDIT]) == ["DamagedEntries"]
    with pytest.raises(TopicNotFoundError):
        list(verify_folder(folder, topics=[ORDERS, "persistent://public/default/none"]))


def test_refused_folders(folder, tmp_path):
    """A folder that is not a data folder, or that a newer program wrote, is refused."""
    with pytest.raises(ForeignFolderError):
        list(verify_folder(tmp_path / "none"))
    path = segments(folder)[1].path
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[12:16], "little")
    data[8] = 9
    data[size - 4 : size] = crc32c(bytes(data[: size - 4])).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(UnsupportedVersionError):
        list(verify_folder(folder))


def test_findings_have_a_text_and_facts(folder):
    """Every finding has a text for people and facts for programs."""
    flip(segments(folder, AUDIT)[0].path, 8 * 200)
    (found,) = verify_folder(folder)
    assert AUDIT in str(found)
    assert isinstance(found, DamagedEntries)
    assert str(found.first) in str(found)
    assert str(found.path) in str(found)
    facts = json.loads(json.dumps(found.facts()))
    assert facts["kind"] == "DamagedEntries"
    assert facts["severity"] == "damage"
    assert facts["first"] == {"ledger_id": found.first.ledger_id, "entry_id": 0}
    assert facts["path"] == str(found.path)

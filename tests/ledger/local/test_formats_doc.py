"""docs/formats.md is a specification: its bytes, numbers and names are those of the code."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import struct
from array import array
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from unittest.mock import patch

import pytest

from pulsemark.compaction import view_format
from pulsemark.compaction.view_format import RecordType
from pulsemark.ledger import (
    EARLIEST,
    CorruptEntryError,
    FolderReader,
    LedgerError,
    LocalStore,
    Position,
    StoreOptions,
    errors,
    limits,
    store,
    store_core,
)
from pulsemark.ledger.entry import EntryKind
from pulsemark.ledger.limits import BODY_CRC_OURS, BODY_CRC_PRODUCER
from pulsemark.ledger.local import catalog as catalog_module
from pulsemark.ledger.local import ledgers, recovery
from pulsemark.ledger.local.catalog import Catalog
from pulsemark.ledger.local.commit import journal
from pulsemark.ledger.local.commit.journal import (
    JOURNAL_HEADER_SIZE,
    GroupRef,
    JournalHeader,
    pack_block_head,
    replay,
)
from pulsemark.ledger.local.io import folder
from pulsemark.ledger.local.io.files import Files
from pulsemark.ledger.local.segment import index_file, record_format, segment_format
from pulsemark.ledger.local.segment.index_file import (
    CHUNK_HEADER_SIZE,
    CHUNK_ROWS,
    INDEX_HEADER_SIZE,
    ROW_SIZE,
    TRAILER_SIZE,
    Chunk,
    Trailer,
    chunk_offset,
    index_seed,
    pack_index_header,
    unpack_chunk,
    unpack_trailer,
)
from pulsemark.ledger.local.segment.record_format import (
    pack_body_crc,
    pack_record_head,
    unpack_record_head,
)
from pulsemark.ledger.local.segment.segment import as_segment
from pulsemark.ledger.local.segment.segment_format import (
    HeadCut,
    SegmentHeader,
    cut_path,
    examine_cut,
    pack_cut,
    unpack_segment_header,
)
from pulsemark.ledger.topic_log import TopicLog, read_on
from pulsemark.maintenance import findings
from pulsemark.maintenance.findings import Finding, Severity
from pulsemark.maintenance.rebuild import rebuild_catalog
from pulsemark.maintenance.verify import stray_files, verify_folder
from pulsemark.metadata import (
    BrokerTimeStamper,
    IndexStamper,
    StamperChain,
    crc32c,
    pack_stamp,
    split,
)
from pulsemark.proto.cursor_pb2 import CursorRecord
from pulsemark.testing.clock import A_TIME_MS, SettableClock
from pulsemark.testing.raw_messages import unbatched_message

ROOT = Path(__file__).resolve().parents[3]
DOCUMENT = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
LINES = DOCUMENT.splitlines()
ORDERS = "persistent://public/default/orders"
START_MS = 1_700_000_000_000
LETTERS = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "i64": "q"}
FILES = Files()


# The document, taken apart


def rows_of(start: int) -> list[list[str]]:
    """The cells of the first table at or after a line, without its head."""
    while not LINES[start].startswith("|"):
        start += 1
    rows = []
    for line in LINES[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def table(head: str) -> list[list[str]]:
    """The one table whose first line begins so."""
    (start,) = (n for n, line in enumerate(LINES) if line.startswith(f"| {head} |"))
    return rows_of(start)


def section(heading: str) -> str:
    """What stands below a heading, up to the next one of its rank or above."""
    rank = heading.partition(" ")[0]
    end = rf"(?=^#{{1,{len(rank)}}} |\Z)"
    (found,) = re.findall(rf"^{re.escape(heading)}\n(.*?){end}", DOCUMENT, re.MULTILINE | re.DOTALL)
    return str(found)


@dataclass(frozen=True)
class Field:
    """A row of a layout; without offset and size where they are not fixed."""

    offset: int | None
    size: int | None
    type: str
    name: str


def layout(heading: str) -> list[Field]:
    """The layout below ``### heading``."""
    return [
        Field(int(at) if at else None, int(size) if size else None, kind, name)
        for at, size, kind, name, *_ in rows_of(LINES.index(f"### {heading}"))
    ]


LINE = re.compile(r"([0-9a-f]{8})  ((?:[0-9a-f]{2} ?)+)(?: *; (.+))?")


@dataclass
class Part:
    """Bytes of an example with their note."""

    data: bytes
    note: str


def example(path: str) -> list[tuple[str, list[Part]]]:
    """The example of a file: its parts by section. Offsets must count up without a gap."""
    _, _, after = DOCUMENT.partition("## Worked example")[2].partition(f"`{path}`")
    (block,) = re.findall(r"\A[^`]*^```xxd\n(.*?)^```$", after, re.MULTILINE | re.DOTALL)
    sections: list[tuple[str, list[Part]]] = []
    offset = 0
    for line in block.splitlines():
        if line.startswith("; "):
            sections.append((line[2:], []))
            continue
        match = LINE.fullmatch(line)
        assert match, line
        assert int(match[1], 16) == offset, line
        data = bytes.fromhex(match[2])
        offset += len(data)
        if match[3]:
            sections[-1][1].append(Part(data, match[3]))
        else:
            sections[-1][1][-1].data += data
    return sections


def bytes_of(path: str) -> bytes:
    """The bytes of an example."""
    return b"".join(part.data for _, parts in example(path) for part in parts)


SEGMENT = "ledgers/0000000000000007-00000000.log"
INDEX = "ledgers/0000000000000007-00000000.idx"
CUT = "ledgers/0000000000000007-00000000.cut"
JOURNAL = "journal/00000000.journal"
EXAMPLES = [SEGMENT, INDEX, CUT, JOURNAL]


# Layouts and numbers


LAYOUTS = {
    "Segment header": segment_format._FIXED.format,
    "Record header": record_format.RECORD_HEADER.format,
    "Index header": index_file._HEADER.format + "I",
    "Chunk header": index_file._CHUNK_LEAD.format + index_file._CHUNK.format[1:],
    "Trailer": index_file._CHUNK_LEAD.format + index_file._TRAILER.format[1:],
    "Cut": segment_format._CUT.format + "I",
    "Journal header": journal._HEADER.format + "I12s",
    "Block header": journal._LEAD.format + journal._BLOCK.format[1:],
    "Group": journal._GROUP.format,
    "View record": view_format.RECORD.format,
    "View entry": view_format._ENTRY.format,
    "View block": view_format._BLOCK.format,
    "View footer": view_format._BLOCK.format + view_format._SUMMARY.format[1:],
    "View property": store.PROPERTY.format,
}


def test_all_layouts_are_checked() -> None:
    """Every table of offsets in the document is compared with a layout of the code."""
    headings = [
        next(before[4:] for before in reversed(LINES[:n]) if before.startswith("### "))
        for n, line in enumerate(LINES)
        if line.startswith("| offset |")
    ]
    assert headings == list(LAYOUTS)


@pytest.mark.parametrize("heading", LAYOUTS)
def test_layout(heading: str) -> None:
    """Offsets, sizes and types of the fields are those that the code packs."""
    offset, letters = 0, "<"
    for field in layout(heading):
        if field.size is None or field.offset != offset:
            break  # after the fixed part of a segment's header
        letters += LETTERS.get(field.type, f"{field.size}s")
        assert field.type not in LETTERS or struct.calcsize(LETTERS[field.type]) == field.size
        offset += field.size
    packed = re.sub(r"(\d+)([A-Z])", lambda m: m[2] * int(m[1]), LAYOUTS[heading])
    assert letters == packed
    assert offset == struct.calcsize(LAYOUTS[heading])


def test_constants() -> None:
    """Every constant has the value that the code gives it; no magic or version is left out."""
    codes = (
        folder, segment_format, record_format, index_file, journal,
        view_format, store, catalog_module, limits, store_core, recovery,
    )  # fmt: skip
    by_name = {code.__name__.rpartition(".")[2]: code for code in codes}
    quoted = {name.strip("`"): value for name, value in table("constant")}
    for name, value in quoted.items():
        module, _, attribute = name.partition(".")
        actual = getattr(by_name[module], attribute)
        expected = bytes.fromhex(value.strip("`")) if value.startswith("`") else int(value)
        assert actual == expected, name
    for short, code in by_name.items():
        for attribute in vars(code):
            own = f"{attribute} = " in Path(str(code.__file__)).read_text(encoding="utf-8")
            if own and re.search(r"_(MAGIC|VERSION|MARKER)$", attribute):
                assert f"{short}.{attribute}" in quoted


def test_numbers_in_the_text() -> None:
    """Numbers in the sentences, which follow from constants."""
    chunk = CHUNK_HEADER_SIZE + CHUNK_ROWS * ROW_SIZE
    assert f"has {INDEX_HEADER_SIZE} + segment header size bytes;" in DOCUMENT
    assert f"chunk `n` begins at the header's end + `n` x {chunk}." in DOCUMENT
    assert chunk_offset(3, 176) == 176 + 3 * chunk
    assert f"chunk 0 begins at byte {chunk_offset(0)}." in DOCUMENT
    assert f"The trailer is the file's last {TRAILER_SIZE} bytes." in DOCUMENT
    assert f"Of the nine bytes `123456789` it is {crc32c(b'123456789'):#x}." in DOCUMENT
    assert f"The first block begins at byte {JOURNAL_HEADER_SIZE}," in DOCUMENT
    assert f"Read blocks from byte {JOURNAL_HEADER_SIZE}." in DOCUMENT
    assert f"both copies of its header, {JOURNAL_HEADER_SIZE} bytes, with zeros" in DOCUMENT
    copy = journal._COPY_SIZE
    assert f"the same {copy} bytes, at byte 0 and at byte {copy}." in DOCUMENT
    assert 2 * copy == JOURNAL_HEADER_SIZE
    assert f"a block of at most {journal._SMALL_BLOCK_BYTES} bytes" in DOCUMENT
    assert f"{len(journal._ZEROS)} zeros are written after it" in DOCUMENT
    assert f"reserved {store_core.LEDGER_IDS_AT_ONCE} at a time" in DOCUMENT
    cursors = import_module("pulsemark.ledger.cursors.cursor_store")
    more = f"more than {cursors.COMPACT_MIN_RECORDS} records"
    assert f"{more}, and more than {cursors.COMPACT_RATIO} for each cursor" in DOCUMENT
    assert f"named `{cursors.CURSOR_TOPIC}`" in DOCUMENT
    assert f"`{store.VIEW_TOPIC_PREFIX}` topic id" in DOCUMENT
    kinds = ", ".join(f"{kind.value} {kind.name.lower()}" for kind in EntryKind)
    assert f"| kind | {kinds} |" in DOCUMENT
    words = {"ENTRY": "entry", "BLOCK": "index block", "FOOTER": "footer",
             "MORE": "more of the record before"}  # fmt: skip
    types = ", ".join(f"{kind.value} {words[kind.name]}" for kind in RecordType)
    assert f"| record type | {types} |" in DOCUMENT


def test_columns_of_a_view_block() -> None:
    """The columns of an index block are named in the order in which they are packed."""
    names = [
        "message count (u32)", "ledger id", "entry id", "next index", "append time", "entry time",
        "ledger id and entry id of the record", "time maximum", "messages before",
    ]  # fmt: skip
    text = section("### View block")
    places = []
    at = 0
    for name in names:
        at = text.index(name, at)
        places.append(at)
        at += len(name)
    assert places == sorted(places)
    assert len(view_format._COLUMNS) == len(names) + 1


# Names


def test_every_name_of_the_folder_is_there(tmp_path: Path) -> None:
    """Each file that the code gives a name is in the document's picture and tables."""
    text = section("## The folder")
    segment = folder.segment_path(Path(), 7, 0)
    names = [
        folder.MARKER_NAME,
        folder.LOCK_NAME,
        folder.PROBE_NAME,
        folder.RESERVE_NAME,
        folder.CATALOG_NAME,
        folder.journal_path(Path(), 0).name,
        folder.journal_path(Path(), 1).name,
        folder.journal_folder(Path()).name + "/",
        folder.ledgers_folder(Path()).name + "/",
        segment.name,
        folder.index_path(segment).name,
        cut_path(segment).name,
        cut_path(segment).name + ".new",
        folder.MARKER_NAME + ".new",
        *(f"{folder.CATALOG_NAME}{suffix}" for suffix in ("-wal", "-shm", ".old-1")),
        "lost+found",
    ]
    for name in names:
        assert name in text, name
    assert f"`{segment}`" in DOCUMENT
    for name in (*names[:5], *names[12:]):
        place = tmp_path / ("ledgers" if name.endswith(".cut.new") else "") / name
        place.parent.mkdir(exist_ok=True)
        place.touch()
    assert not [f for f in stray_files(FILES, tmp_path) if type(f).__name__ == "ForeignFile"]


def test_catalog_tables(tmp_path: Path) -> None:
    """Tables and columns are those that a new catalog has."""
    catalog = Catalog(tmp_path / "catalog.sqlite")
    columns = {
        (name, column)
        for (name,) in catalog._rows("SELECT name FROM sqlite_schema WHERE type='table'")
        if not name.startswith("sqlite_")
        for (_, column, *_) in catalog._rows(f"PRAGMA table_info({name})")
    }
    version = catalog._rows("PRAGMA user_version")[0][0]
    catalog.close()
    assert {(t.strip("`"), c.strip("`")) for t, c, _ in table("table")} == columns
    assert f"`PRAGMA user_version` is {version}" in DOCUMENT


def test_property_kinds() -> None:
    """Every kind of property that the sources store is listed, and no other."""
    listed = {kind.strip("`") for kind, _, _ in table("kind")}
    used: set[str] = set()
    names: set[str] = set()
    constants: dict[str, str] = {}
    for path in (ROOT / "src" / "pulsemark").rglob("*.py"):
        if "conformance" in path.parts:
            continue
        text = path.read_text(encoding="utf-8")
        used |= set(re.findall(r"catalog\.(?:put|items|get|delete)\(?,?\s*\"([a-z-]+)\"", text))
        used |= set(re.findall(r"(?:POLICY|PROPERTY)_KIND = \"([a-z-]+)\"", text))
        names |= set(re.findall(r"catalog\.(?:put|items|get|delete)[(,]\s*([A-Z_]+)\b", text))
        names |= set(re.findall(r"_writer\.(?:put|read|write)\(\(?([A-Z_]+)\b", text))
        constants |= dict(re.findall(r"^([A-Z_]+) = \"([a-z-]+)\"", text, re.MULTILINE))
    assert names <= set(constants)
    assert listed == used | {constants[name] for name in names}


def test_cursor_fields() -> None:
    """The fields of a cursor record have the numbers and names of the .proto file."""
    fields = CursorRecord.DESCRIPTOR.fields
    assert [(int(n), name.strip("`")) for n, name, *_ in table("number")] == [
        (field.number, field.name) for field in fields
    ]
    kinds = ", ".join(f"{v.name} = {v.number}" for v in CursorRecord.Kind.DESCRIPTOR.values)
    assert kinds in DOCUMENT


SEVERITIES = {"Damage", "Leftover", "Note"}
"""The bases of the findings of one severity."""


def names_in(module: object, base: type) -> set[str]:
    """The names of a module's classes of one kind."""
    return {
        name
        for name, what in vars(module).items()
        if isinstance(what, type) and issubclass(what, base) and what is not base
    }


def test_errors_and_findings() -> None:
    """Every named error exists, and every finding of `verify` is listed with its severity."""
    known = names_in(errors, LedgerError) | {"OSError"}
    assert set(re.findall(r"\b[A-Z]\w+Error\b", DOCUMENT)) <= known
    kinds = names_in(findings, Finding) - SEVERITIES
    damage = section("## Damage")
    for name in kinds:
        rows = [row for row in table("damage") if re.search(rf"\b{name}\b", " ".join(row))]
        assert rows, name
        level = getattr(findings, name)
        if isinstance(getattr(level, "level", None), Severity) and level.level is not (
            Severity.DAMAGE
        ):
            word = level.level.name.lower()
            for row in rows:
                cell = next(cell for cell in row[3:] if name in cell)
                assert word in cell, (name, row)
    named = set(re.findall(r"\b(?:Damaged|Lost|Missing|Void|Torn|Unlisted)[A-Z]\w+", damage))
    assert named <= kinds


# The worked example


@pytest.mark.parametrize("path", EXAMPLES)
def test_example_names_its_fields(path: str) -> None:
    """Where a section is a layout its lines are the layout's fields, with their values."""
    for title, parts in example(path):
        if title not in LAYOUTS:
            continue
        fields = layout(title)
        assert [part.note.partition(" = ")[0] for part in parts] == [f.name for f in fields]
        for part, field in zip(parts, fields, strict=True):
            assert field.size is None or len(part.data) == field.size, part
            if " = " in part.note:
                (value,) = struct.unpack("<" + LETTERS[field.type], part.data)
                assert part.note == f"{field.name} = {value}"


def message(payload: bytes, time_ms: int, *, checksum: bool = True) -> bytes:
    """A message as producers send it."""
    return unbatched_message(payload, publish_time_ms=time_ms, producer_name="p", checksum=checksum)


def make_example(path: Path) -> bytes:
    """The example's folder, made by a store; the segment's bytes before its head was cut.

    Secrets are drawn at random: here they are all the one of the document.
    """
    with patch.object(ledgers, "new_secret", lambda: HEADER.secret):
        return _make_example(path)


def _make_example(path: Path) -> bytes:
    clock = SettableClock(START_MS)
    options = StoreOptions(checkpoint_interval_ms=2**40)
    with LocalStore.open(path, clock=clock, options=options) as store:
        store.open_topic("persistent://public/default/first")
        for _ in range(3):
            store.next_ledger_id()
        orders = store.open_topic(ORDERS)
        clock.advance(by_ms=1)
        for number in range(12):
            count = 1 if number else 31
            orders.append(message(b"hello", START_MS), message_count=count).commit.wait(10)
        store.next_ledger_id()
        orders.roll()
        clock.set(START_MS + 123)
        orders.stampers = StamperChain([BrokerTimeStamper(), IndexStamper()])
        orders.append(message(b"hello", START_MS)).commit.wait(10)
        clock.set(START_MS + 125)
        orders.stampers = StamperChain()
        orders.append(message(b"old", START_MS + 124, checksum=False)).commit.wait(10)
        segment = as_segment(orders.segments()[-1]).path.read_bytes()
        orders.truncate_head(Position(7, 1))
    return segment


def test_example_is_what_a_store_writes(tmp_path: Path) -> None:
    """Segment, index file and cut file are, byte by byte, those of a real folder."""
    segment = make_example(tmp_path / "data")
    assert segment == bytes_of(SEGMENT)
    assert (tmp_path / "data" / INDEX).read_bytes() == bytes_of(INDEX)
    assert (tmp_path / "data" / CUT).read_bytes() == bytes_of(CUT)


HEADER = SegmentHeader(
    topic=ORDERS, topic_id=3, ledger_id=7, segment_no=0, first_entry_id=0, first_index=42,
    entry_time_floor_ms=START_MS, stamp_floor_ms=START_MS + 1, previous_ledger_id=5,
    previous_entry_count=12, secret=bytes.fromhex("9e3b4c5d60718293"),
)  # fmt: skip


def packed_segment() -> bytes:
    """The example's segment, put together from its parts."""
    stamp, hello = pack_stamp(START_MS + 123, 42), message(b"hello", START_MS)
    old = message(b"old", START_MS + 124, checksum=False)
    key = HEADER.record_key
    first = pack_record_head(
        key, 0, EntryKind.DATA, 1, START_MS + 123, 42, stamp, hello, BODY_CRC_PRODUCER
    )
    second = pack_record_head(
        key, 1, EntryKind.DATA, 1, START_MS + 125, 43, b"", old, BODY_CRC_OURS
    )
    return HEADER.pack() + first + hello + second + old + pack_body_crc(old)


CUT_HEAD = HeadCut(START_MS + 123, START_MS + 125, 226, 1, 1)
GROUPS = [GroupRef(7, 0, 5, 144), GroupRef(9, 2, 3, 1_000_000)]
CONTENT = [b"hello", b"you"]
JOURNAL_HEADER = JournalHeader(
    journal_id=3, previous_id=2, previous_end=4096, secret=bytes.fromhex("c1d2e3f40a1b2c3d")
)
TRAILER = Trailer(2, 2, 289, START_MS + 124, START_MS + 125)


def packed_index() -> bytes:
    """The example's index file, put together from its parts."""
    seed, content = index_seed(7, 0), packed_segment()[144:]
    times = array("Q", [START_MS + 123, START_MS + 124])
    nexts, offsets = array("I", [1, 2]), array("I", [144, 226])
    chunk = Chunk(0, START_MS, 0, 289, times, nexts, offsets, crc32c(content))
    return pack_index_header(7, 0, HEADER.pack()) + chunk.pack(seed) + TRAILER.pack(seed)


def packed_journal() -> bytes:
    """The example's journal file, put together from its parts."""
    head = pack_block_head(JOURNAL_HEADER.block_key, JOURNAL_HEADER_SIZE, GROUPS, CONTENT)
    return JOURNAL_HEADER.pack() + head + b"".join(CONTENT)


def test_example_is_what_the_formats_pack() -> None:
    """All four examples are what the format modules make of these values."""
    assert packed_segment() == bytes_of(SEGMENT)
    assert packed_index() == bytes_of(INDEX)
    assert pack_cut(7, 0, CUT_HEAD) == bytes_of(CUT)
    assert packed_journal() == bytes_of(JOURNAL)


def test_format_modules_read_the_example(tmp_path: Path) -> None:
    """The format modules read the document's bytes back."""
    segment, index = bytes_of(SEGMENT), bytes_of(INDEX)
    assert unpack_segment_header(segment, Path(SEGMENT)) == HEADER
    first = unpack_record_head(segment, 144, HEADER.record_key)
    second = unpack_record_head(segment, 144 + first.record_size_bytes, HEADER.record_key)
    assert (first.body_check, second.body_check) == (BODY_CRC_PRODUCER, BODY_CRC_OURS)
    assert 144 + first.record_size_bytes + second.record_size_bytes == len(segment)
    chunk = unpack_chunk(index[INDEX_HEADER_SIZE + 144 :], index_seed(7, 0), 0)
    assert list(chunk.offsets) == [144, 144 + first.record_size_bytes]
    assert chunk.content_crc == crc32c(segment[144:])
    assert unpack_trailer(index[-TRAILER_SIZE:], index_seed(7, 0)) == TRAILER
    path = tmp_path / "00000000.log"
    cut_path(path).write_bytes(bytes_of(CUT))
    assert examine_cut(FILES, path, 7, 0) == (CUT_HEAD, None)


def folder_of_the_document(path: Path, *names: str) -> Path:
    """A folder with the examples of these files and nothing else."""
    for name in ("ledgers", "journal"):
        (path / name).mkdir(parents=True)
    (path / folder.MARKER_NAME).write_text('{"version": 1}\n', encoding="utf-8")
    for name in names:
        (path / name).write_bytes(bytes_of(name))
    return path


def test_readers_read_the_example(tmp_path: Path) -> None:
    """A reader finds both entries in the document's bytes; with the cut file, the second one."""
    whole = folder_of_the_document(tmp_path / "whole", SEGMENT, INDEX)
    with FolderReader(whole) as reader:
        first, second = reader.log(ORDERS).read(EARLIEST)
    metadata, body = split(first.stored)
    assert metadata is not None
    assert (metadata.broker_timestamp, metadata.index) == (START_MS + 123, 42)
    assert bytes(body) == message(b"hello", START_MS)
    assert bytes(second.stored) == message(b"old", START_MS + 124, checksum=False)
    assert (second.position, second.index) == (Position(7, 1), 43)
    cut = folder_of_the_document(tmp_path / "cut", SEGMENT, INDEX, CUT)
    for _ in range(2):
        with FolderReader(cut) as reader:
            assert [e.position for e in reader.log(ORDERS).read(EARLIEST)] == [Position(7, 1)]
        (cut / INDEX).unlink(missing_ok=True)
    assert {type(f).__name__ for f in verify_folder(whole)} == {"DamagedCatalog"}
    with LocalStore.open(whole) as store:
        assert len(store.open_topic(ORDERS).read(EARLIEST)) == 2


def test_replay_reads_the_example(tmp_path: Path) -> None:
    """Replaying the document's journal gives its groups, with old bytes after it, or one header.

    Without any header it gives nothing.
    """
    path = folder_of_the_document(tmp_path, JOURNAL)
    whole = bytes_of(JOURNAL)
    damaged = bytes(64) + whole[64:], whole[:64] + bytes(64) + whole[128:]
    for data in (whole, whole + bytes(1000), whole + whole[128:], *damaged):
        (path / JOURNAL).write_bytes(data)
        found: list[tuple[GroupRef, bytes]] = []
        report = replay(FILES, path, lambda ref, data: found.append((ref, bytes(data))))  # noqa: B023
        assert found == list(zip(GROUPS, CONTENT, strict=True))
        assert (report.last_id, report.blocks, report.damaged_blocks) == (3, 1, 0)
    (path / JOURNAL).write_bytes(bytes(128) + whole[128:])
    assert replay(FILES, path, lambda *_: None).blocks == 0


# Versions


def raise_version(path: Path, at: int, checksum_at: int) -> None:
    """Give a file's header a version to come, with a right checksum."""
    data = bytearray(path.read_bytes())
    data[at] = 0x7F
    data[checksum_at : checksum_at + 4] = crc32c(bytes(data[:checksum_at])).to_bytes(4, "little")
    path.write_bytes(data)


def change_catalog(path: Path, statement: str) -> None:
    """Do one thing to a catalog."""
    with closing(sqlite3.connect(path)) as db:
        db.execute(statement)
        db.commit()


def raise_catalog(path: Path) -> None:
    """Give a catalog a version to come."""
    change_catalog(path, "PRAGMA user_version=9")


def newer(what: str, at: int, path: Path) -> None:
    """Make one kind of file newer: its version (8) or its features (10)."""
    if what == "marker":
        (path / folder.MARKER_NAME).write_text('{"version": 2}', encoding="utf-8")
    elif what == "catalog":
        raise_catalog(path / folder.CATALOG_NAME)
    else:
        name, checksum_at = {"segment": (SEGMENT, 140), "index file": (INDEX, 28),
                             "cut file": (CUT, 56), "journal": (JOURNAL, 48)}[what]  # fmt: skip
        raise_version(path / name, at, checksum_at)
        if what == "journal":
            data = (path / name).read_bytes()
            (path / name).write_bytes(2 * data[:64] + data[128:])


def answer(action: Callable[[Path], str], path: Path) -> str:
    """What comes of it: the error's name, or what it returns."""
    try:
        return action(path)
    except LedgerError as error:
        return type(error).__name__


def owner(path: Path) -> str:
    """What the owner sees of the example's topic."""
    with LocalStore.open(path) as store:
        return f"{len(store.open_topic(ORDERS).read(EARLIEST))} entry"


def reader(path: Path) -> str:
    """What a reader sees of it."""
    with FolderReader(path) as found:
        return f"{len(found.log(ORDERS).read(EARLIEST))} entry"


def verified(path: Path) -> str:
    """What verification finds."""
    kinds = {type(f).__name__ for f in verify_folder(path) if f.severity is Severity.DAMAGE}
    return ", ".join(sorted(kinds))


def rebuilt(path: Path) -> str:
    """What rebuild-catalog does."""
    return "done" if rebuild_catalog(path).moved_to else "nothing to move"


ANSWERS = {"made again": "1 entry", "made again, in memory": "1 entry"}


@pytest.mark.parametrize("at", [8, 10], ids=["version", "features"])
@pytest.mark.parametrize("row", table("file")[:6], ids=lambda row: row[0])
def test_newer_files(row: list[str], at: int, tmp_path: Path) -> None:
    """What each reader does with a file of a version or feature to come is as the table says."""
    what, *stated = row
    make_example(tmp_path / "made")
    if what == "journal":
        (tmp_path / "made" / JOURNAL).write_bytes(packed_journal())
    for number, (action, cell) in enumerate(
        zip((owner, reader, verified, rebuilt), stated, strict=True)
    ):
        path = tmp_path / str(number)
        shutil.copytree(tmp_path / "made", path)
        newer(what, at, path)
        expected = ANSWERS.get(cell) or cell.partition(",")[0]
        if expected == "not read":
            expected = "done" if action is rebuilt else "1 entry"
        assert answer(action, path) == expected, action.__name__
        aside = (path / f"{folder.CATALOG_NAME}.old-1").exists()
        if action is rebuilt:
            assert aside is (expected == "done")


def test_unknown_record_kind(tmp_path: Path) -> None:
    """An entry of a kind to come is damaged, with that as the reason; no sum vouches for it."""
    path = folder_of_the_document(tmp_path, SEGMENT)
    body = message(b"hello", START_MS)
    head = pack_record_head(HEADER.record_key, 2, 9, 1, START_MS + 125, 44, b"", body, 1)
    (path / SEGMENT).write_bytes(bytes_of(SEGMENT) + head + body)
    (found,) = [f for f in verify_folder(path) if type(f).__name__ == "DamagedEntries"]
    assert "kind 9" in str(found)
    with FolderReader(path) as reader, pytest.raises(CorruptEntryError, match="kind, 9,"):
        reader.log(ORDERS).read(Position(7, 2))
    with LocalStore.open(path) as store:
        store.open_topic(ORDERS)
    index = (path / INDEX).read_bytes()
    chunk = unpack_chunk(index[INDEX_HEADER_SIZE + 144 :], index_seed(7, 0), 0)
    assert (len(chunk.offsets), chunk.content_known) == (3, False)


def test_kept_folders_are_where_it_says() -> None:
    """Every version has its folders in the place that the document names."""
    (place,) = re.findall(r"are kept in `([^`]+)`", DOCUMENT)
    names = [path.name for path in (ROOT / place).iterdir() if path.is_dir()]
    for version in range(1, folder.FOLDER_VERSION + 1):
        assert any(name.startswith(f"v{version}-") for name in names)


def test_marker_is_as_documented(tmp_path: Path) -> None:
    """The marker has the keys that the table names; without it there is no folder."""
    LocalStore.open(tmp_path / "data").close()
    marker = json.loads((tmp_path / "data" / folder.MARKER_NAME).read_bytes())
    assert [key.strip("`") for key, *_ in table("key")] == list(marker)
    assert f"| `what` | string | `{marker['what']}` |" in DOCUMENT


# Damage

THREE_LEDGERS = StoreOptions(segment_size_bytes=300, checkpoint_interval_ms=2**40)


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three ledgers of two segments of two entries, two cursors' records, a cut head."""
    path = tmp_path_factory.mktemp("closed") / "data"
    with LocalStore.open(path, clock=SettableClock(A_TIME_MS), options=THREE_LEDGERS) as store:
        orders = store.open_topic(ORDERS)
        for number in range(12):
            orders.append(b"%02d" % number * 10).commit.wait(10)
            if number in (3, 7):
                orders.roll()
        cursor = orders.open_cursor("billing", initial=EARLIEST)
        cursor.persist().wait(10)
        cursor.ack_cumulative(orders.read(EARLIEST)[0].position)
        cursor.persist().wait(10)
    return path


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose owner was killed: three entries stand in a block of the journal each."""
    path = tmp_path_factory.mktemp("killed") / "data"
    with LocalStore.open(path, clock=SettableClock(A_TIME_MS), options=THREE_LEDGERS) as store:
        for number in range(3):
            store.open_topic(ORDERS).append(b"%d" % number).commit.wait(10)
        shutil.copytree(path, path.parent / "copy")
    journal = path.parent / "copy" / JOURNAL
    journal.write_bytes(journal.read_bytes().rstrip(b"\0") + bytes(64))
    return path.parent / "copy"


def segments(path: Path) -> list[Path]:
    """The topic's segments; those of cursors are in ledger 0."""
    return sorted(p for p in path.glob("ledgers/*.log") if int(p.name[:16], 16))


def flip(path: Path, at: int) -> None:
    """Turn a bit of a byte; from the end where it is negative."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def overwrite(path: Path, at: int, data: bytes) -> None:
    """Write over bytes of a file."""
    old = path.read_bytes()
    path.write_bytes(old[:at] + data + old[at + len(data) :])


def header_and_copy_lost(folder: Path) -> None:
    """Zero a segment's header, and remove the index file that has its copy."""
    path = segments(folder)[1]
    overwrite(path, 0, bytes(path.stat().st_size))
    path.with_suffix(".idx").unlink()


def gone(path: Path, *, whole_ledger: bool = False) -> None:
    """Lose a segment with its index file, or all of its ledger."""
    for each in path.parent.glob(f"{path.name[:16] if whole_ledger else path.stem}*"):
        each.unlink()


def cut_head(path: Path, then: Callable[[Path], object]) -> None:
    """Remove the first entry, with the space that it took, then do that to the cut file."""
    with LocalStore.open(path, options=THREE_LEDGERS) as store:
        orders = store.open_topic(ORDERS)
        first = orders.first_position
        assert first is not None
        orders.truncate_head(Position(first.ledger_id, 1))
    segment = segments(path)[0]
    overwrite(segment, 144, bytes(50))  # not every file system makes holes
    then(cut_path(segment))


def torn(path: Path) -> None:
    """Half a record after the newest segment, whose index file is gone."""
    segment = segments(path)[-1]
    segment.write_bytes(segment.read_bytes() + segment.read_bytes()[144:178])
    segment.with_suffix(".idx").unlink()


def contradict(path: Path) -> None:
    """Another address in an index file, its checksum made right."""
    index = segments(path)[1].with_suffix(".idx")
    data = bytearray(index.read_bytes())
    end = len(data) - TRAILER_SIZE
    data[end - 4] += 1
    seed = index_seed(int(index.name[:16], 16), int(index.stem[17:], 16))
    data[180:184] = crc32c(bytes(data[184:end]), seed).to_bytes(4, "little")
    index.write_bytes(data)


def renamed(path: Path) -> None:
    """A copy of a segment under the name of another."""
    shutil.copy(segments(path)[0], path / "ledgers" / f"{999:016x}-00000000.log")


def never_counted(path: Path) -> None:
    """A new leader drops an entry, and its segment stays as it was."""
    with LocalStore.open(path, options=THREE_LEDGERS) as store:
        store.open_topic(ORDERS).truncate_tail(11, epoch=1)


def no_header(path: Path) -> None:
    """A wrong bit in each copy of the journal's header."""
    flip(path / JOURNAL, 20)
    flip(path / JOURNAL, 84)


CLOSED: dict[str, Callable[[Path], object]] = {
    "folder or marker missing, marker unreadable": lambda p: (p / "PULSEMARK").unlink(),
    "catalog missing, empty, or older than the folder": lambda p: (p / "catalog.sqlite").unlink(),
    "catalog damaged": lambda p: (p / "catalog.sqlite").write_bytes(b"no database " * 999),
    "catalog does not list a segment": lambda p: change_catalog(
        p / "catalog.sqlite", "DELETE FROM segment WHERE ledger_id=1 AND segment_no=1"
    ),
    "segment header: one bit": lambda p: flip(segments(p)[1], 50),
    "segment header: more, the index file is there": lambda p: overwrite(
        segments(p)[1], 0, bytes(144)
    ),
    "segment header and its copy cannot be restored": header_and_copy_lost,
    "segment under another segment's name": renamed,
    "record header or body, a whole record after it": lambda p: flip(segments(p)[1], 144 + 45),
    "last record of a sealed segment": lambda p: flip(segments(p)[-1], -7),
    "last record, not in the index file, not counted by a later header": torn,
    "end of a segment gone, a later header counts the entries": lambda p: segments(p)[
        1
    ].write_bytes(segments(p)[1].read_bytes()[:-7]),
    "zeros after the last record": lambda p: os.truncate(segments(p)[-1], 372),
    "segment file gone, after another one of its ledger": lambda p: gone(segments(p)[3]),
    "segment file gone, the first one of its ledger, others after it": lambda p: gone(
        segments(p)[2]
    ),
    "newest segment file gone": lambda p: gone(segments(p)[-1]),
    "whole ledger gone": lambda p: gone(segments(p)[2], whole_ledger=True),
    "index file missing, cut short, foreign": lambda p: shutil.copy(
        segments(p)[0].with_suffix(".idx"), segments(p)[1].with_suffix(".idx")
    ),
    "index file: wrong bit in header or chunk": lambda p: flip(
        segments(p)[0].with_suffix(".idx"), 50
    ),
    "index file: wrong bit in the trailer": lambda p: flip(segments(p)[0].with_suffix(".idx"), -5),
    "index file contradicts the records, checksums right": contradict,
    "cut file damaged or foreign": lambda p: cut_head(p, lambda cut: flip(cut, 30)),
    "cut file missing": lambda p: cut_head(p, Path.unlink),
    "entries or segments that never counted": never_counted,
    "cursor record": lambda p: flip(p / "ledgers" / f"{0:016x}-00000000.log", 112 + 45),
    "`.new` file, `PROBE`, file of a segment that is gone": lambda p: (p / "PULSEMARK.new").touch(),
    "old catalog": lambda p: (p / "catalog.sqlite.old-1").touch(),
    "file of another program": lambda p: (p / "ledgers" / "notes.txt").touch(),
}
KILLED: dict[str, Callable[[Path], object]] = {
    "journal block, a whole block after it": lambda p: flip(p / JOURNAL, 170),
    "journal: last block torn": lambda p: flip(p / JOURNAL, -70),
    "journal: one copy of the header damaged": lambda p: flip(p / JOURNAL, 20),
    "journal: both copies of the header damaged, or the file gone": no_header,
    "segments lack what the journal has (power cut)": lambda p: os.truncate(segments(p)[0], 200),
}


def entries_of(log: TopicLog) -> list[str]:
    """The name of the error of each entry that is damaged."""
    errors: list[str] = []
    for _ in read_on(log, EARLIEST, lambda error: errors.append(type(error).__name__)):
        pass
    return errors


def errors_of_owner(path: Path) -> set[str]:
    """The errors that the owner meets when it reads everything."""
    with LocalStore.open(path, options=THREE_LEDGERS) as store:
        return set(entries_of(store.open_topic(ORDERS)))


def errors_of_reader(path: Path) -> set[str]:
    """The errors that a reader meets."""
    with FolderReader(path) as found:
        return set(entries_of(found.log(ORDERS)))


def all_findings(path: Path) -> set[str]:
    """The kinds of findings of a verification; that the journal is in use goes without saying."""
    return {type(f).__name__ for f in verify_folder(path)} - {"JournalInUse"}


def errors_of_rebuilding(path: Path) -> set[str]:
    """None, if it works."""
    rebuild_catalog(path)
    return set()


DAMAGE = {row[0]: row[1:] for row in table("damage")}
KINDS = names_in(findings, Finding) - SEVERITIES - {"JournalInUse"}
ERRORS = names_in(errors, LedgerError)


@pytest.mark.parametrize("what", [*CLOSED, *KILLED])
def test_damage(what: str, closed: Path, killed: Path, tmp_path: Path) -> None:
    """Errors and findings are those that the table names; none where it names none."""
    actions = (errors_of_owner, errors_of_reader, all_findings, errors_of_rebuilding)
    named: set[str] = set()
    optional: object = None
    for number, (action, cell) in enumerate(zip(actions, DAMAGE[what], strict=True)):
        path = tmp_path / str(number)
        shutil.copytree(closed if what in CLOSED else killed, path)
        (CLOSED | KILLED)[what](path)
        try:
            seen = action(path)
        except LedgerError as error:
            seen = {type(error).__name__}
        if not cell.startswith("same"):
            known = ERRORS | KINDS if action is all_findings else ERRORS
            named = set(re.findall(r"\b[A-Z]\w+\b", cell)) & known
            optional = re.search(r"\b(if|where|for)\b|;", cell)
        assert seen <= named, action.__name__
        assert seen or not named or optional, action.__name__


@pytest.mark.parametrize(
    ("what", "count"),
    [
        ("catalog does not list a segment", 12),
        ("journal: both copies of the header damaged, or the file gone", 3),
    ],
)
def test_listed_on_opening(
    what: str, count: int, closed: Path, killed: Path, tmp_path: Path
) -> None:
    """Segments that the catalog should list are listed on opening, and then all are read."""
    assert "listed" in DAMAGE[what][0]
    path = shutil.copytree(closed if what in CLOSED else killed, tmp_path / "data")
    (CLOSED | KILLED)[what](path)
    assert "UnlistedSegment" in all_findings(path)
    with LocalStore.open(path, options=THREE_LEDGERS) as store:
        assert store.open_topic(ORDERS).next_index == count
    assert "UnlistedSegment" not in all_findings(path)


def test_lock_held(closed: Path, tmp_path: Path) -> None:
    """While another holds the lock, the owner and rebuild-catalog are refused, readers are not."""
    path = shutil.copytree(closed, tmp_path / "data")
    lock = folder.lock_folder(FILES, path)
    for action, cell in zip(
        (errors_of_owner, errors_of_reader, all_findings, errors_of_rebuilding),
        DAMAGE["lock held by a process"],
        strict=True,
    ):
        if cell == "reads":
            assert action(path) == set()
        else:
            with pytest.raises(getattr(errors, cell)):
                action(path)
    lock.close()


# The sections


def test_sections_stand_in_order() -> None:
    """The document has all that a specification needs, and names every operation."""
    wanted = ["The folder", "Rules for all files", "Marker and lock", "Segment", "Index file",
              "Cut file", "Journal", "Cursors", "Logs of the broker's own", "Compacted views",
              "Catalog", "Worked example", "Versions", "The chain: which entries count",
              "Damage", "Crash safety", "Entries", "Nodes", "What a crash leaves"]  # fmt: skip
    assert [line[3:] for line in LINES if line.startswith("## ")] == wanted
    operations = re.findall(r"^### (.+)$", section("## Crash safety"), re.MULTILINE)
    assert operations == ["Opening", "Append", "Roll", "Checkpoint", "Closing",
                          "Persisting a cursor", "trim", "truncate_head", "truncate_tail",
                          "delete_topic", "Compaction", "rebuild-catalog"]  # fmt: skip


def test_tables_are_whole() -> None:
    """Every row of every table has as many cells as its head."""
    width = 0
    for line in LINES:
        if not line.startswith("|"):
            width = 0
            continue
        cells = line.count("|")
        assert width in (0, cells), line
        width = cells


def test_links_inside_lead_somewhere() -> None:
    """Every link to a place in the document names one of its headings."""
    headings = {
        re.sub(r"[^\w -]", "", line.lstrip("# ")).lower().replace(" ", "-")
        for line in LINES
        if line.startswith("#")
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", DOCUMENT)) <= headings


def test_documents_lead_here() -> None:
    """README and ARCHITECTURE name the document."""
    for name in ("README.md", "ARCHITECTURE.md"):
        assert "(docs/formats.md)" in (ROOT / name).read_text(encoding="utf-8")

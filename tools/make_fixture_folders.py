"""Makes the data folders of tests/data/folders: examples of the present format, kept for ever.

    python tools/make_fixture_folders.py [TARGET]

Every folder `v<folder's version>s<segments' version>-<name>` is small. Next to it is a file with
that name and `.json`: the content that a reader must find. (Folders with segments of version 1 are
called `v1-<name>`.) A store writes the good folders. A corrupt folder is a good one with one
fault; its expected content follows from the fault, and is not made by reading the folder.

Folders of a released format are never made again, since readers must always be able to read exactly
those bytes. This program makes the folders of the present format, with its version.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from fixture_content import Expected, content_of_store

from pulsemark.ledger import (
    EARLIEST,
    EntryKind,
    FolderReader,
    LocalStore,
    ManagedLedger,
    Segment,
    StoreOptions,
)
from pulsemark.ledger.local.io.folder import FOLDER_VERSION, LOCK_NAME, MARKER_NAME
from pulsemark.ledger.local.segment.segment import as_segment
from pulsemark.ledger.local.segment.segment_format import SEGMENT_VERSION
from pulsemark.metadata import BrokerEntryMetadata, StamperChain
from pulsemark.proto.broker_entry_pb2 import CONTROL, CONTROL_TXN_COMMIT
from pulsemark.testing.clock import SettableClock
from pulsemark.testing.raw_messages import batched_message, unbatched_message

TARGET = Path(__file__).resolve().parent.parent / "tests" / "data" / "folders"
PREFIX = f"v{FOLDER_VERSION}s{SEGMENT_VERSION}-"
"""What the names of the present format's folders begin with."""
START_MS = 1_700_000_000_000
NEVER_MS = 2**40
ORDERS = "persistent://public/default/orders"
AUDIT = "persistent://public/default/audit"
MIXED = "persistent://public/default/mixed"
EMPTY = "persistent://public/default/empty"

# Good folders


def open_store(folder: Path, clock: SettableClock, **options: int) -> LocalStore:
    """A store that makes no checkpoints by itself."""
    chosen = StoreOptions(checkpoint_interval_ms=NEVER_MS, journal_size_bytes=NEVER_MS, **options)
    return LocalStore.open(folder, clock=clock, options=chosen)


def stamps(*names: str) -> StamperChain:
    """A chain of stampers."""
    return StamperChain.from_names(names)


def fill_topics(store: LocalStore, clock: SettableClock) -> None:
    """Stamps on, off and mixed; batches, tags, control entries; cursors of all kinds."""
    orders, audit, mixed = (store.open_topic(name) for name in (ORDERS, AUDIT, MIXED))
    orders.stampers = stamps("broker-time", "index")
    mixed.stampers = stamps("broker-time", "index", "property-tags:region")
    for number in range(6):
        now_ms = clock.advance(by_ms=1000)
        members = [b"order %d.%d" % (number, n) for n in range(number % 3 + 1)]
        batch = batched_message(members, publish_time_ms=now_ms - 60_000, sequence_id=number)
        orders.append(batch, message_count=len(members))
        single = unbatched_message(
            b"entry %d" % number, publish_time_ms=now_ms + 7 * (number % 2),
            properties={"region": "eu", "other": "x"},
        )  # fmt: skip
        audit.append(single)
        mixed.append(single)
        if number == 2:
            mixed.stampers = stamps()
        if number == 4:
            mixed.stampers = stamps("broker-time", "index")
    commit = BrokerEntryMetadata(entry_kind=CONTROL, control_type=CONTROL_TXN_COMMIT)
    commit.application_tags.add(key="txn", value=b"\x00\x01")
    orders.append(b"", kind=EntryKind.CONTROL, base=commit)  # as earlier versions did: no name
    audit.append(b"no message at all", kind=EntryKind.DATA)
    audit.append(b"", message_count=0).commit.wait()
    add_cursors(orders, mixed)
    store.open_topic(EMPTY).open_cursor("idle", initial=EARLIEST).persist().wait()
    store.catalog.put("namespace", "public/default", b'{"retention": 1}')
    store.catalog.put("schema", ORDERS, b"string")


def add_cursors(orders: ManagedLedger, mixed: ManagedLedger) -> None:
    """A cursor with acknowledgements of every kind, and one that was deleted."""
    places = [entry.position for entry in orders.read(EARLIEST)]
    billing = orders.open_cursor("billing", initial=EARLIEST, properties={"team": 7})
    billing.ack_cumulative(places[0])
    billing.persist()
    billing.ack(places[3])
    billing.ack_batch(places[2], [0b101])
    billing.persist()
    orders.open_cursor("late", initial=places[-1]).persist()
    mixed.open_cursor("gone", initial=EARLIEST).persist()
    mixed.delete_cursor("gone").wait()


def fill_ledgers(store: LocalStore, clock: SettableClock) -> None:
    """Several ledgers and segments, a trimmed and cut head, epochs, a tail that was cut back."""
    orders = store.open_topic(ORDERS)
    for number in range(40):
        # Client times that go back and forth, to test the running maximum.
        time_ms = clock.advance(by_ms=10) + (-1) ** number * 25
        orders.append(
            unbatched_message(b"order %d" % number, publish_time_ms=time_ms),
            message_count=number % 2 + 1,
        ).commit.wait()
        if number in (9, 19):
            orders.roll()
        if number == 24:
            orders.begin_epoch(3)
            orders.stampers = stamps("broker-time", "index")
    orders.trim(orders.read(EARLIEST)[6].position)
    orders.truncate_head(orders.read(EARLIEST)[3].position)
    clock.advance(by_ms=-300_000)
    orders.roll()  # so that a ledger id is skipped: ids need not follow one another
    orders.truncate_tail(orders.segments()[-1].first_index, epoch=5)
    orders.append(unbatched_message(b"after", publish_time_ms=clock.now_ms())).commit.wait()


def fill_chunks(store: LocalStore, clock: SettableClock) -> None:
    """More entries than one chunk of an index file holds, and a second segment."""
    orders = store.open_topic(ORDERS)
    for number in range(1034):
        clock.advance(by_ms=number % 2)
        last = orders.append(b"%d" % (number % 10))
    last.commit.wait()


def fill_base(store: LocalStore, clock: SettableClock) -> None:
    """The base of the corrupt folders: two ledgers with two segments, and another topic."""
    orders, audit = store.open_topic(ORDERS), store.open_topic(AUDIT)
    orders.stampers = stamps("broker-time", "index")
    for number in range(12):
        now_ms = clock.advance(by_ms=1000)
        body = unbatched_message(b"order %d" % number, publish_time_ms=now_ms - 5)
        orders.append(body, message_count=2)
        audit.append(unbatched_message(b"audit %d" % number, publish_time_ms=now_ms)).commit.wait()
        if number == 5:
            orders.roll()
    cursor = orders.open_cursor("billing", initial=EARLIEST)
    cursor.ack_cumulative(orders.read(EARLIEST)[3].position)
    cursor.persist().wait()


Fill = Callable[[LocalStore, SettableClock], None]
GOOD: dict[str, tuple[Fill, dict[str, int]]] = {
    "topics": (fill_topics, {}),
    "ledgers": (fill_ledgers, {"segment_size_bytes": 500}),
    "chunks": (fill_chunks, {"segment_size_bytes": 46_300}),
    "base": (fill_base, {"segment_size_bytes": 500}),
}


def make_good(name: str, folder: Path) -> Expected:
    """A folder that was closed in order."""
    fill, options = GOOD[name]
    clock = SettableClock(START_MS)
    with open_store(folder, clock, **options) as store:
        fill(store, clock)
        return {**content_of_store(store), "findings": []}


def make_killed(folder: Path, *, power_cut: bool) -> Expected:
    """A folder whose process was killed, at a power cut also without what was not yet synced.

    The journal restores that when the folder is next opened.
    """
    clock = SettableClock(START_MS)
    with tempfile.TemporaryDirectory() as parent:
        make_good("base", Path(parent) / "data")
        clock.set(START_MS + 3_600_000)
        store = open_store(Path(parent) / "data", clock, segment_size_bytes=500)
        append(store.open_topic(AUDIT), 3)
        store.checkpoint()
        synced = {path.name: path.read_bytes() for path in store.folder.glob("ledgers/*.log")}
        append(store.open_topic(AUDIT), 8)
        expected = content_of_store(store)
        shutil.copytree(store.folder, folder)
        store.close()
    for path in folder.glob("journal/*"):
        path.write_bytes(path.read_bytes().rstrip(b"\0") + bytes(64))
    (folder / "catalog.sqlite-shm").unlink()
    for path in folder.glob("ledgers/*.log") if power_cut else ():
        if path.name in synced:
            path.write_bytes(synced[path.name])
        else:
            path.unlink()
    return {**expected, "findings": [], "whole_before_opening": not power_cut}


def append(topic: ManagedLedger, count: int) -> None:
    """Append entries that are durable in the journal."""
    for number in range(count):
        last = topic.append(b"entry %d of a process that is killed" % number)
    last.commit.wait()


# Corrupt folders: the base, with one fault


def segment_of(folder: Path, topic: str, number: int) -> Segment:
    """A segment as readers see it."""
    with FolderReader(folder) as reader:
        segment = as_segment(reader.log(topic).segments()[number])
        segment.row(0)
        return segment


def overwrite(path: Path, offset: int, data: bytes) -> None:
    """Write over a part of a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def flip(path: Path, offset: int) -> None:
    """Turn a bit of a byte."""
    overwrite(path, offset, bytes([path.read_bytes()[offset] ^ 0x10]))


def is_damaged(expected: Expected, segment: Segment, row: int) -> None:
    """Expect an entry to be damaged."""
    for entry in expected["topics"][segment.header.topic]["rows"]:
        if tuple(entry[:2]) == (segment.ledger_id, segment.first_entry_id + row):
            entry[2:] = ["damaged"]


def torn_tail(folder: Path, expected: Expected) -> None:
    """The newest segment ends in half a record; as after a crash it has no index file."""
    segment = segment_of(folder, AUDIT, -1)
    record = segment.path.read_bytes()[segment.row(0).offset : segment.row(0).end_offset]
    with segment.path.open("ab") as file:
        file.write(record[: len(record) // 2] + b"\xaa" * 40 + bytes(20))
    segment.path.with_suffix(".idx").unlink()
    expected["findings"] = ["TornTail"]


def flipped_body(folder: Path, expected: Expected) -> None:
    """One bit of a payload."""
    segment = segment_of(folder, ORDERS, 1)
    flip(segment.path, segment.row(0).end_offset - 3)
    is_damaged(expected, segment, 0)
    expected["findings"] = ["DamagedEntries"]


def flipped_record_header(folder: Path, expected: Expected) -> None:
    """One bit of a record header, without the index file: the next marker is found."""
    segment = segment_of(folder, ORDERS, 0)
    flip(segment.path, segment.row(0).offset + 9)
    segment.path.with_suffix(".idx").unlink()
    is_damaged(expected, segment, 0)
    expected["findings"] = ["DamagedEntries"]


def flipped_segment_header(folder: Path, expected: Expected) -> None:
    """One bit of a segment's header: readers correct it."""
    flip(segment_of(folder, ORDERS, 2).path, 41)
    expected["findings"] = ["DamagedHeader"]


def zeroed_segment_header(folder: Path, expected: Expected) -> None:
    """A segment's whole header: the copy in the index file replaces it."""
    segment = segment_of(folder, ORDERS, 0)
    overwrite(segment.path, 0, bytes(segment.header.size_bytes))
    expected["findings"] = ["DamagedHeader"]


def cut_segment(folder: Path, expected: Expected) -> None:
    """A segment in the middle lacks its last record: the next segment shows that it existed."""
    segment = segment_of(folder, ORDERS, 0)
    last = segment.entry_count - 1
    with segment.path.open("r+b") as file:
        file.truncate(segment.row(last).offset + 11)
    segment.path.with_suffix(".idx").unlink()
    is_damaged(expected, segment, last)
    expected["findings"] = ["LostEntries"]


def index_missing(folder: Path, _: Expected) -> None:
    """No index file at all."""
    for path in folder.glob("ledgers/*.idx"):
        path.unlink()


def index_foreign(folder: Path, expected: Expected) -> None:
    """Another segment's index file under this one's name."""
    first, second = (segment_of(folder, ORDERS, n).path.with_suffix(".idx") for n in (0, 1))
    second.write_bytes(first.read_bytes())
    expected["findings"] = ["DamagedIndex"]


def index_flipped(folder: Path, expected: Expected) -> None:
    """One bit of an index file's rows."""
    segment = segment_of(folder, ORDERS, 1)
    flip(segment.path.with_suffix(".idx"), segment.header.size_bytes + 90)
    expected["findings"] = ["DamagedIndex"]


def catalog_missing(folder: Path, expected: Expected) -> None:
    """No catalog: topics and segments are found by the segments' headers."""
    (folder / "catalog.sqlite").unlink()
    expected["findings"] = ["DamagedCatalog"]


def catalog_damaged(folder: Path, expected: Expected) -> None:
    """A catalog with a damaged page: its owner refuses it, readers do not need it."""
    overwrite(folder / "catalog.sqlite", 4096, b"\xff" * 64)
    expected["findings"] = ["DamagedCatalog"]
    expected["refused"] = "CorruptCatalogError"


FAULTS = (
    torn_tail, flipped_body, flipped_record_header, flipped_segment_header,
    zeroed_segment_header, cut_segment, index_missing, index_foreign, index_flipped,
    catalog_missing, catalog_damaged,
)  # fmt: skip


# All of them


def make_all(target: Path) -> list[str]:
    """Make every folder in ``target`` with its expected content, and return their names."""
    prefix = PREFIX
    made: dict[str, Expected] = {}
    for name in GOOD:
        made[name] = make_good(name, target / (prefix + name))
    made["killed"] = make_killed(target / f"{prefix}killed", power_cut=False)
    made["power-cut"] = make_killed(target / f"{prefix}power-cut", power_cut=True)
    for fault in FAULTS:
        name = fault.__name__.replace("_", "-")
        shutil.copytree(target / f"{prefix}base", target / (prefix + name))
        made[name] = json.loads(json.dumps(made["base"]))
        fault(target / (prefix + name), made[name])
    for number, (name, expected) in enumerate(made.items()):
        folder = target / (prefix + name)
        finish(folder, number)
        text = json.dumps(expected, indent=1, sort_keys=True)
        folder.with_suffix(".json").write_text(one_line_rows(text) + "\n")
    return [prefix + name for name in made]


def finish(folder: Path, number: int) -> None:
    """Remove what differs each time: the marker's id, the lock."""
    marker = json.loads((folder / MARKER_NAME).read_bytes())
    marker["id"] = f"00000000-0000-4000-8000-{number:012d}"
    (folder / MARKER_NAME).write_text(json.dumps(marker) + "\n")
    (folder / LOCK_NAME).unlink()


def one_line_rows(text: str) -> str:
    """Innermost lists on one line each."""
    return re.sub(r"\[[^\[\]{}]*\]", lambda match: " ".join(match[0].split()), text)


def main() -> None:
    """Make the folders in the target given, or in the repository's."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("target", nargs="?", type=Path, default=TARGET)
    target: Path = parser.parse_args().target
    for old in target.glob(f"{PREFIX}*"):
        if old.is_dir():
            shutil.rmtree(old)
        else:
            old.unlink()
    target.mkdir(parents=True, exist_ok=True)
    for name in make_all(target):
        size = sum(path.stat().st_size for path in (target / name).rglob("*") if path.is_file())
        print(f"{name}: {size} bytes")


if __name__ == "__main__":
    main()

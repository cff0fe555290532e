"""Opening and reading a store whose files were cut, overwritten or damaged."""

import errno
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from pulsemark.ledger import (
    EARLIEST,
    FolderReader,
    LocalStore,
    Position,
    StoreOptions,
)
from pulsemark.ledger.local.commit.journal import JOURNAL_HEADER_SIZE
from pulsemark.ledger.local.io.folder import index_path
from pulsemark.ledger.local.segment.record_format import (
    pack_body_crc,
    pack_record_head,
)
from pulsemark.ledger.local.segment.salvage import read_segment_header
from pulsemark.ledger.local.segment.scan import scan_records
from pulsemark.ledger.local.segment.segment import as_segment
from pulsemark.ledger.local.segment.segment_format import version_1_key
from pulsemark.ledger.topic_log import read_on
from pulsemark.maintenance.verify import verify_folder
from pulsemark.metadata import BrokerTimeStamper, IndexStamper, StamperChain
from pulsemark.testing.clock import A_TIME_MS, SettableClock
from pulsemark.testing.faulty_files import FaultyFiles, flipped
from pulsemark.testing.raw_messages import unbatched_message
from tests.support.simulated_store import NEVER_MS, SimulatedStore, settle

ORDERS = "persistent://public/default/orders"
STAMPS = StamperChain([BrokerTimeStamper(), IndexStamper()])
EVERY_BIT = "PULSEMARK_EVERY_BIT" in os.environ
PARTS = 32 if EVERY_BIT else 1
"""How many tests share the bits: a campaign of over an hour can be run in parallel."""


@dataclass
class Sample:
    """A closed data folder with one topic in one segment."""

    folder: Path
    bodies: list[bytes]
    counts: list[int]
    segment: Path
    offsets: list[int]
    """Where each record begins, and where the last one ends."""

    @property
    def good(self) -> bytes:
        """The segment's bytes, as they were written."""
        return self._good

    def remember(self) -> "Sample":
        """Keep the good bytes."""
        self._good = self.segment.read_bytes()
        self.index = index_path(self.segment).read_bytes()
        return self

    def put(self, segment: bytes, *, index: bytes | None = None) -> None:
        """Replace the segment; without ``index`` its index file is gone."""
        self.segment.write_bytes(segment)
        index_path(self.segment).unlink(missing_ok=True)
        if index is not None:
            index_path(self.segment).write_bytes(index)

    def read(self) -> tuple[dict[int, bytes], list[int]]:
        """What a reader gets: bodies by entry id, and the ids of damaged entries."""
        with FolderReader(self.folder) as reader:
            return read_all(reader.log(ORDERS))


def read_all(log) -> tuple[dict[int, bytes], list[int]]:
    """Bodies by entry id, and the ids of the entries that are damaged."""
    damaged: list[int] = []
    lots = read_on(log, EARLIEST, lambda error: damaged.append(error.position.entry_id))
    return {e.position.entry_id: bytes(e.body) for lot in lots for e in lot}, damaged


def make_sample(folder, bodies, counts=None, *, before=0):
    """Write a topic, close its store, and look where its records are.

    ``before``: so many other topics are there before it, so that its ledger has another id.
    """
    counts = counts or [1] * len(bodies)
    store = LocalStore.open(folder, clock=SettableClock(A_TIME_MS))
    for number in range(before):
        store.open_topic(f"{ORDERS}-{number}")
    topic = store.open_topic(ORDERS)
    topic.stampers = STAMPS
    for body, count in zip(bodies, counts, strict=True):
        last = topic.append(body, message_count=count)
    last.commit.wait(10)
    (segment,) = map(as_segment, topic.segments())
    offsets = [segment.row(n).offset for n in range(len(bodies))] + [segment.index.end_offset]
    store.close()
    return Sample(folder, bodies, counts, segment.path, offsets).remember()


def some_bodies(count, size):
    """Producers' messages and other bytes, mixed."""
    random = Random(count)
    bodies = [random.randbytes(random.randrange(size)) for _ in range(count)]
    return [
        unbatched_message(body, publish_time_ms=1_700_000_000_000) if n % 2 else b"\1" + body
        for n, body in enumerate(bodies)
    ]


@pytest.fixture
def sample(memory_folder):
    """Ten entries of some bytes each."""
    return make_sample(memory_folder / "data", some_bodies(10, 60), [n % 3 for n in range(10)])


def tails(sample, cut):
    """What may stand after a cut, by name."""
    random = Random(cut)
    first_three = sample.good[sample.offsets[0] : sample.offsets[3]]
    seed = version_1_key(99)
    foreign = pack_record_head(seed, 9, 0, 1, 5, 9, b"", b"x" * 30, 0) + b"x" * 30 + bytes(4)
    return {
        "nothing": b"",
        "zeros": bytes(700),
        "garbage": random.randbytes(700),
        "stale records": first_three,
        "foreign record": foreign,
        "zeros, then stale": bytes(100) + first_three,
    }


def test_torn_tail_recovers_to_the_last_whole_record(sample):
    """Cut at every byte of the last three records, whatever follows: all whole ones are there."""
    for cut in range(sample.offsets[7], sample.offsets[10] + 1):
        for name, tail in tails(sample, cut).items():
            data = sample.good[:cut] + tail
            sample.put(data)
            # What follows may happen to be just the bytes that are missing.
            whole = sum(data.startswith(sample.good[:end]) for end in sample.offsets[1:])
            got, damaged = sample.read()
            assert got == dict(enumerate(sample.bodies[:whole])), (cut, name)
            assert damaged == [], (cut, name)


def test_topic_goes_on_after_a_torn_tail(sample, memory_folder):
    """Opened for writing after a torn tail, a topic has no gap and no entry twice."""
    random = Random(1)
    for number in range(12):
        cut = random.randint(sample.offsets[7], sample.offsets[10])
        whole = sum(end <= cut for end in sample.offsets[1:])
        sample.put(sample.good[:cut] + random.choice(list(tails(sample, cut).values())))
        copy = memory_folder / f"copy{number}"
        shutil.copytree(sample.folder, copy)
        for _ in range(2):
            with LocalStore.open(copy, clock=SettableClock(A_TIME_MS)) as store:
                topic = store.open_topic(ORDERS)
                assert topic.next_index >= sum(sample.counts[:whole])
                topic.append(b"new").commit.wait(10)
                entries = topic.read(EARLIEST)
                assert [bytes(e.body) for e in entries[:whole]] == sample.bodies[:whole]
                index = 0
                for entry in entries:
                    assert entry.first_index == index
                    index = entry.index + 1
        assert [bytes(e.body) for e in entries[whole:]] == [b"new", b"new"]


def test_segment_cut_anywhere_is_made_whole_from_the_journal(memory_folder):
    """What was not checkpointed is in the journal: no cut of the segment loses any of it."""
    options = StoreOptions(checkpoint_interval_ms=NEVER_MS, journal_size_bytes=NEVER_MS)
    simulated = SimulatedStore(memory_folder / "data", options=options)
    topic = simulated.open().open_topic(ORDERS)
    bodies = some_bodies(6, 60)
    for body in bodies:
        topic.append(body).commit.wait(10)
    path = as_segment(topic.segments()[0]).path
    simulated.kill()
    good = simulated.disk.contents(path)
    catalog = simulated._catalog
    journal = path.parent.parent / "journal" / "00000000.journal"
    block_bytes = simulated.disk.contents(journal)
    for cut in range(0, len(good) + 1, 7):
        simulated.disk.overwrite(path, good)
        simulated.disk.overwrite(path, os.urandom(20), cut, cut=True)
        simulated._catalog, simulated._ended = catalog, True
        got, damaged = read_all(simulated.open().open_topic(ORDERS))
        assert got == dict(enumerate(bodies))
        assert damaged == []
        simulated.close()
        process = simulated.disk.process()
        fd = process.open(journal, os.O_RDWR | os.O_CREAT)
        process.pwritev(fd, [block_bytes], 0)
        process.fdatasync(fd)
        process.sync_folder(journal.parent)


def test_journal_cut_anywhere_keeps_what_was_before(memory_folder):
    """Segments lost and the journal torn in its last block: all blocks before it count."""
    options = StoreOptions(checkpoint_interval_ms=NEVER_MS, journal_size_bytes=NEVER_MS)
    for tail in (b"", bytes(300), b"PMKB" * 50, os.urandom(300)):
        for back in range(1, 200, 23):
            folder = memory_folder / f"{len(tail)}-{tail[:1].hex()}-{back}"
            simulated = SimulatedStore(folder, options=options)
            store = simulated.open()
            topic = store.open_topic(ORDERS)
            ends = []
            for number in range(5):
                topic.append(b"%d" % number * 40).commit.wait(10)
                ends.append(store.engine.writer.journal.size_bytes + JOURNAL_HEADER_SIZE)
            path = as_segment(topic.segments()[0]).path
            simulated.kill()
            journal = folder / "journal" / "00000000.journal"
            cut = ends[-1] - back
            whole = sum(end <= cut for end in ends)
            simulated.disk.overwrite(journal, tail, cut, cut=True)
            simulated.disk.overwrite(path, b"", 0, cut=True)
            got, damaged = read_all(simulated.open().open_topic(ORDERS))
            assert got == {n: b"%d" % n * 40 for n in range(whole)}
            assert damaged == []
            simulated.close()


def test_damage_in_one_copy_of_a_journal_header_loses_nothing(memory_folder):
    """Even with all segments lost, the other copy of the header says what the journal holds."""
    options = StoreOptions(checkpoint_interval_ms=NEVER_MS, journal_size_bytes=NEVER_MS)
    for bit in range(0, 8 * JOURNAL_HEADER_SIZE, 37):
        folder = memory_folder / str(bit)
        simulated = SimulatedStore(folder, options=options)
        topic = simulated.open().open_topic(ORDERS)
        topic.append(b"kept").commit.wait(10)
        path = as_segment(topic.segments()[0]).path
        simulated.kill()
        journal = folder / "journal" / "00000000.journal"
        byte = simulated.disk.contents(journal)[bit // 8] ^ 1 << bit % 8
        simulated.disk.overwrite(journal, bytes([byte]), bit // 8)
        simulated.disk.overwrite(path, b"", 0, cut=True)
        assert read_all(simulated.open().open_topic(ORDERS)) == ({0: b"kept"}, [])
        simulated.close()


def test_lost_journal_leaves_what_the_segments_have(memory_folder):
    """After the loss the owner counts the same entries as other readers."""
    options = StoreOptions(checkpoint_interval_ms=NEVER_MS, journal_size_bytes=NEVER_MS)
    simulated = SimulatedStore(memory_folder / "data", options=options)
    topic = simulated.open().open_topic(ORDERS)
    for number in range(3):
        topic.append(b"%d" % number).commit.wait(10)
    simulated.kill()
    simulated.disk.process().unlink(memory_folder / "data" / "journal" / "00000000.journal")
    topic = simulated.open().open_topic(ORDERS)
    assert read_all(topic) == ({0: b"0", 1: b"1", 2: b"2"}, [])
    assert topic.append(b"3").index == 3
    simulated.close()


def test_segment_lost_from_the_middle_of_a_ledger_is_reported(memory_folder):
    """Its entries are typed errors, never skipped, with a sealed index before it or without."""
    options = StoreOptions(segment_size_bytes=300)
    for sealed in (True, False):
        simulated = SimulatedStore(memory_folder / f"{sealed}", options=options)
        topic = simulated.open().open_topic(ORDERS)
        for number in range(6):
            topic.append(b"%d" % number * 100).commit.wait(10)
        first, second, *_ = topic.segments()
        simulated.close()
        process = simulated.disk.process()
        process.unlink(as_segment(second).path)
        if not sealed:
            process.unlink(index_path(as_segment(first).path))
        for _ in range(2):
            topic = simulated.open().open_topic(ORDERS)
            bodies, lost = read_all(topic)
            assert lost == list(range(second.first_entry_id, second.end_entry_id))
            assert bodies == {n: b"%d" % n * 100 for n in range(6) if n not in lost}
            assert topic.next_index == 6
            simulated.close()


def flips(good, part):
    """Bits to flip: every one in a campaign, else one in every so many bytes."""
    if EVERY_BIT:
        return range(part, 8 * len(good), PARTS)
    random = Random(0)
    return [8 * byte + random.randrange(8) for byte in range(0, len(good), 251)]


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("index", ["with index", "without index"])
def test_every_flipped_bit_of_a_segment_is_found(memory_folder, index, part):
    """One wrong bit: no wrong byte is served, at most one entry is lost, all others are there."""
    sample = make_sample(memory_folder / "data", some_bodies(415, 180))
    assert 60_000 < len(sample.good) < 70_000
    kept = sample.index if index == "with index" else None
    last = len(sample.bodies) - 1
    for bit in flips(sample.good, part):
        sample.put(flipped(sample.good, bit), index=kept)
        got, damaged = sample.read()
        hit = [n for n in range(last + 1) if sample.offsets[n] <= bit // 8 < sample.offsets[n + 1]]
        assert got == {n: body for n, body in enumerate(sample.bodies) if n not in hit}, bit
        if kept is not None or hit != [last]:
            assert damaged == hit, bit


def test_damage_in_the_middle_does_not_hide_later_entries(sample):
    """Whole records overwritten, shifted or zeroed: the entries after them keep id and index."""
    random = Random(5)
    for first in range(9):
        for last in range(first, 9):
            start, end = sample.offsets[first], sample.offsets[last + 1]
            for rot in (bytes(end - start), random.randbytes(end - start)):
                sample.put(sample.good[:start] + rot + sample.good[end:])
                got, damaged = sample.read()
                assert damaged == list(range(first, last + 1))
                assert got == {
                    n: body for n, body in enumerate(sample.bodies) if not first <= n <= last
                }
                with FolderReader(sample.folder) as reader:
                    log = reader.log(ORDERS)
                    assert log.next_index == sum(sample.counts)
                    assert log.first_position is not None
                    entry = log.read(Position(log.first_position.ledger_id, last + 1))[0]
                    assert entry.first_index == sum(sample.counts[: last + 1])


def test_records_inside_a_payload_are_not_accepted(memory_folder):
    """A payload full of forged records does not become entries when its own header is damaged."""
    seed = version_1_key(1)
    forged = b"".join(
        pack_record_head(seed, entry_id, 0, 1, 5, 9, b"", b"evil", 0) + b"evil"
        + pack_body_crc(b"evil")
        for entry_id in (1, 2, 3, 500, 2**32 - 1)
    )  # fmt: skip
    sample = make_sample(memory_folder / "data", [b"zero", b"?" + forged, b"two", b"three"])
    assert read_segment_header(FaultyFiles(), sample.segment).ledger_id == 1
    bad = bytearray(sample.good)
    bad[sample.offsets[1] + 20] ^= 1
    sample.put(bytes(bad))
    got, damaged = sample.read()
    assert got[0] == b"zero"
    assert len(got) + len(damaged) <= 5
    assert not {500, 2**32 - 1} & got.keys()


def hostile_body(ledger_id, count):
    """A body full of records as anyone can make them who knows the ledger id."""
    key = version_1_key(ledger_id)
    return b"?" + b"".join(
        pack_record_head(key, 2 + n, 0, 1, 5, 9, b"", b"evil", 0) + b"evil" + pack_body_crc(b"evil")
        for n in range(count)
    )


def test_a_flipped_bit_in_a_hostile_entrys_header_costs_that_entry_alone(memory_folder):
    """Without index, forged records in its body are not served, and all real ones after it are."""
    bodies = [b"zero", hostile_body(1, 5), *(b"real %d" % n for n in range(21))]
    sample = make_sample(memory_folder / "data", bodies)
    assert read_segment_header(FaultyFiles(), sample.segment).ledger_id == 1
    for at in range(sample.offsets[1], sample.offsets[1] + 40, 3):
        bad = bytearray(sample.good)
        bad[at] ^= 1
        sample.put(bytes(bad))
        got, damaged = sample.read()
        assert damaged == [1]
        assert got == {n: body for n, body in enumerate(bodies) if n != 1}
        kinds = {type(f).__name__ for f in verify_folder(sample.folder)}
        assert not kinds & {"TornTail", "LostEntries", "VoidEntries"}


@pytest.mark.parametrize("marker", [b"\xf7PM\x1e", b"PMKB", b"\x00\x00\x00\x00"])
def test_markers_in_a_body_do_not_change_what_a_scan_reads(tmp_path, marker):
    """A damaged entry full of markers costs the bytes of the file once, whatever they are."""
    body = marker * (3 << 18)
    sample = make_sample(tmp_path / "data", [b"zero", b"!" + body, b"two"])
    bad = bytearray(sample.good)
    bad[sample.offsets[1] + 20] ^= 1
    sample.put(bytes(bad))
    files = FaultyFiles()
    header = read_segment_header(files, sample.segment)
    fd = files.open(sample.segment, os.O_RDONLY)
    records = list(scan_records(files, fd, header, header.size_bytes, 0))
    files.close(fd)
    assert [r.fields.entry_id for r in records] == [0, 2]
    # Twice, since damage is looked at a second time, with a window more each time.
    assert files.bytes_read < 2 * len(bad) + (4 << 20)


class LateFiles(FaultyFiles):
    """The first reads of a stretch see zeros: a writer is in the middle of it."""

    def __init__(self, start, end):
        super().__init__()
        self.start, self.end, self.late = start, end, 1

    def pread(self, fd, size_bytes, offset):
        """As the disk has it, with zeros in the stretch for the first reads."""
        data = bytearray(super().pread(fd, size_bytes, offset))
        if self.late and offset < self.end and offset + len(data) > self.start:
            self.late -= 1
            for at in range(max(self.start, offset), min(self.end, offset + len(data))):
                data[at - offset] = 0
        return bytes(data)


def test_write_seen_out_of_order_is_no_damage(sample):
    """A reader that sees a later record before an earlier one reads again first."""
    files = LateFiles(sample.offsets[4] + 5, sample.offsets[4] + 30)
    header = read_segment_header(FaultyFiles(), sample.segment)
    fd = files.open(sample.segment, os.O_RDONLY)
    records = list(scan_records(files, fd, header, header.size_bytes, 0))
    files.close(fd)
    assert files.late == 0
    assert [(r.fields.entry_id, r.damaged) for r in records] == [(n, None) for n in range(10)]


@pytest.fixture
def long_sample(memory_folder):
    """Enough entries for several chunks of the index."""
    return make_sample(memory_folder / "data", [b"%d" % n * 3 for n in range(2500)])


def test_lost_or_wrong_index_is_made_again_identical(long_sample, memory_folder):
    """Index missing, cut, random or foreign: opening the topic writes the same bytes again."""
    good = long_sample.index
    other = make_sample(memory_folder / "other", long_sample.bodies, before=1)
    random = Random(3)
    flipped = bytearray(good)
    flipped[len(good) // 2] ^= 1
    wrongs = [None, b"", good[:10], good[: len(good) // 2], good[:-1], random.randbytes(len(good)),
              other.index, bytes(flipped), good + b"more", bytes(len(good))]  # fmt: skip
    for number, wrong in enumerate(wrongs):
        long_sample.put(long_sample.good, index=wrong)
        assert long_sample.read() == (dict(enumerate(long_sample.bodies)), []), number
        with LocalStore.open(long_sample.folder) as store:
            assert read_all(store.open_topic(ORDERS)) == (dict(enumerate(long_sample.bodies)), [])
        assert index_path(long_sample.segment).read_bytes() == good, number


def test_index_deleted_under_a_live_store_does_no_harm(open_store):
    """Index files may be deleted or damaged at any time, also that of the segment being written."""
    store = open_store(segment_size_bytes=150_000)
    topic = store.open_topic(ORDERS)
    bodies = []
    for round_ in range(4):
        for n in range(1500):
            bodies.append(b"%d-%d" % (round_, n))
            last = topic.append(bodies[-1])
        last.commit.wait(10)
        for segment in topic.segments():
            path = index_path(segment.path)
            if path.exists() and round_ % 2:
                path.write_bytes(os.urandom(path.stat().st_size))
            else:
                path.unlink(missing_ok=True)
        store.drop_read_caches()
        with_fds = [index_path(s.path) for s in topic.segments()]
        for path in with_fds:
            store.engine.filer.fds.forget(path)
        assert [bytes(e.body) for e in all_entries(topic)] == bodies
    store.close()
    assert [bytes(e.body) for e in all_entries(open_store().open_topic(ORDERS))] == bodies


def test_an_index_that_cannot_be_written_again_hides_nothing(tmp_path):
    """The file is gone and the disk is full: the rows are made from the records all the same."""
    files = FaultyFiles()
    with LocalStore.open(tmp_path / "data", files=files) as store:
        topic = store.open_topic(ORDERS)
        for number in range(2100):
            topic.append(b"%d" % number)
        topic.append(b"last").commit.wait(10)
        store.drop_read_caches()
        as_segment(topic.segments()[0]).path.with_suffix(".idx").unlink()
        files.fail("pwritev", error=errno.ENOSPC, times=None, path_part=".idx")
        for number in (0, 1500, 0):
            (entry,) = topic.read(Position(topic.segments()[0].ledger_id, number), max_entries=1)
            assert bytes(entry.body) == b"%d" % number
        files.heal()


def test_end_and_index_of_a_segment_lost_under_a_live_store(long_sample):
    """Each entry of the lost end is a typed error; those before it and the next index stay."""
    with LocalStore.open(long_sample.folder) as store:
        topic = store.open_topic(ORDERS)
        whole = 2200
        index_path(long_sample.segment).write_bytes(b"")
        os.truncate(long_sample.segment, long_sample.offsets[whole])
        store.engine.filer.fds.forget(index_path(long_sample.segment))
        store.drop_read_caches()
        lost = list(range(whole, 2500))
        assert read_all(topic) == (dict(enumerate(long_sample.bodies[:whole])), lost)
        assert topic.next_index == 2500


def all_entries(topic):
    """Every entry of a topic."""
    return [entry for lot in read_on(topic, EARLIEST) for entry in lot]


@pytest.mark.parametrize("fault", ["fdatasync", "pwritev"])
def test_index_of_a_fenced_segment_can_be_made_again_identical(memory_folder, fault):
    """A segment that ended with a failed write has the index that its records give."""
    options = StoreOptions(checkpoint_interval_ms=NEVER_MS, journal_size_bytes=NEVER_MS)
    simulated = SimulatedStore(memory_folder / "data", options=options)
    files = simulated.files()
    store = simulated.open(files)
    topic = store.open_topic(ORDERS)
    clock = simulated.clock
    assert isinstance(clock, SettableClock)
    for number in range(1300):
        topic.append(b"%d" % number)
        clock.advance(by_ms=1)
    settle(store)
    path = as_segment(topic.segments()[0]).path
    # The journal is written first, then the segment.
    if fault == "fdatasync":
        files.fail(fault, path_part="journal")
    else:
        files.fail(fault, path_part=".log", times=2)
    with store.committer.lock:
        for number in range(20):
            failed = topic.append(b"failed %d" % number)
            clock.advance(by_ms=1000)
    settle(store)
    assert failed.commit.error is not None
    files.heal()
    topic.append(b"next").commit.wait(10)
    simulated.close()
    sealed = simulated.disk.contents(index_path(path))
    process = simulated.disk.process()
    process.unlink(index_path(path))
    simulated.open().open_topic(ORDERS)
    simulated.close()
    assert simulated.disk.contents(index_path(path)) == sealed

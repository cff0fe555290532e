"""The states that segments come to as a store works, and what a failing disk makes of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsemark.ledger import EARLIEST, FencedError, LocalStore, ManagedLedger, Position
from pulsemark.ledger.local.io.fd_cache import FdCache
from pulsemark.ledger.local.io.files import Files, write_file_durably
from pulsemark.ledger.local.io.folder import ledgers_folder, make_folder_durably
from pulsemark.ledger.local.ledgers import LocalLedgers
from pulsemark.ledger.local.segment.filer import Filer
from pulsemark.ledger.local.segment.index_file import open_index
from pulsemark.ledger.local.segment.segment import (
    Segment,
    SegmentState,
    SegmentStateError,
    as_segment,
)
from pulsemark.testing.faulty_files import FaultyFiles
from tests.support.simulated_disk import SimulatedDisk

TOPIC = "persistent://public/default/orders"
PENDING, DURABLE, ENDED, SEALED = (
    SegmentState.PENDING, SegmentState.DURABLE, SegmentState.ENDED, SegmentState.SEALED,
)  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalStore]:
    """A store whose batches and checkpoints are made on demand."""
    with LocalStore.open(tmp_path / "data", threaded=False) as store:
        yield store


def states(topic: ManagedLedger) -> list[SegmentState]:
    """Of all segments of a topic."""
    return states_of(*segments_of(topic))


def segments_of(topic: ManagedLedger) -> list[Segment]:
    """All segments of a topic."""
    return [as_segment(run) for run in topic.all_segments()]


def states_of(*segments: Segment) -> list[SegmentState]:
    """Their states."""
    return [segment.state for segment in segments]


def filer_of(store: LocalStore) -> Filer:
    """The owner of a store's segments."""
    assert isinstance(store.engine, LocalLedgers)
    return store.engine.filer


def append(topic: ManagedLedger, count: int = 1) -> None:
    """Append entries that become durable."""
    for number in range(count):
        last = topic.append(b"entry %d" % number)
    last.commit.wait()


def test_from_the_first_entry_to_the_seal(store: LocalStore) -> None:
    """Pending, durable, ended by a roll, sealed by the next checkpoint, sealed after reopening."""
    topic = store.open_topic(TOPIC)
    commit = topic.append(b"first").commit
    assert states(topic) == [PENDING]
    commit.wait()
    assert states(topic) == [DURABLE]
    topic.roll()
    assert states(topic) == [ENDED]
    append(topic)
    assert states(topic) == [ENDED, DURABLE]
    store.checkpoint()
    assert states(topic) == [SEALED, DURABLE]
    store.close()
    with LocalStore.open(store.folder, threaded=False) as again:
        assert states(again.open_topic(TOPIC)) == [SEALED, SEALED]


def test_a_ledger_that_ends_before_its_first_commit(store: LocalStore) -> None:
    """A segment with pending entries when its ledger ends is sealed once they are durable."""
    topic = store.open_topic(TOPIC)
    commit = topic.append(b"first").commit
    topic.roll()
    assert states(topic) == [ENDED]
    due = filer_of(store).take_due()
    assert (due.began, due.ended) == ([], [])
    commit.wait()
    store.checkpoint()
    assert states(topic) == [SEALED]


def test_removed_and_cut(store: LocalStore) -> None:
    """Trimmed segments and those of a cut tail are removed; a shortened one is sealed again."""
    topic = store.open_topic(TOPIC)
    for _ in range(4):
        append(topic, 3)
        topic.roll()
    store.checkpoint()
    first, second, third, fourth = segments_of(topic)
    topic.trim(Position(second.ledger_id, 0))
    assert first.state is SegmentState.REMOVED
    topic.truncate_tail(third.first_index + 1, epoch=1)
    assert [s.state for s in (second, third, fourth)] == [SEALED, ENDED, SegmentState.REMOVED]
    store.checkpoint()
    assert third.state is SEALED
    segments = segments_of(topic)
    store.delete_topic(TOPIC)
    assert {segment.state for segment in segments} == {SegmentState.REMOVED}


def test_segment_without_a_durable_entry_is_void(tmp_path: Path) -> None:
    """Its file goes at the next checkpoint; the topic goes on in another ledger."""
    files = FaultyFiles()
    with LocalStore.open(tmp_path / "data", files=files, threaded=False) as store:
        topic = store.open_topic(TOPIC)
        append(topic)
        topic.roll()
        commit = topic.append(b"refused").commit
        (_, refused) = segments_of(topic)
        files.fail("fdatasync", path_part=".journal")
        with pytest.raises(FencedError):
            commit.wait()
        assert refused.state is SegmentState.VOID
        append(topic)
        store.checkpoint()
        assert states_of(refused) == [SegmentState.REMOVED]
        assert not refused.path.exists()
        assert len(topic.read(EARLIEST)) == 2


def test_failed_sync_is_for_good(tmp_path: Path) -> None:
    """A segment whose sync failed is never synced again, and the journal is kept for it."""
    files = FaultyFiles()
    with LocalStore.open(tmp_path / "data", files=files, threaded=False) as store:
        topic = store.open_topic(TOPIC)
        append(topic)
        (segment,) = segments_of(topic)
        files.fail("fdatasync", path_part=".log")
        store.checkpoint()
        assert segment.state is SegmentState.FAILED
        append(topic)
        topic.roll()
        store.checkpoint()
        assert segment.state is SegmentState.FAILED
        assert not filer_of(store).sync(segment, -1)
        assert len(topic.read(EARLIEST)) == 2
    with LocalStore.open(tmp_path / "data", threaded=False) as again:
        assert len(again.open_topic(TOPIC).read(EARLIEST)) == 2


def test_calls_of_the_filer_out_of_order(store: LocalStore) -> None:
    """A segment that never began cannot be discarded, nor one begin twice."""
    topic = store.open_topic(TOPIC)
    append(topic)
    segment = filer_of(store).new(segments_of(topic)[0].header)
    with pytest.raises(SegmentStateError):
        filer_of(store).discard(segment)
    filer_of(store).begin(segment)
    with pytest.raises(SegmentStateError):
        filer_of(store).begin(segment)
    filer_of(store).discard(segment)
    assert segment.removed


class SlowSeal(Files):
    """Lets a test stop the last step of sealing an index file."""

    def __init__(self) -> None:
        self.reached, self.may_go_on = threading.Event(), threading.Event()

    def fdatasync(self, fd: int) -> None:
        """As `Files.fdatasync`; a sealed index file has a trailer, so it ends with few bytes."""
        super().fdatasync(fd)
        name = Path(f"/proc/self/fd/{fd}").readlink().name
        if name.endswith(".idx") and b"PMKE" in self.pread(fd, 1 << 16, 0):
            self.reached.set()
            assert self.may_go_on.wait(20)


def test_tail_cut_while_its_index_is_sealed(tmp_path: Path) -> None:
    """The index file ends as the shortened segment does, whichever of the two began first."""
    files = SlowSeal()
    with LocalStore.open(tmp_path / "data", files=files) as store:
        topic = store.open_topic(TOPIC)
        append(topic, 5)
        topic.roll()
        (segment,) = segments_of(topic)
        sealing = threading.Thread(target=store.checkpoint)
        cutting = threading.Thread(target=topic.truncate_tail, args=(2,), kwargs={"epoch": 1})
        sealing.start()
        assert files.reached.wait(20)
        cutting.start()
        cutting.join(0.3)  # it either waits for the seal, or is done by now
        files.may_go_on.set()
        for thread in (sealing, cutting):
            thread.join(20)
            assert not thread.is_alive()
        store.checkpoint()
        assert segment.state is SEALED
        with open_index(files, segment.path, segment.segment_id) as index:
            assert index is not None
            trailer = index.trailer()
        assert trailer is not None
        assert (trailer.row_count, segment.row(1).end_offset) == (2, trailer.end_offset)
        assert [bytes(entry.body) for entry in topic.read(EARLIEST)] == [
            b"entry 0",
            b"entry 1",
            b"",
        ]


def test_a_removal_that_a_kill_interrupted_outlives_a_power_cut(tmp_path: Path) -> None:
    """A killed process had removed the file without a sync: removing it again syncs that."""
    disk, folder = SimulatedDisk(1, survival="none"), tmp_path / "data"
    files = disk.process()
    make_folder_durably(files, ledgers_folder(folder))
    path = Filer(files, FdCache(files), folder).path((1, 0))
    write_file_durably(files, path, b"a segment")
    files.unlink(path)
    disk.kill()
    files = disk.process()
    Filer(files, FdCache(files), folder).remove_files({(1, 0)})
    disk.power_off()
    assert not disk.process().exists(path)
